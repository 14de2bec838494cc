"""The shares of a load: ranges of keys, each with all objects in it, new ones and those that are there.

A share is compared and built by one task or process. Where one ends and the next begins is a guess by some keys from
everywhere in the source and the tree, made before all is read. Each block of the source, and each part of the tree,
becomes sorted *runs* of objects, and a run is cut into *slices*, one per share. The slices wait in a table of the
engine, and the shares one after another are all objects in the order of their keys.
"""

from __future__ import annotations

import pickle
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa

from pipelines.engine.model import BINARY, INT, LONG, TEXT, Row
from pipelines.loading.model import SKIP, Entry, New, Tally, Target, objects_in, packed, tally_of, wrong_in
from pipelines.loading.refusals import SHOWN
from pipelines.source.lines import PACKED, Block, Place
from pipelines.trees.handback import HANDED_BACK
from trinitylake_core.storage import Storage
from trinitylake_core.tree.node import Node
from trinitylake_core.tree.nodefile import decode
from trinitylake_core.tree.nodestore import NodeStore
from trinitylake_core.tree.proof import Witness
from trinitylake_core.tree.search import Batch, scan

KEYS: Final = 10_000
"""How many keys a share holds, about: half a second of work. Joining its tree costs the driver a ``get`` per level."""
KEYS_MIN: Final = 1_000
"""Shares are smaller where that keeps more tasks busy, down to this."""
KEYS_MAX: Final = 100_000
_SHARES: Final = 256
"""With more shares than this they are larger, up to ``KEYS_MAX``: each has a slice of each run."""
BLOCK_BYTES_MIN: Final = 256 << 10
BLOCK_BYTES_MAX: Final = 8 << 20
PARTS: Final = 64
"""How many blocks, and parts of the tree, processes read, each taking the next one; tasks read one each."""
RUN: Final = 50_000
"""Objects of a run: a compressed file is one block, however many objects are in it."""
LOOK_BYTES: Final = 8 << 10
"""The bytes of each block that are read first, to guess the cuts."""
_EVERY: Final = 2
_EVERY_PACKED: Final = 64
"""One of so many lines is sampled, and of a compressed file, which is unpacked as a whole, one of more."""
_CODEC: Final = "zstd"
_HEADER: Final = 8
BLOCK: Final = pa.schema({"number": INT, "file": TEXT, "start": LONG, "stop": LONG, "size": LONG, "weight": LONG})
PART: Final = pa.schema({"number": INT, "start": INT, "stop": INT, "weight": LONG})
SAMPLE: Final = pa.schema({"key": TEXT, "objects": LONG})
SLICE: Final = pa.schema({"share": INT, "file": TEXT, "objects": LONG, "hash": TEXT, "data": BINARY})
"""A slice: of a file, or with ``hash``, the one of its tally, of the tree."""
WRONG: Final = pa.schema({"file": TEXT, "offset": LONG, "why": TEXT, "wrong": LONG})
FOUND: Final = pa.schema(
    {"share": INT, "what": TEXT, "key": TEXT, "file": TEXT, "offset": LONG, "objects": LONG, "hash": TEXT}
)
BUILT: Final = pa.schema(
    [
        ("first", TEXT), *HANDED_BACK, ("new", LONG), ("unchanged", LONG), ("unchanged_hash", TEXT),
        ("nodes_written", LONG), ("bytes_written", LONG),
    ]
)  # fmt: skip
TWICE: Final = "twice"
MISSING: Final = "missing"
THERE: Final = "there"
ALL_THERE: Final = "all there"
"""What a comparison finds; the last counts what is there, with the hash of its tally."""

Tuples: TypeAlias = list[tuple[Any, ...]]
Groups: TypeAlias = Iterable[Sequence[Row]]


def block_bytes(files: Sequence[tuple[str, int]], tasks: int) -> int:
    """Return the number of bytes of files, by name and size, that are read as one block."""
    return max(BLOCK_BYTES_MIN, min(BLOCK_BYTES_MAX, sum(size for _, size in files) // parts(tasks) + 1))


def parts(tasks: int) -> int:
    """Return into how many parts what is read is cut, if it is not too large for them."""
    return tasks if tasks > 1 else PARTS


def cuts_between(sample: Iterable[tuple[str, int]], tasks: int) -> list[str]:
    """Return the first key of each share but the first, from some keys and how many objects each stands for."""
    found = sorted(sample)
    keys = sum(weight for _, weight in found)
    most = max(KEYS, min(KEYS_MAX, keys // _SHARES))
    shares = max(keys // most, min(tasks, keys // KEYS_MIN), 1)
    cuts, before = list[str](), 0
    for key, weight in found:
        if before * shares >= keys * (len(cuts) + 1) and (not cuts or cuts[-1] < key):
            cuts.append(key)
        before += weight
    return cuts


# -- slices ----------------------------------------------------------------------------------------------


class NewSlice(NamedTuple):
    """New objects: sorted keys, definitions, where they are written; and the keys of namespaces that some need."""

    keys: Sequence[str]
    data: Sequence[bytes]
    offsets: Sequence[int]
    homes: Sequence[str]


def _bytes_of(value: Any) -> bytes:
    """Return a value as bytes, compressed: keys are padded, and most definitions are alike."""
    data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    compressed: bytes = pa.compress(data, codec=_CODEC, asbytes=True)
    return len(data).to_bytes(_HEADER, "little") + compressed


def _value_of(data: bytes) -> Any:
    size = int.from_bytes(data[:_HEADER], "little")
    plain = pa.decompress(memoryview(data)[_HEADER:], size, codec=_CODEC)
    return pickle.loads(plain)  # noqa: S301 - from a task or process of this load, by way of a table of its engine


def _places(keys: Sequence[str], cuts: Sequence[str]) -> Iterator[tuple[int, slice]]:
    """Yield the shares that sorted keys are in, with the part of the keys in each."""
    places = [0, *(bisect_left(keys, cut) for cut in cuts), len(keys)]
    for share, (start, stop) in enumerate(pairwise(places)):
        yield share, slice(start, stop)


def _new_slices(objects: Sequence[New], cuts: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    found = sorted(objects, key=attrgetter("key"))
    keys, homes = [each.key for each in found], sorted({each.home for each in found if each.home is not None})
    for (share, part), (_, needed) in zip(_places(keys, cuts), _places(homes, cuts), strict=True):
        some = found[part]
        if some or homes[needed]:
            data, offsets = [each.data for each in some], [each.place.offset for each in some]
            value = _bytes_of((keys[part], data, offsets, homes[needed]))
            yield share, objects[0].place.file, len(some), None, value


def _old_slices(keys: Sequence[str], paths: Sequence[str], cuts: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    for share, part in _places(keys, cuts):
        if some := keys[part]:
            tally = tally_of(some, paths[part])
            yield share, None, tally.count, str(tally.hash), _bytes_of((some, paths[part]))


class Share:
    """All slices of a share."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.new: list[tuple[str, NewSlice]] = []
        self.old: dict[str, str] = {}
        for row in rows:
            if row["hash"] is None:
                self.new.append((row["file"], NewSlice(*_value_of(row["data"]))))
            else:
                self.old.update(zip(*_value_of(row["data"]), strict=True))

    def places(self, key: str) -> list[Place]:
        """Return where a new object is written; several places if it is given more than once."""
        return sorted(
            Place(file, some.offsets[index])
            for file, some in self.new
            for index in range(bisect_left(some.keys, key), len(some.keys))
            if some.keys[index] == key
        )

    def findings(self) -> Iterator[tuple[str, str, Place, Tally]]:
        """Yield the first of each finding of a comparison, and the tally of all that is there and new, too."""
        keys = sorted(key for _, some in self.new for key in some.keys)
        new, nowhere = set(keys), Place("", 0)
        if len(new) < len(keys):
            twice = next(key for key, following in pairwise(keys) if key == following)
            yield from ((TWICE, twice, place, Tally()) for place in self.places(twice)[:2])
        homes = {home for _, some in self.new for home in some.homes}
        yield from ((MISSING, key, nowhere, Tally()) for key in sorted(homes - new - self.old.keys())[: SHOWN + 1])
        there = sorted(new & self.old.keys())
        yield from ((THERE, key, self.places(key)[0], Tally()) for key in there[:SHOWN])
        if there:
            yield ALL_THERE, "", nowhere, tally_of(there, [self.old[key] for key in there])

    def entries(self, existing: str) -> Iterator[Entry]:
        """Yield the entries of the new tree, sorted."""
        found = {key: Entry(key, path, None) for key, path in self.old.items()}
        for _, some in self.new:
            for key, data in zip(some.keys, some.data, strict=True):
                if existing != SKIP or key not in found:
                    found[key] = Entry(key, None, data)
        yield from map(found.__getitem__, sorted(found))


# -- in tasks and processes ------------------------------------------------------------------------------


def block_row(number: int, block: Block) -> Row:
    """Return a row of ``BLOCK``."""
    where = {"file": block.file, "start": block.begin, "stop": block.end, "size": block.size}
    return {"number": number, **where, "weight": block.end - block.begin}


def _block(row: Row) -> Block:
    return Block(row["file"], row["start"], row["stop"], row["size"])


def sampled(groups: Groups, source: Storage, *, target: Target) -> Iterator[Tuples]:
    """Yield some keys of each block, rows of ``SAMPLE``. One ``get`` each."""
    for (row,) in groups:
        block, looked = _block(row), _block(row)
        every, part = _EVERY_PACKED, 1.0
        if not block.file.endswith(PACKED):
            looked = Block(block.file, block.begin, min(block.begin + LOOK_BYTES, block.end), block.size)
            every, part = _EVERY, (looked.end - looked.begin) / (block.end - block.begin)
        yield [(each.key, round(every / part)) for each in objects_in(source, looked, target, every)]


def read(groups: Groups, source: Storage, *, target: Target, cuts: Sequence[str]) -> Iterator[Tuples]:
    """Yield the objects of each block as slices. Raises ``InvalidInput``."""
    for (row,) in groups:
        objects, slices = objects_in(source, _block(row), target), list[tuple[Any, ...]]()
        while some := list(islice(objects, RUN)):
            slices += _new_slices(some, cuts)
        yield slices


def wrong(rows: Iterable[Row], source: Storage, *, target: Target) -> Iterator[tuple[Any, ...]]:
    """Yield the first wrong lines of each block; the first of them counts them all."""
    for row in rows:
        count, found = wrong_in(source, _block(row), target)
        for number, each in enumerate(found):
            yield each.place.file, each.place.offset, each.why, 0 if number else count


@dataclass(frozen=True, slots=True)
class Base:
    """The root that a load stands on; as bytes, since a decoded one cannot be sent."""

    path: str
    data: bytes


def existing(groups: Groups, storage: Storage, *, target: Target, base: Base, cuts: Sequence[str]) -> Iterator[Tuples]:
    """Yield the entries below some children of the base as slices, proved. One ``get`` per node."""
    root = decode(base.data, base.path, target.order)
    for (row,) in groups:
        batches = part_of(NodeStore(storage, target.order, target.target_bytes), root, range(row["start"], row["stop"]))
        slices, keys, paths = list[tuple[Any, ...]](), list[str](), list[str]()
        for more, values in batches:
            keys += more
            paths += values
            if len(keys) >= RUN:
                slices += _old_slices(keys, paths, cuts)
                keys, paths = [], []
        yield [*slices, *_old_slices(keys, paths, cuts)]


def part_of(store: NodeStore, root: Node, children: range) -> Iterator[Batch]:
    """Yield what some children of a root, and the pivots behind them, mean, and prove it. A leaf has one such part."""
    witness = Witness(store)
    witness.begin(root, children)
    return witness.watched(scan(witness, root, children=children))


def compared(groups: Groups) -> Iterator[Tuples]:
    """Yield what a comparison of each share finds, rows of ``FOUND``."""
    for rows in groups:
        yield [
            (rows[0]["share"], what, key, place.file, place.offset, tally.count, str(tally.hash))
            for what, key, place, tally in Share(rows).findings()
        ]


def built(groups: Groups, storage: Storage, *, target: Target, existing: str) -> Iterator[Tuples]:
    """Write the definitions and the tree of each share; yield what a driver joins. One ``put`` per file."""
    for rows in groups:
        tree = packed(target, storage, Share(rows).entries(existing))
        yield [] if tree is None else [tuple(tree[name] for name in BUILT.names)]
