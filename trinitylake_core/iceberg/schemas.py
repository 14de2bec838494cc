"""Iceberg schema ↔ schema of the format (section 5): column IDs, types, requiredness and comments are kept.

A type of Iceberg that the format does not have is stored as the one that can hold it; the column property
``iceberg.type`` has the original type.
"""

from __future__ import annotations

from typing import Any, Final

from pyiceberg import types as iceberg
from pyiceberg.schema import Schema as IcebergSchema

from trinitylake_core.definitions import Column, DataType, Schema
from trinitylake_core.errors import InvalidDefinition
from trinitylake_core.iceberg.version3 import type_named

TYPE: Final = "iceberg.type"
DOC: Final = "doc"
_LARGEST_ID: Final = (1 << 31) - 1
_PLAIN: Final[dict[type[iceberg.IcebergType], str]] = {
    iceberg.BooleanType: "BOOLEAN",
    iceberg.IntegerType: "INT4",
    iceberg.LongType: "INT8",
    iceberg.FloatType: "FLOAT4",
    iceberg.DoubleType: "FLOAT8",
    iceberg.DateType: "DATE",
    iceberg.TimeType: "TIME6",
    iceberg.TimestampType: "TIMESTAMP6",
    iceberg.TimestamptzType: "TIMESTAMPTZ6",
    iceberg.TimestampNanoType: "TIMESTAMP9",
    iceberg.TimestamptzNanoType: "TIMESTAMPTZ9",
    iceberg.StringType: "VARCHAR",
    iceberg.BinaryType: "BINARY",
}
_BACK: Final = {name: kind for kind, name in _PLAIN.items()} | {
    "INT2": iceberg.IntegerType,
    "CHAR": iceberg.StringType,
    "TIME3": iceberg.TimeType,
    "TIMESTAMP3": iceberg.TimestampType,
    "TIMESTAMPTZ3": iceberg.TimestamptzType,
}


def schema_from_iceberg(schema: IcebergSchema) -> Schema:
    """Return the schema of the format that is equal to an Iceberg schema."""
    return Schema(columns=[_column(field) for field in schema.fields])


def schema_to_iceberg(schema: Schema) -> IcebergSchema:
    """Return the Iceberg schema of a schema. Raises ``InvalidDefinition`` for a type that Iceberg does not have."""
    return IcebergSchema(*(_field(column) for column in schema.columns))


def schema_meaning(schema: IcebergSchema) -> object:
    """Return what is equal for two Iceberg schemas that differ only in their IDs."""
    return schema.as_struct(), tuple(schema.identifier_field_ids)


def _column(field: iceberg.NestedField) -> Column:
    column = _column_of(field.field_type, field.field_id, field.name, nullable=not field.required)
    if field.doc:
        column.properties[DOC] = field.doc
    return column


def _column_of(kind: iceberg.IcebergType, number: int, name: str, *, nullable: bool) -> Column:
    if not 0 <= number <= _LARGEST_ID:
        raise InvalidDefinition(f"column {name}: its ID {number} is none")
    column = Column(id=number, name=name, nullable=nullable)
    if isinstance(kind, iceberg.StructType):
        column.type = DataType.STRUCT
        column.struct_fields.extend(_column(field) for field in kind.fields)
    elif isinstance(kind, iceberg.ListType):
        column.type = DataType.LIST
        is_nullable = not kind.element_required
        element = _column_of(kind.element_type, kind.element_id, "element", nullable=is_nullable)
        column.list_element.CopyFrom(element)
    elif isinstance(kind, iceberg.MapType):
        column.type = DataType.MAP
        is_nullable = not kind.value_required
        key = _column_of(kind.key_type, kind.key_id, "key", nullable=False)
        value = _column_of(kind.value_type, kind.value_id, "value", nullable=is_nullable)
        column.map_key.CopyFrom(key)
        column.map_value.CopyFrom(value)
    elif isinstance(kind, iceberg.DecimalType):
        column.type = DataType.DECIMAL
        column.properties["precision"] = str(kind.precision)
        column.properties["scale"] = str(kind.scale)
    elif isinstance(kind, iceberg.FixedType):
        column.type = DataType.FIXED
        column.properties["length"] = str(len(kind))
    elif isinstance(kind, iceberg.UUIDType):
        column.type = DataType.FIXED
        column.properties["length"] = "16"
        column.properties[TYPE] = "uuid"
    elif type(kind) in _PLAIN:
        plain = _PLAIN[type(kind)]
        column.type = getattr(DataType, plain)
    else:
        column.type = DataType.BINARY
        column.properties[TYPE] = str(kind)
    return column


def _field(column: Column) -> iceberg.NestedField:
    return iceberg.NestedField(
        column.id,
        column.name,
        _type(column),
        required=not column.nullable,
        doc=column.properties.get(DOC),
    )


def _type(column: Column) -> Any:
    name = DataType.Name(column.type)
    if name == "STRUCT":
        fields = [_field(each) for each in column.struct_fields]
        return iceberg.StructType(*fields)
    if name == "LIST":
        element = column.list_element
        return iceberg.ListType(
            element.id,
            _type(element),
            element_required=not element.nullable,
        )
    if name == "MAP":
        key = column.map_key
        value = column.map_value
        return iceberg.MapType(
            key.id,
            _type(key),
            value.id,
            _type(value),
            value_required=not value.nullable,
        )
    properties = column.properties
    passed = type_named(properties.get(TYPE, ""))
    if passed is not None:
        return passed
    if name == "DECIMAL":
        precision = int(properties["precision"])
        scale = int(properties["scale"])
        return iceberg.DecimalType(precision, scale)
    if name == "FIXED":
        if properties.get(TYPE) == "uuid":
            return iceberg.UUIDType()
        length = int(properties["length"])
        return iceberg.FixedType(length)
    if name in _BACK:
        return _BACK[name]()
    raise InvalidDefinition(f"column {column.name}: Iceberg has no type {name}")
