"""Damage to files of tables: bits, bytes, numbers, blocks, schemas, codecs; and what a strict reader still finds."""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Callable
from typing import Any, Final

from tests.support import avro_by_hand
from tests.support.avro_by_hand import AvroFile, NotAvro, number, sized
from tests.support.table_files import Named, Written

HUGE: Final = (-1, 0, 1, 2, 63, 64, 1 << 16, 1 << 31, 1 << 40, (1 << 62), (1 << 63) - 1, -(1 << 63), -5)


# -- damage to bytes -------------------------------------------------------------------------------------------


def flip_bits(chance: random.Random, data: bytes) -> bytes:
    """Flip one bit or a few."""
    changed = bytearray(data)
    for _ in range(chance.choice([1, 1, 2, 8])):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def flip_bits_of_rows(chance: random.Random, data: bytes) -> bytes:
    """Flip bits in the second half, where the rows are."""
    half = len(data) // 2
    return data[:half] + flip_bits(chance, data[half:])


def cut(chance: random.Random, data: bytes) -> bytes:
    """Leave the end out."""
    return data[: chance.randrange(len(data))]


def leave_out(chance: random.Random, data: bytes) -> bytes:
    """Leave out some bytes in the middle."""
    at = chance.randrange(len(data))
    return data[:at] + data[at + chance.choice([1, 1, 2, 16, 100]) :]


def insert(chance: random.Random, data: bytes) -> bytes:
    """Insert random bytes."""
    at = chance.randrange(len(data))
    return data[:at] + chance.randbytes(chance.choice([1, 2, 10])) + data[at:]


def put_number(chance: random.Random, data: bytes) -> bytes:
    """Put a large, negative or very long number somewhere."""
    at = chance.randrange(len(data))
    written = chance.choice([number(chance.choice(HUGE)), b"\xff" * chance.choice([4, 9, 10, 11, 500]) + b"\x01"])
    return data[:at] + written + data[at + chance.choice([0, 1, len(written)]) :]


def repeat(chance: random.Random, data: bytes) -> bytes:
    """Write a part twice."""
    begin, end = sorted(chance.randrange(len(data)) for _ in range(2))
    return data[:end] + data[begin:end] + data[end:]


_OF_BYTES: Final[tuple[Callable[[random.Random, bytes], bytes], ...]] = (
    flip_bits, flip_bits_of_rows, flip_bits_of_rows, cut, leave_out, insert, put_number, put_number, repeat,
)  # fmt: skip


# -- damage to parts -------------------------------------------------------------------------------------------


def _damage_block(chance: random.Random, parts: AvroFile) -> bytes:
    """Damage the rows of a block before they are packed, so that codec and checksum are right."""
    at = chance.randrange(len(parts.blocks))
    rows, body = parts.blocks[at]
    if body:
        parts.blocks[at] = rows, chance.choice(_OF_BYTES)(chance, body)
    return parts.data()


def _miscount(chance: random.Random, parts: AvroFile) -> bytes:
    """Claim another number of rows."""
    at = chance.randrange(len(parts.blocks))
    rows, body = parts.blocks[at]
    parts.blocks[at] = chance.choice([rows + 1, rows - 1, 0, -rows, *HUGE]), body
    return parts.data()


def _missize(chance: random.Random, parts: AvroFile) -> bytes:
    """Claim another size of a block."""
    blocks = [parts.block(at) for at in range(len(parts.blocks))]
    at = chance.randrange(len(blocks))
    rows, body = parts.blocks[at]
    packed = avro_by_hand.pack(parts.codec, body)
    size = chance.choice([len(packed) + 1, len(packed) - 1, *HUGE])
    blocks[at] = number(rows) + number(size) + packed + parts.sync
    return parts.header() + b"".join(blocks)


def _missync(chance: random.Random, parts: AvroFile) -> bytes:
    """Write another sync marker behind one block."""
    blocks = [parts.block(at) for at in range(len(parts.blocks))]
    at = chance.randrange(len(blocks))
    blocks[at] = blocks[at][:-16] + chance.randbytes(16)
    return parts.header() + b"".join(blocks)


def _rename_codec(chance: random.Random, parts: AvroFile) -> bytes:
    """Name another codec than the one that was used."""
    parts.meta["avro.codec"] = chance.choice(
        [b"null", b"deflate", b"snappy", b"zstandard", b"bzip2", b"xz", b"", b"\xff"]
    )
    data = parts.header()
    return data + b"".join(parts.block(at) for at in range(len(parts.blocks)))


def _change_schema(chance: random.Random, parts: AvroFile) -> bytes:
    """Change a type, a field or a number in the schema; the rows stay as they are."""
    schema = copy.deepcopy(parts.schema)
    for _ in range(chance.choice([1, 1, 2])):
        _change_one(chance, schema)
    parts.schema_text = json.dumps(schema).encode()
    return parts.data()


def _damage_schema(chance: random.Random, parts: AvroFile) -> bytes:
    """Damage the text of the schema."""
    parts.schema_text = chance.choice(_OF_BYTES)(chance, json.dumps(parts.schema).encode())
    return parts.data()


_OF_PARTS: Final[tuple[Callable[[random.Random, AvroFile], bytes], ...]] = (
    _damage_block, _damage_block, _damage_block, _miscount, _missize, _missync, _rename_codec, _change_schema,
    _change_schema, _damage_schema,
)  # fmt: skip
_TYPES: Final[tuple[Any, ...]] = (
    "null", "boolean", "int", "long", "float", "double", "bytes", "string", "r2", "r102", "manifest_entry", "nothing",
    {"type": "fixed", "name": "f0", "size": 0}, {"type": "fixed", "name": "f", "size": 1 << 40},
    {"type": "fixed", "name": "g", "size": -1}, {"type": "array", "items": "null"}, {"type": "map", "values": "long"},
    {"type": "array", "items": {"type": "record", "name": "empty", "fields": []}}, ["null", "string"], [], {}, 7, None,
    {"type": "enum", "name": "e", "symbols": ["A", "B"]}, {"type": {"type": "long"}}, ["int", "null", "bytes"],
)  # fmt: skip


def _change_one(chance: random.Random, schema: Any) -> None:
    fields = list(_all_fields(schema))
    inside, at = chance.choice(fields)
    match chance.randrange(6):
        case 0:
            inside[at]["type"] = copy.deepcopy(chance.choice(_TYPES))
        case 1:
            inside[at]["field-id"] = chance.choice([0, 2, 100, 104, 134, 500, 501, -1, 1 << 70, "100", None, 1.0])
        case 2:
            del inside[at]
        case 3:
            inside.insert(at, copy.deepcopy(inside[at]))
        case 4:
            other = chance.randrange(len(inside))
            inside[at], inside[other] = inside[other], inside[at]
        case _:
            kind = inside[at]["type"]
            nested = {"type": "record", "name": f"n{chance.random()}", "fields": [{"name": "x", "type": kind}]}
            inside[at]["type"] = chance.choice([nested, {"type": "array", "items": kind}, [kind]])


def _all_fields(schema: Any) -> Any:
    """Yield each field of the records in a schema, as the list that it is in and its place there."""
    if isinstance(schema, list):
        for each in schema:
            yield from _all_fields(each)
    if isinstance(schema, dict):
        for at, each in enumerate(schema.get("fields") or ()):
            yield schema["fields"], at
            yield from _all_fields(each["type"])
        yield from _all_fields(schema.get("items"))


def damaged_metadata(chance: random.Random, found: Any) -> bytes:
    """Return table metadata with damage to the JSON, or to its text."""
    found = copy.deepcopy(found)
    if chance.random() < 0.5:
        return chance.choice(_OF_BYTES)(chance, json.dumps(found).encode())
    inside = found
    while True:  # go down to some member or item
        places = list(inside) if isinstance(inside, dict) else list(range(len(inside)))
        at = chance.choice(places)
        inner = inside[at]
        if not isinstance(inner, dict | list) or not inner or chance.random() < 0.3:
            break
        inside = inner
    if chance.random() < 0.2:
        del inside[at]
    else:
        inside[at] = copy.deepcopy(chance.choice(_VALUES))
    return json.dumps(found).encode()


_VALUES: Final[tuple[Any, ...]] = (
    None, True, 0, -1, 1.5, 1 << 70, "", "x", "a/b", "../x", "/", "//", "s3://", "s3://b/", "/a/../b", "/a/\0b", "C:/x",
    "\ud800", "/\ud800x", [], {}, [[]], [None], {"a": 1}, ["/x"], "file:///ok", "1", "s3://b/" + "x" * 9000,
)  # fmt: skip


def strict_named(data: bytes) -> Named:
    """Return what a strict reader finds in table metadata. Raises ``NotAvro``."""
    try:
        text = data.decode()
        found = json.loads(text)
        json.dumps(found, ensure_ascii=False).encode()
        if type(found["format-version"]) is not int or found["format-version"] not in (1, 2, 3):
            raise NotAvro("version")
        properties = found.get("properties") or {}
        written = [properties[name] for name in ("write.data.path", "write.metadata.path") if properties.get(name)]
        files: list[Any] = []
        known = set()
        for each in found.get("snapshots") or []:
            known.add(each["snapshot-id"])
            if not isinstance(each.get("manifests", []), list):
                raise NotAvro("manifests")
            files += [each["manifest-list"]] if "manifest-list" in each else each["manifests"]
        for member in ("statistics", "partition-statistics"):
            files += [each["statistics-path"] for each in found.get(member) or []]
        if found.get("current-snapshot-id") not in {None, -1, *known}:
            raise NotAvro("current")
        directories = frozenset(_path(f"{each.rstrip('/')}/x".encode())[:-2] for each in [found["location"], *written])
        return Named(directories, frozenset(_path(each.encode()) for each in files))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise NotAvro(str(error)) from error


def damaged(chance: random.Random, written: Written) -> bytes:
    """Return a damaged copy of a file."""
    if written.parts is not None and written.parts.blocks and chance.random() < 0.7:
        return chance.choice(_OF_PARTS)(chance, copy.deepcopy(written.parts))
    return chance.choice(_OF_BYTES)(chance, written.data)


# -- what is still in it ---------------------------------------------------------------------------------------

_PATH: Final = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]+:)?/+[^/\x00-\x1f\x7f](?:[^\x00-\x1f\x7f]*[^/\x00-\x1f\x7f])?")


def strict_answer(kind: str, data: bytes) -> list[tuple[Any, ...]]:
    """Return what a strict reader finds in a manifest or a list. Raises ``NotAvro``: something in it is wrong."""
    rows = avro_by_hand.read(data)
    if kind == "list":
        return [(_path(_one(row, 500)), _size(_one(row, 501))) for row in rows]
    found: list[tuple[Any, ...]] = []
    for row in rows:
        status = _one(row, 0)
        file = _one(row, 2)
        content = _one(file, 134) if any(name == 134 for name, _ in file) else None
        if type(status) is not int or status not in (0, 1, 2):
            raise NotAvro("unknown status")
        if status != 2:
            if content not in (None, 0, 1, 2):
                raise NotAvro("unknown content")
            found.append((_path(_one(file, 100)), _size(_one(file, 104)), bool(content)))
    return found


def _one(row: Any, wanted: int) -> Any:
    (value,) = [value for name, value in row if name == wanted and type(name) is int] or [None]
    return value


def _path(value: Any) -> str:
    path = value.decode() if isinstance(value, bytes) else ""
    if not _PATH.fullmatch(path) or {".", ".."} & set(path.split("/")):
        raise NotAvro("no path")
    return path


def _size(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise NotAvro("no size")
    return value


__all__ = ["damaged", "sized", "strict_answer"]
