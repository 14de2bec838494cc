"""Definitions, read by hand from the wire format of protobuf: what ``docs/format.md`` says, and no generated code."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

import mmh3

CHECKSUM_FIELD: Final = b"\xc2\x07\x10"
MARK: Final = "mark"
"""The property by which the judge tells one definition from another."""


def read_fields(data: bytes) -> dict[int, list[int | bytes]]:
    """Return the values of each field of a message, in their order."""
    found: dict[int, list[int | bytes]] = {}
    at = 0
    while at < len(data):
        tag, at = _read_number(data, at)
        kind = tag & 7
        value: int | bytes
        if kind == 0:
            value, at = _read_number(data, at)
        else:
            assert kind == 2, f"field {tag >> 3} has wire type {kind}, which no definition has"
            size, at = _read_number(data, at)
            value = data[at : at + size]
            assert len(value) == size, "a field is longer than its file"
            at += size
        found.setdefault(tag >> 3, []).append(value)
    return found


def _read_number(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def read_map(entries: list[int | bytes]) -> dict[str, bytes]:
    """Return a map whose keys are texts."""
    found = {}
    for entry in entries:
        assert isinstance(entry, bytes)
        fields = read_fields(entry)
        found[_text(fields, 1)] = _bytes(fields, 2)
    return found


def _bytes(fields: dict[int, list[int | bytes]], number: int) -> bytes:
    value = fields.get(number, [b""])[-1]
    assert isinstance(value, bytes)
    return value


def _text(fields: dict[int, list[int | bytes]], number: int) -> str:
    return _bytes(fields, number).decode()


def _number(fields: dict[int, list[int | bytes]], number: int, default: int = 0) -> int:
    value = fields.get(number, [default])[-1]
    assert isinstance(value, int)
    return value or default


def prove_checksum(data: bytes) -> None:
    """Fail if a definition does not end with the right checksum; this product writes one in each."""
    body, mark, digest = data[:-19], data[-19:-16], data[-16:]
    assert mark == CHECKSUM_FIELD, "a definition has no checksum at its end"
    assert digest == mmh3.hash_bytes(body, 0), "the checksum of a definition is wrong"


PROPERTIES: Final = {"B": 2, "C": 10, "D": 6}
"""The field of the properties of a namespace, a table and a view, by the first character of their keys."""


@dataclass(frozen=True)
class Definition:
    """What the judge reads of an object: its mark, and of an Iceberg table where its metadata are."""

    id: str
    mark: str
    properties: dict[str, str]


def read_definition(kind: str, data: bytes) -> Definition:
    """Return a namespace, table or view, by the first character of its key."""
    prove_checksum(data)
    fields = read_fields(data)
    properties = {name: value.decode() for name, value in read_map(fields.get(PROPERTIES[kind], [])).items()}
    if kind == "C":
        for name, value in read_map(fields.get(9, [])).items():
            properties[f"format:{name}"] = value.decode()
    return Definition(_text(fields, 1), properties.get(MARK, ""), properties)


@dataclass(frozen=True)
class Snapshot:
    """A named version."""

    path: str
    version: int
    target: str


@dataclass(frozen=True)
class LakehouseFacts:
    """The definition of a lakehouse."""

    id: str
    order: int
    name_sizes: dict[str, int]
    node_bytes: int
    properties: dict[str, str]
    snapshots: dict[str, Snapshot]


def read_lakehouse(data: bytes) -> LakehouseFacts:
    """Return the definition of a lakehouse, defaults filled in."""
    prove_checksum(data)
    fields = read_fields(data)
    snapshots = {}
    for name, value in read_map(fields.get(100, [])).items():
        of = read_fields(value)
        snapshots[name] = Snapshot(_text(of, 1), _number(of, 2), _text(of, 4))
    sizes = {kind: _number(fields, number, 100) for kind, number in (("B", 4), ("C", 5), ("D", 6))}
    properties = {name: value.decode() for name, value in read_map(fields.get(8, [])).items()}
    return LakehouseFacts(
        _text(fields, 1), _number(fields, 3, 128), sizes, _number(fields, 7, 1 << 20), properties, snapshots
    )


def read_saved(data: bytes) -> dict[str, str | int]:
    """Return the paths and the state of a saved transaction."""
    fields = read_fields(data)
    found: dict[str, str | int] = {"beginning": _text(fields, 3), "running": _text(fields, 4)}
    found |= {"state": _number(fields, 100), "expires": _number(fields, 6), "pending": _text(fields, 102)}
    return found


def read_json(text: str | None) -> dict[str, object]:
    """Return the facts of a version."""
    return dict(json.loads(text or "{}"))
