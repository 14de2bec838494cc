"""What a load on this machine reads, on its way into ranges of keys: in temporary files, a share in memory at a time.

A block of lines becomes rows sorted by key. They are dealt to *shares*, which are ranges of keys: where one ends and
the next begins is a guess by some keys from everywhere in the source, made before the rest is read. So a share holds
about as much as any other, and one after another they are all rows in the order of their keys.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.engine.model import BINARY, LONG, TEXT
from pipelines.loading.model import New
from pipelines.source.lines import PACKED, Block, Place
from pipelines.trees.spool import Scratch, bytes_of, column_of, rows_in

SHARE_BYTES: Final = 4 << 20
"""How much of the source a share holds, about: 20,000 tables of three columns, 8 MB with their keys."""
SHARE_OBJECTS: Final = 10_000
"""How many of the objects that were looked at a share holds; they are few but in compressed files."""
_BLOCKS: Final = 256
_BLOCK_BYTES_MAX: Final = 8 << 20
"""A larger source is read in larger blocks: each has a piece in each share."""
LOOK_BYTES: Final = 16 << 10
"""How much of every second block is read before the others, to see which keys there are."""
HELD_BYTES: Final = 8 << 20
"""What is held in memory, twice: a small load needs no file."""
_SAMPLE: Final = 64
"""How many keys of the sample there are per share."""
_PACKED_FACTOR: Final = 8
ROWS: Final = pa.schema({"key": TEXT, "data": BINARY, "offset": LONG})
"""Objects in a block, and where they are written; without ``data`` a namespace that some of them need."""
NEW: Final = pa.schema({"key": TEXT, "data": BINARY})


class Lines(NamedTuple):
    """Objects in one block: how many, their rows as bytes, share by share, and where each share ends in these.

    Once the bytes are in a scratch, ``place`` is where they begin there.
    """

    block: Block
    objects: int
    data: bytes
    ends: Sequence[int]
    place: int = 0


class Share(NamedTuple):
    """The new objects between two cuts, sorted by key, and the namespaces that some of all objects need."""

    keys: list[str]
    rows: pa.RecordBatch
    """Columns of ``ROWS``, and the number of the block."""
    homes: set[str]


def rows_of(objects: Iterable[New]) -> pa.RecordBatch:
    """Return objects as sorted ``ROWS``; a namespace that they need stands there once, and not if it is among them."""
    rows: list[tuple[str, bytes | None, int]] = []
    homes: dict[str, int] = {}
    for key, home, data, place in objects:
        rows.append((key, data, place.offset))
        if home is not None and home not in homes:
            homes[home] = place.offset
    for key, _, _ in rows:
        homes.pop(key, None)
    rows += [(home, None, offset) for home, offset in homes.items()]
    rows.sort(key=itemgetter(0))
    columns = zip(*rows, strict=True) if rows else ((), (), ())
    arrays = [pa.array(values, each.type) for values, each in zip(columns, ROWS, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=ROWS)


def lines_of(block: Block, rows: pa.RecordBatch, cuts: Sequence[str]) -> Lines:
    """Return the sorted rows of a block, dealt to shares."""
    keys = rows.column("key").to_pylist()
    places = [0, *(bisect_left(keys, cut) for cut in cuts), len(keys)]
    pieces = [bytes_of(rows.slice(first, end - first)) if end > first else b"" for first, end in pairwise(places)]
    objects = len(keys) - rows.column("data").null_count
    return Lines(block, objects, b"".join(pieces), array("q", accumulate(map(len, pieces))))


def _given(rows: pa.RecordBatch) -> pa.StringArray:
    """Return the keys of objects, without the namespaces that they need."""
    return rows.column("key").filter(rows.column("data").is_valid())


def shares_in(files: Sequence[tuple[str, int]]) -> int:
    """Return into how many shares files, by name and size, are dealt."""
    size = sum(size * (_PACKED_FACTOR if name.endswith(PACKED) else 1) for name, size in files)
    return size // SHARE_BYTES + 1


def block_bytes(files: Sequence[tuple[str, int]], least: int) -> int:
    """Return the number of bytes of files, by name and size, that are read at once."""
    return max(least, min(_BLOCK_BYTES_MAX, sum(size for _, size in files) // _BLOCKS))


def looked_at_first(blocks: Sequence[Block]) -> tuple[list[Block], list[Block]]:
    """Return a sample of the blocks, which shows the existing keys, and the rest: together all lines, each once."""
    first, rest = [], []
    for number, block in enumerate(blocks):
        cut = block.end if block.file.endswith(PACKED) else min(block.begin + LOOK_BYTES, block.end)
        if number % 2:
            rest.append(block)
            continue
        first.append(Block(block.file, block.begin, cut, block.size))
        rest += [Block(block.file, cut, block.end, block.size)] if cut < block.end else []
    return first, rest


class Spooled:
    """The rows of blocks in a scratch. Memory: a few bytes per block and share; and the share that is asked for."""

    def __init__(self) -> None:
        self._scratch = Scratch(HELD_BYTES)
        self._lines: list[Lines] = []
        self.cuts: Sequence[str] = ()
        """The first key of each share but the first."""

    @property
    def count(self) -> int:
        """How many objects there are."""
        return sum(each.objects for each in self._lines)

    def put(self, lines: Lines) -> Lines:
        """Return lines with their bytes in the scratch. Threads may call it. Raises ``StorageError``."""
        return lines._replace(data=b"", place=self._scratch.add(lines.data))

    def take(self, lines: Iterable[Lines]) -> None:
        """Count in lines that were put."""
        self._lines += lines

    def cut(self, shares: int) -> None:
        """Look at all keys there are so far, and deal what is there, and what comes, to so many shares, or to more.

        Compressed files were read whole, and held more than their size said if each share would have too many now.

        REQUIRES: it was not cut before. Raises ``StorageError``.
        """
        shares = max(shares, self.count // SHARE_OBJECTS)
        step = max(1, self.count // (_SAMPLE * shares))
        keys = sorted(key for lines in self._lines for key in _given(self._read(lines, 0))[::step].to_pylist())
        self.cuts = sorted({keys[len(keys) * number // shares] for number in range(1, shares)}) if keys else ()
        before, self._lines = self._lines, []
        self.take(self.put(lines_of(each.block, self._read(each, 0), self.cuts)) for each in before)

    def _read(self, lines: Lines, share: int) -> pa.RecordBatch:
        start, end = lines.ends[share - 1] if share else 0, lines.ends[share]
        if start == end:
            return pa.RecordBatch.from_arrays([pa.array([], each.type) for each in ROWS], schema=ROWS)
        return rows_in(self._scratch.at(lines.place + start, end - start), ROWS)

    def share(self, number: int) -> Share:
        """Return a share: the rows before ``cuts[number]``, or the last ones. Raises ``StorageError``."""
        rows = self._rows(number)
        missing = rows.column("data").null_count
        order = pc.sort_indices(rows.column("key"))
        homes = set[str]()
        if missing:
            given = rows.column("data").is_valid()
            homes.update(rows.column("key").filter(pc.invert(given)).to_pylist())
            order = order.filter(given.take(order))
        rows = rows.take(order)
        return Share(rows.column("key").to_pylist(), rows, homes)

    def _rows(self, number: int) -> pa.RecordBatch:
        """Return the rows of a share, in no order."""
        batches = [self._read(each, number) for each in self._lines]
        blocks = column_of(np.repeat(np.arange(len(batches)), [each.num_rows for each in batches]))
        rows = pa.Table.from_batches(batches, ROWS).append_column("block", blocks)
        columns = [pa.concat_arrays(each.chunks or [pa.array([], each.type)]) for each in rows.columns]
        return pa.RecordBatch.from_arrays(columns, rows.schema.names)

    def place(self, share: Share, index: int) -> Place:
        """Return where an object of a share is written."""
        row = share.rows.slice(index, 1).to_pylist()[0]
        return Place(self._lines[row["block"]].block.file, row["offset"])

    def close(self) -> None:
        """Let go of everything."""
        self._scratch.close()
        self._lines = []
