"""Rows that outgrow memory: record batches here up to a limit, and beyond it in a temporary file, dealt to parts.

A column ``hash`` says to which part a row belongs, so that rows which must meet, of one spool or of several, are in
parts of the same number, and one part at a time is enough to compare them.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, BinaryIO, Final, TypeAlias, cast

import numpy as np
import pyarrow as pa

from trinitylake_core.errors import StorageError

if TYPE_CHECKING:
    import numpy.typing as npt

    Hashes: TypeAlias = npt.NDArray[np.int64]
HASH: Final = "hash"
LIMIT_BYTES: Final = 16 << 20
"""What a spool holds in memory: the names of 130,000 files, or the marks of 700,000."""
_CODEC: Final = "zstd"
_HEADER: Final = 8
"""How large the rows are that follow, compressed."""
_BITS: Final = 6
PARTS: Final = 1 << _BITS
"""Into how many parts rows are dealt: if each may be as large as what is held, they are 8 million names."""


def hashes_of(texts: Iterable[str], count: int = -1) -> Hashes:
    """Return 64 bits of each text, others in every process.

    Two texts may have the same: one pair of any 10 million has a chance of 3 in a million. A caller that must not
    confuse them compares the texts themselves.
    """
    return np.fromiter(map(hash, texts), np.int64, count)


# -- columns and numbers, without pa.array and to_numpy: both import pandas where it is, for 57 MB and 0.25 s of CPU --


def column_of(values: Hashes) -> pa.Int64Array:
    """Return numbers as a column."""
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def mask_of(values: npt.NDArray[np.bool_]) -> pa.BooleanArray:
    """Return truth values as a column."""
    bits = np.packbits(values, bitorder="little")
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, pa.py_buffer(bits)])


def texts_of(values: Sequence[str]) -> pa.StringArray:
    """Return texts as a column."""
    builder = pa.lib.StringBuilder()
    builder.append_values(values)
    return builder.finish()


def numbers(rows: pa.Table, name: str) -> Hashes:
    """Return a column of numbers, none of which is NULL."""
    found = [
        np.frombuffer(each.buffers()[1], np.int64)[each.offset : each.offset + len(each)]
        for each in rows.column(name).chunks
        if len(each)
    ]
    return found[0] if len(found) == 1 else np.concatenate([np.empty(0, np.int64), *found])


# -- rows as bytes ---------------------------------------------------------------------------------------


def bytes_of(rows: pa.RecordBatch) -> bytes:
    """Return rows as bytes, compressed: keys are padded, and most definitions say the same. 0.3 µs per row of 400 B."""
    data = rows.serialize()
    compressed: bytes = pa.compress(data, codec=_CODEC, asbytes=True)
    return len(data).to_bytes(_HEADER, "little") + compressed


def rows_in(data: bytes, schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows that :func:`bytes_of` made bytes of."""
    size = int.from_bytes(data[:_HEADER], "little")
    return pa.ipc.read_record_batch(pa.decompress(memoryview(data)[_HEADER:], size, codec=_CODEC), schema)


# -- files ---------------------------------------------------------------------------------------------


@contextmanager
def _no_room_told() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = tempfile.tempdir or "a directory for them"  # `gettempdir` raises where there is none
        raise StorageError(
            f"temporary files cannot be used: {error}; make room in {where}, or set TMPDIR to a directory that has more"
        ) from error


class Scratch:
    """Bytes between two steps, each piece found by where it begins: here up to a limit, beyond it in a temporary file.

    The file has no name: it is gone with its process, however that ends. Threads may share a scratch.
    """

    def __init__(self, limit_bytes: int = 0) -> None:
        """Hold nothing yet, and never more than ``limit_bytes`` in memory."""
        self._limit_bytes = limit_bytes
        self._held = bytearray()
        self._file: BinaryIO | None = None
        self._lock = threading.Lock()
        self.size = 0

    def add(self, data: bytes | pa.Buffer) -> int:
        """Take a piece and return where it begins. Raises ``StorageError`` if there is no room for it."""
        with self._lock:
            start = self.size
            if self._file is None and start + len(data) <= self._limit_bytes:
                self._held += data
            else:
                self._append(data)
            self.size += len(data)
            return start

    def _append(self, data: bytes | pa.Buffer) -> None:
        with _no_room_told():
            if self._file is None:
                self._file = cast("BinaryIO", tempfile.TemporaryFile())  # noqa: SIM115 - until it is closed
                self._file.write(self._held)
                self._held = bytearray()
            self._file.seek(self.size)
            self._file.write(data)
            self._file.flush()  # or only reading would tell that there was no room

    def at(self, start: int, size: int) -> bytes:
        """Return so many bytes from a place on. Raises ``StorageError`` if they are not what was written."""
        with self._lock:
            if self._file is None:
                return bytes(self._held[start : start + size])
            with _no_room_told():
                self._file.seek(start)
                data = self._file.read(size)
        if len(data) < size:
            raise StorageError(f"a temporary file lost {size - len(data)} of {size} bytes")
        return data

    def close(self) -> None:
        """Let go of everything."""
        with self._lock:
            if self._file is not None:
                with suppress(OSError):  # what there was no room for is not needed any more
                    self._file.close()
            self._file, self._held, self.size = None, bytearray(), 0


class PartFile:
    """A temporary file of pieces, each of one part. It has no name: it is gone with its process, however that ends."""

    def __init__(self) -> None:
        self._file = Scratch()
        self._pieces: list[list[tuple[int, int]]] = [[] for _ in range(PARTS)]

    def __bool__(self) -> bool:
        """Return whether there is anything in it."""
        return self._file.size > 0

    def add(self, number: int, data: bytes | pa.Buffer) -> None:
        """Write a piece of a part. Raises ``StorageError`` if there is no room for it."""
        self._pieces[number].append((self._file.add(data), len(data)))

    def pieces(self, number: int) -> Iterator[bytes]:
        """Yield the pieces of a part. Raises ``StorageError``."""
        for start, size in self._pieces[number]:
            yield self._file.at(start, size)

    def close(self) -> None:
        """Let go of everything."""
        self._file.close()
        self._pieces = [[] for _ in range(PARTS)]


class Spool:
    """Rows in no order. Memory: ``limit_bytes``, by default :data:`LIMIT_BYTES`; three times that while they are dealt.

    :meth:`close` gives the file back.
    """

    def __init__(self, schema: pa.Schema, limit_bytes: int | None = None) -> None:
        self._schema = schema
        self._limit_bytes = LIMIT_BYTES if limit_bytes is None else limit_bytes
        self._batches: list[pa.RecordBatch] = []
        self._bytes = 0
        self._file = PartFile()
        self.rows = 0

    @property
    def spilled(self) -> bool:
        """Whether some of the rows are in the file."""
        return bool(self._file)

    def add(self, *batches: pa.RecordBatch) -> None:
        """Take rows of the schema. Raises ``StorageError`` if there is no room for them."""
        for rows in batches:
            self._batches.append(rows)
            self._bytes += rows.nbytes
            self.rows += rows.num_rows
            if self._bytes > self._limit_bytes:
                self.spill()

    def spill(self) -> None:
        """Write what is in memory to the file. Raises ``StorageError``."""
        rows = self.here()
        number = numbers(rows, HASH).view(np.uint64) >> np.uint64(64 - _BITS)
        order = np.argsort(number, kind="stable")
        rows = rows.take(column_of(order)).combine_chunks()
        ends = np.searchsorted(number[order], np.arange(PARTS), side="right").tolist()
        for part, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
            for batch in rows.slice(start, end - start).to_batches():
                self._file.add(part, batch.serialize())
        self._batches, self._bytes = [], 0

    def here(self) -> pa.Table:
        """Return the rows in memory."""
        rows = pa.Table.from_batches(self._batches, self._schema).combine_chunks()
        self._batches = rows.to_batches()
        return rows

    def part(self, number: int) -> pa.Table:
        """Return a part of the rows in the file."""
        pieces = map(pa.py_buffer, self._file.pieces(number))
        batches = [pa.ipc.read_record_batch(piece, self._schema) for piece in pieces]
        return pa.Table.from_batches(batches, self._schema).combine_chunks()

    def close(self) -> None:
        """Let go of all rows."""
        self._file.close()
        self._batches, self._bytes, self.rows = [], 0, 0


def parts(*spools: Spool) -> Iterator[tuple[pa.Table, ...]]:
    """Yield the rows of spools part by part: rows with the same hash come together.

    REQUIRES: nothing is added to any of them before this ends.
    Raises:
        StorageError: there is no room for what was still in memory.
    """
    if not any(each.spilled for each in spools):
        yield tuple(each.here() for each in spools)
        return
    for each in spools:
        each.spill()
    for number in range(PARTS):
        yield tuple(each.part(number) for each in spools)
