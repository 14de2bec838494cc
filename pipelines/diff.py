"""The difference of two versions, in this process or in tasks; both yield the same rows in the same order.

The driver opens the tops of both trees until it knows enough subtrees that they do not share, and cuts
the keys into spans at the pivots before them. A task compares one span. Shared files are never opened.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

import pyarrow as pa

from pipelines.engine import Engine
from pipelines.engine.choice import choose_engine, would_start
from pipelines.engine.counting import (
    ask_of_given,
    keep_mapped,
    without_counts,
)
from pipelines.engine.model import TEXT, Row
from pipelines.job import Progress, Session, refuse_unknown, silent
from pipelines.reports.summary import Table, changes_table
from trinitylake_core import Change, Lakehouse
from trinitylake_core.diff import (
    ADDED,
    CHANGED,
    REMOVED,
    Difference,
    DifferingSubtrees,
    Span,
    as_change,
    diff_nodes,
    differing_subtrees,
)
from trinitylake_core.keys import KeyCodec
from trinitylake_core.recovery.plan import SHOWN
from trinitylake_core.short_repr import ShortRepr
from trinitylake_core.storage import Storage
from trinitylake_core.tree.node import Node
from trinitylake_core.tree.nodefile import decode
from trinitylake_core.tree.nodestore import NodeStore

_LOOKED_AT: Final = 1000
"""The number of differing subtrees that ``auto`` reads before it estimates; their nodes must be read anyway."""
_SPANS_PER_TASK: Final = 4
_FEW: Final = 10_000
"""So many changes come at once: of more, one partition after the other, each by a job of Spark."""
SPAN: Final = pa.schema({"lo": TEXT, "hi": TEXT})
_ROW: Final = pa.schema({"key": TEXT, "old": TEXT, "new": TEXT})


@dataclass(frozen=True, slots=True)
class Config:
    """The options of a comparison.

    Attributes:
        engine: ``spark``, ``local`` (this process, never starts Spark), or ``auto``: Spark on other
            machines from about ``spark_from_nodes`` nodes on that the versions do not share.
        spark_from_nodes: where ``auto`` changes from this process to Spark.
    """

    engine: str = "auto"
    spark_from_nodes: int = 50_000

    def __post_init__(self) -> None:
        refuse_unknown(self.engine)


def run(
    old: Lakehouse,
    new: Lakehouse,
    config: Config | None = None,
    spark: Session = None,
    *,
    progress: Progress | None = None,
) -> Iterator[Change]:
    """Yield the changes from one version to another, in key order. The other version may be of another lakehouse.

    Lakehouses whose keys are encoded differently are always compared in this process; ``config.engine`` is ignored.
    """
    config = config or Config()
    if old.codec != new.codec or old.read_only or new.read_only:
        yield from new.diff(old, new)
        return
    nodes = None
    if config.engine == "auto" or would_start(config.engine, spark):
        nodes = _estimate_nodes(old, new)
    with closing(choose_engine(config.engine, spark, nodes, config.spark_from_nodes)) as engine:
        for key, old_path, new_path in _compare(old, new, engine, progress or silent):
            yield as_change(key, old_path, new_path, new.codec)


def _estimate_nodes(old: Lakehouse, new: Lakehouse) -> int:
    """Return about how many nodes two versions do not share."""
    found = _open_tops(old, new, _LOOKED_AT)
    nodes = len(found.keys)
    if found.finer:  # there is more below them
        per_node = max(1.0, new.definition.order * 2 / 3)
        nodes += round(sum(found.keys.values()) / per_node)
    return nodes


@dataclass(frozen=True, slots=True, repr=False)
class Report(ShortRepr):
    """A difference as a table.

    Attributes:
        root: root URI of the old side; ``other`` is that of the new one.
        a: version of the old side; ``b`` is that of the new one.
        counts: the numbers of objects that are added, removed and changed.
        changes: the first of these changes, in key order.
    """

    root: str
    other: str
    a: int
    b: int
    counts: dict[str, int]
    changes: tuple[Change, ...]

    def summary(self) -> Iterator[str]:
        """Yield how many objects differ."""
        if not any(self.counts.values()):
            yield "no differences"
            return
        counts = ", ".join(f"{number:,} {what}" for what, number in self.counts.items())
        if self.other == self.root:
            of_other = ""
        else:
            of_other = f" of {self.other}"
        yield f"from version {self.a} to version {self.b}{of_other}: {counts}"

    def summary_tables(self) -> Iterator[Table]:
        """Yield the first changes."""
        yield changes_table(self.changes, sum(self.counts.values()))


def report(
    old: Lakehouse,
    new: Lakehouse,
    config: Config | None = None,
    spark: Session = None,
    *,
    progress: Progress | None = None,
    limit: int = SHOWN,
) -> Report:
    """Return the number of changes between two versions, and the first ``limit`` changes. Costs as :func:`run`."""
    counts = dict.fromkeys((ADDED, REMOVED, CHANGED), 0)
    shown: list[Change] = []
    for change in run(old, new, config, spark, progress=progress):
        counts[change.change] += 1
        if len(shown) < limit:
            shown.append(change)
    return Report(
        root=old.root,
        other=new.root,
        a=old.version,
        b=new.version,
        counts=counts,
        changes=tuple(shown),
    )


def _open_tops(old: Lakehouse, new: Lakehouse, want: int) -> DifferingSubtrees:
    return differing_subtrees(
        old.nodes,
        old.root_node.node,
        new.nodes,
        new.root_node.node,
        want,
    )


def _compare(
    old: Lakehouse,
    new: Lakehouse,
    engine: Engine,
    progress: Progress,
) -> Iterator[Difference]:
    """Yield what differs: in tasks, where an engine has several."""
    tasks = engine.tasks()
    spans: list[Span] = []
    if tasks > 1:
        want = tasks * _SPANS_PER_TASK
        spans = _open_tops(old, new, want).spans(want)
    if len(spans) <= 1:
        yield from diff_nodes(old.nodes, old.root_node.node, new.nodes, new.root_node.node)
        return
    progress("compare", 0, len(spans))
    ranges = [{"lo": span.lo, "hi": span.hi} for span in spans]
    rows = engine.table(ranges, SPAN)
    work = partial(_compare_spans, old=TreeRoot.of(old), new=TreeRoot.of(new))
    asked = ask_of_given(ranges, "lo")
    # counted before the first change is shown
    found, counts, _ = keep_mapped(
        engine, "ranges of keys", work, rows, "lo", asked, _ROW, old.storage, new.storage, each=1
    )
    try:
        progress("compare", counts.kept, None)
        made = found.stream(few=counts.kept <= _FEW)
        for row in without_counts("ranges of keys", asked, made):
            yield row["key"], row["old"], row["new"]
    finally:
        found.drop()


class OpenTree(NamedTuple):
    """The root of a version as a task opened it, and the store of its nodes."""

    store: NodeStore
    root: Node


@dataclass(frozen=True, slots=True)
class TreeRoot:
    """What a task needs to open the root of a version."""

    path: str
    order: int
    target_bytes: int
    codec: KeyCodec

    @classmethod
    def of(cls, lake: Lakehouse) -> TreeRoot:
        """Return that of the version of a handle."""
        definition = lake.definition
        return cls(lake.root_node.path, definition.order, definition.node_file_max_size_bytes, lake.codec)

    def open(self, storage: Storage) -> OpenTree:
        """Read the root. One ``get``."""
        root = decode(storage.read(self.path), self.path)
        return OpenTree(NodeStore(storage, self.order, self.target_bytes), root)


def _compare_spans(
    rows: Iterator[Row],
    old_storage: Storage,
    new_storage: Storage,
    *,
    old: TreeRoot,
    new: TreeRoot,
) -> Iterator[tuple[str, str | None, str | None]]:
    sides: tuple[NodeStore, Node, NodeStore, Node] | None = None
    for row in rows:
        if sides is None:  # a task without a span reads no root
            sides = (*old.open(old_storage), *new.open(new_storage))
        yield from diff_nodes(*sides, Span(row["lo"], row["hi"]))
