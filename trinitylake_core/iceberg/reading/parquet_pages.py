"""Pages of a Parquet file, by their headers: how much memory it takes to unpack them. Nothing is unpacked here.

A footer may say anything, and one value in a dictionary may be repeated a thousand million times by a few bytes. What
Arrow allocates follows from the headers of pages, so those are read, each before Arrow is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from trinitylake_core.iceberg.reading.errors import Malformed

FOOTER_BYTES: Final = 2 << 20
"""Bytes of a footer: in memory a forged one is 228 times as large, and a sound one some fifty times."""
BATCH_BYTES: Final = 64 << 20
"""A batch of rows has about so many bytes, unpacked."""
MOST_BYTES: Final = 512 << 20
"""Bytes that the pages of a row group which are open at the same time, or the nested values of a batch, may take."""
_PAGE_VALUES: Final = 16 << 20
_BATCH_ROWS: Final = 1 << 16
_WIDTHS: Final = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
_LEVELS: Final = 8
"""Bytes of a value besides itself, at the most: its levels, and its offset in Arrow."""
_LIST_LEVELS: Final = 5
"""Bytes of a value besides, for each further list around it: each has offsets and validity of its own."""
_AT_ONCE: Final = 4 << 20
"""Bytes of a dictionary that is looked at as a whole, at the most: that takes thirty times as much memory."""
_STEPS: Final = 16 << 20
"""Headers of pages, by eight, and entries of dictionaries that are looked at in one file: some ten seconds."""
_DATA, _DICTIONARY, _DATA_2 = 0, 2, 3
_BY_DICTIONARY: Final = (2, 8)
_SHARED_PREFIXES: Final = 7
_DEPTH: Final = 4


class TooLarge(Malformed):
    """What is in a file takes more memory, or time, than this process spends on it."""


class MaybeTooLarge(TooLarge):
    """What sound writers make, too, and takes more memory here than this process knows, or spends on it."""


@dataclass(frozen=True, slots=True)
class Unpacked:
    """What it takes to unpack a file.

    Attributes:
        batch_rows: so many rows at once take about ``BATCH_BYTES``, one row at least.
        largest_group: bytes of the largest row group, at the most.
    """

    batch_rows: int
    largest_group: int


def refuse_footer(data: bytes) -> None:
    """Refuse a file with a footer that is too large to be parsed. Raises ``Malformed``."""
    if len(data) < 12 or data[-4:] != b"PAR1":
        raise Malformed("it is no Parquet file, or an encrypted one")
    size = int.from_bytes(data[-8:-4], "little")
    if size > len(data) - 12:
        raise Malformed("its footer is longer than the file")
    if size > FOOTER_BYTES:
        raise MaybeTooLarge(f"its footer has more than {FOOTER_BYTES:,} bytes")


def measure(data: bytes, footer: parquet.FileMetaData) -> Unpacked:
    """Return what it takes to unpack a file, by the headers of all of its pages.

    Raises:
        TooLarge: more than ``MOST_BYTES`` at the same time.
        Malformed: it contradicts itself.
    """
    rows = _BATCH_ROWS
    largest = 0
    steps = _Steps(_STEPS)
    for number in range(footer.num_row_groups):
        pages = nested = widths = size = 0
        for each in _chunks(data, footer, number, steps):
            pages += each.page
            size += each.bytes
            widths += each.width
            nested += each.bytes if each.is_nested else 0
            if max(each.page, nested, widths) > MOST_BYTES:
                raise TooLarge(f"a page, a row, or the nested values of rows unpack to more than {MOST_BYTES:,} bytes")
            if pages > MOST_BYTES:
                raise MaybeTooLarge(f"the pages of its columns unpack to more than {MOST_BYTES:,} bytes")
        in_group = max(1, footer.row_group(number).num_rows)
        per_row = widths + nested // in_group
        in_batch = BATCH_BYTES // max(1, per_row)
        rows = min(rows, max(1, in_batch))
        largest = max(largest, size)
    return Unpacked(rows, largest)


@dataclass(slots=True)
class _Steps:
    """What it takes to look at a file: steps that are left."""

    left: int

    def take(self, count: int) -> None:
        """Use some up. Raises ``TooLarge``."""
        self.left -= count
        if self.left < 0:
            raise TooLarge("its pages are too many, or its dictionaries have too many entries")


@dataclass(slots=True)
class _Chunk:
    """A column of a row group.

    Attributes:
        is_nested: whether a row may have several values.
        values: how many it has; ``by_dictionary`` of them name an entry of its dictionary.
        page: bytes of its largest page, unpacked.
        width: bytes of a value at the most, on average in a page; ``bytes`` of all values.
        levels: bytes of a value besides itself.
    """

    is_nested: bool
    levels: int
    values: int = 0
    by_dictionary: int = 0
    page: int = 0
    width: int = 0
    bytes: int = 0

    def add(self, values: int, width: int) -> None:
        """Count values of a width."""
        self.width = max(self.width, width + self.levels)
        self.bytes += values * (width + self.levels)


def _chunks(data: bytes, footer: parquet.FileMetaData, number: int, steps: _Steps) -> Iterator[_Chunk]:
    group = footer.row_group(number)
    columns = footer.schema
    for at in range(group.num_columns):
        column = group.column(at)
        described = columns.column(at)
        kind = column.physical_type
        fixed = described.length if kind == "FIXED_LEN_BYTE_ARRAY" else _WIDTHS.get(kind, 0)
        lists = described.max_repetition_level
        levels = _LEVELS + _LIST_LEVELS * max(0, lists - 1) + described.max_definition_level // 8
        chunk = _Chunk(is_nested=lists > 0, levels=levels)
        chunk.add(0, fixed)  # Arrow takes room for the rows of a batch before it looks for values
        if column.num_values:  # writers of no rows name no place of their pages
            _measure_chunk(data, column, chunk, fixed, steps)
        yield chunk


def _measure_chunk(data: bytes, column: parquet.ColumnChunkMetaData, chunk: _Chunk, fixed: int, steps: _Steps) -> None:
    """Go through the pages of a column; ``fixed`` is the width of a value, 0: each has its own."""
    starts = [column.data_page_offset]
    if column.dictionary_page_offset is not None:
        starts.append(column.dictionary_page_offset)
    at = min(starts)
    end = at + column.total_compressed_size
    if at < 4 or end > len(data):
        raise Malformed("a column lies beyond the end of the file")
    dictionary = b""
    longest = 0
    while chunk.values < column.num_values and at < end:
        steps.take(8)
        header, body = _read_struct(data, at, _DEPTH)
        kind, unpacked, packed = (_number(header, field) for field in (1, 2, 3))
        at = body + packed
        if at > end:
            raise Malformed("a page lies beyond the end of its column")
        chunk.page = max(chunk.page, unpacked)
        if kind == _DICTIONARY:
            longest = unpacked
            dictionary = data[body:at]
            described = _inner(header, 7)
            least = _number(described, 1) * (fixed or 4)
            if least > unpacked:
                raise Malformed("a dictionary has more values than bytes")
        elif kind in (_DATA, _DATA_2):
            inner_field, encoding_field = (5, 2) if kind == _DATA else (8, 4)
            inner = _inner(header, inner_field)
            values = _number(inner, 1)
            encoding = _number(inner, encoding_field)
            _refuse_page(values, encoding)
            chunk.values += values
            if fixed or encoding not in _BY_DICTIONARY:
                on_average = -(-unpacked // max(1, values))
                chunk.add(values, fixed or on_average)
            else:
                chunk.by_dictionary += values
    if chunk.by_dictionary * longest > BATCH_BYTES // 2:
        longest = _longest_entry(dictionary, longest, column.compression, steps)
    if chunk.by_dictionary:
        chunk.add(chunk.by_dictionary, longest)


def _refuse_page(values: int, encoding: int) -> None:
    """Raise ``TooLarge``: the header of a page does not bound what its values take."""
    if values > _PAGE_VALUES:
        raise TooLarge("a page has too many values")
    if encoding == _SHARED_PREFIXES:
        raise MaybeTooLarge("its values share what they begin with")


def _longest_entry(packed: bytes, unpacked: int, codec: str, steps: _Steps) -> int:
    """Return how long the longest text of a dictionary is; ``unpacked`` where that cannot be told."""
    if unpacked > MOST_BYTES:
        raise TooLarge(f"a dictionary unpacks to more than {MOST_BYTES:,} bytes")
    try:
        name = {"UNCOMPRESSED": None, "LZ4": "lz4_raw"}.get(codec, codec.lower())
        data = packed if name is None else pa.decompress(packed, unpacked, name, asbytes=True)
    except (pa.ArrowException, ValueError, OSError):
        return unpacked
    steps.take(len(data) >> 7)
    short = _longest_of_short(data)
    if short is not None:
        return short
    longest = at = 0
    end = len(data) - 4
    while at <= end:
        steps.take(1)
        size = int.from_bytes(data[at : at + 4], "little")
        longest = max(longest, size)
        at += 4 + size
    return min(longest, unpacked)


def _longest_of_short(data: bytes) -> int | None:
    """Return how long the longest text of a dictionary is, if none has 256 bytes; ``None`` where that is not told here.

    Each follows its size, whose other three bytes are zero. Where those are the only zeros, and each size leads to the
    next one, nobody has to go from one to the next.
    """
    if not 4 <= len(data) <= _AT_ONCE:
        return None
    words = np.ndarray((len(data) - 3,), "<u4", data, strides=(1,))
    places = np.flatnonzero(words < 256)
    sizes = words[places]
    starts = np.append(places, len(data))
    ends = places + 4 + sizes
    is_chain = starts[0] == 0 and np.array_equal(ends, starts[1:])
    return int(sizes.max()) if is_chain else None


# -- Thrift's compact protocol ---------------------------------------------------------------------------


def _number(fields: dict[int, Any], field: int) -> int:
    """Return a number that must be there, and not be negative."""
    value = fields.get(field)
    if type(value) is not int or value < 0:
        raise Malformed("the header of a page lacks a number")
    return value


def _inner(fields: dict[int, Any], field: int) -> dict[int, Any]:
    value = fields.get(field)
    if not isinstance(value, dict):
        raise Malformed("the header of a page lacks a part")
    return value


def _read_struct(data: bytes, at: int, depth: int) -> tuple[dict[int, Any], int]:
    """Return the fields of a struct by number, and where it ends. Raises ``Malformed``."""
    found: dict[int, Any] = {}
    field = 0
    try:
        while True:
            head = data[at]
            at += 1
            if not head:
                return found, at
            if head >> 4:
                field += head >> 4
            else:
                field, at = _read_signed(data, at)
            found[field], at = _read_value(data, at, head & 15, depth)
    except IndexError:
        raise Malformed("the header of a page is cut off") from None


def _read_value(data: bytes, at: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind in (1, 2):
        return kind == 1, at
    if kind in (4, 5, 6):
        return _read_signed(data, at)
    if kind == 3:
        return data[at], at + 1
    if kind == 7:
        return None, at + 8
    if kind == 8:
        size, at = _read_unsigned(data, at)
        return None, at + size
    if kind == 12 and depth:
        return _read_struct(data, at, depth - 1)
    raise Malformed("the header of a page has parts of an unknown kind")


def _read_signed(data: bytes, at: int) -> tuple[int, int]:
    value, at = _read_unsigned(data, at)
    return (value >> 1) ^ -(value & 1), at


def _read_unsigned(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise Malformed("a number in the header of a page is too long")
