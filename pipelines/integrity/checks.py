"""The three passes of a verification, in this process or on Spark. Both call the same functions on the same rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import pyarrow as pa

from pipelines.engine.model import LONG, Row
from pipelines.engine.spark import collect, in_order, map_rows, slots, spread
from pipelines.integrity.contents import Contents
from pipelines.integrity.examine import Examiner, visitor
from pipelines.integrity.findings import FOUND, NODES_NAMED, Found, found_row
from pipelines.integrity.meaning import Meaning, entries_of, prove_on_spark
from pipelines.integrity.settling import settling
from pipelines.job import Progress, Session, started
from pipelines.trees.levels import walk_here
from pipelines.trees.sparklevels import SparkLevels
from trinitylake_core.catalog import codec_of
from trinitylake_core.check import Violation, check_root, violation
from trinitylake_core.definitions import LakehouseDef
from trinitylake_core.errors import Corrupt, InvalidDefinition
from trinitylake_core.storage import Storage
from trinitylake_core.tree.nodestore import NodeStore
from trinitylake_core.versions import Root, Versions, VersionsReadOnce

if TYPE_CHECKING:  # the command line must not wait for pyspark where no Spark runs
    from pyspark.sql import DataFrame

_VERSION: Final = pa.schema({"version": LONG})
_PAIR: Final = pa.schema({"before": LONG, "version": LONG})
_ROOTS_HERE: Final = 32
"""So many roots are read at once."""
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

    def examiner(self, meaning: Meaning) -> Examiner:
        """Return the examiner of nodes of this shape."""
        return Examiner(self.order, meaning.codec, meaning.version)

    def meaning(
        self, version: int, *, definitions: bool, root: Root | None = None, tables: float | None = None
    ) -> Meaning:
        """Return an empty meaning of a version."""
        codec = codec_of(self.definition())
        return Meaning(codec, version=version, read_definitions=definitions, root=root, tables=tables)

    def contents(self, versions: Versions, *, definitions: bool, tables: float | None) -> Contents:
        """Return the check of contents of this shape."""
        return Contents(versions, self.order, self.target_bytes, definitions=definitions, tables=tables)


# -- one row at a time -----------------------------------------------------------------------------------


def root_pass(versions: Versions, version: int, shape: Shape) -> Iterator[Row]:
    """Yield what is wrong with a root, its link and its lakehouse definition. At most three ``get``.

    A row whose invariant is ``other`` says that the version has another shape.
    """
    try:
        root = versions.try_root(version)
        if root is None:  # the pass over the nodes tells
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


def change_pass(contents: Contents, before: int, version: int) -> Iterator[Row]:
    """Yield what is wrong with what changed between two versions, and what was counted."""
    return (found_row(each, version, version) for each in contents.prove(before, version))


# -- engines ---------------------------------------------------------------------------------------------


class Walked(NamedTuple):
    """How many nodes were read, and how many bytes other processes read, of nodes and definitions."""

    nodes: int
    bytes_elsewhere: int = 0


class Checks(Protocol):
    """The passes over versions of one shape. What they find goes where it was told to go."""

    def roots(self, versions: Sequence[int]) -> list[int]:
        """Check roots; return the versions of another shape. One ``get`` each, and one per lakehouse definition."""

    def nodes(self, roots: Sequence[Row], meaning: Meaning, visited: Sequence[Row] = ()) -> Walked:
        """Check nodes level by level, one ``get`` each.

        Args:
            roots: what to begin with.
            meaning: of the first version of all: proved from the same nodes, with its definitions if wanted.
            visited: roots that were examined.
        """

    def contents(self, versions: Sequence[int], *, definitions: bool, tables: float | None = None) -> None:
        """Check what changed from each version to the next; ``tables``: see ``Meaning``."""


def checks_on(engine: str, spark: Session, storage: Storage, shape: Shape, found: Found, progress: Progress) -> Checks:
    """Return the passes on ``spark``, or in this process."""
    common = _Common(storage, shape, found, progress)
    return SparkChecks(started(spark), common) if engine == "spark" else LocalChecks(common)


@dataclass(frozen=True, slots=True)
class _Common:
    storage: Storage
    shape: Shape
    found: Found
    progress: Progress

    def add_roots(self, rows: Sequence[Row]) -> list[int]:
        """Take findings; return the versions of another shape."""
        self.found.rows([row for row in rows if row["invariant"] != _OTHER])
        return [row["first"] for row in rows if row["invariant"] == _OTHER]

    def add_meaning(self, meaning: Meaning) -> None:
        """Take what is wrong with a version as a whole: objects without a namespace, and how many there are."""
        store = NodeStore(self.storage, self.shape.order, self.shape.target_bytes)
        for each in meaning.wrong(self.storage, store):
            self.found.add(each, meaning.version)
            if self.found.enough():
                return


class LocalChecks:
    """All passes in this process."""

    def __init__(self, common: _Common) -> None:
        self._common = common
        self._versions = VersionsReadOnce(common.storage)

    def roots(self, versions: Sequence[int]) -> list[int]:
        """See :class:`Checks`."""
        found, others = _roots_found(self._versions, versions, self._common.shape), []
        for done, rows in enumerate(found):
            self._common.progress("roots", done, len(versions))
            others += self._common.add_roots(rows)
        return others

    def nodes(self, roots: Sequence[Row], meaning: Meaning, visited: Sequence[Row] = ()) -> Walked:
        """See :class:`Checks`."""
        common, found, count = self._common, self._common.found, -len(visited)
        visit = visitor(common.shape.examiner(meaning))

        def rows() -> Iterator[Row]:
            nonlocal count
            for row in walk_here(common.storage, visit, roots, visited=visited):
                count += 1
                found.counts[NODES_NAMED] += row["named"]
                common.progress(visit.phase, count, None)
                yield row

        for each in meaning.prove(common.storage, entries_of(rows(), meaning, found)):
            found.add(each, meaning.version)
            if found.enough():
                break
        else:
            common.add_meaning(meaning)
        found.counts.update(meaning.counts)
        return Walked(count)

    def contents(self, versions: Sequence[int], *, definitions: bool, tables: float | None = None) -> None:
        """See :class:`Checks`."""
        pairs, shape = pairwise(versions), self._common.shape
        found = _changes_found(self._versions, pairs, shape, definitions=definitions, tables=tables)
        for done, rows in enumerate(found):
            self._common.progress("contents", done, len(versions) - 1)
            self._common.found.rows(rows)


class SparkChecks:
    """All passes in Spark tasks; findings alone come to the driver."""

    def __init__(self, spark: Any, common: _Common) -> None:
        self._spark = spark
        self._common = common

    def roots(self, versions: Sequence[int]) -> list[int]:
        """See :class:`Checks`. A few in this process."""
        shape, storage = self._common.shape, self._common.storage
        found: Sequence[Row]
        if len(versions) <= _ROOTS_HERE:
            found = list(chain.from_iterable(_roots_found(VersionsReadOnce(storage), versions, shape)))
        else:
            frame = self._spread([{"version": version} for version in versions], _VERSION)
            found = collect(map_rows(frame, partial(_roots, shape=shape), FOUND, storage))
        self._common.progress("roots", len(versions), len(versions))
        return self._common.add_roots(found)

    def nodes(self, roots: Sequence[Row], meaning: Meaning, visited: Sequence[Row] = ()) -> Walked:
        """See :class:`Checks`. One Spark job per level of many nodes."""
        common = self._common
        examiner = common.shape.examiner(meaning)
        at_leaves = partial(settling, examiner=examiner, meaning=meaning)
        walk = SparkLevels(self._spark, common.storage, visitor(examiner), common.progress, at_leaves=at_leaves)
        try:
            walk.walk(roots, visited=visited, go_on=self._add_findings)
            if not common.found.enough():
                prove_on_spark(walk, meaning, common.found)
                common.add_meaning(meaning)
        finally:
            walk.release()
        common.found.counts[NODES_NAMED] += walk.sums["named"]
        return Walked(walk.nodes_read, walk.sums["bytes"] - walk.here["bytes"] + meaning.bytes)

    def _add_findings(self, rows: Sequence[Row]) -> bool:
        self._common.found.rows(rows)
        return not self._common.found.enough()

    def contents(self, versions: Sequence[int], *, definitions: bool, tables: float | None = None) -> None:
        """See :class:`Checks`."""
        pairs = [{"before": before, "version": version} for before, version in pairwise(versions)]
        if pairs:
            work = partial(_changes, shape=self._common.shape, definitions=definitions, tables=tables)
            frame = map_rows(self._spread(pairs, _PAIR), work, FOUND, self._common.storage)
            self._common.found.rows(collect(frame))
        self._common.progress("contents", len(pairs), len(pairs))

    def _spread(self, rows: Sequence[Row], schema: pa.Schema) -> DataFrame:
        """Give each task consecutive versions: what one of them reads, the next one need not."""
        tasks = min(slots(self._spark), len(rows))
        return spread(self._spark, rows, schema, tasks, in_order(len(rows), tasks))


def _roots(rows: Iterator[Row], storage: Storage, *, shape: Shape) -> Iterator[Row]:
    for found in _roots_found(VersionsReadOnce(storage), (row["version"] for row in rows), shape):
        yield from found


def _changes(
    rows: Iterator[Row], storage: Storage, *, shape: Shape, definitions: bool, tables: float | None
) -> Iterator[Row]:
    pairs = ((row["before"], row["version"]) for row in rows)
    for found in _changes_found(VersionsReadOnce(storage), pairs, shape, definitions=definitions, tables=tables):
        yield from found


def _roots_found(reader: Versions, versions: Iterable[int], shape: Shape) -> Iterator[list[Row]]:
    """Yield what is wrong with each root, several looked at at the same time.

    Each root is asked for twice, by its own version and by the next one, and a definition by all that refer to it.
    """
    return reader.storage.map(versions, lambda version: list(root_pass(reader, version, shape)))


def _changes_found(
    versions: Versions, pairs: Iterable[tuple[int, int]], shape: Shape, *, definitions: bool, tables: float | None
) -> Iterator[list[Row]]:
    """Yield what is wrong with each change, several looked at at the same time; nodes are read through one cache."""
    contents = shape.contents(versions, definitions=definitions, tables=tables)
    return versions.storage.map(pairs, lambda pair: list(change_pass(contents, *pair)), nested=True)
