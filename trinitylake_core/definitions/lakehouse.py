"""Make and read lakehouse definitions (format, sections 4 and 5)."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Final, TypedDict, Unpack

from trinitylake_core import locations, spec
from trinitylake_core.definitions.checks import (
    UINT32_MAX,
    UINT64_MAX,
    checked_choice,
    checked_int,
    checked_properties,
    merge_properties,
    refuse_unknown,
)
from trinitylake_core.definitions.trinitylake_pb2 import IsolationLevel, LakehouseDef
from trinitylake_core.errors import InvalidDefinition

_NUMBERS: Final = {
    "order": (spec.DEFAULT_ORDER, spec.MIN_ORDER, UINT32_MAX),
    "namespace_name_max_size_bytes": (spec.DEFAULT_NAME_MAX_SIZE_BYTES, 1, UINT32_MAX),
    "table_name_max_size_bytes": (spec.DEFAULT_NAME_MAX_SIZE_BYTES, 1, UINT32_MAX),
    "view_name_max_size_bytes": (spec.DEFAULT_NAME_MAX_SIZE_BYTES, 1, UINT32_MAX),
    "node_file_max_size_bytes": (spec.DEFAULT_NODE_FILE_MAX_SIZE_BYTES, 1, UINT64_MAX),
    "txn_ttl_millis": (spec.DEFAULT_TXN_TTL_MILLIS, 1, UINT64_MAX),
}
"""Default, least and largest value."""
_USUAL_ORDERS: Final = (512, 256)
"""Orders above :data:`spec.DEFAULT_ORDER`, which a definition without an order means."""
_SCHEMA_ID_BYTES: Final = 4
_SIZE_DIGITS: Final = 18
_NODE_PATH_BYTES: Final = len(locations.node_path())
_UNNAMED_DEFINITION_PATH_BYTES: Final = len(locations.definition_path("table", "", ""))
_DEFINITION_PATH_MAX_BYTES: Final = len("0000/0000/0000/") + spec.FILE_NAME_MAX_BYTES


class LakehouseOptions(TypedDict, total=False):
    """What ``Lakehouse.create`` takes for the definition of the lakehouse; ``None`` is the default of the format.

    Attributes:
        order: rows of a node key table, at least 3; a node has at most this many children.
        namespace_name_max_size_bytes: the longest namespace name, in bytes of UTF-8.
        table_name_max_size_bytes: the longest table name, likewise.
        view_name_max_size_bytes: the longest view name, likewise.
        node_file_max_size_bytes: target size of a node file; what the key table leaves is the write buffer.
        properties: free text by free text.
        txn_ttl_millis: how long a transaction may live, in milliseconds.
        txn_isolation_level: ``SNAPSHOT`` or ``SERIALIZABLE``, for transactions that name none.
    """

    order: int | None
    namespace_name_max_size_bytes: int | None
    table_name_max_size_bytes: int | None
    view_name_max_size_bytes: int | None
    node_file_max_size_bytes: int | None
    properties: Mapping[str, str] | None
    txn_ttl_millis: int | None
    txn_isolation_level: str | None


def new_lakehouse_def(**given: Unpack[LakehouseOptions]) -> LakehouseDef:
    """Return the definition of a new lakehouse, with a new ID.

    Raises ``InvalidDefinition``: a value is of the wrong type or out of range, or a full node key table (format,
    section 4) leaves no room for a write buffer.
    """
    refuse_unknown(given, LakehouseOptions)
    level = given.get("txn_isolation_level")
    if level is None:
        level = "SNAPSHOT"
    level = checked_choice("txn_isolation_level", level, IsolationLevel.keys())
    definition = LakehouseDef(
        id=str(uuid.uuid4()),
        major_version=spec.MAJOR_VERSION,
        txn_isolation_level=level,
        properties=_check_properties(checked_properties("properties", given.get("properties"))),
    )
    for name, (default, low, high) in _NUMBERS.items():
        value = given.get(name)
        if value is None:
            value = default
        number = checked_int(name, value, low=low, high=high)
        setattr(definition, name, number)
    needed = key_table_max_bytes(definition)
    if definition.node_file_max_size_bytes <= needed:
        raise InvalidDefinition(
            f"a full key table of order {definition.order} takes about {needed} bytes with these name sizes, which "
            f"leaves no room for a write buffer in node_file_max_size_bytes={definition.node_file_max_size_bytes}; "
            "raise it, or lower the order or the name sizes"
        )
    return definition


def altered_lakehouse(old: LakehouseDef, *, properties: Mapping[str, str | None] | None = None) -> LakehouseDef:
    """Return a copy of ``old`` with ``properties`` merged in; the value ``None`` removes a property.

    What shapes keys and nodes does not change in place: that takes a rebuild. Raises ``InvalidDefinition``: a name or a
    value is not text, or not what the property takes.
    """
    new = LakehouseDef()
    new.CopyFrom(old)
    merge_properties("properties", new.properties, properties)
    given = properties or {}
    kept = {name: value for name, value in given.items() if value is not None}
    _check_properties(kept)
    return new


def commit_buffer_bytes(definition: LakehouseDef) -> int:
    """Return the uncompressed size in bytes from which on a commit flushes the write buffer of a root.

    A property that is not a number counts as absent.
    """
    text = definition.properties.get(spec.COMMIT_BUFFER_BYTES, "")
    if _is_size(text):
        return int(text)
    return spec.DEFAULT_COMMIT_BUFFER_BYTES


def lost_versions(definition: LakehouseDef) -> list[int]:
    """Return the versions that an operator marked as damaged for good, in ascending order; none by what is no number.

    ``mend`` marks them. Their trees need not be readable, and what only they reach is not kept.
    """
    texts = definition.properties.get(spec.LOST_VERSIONS, "").split(",")
    return sorted({int(text) for text in texts if _is_size(text)})


def _check_properties(properties: Mapping[str, str]) -> Mapping[str, str]:
    text = properties.get(spec.COMMIT_BUFFER_BYTES, "0")
    if not _is_size(text):
        raise InvalidDefinition(f"property {spec.COMMIT_BUFFER_BYTES} is a number of bytes, not {text!r}")
    for text in properties.get(spec.LOST_VERSIONS, "0").split(","):
        if not _is_size(text):
            raise InvalidDefinition(f"property {spec.LOST_VERSIONS} is versions with commas between, not {text!r}")
    for name in properties:
        if name.startswith(spec.MAINTENANCE_PROPERTIES) and name not in spec.MAINTENANCE_KNOWN:
            raise InvalidDefinition(
                f"no job obeys the property {name!r}; known are {', '.join(spec.MAINTENANCE_KNOWN)}"
            )
    return properties


def _is_size(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _SIZE_DIGITS


def effective(definition: LakehouseDef) -> LakehouseDef:
    """Return a copy of ``definition`` in which every number that was left out has its default.

    proto3 does not store a 0, and no number here has a meaning at 0, so 0 is "left out".
    """
    full = LakehouseDef()
    full.CopyFrom(definition)
    for name, (default, *_) in _NUMBERS.items():
        if not getattr(full, name):
            setattr(full, name, default)
    return full


def usual_order(definition: LakehouseDef) -> int:
    """Return the order for a new lakehouse of these names and nodes whose creator chose none (``docs/costs.md``).

    The largest of the usual ones whose full key table leaves half of a node file free.
    """
    row = key_table_max_bytes(definition) // definition.order
    for order in _USUAL_ORDERS:
        if 2 * order * row <= definition.node_file_max_size_bytes:
            return order
    return definition.order


def key_table_max_bytes(definition: LakehouseDef) -> int:
    """Return an estimate of the size of a full node key table, uncompressed, in bytes (format, section 4).

    Each of the N rows holds an object key of full length, the path of a definition and the path of a
    child. What Arrow adds (offsets, validity, metadata) is not counted.
    """
    full = effective(definition)
    longest_name = max(full.table_name_max_size_bytes, full.view_name_max_size_bytes)
    names = full.namespace_name_max_size_bytes + longest_name
    value = min(_UNNAMED_DEFINITION_PATH_BYTES + names, _DEFINITION_PATH_MAX_BYTES)
    return full.order * (_SCHEMA_ID_BYTES + names + value + _NODE_PATH_BYTES)
