"""What all parts of the catalog stand on, and namespaces.

Nested namespaces are dotted names, as in PyIceberg's SQL catalog; a parent need not exist by itself.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, TypeVar

from pyiceberg.catalog import Catalog, MetastoreCatalog, PropertiesUpdateSummary
from pyiceberg.exceptions import NamespaceAlreadyExistsError, NamespaceNotEmptyError, NoSuchNamespaceError
from pyiceberg.io import FileIO
from pyiceberg.typedef import EMPTY_DICT, Identifier, Properties
from pyiceberg.types import transform_dict_value_to_str

from trinitylake_core.catalog import CatalogView
from trinitylake_core.errors import AlreadyExists, InvalidName, NamespaceNotEmpty, ObjectNotFound
from trinitylake_core.iceberg.border import refuse_code
from trinitylake_core.iceberg.change import Attempt
from trinitylake_core.iceberg.errors import no_namespace, translated
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

    def _load_file_io(self, properties: Properties = EMPTY_DICT, location: str | None = None) -> FileIO:
        """Return the FileIO for a location, by the options of the catalog; the properties of a table choose nothing."""
        return self._places.file_io(location or self._places.base)

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


class Namespaces(LakehouseCatalog):
    """The part of the catalog that keeps namespaces and their properties."""

    def namespace_exists(self, namespace: str | Identifier) -> bool:
        """Return whether a namespace exists, by itself or because one below it does."""
        with translated():
            return self._read(lambda view: self._has_namespace(view, _text(namespace)))

    def create_namespace(self, namespace: str | Identifier, properties: Properties = EMPTY_DICT) -> None:
        """Create a namespace.

        Raises:
            NamespaceAlreadyExistsError: it is there.
            NoSuchNamespaceError: the name is empty.
            BadRequestError: the name is too long, or holds a space or a control character.
        """
        text, values = _text(namespace), transform_dict_value_to_str(dict(properties))
        refuse_code(values, f"namespace {text}")

        def create(change: Attempt) -> None:
            try:
                change.txn.create_namespace(text, values)
            except AlreadyExists:
                raise NamespaceAlreadyExistsError(f"Namespace already exists: {text}") from None

        with translated():
            self._change(create, f"create namespace {text}")

    def drop_namespace(self, namespace: str | Identifier) -> None:
        """Drop an empty namespace.

        Raises:
            NoSuchNamespaceError: it is not there.
            NamespaceNotEmptyError: it holds tables or views, or there are namespaces below it.
        """
        text = _text(namespace)

        def drop(change: Attempt) -> None:
            self._need_namespace(change.txn, text)
            if below := change.txn.namespaces(f"{text}."):
                raise NamespaceNotEmptyError(f"Namespace {text} is not empty. {len(below)} namespaces are below it.")
            try:
                change.txn.drop_namespace(text)
            except NamespaceNotEmpty as error:
                raise NamespaceNotEmptyError(f"Namespace {text} is not empty: {error}") from None

        with translated():
            self._change(drop, f"drop namespace {text}")

    def list_namespaces(self, namespace: str | Identifier = ()) -> list[Identifier]:
        """Return the namespaces right below one, or those of the top level. Raises ``NoSuchNamespaceError``."""
        parent = _text(namespace) if namespace else ""

        def listed(view: CatalogView) -> list[str]:
            found = view.namespaces(f"{parent}." if parent else "")
            if parent and not found:
                self._need_namespace(view, parent)
            return found

        with translated():
            names = self._read(listed)
        level = len(parent.split(".")) + 1 if parent else 1
        return sorted({tuple(name.split("."))[:level] for name in names})

    def load_namespace_properties(self, namespace: str | Identifier) -> Properties:
        """Return the properties of a namespace. Raises ``NoSuchNamespaceError``."""
        text = _text(namespace)

        def properties(view: CatalogView) -> Properties:
            try:
                return dict(view.namespace(text).properties)
            except (ObjectNotFound, InvalidName):
                if self._has_namespace(view, text):
                    return {}
                raise no_namespace(text) from None

        with translated():
            return self._read(properties)

    def update_namespace_properties(
        self, namespace: str | Identifier, removals: set[str] | None = None, updates: Properties = EMPTY_DICT
    ) -> PropertiesUpdateSummary:
        """Remove and set properties of a namespace.

        Raises:
            NoSuchNamespaceError: it is not there.
            ValueError: a property is both removed and set, or its value is ``None``.
        """
        text, values = _text(namespace), transform_dict_value_to_str(dict(updates))
        refuse_code(values, f"namespace {text}")

        def update(change: Attempt) -> PropertiesUpdateSummary:
            self._make_namespace(change, text)
            current = dict(change.txn.namespace(text).properties)
            summary, _ = self._get_updated_props_and_update_summary(current, removals, values)
            removed: dict[str, str | None] = dict.fromkeys(summary.removed)
            if removed or values:
                change.txn.alter_namespace(text, {**removed, **values})
            return summary

        with translated():
            return self._change(update, f"update namespace {text}")


def _text(namespace: str | Identifier) -> str:
    return Catalog.namespace_to_string(namespace, NoSuchNamespaceError)
