"""The three passes of a verification, on either engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, Final, NamedTuple

import pyarrow as pa

from pipelines.engine import Engine
from pipelines.engine.local import LocalEngine
from pipelines.engine.model import LONG, Row, Work
from pipelines.integrity.contents import Contents
from pipelines.integrity.examine import ASKED, FINDING, KEPT, Examiner, Kept, visits
from pipelines.integrity.findings import FOUND, NODES_NAMED, Found, found_row
from pipelines.integrity.version_content import GatheredContent, above_leaves, prove_entries
from pipelines.job import Progress, silent
from pipelines.trees.walk import NODE, Visitor, Walk, descend
from trinitylake_core.catalog import codec_of
from trinitylake_core.check import Violation, check_root, violation
from trinitylake_core.definitions import LakehouseDef
from trinitylake_core.errors import Corrupt, InvalidDefinition
from trinitylake_core.storage import Storage
from trinitylake_core.tree.nodestore import NodeStore
from trinitylake_core.versions import Root, Versions, VersionsReadOnce

_VERSION: Final = pa.schema({"version": LONG})
_PAIR: Final = pa.schema({"before": LONG, "version": LONG})
_ROOTS_HERE: Final = 32
"""So many roots are read at once."""
_HERE: Final = 128
"""Levels of so many nodes are visited in this process: four times as many as are read at once."""
_HERE_CHILDREN: Final = 1 << 15
"""What parents record about so many children is held in memory, at most."""
_OTHER: Final = "other"
"""Stands in the place of an invariant for a version that must be verified on its own."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What shapes keys and nodes: the same in all versions, but for a lakehouse that was rebuilt."""

    order: int
    target_bytes: int
    sizes: tuple[int, int, int]

    @classmethod
    def of(cls, definition: LakehouseDef) -> Shape:
        """Return the shape in a lakehouse definition."""
        names = ("namespace", "table", "view")
        sizes = tuple(getattr(definition, f"{name}_name_max_size_bytes") for name in names)
        return cls(definition.order, definition.node_file_max_size_bytes, (sizes[0], sizes[1], sizes[2]))

    def definition(self) -> LakehouseDef:
        """Return a definition of this shape."""
        one, two, three = self.sizes
        return LakehouseDef(
            order=self.order, namespace_name_max_size_bytes=one, table_name_max_size_bytes=two,
            view_name_max_size_bytes=three,
        )  # fmt: skip

    def examiner(self, meaning: GatheredContent) -> Examiner:
        """Return the examiner of nodes of this shape."""
        return Examiner(self.order, meaning.codec, meaning.version)

    def meaning(
        self, version: int, *, definitions: bool, root: Root | None = None, tables: float | None = None
    ) -> GatheredContent:
        """Return an empty meaning of a version."""
        codec = codec_of(self.definition())
        return GatheredContent(codec, version=version, read_definitions=definitions, root=root, tables=tables)

    def contents(self, versions: Versions, *, definitions: bool, tables: float | None) -> Contents:
        """Return the check of contents of this shape."""
        return Contents(versions, self.order, self.target_bytes, definitions=definitions, tables=tables)


# -- one row at a time -----------------------------------------------------------------------------------


def root_pass(versions: Versions, version: int, shape: Shape) -> Iterator[tuple[Any, ...]]:
    """Yield what is wrong with a root, its link and its lakehouse definition. At most three ``get``.

    A row whose invariant is ``other`` stands for a version of another shape.
    """
    try:
        root = versions.try_root(version)
        if root is None:  # the pass over the nodes reports it
            return
        definition = versions.definition_file(root)
    except (Corrupt, InvalidDefinition) as error:
        invariant = error.invariant if isinstance(error, Corrupt) else "I13"
        path = getattr(error, "path", None) or versions.path(version)
        if not isinstance(error, Corrupt) or path != versions.path(version):
            invariant = "I13"
        yield found_row(violation(invariant, path, str(error)), version, version)
        return
    if not root.node.canonical or root.node.height is None or Shape.of(definition) != shape:
        yield found_row(Violation(_OTHER, "", "", ""), version, version)
        return
    try:
        found = list(check_root(versions, root))
    except Corrupt as error:
        found = [violation("I14", root.path, f"the history cannot be followed: {error}")]
    for each in found:
        yield found_row(each, version, version)


def change_pass(contents: Contents, before: int, version: int) -> Iterator[tuple[Any, ...]]:
    """Yield what is wrong with what changed between two versions, and what was counted."""
    return (found_row(each, version, version) for each in contents.prove(before, version))


# -- engines ---------------------------------------------------------------------------------------------


class Walked(NamedTuple):
    """How many nodes were read, and how many bytes other processes read, of nodes and definitions."""

    nodes: int
    bytes_elsewhere: int = 0


class _Here:
    """What this process holds during passes over versions: roots that were read, and progress; tasks have none."""

    def __init__(self, progress: Progress = silent) -> None:
        self.progress = progress
        self._versions: VersionsReadOnce | None = None

    def __reduce__(self) -> tuple[type[_Here], tuple[()]]:
        return _Here, ()

    def versions(self, storage: Storage) -> VersionsReadOnce:
        """Return the versions in a storage; each root is read once."""
        if self._versions is None:
            self._versions = VersionsReadOnce(storage)
        return self._versions


class Checks:
    """The passes over versions of one shape. What they find goes to ``found``."""

    def __init__(self, engine: Engine, storage: Storage, shape: Shape, found: Found, progress: Progress) -> None:
        self._engine = engine
        self._storage = storage
        self._shape = shape
        self._found = found
        self._progress = progress
        self._here = _Here(progress)

    def roots(self, versions: Sequence[int]) -> list[int]:
        """Check roots; return the versions of another shape. One ``get`` each, and one per lakehouse definition."""
        engine = LocalEngine() if len(versions) <= _ROOTS_HERE else self._engine
        work = partial(_roots, here=self._here, shape=self._shape, total=len(versions))
        rows = engine.table([{"version": version} for version in versions], _VERSION)
        found = engine.map(work, rows, FOUND, self._storage, each=1).list()
        self._progress("roots", len(versions), len(versions))
        self._found.rows([row for row in found if row["invariant"] != _OTHER])
        return [row["first"] for row in found if row["invariant"] == _OTHER]

    def nodes(self, roots: Sequence[Row], meaning: GatheredContent, visited: Sequence[Sequence[Kept]] = ()) -> Walked:
        """Check nodes level by level, one ``get`` each. One Spark job per level of many nodes.

        Args:
            roots: what to begin with.
            meaning: of the first version of all: proved from the same nodes, with its definitions if wanted.
            visited: what is kept of roots that were examined.
        """
        before = self._storage.counts.snapshot()
        kept = [dict(zip(KEPT.names, row, strict=True)) for rows in visited for row in rows]
        visitor = Visitor("nodes", ASKED, KEPT, partial(self._choose, meaning=meaning))
        first = sorted(roots, key=lambda row: row["first"])
        few = min(_HERE, _HERE_CHILDREN // self._shape.order)
        walk = descend(self._engine, self._storage, visitor, first, self._progress, visited=kept, few=few)
        try:
            self._add_findings(walk)
            sums = walk.ask(f"SELECT sum(size) AS bytes, sum(named) AS named FROM walked WHERE role = {NODE}").one()
            if not self._found.enough():
                prove_entries(walk, meaning, self._found)
        finally:
            walk.drop()
            self._engine.close()
        nbytes = (sums["bytes"] or 0) - sum(row["size"] for row in kept if row["role"] == NODE) + meaning.bytes
        here = (self._storage.counts - before).bytes_read
        self._found.counts[NODES_NAMED] += sums["named"] or 0
        self._add_meaning(meaning)
        return Walked(walk.nodes_read, max(0, nbytes - here))

    def _choose(self, walk: Walk, height: int, *, meaning: GatheredContent) -> Work:
        """Return the work at the nodes of a level: nothing where there are findings enough."""
        if self._found.most_wanted() is not None:
            self._add_findings(walk)
        examiner = self._shape.examiner(meaning)
        if height == 0 and not meaning.read_definitions:
            examiner = replace(examiner, above=above_leaves(walk))
        return partial(visits, examiner=examiner, most=self._found.most_wanted())

    def _add_findings(self, walk: Walk) -> None:
        """Take the findings of a walk, as many as are kept, and count the others."""
        if not walk.levels:
            return
        wrong = f"FROM walked WHERE role = {FINDING}"
        total = walk.ask(f"SELECT count(*) AS found {wrong}").one()["found"]
        columns = "file, invariant, message, hint, first, last"
        rows = walk.ask(f"SELECT {columns} {wrong} LIMIT {self._found.most}").list() if total else []
        self._found.rows(rows)
        self._found.count_more(total - len(rows))

    def _add_meaning(self, meaning: GatheredContent) -> None:
        """Take what is wrong with a version as a whole: objects without a namespace, and how many there are."""
        if self._found.enough():
            return
        store = NodeStore(self._storage, self._shape.order, self._shape.target_bytes)
        for each in meaning.wrong(self._storage, store):
            self._found.add(each, meaning.version)
            if self._found.enough():
                return

    def contents(self, versions: Sequence[int], *, definitions: bool, tables: float | None = None) -> None:
        """Check what changed from each version to the next; ``tables``: see ``Meaning``."""
        pairs = [{"before": before, "version": version} for before, version in pairwise(versions)]
        if pairs:
            work = partial(
                _changes,
                here=self._here,
                shape=self._shape,
                definitions=definitions,
                tables=tables,
                total=len(pairs),
            )
            rows = self._engine.table(pairs, _PAIR)
            self._found.rows(self._engine.map(work, rows, FOUND, self._storage, each=1).list())
        self._progress("contents", len(pairs), len(pairs))


def _roots(
    rows: Iterator[Row], storage: Storage, *, here: _Here, shape: Shape, total: int
) -> Iterator[tuple[Any, ...]]:
    """Yield what is wrong with each root, several at the same time.

    Each root is asked for twice, by its own version and by the next one, and a definition by all that refer to it.
    """
    versions = here.versions(storage)
    found = storage.map((row["version"] for row in rows), lambda version: list(root_pass(versions, version, shape)))
    for done, some in enumerate(found):
        here.progress("roots", done, total)
        yield from some


def _changes(
    rows: Iterator[Row], storage: Storage, *, here: _Here, shape: Shape, definitions: bool, tables: float | None,
    total: int,
) -> Iterator[tuple[Any, ...]]:  # fmt: skip
    """Yield what is wrong with each change, several at the same time; nodes are read through one cache."""
    contents = shape.contents(here.versions(storage), definitions=definitions, tables=tables)
    pairs = ((row["before"], row["version"]) for row in rows)
    found = storage.map(pairs, lambda pair: list(change_pass(contents, *pair)), nested=True)
    for done, some in enumerate(found):
        here.progress("contents", done, total)
        yield from some
