"""What a load does with objects: read them, refuse some, write their definitions, pack sorted entries into a tree.

It knows two kinds of pieces. A *block* is what is read at once: some bytes of the source, or some children of the base.
A *share* is a range of keys with all objects in it, new ones and those that are there: one task or process compares and
builds it. Where one share ends and the next begins is a guess by some keys from everywhere in the source and the tree,
made before all is read. What a block holds is divided among the shares as it is read, and waits in a table of the
engine. The shares one after another are all objects in the order of their keys.
"""

from __future__ import annotations

import json
import pickle
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeAlias

import mmh3
import pyarrow as pa

from pipelines.engine.model import BINARY, INT, LONG, TEXT, MadeRow, Row
from pipelines.source.entries import WrittenChange, parse_change
from pipelines.source.lines import PACKED, Block, SizedFile, TextPlace, describe_place, describe_places, read_lines
from pipelines.trees.subtrees import HANDED_BACK, subtree_result
from trinitylake_core.definitions import encode
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


class WrongLine(NamedTuple):
    """A line that does not describe an object, and why."""

    place: TextPlace
    why: str


def refuse_wrong_lines(source: Storage, count: int, found: Sequence[WrongLine]) -> None:
    """Refuse lines that do not describe objects, all of them at once. Raises ``InvalidInput`` if there are several."""
    if count < 2:
        return
    first = sorted(found)[:WRONG_SHOWN]
    places = describe_places(source, [each.place for each in first])
    listed = ""
    for place, each in zip(places, first, strict=True):
        listed += f"\n  {place}: {each.why}"
    if count > len(first):
        listed += f"\n  ... and {count - len(first)} more"
    raise InvalidInput(f"{count} lines cannot be loaded; nothing was loaded:{listed}")


REFUSE: Final = "refuse"
SKIP: Final = "skip"
REPLACE: Final = "replace"
EXISTING: Final = (REFUSE, SKIP, REPLACE)
"""What becomes of an object that is there already and is loaded again."""
_KINDS: Final = {"create_namespace": NAMESPACE, "create_table": TABLE, "create_view": VIEW}
_TOGETHER: Final = 512
"""So many definitions are written in parallel."""
_JSON: Final = json.JSONDecoder()
_JSON_SPACE: Final = " \t\n\r"
_BUG: Final = "nothing was committed, please report this as a bug"
_CACHE_BYTES: Final = 1 << 20
"""Little: what is packed is not read again."""


class NewObject(NamedTuple):
    """An object to load: its key, the key of the namespace it needs, its definition, and where it is written."""

    key: str
    home: str | None
    data: bytes
    place: TextPlace


class TreeEntry(NamedTuple):
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
class LoadCounts:
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
    hash64, _ = mmh3.hash64(key + path, signed=False)
    return int(hash64) >> 1


def tally_of(keys: Iterable[str], paths: Iterable[str]) -> Tally:
    """Return the tally of some entries."""
    hashes = list(map(hash_of, keys, paths))
    return Tally(len(hashes), sum(hashes))


def sum_tallies(rows: Iterable[Row]) -> Tally:
    """Return the sum of the tallies in rows with ``objects`` and ``hash``."""
    total = Tally()
    for row in rows:
        total += Tally(row["objects"], int(row["hash"]))
    return total


def read_objects(
    source: Storage,
    block: Block,
    target: Target,
    every: int = 1,
) -> Iterator[NewObject]:
    """Yield the objects in the lines that begin in a block, or in the first of each ``every`` lines.

    Raises:
        InvalidInput: a line does not describe an object that can be created; the message names file and line.
    """
    for place, line in islice(read_lines(source, block), 0, None, every):
        try:
            yield _parse_object(line, place, target)
        except InvalidInput as error:
            raise InvalidInput(f"{describe_place(source, place)}: {error}; nothing was loaded") from None


def _parse_object(line: bytes, place: TextPlace, target: Target) -> NewObject:
    change = parse_change("the entry", _parse_json(line), _KINDS)
    kind = _KINDS.get(change.action)
    if kind is None:
        raise InvalidInput(f"{change.action} cannot be loaded; {', '.join(_KINDS)} can, `apply` does the others")
    names = change.names()
    refuse_new_name(kind, names[-1])
    codec = target.codec
    key = codec.encode(ObjectName(kind, *names))
    if kind == NAMESPACE:
        home = None
    else:
        home = codec.namespace(names[0])
    return NewObject(key, home, _encode_definition(change, target), place)


def _encode_definition(change: WrittenChange, target: Target) -> bytes:
    """Return the definition file of a new object. Raises ``InvalidInput``."""
    definition = change.make_definition()
    if target.cleaned:
        named = named_in_area(target.cleaned, definition)
        if named:
            raise InvalidInput(f"{named}: {UNPROVED}")
    return encode(definition)


def _parse_json(line: bytes) -> Any:
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


class DefinitionWriter:
    """Writes the definitions of sorted entries, and counts what goes into the new tree: what is new, what is kept."""

    def __init__(self, target: Target, storage: Storage, proof: Proof) -> None:
        self._target = target
        self._storage = storage
        self._proof = proof
        self._last_key = ""
        self.new = 0
        self.unchanged = Tally()

    def write_batches(self, entries: Iterable[TreeEntry]) -> Iterator[Columns]:
        """Yield keys and paths of sorted entries, their definitions written. One ``put`` per new definition.

        Raises:
            Corrupt: the entries are not sorted.
        """
        remaining = iter(entries)
        while some := list(islice(remaining, _TOGETHER)):
            columns = self._write_batch(some)
            self._proof.fed_columns(columns)
            yield columns

    def _write_batch(self, entries: Sequence[TreeEntry]) -> Columns:
        keys: list[str] = []
        paths: list[str] = []
        fresh: list[str] = []
        files: list[tuple[str, bytes]] = []
        for key, kept_path, data in entries:
            if key <= self._last_key:
                raise Corrupt(f"a load lost the order of its keys: {_BUG}")
            self._last_key = key
            path = kept_path or ""
            if data is not None:
                path = definition_path(*self._target.codec.split(key))
                fresh.append(key)
                files.append((path, data))
            keys.append(key)
            paths.append(path)
        self._storage.write_many(files)
        self.new += len(files)
        # What is kept is counted from what goes into the tree, so that an entry that got lost on the way is missing.
        written = [path for path, _ in files]
        if keys != fresh or paths != written:  # else all of them are new, and nothing is kept
            self.unchanged += tally_of(keys, paths) - tally_of(fresh, written)
        return Columns.of(keys, paths)


def pack_tree(target: Target, storage: Storage, entries: Iterable[TreeEntry]) -> dict[str, Any] | None:
    """Write sorted entries as a tree, not yet durably; return its root and what was written, ``None`` without entries.

    Raises:
        Corrupt: the tree does not hold what was put into it.
    """
    remaining = iter(entries)
    first = next(remaining, None)
    if first is None:
        return None
    store = NodeStore(storage, target.order, target.target_bytes, _CACHE_BYTES)
    writer = NodeWriter(store)
    before = storage.counts.snapshot()
    rewriter = Rewriter(writer, target.stamp, prove=True)
    definitions = DefinitionWriter(target, storage, rewriter.proof or Proof())
    tree = rewriter.build(definitions.write_batches(chain((first,), remaining)))
    built = subtree_result(rewriter, writer, tree)
    if not rewriter.is_proved():
        raise Corrupt(f"the proof of a load failed: {_BUG}")
    moved = storage.counts - before
    return {
        "first": first.key,
        **built,
        "new": definitions.new,
        "unchanged": definitions.unchanged.count,
        "unchanged_hash": str(definitions.unchanged.hash),
        "nodes_written": len(writer.written),
        "bytes_written": moved.bytes_written,
    }


def prove_complete(counts: LoadCounts, unchanged: Tally, trees: Sequence[ShareTree]) -> None:
    """Prove that what was built is what was to be loaded and what was to be kept, no more and no less.

    Raises:
        Corrupt: it is not; nothing was committed.
    """
    wanted = counts.added + counts.replaced
    new = 0
    found = Tally()
    for tree in trees:
        new += tree["new"]
        found += Tally(tree["unchanged"], int(tree["unchanged_hash"]))
    if new != wanted or found != unchanged:
        raise Corrupt(
            f"a load lost objects: {new} of {wanted} new ones and {found.count} of {unchanged.count} old ones are in "
            f"the new tree, or they are not the same; {_BUG}"
        )


ShareTree = Mapping[str, Any]
"""The tree of a share: its ``first`` key, its root, and what was written for it."""


KEYS: Final = 10_000
"""How many keys a share holds, about: half a second of work. Joining its tree costs the driver a ``get`` per level."""
KEYS_MIN: Final = 1_000
"""Shares are smaller where that keeps more tasks busy, down to this."""
KEYS_MAX: Final = 100_000
_SHARES: Final = 256
"""With more shares than this they are larger, up to ``KEYS_MAX``: each has rows of each block."""
BLOCK_BYTES_MIN: Final = 256 << 10
BLOCK_BYTES_MAX: Final = 8 << 20
BLOCKS: Final = 64
"""How many blocks, of the source and of the tree, processes read, each taking the next one; tasks read one each."""
DIVIDED_AT_ONCE: Final = 50_000
"""So many objects are in memory before they are divided: a compressed file is one block, however many are in it."""
LOOK_BYTES: Final = 8 << 10
"""The bytes of each block that are read first, to guess the cuts."""
_EVERY: Final = 2
_EVERY_PACKED: Final = 64
"""One of so many lines is sampled, and of a compressed file, which is unpacked as a whole, one of more."""
_CODEC: Final = "zstd"
_HEADER: Final = 8
SOURCE_BLOCK: Final = pa.schema(
    {"number": INT, "file": TEXT, "start": LONG, "stop": LONG, "size": LONG, "weight": LONG}
)
TREE_BLOCK: Final = pa.schema({"number": INT, "start": INT, "stop": INT, "weight": LONG})
SAMPLE: Final = pa.schema({"key": TEXT, "objects": LONG})
SHARE_ROW: Final = pa.schema({"share": INT, "file": TEXT, "objects": LONG, "hash": TEXT, "data": BINARY})
"""What a block has for a share: a block of a file, or with ``hash``, the one of its tally, of the tree."""
WRONG: Final = pa.schema({"file": TEXT, "offset": LONG, "why": TEXT, "wrong": LONG})
FOUND: Final = pa.schema(
    {"share": INT, "what": TEXT, "key": TEXT, "file": TEXT, "offset": LONG, "objects": LONG, "hash": TEXT}
)
BUILT: Final = pa.schema(
    [
        ("first", TEXT),
        *HANDED_BACK,
        ("new", LONG),
        ("unchanged", LONG),
        ("unchanged_hash", TEXT),
        ("nodes_written", LONG),
        ("bytes_written", LONG),
    ]
)
TWICE: Final = "twice"
MISSING: Final = "missing"
THERE: Final = "there"
ALL_THERE: Final = "all there"
"""What a comparison finds; the last counts what is there, with the hash of its tally."""
_NOWHERE: Final = TextPlace("", 0)

Groups: TypeAlias = Iterable[Sequence[Row]]


def block_bytes(files: Sequence[SizedFile], tasks: int) -> int:
    """Return the number of bytes of files, by name and size, that are read as one block."""
    total = sum(size for _, size in files)
    wanted = total // block_count(tasks) + 1
    return max(BLOCK_BYTES_MIN, min(BLOCK_BYTES_MAX, wanted))


def block_count(tasks: int) -> int:
    """Return how many blocks there are of what is read, if it is not too large for them."""
    if tasks > 1:
        return tasks
    return BLOCKS


def guess_cuts(sample: Iterable[tuple[str, int]], tasks: int) -> list[str]:
    """Return the first key of each share but the first, from some keys and how many objects each stands for."""
    found = sorted(sample)
    total = sum(weight for _, weight in found)
    largest = max(KEYS, min(KEYS_MAX, total // _SHARES))
    to_keep_tasks_busy = min(tasks, total // KEYS_MIN)
    shares = max(total // largest, to_keep_tasks_busy, 1)
    cuts: list[str] = []
    before = 0
    for key, weight in found:
        is_due = before * shares >= total * (len(cuts) + 1)
        is_new = not cuts or cuts[-1] < key
        if is_due and is_new:
            cuts.append(key)
        before += weight
    return cuts


# -- dividing blocks among shares ------------------------------------------------------------------------


class NewObjects(NamedTuple):
    """New objects: sorted keys, definitions, where they are written; and the keys of namespaces that some need."""

    keys: Sequence[str]
    data: Sequence[bytes]
    offsets: Sequence[int]
    homes: Sequence[str]


def _pack_columns(columns: Sequence[Sequence[Any]]) -> bytes:
    """Return columns as bytes, compressed: keys are padded, and most definitions are alike."""
    data = pickle.dumps(tuple(columns), pickle.HIGHEST_PROTOCOL)
    compressed: bytes = pa.compress(data, codec=_CODEC, asbytes=True)
    return len(data).to_bytes(_HEADER, "little") + compressed


def _unpack_columns(data: bytes) -> Any:
    size = int.from_bytes(data[:_HEADER], "little")
    plain = pa.decompress(memoryview(data)[_HEADER:], size, codec=_CODEC)
    return pickle.loads(plain)  # noqa: S301 - from a task or process of this load, by way of a table of its engine


def _divide_keys(keys: Sequence[str], cuts: Sequence[str]) -> Iterator[slice]:
    """Yield, for one share after the other, where in sorted keys those are that belong to it."""
    ends = [0]
    for cut in cuts:
        ends.append(bisect_left(keys, cut))
    ends.append(len(keys))
    for start, stop in pairwise(ends):
        yield slice(start, stop)


def _divide_objects(objects: Sequence[NewObject], cuts: Sequence[str]) -> Iterator[MadeRow]:
    """Yield rows of ``SHARE_ROW`` of new objects, which are in one file."""
    file = objects[0].place.file
    found = sorted(objects, key=attrgetter("key"))
    keys = [each.key for each in found]
    homes = sorted({each.home for each in found if each.home is not None})
    in_shares = zip(_divide_keys(keys, cuts), _divide_keys(homes, cuts), strict=True)
    for share, (mine, needed) in enumerate(in_shares):
        some = found[mine]
        if not some and not homes[needed]:
            continue
        data = [each.data for each in some]
        offsets = [each.place.offset for each in some]
        new_objects = NewObjects(
            keys[mine],
            data,
            offsets,
            homes[needed],
        )
        packed = _pack_columns(new_objects)
        yield share, file, len(some), None, packed


def _divide_entries(keys: Sequence[str], paths: Sequence[str], cuts: Sequence[str]) -> Iterator[MadeRow]:
    """Yield rows of ``SHARE_ROW`` of entries that are there, sorted."""
    for share, mine in enumerate(_divide_keys(keys, cuts)):
        if mine.start < mine.stop:
            tally = tally_of(keys[mine], paths[mine])
            packed = _pack_columns((keys[mine], paths[mine]))
            yield share, None, tally.count, str(tally.hash), packed


class Share:
    """A share: everything that the blocks have for it."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.new: list[tuple[str, NewObjects]] = []
        """New objects, by the file that they are in."""
        self.old: dict[str, str] = {}
        """Paths of definitions that are there, by their keys."""
        for row in rows:
            columns = _unpack_columns(row["data"])
            if row["hash"] is None:
                self.new.append((row["file"], NewObjects(*columns)))
            else:
                keys, paths = columns
                self.old.update(zip(keys, paths, strict=True))

    def places(self, key: str) -> list[TextPlace]:
        """Return where a new object is written; several places if it is given more than once."""
        found = []
        for file, some in self.new:
            start = bisect_left(some.keys, key)
            stop = bisect_right(some.keys, key)
            found += [TextPlace(file, offset) for offset in some.offsets[start:stop]]
        return sorted(found)

    def findings(self) -> Iterator[tuple[str, str, TextPlace, Tally]]:
        """Yield the first of each finding of a comparison, and the tally of all that is there and new, too."""
        keys = sorted(key for _, some in self.new for key in some.keys)
        for key, following in pairwise(keys):
            if key == following:
                for place in self.places(key)[:2]:
                    yield TWICE, key, place, Tally()
                break  # one sentence about one object is enough
        new = set(keys)
        needed: set[str] = set()
        for _, some in self.new:
            needed.update(some.homes)
        missing = sorted(needed - new - self.old.keys())
        for key in missing[: SHOWN + 1]:
            yield MISSING, key, _NOWHERE, Tally()
        there = sorted(new & self.old.keys())
        for key in there[:SHOWN]:
            yield THERE, key, self.places(key)[0], Tally()
        if there:
            paths = [self.old[key] for key in there]
            yield ALL_THERE, "", _NOWHERE, tally_of(there, paths)

    def entries(self, existing: str) -> Iterator[TreeEntry]:
        """Yield the entries of the new tree, sorted."""
        found = {key: TreeEntry(key, path, None) for key, path in self.old.items()}
        for _, some in self.new:
            for key, data in zip(some.keys, some.data, strict=True):
                if existing == SKIP and key in found:
                    continue
                found[key] = TreeEntry(key, None, data)
        for key in sorted(found):
            yield found[key]


# -- in tasks and processes ------------------------------------------------------------------------------


def block_row(number: int, block: Block) -> Row:
    """Return a row of ``SOURCE_BLOCK``."""
    return {
        "number": number,
        "file": block.file,
        "start": block.begin,
        "stop": block.end,
        "size": block.size,
        "weight": block.end - block.begin,
    }


def _block_of(row: Row) -> Block:
    return Block(row["file"], row["start"], row["stop"], row["size"])


def sample_keys(groups: Groups, source: Storage, *, target: Target) -> Iterator[list[MadeRow]]:
    """Yield some keys of each block, rows of ``SAMPLE``. One ``get`` each."""
    for rows in groups:
        sample: list[MadeRow] = []
        for row in rows:
            sample += _sample_block(_block_of(row), source, target)
        yield sample


def _sample_block(block: Block, source: Storage, target: Target) -> Iterator[MadeRow]:
    if block.file.endswith(PACKED):  # it has to be unpacked as a whole
        some = read_objects(source, block, target, _EVERY_PACKED)
        stands_for = _EVERY_PACKED
    else:
        end = min(block.begin + LOOK_BYTES, block.end)
        looked_at = Block(block.file, block.begin, end, block.size)
        some = read_objects(source, looked_at, target, _EVERY)
        stands_for = round(_EVERY * (block.end - block.begin) / (end - block.begin))
    for each in some:
        yield each.key, stands_for


def read_source_blocks(
    groups: Groups,
    source: Storage,
    *,
    target: Target,
    cuts: Sequence[str],
) -> Iterator[list[MadeRow]]:
    """Yield the objects of each block, divided among the shares: rows of ``SHARE_ROW``. Raises ``InvalidInput``."""
    for rows in groups:
        divided: list[MadeRow] = []
        for row in rows:
            objects = read_objects(source, _block_of(row), target)
            while some := list(islice(objects, DIVIDED_AT_ONCE)):
                divided += _divide_objects(some, cuts)
        yield divided


def list_wrong_lines(rows: Iterable[Row], source: Storage, *, target: Target) -> Iterator[MadeRow]:
    """Yield the first wrong lines of each block, rows of ``WRONG``; the first of them counts them all."""
    for row in rows:
        count = 0
        found: list[WrongLine] = []
        for place, line in read_lines(source, _block_of(row)):
            try:
                _parse_object(line, place, target)
            except InvalidInput as error:
                count += 1
                if count <= WRONG_SHOWN:
                    found.append(WrongLine(place, str(error)))
        for each in found:
            yield each.place.file, each.place.offset, each.why, count
            count = 0


@dataclass(frozen=True, slots=True)
class LoadBase:
    """The root that a load stands on; as bytes, since a decoded one cannot be sent."""

    path: str
    data: bytes


def read_tree_blocks(
    groups: Groups,
    storage: Storage,
    *,
    target: Target,
    base: LoadBase,
    cuts: Sequence[str],
) -> Iterator[list[MadeRow]]:
    """Yield the entries below some children of the base, proved, divided among the shares. One ``get`` per node."""
    root = decode(base.data, base.path)
    for rows in groups:
        store = NodeStore(storage, target.order, target.target_bytes)
        divided: list[MadeRow] = []
        for row in rows:
            for keys, paths in _scan_block(store, root, range(row["start"], row["stop"])):
                divided += _divide_entries(keys, paths, cuts)
        yield divided


def _scan_block(store: NodeStore, root: Node, children: range) -> Iterator[tuple[list[str], list[str]]]:
    """Yield the entries below some children of a root, sorted, so many at once as are divided together."""
    keys: list[str] = []
    paths: list[str] = []
    for more_keys, more_paths in scan_children(store, root, children):
        keys += more_keys
        paths += more_paths
        if len(keys) >= DIVIDED_AT_ONCE:
            yield keys, paths
            keys = []
            paths = []
    yield keys, paths


def scan_children(store: NodeStore, root: Node, children: range) -> Iterator[Batch]:
    """Yield what some children of a root, and the pivots behind them, mean, and prove it. A leaf is one child."""
    witness = Witness(store)
    witness.begin(root, children)
    return witness.watch_scan(scan(witness, root, children=children))


def compare_shares(groups: Groups) -> Iterator[list[MadeRow]]:
    """Yield what a comparison of each share finds, rows of ``FOUND``."""
    for rows in groups:
        number = rows[0]["share"]
        found = []
        for what, key, place, tally in Share(rows).findings():
            found.append(
                (
                    number,
                    what,
                    key,
                    place.file,
                    place.offset,
                    tally.count,
                    str(tally.hash),
                )
            )
        yield found


def find_given(groups: Groups, *, keys: frozenset[str]) -> Iterator[list[MadeRow]]:
    """Yield those of some keys that the source gives, rows of ``FOUND``."""
    for rows in groups:
        number = rows[0]["share"]
        given = {key for _, some in Share(rows).new for key in some.keys}
        yield [(number, THERE, key, "", 0, 1, "0") for key in sorted(given & keys)]


def build_shares(
    groups: Groups,
    storage: Storage,
    *,
    target: Target,
    existing: str,
) -> Iterator[list[MadeRow]]:
    """Write the definitions and the tree of each share; yield what a driver joins. One ``put`` per file."""
    for rows in groups:
        tree = pack_tree(target, storage, Share(rows).entries(existing))
        if tree is None:
            yield []
        else:
            yield [tuple(tree[name] for name in BUILT.names)]
