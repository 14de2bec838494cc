"""Definitions to bytes and back (format, section 5).

proto3 has no required fields: an empty file parses as a definition with every field at its default.
Each definition that the published Java SDK wrote has an ``id``, and so has each of ours, so a file
without one is damaged.

Field 4 of a view holds SQL representations (ours) or one serialized Substrait relation (the
published Java SDK). Both are byte strings on the wire. A payload is SQL when it parses as a
``SQLRepresentation`` without unknown fields and has what a relation never has: a query beside a type
or a dialect, or a query without control characters. A relation sets one field only (``Rel`` is a
oneof), or fields that ``SQLRepresentation`` does not know (``ReadRel``).

The checksum exists in files only: ``encode`` appends it, the decoders prove it and take it away. So two
definitions with the same content are equal, whether their files carry one or not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias, TypeVar

import mmh3
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from trinitylake_core import spec
from trinitylake_core.definitions.checks import CONTROL_CHARACTERS
from trinitylake_core.definitions.trinitylake_pb2 import (
    LakehouseDef,
    NamespaceDef,
    RawViewDef,
    SQLRepresentation,
    TableDef,
    TransactionDef,
    ViewDef,
)
from trinitylake_core.errors import CorruptDefinition, InvalidDefinition

ObjectDef: TypeAlias = NamespaceDef | TableDef | ViewDef
"""The definition of an object."""
Definition: TypeAlias = LakehouseDef | ObjectDef | TransactionDef
"""Any message that is a file of its own."""

_M = TypeVar(
    "_M",
    LakehouseDef,
    NamespaceDef,
    TableDef,
    ViewDef,
    TransactionDef,
)
_CHECKSUM_HEAD: Final = b"\xc2\x07\x10"
"""Field 120, length-delimited, 16 bytes: what stands before a checksum."""
_CHECKSUM_BYTES: Final = len(_CHECKSUM_HEAD) + 16


def encode(message: Definition) -> bytes:
    """Return the bytes of a definition file; the same message always gives the same bytes.

    All but a saved transaction, which is replaced in place, end with their checksum. Raises ``InvalidDefinition``: a
    view holds both SQL and a Substrait relation; the format has room for one.
    """
    if isinstance(message, ViewDef) and message.HasField("substrait_read_rel"):
        if message.sql_representations:
            raise InvalidDefinition("a view holds either sql_representations or substrait_read_rel, not both")
        relation = RawViewDef(representations=[message.substrait_read_rel])
        view = ViewDef()
        view.CopyFrom(message)
        view.ClearField("substrait_read_rel")
        return _seal_definition(
            view.SerializeToString(deterministic=True) + relation.SerializeToString(deterministic=True)
        )
    data = message.SerializeToString(deterministic=True)
    if isinstance(message, TransactionDef):
        return data
    return _seal_definition(data)


def _seal_definition(data: bytes) -> bytes:
    """Return the bytes of a definition with their checksum behind them."""
    return data + _CHECKSUM_HEAD + mmh3.mmh3_x64_128_digest(data)


def has_checksum(data: bytes) -> bool:
    """Whether the bytes of a definition file end with a checksum."""
    return data[-_CHECKSUM_BYTES : -_CHECKSUM_BYTES + len(_CHECKSUM_HEAD)] == _CHECKSUM_HEAD


def decode_lakehouse(data: bytes, path: str) -> LakehouseDef:
    """Return the lakehouse definition in ``data``, which was read from ``path``.

    Numbers that the writer left out are 0; ``effective`` puts the defaults in.

    Raises:
        CorruptDefinition: it does not parse, does not match its checksum, has no ID, or its order makes no tree.
        InvalidDefinition: it is of a major version that this library does not know.
    """
    lakehouse = _decode(LakehouseDef, data, path)
    if lakehouse.major_version != spec.MAJOR_VERSION:
        raise InvalidDefinition(
            f"{path}: the lakehouse has format version {lakehouse.major_version}, and this release supports "
            f"version {spec.MAJOR_VERSION} only; use a newer release, nothing was read or changed"
        )
    if 0 < lakehouse.order < spec.MIN_ORDER:
        raise CorruptDefinition(f"{path}: order {lakehouse.order} is below {spec.MIN_ORDER}", path=path)
    return lakehouse


def decode_namespace(data: bytes, path: str) -> NamespaceDef:
    """Return the namespace definition in ``data``, which was read from ``path``. Raises as :func:`decode_lakehouse`."""
    return _decode(NamespaceDef, data, path)


def decode_table(data: bytes, path: str) -> TableDef:
    """Return the table definition in ``data``, which was read from ``path``. Raises as :func:`decode_lakehouse`."""
    return _decode(TableDef, data, path)


def decode_view(data: bytes, path: str) -> ViewDef:
    """Return the view definition in ``data``, which was read from ``path``.

    What the published Java SDK stored instead of SQL is in ``substrait_read_rel``. Raises as :func:`decode_lakehouse`,
    also where it mixes SQL with something else.
    """
    raw = _parse(RawViewDef, data, path)
    payloads = list(raw.representations)
    if all(_is_sql(payload) for payload in payloads):
        return _decode(ViewDef, data, path)
    if len(payloads) > 1:
        raise CorruptDefinition(f"{path}: not a ViewDef: one of several representations is not SQL", path=path)
    raw.ClearField("representations")
    view = _parse(ViewDef, raw.SerializeToString(), path)
    _prove_checksum(view, data, path)
    view.substrait_read_rel = payloads[0]
    return _require_id(view, path)


def decode_transaction(data: bytes, path: str) -> TransactionDef:
    """Return the saved transaction in ``data``, which was read from ``path``. Raises as :func:`decode_lakehouse`."""
    return _require_id(_parse(TransactionDef, data, path), path)


DECODERS: Final[Mapping[str, Callable[[bytes, str], ObjectDef]]] = {
    "namespace": decode_namespace,
    "table": decode_table,
    "view": decode_view,
}
"""The decoder of each kind of object."""


_EMPTY_EXTENSIONS: Final[Mapping[str, Any]] = {"snapshots": {}, "state": "SAVED", "taken_by": []}
"""Fields from 100 up that are left out of JSON where they are empty."""


def to_dict(message: Message) -> dict[str, Any]:
    """Return a message as proto3 JSON with the field names of the format, defaults included.

    64-bit integers are strings, enums are names, bytes are base64, messages that are not set are left
    out, and so are our extensions where they are empty.
    """
    values = MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    if "substrait_read_rel" in values and not values["sql_representations"]:
        del values["sql_representations"]
    for extension, empty in _EMPTY_EXTENSIONS.items():
        if values.get(extension) == empty:
            del values[extension]
    return {field.name: values[field.name] for field in message.DESCRIPTOR.fields if field.name in values}


_P = TypeVar(
    "_P",
    LakehouseDef,
    NamespaceDef,
    TableDef,
    ViewDef,
    TransactionDef,
    RawViewDef,
)


def _parse(kind: type[_P], data: bytes, path: str) -> _P:
    try:
        return kind.FromString(data)
    except (DecodeError, ValueError) as error:
        raise CorruptDefinition(
            f"{path}: not a {_name(kind)}: garbage or cut short ({len(data)} bytes): {error}", path=path
        ) from error


_C = TypeVar("_C", LakehouseDef, NamespaceDef, TableDef, ViewDef)


def _decode(kind: type[_C], data: bytes, path: str) -> _C:
    message = _parse(kind, data, path)
    _prove_checksum(message, data, path)
    return _require_id(message, path)


def _prove_checksum(message: _C, data: bytes, path: str) -> None:
    """Prove the checksum of a message, if there is one, and remove it (format, section 5)."""
    if not message.HasField("checksum"):
        return
    digest = mmh3.mmh3_x64_128_digest(data[:-_CHECKSUM_BYTES])
    if not has_checksum(data) or digest != message.checksum:
        raise CorruptDefinition(f"{path}: the {_name(type(message))} does not match its checksum", path=path)
    message.ClearField("checksum")


def _require_id(message: _M, path: str) -> _M:
    if not message.id:
        if message.ListFields():
            reason = "has no id"
        else:
            reason = "the file is empty or holds no field that is known"
        raise CorruptDefinition(f"{path}: not a {_name(type(message))}: {reason}", path=path)
    return message


def _name(kind: type[Message]) -> str:
    return kind.__name__.removeprefix("Raw")


def _is_sql(payload: bytes) -> bool:
    try:
        representation = SQLRepresentation.FromString(payload)
    except (DecodeError, ValueError):
        return False
    if len(UnknownFieldSet(representation)):
        return False
    beside = bool(representation.type) + bool(representation.dialect)
    if not representation.sql:
        return beside != 1
    return bool(beside) or not CONTROL_CHARACTERS.search(representation.sql)
