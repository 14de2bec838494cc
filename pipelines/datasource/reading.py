"""The rows of each table, part by part: what a task reads. No Spark here.

A part is a run of children of the root, a run of versions, or a span of keys. The driver pins the version, so that all
tasks read one and the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pipelines.datasource.columns import TABLES, Wanted
from pipelines.diff import spans_of
from trinitylake_core import Lakehouse
from trinitylake_core.definitions import decode_lakehouse
from trinitylake_core.diff import Span, changes, diff_nodes, differing_subtrees
from trinitylake_core.errors import InvalidInput
from trinitylake_core.keys import KINDS, KeyCodec, KeyRange
from trinitylake_core.snapshots import snapshot_infos
from trinitylake_core.storage import Storage, open_storage
from trinitylake_core.tree.node import Node
from trinitylake_core.tree.nodefile import decode
from trinitylake_core.tree.nodestore import NodeStore
from trinitylake_core.tree.search import overlapping, scan
from trinitylake_core.versions import Versions, version_info

Row = tuple[Any, ...]
PARTS: Final = 64
_VERSIONS_PER_PART: Final = 64


@dataclass(frozen=True, slots=True)
class Tree:
    """What a task needs to open the root of a version."""

    path: str
    order: int
    target_bytes: int
    codec: KeyCodec

    @classmethod
    def of(cls, lake: Lakehouse) -> Tree:
        """Return that of the version of a handle."""
        definition = lake.definition
        return cls(lake.root_node.path, definition.order, definition.node_file_max_size_bytes, lake.codec)


@dataclass(frozen=True, slots=True)
class Part:
    """What one task reads: children ``begin`` to before ``end`` of the root, or versions, or a span of keys.

    The ``first`` one also reads what there is once: the root itself.
    """

    begin: int = 0
    end: int = 0
    first: bool = True
    span: Span = field(default_factory=Span)


@dataclass(frozen=True, slots=True)
class Request:
    """A read of one table, pinned to a version.

    Attributes:
        table: one of ``columns.TABLES``.
        root: root URI.
        options: storage options.
        new: the version that is read; of ``changes`` the later one.
        old: of ``changes`` the earlier one.
        definition_path: of the lakehouse.
    """

    table: str
    root: str
    options: dict[str, Any]
    new: Tree
    old: Tree | None
    definition_path: str


def pinned(
    lake: Lakehouse, table: str, wanted: Wanted, before: Lakehouse | None = None, parts: int = PARTS
) -> tuple[Request, list[Part]]:
    """Return a read of a table at the version of a handle, and the parts to read it in.

    Reads the tops of two trees for ``changes``, nothing else.

    Raises:
        InvalidInput: no such table; the lakehouse is of an older generation, or two versions cannot be compared.
    """
    if table not in TABLES:
        raise InvalidInput(f"there is no table {table!r}; there are {', '.join(TABLES)}")
    if lake.read_only:
        raise InvalidInput("a lakehouse of an older generation cannot be read by Spark: upgrade it first")
    made = {
        "versions": lambda: _of_versions(lake),
        "changes": lambda: _of_changes(_earlier(before, lake), lake, wanted, parts),
        "snapshots": lambda: [Part()],
    }.get(table, lambda: _of_children(lake, wanted if table != "nodes" else Wanted(), parts))()
    root, options = lake.storage.spec()
    old = None if before is None else Tree.of(before)
    return Request(table, root, dict(options), Tree.of(lake), old, lake.root_node.definition_path), made


def _earlier(before: Lakehouse | None, lake: Lakehouse) -> Lakehouse:
    if before is None or before.codec != lake.codec or before.read_only:
        raise InvalidInput("there is no earlier version to compare with, or its keys are encoded differently")
    return before


def _of_versions(lake: Lakehouse) -> list[Part]:
    first, last = lake.root_node.oldest_version, lake.version + 1
    return [Part(begin, min(last, begin + _VERSIONS_PER_PART)) for begin in range(first, last, _VERSIONS_PER_PART)]


def _of_changes(before: Lakehouse, lake: Lakehouse, wanted: Wanted, parts: int) -> list[Part]:
    ranges = wanted.ranges(lake.codec)
    if wanted.kinds is not None or wanted.namespaces is not None:
        return [Part(span=Span(each.lo, f"{each.hi}\0")) for each in ranges]
    found = differing_subtrees(before.store, before.root_node.node, lake.store, lake.root_node.node, parts)
    return [Part(span=span) for span in spans_of(found, parts)]


def _of_children(lake: Lakehouse, wanted: Wanted, parts: int) -> list[Part]:
    """Return runs of those children of the root that hold anything that is wanted."""
    node, ranges = lake.root_node.node, wanted.ranges(lake.codec)
    children = sorted({index for each in ranges for index in overlapping(node, each)})
    size = max(1, -(-len(children) // parts))
    cut = [children[start : start + size] for start in range(0, len(children), size)]
    return [Part(each[0], each[-1] + 1, number == 0) for number, each in enumerate(cut)]


# -- in a task -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Opened:
    """A version as a task opened it. One ``get``."""

    tree: Tree
    store: NodeStore
    root: Node

    @classmethod
    def of(cls, storage: Storage, tree: Tree) -> Opened:
        """Open a version."""
        root = decode(storage.read(tree.path), tree.path, tree.order)
        return cls(tree, NodeStore(storage, tree.order, tree.target_bytes), root)


def rows(request: Request, part: Part, wanted: Wanted, storage: Storage | None = None) -> Iterator[Row]:
    """Yield the rows of one part of a table. A filter spares nodes; it need not leave out every other row."""
    opened = open_storage(request.root, request.options) if storage is None else storage
    return _READERS[request.table](_Reading(request, part, wanted, opened))


@dataclass(frozen=True, slots=True)
class _Reading:
    request: Request
    part: Part
    wanted: Wanted
    storage: Storage

    def objects(self) -> Iterator[Row]:
        return self._objects(Opened.of(self.storage, self.request.new))

    def _objects(self, opened: Opened) -> Iterator[Row]:
        split, children = opened.tree.codec.split, range(self.part.begin, self.part.end)
        for within in self.wanted.ranges(opened.tree.codec):
            for keys, values in scan(opened.store, opened.root, within, children=children):
                for key, path in zip(keys, values, strict=True):
                    name = split(key)
                    if self.wanted.holds(*name):
                        yield *name, path

    def nodes(self) -> Iterator[Row]:
        for path, node in self._walk(Opened.of(self.storage, self.request.new), Wanted()):
            yield (
                path, node.height, len(node.keys), len(node.buffer), len(node.children), node.subtree_keys,
                node.subtree_messages, node.nbytes,
            )  # fmt: skip

    def messages(self) -> Iterator[Row]:
        opened = Opened.of(self.storage, self.request.new)
        for node_path, node in self._walk(opened, self.wanted):
            for position, (key, path, txn) in enumerate(node.buffer):
                name = opened.tree.codec.split(key)
                if self.wanted.holds(*name):
                    yield *name, "delete" if path is None else "set", path, txn, node_path, node.height, position

    def files(self) -> Iterator[Row]:
        opened, kinds = Opened.of(self.storage, self.request.new), self.wanted.kinds
        if kinds is None or kinds - set(KINDS):
            if self.part.first:
                yield "lakehouse_def", None, None, self.request.definition_path
            for path, node in self._walk(opened, Wanted()):
                yield "root" if node is opened.root else "node", None, None, path
        yield from self._objects(opened)

    def _walk(self, opened: Opened, wanted: Wanted) -> Iterator[tuple[str, Node]]:
        """Yield the nodes below this part of the root's children that meet what is wanted; the first part: the root."""
        ranges = wanted.ranges(opened.tree.codec)
        if self.part.first:
            yield opened.tree.path, opened.root
        level = _below(opened.root, ranges, range(self.part.begin, self.part.end))
        while level:
            below: list[str] = []
            for path, node in zip(level, opened.store.read_many(level), strict=True):
                yield path, node
                below += _below(node, ranges)
            level = below

    def changes(self) -> Iterator[Row]:
        new, old = (Opened.of(self.storage, each) for each in (self.request.new, self.request.old) if each is not None)
        found = diff_nodes(old.store, old.root, new.store, new.root, self.part.span)
        for each in changes(found, new.tree.codec):
            yield each.change, each.kind, each.namespace, each.name, each.old_path, each.new_path

    def versions(self) -> Iterator[Row]:
        for root in Versions(self.storage).roots(range(self.part.begin, self.part.end)):
            if root is not None:  # None: it has expired since
                info = version_info(root)
                yield (
                    info.version, info.created_at, info.operation, info.txn, info.reason,
                    json.dumps(info.summary, sort_keys=True), info.changes, info.objects, info.namespaces, info.tables,
                    info.views, info.messages, info.height, info.root_bytes, info.path, info.rollback_from_root,
                )  # fmt: skip

    def snapshots(self) -> Iterator[Row]:
        path = self.request.definition_path
        for each in snapshot_infos(decode_lakehouse(self.storage.read(path), path)):
            yield (
                each.name, each.version, each.kind, each.created_at, each.expires_at, each.root_path, each.target_uri,
            )  # fmt: skip


def _below(node: Node, ranges: Sequence[KeyRange], children: range | None = None) -> list[str]:
    if node.is_leaf:
        return []
    found = {index for each in ranges for index in overlapping(node, each)}
    return [node.children[index] for index in sorted(found) if children is None or index in children]


_READERS: Final[dict[str, Callable[[_Reading], Iterator[Row]]]] = {
    "objects": _Reading.objects,
    "versions": _Reading.versions,
    "nodes": _Reading.nodes,
    "messages": _Reading.messages,
    "files": _Reading.files,
    "changes": _Reading.changes,
    "snapshots": _Reading.snapshots,
}
