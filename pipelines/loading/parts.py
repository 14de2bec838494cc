"""The parts of a load in this process and its helpers: blocks of lines to read, ranges of keys to build trees of.

What a part becomes depends on nothing but the part: the same files and trees, however many processes share them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import merge
from itertools import chain, islice, pairwise, repeat
from operator import attrgetter
from typing import Any, Final, NamedTuple

import pyarrow as pa

from pipelines.loading.model import Built, Row, Target, objects_in, packed
from pipelines.loading.spooled import HELD_BYTES, NEW, Lines, Spooled, lines_of, rows_of
from pipelines.source.lines import Block
from pipelines.trees.spool import Scratch, bytes_of, rows_in
from pipelines.worker_pool import Work, cores, run_in_workers
from trinitylake_core.keys import EVERYTHING, KeyRange
from trinitylake_core.storage import Storage
from trinitylake_core.tree.node import Node
from trinitylake_core.tree.nodefile import decode
from trinitylake_core.tree.nodestore import NodeStore
from trinitylake_core.tree.search import scan
from trinitylake_core.versions import Root

BLOCK_BYTES: Final = 1 << 20
"""How much of a file is read as one part."""
KEYS: Final = 10_000
"""How many new keys a range holds at most, and how many old ones: half a second of work, some megabytes to be sent."""

TOGETHER: Final = 50_000
"""How many objects of a block become columns at once: a compressed file is one block, however many there are in it."""


class Range(NamedTuple):
    """The keys from ``low`` to before ``stop``, and the new objects among them: sorted rows of ``NEW`` as bytes."""

    low: str
    stop: str | None
    new: bytes


@dataclass(frozen=True)
class Parts:
    """What a part is read from and written to. Pickled, it travels to a helper."""

    source: Storage
    target: Target
    path: str
    """Path and bytes of the root that the load stands on."""
    data: bytes
    cuts: Sequence[str] = ()
    """Where what is read is cut into shares."""

    @classmethod
    def of(cls, source: Storage, target: Target, base: Root) -> Parts:
        """Return the parts of a load on top of a version."""
        return cls(source, target, base.path, bytes(base.data))

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel without the decoded root: it is views of bytes, which cannot be pickled."""
        return Parts, (self.source, self.target, self.path, self.data, self.cuts)

    @cached_property
    def base(self) -> Node:
        """The root that the load stands on."""
        return decode(self.data, self.path, self.target.order)

    def store(self) -> NodeStore:
        """Return a new store of the lakehouse's nodes."""
        return NodeStore(self.target.storage, self.target.order, self.target.target_bytes)

    def reads(self, blocks: Iterable[Block], _: Storage) -> Iterator[list[Lines]]:
        """Yield the objects in each block; see :meth:`read`."""
        return map(self.read, blocks)

    def builds(self, ranges: Iterable[Range], _: Storage) -> Iterator[Built | None]:
        """Yield the tree of each range; see :meth:`build`."""
        return map(self.build, ranges)

    def read(self, block: Block) -> list[Lines]:
        """Return the objects in the lines that begin in a block, some at a time. Raises ``InvalidInput``."""
        objects, found = objects_in(self.source, block, self.target.codec), list[Lines]()
        while some := list(islice(objects, TOGETHER)):
            found.append(lines_of(block, rows_of(some), self.cuts))
        return found

    def build(self, part: Range) -> Built | None:
        """Write the definitions and the tree of a range. One ``get`` per node there, one ``put`` per file."""
        keys, data = (column.to_pylist() for column in rows_in(part.new, NEW).columns)
        known = set(keys)
        new = map(Row, keys, repeat(None), data)
        old = (Row(key, path, None) for key, path in self.old(part.low, part.stop) if key not in known)
        return packed(self.target, merge(new, old, key=attrgetter("key")))

    def old(self, low: str, stop: str | None) -> Iterator[tuple[str, str]]:
        """Yield the entries of the base from ``low`` to before ``stop``."""
        within = KeyRange(low, EVERYTHING.hi if stop is None else stop)
        for keys, values in scan(self.store(), self.base, within):
            yield from (row for row in zip(keys, values, strict=True) if row[0] != stop)


class Ranges:
    """Ranges of keys, ascending, whose new objects wait in a scratch. Memory: two keys per range."""

    def __init__(self) -> None:
        self._scratch = Scratch(HELD_BYTES)
        self._ranges: list[tuple[str, str | None, int, int]] = []
        self.new: list[int] = []
        """How many new objects each holds."""

    def cut(self, low: str, stop: str | None, keys: Sequence[str], rows: pa.RecordBatch, marks: Sequence[str]) -> None:
        """Take what is new from ``low`` to before ``stop`` as ranges of at most so many keys each, new and old.

        Args:
            low: where the range before ended.
            stop: where the next one begins.
            keys: those of the new objects, sorted.
            rows: the new objects, columns of ``NEW``.
            marks: some keys that are there, ascending, about :data:`KEYS` apart.

        Raises:
            StorageError: there is no room for them.
        """
        pieces = -(-len(keys) // KEYS)
        wanted = {*(keys[len(keys) * piece // pieces] for piece in range(1, pieces)), *marks}
        cuts = sorted(wanted - {low})
        places = [0, *(bisect_left(keys, cut) for cut in cuts), len(keys)]
        for one, two, (first, end) in zip([low, *cuts], [*cuts, stop], pairwise(places), strict=True):
            data = bytes_of(rows.slice(first, end - first))
            self._ranges.append((one, two, self._scratch.add(data), len(data)))
            self.new.append(end - first)

    def __len__(self) -> int:
        return len(self._ranges)

    def __getitem__(self, index: int) -> Range:
        """Return a range with its objects. Threads may call it. Raises ``StorageError``."""
        low, stop, place, size = self._ranges[index]
        return Range(low, stop, self._scratch.at(place, size))

    def close(self) -> None:
        """Let go of everything."""
        self._scratch.close()
        self._ranges, self.new = [], []


def read_all(
    parts: Parts, blocks: Sequence[Block], spooled: Spooled, tell: Callable[[int, int], None], *, few: bool = False
) -> None:
    """Read the objects of each block into the spool, in this process alone if there are ``few``.

    ``tell`` is called with how many of the bytes are read.

    Raises:
        InvalidInput: a line is not an object.
    """
    parts = replace(parts, cuts=spooled.cuts)
    weights = [block.end - block.begin for block in blocks]

    def keep(found: list[Lines]) -> list[Lines]:
        return [spooled.put(lines) for lines in found]

    work = Work(parts.reads, blocks, weights, parts.target.storage, keep=keep)
    total = sum(weights)
    found = run_in_workers(work, 1 if few else cores(), lambda: tell(work.done_weight, total))
    spooled.take(chain.from_iterable(found))


def build_all(parts: Parts, ranges: Ranges, weights: Sequence[int], tell: Callable[[int, int], None]) -> list[Built]:
    """Write the trees of ascending ranges; return those that hold something. What helpers wrote is durable.

    ``tell`` is called with how much of the weight is written.
    """
    work, total = Work(parts.builds, ranges, weights, parts.target.storage), sum(weights)
    found = run_in_workers(work, cores(), lambda: tell(work.done_weight, total))
    return [each for each in found if each is not None]
