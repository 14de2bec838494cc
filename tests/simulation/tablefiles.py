"""Which files the metadata of an Iceberg table need, read by fastavro: by none of the product's readers.

And a commit of deletes by position, which PyIceberg reads and does not write.
"""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, Final

import fastavro
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestWriterV2,
    write_manifest_list,
)
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import AddSnapshotUpdate, AssertRefSnapshotId, SetSnapshotRefUpdate
from pyiceberg.typedef import Record

from tests.simulation.store import ROOT

_DELETED: Final = 2
"""The status of a manifest's entry that names a file which its snapshot no longer has."""
_KNOWN: dict[tuple[str, bytes], frozenset[str]] = {}


def files_of(files: Mapping[str, bytes], metadata: str) -> frozenset[str]:
    """Return the paths of all files that table metadata refer to, and their own, among files that ever were."""
    data = files[metadata]
    if (metadata, data) not in _KNOWN:
        content = json.loads(data)
        found = {metadata} | {each["statistics-path"] for each in content.get("statistics", ())}
        for snapshot in content["snapshots"]:
            found.add(snapshot["manifest-list"])
            for manifest in _rows_of(files, snapshot["manifest-list"]):
                found.add(manifest["manifest_path"])
                entries = _rows_of(files, manifest["manifest_path"])
                found |= {each["data_file"]["file_path"] for each in entries if each["status"] != _DELETED}
        _KNOWN[metadata, data] = frozenset(path.removeprefix(ROOT) for path in found)
    return _KNOWN[metadata, data]


def _rows_of(files: Mapping[str, bytes], location: str) -> Iterator[Any]:
    return fastavro.reader(io.BytesIO(files[location.removeprefix(ROOT)]))


class _Deletes(ManifestWriterV2):
    def content(self) -> ManifestContent:
        """Return that it names files of deletes."""
        return ManifestContent.DELETES


def commit_deletes(table: Table, path: str) -> None:
    """Commit a file of deletes that is written already, with a manifest and a manifest list that are new."""
    metadata, io, unique = table.metadata, table.io, uuid.uuid4()
    new_id = unique.int >> 66
    parent, directory = metadata.current_snapshot_id, f"{table.location()}/metadata"
    file = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES, file_path=path, file_format=FileFormat.PARQUET, partition=Record(),
        record_count=1, file_size_in_bytes=1,
    )  # fmt: skip
    with _Deletes(
        metadata.spec(), metadata.schema(), io.new_output(f"{directory}/{unique}-m0.avro"), new_id, "null"
    ) as writer:
        added = ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, snapshot_id=new_id, data_file=file)
        writer.add_entry(added)
    before = [] if (current := table.current_snapshot()) is None else current.manifests(io)
    listed, number = f"{directory}/snap-{unique}.avro", table.metadata.next_sequence_number()
    with write_manifest_list(2, io.new_output(listed), new_id, parent, number, "null") as lists:
        lists.add_manifests([*before, writer.to_manifest_file()])
    snapshot = Snapshot(
        snapshot_id=new_id, parent_snapshot_id=parent, sequence_number=number, manifest_list=listed,
        timestamp_ms=metadata.last_updated_ms + 1, summary=Summary(Operation.DELETE),
        schema_id=metadata.current_schema_id,
    )  # fmt: skip
    main = SetSnapshotRefUpdate(**{"ref-name": "main", "type": "branch", "snapshot-id": new_id})
    unmoved = AssertRefSnapshotId(ref="main", snapshot_id=parent)
    table.catalog.commit_table(table, (unmoved,), (AddSnapshotUpdate(snapshot=snapshot), main))
