"""What PyIceberg's models lack of Iceberg's format version 3: types, default values, row lineage, the upgrade.

PyIceberg reads metadata of version 3 and updates most of them. It knows no type ``variant``, gives a new table no
default values, lets a stale commit through, refuses the upgrade, and refuses to write the file. Nothing of PyIceberg
is changed for that: its models get what they lack from here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from pydantic import model_validator
from pydantic_core.core_schema import ValidatorFunctionWrapHandler
from pyiceberg.exceptions import CommitFailedException, ValidationError
from pyiceberg.schema import Schema
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil, TableMetadataV3
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import (
    AddSchemaUpdate,
    AddSnapshotUpdate,
    TableUpdate,
    UpgradeFormatVersionUpdate,
    _apply_table_update,
    _TableMetadataUpdateContext,
)
from pyiceberg.table.update.snapshot import UpdateSnapshot
from pyiceberg.typedef import IcebergBaseModel, TableVersion
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, PrimitiveType, StructType

VERSION: Final = 3
_FIRST_ROW_ID: Final = 0


# -- types -------------------------------------------------------------------------------------------

_PASSED: Final = re.compile(r"variant|geo(?:metry|graphy)\([^()]{1,200}\)")
"""Types that PyIceberg cannot parse; those of geometry only as Java spells them, without quotes."""


class PassedType(PrimitiveType):
    """A type that PyIceberg lacks, as its name: it is stored and given back, and no value of it is read here."""

    root: str

    def __init__(self, name: str) -> None:
        super().__init__(root=name)

    @model_validator(mode="wrap")
    @classmethod
    def handle_primitive_type(cls, v: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        """Take the name as it is, where PyIceberg's method would look for a type of this name."""
        return handler(v)

    def minimum_format_version(self) -> TableVersion:
        """Return the first format version that has this type."""
        return VERSION

    def __getnewargs__(self) -> tuple[str]:
        """Return what a copy is made from."""
        return (self.root,)


def type_named(name: str) -> PassedType | None:
    """Return a type that PyIceberg lacks, by its name; ``None`` for those that it has, and for what is no type."""
    return PassedType(name) if _PASSED.fullmatch(name) else None


def with_passed_types(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata, a request or an update, as JSON, whose schemas hold types that PyIceberg cannot parse.

    Schemas are looked for where the specification has them. What is no schema stays as it is: a model refuses it.
    """
    found = dict(body)
    if isinstance(found.get("schema"), dict):
        found["schema"] = _open_type(found["schema"])
    if isinstance(found.get("schemas"), list | tuple):
        found["schemas"] = [_open_type(each) for each in found["schemas"]]
    for member in ("updates", "table-changes"):
        parts = found.get(member)
        if isinstance(parts, list):
            found[member] = [with_passed_types(each) if isinstance(each, dict) else each for each in parts]
    return found


def _open_type(kind: Any) -> Any:
    """Return a type of JSON in which the names that PyIceberg cannot parse are types."""
    if isinstance(kind, str):
        return type_named(kind) or kind
    if not isinstance(kind, dict):
        return kind
    opened = dict(kind)
    for member in ("element", "key", "value"):
        if member in opened:
            opened[member] = _open_type(opened[member])
    fields = opened.get("fields")
    if isinstance(fields, list | tuple):
        opened["fields"] = [_open_field(each) for each in fields]
    return opened


def _open_field(field: Any) -> Any:
    if not isinstance(field, dict) or "type" not in field:
        return field
    return field | {"type": _open_type(field["type"])}


# -- default values ----------------------------------------------------------------------------------


def refuse_newer_parts(schema: Schema, version: int) -> None:
    """Refuse a schema with types or default values that a format version does not have.

    Raises ``ValidationError``, which names the first column.
    """
    for number in sorted(schema.field_ids):
        field = schema.find_field(number)
        least = field.field_type.minimum_format_version()
        what = f"the type {field.field_type}"
        if field.initial_default is not None or field.write_default is not None:
            least = VERSION
            what = "a default value"
        if version < least:
            name = schema.find_column_name(number)
            raise ValidationError(
                f"column {name} has {what}, which tables of format version {version} cannot have; create or upgrade "
                f"the table with 'format-version' {least}"
            )


def with_defaults(fresh: Schema, given: Schema) -> Schema:
    """Return a schema with fresh IDs that has the default values of the one that it was made from."""
    fields = _fields_with_defaults(fresh.fields, given.fields)
    return Schema(*fields, schema_id=fresh.schema_id, identifier_field_ids=fresh.identifier_field_ids)


def _fields_with_defaults(fresh: Iterable[NestedField], given: Iterable[NestedField]) -> Iterator[NestedField]:
    for numbered, source in zip(fresh, given, strict=True):
        yield NestedField(
            numbered.field_id,
            numbered.name,
            _type_with_defaults(numbered.field_type, source.field_type),
            required=numbered.required,
            doc=numbered.doc,
            initial_default=source.initial_default,
            write_default=source.write_default,
        )


def _type_with_defaults(fresh: IcebergType, given: IcebergType) -> IcebergType:
    if isinstance(fresh, StructType) and isinstance(given, StructType):
        return StructType(*_fields_with_defaults(fresh.fields, given.fields))
    if isinstance(fresh, ListType) and isinstance(given, ListType):
        element = _type_with_defaults(fresh.element_type, given.element_type)
        return ListType(fresh.element_id, element, fresh.element_required)
    if isinstance(fresh, MapType) and isinstance(given, MapType):
        key = _type_with_defaults(fresh.key_type, given.key_type)
        value = _type_with_defaults(fresh.value_type, given.value_type)
        return MapType(fresh.key_id, key, fresh.value_id, value, fresh.value_required)
    return fresh


# -- metadata ----------------------------------------------------------------------------------------


def complete_new(metadata: TableMetadata, given: Schema) -> TableMetadata:
    """Return the metadata of a new table with the default values of the client's schema and the first row ID.

    Raises ``ValidationError``: types or default values that its format version does not have.
    """
    refuse_newer_parts(given, metadata.format_version)
    if not isinstance(metadata, TableMetadataV3):
        return metadata
    schema = with_defaults(metadata.schema(), given)
    return metadata.model_copy(update={"schemas": [schema], "next_row_id": _FIRST_ROW_ID})


def refuse_lost_parts(document: Mapping[str, Any]) -> None:
    """Refuse metadata, as JSON, of which PyIceberg's model would lose a part. Raises ``ValidationError``."""
    if document.get("encryption-keys"):
        raise ValidationError("the table is encrypted (encryption-keys), and PyIceberg would lose its keys")
    if document.get("format-version") == VERSION and type(document.get("next-row-id")) is not int:
        raise ValidationError("its next-row-id is no number, and tables of format version 3 have one")


def text_of(metadata: TableMetadataV3) -> str:
    """Return metadata as the JSON of their file; PyIceberg's own method refuses to, for it writes no such tables."""
    return IcebergBaseModel.model_dump_json(metadata, warnings=False)


# -- updates -----------------------------------------------------------------------------------------


def apply_update(update: TableUpdate, before: TableMetadata, context: _TableMetadataUpdateContext) -> TableMetadata:
    """Return metadata after one update: as PyIceberg applies it, and the upgrade and row lineage of version 3.

    Raises:
        CommitFailedException: a snapshot that stands on what others have changed.
        ValidationError: a snapshot without what version 3 demands.
        ValueError: or whatever else PyIceberg raises.
    """
    if isinstance(update, UpgradeFormatVersionUpdate) and update.format_version == VERSION:
        return _upgrade(update, before, context)
    if isinstance(update, AddSnapshotUpdate) and isinstance(before, TableMetadataV3):
        return _add_snapshot(update, before, context)
    return _apply_table_update(update, before, context)


def refuse_newer_schemas(updates: Iterable[TableUpdate], after: TableMetadata) -> None:
    """Refuse schemas of a commit with parts that the table's format version lacks. Raises ``ValidationError``."""
    for update in updates:
        if isinstance(update, AddSchemaUpdate):
            refuse_newer_parts(update.schema_, after.format_version)


def _upgrade(
    update: UpgradeFormatVersionUpdate, before: TableMetadata, context: _TableMetadataUpdateContext
) -> TableMetadata:
    if before.format_version == VERSION:
        return before
    context.add_update(update)
    changed = before.model_copy(update={"format_version": VERSION})
    upgraded = TableMetadataUtil._construct_without_validation(changed)  # noqa: SLF001 - as PyIceberg upgrades to 2
    return upgraded.model_copy(update={"next_row_id": _FIRST_ROW_ID})


def _add_snapshot(
    update: AddSnapshotUpdate, before: TableMetadataV3, context: _TableMetadataUpdateContext
) -> TableMetadata:
    first, added = _rows_of(update.snapshot)
    _refuse_stale(update.snapshot, before)
    after = _apply_table_update(update, before, context)
    # IDs between the table's next one and the snapshot's first one are used by nobody, then.
    return after.model_copy(update={"next_row_id": first + added})


def _rows_of(snapshot: Snapshot) -> tuple[int, int]:
    """Return a snapshot's first row ID, and how many rows get IDs by it. Raises ``ValidationError``."""
    if snapshot.first_row_id is None or snapshot.added_rows is None or snapshot.added_rows < 0:
        raise ValidationError(
            "a snapshot of a table of format version 3 needs first-row-id and added-rows: the client that made it "
            "does not write version 3"
        )
    return snapshot.first_row_id, snapshot.added_rows


def _refuse_stale(snapshot: Snapshot, before: TableMetadataV3) -> None:
    """Refuse a snapshot whose sequence number is taken: PyIceberg compares those of version 2 only."""
    if snapshot.sequence_number is None:
        raise ValidationError("a snapshot of a table of format version 3 needs a sequence-number")
    is_taken = snapshot.sequence_number <= before.last_sequence_number
    if is_taken and snapshot.parent_snapshot_id is not None:
        raise CommitFailedException(
            f"Cannot add snapshot with sequence number {snapshot.sequence_number} older than last sequence number "
            f"{before.last_sequence_number}: another commit came first; read the table again and retry"
        )


# -- tables in this process --------------------------------------------------------------------------


class TableOfVersion3(Table):
    """A table of which PyIceberg writes no data: it says so before the first file, and how to write them."""

    def transaction(self) -> Transaction:
        """Return a transaction that may change everything but the data."""
        return _TransactionWithoutData(self)


class _TransactionWithoutData(Transaction):
    def update_snapshot(self, *_args: Any, **_more: Any) -> UpdateSnapshot:
        raise NotImplementedError(
            f"PyIceberg writes no data of tables of format version 3, such as {'.'.join(self._table.name())}: append, "
            "overwrite and delete with Spark, Flink or DuckDB through the REST endpoint (`trinitylake serve`, "
            "docs/rest.md); it reads this table, and changes its schema, properties, tags and branches"
        )
