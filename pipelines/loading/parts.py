"""The parts of a load in this process and its helpers: blocks of lines to read, ranges of keys to build trees of.

What a part becomes depends on nothing but the part: the same files and trees, however many processes share them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import merge
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeVar

from pipelines.loading.model import Built, Row, Target, objects_in, packed
from pipelines.processes import Answer, Helper, Work, cores, shared
from pipelines.source.lines import Block
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

T = TypeVar("T")


class Lines(NamedTuple):
    """The objects in one block: keys, definitions, and where each is written; and the namespaces that they need."""

    file: str
    keys: Sequence[str]
    data: Sequence[bytes]
    offsets: Sequence[int]
    homes: frozenset[str]


class Range(NamedTuple):
    """The keys from ``low`` to before ``stop``, and the new objects among them as sorted keys and definitions."""

    low: str
    stop: str | None
    new: Sequence[tuple[str, bytes]]


@dataclass(frozen=True)
class Parts:
    """What a part is read from and written to. Pickled, it travels to a helper."""

    source: Storage
    target: Target
    path: str
    """Path and bytes of the root that the load stands on."""
    data: bytes

    @classmethod
    def of(cls, source: Storage, target: Target, base: Root) -> Parts:
        """Return the parts of a load on top of a version."""
        return cls(source, target, base.path, bytes(base.data))

    @cached_property
    def base(self) -> Node:
        """The root that the load stands on."""
        return decode(self.data, self.path, self.target.order)

    def store(self) -> NodeStore:
        """Return a new store of the lakehouse's nodes."""
        return NodeStore(self.target.storage, self.target.order, self.target.target_bytes)

    def read(self, block: Block) -> Lines:
        """Return the objects in the lines that begin in a block. Raises ``InvalidInput``."""
        keys, data, offsets, homes = list[str](), list[bytes](), list[int](), set[str]()
        for each in objects_in(self.source, block, self.target.codec):
            keys.append(each.key)
            data.append(each.data)
            offsets.append(each.place.offset)
            if each.home is not None:
                homes.add(each.home)
        return Lines(block.file, keys, data, offsets, frozenset(homes))

    def build(self, part: Range) -> Built | None:
        """Write the definitions and the tree of a range. One ``get`` per node there, one ``put`` per file."""
        known = {key for key, _ in part.new}
        new = (Row(key, None, data) for key, data in part.new)
        old = (Row(key, path, None) for key, path in self.old(part.low, part.stop) if key not in known)
        return packed(self.target, merge(new, old, key=lambda row: row.key))

    def old(self, low: str, stop: str | None) -> Iterator[tuple[str, str]]:
        """Yield the entries of the base from ``low`` to before ``stop``."""
        within = KeyRange(low, EVERYTHING.hi if stop is None else stop)
        for keys, values in scan(self.store(), self.base, within):
            yield from (row for row in zip(keys, values, strict=True) if row[0] != stop)


def answerer(parts: Parts) -> Answer:
    """Return what a helper does with the parts of a load."""

    def answer(messages: Sequence[Block | Range] | None) -> Any:
        if messages is None:
            return parts.target.storage.barrier()
        return [parts.read(each) if isinstance(each, Block) else parts.build(each) for each in messages]

    return answer


class _Sharing(Work[T]):
    """Parts of one kind, in the order in which they are asked for."""

    def __init__(self, parts: Parts, pieces: Sequence[Any], weights: Sequence[int], work: Callable[[Any], T]) -> None:
        super().__init__(weights)
        self._parts = parts
        self._pieces = pieces
        self._work = work

    def here(self) -> Iterator[tuple[int, T]]:
        """Do parts in this process."""
        while (index := self.next()) is not None:
            yield index, self._work(self._pieces[index])

    def message(self, index: int) -> Any:
        """Return a part, which is sent as it is."""
        return self._pieces[index]

    def helper(self) -> Helper:
        """Start a process that does parts."""
        return Helper(answerer, self._parts)


def read_all(parts: Parts, blocks: Sequence[Block], tell: Callable[[], None]) -> list[Lines]:
    """Return the objects of each block. Raises ``InvalidInput`` if a line is not an object."""
    weights = [block.end - block.begin for block in blocks]
    return shared(_Sharing(parts, blocks, weights, parts.read), cores(), tell)


def build_all(parts: Parts, ranges: Sequence[Range], weights: Sequence[int], tell: Callable[[], None]) -> list[Built]:
    """Write the trees of ascending ranges; return those that hold something. What helpers wrote is durable."""
    found = shared(_Sharing(parts, ranges, weights, parts.build), cores(), tell)
    return [each for each in found if each is not None]


def ranges_of(new: Sequence[tuple[str, bytes]], marks: Sequence[str]) -> list[Range]:
    """Return ranges of at most so many keys that together hold all, new and old.

    Args:
        new: sorted keys with their definitions.
        marks: some keys that are there, ascending, about :data:`KEYS` apart.
    """
    keys = [key for key, _ in new]
    cuts = sorted({*keys[KEYS::KEYS], *marks})
    places = [0, *(bisect_left(keys, cut) for cut in cuts), len(keys)]
    bounds = zip(["", *cuts], [*cuts, None], pairwise(places), strict=True)
    return [Range(low, stop, new[first:end]) for low, stop, (first, end) in bounds]
