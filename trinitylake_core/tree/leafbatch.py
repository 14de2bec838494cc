"""Many leaf files in one go: the bytes of ``nodefile``, without a call of Arrow per file (format, section 4).

Files of one kind differ in their record batch, their checksum and a few numbers; the schema around it, before and
behind, is the same. So Arrow compresses or expands the batches of a whole run of leaves in one call, as one stream, and
what belongs around each is put there, or proved to be there, byte by byte. Checksums are computed over the columns of
the whole run, leaf by leaf, without an object of Arrow per column.

A file that differs from those that this library writes is left to ``leaffile``, which reads it or reports the defect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import mmh3
import numpy as np
import pyarrow as pa

from trinitylake_core import spec
from trinitylake_core.tree import nodefile
from trinitylake_core.tree.checksum import checksum_of, only_nulls
from trinitylake_core.tree.leafrun import Columns, Leaves, is_set, row_numbers
from trinitylake_core.tree.node import Node
from trinitylake_core.tree.noderows import text_array

if TYPE_CHECKING:
    import numpy.typing as npt

_STRING: Final = pa.string()
_Rows: TypeAlias = "npt.NDArray[np.int64]"
_Mask: TypeAlias = "npt.NDArray[np.bool_]"
_END: Final = b"\xff\xff\xff\xff\0\0\0\0"
"""The end of a stream of messages."""
_MOST_ROWS: Final = 1 << 16
"""Leaves of more rows are made one by one: nearly empty, they expand more than a reader accepts, if compressed."""
_SCHEMA: Final = pa.schema([pa.field(name, _STRING) for name in spec.COLUMNS])


# -- reading -------------------------------------------------------------------------------------------


def decode_many(files: Sequence[bytes], paths: Sequence[str], order: int, between: Columns) -> LeafRows | None:
    """Return the rows of plain leaf files, or ``None`` if one is not exactly as :func:`encode_many` writes it.

    ``between`` holds the pivots between them, a NULL for one that is deleted. What is damaged is not told from what is
    unusual: ``leaffile`` tells. REQUIRES: at least one file; one pivot fewer than files.
    """
    frame = learnt_frame()
    checksums = None if frame is None else _framed(frame, files)
    if frame is None or checksums is None:
        return None
    batches = [memoryview(data)[frame.begin : len(data) - frame.behind] for data in files]
    stream = b"".join((memoryview(files[0])[MAGIC : frame.begin], *batches, _END))
    try:
        if any(nodefile.is_bomb(data, frame.begin) for data in files):
            return None
        with pa.ipc.open_stream(pa.py_buffer(stream), options=nodefile.READ) as reader:
            table = reader.read_all()
        table.validate(full=True)
    except nodefile.UNREADABLE:
        return None
    rows = table.num_rows // len(files)
    keys, values, *unused = (column.chunks for column in table.columns)
    if rows <= order or len(keys) != len(files) or any(len(chunk) != rows for chunk in keys):
        return None
    if any(chunk.null_count < rows or _ends(chunk)[-1] for column in unused for chunk in column):
        return None
    columns = Columns(_followed(keys, between.keys), _followed(values, between.values))
    if _checksums(_Parted.of(columns.keys, rows), _Parted.of(columns.values, rows)) != checksums:
        return None
    return _plain_rows(columns, rows, rows - order, paths)


def _followed(leaves: Sequence[Any], between: Any) -> Any:
    """Return the columns of leaves as one, a row behind each: the pivot, NULL behind the last one."""
    behind = [*(between.slice(index, 1) for index in range(len(between))), pa.nulls(1, _STRING)]
    return pa.concat_arrays([part for pair in zip(leaves, behind, strict=True) for part in pair])


def _framed(frame: Frame, files: Sequence[bytes]) -> list[bytes] | None:
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


def _plain_rows(columns: Columns, rows: int, head: int, paths: Sequence[str]) -> LeafRows | None:
    """Return leaves that follow one another in two columns, ``None`` if one is not plain.

    ``rows`` is what each takes without the pivot behind it, ``head`` how many of them are system rows.
    """
    count, stride = len(paths), rows + 1
    at = row_numbers((np.arange(count)[:, None] * stride + np.arange(head)).reshape(-1))
    names, said = columns.keys.take(at).to_pylist(), columns.values.take(at).to_pylist()
    system = {name: said[index::head] for index, name in enumerate(names[:head])}
    plain = (
        len(system) == head
        and None not in names
        and names == names[:head] * count
        and system.get(spec.HEIGHT) == ["0"] * count
        and system.get(spec.SELF, paths) == list(paths)
        and spec.VERSION not in system
    )
    numbers = system.get(spec.N_KEYS, [])
    if not plain or not numbers or not all(number and number.isdecimal() and len(number) < 10 for number in numbers):
        return None
    counts = np.array([*map(int, numbers)], dtype=np.int64)
    if int(counts.min()) < 1 or int(counts.max()) >= rows - head:
        return None
    valid = is_set(columns.keys)
    found = LeafRows.of_counts(columns, head, stride, counts, valid[stride - 1 :: stride])
    expected = found.entries.reshape(-1, stride).copy()
    expected[:, :head] = True
    if any(not np.array_equal(is_set(column), expected.reshape(-1)) for column in (columns.keys, columns.values)):
        return None
    if any(key.startswith(" ") for key in columns.keys.take(row_numbers(found.starts())).to_pylist()):
        return None
    return found


# -- writing -------------------------------------------------------------------------------------------


def laid_out(
    sources: Sequence[Columns], at: tuple[_Rows, _Rows], counts: _Rows, paths: Sequence[str], order: int, stamp: int
) -> LeafRows:
    """Return the rows of new leaf files at ``paths``: the only copy of text between the files read and those written.

    ``at`` says for each new entry which row of the sources its key is, and its value; ``counts`` how many entries each
    leaf gets. Between two leaves one entry becomes a pivot. One may be left for the row behind the last leaf, too.
    """
    leaf = Node(system={spec.CREATED_AT_MILLIS: str(stamp)}, height=0, subtree_keys=0, subtree_messages=0)
    names = nodefile.system_rows(leaf, count=0, path="")
    said = [
        text
        for count, path in zip(counts.tolist(), paths, strict=True)
        for text in (names | {spec.N_KEYS: str(count), spec.SUBTREE_KEYS: str(count), spec.SELF: path}).values()
    ]
    head, first = len(names), sum(map(len, sources))
    stride = head + order + 1
    entries = _entries(head, stride, counts, np.arange(len(paths)) < len(at[0]) - counts.sum())
    columns = []
    for rows, texts, each in zip(at, ([*names], said), (0, head), strict=True):
        place = np.full((len(paths), stride), first + len(texts), dtype=np.int64)
        place.reshape(-1)[entries] = rows
        place[:, :head] = first + np.arange(len(paths))[:, None] * each + np.arange(head)
        source = [part.keys if not each else part.values for part in sources]
        whole = pa.concat_arrays([*source, text_array(texts), pa.nulls(1, _STRING)])
        columns.append(whole.take(row_numbers(place.reshape(-1))))
    return LeafRows(Columns(*columns), entries, head, stride, counts)


def encode_many(leaves: LeafRows) -> list[bytes]:
    """Return the bytes of leaf files: those of ``nodefile.encode`` for the same leaves."""
    frame, rows, count = learnt_frame(), leaves.stride - 1, len(leaves.counts)
    parted = _Parted.of(leaves.columns.keys, rows), _Parted.of(leaves.columns.values, rows)
    columns = [parted[0].arrays(), parted[1].arrays(), *([pa.nulls(rows, _STRING)] * count,) * 2]
    if frame is None or rows > _MOST_ROWS:
        return [bytes(nodefile.file_of([piece[index] for piece in columns])) for index in range(count)]
    sink = pa.BufferOutputStream()
    table = pa.table([pa.chunked_array(column) for column in columns], schema=_SCHEMA)
    with pa.ipc.new_stream(sink, _SCHEMA, options=nodefile.WRITE) as writer:
        writer.write_table(table)
    return _files(frame, sink.getvalue(), _checksums(*parted))


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


# -- leaves that follow one another in a column ------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LeafRows(Leaves):
    """The rows of leaf files one after the other, each file's followed by the pivot behind it, or by a NULL."""

    head: int
    """The system rows of each."""
    stride: int
    """The rows of each, and the one behind it."""
    counts: _Rows
    """The entries of each."""

    @staticmethod
    def of_counts(columns: Columns, head: int, stride: int, counts: _Rows, pivots: _Mask) -> LeafRows:
        """Return rows, those of which ``counts`` are entries; ``pivots`` says behind which leaves a pivot stands."""
        return LeafRows(columns, _entries(head, stride, counts, pivots), head, stride, counts)

    def starts(self) -> _Rows:
        """Return the row of the first entry of each leaf."""
        return np.arange(len(self.counts), dtype=np.int64) * self.stride + self.head + 1

    def edges(self) -> list[tuple[str, str]]:
        """Return the first and the last key of each. REQUIRES: none is empty."""
        starts = self.starts()
        first, last = (self.columns.keys.take(row_numbers(at)) for at in (starts, starts + self.counts - 1))
        return list(zip(first.to_pylist(), last.to_pylist(), strict=True))

    def pivots(self) -> tuple[list[str], list[str]]:
        """Return keys and values of the entries behind leaves."""
        last = np.arange(len(self.counts), dtype=np.int64) * self.stride + self.stride - 1
        at = row_numbers(last[self.entries[last]])
        return self.columns.keys.take(at).to_pylist(), self.columns.values.take(at).to_pylist()


def _entries(head: int, stride: int, counts: _Rows, pivots: _Mask) -> _Mask:
    column = np.arange(stride)
    found = (column > head) & (column <= head + counts[:, None])
    found[:, -1] = pivots
    return found.reshape(-1)


@dataclass(frozen=True, slots=True)
class _Parted:
    """A column in which leaves of as many rows each follow one another, a row behind each, as bytes leaf by leaf."""

    rows: int
    head: npt.NDArray[np.uint8]
    """A row per leaf: number of rows, validity bits, offsets from the start of its text. What is hashed before it."""
    offsets: npt.NDArray[np.int32]
    """The offsets once more, where Arrow may read them."""
    text: Any
    cuts: list[tuple[int, int]]
    """Where the text of each begins and ends."""

    @staticmethod
    def of(column: Any, rows: int) -> _Parted:
        """Part a column of whole leaves. REQUIRES: a NULL in each, as the row before its first key is."""
        ends = _ends(column)
        starts, stops = ends[: -1 : rows + 1], ends[rows :: rows + 1]
        bits = _bits(rows)
        head = np.empty((len(starts), bits + 4 * (rows + 1)), np.uint8)
        head[:, :8] = np.frombuffer(rows.to_bytes(8, "little"), np.uint8)
        head[:, 8:bits] = np.packbits(is_set(column).reshape(-1, rows + 1)[:, :rows], axis=1, bitorder="little")
        offsets = ends[:-1].reshape(-1, rows + 1) - starts[:, None]
        head[:, bits:] = offsets.view(np.uint8)
        return _Parted(
            rows, head, offsets, column.buffers()[2], list(zip(starts.tolist(), stops.tolist(), strict=True))
        )

    def arrays(self) -> list[Any]:
        """Return an array per leaf: Arrow writes nothing that lies behind its end."""
        size, bits, width = 4 * (self.rows + 1), _bits(self.rows), self.head.shape[1]
        offsets, head = pa.py_buffer(self.offsets), pa.py_buffer(self.head)
        return [
            pa.StringArray.from_buffers(
                self.rows,
                offsets.slice(leaf * size, size),
                self.text.slice(begin, end - begin),
                head.slice(leaf * width + 8, bits - 8),
            )
            for leaf, (begin, end) in enumerate(self.cuts)
        ]


def _bits(rows: int) -> int:
    """Return where the offsets stand in what is hashed of a column: behind the number of rows and the validity bits."""
    return 8 + (rows + 7) // 8


def _checksums(keys: _Parted, values: _Parted) -> list[bytes]:
    """Return the checksums of leaves, whose other two columns are NULL. Means what ``checksum_of`` means for each."""
    unused, width = only_nulls(keys.rows) * 2, keys.head.shape[1]
    heads = memoryview(keys.head.data).cast("B"), memoryview(values.head.data).cast("B")
    texts = memoryview(keys.text).cast("B"), memoryview(values.text).cast("B")
    found = []
    for at, key_text, value_text in zip(range(0, len(heads[0]), width), keys.cuts, values.cuts, strict=True):
        hasher = mmh3.mmh3_x64_128(heads[0][at : at + width])
        hasher.update(texts[0][key_text[0] : key_text[1]])
        hasher.update(heads[1][at : at + width])
        hasher.update(texts[1][value_text[0] : value_text[1]])
        hasher.update(unused)
        found.append(hasher.digest().hex().encode())
    return found


def _ends(column: Any) -> npt.NDArray[np.int32]:
    """Return where the texts of a column begin and end. REQUIRES: a column with rows."""
    return np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]


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
    """Before and behind the checksum, and behind the block that says where the batch is."""
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
