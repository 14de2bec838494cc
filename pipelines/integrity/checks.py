"""The three passes of a verification, on either engine.

What changes from one version to the next is proved as the oldest version is (``version_content``). What did not change
was proved in the version before, so the cost of many versions is that of one and of what changed since. A version that
cannot be compared, because nodes are damaged, is scanned itself; what cannot be read is skipped: its damage is a
finding of the walk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice, pairwise
from typing import Final, NamedTuple

import pyarrow as pa

from pipelines.engine import Engine
from pipelines.engine.counting import map_counted
from pipelines.engine.local import LocalEngine
from pipelines.engine.model import LONG, MadeRow, Row, Work
from pipelines.integrity.examine import ASKED, KEPT, UNREADABLE, Examiner, visits
from pipelines.integrity.findings import FOUND, NODES_NAMED, Found, count_finding, found_row
from pipelines.integrity.version_content import (
    FINDINGS,
    GatheredContent,
    above_leaves,
    add_findings,
    prove_entries,
    proved_definitions,
)
from pipelines.job import Progress, silent
from pipelines.reach.walk import NODE, Visitor, Walk, descend
from trinitylake_core.catalog import codec_of
from trinitylake_core.check import Named, Violation, check_homes, check_object_counts, check_root, read_head
from trinitylake_core.definitions import LakehouseDef
from trinitylake_core.diff import ADDED, REMOVED, Change, changes, diff_nodes
from trinitylake_core.errors import Corrupt, InvalidLocation, InvalidName
from trinitylake_core.keys import NAMESPACE, TABLE, VIEW, KeyCodec, label
from trinitylake_core.locations import validate_path
from trinitylake_core.storage import Storage
from trinitylake_core.tree import search
from trinitylake_core.tree.nodestore import NodeStore
from trinitylake_core.versions import ObjectCounts, Root, Versions, VersionsReadOnce

_VERSION: Final = pa.schema({"version": LONG})
_PAIR: Final = pa.schema({"before": LONG, "version": LONG})
_ROOTS_HERE: Final = 32
"""So many roots are read at once."""
_HERE: Final = 128
"""Levels of so many nodes are visited in this process: four times as many as are read at once."""
_HERE_ROWS: Final = 1 << 13
"""So many rows at most are kept of such a level, and held in memory when they move to tasks: 2 KB each.

An inner node leaves one for each child, and a leaf one for each entry.
"""
_NODE_SUMS: Final = f"""
    coalesce(sum(CASE WHEN role = {NODE} THEN named END), 0) AS named,
    coalesce(sum(CASE WHEN role = {NODE} AND height = {UNREADABLE} AND first = {{version}} THEN 1 END), 0) AS unread,
    {FINDINGS}"""
_OTHER: Final = "other"
"""Stands in the place of an invariant for a version that must be verified on its own."""
_TOGETHER: Final = 4096
"""Changes that are held before their definitions are read."""


class Shape(NamedTuple):
    """What shapes keys and nodes: the same in all versions, but for a lakehouse that was rebuilt."""

    order: int
    target_bytes: int
    codec: KeyCodec

    @classmethod
    def of(cls, definition: LakehouseDef) -> Shape:
        """Return the shape in a lakehouse definition."""
        return cls(definition.order, definition.node_file_max_size_bytes, codec_of(definition))


class _ProcessState:
    """What this process holds during passes over versions: roots that were read, and progress. A task has its own."""

    def __init__(self, progress: Progress = silent) -> None:
        self.progress = progress
        self._versions: VersionsReadOnce | None = None

    def __reduce__(self) -> tuple[type[_ProcessState], tuple[()]]:
        return _ProcessState, ()

    def versions(self, storage: Storage) -> VersionsReadOnce:
        """Return the versions in a storage; each root is read once."""
        if self._versions is None:
            self._versions = VersionsReadOnce(storage)
        return self._versions


class Checks:
    """The passes over versions of one shape. What they find goes to ``found``."""

    def __init__(
        self,
        engine: Engine,
        storage: Storage,
        shape: Shape,
        found: Found,
        progress: Progress,
    ) -> None:
        self._engine = engine
        self._storage = storage
        self._shape = shape
        self._found = found
        self._progress = progress
        self._state = _ProcessState(progress)

    def roots(self, versions: Sequence[int]) -> list[int]:
        """Check roots; return the versions of another shape. One ``get`` each, and one per lakehouse definition."""
        engine = self._engine
        if len(versions) <= _ROOTS_HERE:
            engine = LocalEngine()
        work = partial(_roots, state=self._state, shape=self._shape, total=len(versions))
        rows = [{"version": version} for version in versions]
        findings = []
        of_other_shape = []
        for row in _list_found(engine, work, rows, _VERSION, self._storage):
            if row["invariant"] == _OTHER:
                of_other_shape.append(row["first"])
            else:
                findings.append(row)
        self._progress("roots", len(versions), len(versions))
        self._found.rows(findings)
        return of_other_shape

    def nodes(
        self,
        roots: Sequence[Row],
        content: GatheredContent,
        also: Callable[[Walk], None] | None = None,
    ) -> int:
        """Check nodes level by level, one ``get`` each; return how many there are. A Spark job per level of many nodes.

        Args:
            roots: what to begin with.
            content: of the first version of all: proved from the same nodes, with its definitions if wanted.
            also: called with the walk, which then keeps the definitions that nodes name, too.
        """
        visitor = Visitor(
            phase="nodes",
            asked=ASKED,
            kept=KEPT,
            choose=partial(self._choose, content=content, files=also is not None),
        )
        first = sorted(roots, key=lambda row: row["first"])
        few = min(_HERE, _HERE_ROWS // self._shape.order)
        walk = descend(
            self._engine,
            self._storage,
            visitor,
            first,
            self._progress,
            few=few,
        )
        try:
            sums = walk.sum_up(_NODE_SUMS.format(version=content.version))
            content.whole = not sums["unread"]
            add_findings(walk.engine, walk.levels, sums, self._found)
            prove_entries(walk, content, self._found)
            if also is not None:
                also(walk)
        finally:
            walk.drop()
            self._engine.close()
        self._found.counts[NODES_NAMED] += sums["named"]
        store = NodeStore(self._storage, self._shape.order, self._shape.target_bytes)
        for each in content.wrong(self._storage, store):
            self._found.add(each, content.version)
        return walk.nodes_read

    def _choose(
        self,
        walk: Walk,
        height: int,
        *,
        content: GatheredContent,
        files: bool,
    ) -> Work:
        """Return the work at the nodes of a level."""
        above = None
        if height == 0 and not content.read_definitions:
            above = above_leaves(walk)
        examiner = Examiner(
            self._shape.order,
            self._shape.codec,
            content.version,
            above=above,
            files=files,
        )
        return partial(visits, examiner=examiner)

    def contents(self, versions: Sequence[int], *, definitions: bool, tables: float | None = None) -> None:
        """Check what changed from each version to the next; ``tables``: see ``Meaning``."""
        pairs = []
        for before, version in pairwise(versions):
            pairs.append({"before": before, "version": version})
        if pairs:
            work = partial(
                _changes,
                state=self._state,
                shape=self._shape,
                definitions=definitions,
                tables=tables,
                total=len(pairs),
            )
            found = _list_found(self._engine, work, pairs, _PAIR, self._storage)
            self._found.rows(found)
        self._progress("contents", len(pairs), len(pairs))


def _list_found(engine: Engine, work: Work, versions: Sequence[Row], schema: pa.Schema, storage: Storage) -> list[Row]:
    """Return what work finds in versions. Raises ``StorageError``: the engine lost a version, or a finding."""
    return list(map_counted(engine, "versions", work, versions, schema, FOUND, storage, each=1))


def _roots(
    rows: Iterator[Row],
    storage: Storage,
    *,
    state: _ProcessState,
    shape: Shape,
    total: int,
) -> Iterator[MadeRow]:
    """Yield what is wrong with each root, several at the same time.

    Each root is asked for twice, by its own version and by the next one, and a definition by all that refer to it.
    """
    versions = state.versions(storage)

    def check(version: int) -> list[MadeRow]:
        return list(_check_root(versions, version, shape))

    found = storage.map((row["version"] for row in rows), check)
    for done, findings in enumerate(found):
        state.progress("roots", done, total)
        yield from findings


def _check_root(versions: Versions, version: int, shape: Shape) -> Iterator[MadeRow]:
    """Yield what is wrong with a root, its link and its lakehouse definition. At most three ``get``.

    A row whose invariant is ``other`` stands for a version of another shape.
    """
    head = read_head(versions, versions.path(version), lambda: versions.try_root(version))
    if head is None:  # the pass over the nodes reports it
        return
    if isinstance(head, Violation):
        yield found_row(head, version, version)
        return
    root, definition = head
    if not root.node.canonical or root.node.height is None or Shape.of(definition) != shape:
        yield found_row(
            Violation(
                invariant=_OTHER,
                file="",
                message="",
                hint="",
            ),
            version,
            version,
        )
        return
    for finding in check_root(versions, root):
        yield found_row(finding, version, version)


def _changes(
    rows: Iterator[Row],
    storage: Storage,
    *,
    state: _ProcessState,
    shape: Shape,
    definitions: bool,
    tables: float | None,
    total: int,
) -> Iterator[MadeRow]:
    """Yield what is wrong with each change, several at the same time; nodes are read through one cache."""
    store = NodeStore(storage, shape.order, shape.target_bytes)
    contents = Contents(state.versions(storage), store, definitions=definitions, tables=tables)

    def prove(row: Row) -> list[MadeRow]:
        version = row["version"]
        findings: list[MadeRow] = []
        for finding in contents.prove(row["before"], version):
            findings.append(found_row(finding, version, version))
        return findings

    found = storage.map(rows, prove, nested=True)
    for done, findings in enumerate(found):
        state.progress("contents", done, total)
        yield from findings


@dataclass(frozen=True, slots=True)
class Contents:
    """Proves versions against the ones before, reading nodes through one cache. Thread-safe.

    Attributes:
        definitions: whether those that changed are read; ``tables``: see ``GatheredContent``.
    """

    versions: Versions
    store: NodeStore
    definitions: bool
    tables: float | None

    def prove(self, before: int, version: int) -> Iterator[Violation]:
        """Yield what is wrong with what changed, and how many definitions were read and proved by a checksum.

        Reads the nodes that differ, and definitions if wanted.
        """
        for attempt in (self._compare_versions, self._scan_version):
            counts: Counter[str] = Counter()
            try:
                found = list(attempt(before, version, counts))
            except (Corrupt, InvalidName):
                continue
            yield from found
            for what, number in counts.items():
                yield count_finding(what, number)
            return

    def _root(self, version: int) -> tuple[Root, KeyCodec] | None:
        root = self.versions.try_root(version)
        if root is None:
            return None
        return root, codec_of(self.versions.definition(root))

    def _scan_version(self, _: int, version: int, counts: Counter[str]) -> Iterator[Violation]:
        found = self._root(version)
        if found is None:
            return
        root, codec = found
        content = GatheredContent(
            codec,
            version=version,
            read_definitions=self.definitions,
            root=root,
            tables=self.tables,
            counts=counts,
        )
        yield from content.prove(self.versions.storage, _scan_rows(self.store, root))
        yield from content.wrong(self.versions.storage, self.store)

    def _compare_versions(self, before: int, version: int, counts: Counter[str]) -> Iterator[Violation]:
        old = self._root(before)
        new = self._root(version)
        if new is None:
            return
        root, codec = new
        if old is None or not _are_comparable(*old, root, codec):
            yield from self._scan_version(before, version, counts)
            return
        old_root, _ = old
        gained: Counter[str] = Counter()
        differences = diff_nodes(self.store, old_root.node, self.store, root.node)
        rows = changes(differences, codec)
        while part := list(islice(rows, _TOGETHER)):
            for change in part:
                _count_change(gained, change)
            yield from check_homes(self.store, root, codec, part)
            if self.definitions:
                yield from proved_definitions(self.versions.storage, _name_definitions(part), counts, self.tables)
        if old_root.counts is not None:
            yield from self._check_counts(old_root.counts.plus(_by_kind(gained)), root, codec)
        elif root.counts is not None:
            yield from self._check_settled(before, root, codec)

    def _check_counts(self, now: ObjectCounts, root: Root, codec: KeyCodec) -> Iterator[Violation]:
        """Yield the counts of a version that are wrong (I9). ``now`` follows from those of a version before.

        If the two differ, that version's may be the wrong ones: then the objects are counted. One ``get`` for each
        node.
        """
        if any(check_object_counts(root, now)):
            yield from check_object_counts(root, self._count_objects(root, codec))

    def _check_settled(self, before: int, root: Root, codec: KeyCodec) -> Iterator[Violation]:
        """Yield the counts of a version that are wrong, of which only bounds were known before (I9).

        They are compared with those of the last version that knew them, by what changed since. One ``get`` for each
        version between, and the nodes that differ; where no such version is kept, those of the whole tree.
        """
        known = self._last_counted(before, codec)
        gained: Counter[str] = Counter()
        if known is None:
            yield from check_object_counts(root, self._count_objects(root, codec))
            return
        for change in changes(diff_nodes(self.store, known.node, self.store, root.node), codec):
            _count_change(gained, change)
        counts = known.counts or ObjectCounts()
        yield from self._check_counts(counts.plus(_by_kind(gained)), root, codec)

    def _count_objects(self, root: Root, codec: KeyCodec) -> ObjectCounts:
        """Return how many objects a version holds. One ``get`` for each node."""
        found: Counter[str] = Counter()
        for keys, _ in search.scan(self.store, root.node):
            found.update(codec.split(key)[0] for key in keys)
        return _by_kind(found)

    def _last_counted(self, version: int, codec: KeyCodec) -> Root | None:
        """Return the last version up to one whose root counts its objects exactly, if it is kept."""
        while version >= 0:
            found = self._root(version)
            if found is None or found[1] != codec or found[0].count_bounds is None:
                return None
            if found[0].counts is not None:
                return found[0]
            version -= 1
        return None


def _are_comparable(
    old: Root,
    old_codec: KeyCodec,
    new: Root,
    new_codec: KeyCodec,
) -> bool:
    if old_codec != new_codec:
        return False
    # Only a count of everything can prove the first counts.
    has_first_counts = old.count_bounds is None and new.count_bounds is not None
    return not has_first_counts


def _count_change(gained: Counter[str], change: Change) -> None:
    if change.change == ADDED:
        gained[change.kind] += 1
    elif change.change == REMOVED:
        gained[change.kind] -= 1


def _by_kind(numbers: Counter[str]) -> ObjectCounts:
    return ObjectCounts(numbers[NAMESPACE], numbers[TABLE], numbers[VIEW])


def _scan_rows(store: NodeStore, root: Root) -> Iterator[tuple[str, str]]:
    for keys, values in search.scan(store, root.node):
        yield from zip(keys, values, strict=True)


def _name_definitions(part: Iterable[Change]) -> Iterator[Named]:
    for change in part:
        if change.new_path is None:
            continue
        with suppress(InvalidLocation):  # I11, a finding of the walk
            yield change.kind, label(change.namespace, change.name), validate_path(change.new_path)
