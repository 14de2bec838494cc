"""The checksum of a node file (format, section 4).

MurMur3 (x64, 128 bits, seed 0) over, for each of the four columns in order: the number of rows (8 bytes, little
endian), the validity bits (least significant first, unused bits zero; nothing if no row is NULL), the ``rows + 1``
offsets (4 bytes each, little endian) and the UTF-8 text, all as in Arrow's columnar format.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import mmh3
import pyarrow as pa


def checksum_of(columns: list[pa.StringArray]) -> bytes:
    """Return the checksum of columns of one length, as hexadecimal digits.

    REQUIRES: arrays that Arrow has validated, each without an offset.
    """
    return checksum_of_parts(map(parts_of, columns), len(columns[0]))


def checksum_of_parts(columns: Iterable[Sequence[Any] | None], rows: int) -> bytes:
    """Return the checksum of columns of so many rows, given as what it is over; ``None`` for one without a value."""
    hasher = mmh3.mmh3_x64_128()
    for parts in columns:
        if parts is None:
            hasher.update(only_nulls(rows))
            continue
        hasher.update(rows.to_bytes(8, "little"))
        for part in parts:
            hasher.update(part)
    return hasher.digest().hex().encode()


def parts_of(column: pa.StringArray) -> list[Any] | None:
    """Return validity bits, offsets and text of a column, each if it has any; ``None`` if no row has a value."""
    rows = len(column)
    if not rows:
        return []
    validity, offsets, text = column.buffers()
    view = memoryview(offsets)[: 4 * (rows + 1)]
    end = int.from_bytes(view[-4:], "little", signed=True)
    if not end and column.null_count == rows:  # offsets ascend, which Arrow proved: they are all 0
        return None
    parts: list[Any] = [view] if text is None or not end else [view, memoryview(text)[:end]]
    if column.null_count:
        bits = bytearray(memoryview(validity)[: (rows + 7) // 8])
        if rows % 8:
            bits[-1] &= (1 << rows % 8) - 1
        parts.insert(0, bits)
    return parts


@lru_cache(maxsize=256)
def only_nulls(rows: int) -> bytes:
    """Return the bytes whose checksum a column without a value has; half of the columns have no value."""
    return rows.to_bytes(8, "little") + bytes((rows + 7) // 8) + bytes(4 * (rows + 1))
