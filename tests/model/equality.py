"""Deletes by equality, as Flink writes them: no client that the judge has writes any, so it does it itself."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any, Final

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import AddSnapshotUpdate, AssertRefSnapshotId, SetSnapshotRefUpdate

from tests.model.tables import EQUALITY, path_of
from tests.support.table_files import manifest_schema

_VERSION: Final = 2
_ADDED: Final = 1
_ID: Final = 1
"""The field that identifies a row."""


def delete_by_equality(table: Table, numbers: list[int]) -> None:
    """Delete the rows with these IDs from a table of format version 2: a file, a manifest, a list, a snapshot."""
    parent = table.current_snapshot()
    assert parent is not None
    number, sequence = table.metadata.new_snapshot_id(), table.metadata.last_sequence_number + 1
    name = uuid.uuid4()
    data = f"{table.location()}/data/{name}.parquet"
    size = _write_ids(path_of(data), numbers)
    manifest = f"{table.location()}/metadata/{name}-m0.avro"
    _write_manifest(table, manifest, number, data, size, len(numbers))
    listed = f"{table.location()}/metadata/snap-{number}-{name}.avro"
    with Path(path_of(parent.manifest_list)).open("rb") as file:
        reader = fastavro.reader(file)
        rows: list[Any] = [*reader]
    counts = {f"{each}_{what}_count": 0 for each in ("existing", "deleted") for what in ("files", "rows")}
    rows.append(
        counts
        | {
            "manifest_path": manifest,
            "manifest_length": Path(path_of(manifest)).stat().st_size,
            "partition_spec_id": 0,
            "content": 1,
            "sequence_number": sequence,
            "min_sequence_number": sequence,
            "added_snapshot_id": number,
            "added_files_count": 1,
            "added_rows_count": len(numbers),
            "partitions": [],
        }
    )
    _write_avro(listed, reader.writer_schema, rows, {"format-version": f"{_VERSION}"})
    made = Snapshot(
        snapshot_id=number,
        parent_snapshot_id=parent.snapshot_id,
        sequence_number=sequence,
        timestamp_ms=table.metadata.last_updated_ms + 1,
        manifest_list=listed,
        summary=Summary(Operation.DELETE),
        schema_id=table.metadata.current_schema_id,
    )
    to_main = SetSnapshotRefUpdate(ref_name="main", type=SnapshotRefType.BRANCH, snapshot_id=number)
    asserted = AssertRefSnapshotId(ref="main", snapshot_id=parent.snapshot_id)
    table.catalog.commit_table(table, (asserted,), (AddSnapshotUpdate(snapshot=made), to_main))


def _write_ids(path: str, numbers: list[int]) -> int:
    field = pa.field("id", pa.int64(), metadata={"PARQUET:field_id": f"{_ID}"})
    pq.write_table(pa.table([pa.array(numbers, pa.int64())], pa.schema([field])), path)
    return Path(path).stat().st_size


def _write_manifest(table: Table, at: str, snapshot: int, data: str, size: int, count: int) -> None:
    file = {
        "content": EQUALITY,
        "file_path": data,
        "file_format": "PARQUET",
        "partition": {},
        "record_count": count,
        "file_size_in_bytes": size,
        "equality_ids": [_ID],
    }
    about = {
        "schema": table.schema().model_dump_json(),
        "schema-id": f"{table.schema().schema_id}",
        "partition-spec": json.dumps([]),
        "partition-spec-id": "0",
        "format-version": f"{_VERSION}",
        "content": "deletes",
    }
    _write_avro(
        at, manifest_schema(_VERSION, []), [{"status": _ADDED, "snapshot_id": snapshot, "data_file": file}], about
    )


def _write_avro(at: str, schema: Any, rows: list[Any], about: dict[str, str]) -> None:
    with Path(path_of(at)).open("wb") as file:
        fastavro.writer(file, fastavro.parse_schema(schema), rows, metadata=about)
