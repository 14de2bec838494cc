"""Tables that this process made for clients, who create them with a later commit."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final

from pyiceberg.table.metadata import TableMetadata

from trinitylake_core.iceberg.names import ObjectName

_MOST: Final = 10_000


class StagedTables:
    """What was staged lately. Thread-safe.

    Its UUID and its directory are random and given to one client, so no other table has them. Of a table that another
    process staged, or that this one has forgotten, the same is proved by a look at all tables.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_uuid: OrderedDict[str, tuple[ObjectName, str]] = OrderedDict()

    def add(self, name: ObjectName, metadata: TableMetadata) -> None:
        """Note a table that a client may create."""
        with self._lock:
            self._by_uuid[str(metadata.table_uuid)] = name, metadata.location
            while len(self._by_uuid) > _MOST:
                self._by_uuid.popitem(last=False)

    def has(self, name: ObjectName, metadata: TableMetadata) -> bool:
        """Whether a table was staged here, under this name, at this location, and was not created yet."""
        with self._lock:
            return self._by_uuid.get(str(metadata.table_uuid)) == (name, metadata.location)

    def forget(self, metadata: TableMetadata) -> None:
        """Note that a table is created, or may be: a second one must not get its UUID."""
        with self._lock:
            self._by_uuid.pop(str(metadata.table_uuid), None)
