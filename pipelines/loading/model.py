"""What both engines of a load do: read objects, write their definitions, pack sorted entries into a tree."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Final, NamedTuple, Protocol

from pipelines.source.entries import entry_of
from pipelines.source.lines import Block, Place, in_words, lines
from pipelines.trees.subtrees import handed_back
from trinitylake_core.definitions import (
    NamespaceDef,
    TableDef,
    ViewDef,
    encode,
    namespace_def,
    table_def,
    view_def,
)
from trinitylake_core.errors import AlreadyExists, Corrupt, InvalidInput, ObjectNotFound
from trinitylake_core.keys import NAMESPACE, TABLE, VIEW, KeyCodec, ObjectName
from trinitylake_core.locations import definition_path
from trinitylake_core.nodestore import NodeStore, NodeWriter
from trinitylake_core.rewrite import Rewriter
from trinitylake_core.storage import Storage
from trinitylake_core.tree import Batch

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
SHOWN: Final = 5
_CACHE_BYTES: Final = 1 << 20
"""Little: what is packed is not read again."""


class New(NamedTuple):
    """An object to load: its key, the key of the namespace it needs, its definition, and where it is written."""

    key: str
    home: str | None
    data: bytes
    place: Place


class Row(NamedTuple):
    """An entry of the new tree: with the path of a definition that is there, or the definition to write."""

    key: str
    path: str | None
    data: bytes | None


@dataclass(frozen=True, slots=True)
class Target:
    """Where a load writes to: what a task needs to know of the lakehouse."""

    storage: Storage
    codec: KeyCodec
    order: int
    target_bytes: int
    stamp: int


@dataclass(frozen=True, slots=True)
class Counts:
    """Objects that a load adds, replaces, and leaves as they are."""

    added: int = 0
    replaced: int = 0
    skipped: int = 0


def objects_in(source: Storage, block: Block, codec: KeyCodec) -> Iterator[New]:
    """Yield the objects in the lines that begin in a block.

    Raises:
        InvalidInput: a line is no object that can be created; the message names file and line.
    """
    for place, line in lines(source, block):
        try:
            yield _object(line, place, codec)
        except InvalidInput as error:
            raise InvalidInput(f"{in_words(source, place)}: {error}; nothing was loaded") from None


def _object(line: bytes, place: Place, codec: KeyCodec) -> New:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise InvalidInput(f"this is no JSON: {error}") from None
    entry = entry_of("the entry", value)
    kind = _KINDS.get(entry.action)
    if kind is None:
        raise InvalidInput(f"{entry.action} cannot be loaded; {', '.join(_KINDS)} can, `apply` does the others")
    namespace, *rest = entry.names()
    name = ObjectName(kind, namespace, *rest)
    data = encode(_MAKERS[kind](**entry.definition()))
    return New(codec.encode(name), codec.namespace(namespace) if rest else None, data, place)


def written(target: Target, rows: Iterable[Row]) -> Iterator[Batch]:
    """Write the definitions of sorted rows and yield their keys and paths. One ``put`` a definition.

    Raises:
        Corrupt: the rows are not sorted.
    """
    last, remaining = "", iter(rows)
    while some := list(islice(remaining, _TOGETHER)):
        keys, values, files = [], [], []
        for key, path, data in some:
            if key <= last:
                raise Corrupt("a load lost the order of its keys: nothing was committed; please report this as a bug")
            last = key
            if data is not None:
                path = definition_path(*target.codec.split(key))  # noqa: PLW2901 - the row has none yet
                files.append((path, data))
            keys.append(key)
            values.append(path or "")
        target.storage.write_many(files)
        yield keys, values


def packed(target: Target, rows: Iterable[Row]) -> dict[str, Any] | None:
    """Write sorted rows as a tree, not yet durably; return its root and what was written, or ``None`` without rows."""
    remaining = iter(rows)
    first = next(remaining, None)
    if first is None:
        return None
    store = NodeStore(target.storage, target.order, target.target_bytes, _CACHE_BYTES)
    writer = NodeWriter(store)
    before = target.storage.counts.snapshot()
    rewriter = Rewriter(writer, target.stamp)
    tree = rewriter.build(written(target, chain((first,), remaining)))
    built = {"first": first.key, **handed_back(rewriter, writer, tree)}
    moved = target.storage.counts - before
    return built | {"nodes_written": len(writer.written), "bytes_written": moved.bytes_written}


# -- what is refused -------------------------------------------------------------------------------------


def refuse_twice(source: Storage, codec: KeyCodec, key: str, places: Sequence[Place]) -> None:
    """Refuse an object that is given more than once. Raises ``InvalidInput``."""
    where = " and ".join(in_words(source, each) for each in places)
    raise InvalidInput(f"{_named(codec, key)} is there twice: {where}; nothing was loaded")


def refuse_there(source: Storage, codec: KeyCodec, found: Sequence[tuple[str, Place]], count: int) -> None:
    """Refuse objects that exist already. Raises ``AlreadyExists``."""
    named = ", ".join(f"{_named(codec, key)} ({in_words(source, place)})" for key, place in found[:SHOWN])
    raise AlreadyExists(
        f"{count} objects exist already: {named}{', ...' if count > SHOWN else ''}; `--existing skip` leaves such "
        "objects as they are, `--existing replace` gives them the new definition"
    )


def refuse_homeless(codec: KeyCodec, homes: Sequence[str]) -> None:
    """Refuse objects whose namespace nobody created. Raises ``ObjectNotFound``."""
    named = ", ".join(repr(codec.split(key)[1]) for key in homes[:SHOWN])
    raise ObjectNotFound(
        f"there is no namespace {named}{', ...' if len(homes) > SHOWN else ''}; load it, too: "
        '{"create_namespace": {"namespace": ...}}'
    )


def _named(codec: KeyCodec, key: str) -> str:
    name = codec.decode(key)
    return f"{name.kind} {str(name)!r}"


Built = Mapping[str, Any]
"""A tree over a range of keys: ``first`` key, its root, and what was written for it."""


class Load(Protocol):
    """The state of one load, wherever it is kept."""

    def read(self, files: Sequence[tuple[str, int]]) -> int:
        """Read all objects in files, given by name and size; return how many there are. Raises ``InvalidInput``."""

    def compare(self, existing: str) -> Counts:
        """Compare with what is there, and decide what to load. One ``get`` per node.

        Raises:
            AlreadyExists, ObjectNotFound: nothing was written.
        """

    def build(self) -> Sequence[Built]:
        """Write the definitions and trees over ascending ranges of keys. One ``put`` per file."""

    def release(self) -> None:
        """Let go of what was read."""
