"""Tables that this process made for clients, who create them with a later commit."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final

from pyiceberg.table.metadata import TableMetadata

from trinitylake_core.iceberg.names import CatalogName

_MOST: Final = 10_000


class StagedTables:
    """What was staged lately. Thread-safe.

    Its UUID and its directory are random and given to one client, so no other table has them. Of a table that another
    process staged, or that this one has forgotten, the same is proved by a look at all tables.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_uuid: OrderedDict[str, tuple[CatalogName, str, list[str]]] = OrderedDict()

    def add(self, name: CatalogName, metadata: TableMetadata, own: list[str]) -> None:
        """Note a table that a client may create, with the directories that were made for it."""
        with self._lock:
            self._by_uuid[str(metadata.table_uuid)] = name, metadata.location, own
            while len(self._by_uuid) > _MOST:
                self._by_uuid.popitem(last=False)

    def directories_of(self, name: CatalogName, metadata: TableMetadata) -> list[str] | None:
        """Return the directories that were made for a table; perhaps none, where a client chose the place.

        ``None``: none was staged here under this name and at this location, or it was created since.
        """
        with self._lock:
            *known, own = self._by_uuid.get(str(metadata.table_uuid), (None, None, []))
            return own if known == [name, metadata.location] else None

    def forget(self, metadata: TableMetadata) -> None:
        """Note that a table is created, or may be: a second one must not get its UUID."""
        with self._lock:
            self._by_uuid.pop(str(metadata.table_uuid), None)
