"""Leaf files and large write buffers as columns: what ``nodefile`` reads, without a Python object per row.

Of leaves only plain ones come this way: canonical, checksummed or not, no write buffer. Of everything else
:func:`decode_columns` reports that it is not plain, and ``nodefile`` reads it, or reports its defect.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from trinitylake_core import spec
from trinitylake_core.errors import CorruptNode
from trinitylake_core.tree import nodefile
from trinitylake_core.tree.leafrun import Columns
from trinitylake_core.tree.node import Messages, Node

_COLUMNS: Final = list(spec.COLUMNS)
_SYSTEM_ROWS_MAX: Final = 16
_DIGITS: Final = 9


def decode_columns(data: bytes | memoryview, path: str, order: int) -> Columns | None:
    """Return the entries of a leaf file as columns that share its bytes; ``None`` if it is not a plain leaf.

    Raises:
        CorruptNode: cut short, garbage, or a checksum that does not match.
    """
    try:
        batch, _ = nodefile.read_batch(data, path)
    except nodefile.UNREADABLE as error:
        raise CorruptNode(f"node file {path!r} cannot be read: {error}", path=path) from error
    return plain_leaf(batch, path, order)


def plain_leaf(batch: pa.RecordBatch, path: str, order: int) -> Columns | None:
    """Return the entries in the rows of a file, proved against its checksum; ``None`` if it is not a plain leaf."""
    if batch.schema.names != _COLUMNS:
        return None
    keys, values, pointers, txns = batch.columns
    names = keys.slice(0, _SYSTEM_ROWS_MAX).to_pylist()
    first = names.index(None) if None in names else None
    if first is None or batch.num_rows != first + order:
        return None
    system = dict(zip(names[:first], values.slice(0, first).to_pylist(), strict=True))
    written = system.get(spec.N_KEYS) or ""
    count = int(written) if written.isdecimal() and len(written) <= _DIGITS else 0
    plain = (
        0 < count < order
        and len(system) == first
        and None not in system.values()
        and system.get(spec.HEIGHT) == "0"
        and system.get(spec.SELF, path) == path
        and spec.VERSION not in system
        and keys.null_count == values.null_count == order - count
        and pointers.null_count == txns.null_count == batch.num_rows
    )
    rows = Columns(keys.slice(first + 1, count), values.slice(first + 1, count))
    if not plain or rows.keys.null_count or rows.values.null_count or rows.keys[0].as_py().startswith(" "):
        return None
    return Columns(*(_without_bits(column) for column in (rows.keys, rows.values)))


def _without_bits(column: pa.StringArray) -> pa.StringArray:
    """Return a column without NULL as Arrow copies it fastest."""
    _, offsets, text = column.buffers()
    return pa.StringArray.from_buffers(len(column), offsets, text, None, 0, column.offset)


def columns_of(node: Node) -> Columns | None:
    """Return a node as columns, ``None`` if it is not a plain leaf."""
    if node.children or len(node.buffer) or not node.keys:
        return None
    return Columns.of(node.keys, node.values)


def decode_head(data: bytes | memoryview, path: str, order: int | None = None) -> tuple[Node, pa.StringArray]:
    """Return the node in a file without its write buffer, and the values of the messages in there as a column.

    As Python objects the messages of a large transaction take forty times as much as the file, which compresses well.
    Raises as ``nodefile.decode``.
    """
    try:
        batch, checksummed = nodefile.read_batch(data, path)
        start = _plain_buffer(batch)
        node = None if start is None else nodefile.canonical(batch.slice(0, start), path, order)
    except nodefile.UNREADABLE as error:
        raise CorruptNode(f"node file {path!r} cannot be read: {error}", path=path) from error
    if node is None or len(node.buffer):
        node = nodefile.decode(data, path, order)
        values, node.buffer = node.buffer.columns().values, Messages()
        return node, values
    node.checksummed, node.nbytes = checksummed, len(data)
    return node, batch.column(spec.PVALUE).slice(start)


def _plain_buffer(batch: pa.RecordBatch) -> int | None:
    """Return the row at which the write buffer begins; ``None`` if only all rows together show it, or without one."""
    if batch.schema.names != _COLUMNS:
        return None
    keys = batch.column(spec.KEY)
    if not keys.null_count:
        return None
    valid = np.unpackbits(np.frombuffer(keys.buffers()[0], np.uint8), bitorder="little")
    unset = np.flatnonzero(valid[keys.offset : keys.offset + len(keys)] == 0)
    first, last = int(unset[0]), int(unset[-1])
    names, values = (batch.column(name).slice(0, first).to_pylist() for name in (spec.KEY, spec.PVALUE))
    count = dict(zip(names, values, strict=True)).get(spec.N_KEYS)
    if count is None or not count.isdecimal():
        return None
    start = max(last, first + int(count)) + 1
    pointers = batch.column(spec.PNODE).slice(start)
    return start if len(pointers) and pointers.null_count == len(pointers) else None
