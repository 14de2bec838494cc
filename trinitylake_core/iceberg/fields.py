"""The fields of the definition of a table that describe its Iceberg table (format, section 5)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pyiceberg.partitioning import PartitionField
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.sorting import SortField
from pyiceberg.transforms import IdentityTransform

from trinitylake_core.definitions import TableDef
from trinitylake_core.iceberg.schemas import schema_from_iceberg
from trinitylake_core.tables import (
    ELSEWHERE,
    FORMER,
    METADATA_LOCATION,
    PREVIOUS_METADATA_LOCATION,
    SNAPSHOT_BYTES,
    SNAPSHOT_ID,
    SNAPSHOT_MILLIS,
    SNAPSHOT_ROWS,
    TABLE_UUID,
    full_uri,
)


def table_fields(
    metadata: TableMetadata, stored: tuple[str, str], old: TableDef | None = None, left: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the arguments of ``create_table``, or with ``old`` of ``alter_table``, for Iceberg metadata.

    ``stored``: table type, and ``metadata_location`` as the definition has it; ``left``: the directories that the table
    had before.
    """
    kind, location = stored
    snapshot = metadata.current_snapshot()
    facts: dict[str, str | None] = {
        METADATA_LOCATION: location,
        PREVIOUS_METADATA_LOCATION: None if old is None else old.format_properties.get(METADATA_LOCATION),
        TABLE_UUID: str(metadata.table_uuid),
        ELSEWHERE: None if _is_beside(metadata.location, location) else full_uri(metadata.location),
        FORMER: "\n".join(left) or None,
        SNAPSHOT_ID: None if snapshot is None else str(snapshot.snapshot_id),
        SNAPSHOT_MILLIS: None if snapshot is None else str(snapshot.timestamp_ms),
        SNAPSHOT_ROWS: _total(snapshot, "total-records"),
        SNAPSHOT_BYTES: _total(snapshot, "total-files-size"),
    }
    properties: dict[str, str | None] = dict(metadata.properties)
    if old is None:
        facts = {name: value for name, value in facts.items() if value is not None}
    else:
        properties = dict.fromkeys(old.properties) | properties
    return {
        "schema": schema_from_iceberg(metadata.schema()),
        "table_type": kind,
        "format_properties": facts,
        "properties": properties,
        **_keys(metadata),
    }


def _is_beside(location: str, metadata_location: str) -> bool:
    """Whether the metadata file of a table lies below its location, by the end of both: one is a path below a root."""
    directory = metadata_location.rpartition("/")[0]
    inner = directory.removesuffix("/metadata")
    named = full_uri(location).rstrip("/")
    found = full_uri(inner).rstrip("/")
    return named.endswith(found)


def _total(snapshot: Snapshot | None, name: str) -> str | None:
    """Return a total of a snapshot's summary, which is optional there."""
    return None if snapshot is None or snapshot.summary is None else snapshot.summary.get(name)


def _keys(metadata: TableMetadata) -> dict[str, list[int]]:
    """Return identifier columns, and those that the table is partitioned and sorted by as they are."""
    schema = metadata.schema()
    spec = metadata.specs()[metadata.default_spec_id]
    partitions = _plain_columns(spec.fields, schema)
    sorting: list[int] = []
    for order in metadata.sort_orders:
        if order.order_id == metadata.default_sort_order_id:
            sorting = _plain_columns(order.fields, schema)
            break
    return {
        "primary_keys": list(schema.identifier_field_ids),
        "distribution_keys": partitions,
        "sort_keys": sorting,
    }


def _plain_columns(fields: Iterable[PartitionField | SortField], schema: Schema) -> list[int]:
    """Return the columns that fields take as they are, each once, without those that were dropped."""
    known = schema._lazy_id_to_field  # noqa: SLF001 - a partition may be by a column that was dropped
    columns = dict.fromkeys(each.source_id for each in fields if _is_plain(each))
    return [number for number in columns if number in known]


def _is_plain(field: Any) -> bool:
    return isinstance(field.transform, IdentityTransform)
