"""Leaf files as columns: the bytes of ``nodefile``, without a Python object per row (format, section 4).

The entries of a run of leaves are laid out as one column each, and cut into files. A file is read as two slices of its
columns. One that differs from those that this library writes is left to ``nodefile``, which reads it or reports the
defect.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa

from trinitylake_core import spec
from trinitylake_core.errors import CorruptNode
from trinitylake_core.tree import nodefile
from trinitylake_core.tree.leafrun import Columns, Leaves, as_views, set_bits, take_views
from trinitylake_core.tree.node import Node
from trinitylake_core.tree.noderows import set_rows

_STRING: Final = pa.string()
_DIGITS: Final = 9


# -- reading -------------------------------------------------------------------------------------------


def read_leaf(data: bytes, path: str, order: int) -> Columns | None:
    """Return the entries of a plain leaf file, or ``None`` if it is not exactly as :func:`encode_many` writes it.

    Damaged and unusual files are not distinguished here, but in ``nodefile``.
    """
    try:
        batch, is_checksummed = nodefile.read_batch(data, path)
    except (CorruptNode, *nodefile.UNREADABLE):
        return None
    if not is_checksummed or batch.num_rows != len(_system_names()) + order:
        return None
    return _entries(batch, path, order)


def _entries(batch: pa.RecordBatch, path: str, order: int) -> Columns | None:
    """Return the entries in the rows of a plain leaf; ``None`` of any other node. REQUIRES: so many rows as it has."""
    keys, values, pointers, txns = batch.columns
    rows = batch.num_rows
    if pointers.null_count < rows or txns.null_count < rows:
        return None  # a leaf without messages has neither pointers nor transactions
    names = _system_names()
    first = len(names)
    if keys.slice(0, first).to_pylist() != names:
        return None
    system = dict(zip(names, values.slice(0, first).to_pylist(), strict=True))
    count = _count_in(system[spec.N_KEYS])
    if not 0 < count < order or system[spec.HEIGHT] != "0" or system[spec.SELF] != path:
        return None

    # Behind the system rows stand one row that is NULL, the entries, and nothing else.
    expected = _valid_rows(first, count)
    if set_rows(keys) != expected or set_rows(values) != expected:
        return None
    if keys[first + 1].as_py().startswith(" "):  # the keys of an older generation
        return None
    return Columns(_without_bits(keys, first + 1, count), _without_bits(values, first + 1, count))


def _count_in(digits: str | None) -> int:
    if digits is None or len(digits) > _DIGITS or not (digits.isascii() and digits.isdecimal()):
        return 0
    return int(digits)


def _without_bits(column: pa.StringArray, start: int, count: int) -> pa.StringArray:
    """Return rows of a column that are not NULL as Arrow copies them fastest."""
    _, offsets, text = column.buffers()
    return pa.StringArray.from_buffers(count, offsets, text, None, 0, column.offset + start)


def _valid_rows(first: int, entries: int) -> int:
    """Return which rows of a plain leaf are not NULL, as :func:`set_rows` does."""
    every_row = (1 << first + 1 + entries) - 1
    row_between = 1 << first
    return every_row ^ row_between


@lru_cache(maxsize=1)
def _system_names() -> list[str]:
    """Return the names of the system rows of a leaf, in the order of its file."""
    return [*_system_rows(1, "", 0)]


# -- writing -------------------------------------------------------------------------------------------


def encode_many(leaves: Leaves, paths: Sequence[str], order: int, stamp: int) -> list[bytes]:
    """Return the bytes of new leaf files at ``paths``: those of ``nodefile.encode`` for the same leaves."""
    columns = _lay_out(leaves, paths, order, stamp)
    rows = len(columns.keys) // len(paths)
    nothing = pa.nulls(rows, _STRING)
    keys_of_files = _cut_column(columns.keys, rows)
    values_of_files = _cut_column(columns.values, rows)
    files = []
    for keys, values in zip(keys_of_files, values_of_files, strict=True):
        data = nodefile.file_of([keys, values, nothing, nothing])
        files.append(bytes(data))
    return files


def _cut_column(column: Any, rows: int) -> list[Any]:
    """Return each so many rows of a column as a column without an offset. REQUIRES: some row is NULL."""
    validity, offsets, text = column.buffers()
    count = len(column) // rows
    packed = np.frombuffer(validity, np.uint8)
    valid = np.unpackbits(packed, count=len(column), bitorder="little")
    bits = np.packbits(valid.reshape(count, rows), axis=1, bitorder="little")
    ends = np.frombuffer(offsets, np.int32, len(column) + 1)
    # The offsets of a piece begin with 0; the last of one piece and the first of the next are the same place.
    windows = np.lib.stride_tricks.sliding_window_view(ends, rows + 1)[::rows]
    first_ends = ends[:-1:rows, None]
    places = windows - first_ends
    cuts = ends[::rows].tolist()
    pieces = []
    for index, (start, stop) in enumerate(pairwise(cuts)):
        texts = text.slice(start, stop - start)
        ends_here = pa.py_buffer(places[index])
        pieces.append(pa.StringArray.from_buffers(rows, ends_here, texts, pa.py_buffer(bits[index])))
    return pieces


def _lay_out(leaves: Leaves, paths: Sequence[str], order: int, stamp: int) -> Columns:
    """Return the first two columns of leaf files, one behind the other: the only copy of the text of the entries."""
    names: list[str] = []
    texts: list[str] = []
    for count, path in zip(leaves.counts.tolist(), paths, strict=True):
        system = _system_rows(count, path, stamp)
        names += system.keys()
        texts += system.values()
    heads = Columns.of(names, texts)
    heads_a_file = len(heads) // len(paths)
    if leaves.columns.keys.type == _STRING:
        return _join_slices(leaves, heads, heads_a_file, order)
    entries = leaves.columns
    rows = _rows_of_files(leaves, heads_a_file, order)
    keys = pa.concat_arrays([as_views(entries.keys), as_views(heads.keys)])
    values = pa.concat_arrays([as_views(entries.values), as_views(heads.values)])
    return Columns(_copy_rows(keys, rows), _copy_rows(values, rows))


def _join_slices(leaves: Leaves, heads: Columns, first: int, order: int) -> Columns:
    """Return what :func:`_lay_out` does, of entries that stand one behind the other: a leaf is copied at once.

    A file has ``first`` system rows, a row that is NULL, and ``order - 1`` rows for entries.
    """
    between = Columns(pa.nulls(1, _STRING), pa.nulls(1, _STRING))
    unused = pa.nulls(order - 1, _STRING)
    parts = []
    start = 0
    for entries in leaves.each_leaf():
        parts.append(heads.slice(start, start + first))
        parts.append(between)
        parts.append(entries)
        rest = unused.slice(len(entries))
        parts.append(Columns(rest, rest))
        start += first
    return Columns.join(parts)


def _rows_of_files(leaves: Leaves, first: int, order: int) -> Any:
    """Return for each row of each file where it comes from: the row among entries, then system rows; -1 is NULL.

    A file has ``first`` system rows, a row that is NULL, and ``order - 1`` rows for entries.
    """
    files = len(leaves.counts)
    count = len(leaves.columns)
    rows = np.full((files, first + order), -1)
    system_rows = np.arange(files * first)
    rows[:, :first] = count + system_rows.reshape(files, first)

    is_entry = np.ones(count, dtype=bool)
    pivots = leaves.starts() + leaves.counts
    pivots_there = count - int(leaves.counts.sum())  # none need stand behind the last leaf
    is_entry[pivots[:pivots_there]] = False
    has_entry = np.arange(order - 1) < leaves.counts[:, None]
    rows[:, first + 1 :][has_entry] = np.flatnonzero(is_entry)
    return rows.ravel()


def _copy_rows(column: Any, rows: Any) -> Any:
    """Return rows of a column, -1 being NULL, as a column of their own."""
    unset = rows < 0
    views = take_views(column, np.where(unset, 0, rows))
    _, places, *texts = views.buffers()
    valid = set_bits(~unset).buffers()[1]
    return pa.Array.from_buffers(views.type, len(rows), [valid, places, *texts]).cast(_STRING)


def _system_rows(count: int, path: str, stamp: int) -> dict[str, str]:
    """Return the system rows of a leaf."""
    node = Node(system={spec.CREATED_AT_MILLIS: str(stamp)}, height=0, subtree_keys=count, subtree_messages=0)
    return nodefile.system_rows(node, count=count, path=path)
