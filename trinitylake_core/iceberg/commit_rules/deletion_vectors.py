"""Deletion vectors that a commit loses: the rows that they delete would come back.

A deletion vector (Iceberg's format version 3) names the deleted rows of one data file. Many vectors lie in one Puffin
file, and a writer that replaces one must carry the others on. DuckDB 1.5 does not, where Spark wrote the file: deleted
rows come back without a word, and a compaction makes that final. So a new snapshot is compared with its parent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeVar

from pyiceberg.exceptions import ValidationError
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot

from trinitylake_core.errors import Corrupt, FileMissing, InvalidInput
from trinitylake_core.iceberg.errors import TableForbidden
from trinitylake_core.iceberg.reading import references as refer
from trinitylake_core.iceberg.reading.health import read_manifests
from trinitylake_core.table_places import Located
from trinitylake_core.tables import full_uri

T = TypeVar("T")
_Listed = Mapping[str, refer.ListedManifest]
_VERSION: Final = 3
"""The format version that has deletion vectors."""
_MOST_SHARED: Final = 100
"""More manifests of deletes that stay are not read to find a second vector: Iceberg's engines merge so many."""


class LostVectors(ValidationError):
    """A commit brings rows back that were deleted. Trying it again does not help."""


@dataclass(frozen=True, slots=True)
class _Manifests:
    """The manifests of a snapshot, by URI: those of data files, and those of deletes."""

    data: _Listed
    deletes: _Listed


def refuse_lost_vectors(
    located: Located,
    name: str,
    before: TableMetadata,
    after: TableMetadata,
    refuse: Callable[[str, Iterable[str]], None] | None = None,
) -> None:
    """Refuse new snapshots that lack the deletion vector of a data file which is still there.

    No request for tables below format version 3. Else one ``get`` for the manifest list of the parent; where that
    names deletes, or the snapshot is no append, one for the list of the snapshot; and one for each manifest of deletes
    that only one of the two names. Where data files get their first vector, one for each manifest of deletes that
    both name, of at most :data:`_MOST_SHARED`; where a vector has gone, one for each manifest of data files that only
    one names. Snapshots whose files cannot be read are not judged.

    Args:
        located: where the files of the table are.
        name: of the table, for the message.
        before: the metadata that the commit found.
        after: those that it makes.
        refuse: called with each file before it is read, and with the location of the table before; raises if a client
            may not have it read.

    Raises:
        LostVectors: a vector has gone, or names fewer rows, or a data file has two.
    """
    if after.format_version < _VERSION:
        return
    known = {each.snapshot_id for each in before.snapshots}
    snapshots = {each.snapshot_id: each for each in after.snapshots}
    for number, snapshot in snapshots.items():
        parent = snapshots.get(snapshot.parent_snapshot_id or -1)
        if number not in known and parent is not None:
            comparison = _Comparison(located, name, before.location, parent, snapshot, refuse)
            with suppress(FileMissing, Corrupt, InvalidInput, TableForbidden):  # what cannot be read is not judged
                comparison.refuse_lost()


@dataclass(frozen=True, slots=True)
class _Comparison:
    """A snapshot beside the one that it was made from."""

    located: Located
    name: str
    location: str
    parent: Snapshot
    snapshot: Snapshot
    refuse: Callable[[str, Iterable[str]], None] | None

    def refuse_lost(self) -> None:
        older = self._manifests(self.parent)
        if not (older.deletes or self._may_add_deletes()):
            return
        newer = self._manifests(self.snapshot)
        come = _only_in(newer.deletes, older.deletes)
        vectors_before = self._read(_only_in(older.deletes, newer.deletes), _vectors_in)
        vectors_after = self._read(come, _vectors_in)
        self._refuse_doubled(vectors_after)
        rows_before, rows_after = _rows_by_file(vectors_before), _rows_by_file(vectors_after)
        lost = {file: rows for file, rows in rows_before.items() if rows_after.get(file, 0) < rows}
        if lost:
            self._refuse_alive(lost, rows_after, older, newer)
        shared = _only_in(newer.deletes, come)
        self._refuse_second(rows_after.keys() - rows_before.keys(), shared)

    def _may_add_deletes(self) -> bool:
        """Whether the writer does not say that it has only added data."""
        summary = self.snapshot.summary
        return summary is None or summary.operation is not Operation.APPEND

    def _refuse_alive(
        self, lost: Mapping[str, int], deleted: Mapping[str, int], older: _Manifests, newer: _Manifests
    ) -> None:
        """Refuse the snapshot if a data file that lost its vector did not go as well."""

        def found_in(data: bytes, uri: str) -> list[str]:
            return [each.uri for each in refer.files_in(data, uri) if each.uri in lost]

        # What the manifests of both snapshots name is there in both.
        files_before = self._read(_only_in(older.data, newer.data), found_in)
        files_after = self._read(_only_in(newer.data, older.data), found_in)
        removed = set(files_before) - set(files_after)
        alive = sorted(lost.keys() - removed)
        if not alive:
            return
        first = alive[0]
        raise LostVectors(
            f"snapshot {self.snapshot.snapshot_id} of {self.name} would bring deleted rows back: the deletion vector "
            f"of {first} has {lost[first]:,} rows in its parent and {deleted.get(first, 0):,} in it. That concerns "
            f"{len(alive):,} data files. The writer dropped vectors that share a Puffin file with one that it replaced "
            "(DuckDB 1.5 does); delete these rows with the engine that wrote the vectors, or compact the table first"
        )

    def _refuse_doubled(self, vectors: Iterable[refer.DescribedFile]) -> None:
        seen: set[str | None] = set()
        for each in vectors:
            if each.vector_of in seen:
                raise self._explain_doubled(each.vector_of)
            seen.add(each.vector_of)

    def _refuse_second(self, first: AbstractSet[str], shared: _Listed) -> None:
        """Refuse the snapshot if data files that get their first vector have one in manifests that stay.

        Those that had a vector in a manifest that has gone have none in others: the parent was right.
        """
        if not first or len(shared) > _MOST_SHARED:
            return

        for each in self._read(shared, _vectors_in):
            if each.vector_of in first:
                raise self._explain_doubled(each.vector_of)

    def _explain_doubled(self, data_file: str | None) -> LostVectors:
        return LostVectors(
            f"snapshot {self.snapshot.snapshot_id} of {self.name} has two deletion vectors for {data_file}; a data "
            "file has one, and no engine would read the table. The writer has to merge the older vector into the "
            "newer one, and to remove it: load the table again, and delete these rows again"
        )

    def _manifests(self, snapshot: Snapshot) -> _Manifests:
        named = refer.ListedManifest(full_uri(snapshot.manifest_list))
        found = self._read({named.uri: named}, refer.listed_in)
        data = {each.uri: each for each in found if not each.content}
        deletes = {each.uri: each for each in found if each.content}
        return _Manifests(data, deletes)

    def _read(self, files: _Listed, parse: Callable[[bytes, str], Iterable[T]]) -> list[T]:
        """Return what is in files, read side by side. Raises where one of them cannot, or may not, be read."""
        if self.refuse is not None:
            for uri in files:
                self.refuse(uri, [self.location])
        found = read_manifests(self.located, files, parse)
        return [each for _, part in found for each in part]


def _only_in(these: _Listed, others: _Listed) -> _Listed:
    """Return the manifests that others do not have."""
    return {uri: each for uri, each in these.items() if uri not in others}


def _vectors_in(data: bytes, uri: str) -> Iterator[refer.DescribedFile]:
    """Yield the deletion vectors in a manifest, and no position deletes in a file of their own or equality deletes."""
    return (each for each in refer.described_files_in(data, uri) if each.vector_of is not None)


def _rows_by_file(vectors: Iterable[refer.DescribedFile]) -> dict[str, int]:
    return {each.vector_of or "": each.rows for each in vectors}
