"""What a load does with objects: read them, refuse some, write their definitions, pack sorted entries into a tree.

Its *shares* are ranges of keys, each with all objects in it, new ones and those that are there. A share is compared and
built by one task or process. Where one ends and the next begins is a guess by some keys from everywhere in the source
and the tree, made before all is read. Each block of the source, and each part of the tree, becomes sorted *runs* of
objects, and a run is cut into *slices*, one per share. The slices wait in a table of the engine, and the shares one
after another are all objects in the order of their keys.
"""

from __future__ import annotations

import json
import pickle
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeAlias

import mmh3
import pyarrow as pa

from pipelines.engine.model import BINARY, INT, LONG, TEXT, Row
from pipelines.source.entries import parse_change
from pipelines.source.lines import PACKED, Block, Place, describe_place, describe_places, read_lines
from pipelines.trees.subtrees import HANDED_BACK, subtree_result
from trinitylake_core.definitions import (
    NamespaceDef,
    TableDef,
    ViewDef,
    encode,
    namespace_def,
    table_def,
    view_def,
)
from trinitylake_core.errors import Corrupt, InvalidInput
from trinitylake_core.keys import NAMESPACE, TABLE, VIEW, KeyCodec, ObjectName, refuse_new_name
from trinitylake_core.locations import definition_path
from trinitylake_core.storage import Storage
from trinitylake_core.tables import UNPROVED, named_in_area
from trinitylake_core.tree.leafrun import Columns
from trinitylake_core.tree.node import Node
from trinitylake_core.tree.nodefile import decode
from trinitylake_core.tree.nodestore import NodeStore, NodeWriter
from trinitylake_core.tree.proof import Proof, Witness
from trinitylake_core.tree.rewrite import Rewriter
from trinitylake_core.tree.search import Batch, scan

SHOWN: Final = 5
WRONG_SHOWN: Final = 20
"""The number of wrong lines that a message lists; it counts the others."""


class Wrong(NamedTuple):
    """A line that does not describe an object, and why."""

    place: Place
    why: str


def refuse_wrong(source: Storage, count: int, found: Sequence[Wrong]) -> None:
    """Refuse lines that do not describe objects, all of them at once. Raises ``InvalidInput`` if there are several."""
    if count < 2:
        return
    first = sorted(found)[:WRONG_SHOWN]
    places = describe_places(source, [each.place for each in first])
    listed = "".join(f"\n  {place}: {each.why}" for place, each in zip(places, first, strict=True))
    more = f"\n  ... and {count - len(first)} more" if count > len(first) else ""
    raise InvalidInput(f"{count} lines cannot be loaded; nothing was loaded:{listed}{more}")


REFUSE: Final = "refuse"
SKIP: Final = "skip"
REPLACE: Final = "replace"
EXISTING: Final = (REFUSE, SKIP, REPLACE)
"""What becomes of an object that is there already and is loaded again."""
_KINDS: Final = {"create_namespace": NAMESPACE, "create_table": TABLE, "create_view": VIEW}
_MAKERS: Final[Mapping[str, Callable[..., NamespaceDef | TableDef | ViewDef]]] = {
    NAMESPACE: namespace_def,
    TABLE: table_def,
    VIEW: view_def,
}
_TOGETHER: Final = 512
_JSON: Final = json.JSONDecoder()
_JSON_SPACE: Final = " \t\n\r"
_BUG: Final = "nothing was committed, please report this as a bug"
_CACHE_BYTES: Final = 1 << 20
"""Little: what is packed is not read again."""


class New(NamedTuple):
    """An object to load: its key, the key of the namespace it needs, its definition, and where it is written."""

    key: str
    home: str | None
    data: bytes
    place: Place


class Entry(NamedTuple):
    """An entry of the new tree: with the path of a definition that is there, or the definition to write."""

    key: str
    path: str | None
    data: bytes | None


@dataclass(frozen=True, slots=True)
class Target:
    """What a task of a load needs to know of the lakehouse.

    Attributes:
        codec: encodes keys.
        order: of its tree.
        target_bytes: of a node.
        stamp: when the nodes are created, in epoch milliseconds.
        cleaned: its root URI if its tables were ever cleaned, else empty.
    """

    codec: KeyCodec
    order: int
    target_bytes: int
    stamp: int
    cleaned: str


@dataclass(frozen=True, slots=True)
class Counts:
    """Objects that a load adds, replaces, and leaves as they are."""

    added: int = 0
    replaced: int = 0
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class Tally:
    """The totals of a set of entries, which do not depend on their order: their number, and the sum of their hashes.

    What a load must keep is one when the old tree is read, less what is replaced, and one when the new one is built.
    """

    count: int = 0
    hash: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.count + other.count, self.hash + other.hash)

    def __sub__(self, other: Tally) -> Tally:
        return Tally(self.count - other.count, self.hash - other.hash)


def hash_of(key: str, path: str) -> int:
    """Return the hash of one entry in a tally: 63 bits, so that Spark can sum them."""
    return int(mmh3.hash64(key + path, signed=False)[0]) >> 1


def tally_of(keys: Iterable[str], paths: Iterable[str]) -> Tally:
    """Return the tally of some entries."""
    hashes = list(map(hash_of, keys, paths))
    return Tally(len(hashes), sum(hashes))


def objects_in(source: Storage, block: Block, target: Target, every: int = 1) -> Iterator[New]:
    """Yield the objects in the lines that begin in a block, or in the first of each ``every`` lines.

    Raises:
        InvalidInput: a line does not describe an object that can be created; the message names file and line.
    """
    for place, line in islice(read_lines(source, block), 0, None, every):
        try:
            yield _object(line, place, target)
        except InvalidInput as error:
            raise InvalidInput(f"{describe_place(source, place)}: {error}; nothing was loaded") from None


def _object(line: bytes, place: Place, target: Target) -> New:
    entry = parse_change("the entry", _value_of(line), _KINDS)
    kind = _KINDS.get(entry.action)
    if kind is None:
        raise InvalidInput(f"{entry.action} cannot be loaded; {', '.join(_KINDS)} can, `apply` does the others")
    namespace, *rest = entry.names()
    name = ObjectName(kind, namespace, *rest)
    refuse_new_name(kind, entry.names()[-1])
    codec, names_files = target.codec, bool(target.cleaned and entry.arguments.get("format_properties"))
    data = None if names_files else entry.plain_table()
    if data is None:
        definition = _MAKERS[kind](**entry.definition())
        if target.cleaned and (named := named_in_area(target.cleaned, definition)):
            raise InvalidInput(f"{named}: {UNPROVED}")
        data = encode(definition)
    return New(codec.encode(name), codec.namespace(namespace) if rest else None, data, place)


def _value_of(line: bytes) -> Any:
    """Return the result of ``json.loads`` of a line; for most lines without its detection of the encoding."""
    try:
        if line.startswith(b'{"'):  # in no encoding but UTF-8, of those that JSON may be in
            text = line.decode(errors="surrogatepass")
            value, end = _JSON.raw_decode(text)
            if end == len(text) or not text[end:].strip(_JSON_SPACE):
                return value
        return json.loads(line)
    except ValueError as error:
        raise InvalidInput(f"not valid JSON: {error}") from None
    except RecursionError:
        raise InvalidInput("nested too deeply") from None


class Writing:
    """Writes the definitions of sorted rows, and counts what goes into the new tree: what is new, and what is kept."""

    def __init__(self, target: Target, storage: Storage, proof: Proof) -> None:
        self._target = target
        self._storage = storage
        self._proof = proof
        self.new = 0
        self.unchanged = Tally()

    def batches(self, rows: Iterable[Entry]) -> Iterator[Columns]:
        """Yield keys and paths of sorted rows, their definitions written. One ``put`` per new definition.

        Raises:
            Corrupt: the rows are not sorted.
        """
        last, remaining = "", iter(rows)
        while some := list(islice(remaining, _TOGETHER)):
            keys, values, files = [], [], []
            for key, path, data in some:
                if key <= last:
                    raise Corrupt(f"a load lost the order of its keys: {_BUG}")
                last = key
                if data is not None:
                    path = definition_path(*self._target.codec.split(key))  # noqa: PLW2901 - the row has none yet
                    files.append((key, path, data))
                keys.append(key)
                values.append(path or "")
            self._storage.write_many([(path, data) for _, path, data in files])
            self.new += len(files)
            fresh = tally_of((key for key, _, _ in files), (path for _, path, _ in files))
            self.unchanged += tally_of(keys, values) - fresh
            columns = Columns.of(keys, values)
            self._proof.fed_columns(columns)
            yield columns


def packed(target: Target, storage: Storage, rows: Iterable[Entry]) -> dict[str, Any] | None:
    """Write sorted rows as a tree, not yet durably; return its root and what was written, or ``None`` without rows.

    Raises:
        Corrupt: the tree does not hold what was put into it.
    """
    remaining = iter(rows)
    first = next(remaining, None)
    if first is None:
        return None
    store = NodeStore(storage, target.order, target.target_bytes, _CACHE_BYTES)
    writer = NodeWriter(store)
    before = storage.counts.snapshot()
    rewriter = Rewriter(writer, target.stamp, prove=True)
    writing = Writing(target, storage, rewriter.proof or Proof())
    tree = rewriter.build(writing.batches(chain((first,), remaining)))
    built = {"first": first.key, **subtree_result(rewriter, writer, tree)}
    if not rewriter.proved():
        raise Corrupt(f"the proof of a load failed: {_BUG}")
    moved = storage.counts - before
    counted = {"new": writing.new, "unchanged": writing.unchanged.count, "unchanged_hash": str(writing.unchanged.hash)}
    return built | counted | {"nodes_written": len(writer.written), "bytes_written": moved.bytes_written}


def prove_complete(counts: Counts, unchanged: Tally, built: Sequence[Built]) -> None:
    """Prove that what was built is what was to be loaded and what was to be kept, no more and no less.

    Raises:
        Corrupt: it is not; nothing was committed.
    """
    new = sum(each["new"] for each in built)
    found = Tally(sum(each["unchanged"] for each in built), sum(int(each["unchanged_hash"]) for each in built))
    if new != counts.added + counts.replaced or found != unchanged:
        wanted = counts.added + counts.replaced
        raise Corrupt(
            f"a load lost objects: {new} of {wanted} new ones and {found.count} of {unchanged.count} old ones are in "
            f"the new tree, or they are not the same; {_BUG}"
        )


Built = Mapping[str, Any]
"""A tree over a range of keys: ``first`` key, its root, and what was written for it."""


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


def _slice_bytes(value: Any) -> bytes:
    """Return a value as bytes, compressed: keys are padded, and most definitions are alike."""
    data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    compressed: bytes = pa.compress(data, codec=_CODEC, asbytes=True)
    return len(data).to_bytes(_HEADER, "little") + compressed


def _slice_of(data: bytes) -> Any:
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
            value = _slice_bytes((keys[part], data, offsets, homes[needed]))
            yield share, objects[0].place.file, len(some), None, value


def _old_slices(keys: Sequence[str], paths: Sequence[str], cuts: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    for share, part in _places(keys, cuts):
        if some := keys[part]:
            tally = tally_of(some, paths[part])
            yield share, None, tally.count, str(tally.hash), _slice_bytes((some, paths[part]))


class Share:
    """All slices of a share."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.new: list[tuple[str, NewSlice]] = []
        self.old: dict[str, str] = {}
        for row in rows:
            if row["hash"] is None:
                self.new.append((row["file"], NewSlice(*_slice_of(row["data"]))))
            else:
                self.old.update(zip(*_slice_of(row["data"]), strict=True))

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
        count, found = 0, list[Wrong]()
        for place, line in read_lines(source, _block(row)):
            try:
                _object(line, place, target)
            except InvalidInput as error:
                count += 1
                found += [Wrong(place, str(error))] if count <= WRONG_SHOWN else []
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
