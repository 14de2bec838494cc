"""What all parts of the catalog stand on: which version is read, and how a change becomes the next one."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, TypeVar

from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.typedef import Identifier

from trinitylake_core.catalog import CatalogView
from trinitylake_core.errors import InvalidName, ObjectNotFound
from trinitylake_core.iceberg.change import Attempt
from trinitylake_core.iceberg.errors import no_namespace
from trinitylake_core.iceberg.places import Places

_T = TypeVar("_T")


class LakehouseCatalog(MetastoreCatalog, abc.ABC):
    """A PyIceberg catalog over something that reads and changes a lakehouse."""

    _places: Places

    @abc.abstractmethod
    def _read(self, act: Callable[[CatalogView], _T]) -> _T:
        """Read something of the newest version, a version of the past, or a transaction.

        ``act`` may be called again, with a newer version, if the first one expired and was cleaned under its hands.
        """

    @abc.abstractmethod
    def _change(self, act: Callable[[Attempt], _T], reason: str) -> _T:
        """Carry out a change. ``act`` may be called again, after a conflict, with a newer version to stand on."""

    @abc.abstractmethod
    def _after_commit(self, act: Callable[[], Any]) -> None:
        """Call a function once what was changed so far is committed."""

    @staticmethod
    def _split(identifier: str | Identifier, missing: type[Exception]) -> tuple[str, str]:
        """Return namespace and name of an identifier; ``missing`` is raised where it has no namespace or no name."""
        parts = Catalog.identifier_to_tuple(identifier)
        if len(parts) < 2 or any(not part.strip() for part in parts):
            raise missing(f"{'.'.join(parts)!r} is not a namespace and a name")
        return ".".join(part.strip() for part in parts[:-1]), parts[-1].strip()

    @staticmethod
    def _identifier(namespace: str, name: str) -> Identifier:
        return (*namespace.split("."), name)

    @staticmethod
    def _has_namespace(view: CatalogView, namespace: str) -> bool:
        """Whether a namespace exists, by itself or because one below it does."""
        try:
            view.namespace(namespace)
        except ObjectNotFound:
            return bool(view.namespaces(f"{namespace}."))
        except InvalidName:
            return False
        return True

    def _need_namespace(self, view: CatalogView, namespace: str) -> None:
        if not self._has_namespace(view, namespace):
            raise no_namespace(namespace)

    def _make_namespace(self, change: Attempt, namespace: str) -> None:
        """Make a namespace that existed only because of those below it a namespace of its own."""
        self._need_namespace(change.txn, namespace)
        try:
            change.txn.namespace(namespace)
        except ObjectNotFound:
            change.txn.create_namespace(namespace)
