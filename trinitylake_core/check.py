"""Integrity: yields every broken invariant of one version, by its number in ``docs/format.md``.

Reads the files themselves, past every cache. A file that cannot be read is reported, what hangs below
it is skipped, and the walk goes on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trinitylake_core import spec
from trinitylake_core.catalog import codec_of
from trinitylake_core.definitions import LakehouseDef
from trinitylake_core.errors import (
    Corrupt,
    CorruptDefinition,
    CorruptNode,
    FileMissing,
    InvalidDefinition,
    InvalidLocation,
    InvalidName,
)
from trinitylake_core.keys import KINDS, NAMESPACE, KeyCodec
from trinitylake_core.locations import validate_path
from trinitylake_core.storage import Storage
from trinitylake_core.tree import nodefile, search
from trinitylake_core.tree.node import Messages, Node, merged
from trinitylake_core.versions import ObjectCounts, Root, Versions
from trinitylake_core.violations import Violation, check_definitions, check_node, violation

__all__ = [
    "TreeCheck",
    "Violation",
    "check_definitions",
    "check_lakehouse",
    "check_node",
    "check_root",
    "check_snapshots",
    "check_tree",
    "check_version",
    "miscounted",
    "violation",
]


def check_version(versions: Versions, version: int, *, definitions: bool = False) -> Iterator[Violation]:
    """Yield every broken invariant of a version. One ``get`` per node, with ``definitions`` one per object.

    Raises:
        VersionNotFound, VersionExpired: there is no such version.
        StorageError: the storage failed; nothing is said about the version.
    """
    try:
        root = versions.root(version)
    except CorruptDefinition as error:  # a root of an older generation, which its definition explains
        yield violation("I13", error.path or versions.path(version), str(error))
        return
    except Corrupt as error:
        yield violation(error.invariant, error.path or versions.path(version), str(error))
        return
    try:
        definition = versions.definition_file(root)
    except (Corrupt, InvalidDefinition) as error:
        yield violation("I13", getattr(error, "path", None) or root.path, str(error))
        return
    try:
        yield from check_root(versions, root)
    except Corrupt as error:
        yield violation("I14", root.path, f"the history cannot be followed: {error}")
    yield from TreeCheck(versions.storage, definition, sdk=versions.sdk, definitions=definitions).run(root)


def check_tree(versions: Versions, root: Root, *, definitions: bool = False) -> Iterator[Violation]:
    """Yield every broken invariant of the tree below a root that was read. One ``get`` per node."""
    definition = versions.definition(root)
    yield from TreeCheck(versions.storage, definition, sdk=versions.sdk, definitions=definitions).run(root)


def check_root(versions: Versions, root: Root) -> Iterator[Violation]:
    """Yield what is wrong with a root's system rows and its link to the version before. One ``get``."""
    if root.node.canonical and spec.VERSION not in root.system:
        yield violation("I13", root.path, "the root does not say its version")
    if root.version == 0 or root.version <= root.oldest_version:
        beyond = f"oldest_version is {root.oldest_version}, beyond the version itself"
        yield from [violation("I14", root.path, beyond)] if root.oldest_version > root.version else []
        return
    try:
        before = versions.try_rows(root.version - 1)
    except Corrupt as error:
        if root.rollback_from_root != versions.path(root.version - 1):  # left behind; it is a finding of its own
            yield violation("I14", root.path, f"the previous root cannot be read: {error}")
        return
    if before is None:
        if versions.boundary() < root.version:
            yield violation("I14", root.path, f"the previous root, version {root.version - 1}, is missing")
        return
    if root.rollback_from_root == before.path and spec.PREVIOUS_TXN not in root.system:
        return  # made over a root that could not be read; what stands there is another finding, and no measure
    if root.previous_root != before.path:
        yield violation("I14", root.path, f"previous_root is {root.previous_root!r} instead of {before.path!r}")
    if not root.follows(before):
        txn, made = root.system.get(spec.PREVIOUS_TXN), before.txn
        yield violation("I14", root.path, f"previous_txn is {txn!r}, and transaction {made!r} made the version before")
    if root.created_at_millis <= before.created_at_millis:
        yield violation("I14", root.path, f"was not created after version {before.version}, by created_at_millis")
    if root.oldest_version < before.oldest_version:
        yield violation("I14", root.path, f"oldest_version fell from {before.oldest_version} to {root.oldest_version}")


def miscounted(root: Root, found: ObjectCounts) -> Iterator[Violation]:
    """Yield what a root says of its objects and is not so (I9); what it does not say is not wrong. No request."""
    stored = root.counts
    for kind, says, holds in zip(KINDS, stored, found, strict=True) if stored is not None else ():
        if says != holds:
            yield violation("I9", root.path, f"{kind}s says {says}, the version holds {holds}")


def check_snapshots(versions: Versions, definition: LakehouseDef) -> Iterator[Violation]:
    """Yield snapshots whose root cannot be read. One ``get`` per snapshot."""
    for name, snapshot in sorted(definition.snapshots.items()):
        if snapshot.target_uri:
            continue
        path = snapshot.root_node_file_path
        try:
            nodefile.decode(versions.storage.read(validate_path(path)), path, definition.order)
        except (FileMissing, Corrupt, InvalidLocation) as error:
            yield violation("I17", path, f"snapshot {name!r} cannot be read: {error}")


def check_lakehouse(versions: Versions, newest: Root) -> Iterator[Violation]:
    """Yield what is wrong with boundary, newest versions and snapshots; a stale hint is fine.

    Two ``get``, one per snapshot, and one ``list`` for a thousand roots.
    """
    boundary = versions.boundary()
    if boundary > newest.version:
        if not versions.claimed():  # by an export that has not put its first version here: all is as it was
            why = f"the boundary {boundary} lies beyond the newest version {newest.version}"
            yield violation("I16", spec.BOUNDARY_FILE, why)
    elif not _root_exists(versions, boundary):
        why = f"version {boundary}, the oldest one by the boundary, does not exist"
        yield violation("I16", spec.BOUNDARY_FILE, why)
    try:
        versions.refuse_hole(newest.version)
    except CorruptNode as error:
        yield violation(error.invariant, error.path or newest.path, str(error))
    yield from check_snapshots(versions, versions.definition(newest))


def _root_exists(versions: Versions, version: int) -> bool:
    """Whether there is a root file, damaged or not. One ``get``."""
    try:
        return versions.try_root(version) is not None
    except Corrupt:  # a finding in that version, not in the boundary
        return True


@dataclass(slots=True)
class _Totals:
    """What a subtree holds; not ``whole`` when a part of it could not be read."""

    keys: int = 0
    messages: int = 0
    whole: bool = True

    def add(self, part: _Totals) -> None:
        """Add what a part holds."""
        self.keys += part.keys
        self.messages += part.messages
        self.whole = self.whole and part.whole


class TreeCheck:
    """One walk over a tree, in key order, one path in memory."""

    def __init__(
        self, storage: Storage, definition: LakehouseDef, *, sdk: bool = False, definitions: bool = False
    ) -> None:
        self._storage = storage
        self._order = definition.order
        self._keys: KeyCodec = codec_of(definition, sdk=sdk)
        self._definitions = definitions
        self.definitions_read = 0
        self._seen: set[str] = set()
        self._namespaces: set[str] = set()
        self._kinds: Counter[str] = Counter()
        self._skipped = self._malformed = False
        self._leaf_depth: int | None = None

    def run(self, root: Root) -> Iterator[Violation]:
        """Yield every broken invariant of the tree below a root."""
        self._seen.add(root.path)
        yield from self._node(root.node, root.path, (None, None), Messages(), _Totals(), 0)
        if not (self._skipped or self._malformed):
            yield from miscounted(root, ObjectCounts(*(self._kinds[kind] for kind in KINDS)))

    def _node(
        self,
        node: Node,
        path: str,
        bounds: tuple[str | None, str | None],
        newer: Messages,
        totals: _Totals,
        depth: int,
    ) -> Iterator[Violation]:
        yield from check_node(node, path, self._order, bounds, top=depth == 0)
        messages = merged(node.pending, newer)
        inside = _Totals(len(node.keys), len(node.buffer))
        if node.is_leaf:
            yield from self._leaf(path, depth)
            yield from self._entries(*search.applied(node.keys, node.values, messages), path)
        else:
            yield from self._children(node, path, bounds, messages, inside, depth)
        for row, counted, found in (
            (spec.SUBTREE_KEYS, node.subtree_keys, inside.keys),
            (spec.SUBTREE_MESSAGES, node.subtree_messages, inside.messages),
        ):
            if counted is not None and counted != found and inside.whole:
                yield violation("I9", path, f"{row} says {counted}, the subtree holds {found}")
        totals.add(inside)

    def _leaf(self, path: str, depth: int) -> Iterator[Violation]:
        if self._leaf_depth is None:
            self._leaf_depth = depth
        elif depth != self._leaf_depth:
            yield violation("I8", path, f"this leaf is at depth {depth}, the first one at {self._leaf_depth}")

    def _children(
        self,
        node: Node,
        path: str,
        bounds: tuple[str | None, str | None],
        messages: Messages,
        inside: _Totals,
        depth: int,
    ) -> Iterator[Violation]:
        ordered = all(a < b for a, b in zip(node.keys, node.keys[1:], strict=False))
        for index, (child_path, data) in enumerate(self._storage.read_many(node.children)):
            low, high = node.bounds(index)
            around = (low or bounds[0], high or bounds[1])
            totals = _Totals()
            part = messages.between(low, high) if ordered else Messages()
            found = self._child(node, path, child_path, data, depth)
            if isinstance(found, Violation):
                yield found
                self._skipped, totals.whole = True, False
            else:
                yield from self._node(found, child_path, around, part, totals, depth + 1)
                yield from _counted(node, path, index, totals) if totals.whole else ()
            inside.add(totals)
            if index < len(node.keys):
                row = slice(index, index + 1)
                pivot = messages.on(node.keys[index])
                yield from self._entries(*search.applied(node.keys[row], node.values[row], pivot), path)

    def _child(
        self, parent: Node, parent_path: str, path: str, data: bytes | FileMissing, depth: int
    ) -> Node | Violation:
        if depth >= search.MAX_HEIGHT:
            return violation("I10", path, f"is more than {search.MAX_HEIGHT} nodes below the root")
        if isinstance(data, FileMissing):
            return violation("I10", path, f"the file is missing, but {parent_path!r} points to it")
        if path in self._seen:
            return violation("I10", path, f"reached a second time, from {parent_path!r}")
        self._seen.add(path)
        try:
            node = nodefile.decode(data, path, self._order)
            search.child_height(parent, path, node)
        except Corrupt as error:
            return violation(error.invariant, path, str(error))
        return node

    def _entries(self, keys: Sequence[str], values: Sequence[str], path: str) -> Iterator[Violation]:
        named: list[tuple[str, str, str]] = []
        for key, value in zip(keys, values, strict=True):
            try:
                name = self._keys.decode(key)
            except InvalidName as error:
                yield violation("I11", path, str(error))
                self._malformed = True
                continue
            self._kinds[name.kind] += 1
            if name.kind == NAMESPACE:
                self._namespaces.add(name.namespace)
            elif name.namespace not in self._namespaces and not self._skipped:
                yield violation("I12", path, f"{name.kind} {str(name)!r} lies in a namespace that does not exist")
            try:
                validate_path(value)
            except InvalidLocation as error:
                yield violation("I11", path, str(error))
                continue
            named.append((name.kind, str(name), value))
        if self._definitions:
            self.definitions_read += len(named)
            yield from check_definitions(self._storage, named)


def _counted(node: Node, path: str, index: int, totals: _Totals) -> Iterator[Violation]:
    for row, counts, found in (
        (spec.CHILD_KEYS, node.child_keys, totals.keys),
        (spec.CHILD_MESSAGES, node.child_messages, totals.messages),
    ):
        if counts is not None and index < len(counts) and counts[index] != found:
            yield violation("I9", path, f"{row} says {counts[index]} for child {index}, which holds {found}")
