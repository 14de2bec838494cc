"""The tables of the data source: their columns, the filters that spare nodes, and their rows, part by part.

No Spark here.

A part is a run of children of the root, a run of versions, or a span of keys. The driver pins the version, so that all
tasks read one and the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa

from pipelines.diff import OpenTree, TreeRoot
from pipelines.engine.model import INT, LONG, TEXT
from trinitylake_core import Lakehouse
from trinitylake_core.definitions import decode_lakehouse
from trinitylake_core.diff import Span, changes, diff_nodes, differing_subtrees
from trinitylake_core.errors import CorruptNode, InvalidInput, InvalidName
from trinitylake_core.keys import EVERYTHING, KINDS, NAMESPACE, KeyCodec, KeyRange, ObjectName
from trinitylake_core.snapshots import snapshot_infos
from trinitylake_core.storage import Storage, open_storage
from trinitylake_core.tree.node import Node
from trinitylake_core.tree.search import overlapping, scan
from trinitylake_core.versions import Versions, version_info

_TIME: Final = pa.timestamp("us", "UTC")
_OBJECT: Final = {"kind": TEXT, "namespace": TEXT, "name": TEXT}
TABLES: Final = {
    "objects": pa.schema({**_OBJECT, "path": TEXT}),
    "versions": pa.schema(
        {
            "version": LONG,
            "created_at": _TIME,
            "operation": TEXT,
            "txn": TEXT,
            "reason": TEXT,
            "summary": TEXT,
            "changes": LONG,
            "objects": LONG,
            "namespaces": LONG,
            "tables": LONG,
            "views": LONG,
            "messages": LONG,
            "height": INT,
            "root_bytes": LONG,
            "path": TEXT,
            "rollback_from_root": TEXT,
        }
    ),
    "nodes": pa.schema(
        {
            "path": TEXT,
            "height": INT,
            "keys": LONG,
            "messages": LONG,
            "children": LONG,
            "subtree_keys": LONG,
            "subtree_messages": LONG,
            "bytes": LONG,
        }
    ),
    "messages": pa.schema(
        {**_OBJECT, "action": TEXT, "path": TEXT, "txn": TEXT, "node": TEXT, "height": INT, "position": LONG}
    ),
    "files": pa.schema({**_OBJECT, "path": TEXT}),
    "changes": pa.schema({"change": TEXT, **_OBJECT, "old_path": TEXT, "new_path": TEXT}),
    "snapshots": pa.schema(
        {
            "name": TEXT,
            "version": LONG,
            "kind": TEXT,
            "created_at": _TIME,
            "expires_at": _TIME,
            "root_path": TEXT,
            "target_uri": TEXT,
        }
    ),
}
"""Columns by table."""
PRUNED: Final = frozenset({"objects", "messages", "files", "changes"})
"""Tables of which a filter on kind, namespace and name spares nodes."""
_SQL: Final = {TEXT: "string", LONG: "bigint", INT: "int", _TIME: "timestamp"}


def ddl(table: str) -> str:
    """Return the columns of a table in the words of Spark SQL."""
    return ", ".join(f"{each.name} {_SQL[each.type]}" for each in TABLES[table])


# -- which objects are wanted: filters on kind, namespace and name, as ranges of keys ---------------


_COLUMNS: Final = {"kind": "kinds", "namespace": "namespaces", "name": "names"}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What each of three columns must be one of; ``None``: anything."""

    kinds: frozenset[str] | None = None
    namespaces: frozenset[str] | None = None
    names: frozenset[str] | None = None

    def narrow(self, column: str, values: Iterable[object]) -> Wanted:
        """Return this with one filter more; a filter on another column changes nothing."""
        field = _COLUMNS.get(column)
        if field is None:
            return self
        found = frozenset(value for value in values if isinstance(value, str))
        before: frozenset[str] | None = getattr(self, field)
        if before is not None:
            found &= before
        return replace(self, **{field: found})

    def ranges(self, codec: KeyCodec) -> list[KeyRange]:
        """Return ranges of keys that hold everything that is wanted, ascending, and as little else as they can."""
        if self.kinds is None and self.namespaces is None:
            return [EVERYTHING]
        found: list[KeyRange] = []
        for kind in KINDS:
            if self.kinds is None or kind in self.kinds:
                found += self._ranges_of_kind(codec, kind)
        return found

    def _ranges_of_kind(self, codec: KeyCodec, kind: str) -> list[KeyRange]:
        if self.namespaces is None:
            return [codec.range(kind)]
        found: list[KeyRange] = []
        for namespace in self.namespaces:
            with suppress(InvalidName):  # nothing has such a name
                if kind == NAMESPACE:
                    found.append(_single(codec.namespace(namespace)))
                elif self.names is None:
                    found.append(codec.range(kind, namespace))
                else:
                    found += self._ranges_of_names(codec, kind, namespace)
        return sorted(found, key=lambda each: each.lo)

    def _ranges_of_names(self, codec: KeyCodec, kind: str, namespace: str) -> list[KeyRange]:
        found: list[KeyRange] = []
        for name in self.names or ():
            with suppress(InvalidName):
                key = codec.encode(ObjectName(kind, namespace, name))
                found.append(_single(key))
        return found

    def holds(self, kind: str, namespace: str, name: str | None) -> bool:
        """Whether an object is wanted."""
        if self.kinds is not None and kind not in self.kinds:
            return False
        if self.namespaces is not None and namespace not in self.namespaces:
            return False
        return self.names is None or name in self.names


def _single(key: str) -> KeyRange:
    return KeyRange(key, key)


Row = tuple[Any, ...]
PARTS: Final = 64
_VERSIONS_PER_PART: Final = 64


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
class ScanRequest:
    """A read of one table, pinned to a version.

    Attributes:
        table: one of ``TABLES``.
        root: root URI.
        options: storage options.
        new: the version that is read; of ``changes`` the later one.
        old: of ``changes`` the earlier one.
        definition_path: of the lakehouse.
    """

    table: str
    root: str
    options: dict[str, Any]
    new: TreeRoot
    old: TreeRoot | None
    definition_path: str


def pin(
    lake: Lakehouse,
    table: str,
    wanted: Wanted,
    before: Lakehouse | None,
    parts: int,
) -> tuple[ScanRequest, list[Part]]:
    """Return a read of a table at the version of a handle, and the parts to read it in.

    Reads the tops of two trees for ``changes``, nothing else.

    Raises:
        InvalidInput: no such table; the lakehouse is of an older generation, or two versions cannot be compared.
    """
    if table not in TABLES:
        raise InvalidInput(f"there is no table {table!r}; there are {', '.join(TABLES)}")
    if lake.read_only:
        raise InvalidInput("a lakehouse of an older generation cannot be read by Spark: upgrade it first")
    if table == "versions":
        made = _cut_versions(lake)
    elif table == "changes":
        made = _cut_changes(lake, wanted, before, parts)
    elif table == "snapshots":
        made = [Part()]
    elif table == "nodes":
        made = _cut_children(lake, Wanted(), parts)
    else:
        made = _cut_children(lake, wanted, parts)
    root, options = lake.storage.spec()
    request = ScanRequest(
        table=table,
        root=root,
        options=dict(options),
        new=TreeRoot.of(lake),
        old=None if before is None else TreeRoot.of(before),
        definition_path=lake.root_node.definition_path,
    )
    return request, made


def _cut_versions(lake: Lakehouse) -> list[Part]:
    end = lake.version + 1
    parts = []
    for begin in range(lake.root_node.oldest_version, end, _VERSIONS_PER_PART):
        parts.append(Part(begin, min(end, begin + _VERSIONS_PER_PART)))
    return parts


def _cut_changes(
    lake: Lakehouse,
    wanted: Wanted,
    before: Lakehouse | None,
    parts: int,
) -> list[Part]:
    """Return spans of keys: those that are wanted, or where two versions differ."""
    if before is None or before.codec != lake.codec or before.read_only:
        raise InvalidInput("there is no earlier version to compare with, or its keys are encoded differently")
    if wanted.kinds is None and wanted.namespaces is None:
        old = before.root_node.node
        new = lake.root_node.node
        subtrees = differing_subtrees(
            before.nodes,
            old,
            lake.nodes,
            new,
            parts,
        )
        spans = subtrees.spans(parts)
    else:
        spans = []
        for each in wanted.ranges(lake.codec):
            spans.append(Span(each.lo, f"{each.hi}\0"))
    return [Part(span=span) for span in spans]


def _cut_children(lake: Lakehouse, wanted: Wanted, parts: int) -> list[Part]:
    """Return runs of those children of the root that hold anything that is wanted."""
    children = _children_in(lake.root_node.node, wanted.ranges(lake.codec))
    size = max(1, -(-len(children) // parts))
    found: list[Part] = []
    for start in range(0, len(children), size):
        run = children[start : start + size]
        is_first = start == 0
        part = Part(run[0], run[-1] + 1, first=is_first)
        found.append(part)
    return found


def _children_in(node: Node, ranges: Sequence[KeyRange]) -> list[int]:
    """Return which children of a node may hold keys of some ranges, in their order."""
    found: set[int] = set()
    for each in ranges:
        found.update(overlapping(node, each))
    return sorted(found)


# -- in a task -----------------------------------------------------------------------------------------


def rows(
    request: ScanRequest,
    part: Part,
    wanted: Wanted,
    storage: Storage | None = None,
) -> Iterator[Row]:
    """Yield the rows of one part of a table. A filter spares nodes; it need not leave out every other row."""
    if storage is None:
        storage = open_storage(request.root, request.options)
    reading = _Reading(request, part, wanted, storage)
    read: Callable[[], Iterator[Row]] = getattr(reading, request.table)
    return read()


@dataclass(frozen=True, slots=True)
class _Reading:
    """Reads a part of one table: each of :data:`TABLES` is a method of its name."""

    request: ScanRequest
    part: Part
    wanted: Wanted
    storage: Storage

    def objects(self) -> Iterator[Row]:
        return self._read_objects(self.request.new.open(self.storage))

    def _read_objects(self, opened: OpenTree) -> Iterator[Row]:
        codec = self.request.new.codec
        children = range(self.part.begin, self.part.end)
        for within in self.wanted.ranges(codec):
            for keys, values in scan(opened.store, opened.root, within, children=children):
                for key, path in zip(keys, values, strict=True):
                    name = codec.split(key)
                    if self.wanted.holds(*name):
                        yield *name, path

    def nodes(self) -> Iterator[Row]:
        opened = self.request.new.open(self.storage)
        for path, node in self._walk(opened, Wanted()):
            yield (
                path,
                node.height,
                len(node.keys),
                len(node.buffer),
                len(node.children),
                node.subtree_keys,
                node.subtree_messages,
                node.nbytes,
            )

    def messages(self) -> Iterator[Row]:
        opened = self.request.new.open(self.storage)
        for node_path, node in self._walk(opened, self.wanted):
            for position, (key, path, txn) in enumerate(node.buffer):
                name = self.request.new.codec.split(key)
                if self.wanted.holds(*name):
                    if path is None:
                        action = "delete"
                    else:
                        action = "set"
                    yield *name, action, path, txn, node_path, node.height, position

    def files(self) -> Iterator[Row]:
        opened = self.request.new.open(self.storage)
        kinds = self.wanted.kinds
        if kinds is None or kinds - set(KINDS):  # files that are no object's are wanted, too
            if self.part.first:
                yield "lakehouse_def", None, None, self.request.definition_path
            for path, node in self._walk(opened, Wanted()):
                if node is opened.root:
                    kind = "root"
                else:
                    kind = "node"
                yield kind, None, None, path
        yield from self._read_objects(opened)

    def _walk(self, opened: OpenTree, wanted: Wanted) -> Iterator[tuple[str, Node]]:
        """Yield the nodes below this part of the root's children that meet what is wanted; the first part: the root."""
        ranges = wanted.ranges(self.request.new.codec)
        if self.part.first:
            yield self.request.new.path, opened.root
        mine = range(self.part.begin, self.part.end)
        level = [path for child, path in _paths_below(opened.root, ranges) if child in mine]
        while level:
            below: list[str] = []
            for path, node in zip(level, opened.store.read_many(level), strict=True):
                yield path, node
                for _, path_below in _paths_below(node, ranges):
                    below.append(path_below)
            level = below

    def changes(self) -> Iterator[Row]:
        if self.request.old is None:
            raise InvalidInput("there is no earlier version to compare with")  # a request of ours always has one
        old = self.request.old.open(self.storage)
        new = self.request.new.open(self.storage)
        found = diff_nodes(
            old.store,
            old.root,
            new.store,
            new.root,
            self.part.span,
        )
        for each in changes(found, self.request.new.codec):
            yield _cells("changes", each)

    def versions(self) -> Iterator[Row]:
        numbers = range(self.part.begin, self.part.end)
        for root in Versions(self.storage).read_roots(numbers):
            if root is None:
                continue  # it has expired since
            if root.unreadable is not None:
                raise CorruptNode(root.unreadable, path=root.path)
            info = version_info(root)
            yield _cells("versions", info, summary=json.dumps(info.summary, sort_keys=True))

    def snapshots(self) -> Iterator[Row]:
        path = self.request.definition_path
        definition = decode_lakehouse(self.storage.read(path), path)
        for each in snapshot_infos(definition):
            yield _cells("snapshots", each)


def _cells(table: str, value: Any, **others: Any) -> Row:
    """Return the row of a table whose columns are called as the attributes of a value, but for ``others``."""
    return tuple(others[name] if name in others else getattr(value, name) for name in TABLES[table].names)


def _paths_below(node: Node, ranges: Sequence[KeyRange]) -> list[tuple[int, str]]:
    """Return those children of a node that may hold keys of some ranges, by number and path."""
    if node.is_leaf:
        return []
    found = []
    for child in _children_in(node, ranges):
        found.append((child, node.children[child]))
    return found
