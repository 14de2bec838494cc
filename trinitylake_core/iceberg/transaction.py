"""Several changes as one version: a catalog that reads its own changes, and commits them together or not at all."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeVar

from pyiceberg.exceptions import CommitFailedException

from trinitylake_core.catalog import CatalogView
from trinitylake_core.errors import Corrupt, VersionExpired
from trinitylake_core.iceberg.change import Attempt
from trinitylake_core.iceberg.errors import translated
from trinitylake_core.iceberg.places import Places
from trinitylake_core.iceberg.views import Views

_T = TypeVar("_T")


class CatalogTransaction(Views):
    """A catalog of which all changes become one version of the lakehouse, or none.

        with catalog.transaction() as t:
            t.load_table("sales.orders").append(orders)
            t.load_table("sales.items").append(items)

    Tables must come from it, not from the catalog it began at. Others see nothing before the end. A race that is lost
    at the end is a ``CommitFailedException``, and everything is undone: run the block again. Data files and manifests
    that PyIceberg wrote by then stay, as after any failed commit of it. Not thread-safe.

    Attributes:
        version: the version it became; ``None`` before the end.
    """

    def __init__(
        self, name: str, properties: dict[str, str], change: Attempt, places: Places, expired: Callable[[int], bool]
    ) -> None:
        super().__init__(name, **properties)
        self._places = places
        self._pending = change
        self._expired = expired
        self._deferred: list[Callable[[], Any]] = []
        self.version: int | None = None

    def _read(self, act: Callable[[CatalogView], _T]) -> _T:
        return self._on(act, self._pending.txn)

    def _change(self, act: Callable[[Attempt], _T], reason: str) -> _T:
        return self._on(act, self._pending)

    def _on(self, act: Callable[[Any], _T], what: Attempt | CatalogView) -> _T:
        try:
            return act(what)
        except (Corrupt, VersionExpired) as error:
            began = self._pending.txn.base_version
            if self._expired(began):
                raise CommitFailedException(
                    f"version {began}, at which this began, has expired; run it again"
                ) from error
            raise

    def _after_commit(self, act: Callable[[], Any]) -> None:
        self._deferred.append(act)

    def commit(self) -> int:
        """Commit and return the version.

        Raises:
            CommitFailedException: another writer changed what this changes; nothing was committed.
            CommitStateUnknownException: the storage failed; it may have been committed.
        """
        with translated():
            self.version = self._pending.commit()
        for act in self._deferred:
            act()
        self._deferred.clear()
        return self.version

    def abort(self) -> None:
        """Give all changes up."""
        self._pending.discard()
        self._deferred.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.commit()
        else:
            self.abort()
