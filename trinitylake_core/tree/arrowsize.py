"""What an Arrow IPC file takes in memory, as it declares itself, without expanding anything.

Arrow expands compressed buffers as soon as a record batch is read, and allocates what they declare. The metadata of a
file, FlatBuffers that Arrow does not show, has the places of the buffers; a compressed one begins with its size.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from struct import Struct, unpack_from
from typing import Final, TypeAlias

from trinitylake_core.storage import Data

Extent: TypeAlias = tuple[int, int]
"""Where something begins, and how much of it there is."""
_U16: Final = Struct("<H").unpack_from
_I32: Final = Struct("<i").unpack_from
_I64: Final = Struct("<q").unpack_from
_BLOCK: Final = Struct("<qi4xq").unpack_from
"""Where a message begins in the file, and the sizes of its metadata and of its body."""
_BLOCK_BYTES: Final = 24
_LONG_BYTES: Final = 8
_TAIL_BYTES: Final = 10
"""The size of the footer, and the magic bytes behind it."""
_ROW_BYTES: Final = 8
"""A row of a column as a Python object: a reference."""
_TEXT_BYTES: Final = 64
"""And a text, beside its content."""
_PLAIN: Final = -1
"""The declared size of a buffer that is not compressed, though others are."""


def expanded_bytes(data: Data, blocks: Sequence[Extent]) -> int:
    """Return the memory size of record batches: their buffers expanded, and their rows in Python.

    Raises:
        ValueError: the metadata make no sense.
    """
    try:
        return sum(_batch_bytes(data, begin, metadata) for begin, metadata in blocks)
    except struct.error as wrong:
        raise ValueError(f"the metadata make no sense: {wrong}") from None


def batches(data: Data) -> list[Extent]:
    """Return the offsets of the record batches of a file, and the size of the metadata of each.

    Raises:
        ValueError: the metadata make no sense, or there are dictionaries, which no node has.
    """
    try:
        end = len(data) - _TAIL_BYTES
        footer = _root(data, end - _number(data, end))
        _, dictionaries = _vector(data, footer, 2)
        if dictionaries:
            raise ValueError("there are dictionaries")
        first, count = _vector(data, footer, 3)
        found = []
        for index in range(count):
            offset, metadata, _ = _BLOCK(data, first + _BLOCK_BYTES * index)
            found.append((offset, metadata))
        return found
    except struct.error as wrong:
        raise ValueError(f"the metadata make no sense: {wrong}") from None


def fixed_pieces(data: Data, begin: int) -> list[tuple[int, int, bytes]]:
    """Return the parts of the metadata of a batch that each batch has which Arrow writes in this way.

    That is all before the numbers of its columns: tables, and how it is compressed. The sizes of body and batch are
    left out. Each from where to where, from the beginning of the batch on, and what stands there.
    """
    message, batch = _batch(data, begin)
    body_size = _field(data, message, 3)
    row_count = _field(data, batch, 0)
    columns, _ = _vector(data, batch, 1)
    buffers, _ = _vector(data, batch, 2)
    pieces = []
    start = begin
    for number in sorted((body_size, row_count)):
        pieces.append((start - begin, number - begin, bytes(data[start:number])))
        start = number + _LONG_BYTES
    end = min(columns, buffers)
    pieces.append((start - begin, end - begin, bytes(data[start:end])))
    return pieces


def _batch(data: Data, begin: int) -> Extent:
    """Return the offsets of the message that begins at a place, and of the record batch in it."""
    has_marker = _number(data, begin) == _PLAIN  # older files have none before the length
    message = _root(data, begin + (8 if has_marker else 4))
    header = _field(data, message, 2)
    return message, _root(data, header)


def _batch_bytes(data: Data, begin: int, metadata: int) -> int:
    """Return the memory size of one record batch, which begins at a place and has metadata of a size."""
    _, batch = _batch(data, begin)
    rows, nulls = _pairs(data, batch, 1)  # of each column
    starts, sizes = _pairs(data, batch, 2)  # of each buffer in the body
    is_compressed = _field(data, batch, 3) != 0
    if is_compressed:
        body = begin + metadata
        sizes = [_expanded_size(data, body + start, size) for start, size in zip(starts, sizes, strict=True)]
    if min((*sizes, *rows, *nulls), default=0) < 0:
        raise ValueError("a size is negative")
    values = sum(rows)
    texts = values - sum(nulls)
    return sum(sizes) + _ROW_BYTES * values + _TEXT_BYTES * texts


def _pairs(data: Data, table: int, number: int) -> tuple[Sequence[int], Sequence[int]]:
    """Return the first and the second number of each pair in a vector of a table."""
    at, count = _vector(data, table, number)
    numbers: tuple[int, ...] = unpack_from(f"<{2 * count}q", data, at)
    return numbers[::2], numbers[1::2]


def _expanded_size(data: Data, at: int, size: int) -> int:
    """Return what a buffer of a compressed batch declares: it begins with its size, or with -1 if it is plain."""
    if not size:
        return 0
    declared: int
    (declared,) = _I64(data, at)
    return size if declared == _PLAIN else declared


# -- FlatBuffers ---------------------------------------------------------------------------------------


def _root(data: Data, at: int) -> int:
    """Return the offset of the table of a buffer."""
    return at + _number(data, at)


def _number(data: Data, at: int) -> int:
    number: int
    (number,) = _I32(data, at)
    return number


def _field(data: Data, table: int, index: int) -> int:
    """Return the offset of a field of a table, 0 if it is left out.

    A table begins with the distance back to its list of offsets: 16 bits for each field, behind two lengths.
    """
    offsets = table - _number(data, table)
    (size,) = _U16(data, offsets)
    at = 4 + 2 * index
    if at >= size:  # a writer ends the list with the last field that it has set
        return 0
    offset: int
    (offset,) = _U16(data, offsets + at)
    return table + offset if offset else 0


def _vector(data: Data, table: int, index: int) -> Extent:
    """Return the offset of the elements of a field, and their number; none if it is left out."""
    at = _field(data, table, index)
    if not at:
        return 0, 0
    at += _number(data, at)
    return at + 4, _number(data, at)
