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
from typing import Any, Final

import numpy as np
import pyarrow as pa

from trinitylake_core import spec
from trinitylake_core.tree import nodefile
from trinitylake_core.tree.checksum import checksum_of, checksum_of_parts, parts_of
from trinitylake_core.tree.leafrun import Columns, Leaves, as_views, set_bits, take_views
from trinitylake_core.tree.node import Node
from trinitylake_core.tree.noderows import text_array, text_size

_STRING: Final = pa.string()
_END: Final = b"\xff\xff\xff\xff\0\0\0\0"
"""The end of a stream of messages."""
_DIGITS: Final = 9
_NO_PARTS: Final = (b"", b"", b"")
_MOST_ROWS: Final = 1 << 16
"""Leaves of more rows are made one by one: nearly empty, they expand more than a reader accepts, if compressed."""
_SCHEMA: Final = pa.schema([pa.field(name, _STRING) for name in spec.COLUMNS])


# -- reading -------------------------------------------------------------------------------------------


def decode_many(files: Sequence[bytes], paths: Sequence[str], order: int) -> list[Columns] | None:
    """Return the entries of plain leaf files, or ``None`` if one is not exactly as :func:`encode_many` writes it.

    Damaged and unusual files are not distinguished here, but in ``nodefile``. REQUIRES: at least one file.
    """
    frame = learnt_frame()
    checksums = None if frame is None else _find_checksums(frame, files)
    if frame is None or checksums is None:
        return None
    bodies = [memoryview(data)[frame.begin : len(data) - frame.behind] for data in files]
    stream = b"".join((memoryview(files[0])[MAGIC : frame.begin], *bodies, _END))
    try:
        if any(nodefile.is_bomb(data, frame.begin) for data in files):
            return None
        with pa.ipc.open_stream(pa.py_buffer(stream), options=nodefile.READ) as reader:
            batches = list(reader)
        table = pa.Table.from_batches(batches)
        table.validate(full=True)
    except nodefile.UNREADABLE:
        return None
    if any(column.null_count < len(column) or any(map(text_size, column.chunks)) for column in table.columns[2:]):
        return None
    found = [_entries(*each, order) for each in zip(batches, checksums, paths, strict=True)]
    return None if None in found else found  # type: ignore[return-value]  # excluded a line above


def _entries(batch: pa.RecordBatch, checksum: bytes, path: str, order: int) -> Columns | None:
    """Return the entries in the rows of a plain leaf, whose last two columns are NULL; ``None`` of any other file."""
    rows, (names, name_ends, name_text) = batch.num_rows, _system_names()
    first, columns = len(names), [batch.column(index) for index in range(2)]
    parts = [parts_of(column) for column in columns]
    (bits, ends, text), (value_bits, value_ends, system) = (
        each if each and len(each) == len(_NO_PARTS) else _NO_PARTS for each in parts
    )
    named = bytes(ends[: len(name_ends)]) == name_ends and bytes(text[: len(name_text)]) == name_text
    if not named or not value_ends or rows != first + order:
        return None
    places = unpack_from(f"<{first + 1}i", value_ends)
    said = dict(zip(names, (bytes(system[start:stop]) for start, stop in pairwise(places)), strict=True))
    count = said[spec.N_KEYS]
    entries = int(count) if count.isdigit() and len(count) <= _DIGITS else 0
    if not 0 < entries < order or said[spec.HEIGHT] != b"0" or said[spec.SELF] != path.encode():
        return None
    begin = unpack_from("<i", ends, 4 * first + 4)[0]
    if not bits == value_bits == _valid_bits(first, entries, rows) or bytes(text[begin : begin + 1]) == b" ":
        return None
    if checksum_of_parts((*parts, None, None), rows) != checksum:
        return None
    return Columns(*(_without_bits(column, first + 1, entries) for column in columns))


def _without_bits(column: pa.StringArray, start: int, count: int) -> pa.StringArray:
    """Return rows of a column that are not NULL as Arrow copies them fastest."""
    _, offsets, text = column.buffers()
    return pa.StringArray.from_buffers(count, offsets, text, None, 0, column.offset + start)


def _valid_bits(first: int, entries: int, rows: int) -> bytes:
    """Return which rows of a plain leaf are not NULL, as Arrow has it."""
    return ((1 << first + 1 + entries) - 1 ^ 1 << first).to_bytes((rows + 7) // 8, "little")


@lru_cache(maxsize=1)
def _system_names() -> tuple[list[str], bytes, bytes]:
    """Return the names of the system rows of a leaf, and the same as offsets and text of a column."""
    names = [*_system_rows(1, "", 0)]
    _, ends, text = text_array(names).buffers()
    return names, bytes(ends)[: 4 * len(names) + 4], bytes(text)


def _find_checksums(frame: Frame, files: Sequence[bytes]) -> list[bytes] | None:
    """Return the checksums in files, ``None`` if there stands anything else around their batches."""
    start = len(frame.head[0])
    found = []
    for data in files:
        checksum = data[start : start + DIGITS]
        metadata = PREFIX + int.from_bytes(data[frame.begin + 4 : frame.begin + PREFIX], "little")
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
    columns, frame = _laid_out(leaves, paths, order, stamp), learnt_frame()
    rows = len(columns.keys) // len(paths)
    nothing, files = (
        pa.nulls(rows, _STRING),
        [*zip(*(_cut_column(column, rows) for column in columns.pair()), strict=True)],
    )
    arrays = (
        [*(pa.StringArray.from_buffers(rows, ends, text, bits) for bits, ends, text in pair), nothing, nothing]
        for pair in files
    )
    if frame is None or rows > _MOST_ROWS:
        return [bytes(nodefile.file_of(each)) for each in arrays]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, _SCHEMA, options=nodefile.WRITE) as writer:
        for each in arrays:
            writer.write_batch(pa.RecordBatch.from_arrays(each, schema=_SCHEMA))
    return _files(frame, sink.getvalue(), [checksum_of_parts((*pair, None, None), rows) for pair in files])


def _cut_column(column: Any, rows: int) -> list[tuple[Any, Any, Any]]:
    """Return validity bits, offsets and text of each so many rows of a column. REQUIRES: some row is NULL."""
    validity, offsets, text = column.buffers()
    count = len(column) // rows
    valid = np.unpackbits(np.frombuffer(validity, np.uint8), count=len(column), bitorder="little")
    bits = np.packbits(valid.reshape(count, rows), axis=1, bitorder="little")
    ends = np.frombuffer(offsets, np.int32, len(column) + 1)
    cuts = ends[::rows].tolist()
    places = np.lib.stride_tricks.sliding_window_view(ends, rows + 1)[::rows] - ends[:-1:rows, None]
    texts = (text.slice(start, stop - start) for start, stop in pairwise(cuts))
    return list(zip(map(pa.py_buffer, bits), map(pa.py_buffer, places), texts, strict=True))


def _laid_out(leaves: Leaves, paths: Sequence[str], order: int, stamp: int) -> Columns:
    """Return the first two columns of leaf files, one behind the other: the only copy of the text of the entries."""
    systems = [_system_rows(count, path, stamp) for count, path in zip(leaves.counts.tolist(), paths, strict=True)]
    heads = Columns.of(
        [name for system in systems for name in system], [text for system in systems for text in system.values()]
    )
    count, first, width = len(leaves.columns), len(systems[0]), order - 1
    rows = np.full((len(paths), first + order), -1)
    rows[:, :first] = count + np.arange(len(heads)).reshape(-1, first)
    filled = np.arange(width) < leaves.counts[:, None]
    entries = np.ones(count, dtype=bool)
    entries[(leaves.starts() + leaves.counts)[: count - int(leaves.counts.sum())]] = False
    rows[:, first + 1 :][filled] = np.flatnonzero(entries)
    both = zip(leaves.columns.pair(), heads.pair(), strict=True)
    return Columns(*(_copy_rows(pa.concat_arrays([as_views(each) for each in pair]), rows.ravel()) for pair in both))


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


def _files(frame: Frame, stream: Any, checksums: Sequence[bytes]) -> list[bytes]:
    """Return files around the batches of a stream."""
    data = memoryview(stream).cast("B")
    at = PREFIX + int.from_bytes(data[4:PREFIX], "little")
    files = []
    reader = pa.ipc.MessageReader.open_stream(stream)
    reader.read_next_message()
    for checksum in checksums:
        message = reader.read_next_message()
        metadata, body = PREFIX + message.metadata.size, message.body.size
        head, tail = frame.around(checksum, metadata, body)
        files.append(b"".join((head, data[at : at + metadata + body], tail)))
        at += metadata + body
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
        block = _block(self.begin, metadata, body)
        first, second = (checksum, block) if self.checksum_first else (block, checksum)
        one, two, three = self.tail
        return b"".join((self.head[0], checksum, self.head[1])), b"".join((one, first, two, second, three))


def _block(begin: int, metadata: int, body: int) -> bytes:
    """Return the position of a batch as the end of a file contains it: three numbers of 8 bytes, the second padded."""
    return b"".join(number.to_bytes(8, "little") for number in (begin, metadata, body))


@lru_cache(maxsize=1)
def learnt_frame() -> Frame | None:
    """Return the bytes that this version of Arrow puts around a batch, found in a file; ``None`` if it is not known."""
    column = text_array(["x"])
    data = bytes(nodefile.file_of([column] * 4))
    checksum = checksum_of([column] * 4)
    begin = MAGIC + PREFIX + int.from_bytes(data[MAGIC + 4 : MAGIC + 8], "little")
    with pa.ipc.open_stream(pa.py_buffer(data[MAGIC:])) as reader:
        message = pa.ipc.read_message(pa.py_buffer(data[begin:]))
        known = reader.schema.names == list(spec.COLUMNS)
    metadata, body = PREFIX + message.metadata.size, message.body.size
    head, tail = data[:begin], data[begin + metadata + body :]
    block = _block(begin, metadata, body)
    if not known or head.count(checksum) != 1 or tail.count(checksum) != 1 or tail.count(block) != 1:
        return None
    before, behind = head.split(checksum)
    first, second = sorted((checksum, block), key=tail.index)
    one, rest = tail.split(first)
    two, three = rest.split(second)
    return Frame((before, behind), (one, two, three), first == checksum, begin, len(tail))
