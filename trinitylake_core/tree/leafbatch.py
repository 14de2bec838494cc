"""Many leaf files in one go: the bytes of ``nodefile``, without a call of Arrow per file (format, section 4).

Files of one kind differ in their record batch, their checksum and a few numbers; the schema around it, before and
behind, is the same. So Arrow compresses or expands the batches of a whole run of leaves in one call, as one stream, and
what belongs around each is put there, or proved to be there, byte by byte.

A file that differs from those that this library writes is left to ``leaffile``, which reads it or reports the defect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa

from trinitylake_core import spec
from trinitylake_core.tree import nodefile
from trinitylake_core.tree.checksum import checksum_of
from trinitylake_core.tree.leaffile import plain_leaf
from trinitylake_core.tree.leafrun import Columns, Leaves
from trinitylake_core.tree.node import Node
from trinitylake_core.tree.noderows import text_array

_STRING: Final = pa.string()
_END: Final = b"\xff\xff\xff\xff\0\0\0\0"
"""The end of a stream of messages."""
_MOST_ROWS: Final = 1 << 16
"""Leaves of more rows are made one by one: nearly empty, they expand more than a reader accepts, if compressed."""
_SCHEMA: Final = pa.schema([pa.field(name, _STRING) for name in spec.COLUMNS])


# -- reading -------------------------------------------------------------------------------------------


def decode_many(files: Sequence[bytes], paths: Sequence[str], order: int) -> list[Columns] | None:
    """Return the entries of plain leaf files, or ``None`` if one is not exactly as :func:`encode_many` writes it.

    Damaged and unusual files are not distinguished here, but in ``leaffile``. REQUIRES: at least one file.
    """
    frame = learnt_frame()
    checksums = None if frame is None else _framed(frame, files)
    if frame is None or checksums is None:
        return None
    bodies = [memoryview(data)[frame.begin : len(data) - frame.behind] for data in files]
    stream = b"".join((memoryview(files[0])[MAGIC : frame.begin], *bodies, _END))
    try:
        if any(nodefile.is_bomb(data, frame.begin) for data in files):
            return None
        with pa.ipc.open_stream(pa.py_buffer(stream), options=nodefile.READ) as reader:
            batches = list(reader)
        pa.Table.from_batches(batches).validate(full=True)
    except nodefile.UNREADABLE:
        return None
    if checksums != [checksum_of(batch.columns) for batch in batches]:
        return None
    found = [plain_leaf(batch, path, order) for batch, path in zip(batches, paths, strict=True)]
    return None if None in found else found  # type: ignore[return-value]  # excluded a line above


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


# -- writing -------------------------------------------------------------------------------------------


def encode_many(leaves: Leaves, paths: Sequence[str], order: int, stamp: int) -> list[bytes]:
    """Return the bytes of new leaf files at ``paths``: those of ``nodefile.encode`` for the same leaves."""
    arrays = [_arrays(leaf, path, order, stamp) for leaf, path in zip(leaves.parted(), paths, strict=True)]
    frame = learnt_frame()
    if frame is None or len(arrays[0][0]) > _MOST_ROWS:
        return [bytes(nodefile.file_of(each)) for each in arrays]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, _SCHEMA, options=nodefile.WRITE) as writer:
        for each in arrays:
            writer.write_batch(pa.RecordBatch.from_arrays(each, schema=_SCHEMA))
    return _files(frame, sink.getvalue(), [checksum_of(each) for each in arrays])


def _arrays(leaf: Columns, path: str, order: int, stamp: int) -> list[Any]:
    """Return the columns of a leaf file: the only copy of text between the new entries and the file."""
    count = len(leaf)
    node = Node(system={spec.CREATED_AT_MILLIS: str(stamp)}, height=0, subtree_keys=count, subtree_messages=0)
    system = nodefile.system_rows(node, count=count, path=path)
    unused, nothing = pa.nulls(order - 1 - count, _STRING), pa.nulls(len(system) + order, _STRING)
    heads = text_array([*system, None]), text_array([*system.values(), None])
    texts = [pa.concat_arrays([head, rows, unused]) for head, rows in zip(heads, (leaf.keys, leaf.values), strict=True)]
    return [*texts, nothing, nothing]


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
