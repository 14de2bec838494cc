"""Table definitions as bytes, for those who make many: no message per definition (format, section 5).

A definition file is its fields one after the other, in the order of their numbers. Most tables of a bulk load consist
of columns that others have, too, and say the same about everything else. So types and the rest are checked and
encoded once, by :func:`~trinitylake_core.definitions.table_def` and ``encode``, and put
together: what comes out is byte for byte what those two make of the whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from trinitylake_core.definitions.checks import checked_text
from trinitylake_core.definitions.codec import encode, sealed, unsealed
from trinitylake_core.definitions.objects import new_id, table_def
from trinitylake_core.definitions.schema_checks import check_schema
from trinitylake_core.definitions.trinitylake_pb2 import Column, DataType, Schema

_ID: Final = b"\x0a\x24"
"""Field 1, length-delimited: an ID of 36 characters."""
_ID_BYTES: Final = len(_ID) + 36
_SCHEMA: Final = b"\x12"
_NO_SCHEMA: Final = b"\x12\x00"
_COLUMN: Final = b"\x0a"
_COLUMN_ID: Final = b"\x08"
_COLUMN_NAME: Final = b"\x12"


def encoded_type(kind: DataType, properties: Mapping[str, str], *, nullable: bool) -> bytes:
    """Return what a column without parts says beside its number and name, for :func:`encoded_column`.

    Raises:
        InvalidDefinition: the format cannot hold such a column.
    """
    column = Column(id=1, name="any", type=kind, nullable=nullable, properties=properties)
    check_schema(Schema(columns=[column]))
    column.ClearField("id")
    column.ClearField("name")
    return column.SerializeToString(deterministic=True)


def encoded_column(number: int, name: str, said: bytes) -> bytes:
    """Return a column as it stands in a schema: ``number``, its ID, from 1 up; and what :func:`encoded_type` made.

    A schema is its columns end to end, no two of which have the same name.

    Raises:
        InvalidDefinition: the format cannot hold such a name.
    """
    text = checked_text("the name of a column", name).encode()
    column = b"".join((_COLUMN_ID, _varint(number), _COLUMN_NAME, _varint(len(text)), text, said))
    return b"".join((_COLUMN, _varint(len(column)), column))


def encoded_rest(**definition: Any) -> bytes:
    """Return as bytes what a table definition says beside ID and schema; arguments are those of ``table_def``.

    Raises:
        InvalidDefinition: as ``table_def``; keys need the columns, and are refused.
    """
    data = unsealed(encode(table_def(**definition)))[_ID_BYTES:]
    return data.removeprefix(_NO_SCHEMA)


def encoded_table(schema: bytes, rest: bytes) -> bytes:
    """Return the file of a new table, with an ID of its own."""
    return sealed(b"".join((_ID, new_id().encode(), _SCHEMA, _varint(len(schema)), schema, rest)))


def _varint(number: int) -> bytes:
    if number < 1 << 7:
        return bytes((number,))
    out = bytearray()
    while number >= 1 << 7:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)
