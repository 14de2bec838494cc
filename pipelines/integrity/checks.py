"""The three passes of a verification, on either engine.

What changes from one version to the next is proved as the oldest version is (``version_content``). What did not change
was proved in the version before, so the cost of many versions is that of one and of what changed since. A version that
cannot be compared, because nodes are damaged, is scanned itself; what cannot be read is skipped: its damage is a
finding of the walk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice, pairwise
from typing import Final, NamedTuple

import pyarrow as pa

from pipelines.engine import Engine
from pipelines.engine.counting import map_counted
from pipelines.engine.local import LocalEngine
from pipelines.engine.model import LONG, TEXT, MadeRow, Row, Work
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
from trinitylake_core.diff import (
    EVERYWHERE,
    Change,
    Span,
    changes,
    diff_nodes,
    differing_subtrees,
)
from trinitylake_core.errors import Corrupt, InvalidLocation, InvalidName
from trinitylake_core.keys import KINDS, NAMESPACE, TABLE, VIEW, KeyCodec, label
from trinitylake_core.locations import validate_path
from trinitylake_core.storage import Storage
from trinitylake_core.tree import search
from trinitylake_core.tree.nodestore import NodeStore
from trinitylake_core.versions import ObjectCounts, Root, Versions, VersionsReadOnce

_VERSION: Final = pa.schema({"version": LONG})
_CHANGE: Final = pa.schema(
    {
        "number": LONG,
        "before": LONG,
        "version": LONG,
        "lo": TEXT,
        "hi": TEXT,
        **dict.fromkeys(KINDS, LONG),
    }
)
"""What changed from one version to the next: all of it, or between two keys. Or how many objects that brought."""
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
_LARGE: Final = 256
"""Versions that do not share so many subtrees are compared by ranges of keys, each by a task of its own."""
_RANGES_PER_TASK: Final = 4
_RANGE: Final = "range"
"""Stands in the place of an invariant for a range of keys of a large change."""
_GAINED: Final = "gained"
"""Stands in the place of an invariant for how many objects of a kind a range brought."""
_UNREAD: Final = "unread"
"""Stands in the place of a kind for a range of which a node cannot be read."""


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


Step = Callable[["Contents", Row], Iterator[Violation]]
"""What is done with a change."""


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
            choose=partial(self._choose_work, content=content, files=also is not None),
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

    def _choose_work(
        self,
        walk: Walk,
        height: int,
        *,
        content: GatheredContent,
        files: bool,
    ) -> Work:
        """Return the work at the nodes of a level."""
        above = None
        if height == 0 and not content.read_definitions:  # then most entries of leaves need not leave their tasks
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
        """Check what changed from each version to the next; ``tables``: see ``Meaning``.

        What changed in a large part of the tree comes back as ranges of keys. These are checked by tasks of their own,
        and in the end how many objects all of them brought.
        """
        tasks = self._engine.tasks()
        how = Comparison(
            self._state,
            self._shape,
            definitions=definitions,
            tables=tables,
            ranges=tasks * _RANGES_PER_TASK if tasks > 1 else 0,
        )
        before = {}
        rows = []
        for number, (old, version) in enumerate(pairwise(versions)):
            before[version] = old
            rows.append(_change_row(number, old, version))
        ranges = []
        for number, row in enumerate(self._compare(how, Contents.prove, rows)):
            version = row["first"]
            ranges.append(_change_row(number, before[version], version, row["file"], row["message"]))
        gained: dict[int, Counter[str]] = {}
        for row in self._compare(how, Contents.prove_range, ranges):
            gained.setdefault(row["first"], Counter())[row["message"]] += int(row["hint"])
        sums = []
        for number, (version, brought) in enumerate(gained.items()):
            sums.append(_change_row(number, before[version], version, gained=brought))
        self._compare(how, Contents.prove_counts, sums)
        self._progress("contents", len(rows), len(rows))

    def _compare(self, how: Comparison, step: Step, rows: Sequence[Row]) -> list[Row]:
        """Take a step with changes; add what it finds, and return what it made for the next step.

        A version of which one range cannot be read is scanned whole, which finds and counts all that its ranges did.
        """
        if not rows:
            return []
        work = partial(_changes, how=how, step=step, total=len(rows))
        findings = []
        others = []
        made = _list_found(self._engine, work, rows, _CHANGE, self._storage)
        unread = {row["first"] for row in made if row["message"] == _UNREAD}
        for row in made:
            if row["invariant"] in {_RANGE, _GAINED}:
                others.append(row)
            elif row["first"] not in unread:
                findings.append(row)
        self._found.rows(findings)
        return others


def _change_row(
    number: int,
    before: int,
    version: int,
    lo: str = "",
    hi: str = "",
    gained: Mapping[str, int] | None = None,
) -> Row:
    """Return a change as a row of :data:`_CHANGE`. No number of objects: they are not known."""
    known = dict.fromkeys(KINDS)
    if gained is not None and _UNREAD not in gained:
        known = _numbers(gained)
    return {"number": number, "before": before, "version": version, "lo": lo, "hi": hi, **known}


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
        yield found_row(head, version)
        return
    root, definition = head
    if not root.node.canonical or root.node.height is None or Shape.of(definition) != shape:
        yield found_row(Violation(_OTHER, "", "", ""), version)
        return
    for finding in check_root(versions, root):
        yield found_row(finding, version)


@dataclass(frozen=True, slots=True)
class Comparison:
    """How versions are compared.

    Attributes:
        definitions: whether those that changed are read; ``tables``: see ``GatheredContent``.
        ranges: into how many ranges of keys a large change is cut; 0: into none.
    """

    state: _ProcessState
    shape: Shape
    definitions: bool
    tables: float | None
    ranges: int


def _changes(
    rows: Iterator[Row],
    storage: Storage,
    *,
    how: Comparison,
    step: Step,
    total: int,
) -> Iterator[MadeRow]:
    """Yield what a step makes of each change, several at the same time; nodes are read through one cache."""
    store = NodeStore(storage, how.shape.order, how.shape.target_bytes)
    contents = Contents(how.state.versions(storage), store, how)

    def prove(row: Row) -> list[MadeRow]:
        version = row["version"]
        findings: list[MadeRow] = []
        for finding in step(contents, row):
            findings.append(found_row(finding, version))
        return findings

    found = storage.map(rows, prove, nested=True)
    for done, findings in enumerate(found):
        how.state.progress("contents", done, total)
        yield from findings


@dataclass(frozen=True, slots=True)
class Contents:
    """Proves versions against the ones before, reading nodes through one cache. Thread-safe."""

    versions: Versions
    store: NodeStore
    how: Comparison

    def prove(self, row: Row) -> Iterator[Violation]:
        """Yield what is wrong with what changed, and how many definitions were read and proved by a checksum.

        Reads the nodes that differ, and definitions if wanted. Of a large change yields its ranges of keys instead.
        """
        try:
            spans = self._cut(row)
        except Corrupt:  # the comparison says where
            spans = []
        for span in spans:
            yield Violation(_RANGE, span.lo or "", span.hi or "", "")
        if not spans:
            yield from self._first_possible(row, self._compare_versions, self._scan_version)

    def prove_range(self, row: Row) -> Iterator[Violation]:
        """Yield what is wrong with what changed between two keys, and how many objects of each kind that brought."""
        yield from self._first_possible(row, self._compare_range, _say_unread)

    def prove_counts(self, row: Row) -> Iterator[Violation]:
        """Yield what is wrong with the counts of objects, by what all ranges of a change brought."""
        if row[NAMESPACE] is None:
            yield from self._first_possible(row, self._scan_version)
        else:
            yield from self._first_possible(row, self._check_gained, self._scan_version)

    def _first_possible(
        self,
        row: Row,
        *attempts: Callable[[Row, Counter[str]], Iterator[Violation]],
    ) -> Iterator[Violation]:
        """Yield what the first attempt finds that can read what it needs; the walk reports what cannot be read."""
        for attempt in attempts:
            counts: Counter[str] = Counter()
            try:
                found = list(attempt(row, counts))
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

    def _pair(self, row: Row) -> tuple[Root, Root, KeyCodec] | None:
        """Return both versions of a change, if they can be compared."""
        old = self._root(row["before"])
        new = self._root(row["version"])
        if old is None or new is None or not _are_comparable(*old, *new):
            return None
        return old[0], *new

    def _cut(self, row: Row) -> list[Span]:
        """Return the ranges of keys of a large change; none of others. Reads the tops of both trees."""
        if not self.how.ranges:
            return []
        pair = self._pair(row)
        if pair is None:
            return []
        old, new, _ = pair
        found = differing_subtrees(self.store, old.node, self.store, new.node, _LARGE)
        if len(found.keys) < _LARGE:
            return []
        return found.spans(self.how.ranges)

    def _scan_version(self, row: Row, counts: Counter[str]) -> Iterator[Violation]:
        version = row["version"]
        found = self._root(version)
        if found is None:
            return
        root, codec = found
        content = GatheredContent(
            codec,
            version=version,
            read_definitions=self.how.definitions,
            root=root,
            tables=self.how.tables,
            counts=counts,
        )
        yield from content.prove(self.versions.storage, _scan_rows(self.store, root))
        yield from content.wrong(self.versions.storage, self.store)

    def _compare_versions(self, row: Row, counts: Counter[str]) -> Iterator[Violation]:
        pair = self._pair(row)
        if pair is None:
            yield from self._scan_version(row, counts)
            return
        gained: Counter[str] = Counter()
        yield from self._compare(*pair, EVERYWHERE, counts, gained)
        yield from self._check_gained({**row, **_numbers(gained)}, counts)

    def _compare_range(self, row: Row, counts: Counter[str]) -> Iterator[Violation]:
        pair = self._pair(row)
        gained: Counter[str] = Counter()
        if pair is None:  # it has expired meanwhile
            yield from _say_unread(row, counts)
            return
        yield from self._compare(*pair, Span(row["lo"] or None, row["hi"] or None), counts, gained)
        for kind, number in _numbers(gained).items():
            yield Violation(_GAINED, "", kind, str(number))

    def _compare(
        self,
        old: Root,
        new: Root,
        codec: KeyCodec,
        span: Span,
        counts: Counter[str],
        gained: Counter[str],
    ) -> Iterator[Violation]:
        """Yield what is wrong with what changed between two keys; note how many definitions and objects there are."""
        rows = changes(diff_nodes(self.store, old.node, self.store, new.node, span), codec)
        while part := list(islice(rows, _TOGETHER)):
            for change in part:
                _count_change(gained, change)
            yield from check_homes(self.store, new, codec, part)
            if self.how.definitions:
                named = _name_definitions(part)
                yield from proved_definitions(self.versions.storage, named, counts, self.how.tables)

    def _check_gained(self, row: Row, _: Counter[str]) -> Iterator[Violation]:
        """Yield the counts of a version that are wrong (I9), by how many objects a change brought."""
        pair = self._pair(row)
        if pair is None:  # the version before has expired meanwhile; its ranges have counted the definitions
            yield from self._scan_version(row, Counter())
            return
        old, new, codec = pair
        if old.counts is not None:
            yield from self._check_counts(old.counts.plus(_by_kind(row)), new, codec)
        elif new.counts is not None:
            yield from self._check_settled(row["before"], new, codec)

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
    was_there = change.old_path is not None
    is_there = change.new_path is not None
    gained[change.kind] += is_there - was_there


def _say_unread(_: Row, __: Counter[str]) -> Iterator[Violation]:
    yield Violation(_GAINED, "", _UNREAD, "1")


def _numbers(gained: Mapping[str, int]) -> dict[str, int | None]:
    return {kind: gained.get(kind, 0) for kind in KINDS}


def _by_kind(numbers: Mapping[str, int]) -> ObjectCounts:
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
