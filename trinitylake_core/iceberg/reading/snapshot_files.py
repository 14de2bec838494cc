"""The files of any snapshot of a table, by our own reader: for proofs about what a program did to a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trinitylake_core.iceberg.reading import references as refer
from trinitylake_core.iceberg.reading.health import manifests_of_snapshot, read_manifests, read_metadata
from trinitylake_core.iceberg.reading.metadata_json import JsonObject
from trinitylake_core.table_places import Located

_DATA = 0


@dataclass(frozen=True, slots=True)
class SnapshotFiles:
    """The live files of a snapshot.

    Attributes:
        data: the data files by URI.
        deletes: how many delete files and deletion vectors there are.
        manifests: how many manifests name them.
    """

    data: Mapping[str, refer.DescribedFile]
    deletes: int
    manifests: int


class SnapshotReader:
    """Reads the snapshots that the metadata of a table name; each manifest once.

    Attributes:
        known: what the manifests hold that were read, by URI.
    """

    def __init__(self, located: Located, location: str, before: SnapshotReader | None = None) -> None:
        """Read the metadata file at a location. One ``get``. Raises as ``figures`` of health.

        A manifest that the reader of ``before`` has read is not read again: its table's writers may overwrite it.
        """
        read = read_metadata(located, location)
        self._located = read.located
        self._snapshots: dict[int, JsonObject] = {}
        for each in read.document.get("snapshots") or ():
            self._snapshots[each["snapshot-id"]] = each
        self.known: dict[str, list[refer.DescribedFile]] = {}
        if before is not None:
            self.known = before.known
        self.uuid = read.references.uuid
        self.document = read.document
        self.current: int | None = read.snapshot.get("snapshot-id")

    def snapshot(self, number: int | None) -> JsonObject | None:
        """Return a snapshot as its metadata have it; ``None`` if it is not among them."""
        return None if number is None else self._snapshots.get(number)

    def since(self, number: int) -> list[JsonObject] | None:
        """Return the snapshots from the one after ``number`` to the current one; ``None`` if that is no ancestor."""
        found: list[JsonObject] = []
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
        manifests = self._read_manifests(number)
        data: dict[str, refer.DescribedFile] = {}
        deletes = 0
        for files in manifests:
            for file in files:
                if file.content == _DATA:
                    data[file.uri] = file
                else:
                    deletes += 1
        return SnapshotFiles(data, deletes, len(manifests))

    def refuse_odd_files(self, number: int) -> None:
        """Refuse a snapshot with a file that another program must not open for this table. Costs as :meth:`files`.

        It lies elsewhere, or on a disk it is no regular file, or lies behind a link that leads out: others follow it.

        Raises as :meth:`files`, and ``OutsidePlaces``, ``NotAFile``.
        """
        for files in self._read_manifests(number):
            for file in files:
                storage, path = self._located.find(file.uri)
                if storage.root.startswith("file:"):
                    storage.info(path)

    def _read_manifests(self, number: int) -> list[list[refer.DescribedFile]]:
        """Return what each manifest of a snapshot holds; those that were read before are not read again."""
        manifests = manifests_of_snapshot(self._located, self._snapshots[number])
        unread = {uri: each for uri, each in manifests.items() if uri not in self.known}
        for manifest, files in read_manifests(self._located, unread, refer.described_files_in):
            self.known[manifest.uri] = files
        return [self.known[uri] for uri in manifests]
