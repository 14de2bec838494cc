"""Avro written and read by hand, from its specification: slow, plain, and without a line of the product.

The writer can do what no library does: it writes what it is told, also if that is wrong. The reader believes nothing,
and makes a value of everything; what it does not accept is :class:`NotAvro`.
"""

from __future__ import annotations

import bz2
import json
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import zstandard

MAGIC: Final = b"Obj\x01"
MOST_UNPACKED: Final = 1 << 24
MOST_DEEP: Final = 100


class NotAvro(Exception):
    """The bytes are not what the schema says."""


# -- writing ---------------------------------------------------------------------------------------------------


def number(value: int) -> bytes:
    """Return an ``int`` or ``long``."""
    rest = (value << 1) ^ (value >> 63)
    parts = bytearray()
    while rest > 0x7F:
        parts.append(rest & 0x7F | 0x80)
        rest >>= 7
    parts.append(rest)
    return bytes(parts)


def sized(value: bytes) -> bytes:
    """Return ``bytes`` or a ``string``."""
    return number(len(value)) + value


class Encoder:
    """Writes values of a schema."""

    def __init__(self, schema: Any, *, sized_blocks: bool = False) -> None:
        """``sized_blocks`` writes the size of each block of an array or a map, too."""
        self._schema = schema
        self._sized_blocks = sized_blocks
        self._names: dict[str, Any] = {}
        self._note_names(schema)

    def _note_names(self, schema: Any) -> None:
        if isinstance(schema, list):
            for each in schema:
                self._note_names(each)
        elif isinstance(schema, dict):
            if "name" in schema:
                self._names[schema["name"]] = schema
            for each in (schema.get("items"), schema.get("values")):
                self._note_names(each)
            for each in schema.get("fields", ()):
                self._note_names(each["type"])

    def row(self, value: Any) -> bytes:
        """Return a row."""
        return self._value(self._schema, value)

    def _value(self, schema: Any, value: Any) -> bytes:
        if isinstance(schema, list):
            branch = next(at for at, each in enumerate(schema) if (each == "null") == (value is None))
            return number(branch) + self._value(schema[branch], value)
        kind = schema["type"] if isinstance(schema, dict) else schema
        if kind in self._names:
            return self._value(self._names[kind], value)
        if kind == "record":
            return b"".join(self._value(each["type"], value[each["name"]]) for each in schema["fields"])
        if kind == "array":
            return self._blocks([self._value(schema["items"], each) for each in value])
        if kind == "map":
            entries = [sized(key.encode()) + self._value(schema["values"], each) for key, each in value.items()]
            return self._blocks(entries)
        return _PLAIN[kind](value)

    def _blocks(self, items: Sequence[bytes]) -> bytes:
        if not items:
            return b"\0"
        body = b"".join(items)
        count = number(-len(items)) + number(len(body)) if self._sized_blocks else number(len(items))
        return count + body + b"\0"


_PLAIN: Final[dict[str, Callable[[Any], bytes]]] = {
    "null": lambda _: b"",
    "boolean": lambda value: bytes([value]),
    "int": number,
    "long": number,
    "float": lambda value: struct.pack("<f", value),
    "double": lambda value: struct.pack("<d", value),
    "bytes": sized,
    "string": lambda value: sized(value.encode() if isinstance(value, str) else value),
    "fixed": bytes,
    "enum": number,
}


@dataclass
class AvroFile:
    """An Avro file in parts, each of which may be changed before it is put together."""

    schema: Any
    codec: str = "null"
    sync: bytes = bytes(range(16))
    meta: dict[str, bytes] = field(default_factory=dict)
    blocks: list[tuple[int, bytes]] = field(default_factory=list)
    """Of each block the number of rows that it claims, and the rows, not packed."""
    schema_text: bytes | None = None

    def add(self, rows: Sequence[Any], *, sized_blocks: bool = False) -> None:
        """Add a block."""
        encoder = Encoder(self.schema, sized_blocks=sized_blocks)
        self.blocks.append((len(rows), b"".join(encoder.row(each) for each in rows)))

    def header(self) -> bytes:
        """Return what stands before the blocks."""
        text = json.dumps(self.schema).encode() if self.schema_text is None else self.schema_text
        entries = {"avro.schema": text, **self.meta}
        if self.codec != "null" or len(text) % 2:  # it may be left out
            entries["avro.codec"] = self.codec.encode()
        body = b"".join(sized(name.encode()) + sized(value) for name, value in entries.items())
        return MAGIC + number(len(entries)) + body + b"\0" + self.sync

    def block(self, at: int) -> bytes:
        """Return one block."""
        rows, body = self.blocks[at]
        return number(rows) + sized(pack(self.codec, body)) + self.sync

    def data(self) -> bytes:
        """Return the file."""
        return self.header() + b"".join(self.block(at) for at in range(len(self.blocks)))


def pack(codec: str, body: bytes) -> bytes:
    """Return a packed block."""
    if codec == "deflate":
        packer = zlib.compressobj(6, zlib.DEFLATED, -15)
        return packer.compress(body) + packer.flush()
    if codec == "snappy":
        packed: bytes = pa.Codec("snappy").compress(body, asbytes=True)
        return packed + zlib.crc32(body).to_bytes(4, "big")
    if codec == "zstandard":  # as a stream, as Java does: the frame does not tell its size
        stream = zstandard.ZstdCompressor().compressobj()
        return stream.compress(body) + stream.flush()
    return bz2.compress(body) if codec == "bzip2" else body


# -- reading ---------------------------------------------------------------------------------------------------


def read(data: bytes) -> list[Any]:
    """Return the rows of a file, whole. Raises ``NotAvro``."""
    try:
        return _Reader(data).file()
    except (
        IndexError,
        KeyError,
        ValueError,
        TypeError,
        AttributeError,
        OverflowError,
        RecursionError,
        struct.error,
    ) as error:
        raise NotAvro(str(error)) from error


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, size: int) -> bytes:
        if not 0 <= size <= len(self.data) - self.at:
            raise NotAvro("beyond the end")
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, bits: int = 64) -> int:
        result = 0
        for position in range(bits // 7 + 1):
            byte = self.take(1)[0]
            result |= (byte & 0x7F) << 7 * position
            if byte < 0x80:  # bits beyond the last one are nobody's
                result &= (1 << bits) - 1
                return (result >> 1) ^ -(result & 1)
        raise NotAvro("too long")

    def file(self) -> list[Any]:
        if self.take(4) != MAGIC:
            raise NotAvro("no magic")
        meta = self.value({"type": "map", "values": "bytes"}, {}, 0)
        sync = self.take(16)
        schema = json.loads(meta[b"avro.schema"].decode())
        names: dict[str, Any] = {}
        schema = resolved(schema, names, "", 0)
        if schema["type"] != "record":
            raise NotAvro("no record")
        codec = meta.get(b"avro.codec", b"null").decode()
        rows: list[Any] = []
        while self.at < len(self.data):
            count = self.number()
            body = unpack(codec, self.take(self.number()))
            if self.take(16) != sync or count < 0:
                raise NotAvro("no sync")
            inner = _Reader(body)
            for _ in range(count):
                if inner.at == len(body):
                    raise NotAvro("more rows than bytes")
                rows.append(inner.value(schema, names, 0))
            if inner.at != len(body):
                raise NotAvro("bytes are left")
        return rows

    def value(self, schema: Any, names: dict[str, Any], depth: int) -> Any:
        if depth > MOST_DEEP:
            raise NotAvro("too deep")
        if isinstance(schema, list):
            branch = self.number()
            if branch < 0:
                raise NotAvro("no branch")
            return self.value(schema[branch], names, depth + 1)
        kind = schema if isinstance(schema, str) else schema["type"]
        if kind in _SCALARS:
            return _SCALARS[kind](self)
        if kind == "record":
            return [(each.get("field-id"), self.value(each["type"], names, depth + 1)) for each in schema["fields"]]
        if kind == "array":
            return [self.value(schema["items"], names, depth + 1) for _ in self.items()]
        if kind == "map":
            return dict(self.entry(schema["values"], names, depth) for _ in self.items())
        return self.named(kind, schema, names, depth)

    def named(self, kind: str, schema: Any, names: dict[str, Any], depth: int) -> Any:
        if kind == "fixed":
            return self.take(schema["size"])
        if kind == "enum":
            position = self.number(32)
            if position < 0:
                raise NotAvro("no symbol")
            return schema["symbols"][position]
        return self.value(names[kind], names, depth + 1)

    def entry(self, values: Any, names: dict[str, Any], depth: int) -> tuple[bytes, Any]:
        key = self.take(self.number())
        return key, self.value(values, names, depth + 1)

    def items(self) -> Any:
        """Yield as often as an array has items, and see that each takes a byte."""
        while count := self.number():
            end = None
            if count < 0:
                count, size = -count, self.number()
                end = self.at + size
            for _ in range(count):
                before = self.at
                yield
                if self.at == before:
                    raise NotAvro("an item takes no byte")
            if end is not None and self.at != end:
                raise NotAvro("the block does not end where it says")


_SCALARS: Final[dict[str, Callable[[_Reader], Any]]] = {
    "null": lambda _: None,
    "boolean": lambda reader: {0: False, 1: True}[reader.take(1)[0]],
    "int": lambda reader: reader.number(32),
    "long": lambda reader: reader.number(),
    "float": lambda reader: struct.unpack("<f", reader.take(4))[0],
    "double": lambda reader: struct.unpack("<d", reader.take(8))[0],
    "bytes": lambda reader: reader.take(reader.number()),
    "string": lambda reader: reader.take(reader.number()),
}


def resolved(schema: Any, names: dict[str, Any], space: str, depth: int) -> Any:
    """Return a schema in which each name of a type is a full name, and note the types by these."""
    if depth > MOST_DEEP:
        raise NotAvro("too deep")
    if isinstance(schema, list):
        return [resolved(each, names, space, depth + 1) for each in schema]
    if isinstance(schema, str):
        if schema in _PLAIN and schema not in ("fixed", "enum"):
            return schema
        full = schema if "." in schema or not space else f"{space}.{schema}"
        return full if full in names else schema if schema in names else _unknown()
    kind = schema["type"]
    if kind == "array":
        return {"type": "array", "items": resolved(schema["items"], names, space, depth + 1)}
    if kind == "map":
        return {"type": "map", "values": resolved(schema["values"], names, space, depth + 1)}
    if kind not in ("record", "fixed", "enum"):
        return resolved(kind, names, space, depth + 1)
    own = schema.get("namespace", space)
    full = schema["name"] if "." in schema["name"] or not own else f"{own}.{schema['name']}"
    if kind == "record":
        fields = [
            {
                "field-id": each.get("field-id"),
                "type": resolved(each["type"], names, full.rpartition(".")[0], depth + 1),
            }
            for each in schema["fields"]
        ]
        found = {"type": "record", "fields": fields}
    else:
        found = {each: schema[each] for each in ("type", "size", "symbols") if each in schema}
    names[full] = found
    return found


def _unknown() -> Any:
    raise NotAvro("an unknown type")


def unpack(codec: str, packed: bytes) -> bytes:
    """Return an unpacked block; those of tests are small. Raises ``NotAvro``."""
    if codec == "null":
        return packed
    if codec not in _UNPACKERS:
        raise NotAvro("unknown codec")
    try:
        return _UNPACKERS[codec](packed)
    except (OSError, EOFError, zlib.error, pa.ArrowException, zstandard.ZstdError) as error:
        raise NotAvro(str(error)) from error


def _inflated(packed: bytes) -> bytes:
    unpacker = zlib.decompressobj(-15)
    body = unpacker.decompress(packed, MOST_UNPACKED)
    if not unpacker.eof:
        raise NotAvro("it ends early")
    return body


def _unsnapped(packed: bytes) -> bytes:
    length = shift = 0
    for byte in packed[:5]:
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if length > MOST_UNPACKED:
        raise NotAvro("too large")
    body: bytes = pa.Codec("snappy").decompress(packed[:-4], decompressed_size=length, asbytes=True)
    if zlib.crc32(body) != int.from_bytes(packed[-4:], "big"):
        raise NotAvro("checksum")
    return body


def _unpacked_frames(packed: bytes) -> bytes:
    with zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True) as stream:
        body: bytes = stream.read(MOST_UNPACKED)
    return body


_UNPACKERS: Final[dict[str, Callable[[bytes], bytes]]] = {
    "deflate": _inflated,
    "snappy": _unsnapped,
    "zstandard": _unpacked_frames,
    "bzip2": lambda packed: bz2.BZ2Decompressor().decompress(packed, MOST_UNPACKED),
}
