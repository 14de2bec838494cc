"""What a load does with objects: read them, write their definitions, pack sorted entries into a tree."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Final, NamedTuple

import mmh3

from pipelines.loading.refusals import WRONG_SHOWN, Wrong
from pipelines.source.entries import entry_of
from pipelines.source.lines import Block, Place, in_words, lines
from pipelines.trees.handback import subtree_result
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
from trinitylake_core.tree.leafbuild import columns_of
from trinitylake_core.tree.leafrun import Columns
from trinitylake_core.tree.nodestore import NodeStore, NodeWriter
from trinitylake_core.tree.proof import Proof
from trinitylake_core.tree.rewrite import Rewriter

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
    for place, line in islice(lines(source, block), 0, None, every):
        try:
            yield _object(line, place, target)
        except InvalidInput as error:
            raise InvalidInput(f"{in_words(source, place)}: {error}; nothing was loaded") from None


def _object(line: bytes, place: Place, target: Target) -> New:
    entry = entry_of("the entry", _value_of(line), _KINDS)
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


def wrong_in(source: Storage, block: Block, target: Target) -> tuple[int, list[Wrong]]:
    """Return the number of lines that begin in a block and are no objects, and the first of them."""
    count, found = 0, list[Wrong]()
    for place, line in lines(source, block):
        try:
            _object(line, place, target)
        except InvalidInput as error:
            count += 1
            found += [Wrong(place, str(error))] if count <= WRONG_SHOWN else []
    return count, found


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
            columns = columns_of(keys, values)
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
    tree = rewriter.build_columns(writing.batches(chain((first,), remaining)))
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
