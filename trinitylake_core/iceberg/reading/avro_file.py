"""Avro object container files: the header, and blocks of rows (Avro specification 1.11, object container files)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from trinitylake_core.iceberg.reading import limits
from trinitylake_core.iceberg.reading.codecs import CODECS, Unpack
from trinitylake_core.iceberg.reading.errors import Malformed, UnreadableTable
from trinitylake_core.iceberg.reading.rows import Column, Row, RowReader, read_long, read_size, row_reader

_MAGIC: Final = b"Obj\x01"
_SYNC_BYTES: Final = 16
_SCHEMA: Final = b"avro.schema"
_CODEC: Final = b"avro.codec"


def avro_rows(data: bytes, location: str, columns: tuple[Column, ...]) -> Iterator[Row]:
    """Yield the rows of an Avro file: of each the columns that are asked for, ``None`` for one that is null or absent.

    Rows are yielded one by one, so an error may come after some of them. Memory: one block, unpacked, and one row.

    Args:
        data: the file.
        location: its URI, for messages.
        columns: those that are asked for.

    Raises:
        UnreadableTable: the file is not what it should be, or beyond :mod:`limits`. The message names the block, and
            quotes nothing of the file.
    """
    block = 0
    try:
        header = _read_header(data)
        reader = _row_reader(header.schema, columns)
        for count, unpacked in _unpack_blocks(data, header):
            block += 1
            yield from _read_rows(unpacked, count, reader)
    except Malformed as error:
        raise _unreadable(location, block, str(error)) from None
    except IndexError:
        raise _unreadable(location, block, "it ends too early") from None


def _unreadable(location: str, blocks: int, why: str) -> UnreadableTable:
    """Return the error for a file of which so many blocks were unpacked."""
    if blocks:
        place = f"block {blocks}"
    else:
        place = "the header"
    return UnreadableTable(f"it is not a readable Avro file: {place}: {why}", path=location)


def _unpack_blocks(data: bytes, header: _Header) -> Iterator[tuple[int, bytes]]:
    """Yield how many rows a block has, and their bytes. Raises ``Malformed`` or ``IndexError``."""
    left_bytes = limits.most_unpacked(len(data))
    left_rows = limits.most_rows(len(data))
    at = header.end
    while at < len(data):
        count, at = read_long(data, at)
        size, at = read_size(data, at)
        end = at + size
        if count < 0 or count > left_rows:
            raise Malformed("it has more rows than a file of its size may have")
        next_block = end + _SYNC_BYTES
        if data[end:next_block] != header.sync:
            raise Malformed("no sync marker is where a block ends")
        packed = data[at:end]
        most = min(left_bytes, limits.BLOCK_BYTES)
        unpacked = header.unpack(packed, most)
        left_bytes -= len(unpacked)
        left_rows -= count
        yield count, unpacked
        at = next_block


def _read_rows(unpacked: bytes, count: int, reader: RowReader) -> Iterator[Row]:
    if count * reader.least > len(unpacked):
        raise Malformed("it has more rows than fit into it")
    at = 0
    for _ in range(count):
        row, at = reader.read(unpacked, at)
        yield row
    if at != len(unpacked):
        raise Malformed("its rows do not end where it ends")


@dataclass(frozen=True, slots=True)
class _Header:
    """What stands before the blocks: ``end`` is where that ends."""

    schema: bytes
    unpack: Unpack
    sync: bytes
    end: int


def _read_header(data: bytes) -> _Header:
    if len(data) > limits.AVRO_BYTES:
        raise Malformed(f"it has more than {limits.AVRO_BYTES:,} bytes")
    if not data.startswith(_MAGIC):
        raise Malformed("it does not begin like one")
    entries, at = _read_entries(data, len(_MAGIC))
    end = at + _SYNC_BYTES
    sync = data[at:end]
    if len(sync) != _SYNC_BYTES:
        raise Malformed("it ends too early")
    schema = entries.get(_SCHEMA)
    if schema is None:
        raise Malformed("it has no schema")
    codec = entries.get(_CODEC, b"null")
    unpack = CODECS.get(codec)
    if unpack is None:
        raise Malformed("it is packed in a way that is not known")
    return _Header(schema, unpack, sync, end)


def _read_entries(data: bytes, at: int) -> tuple[dict[bytes, bytes], int]:
    """Return the entries of the header, which is a map of bytes, and where it ends."""
    entries: dict[bytes, bytes] = {}
    number = 0
    while True:
        count, at = read_long(data, at)
        if not count:
            return entries, at
        if count < 0:  # then the size of the entries in bytes follows, for readers that skip them
            count = -count
            _, at = read_size(data, at)
        number += count
        if number > limits.HEADER_ENTRIES:
            raise Malformed(f"it has more than {limits.HEADER_ENTRIES:,} entries")
        for _ in range(count):
            key, at = _read_bytes(data, at)
            value, at = _read_bytes(data, at)
            if key in entries:
                raise Malformed("it has two entries of one name")
            entries[key] = value


def _read_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = read_size(data, at)
    end = at + size
    return data[at:end], end


@lru_cache(maxsize=256)
def _row_reader(schema: bytes, columns: tuple[Column, ...]) -> RowReader:
    """Return the reader of rows of a schema: all manifests of a table have the same few."""
    if len(schema) > limits.SCHEMA_BYTES:
        raise Malformed(f"its schema has more than {limits.SCHEMA_BYTES:,} bytes")
    try:
        text = schema.decode()
        parsed = json.loads(text)
    except (ValueError, RecursionError):  # both for bytes that are not UTF-8, and for text that is not JSON
        raise Malformed("its schema is not JSON") from None
    return row_reader(parsed, columns)
