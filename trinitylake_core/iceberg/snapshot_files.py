"""The files of any snapshot of a table, by our own reader: for proofs about what a program did to a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trinitylake_core.iceberg import references as refer
from trinitylake_core.iceberg.health import content_of, manifests_of_snapshot, read_metadata
from trinitylake_core.table_places import Located

_DATA = 0


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A data file: its rows, and its size in bytes."""

    rows: int
    size: int


@dataclass(frozen=True, slots=True)
class SnapshotFiles:
    """The live files of a snapshot.

    Attributes:
        data: the data files by URI.
        deletes: how many delete files and deletion vectors there are.
        manifests: how many manifests name them.
    """

    data: Mapping[str, LiveFile]
    deletes: int
    manifests: int


class SnapshotReader:
    """Reads the snapshots that the metadata of a table name; each manifest once."""

    def __init__(self, located: Located, location: str) -> None:
        """Read the metadata file at a location. One ``get``. Raises as ``figures`` of health."""
        read = read_metadata(located, location)
        self._located = read.located
        self._snapshots: dict[int, Mapping[str, Any]] = {}
        for each in read.document.get("snapshots") or ():
            self._snapshots[each["snapshot-id"]] = each
        self._known: dict[str, list[refer.DescribedFile]] = {}
        self.uuid = read.references.uuid
        self.document = read.document
        self.current: int | None = read.snapshot.get("snapshot-id")

    def snapshot(self, number: int | None) -> Mapping[str, Any] | None:
        """Return a snapshot as its metadata have it; ``None`` if it is not among them."""
        return None if number is None else self._snapshots.get(number)

    def since(self, number: int) -> list[Mapping[str, Any]] | None:
        """Return the snapshots from the one after ``number`` to the current one; ``None`` if that is no ancestor."""
        found: list[Mapping[str, Any]] = []
        at = self.current
        while at != number:
            each = self.snapshot(at)
            if each is None:
                return None
            found.append(each)
            at = each.get("parent-snapshot-id")
        return found[::-1]

    def files(self, number: int) -> SnapshotFiles:
        """Return the live files of a snapshot. One ``get`` for its manifest list, and for each manifest not yet read.

        Raises ``UnreadableTable``, ``FileMissing``, ``StorageError``, and ``KeyError`` for an unknown snapshot.
        """
        data: dict[str, LiveFile] = {}
        deletes = 0
        manifests = 0
        for files in self._manifests_of(self._snapshots[number]):
            manifests += 1
            for file in files:
                if file.content == _DATA:
                    data[file.uri] = LiveFile(file.rows, file.size)
                else:
                    deletes += 1
        return SnapshotFiles(data, deletes, manifests)

    def _manifests_of(self, snapshot: Mapping[str, Any]) -> Iterator[list[refer.DescribedFile]]:
        """Yield what each manifest of a snapshot holds. One ``get`` for each that no other snapshot had."""
        manifests = manifests_of_snapshot(self._located, snapshot)

        def read(uri: str) -> tuple[str, list[refer.DescribedFile]]:
            data = content_of(self._located, manifests[uri])
            files = list(refer.described_files_in(data, uri))
            return uri, files

        unread = sorted(manifests.keys() - self._known.keys())
        found = self._located.storage.map(unread, read)
        self._known.update(found)
        for uri in manifests:
            yield self._known[uri]
