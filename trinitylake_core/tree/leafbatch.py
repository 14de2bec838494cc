"""Many leaf files in one go: the bytes of ``nodefile``, without a call of Arrow per file (format, section 4).

Files of one kind differ in their record batch, their checksum and a few numbers; the schema around it, before and
behind, is the same. So Arrow compresses or expands the batches of a whole run of leaves in one call, as one stream, and
what belongs around each is put there, or proved to be there, byte by byte.

A file that differs from those that this library writes is left to ``nodefile``, which reads it or reports the defect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from struct import unpack_from
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from trinitylake_core import spec
from trinitylake_core.tree import nodefile
from trinitylake_core.tree.checksum import checksum_of, checksum_of_parts, parts_of
from trinitylake_core.tree.leafrun import Columns, Leaves, as_bits, as_views, take_views
from trinitylake_core.tree.node import Node
from trinitylake_core.tree.noderows import text_array, text_size

_STRING: Final = pa.string()
_END: Final = b"\xff\xff\xff\xff\0\0\0\0"
"""The end of a stream of messages."""
_DIGITS: Final = 9
_ALL_PARTS: Final = 3
"""Validity bits, offsets and text: the parts of a column in which some rows are NULL, and some hold text."""
_Parts: TypeAlias = tuple[Any, Any, Any]
_MOST_ROWS: Final = 1 << 16
"""Leaves of more rows are made one by one: nearly empty, they expand more than a reader accepts, if compressed."""
_SCHEMA: Final = pa.schema([pa.field(name, _STRING) for name in spec.COLUMNS])


# -- reading -------------------------------------------------------------------------------------------


def decode_many(files: Sequence[bytes], paths: Sequence[str], order: int) -> list[Columns] | None:
    """Return the entries of plain leaf files, or ``None`` if one is not exactly as :func:`encode_many` writes it.

    Damaged and unusual files are not distinguished here, but in ``nodefile``. REQUIRES: at least one file.
    """
    frame = learn_frame()
    if frame is None:
        return None
    checksums = _find_checksums(frame, files)
    if checksums is None:
        return None
    batches = _read_batches(frame, files)
    if batches is None:
        return None
    found = []
    for batch, checksum, path in zip(batches, checksums, paths, strict=True):
        entries = _entries(batch, checksum, path, order)
        if entries is None:
            return None
        found.append(entries)
    return found


def _read_batches(frame: Frame, files: Sequence[bytes]) -> list[pa.RecordBatch] | None:
    """Return the batches of files, read as one stream; ``None`` where this is no run of plain leaves."""
    schema = memoryview(files[0])[MAGIC : frame.begin]
    bodies = [memoryview(data)[frame.begin : len(data) - frame.behind] for data in files]
    stream = b"".join((schema, *bodies, _END))
    try:
        if any(nodefile.is_bomb(data, frame.begin) for data in files):
            return None
        with pa.ipc.open_stream(pa.py_buffer(stream), options=nodefile.READ) as reader:
            batches = list(reader)
        table = pa.Table.from_batches(batches)
        table.validate(full=True)
    except nodefile.UNREADABLE:
        return None
    for column in table.columns[2:]:  # a leaf without messages has neither pointers nor transactions
        if column.null_count < len(column) or any(map(text_size, column.chunks)):
            return None
    return batches


def _entries(batch: pa.RecordBatch, checksum: bytes, path: str, order: int) -> Columns | None:
    """Return the entries in the rows of a plain leaf, whose last two columns are NULL; ``None`` of any other file."""
    keys = batch.column(0)
    values = batch.column(1)
    rows = batch.num_rows
    key_parts = _all_parts_of(keys)
    value_parts = _all_parts_of(values)
    if key_parts is None or value_parts is None:
        return None
    if checksum_of_parts((key_parts, value_parts, None, None), rows) != checksum:
        return None
    system = _read_system_rows(key_parts, value_parts)
    first = len(_system_names().names)
    if system is None or rows != first + order:
        return None
    count = _count_in(system[spec.N_KEYS])
    if not 0 < count < order or system[spec.HEIGHT] != b"0" or system[spec.SELF] != path.encode():
        return None

    # Behind the system rows stand one row that is NULL, the entries, and nothing else.
    expected_bits = _valid_bits(first, count, rows)
    if key_parts[0] != expected_bits or value_parts[0] != expected_bits:
        return None
    _, ends, text = key_parts
    begin = unpack_from("<i", ends, 4 * (first + 1))[0]
    if bytes(text[begin : begin + 1]) == b" ":  # the keys of an older generation
        return None
    return Columns(_without_bits(keys, first + 1, count), _without_bits(values, first + 1, count))


def _all_parts_of(column: pa.StringArray) -> _Parts | None:
    parts = parts_of(column)
    if parts is None or len(parts) != _ALL_PARTS:
        return None
    bits, ends, text = parts
    return bits, ends, text


def _read_system_rows(keys: _Parts, values: _Parts) -> dict[str, bytes] | None:
    """Return the system rows of a leaf; ``None`` if they are not those that this library writes, in its order."""
    expected = _system_names()
    _, ends, text = keys
    if bytes(ends[: len(expected.ends)]) != expected.ends or bytes(text[: len(expected.text)]) != expected.text:
        return None
    _, value_ends, value_text = values
    places = unpack_from(f"<{len(expected.names) + 1}i", value_ends)
    system = {}
    for name, (start, stop) in zip(expected.names, pairwise(places), strict=True):
        system[name] = bytes(value_text[start:stop])
    return system


def _count_in(digits: bytes) -> int:
    if not digits.isdigit() or len(digits) > _DIGITS:
        return 0
    return int(digits)


def _without_bits(column: pa.StringArray, start: int, count: int) -> pa.StringArray:
    """Return rows of a column that are not NULL as Arrow copies them fastest."""
    _, offsets, text = column.buffers()
    return pa.StringArray.from_buffers(count, offsets, text, None, 0, column.offset + start)


def _valid_bits(first: int, entries: int, rows: int) -> bytes:
    """Return which rows of a plain leaf are not NULL, as Arrow has it."""
    every_row = (1 << first + 1 + entries) - 1
    row_between = 1 << first
    return (every_row ^ row_between).to_bytes((rows + 7) // 8, "little")


class _SystemNames(NamedTuple):
    """The names of the system rows of a leaf, and the same as offsets and text of a column."""

    names: list[str]
    ends: bytes
    text: bytes


@lru_cache(maxsize=1)
def _system_names() -> _SystemNames:
    names = [*_system_rows(1, "", 0)]
    _, ends, text = text_array(names).buffers()
    return _SystemNames(names, bytes(ends)[: 4 * (len(names) + 1)], bytes(text))


def _find_checksums(frame: Frame, files: Sequence[bytes]) -> list[bytes] | None:
    """Return the checksums in files, ``None`` if there stands anything else around their batches."""
    start = len(frame.head[0])
    found = []
    for data in files:
        checksum = data[start : start + DIGITS]
        size = data[frame.begin + 4 : frame.begin + PREFIX]
        metadata = PREFIX + int.from_bytes(size, "little")
        body = len(data) - frame.begin - frame.behind - metadata
        if body < 0:
            return None
        head, tail = frame.around(checksum, metadata, body)
        if not data.startswith(head) or not data.endswith(tail):
            return None
        found.append(checksum)
    return found


# -- writing -------------------------------------------------------------------------------------------


def encode_many(leaves: Leaves, paths: Sequence[str], order: int, stamp: int) -> list[bytes]:
    """Return the bytes of new leaf files at ``paths``: those of ``nodefile.encode`` for the same leaves."""
    columns = _lay_out(leaves, paths, order, stamp)
    rows = len(columns.keys) // len(paths)
    keys_of_files = _cut_column(columns.keys, rows)
    values_of_files = _cut_column(columns.values, rows)
    nothing = pa.nulls(rows, _STRING)
    checksums = []
    batches = []
    for keys, values in zip(keys_of_files, values_of_files, strict=True):
        checksums.append(checksum_of_parts((keys, values, None, None), rows))
        batches.append([_column_of(keys, rows), _column_of(values, rows), nothing, nothing])
    frame = learn_frame()
    if frame is None or rows > _MOST_ROWS:
        return [bytes(nodefile.file_of(arrays)) for arrays in batches]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, _SCHEMA, options=nodefile.WRITE) as writer:
        for arrays in batches:
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA))
    return _files(frame, sink.getvalue(), checksums)


def _cut_column(column: Any, rows: int) -> list[_Parts]:
    """Return the parts of each so many rows of a column. REQUIRES: some row is NULL."""
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
        pieces.append((pa.py_buffer(bits[index]), pa.py_buffer(places[index]), texts))
    return pieces


def _column_of(parts: _Parts, rows: int) -> Any:
    bits, ends, text = parts
    return pa.StringArray.from_buffers(rows, ends, text, bits)


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
    entries = leaves.columns
    rows = _rows_of_files(leaves, heads_a_file, order)
    keys = pa.concat_arrays([as_views(entries.keys), as_views(heads.keys)])
    values = pa.concat_arrays([as_views(entries.values), as_views(heads.values)])
    return Columns(_copy_rows(keys, rows), _copy_rows(values, rows))


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
    valid = as_bits(~unset).buffers()[1]
    return pa.Array.from_buffers(views.type, len(rows), [valid, places, *texts]).cast(_STRING)


def _system_rows(count: int, path: str, stamp: int) -> dict[str, str]:
    """Return the system rows of a leaf."""
    node = Node(system={spec.CREATED_AT_MILLIS: str(stamp)}, height=0, subtree_keys=count, subtree_messages=0)
    return nodefile.system_rows(node, count=count, path=path)


def _files(frame: Frame, stream: Any, checksums: Sequence[bytes]) -> list[bytes]:
    """Return files around the batches of a stream."""
    data = memoryview(stream).cast("B")
    schema = int.from_bytes(data[4:PREFIX], "little")
    at = PREFIX + schema
    files = []
    reader = pa.ipc.MessageReader.open_stream(stream)
    reader.read_next_message()
    for checksum in checksums:
        message = reader.read_next_message()
        metadata = PREFIX + message.metadata.size
        body = message.body.size
        head, tail = frame.around(checksum, metadata, body)
        stop = at + metadata + body
        files.append(b"".join((head, data[at:stop], tail)))
        at = stop
    return files


# -- what stands around a record batch -------------------------------------------------------------


MAGIC: Final = 8
PREFIX: Final = 8
"""What stands before each message: a marker and the length of its metadata, 4 bytes each."""
DIGITS: Final = 32


@dataclass(frozen=True, slots=True)
class Frame:
    """What stands before and behind the record batch of each leaf file, cut where files differ."""

    head: tuple[bytes, bytes]
    """Before and behind the checksum."""
    tail: tuple[bytes, bytes, bytes]
    """Before and behind the checksum, and behind the block with the place of the batch."""
    checksum_first: bool
    """Whether the checksum stands before the block."""
    begin: int
    """Where the batch begins."""
    behind: int
    """How many bytes follow it."""

    def around(self, checksum: bytes, metadata: int, body: int) -> tuple[bytes, bytes]:
        """Return the bytes before and behind a batch of so many bytes of metadata and body."""
        before, behind = self.head
        head = b"".join((before, checksum, behind))
        block = _block(self.begin, metadata, body)
        before, between, behind = self.tail
        if self.checksum_first:
            tail = b"".join((before, checksum, between, block, behind))
        else:
            tail = b"".join((before, block, between, checksum, behind))
        return head, tail


def _block(begin: int, metadata: int, body: int) -> bytes:
    """Return the position of a batch as the end of a file contains it: three numbers of 8 bytes, the second padded."""
    return b"".join(number.to_bytes(8, "little") for number in (begin, metadata, body))


@lru_cache(maxsize=1)
def learn_frame() -> Frame | None:
    """Return the bytes that this version of Arrow puts around a batch, found in a file; ``None`` if it is not known."""
    column = text_array(["x"])
    columns = [column] * len(spec.COLUMNS)
    data = bytes(nodefile.file_of(columns))
    checksum = checksum_of(columns)
    schema = int.from_bytes(data[MAGIC + 4 : MAGIC + PREFIX], "little")
    begin = MAGIC + PREFIX + schema
    with pa.ipc.open_stream(pa.py_buffer(data[MAGIC:])) as reader:
        if reader.schema.names != list(spec.COLUMNS):
            return None
    message = pa.ipc.read_message(pa.py_buffer(data[begin:]))
    metadata = PREFIX + message.metadata.size
    body = message.body.size
    block = _block(begin, metadata, body)
    head = data[:begin]
    tail = data[begin + metadata + body :]
    # Cut where files differ. If a piece stands there twice, it is not known which of them differs.
    if head.count(checksum) != 1 or tail.count(checksum) != 1 or tail.count(block) != 1:
        return None
    before, behind = head.split(checksum)
    checksum_first = tail.index(checksum) < tail.index(block)
    first, second = (checksum, block) if checksum_first else (block, checksum)
    tail_before, rest = tail.split(first)
    tail_between, tail_behind = rest.split(second)
    return Frame(
        head=(before, behind),
        tail=(tail_before, tail_between, tail_behind),
        checksum_first=checksum_first,
        begin=begin,
        behind=len(tail),
    )
