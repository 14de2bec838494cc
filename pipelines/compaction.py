"""Compaction: push buffered messages down, towards the nodes where their keys live (format, section 6).

By default a message goes as deep as that is worth rewriting nodes (``PayingChildren``); a full one goes all the way.

The driver opens the top of the tree until it holds enough dirty subtrees, the messages above them
handed down. Each task flushes subtrees, one path in memory, and proves by an order-independent hash
that what it wrote means what was there before. The driver joins the results and commits one root.
Nothing is visible before that root exists; a task that ran twice leaves harmless orphans.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Final

from pipelines.engine import Engine, Row, worker_pool
from pipelines.engine.choice import choose_engine, expected_engine
from pipelines.job import (
    NEVER_CANCELLED,
    Cancel,
    JobRun,
    Progress,
    Review,
    Session,
    refuse_unknown,
    silent,
    start_over_if_void,
)
from pipelines.reports.summary import DRY_RUN, Table, count, human_bytes
from pipelines.trees import subtrees
from pipelines.trees.cost_bound import DirtyPart, RewriteCost, bound_cost
from pipelines.trees.subtrees import adopt, split_for_tasks
from trinitylake_core import Lakehouse, clock
from trinitylake_core.catalog import codec_of, object_counts, settle_counts
from trinitylake_core.commits.changes import CompactionChange, TreeReplaced, commit_summary
from trinitylake_core.commits.commit import commit, require_writable
from trinitylake_core.definitions import commit_buffer_bytes
from trinitylake_core.errors import Corrupt, InvalidInput
from trinitylake_core.tree.node import Node
from trinitylake_core.tree.nodestore import NodeWriter
from trinitylake_core.tree.rewrite import Rewriter
from trinitylake_core.tree.subtree import PayingChildren, Ref, Work, dirty_children
from trinitylake_core.versions import ObjectCounts, Root

_SHARED_FROM_ROWS: Final = 2_500_000
"""Nodes with room for fewer rows are left to this process, whose two threads take about as long as two processes.

A second process does half of the work, and costs half a second of CPU before; the thread that encodes does a third.
"""


@dataclass(frozen=True, slots=True)
class Config:
    """The options of a compaction.

    Attributes:
        engine: ``spark``, ``local`` (this process, never starts Spark), or ``auto``: Spark on other machines from
            ``spark_from_nodes`` nodes on.
        full: push every message all the way, whatever that rewrites. It frees all definitions that waiting messages
            replace, and counts the objects, also where the root says wrong counts or no message waits.
        reason: why, for the history.
        tasks: Spark tasks; by default three per core.
        spark_from_nodes: where ``auto`` changes from this process to Spark.
        restarts: how often to start over after a rollback or a bulk load came in between, or after `clean` removed, or
            may have removed, files that were written or read.
    """

    engine: str = "auto"
    full: bool = False
    reason: str | None = None
    tasks: int | None = None
    spark_from_nodes: int = 50_000
    restarts: int = 5

    def __post_init__(self) -> None:
        refuse_unknown(self.engine)
        if self.tasks is not None and self.tasks < 1:
            raise InvalidInput(f"tasks must be at least 1, not {self.tasks}")


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a compaction of a version would do at most: only the top of the tree was read.

    Attributes:
        version: the version it was computed at.
        engine: what it will run on.
        objects: keys in the tree; ``None`` where the root does not contain their number.
        messages: buffered messages that would be pushed down, perhaps not all the way.
        subtrees: dirty subtrees, the units of work.
        nodes: nodes to rewrite, at most. It is fewer where messages share leaves.
        bytes: what they take, at most, if their rows are as large as the root's.
        requests: storage requests, at most.
        full_bytes: what a full compaction would write, at most.
    """

    version: int
    engine: str
    objects: int | None
    messages: int | None
    subtrees: int
    nodes: int
    bytes: int
    requests: int
    full_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a compaction.

    ``counted`` is the number of objects where it was uncertain or wrong before, and was settled; else ``None``.
    """

    version_before: int
    version_after: int | None
    dry_run: bool
    plan: Estimate
    messages_before: int | None = 0
    messages_after: int | None = 0
    height_before: int | None = None
    height_after: int | None = None
    subtrees: int = 0
    nodes_read: int = 0
    nodes_written: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    rebased_over: int = 0
    restarts: int = 0
    proved: bool = False
    counted: int | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def bytes_per_message(self) -> int | None:
        """How many bytes were written for each message that was pushed down; ``None`` if none was."""
        return None if self.version_after is None else self._per_message(self.bytes_written)

    def _per_message(self, size: int) -> int | None:
        return size // self.plan.messages if self.plan.messages else None

    def summary(self) -> Iterator[str]:
        """Yield what the compaction did."""
        plan = self.plan
        messages = count(plan.messages, "message")
        if self.version_after is not None:
            written = f"{count(self.nodes_written, 'node')} written, {human_bytes(self.bytes_written)}"
            if self.proved:
                proved = ", proved to mean what was there before"
            else:
                proved = ""
            yield f"version {self.version_after} committed: {messages} pushed down, {written}{proved}"
            if self.messages_after and not self.rebased_over:
                left = count(self.messages_after, "message")
                yield f"{left} left in buffers, where they cost less than rewriting nodes (`--full` pushes them down)"
            if self.counted is not None:
                objects = count(self.counted, "object")
                yield f"{objects} counted: the number in the root was uncertain, or wrong"
        elif self.counted is not None:
            objects = count(self.counted, "object")
            yield f"{DRY_RUN}: {objects} would be counted; the number in the root is uncertain, or wrong"
        elif self.messages_before == 0:
            yield f"nothing to do: no message is buffered in version {self.version_before}"
        elif plan.messages == 0:
            waiting = count(self.messages_before, "message")
            yield f"nothing to do: {waiting} in buffers, where they cost less than rewriting nodes (`--full`)"
        else:
            nodes = f"at most {count(plan.nodes, 'node')} ({human_bytes(plan.bytes)})"
            cost = f"{nodes} and {count(plan.requests, 'request')}"
            yield f"{DRY_RUN}: {messages} would be pushed down, with {cost}, engine {plan.engine}"

    def summary_tables(self) -> Iterator[Table]:
        """Yield the root before and after, and what was planned beside what was done."""
        if self.version_after is not None:
            pairs = [
                ("version", self.version_before, self.version_after),
                ("buffered messages", self.messages_before, self.messages_after),
                ("height", self.height_before, self.height_after),
            ]
            yield Table("before and after", ("what", "before", "after"), pairs, detail=True)
            pairs = [
                ("nodes to rewrite", self.plan.nodes, self.nodes_written),
                ("bytes", self.plan.bytes, self.bytes_written),
                ("bytes per message", self._per_message(self.plan.bytes), self.bytes_per_message),
                ("bytes of a full compaction", self.plan.full_bytes, None),
            ]
            yield Table("at most, and measured", ("what", "at most", "measured"), pairs, detail=True)


def estimate(lake: Lakehouse, config: Config | None = None) -> Estimate:
    """Return an estimate of a compaction of the newest version. Reads the top of the tree only."""
    work = _Compaction(lake.refresh(), config or Config(), None, None, NEVER_CANCELLED, silent)
    _, frontier = work.open(1)
    return work.estimate(frontier)


def run(
    lake: Lakehouse,
    config: Config | None = None,
    spark: Session = None,
    *,
    review: Review[Report] | None = None,
    cancel: Cancel | None = None,
    progress: Progress | None = None,
) -> Report:
    """Compact the newest version of a lakehouse; the handle moves to it.

    The arguments are those of every job (:mod:`pipelines.job`), and:
        review: called with the plan, before anything is written; ``False`` writes nothing.
        cancel: checked right before the root is created.

    Raises:
        CommitConflict: rollbacks, or cleanings without a safety age, kept coming in between.
        ReadOnly, Corrupt, StorageError.
    """
    how = config or Config()

    def begin() -> _Compaction:
        return _Compaction(lake.refresh(), how, spark, review, cancel or NEVER_CANCELLED, progress or silent)

    report: Report = start_over_if_void(begin, how.restarts, TreeReplaced)
    lake.catch_up()  # no request: an error now would report a compaction that is done as a failure
    return report


class _Compaction(JobRun[Config, Report]):
    """One attempt at one version."""

    def __post_init__(self) -> None:
        nodes = self.backend.nodes
        self.base: Root = self.lake.root_node
        self.writer = NodeWriter(nodes)
        stamp = max(clock.now_millis(), self.base.created_at_millis)
        definition = self.backend.definition(self.base)
        kept_bytes = commit_buffer_bytes(definition) // 2
        paying = PayingChildren(self.writer.order, kept_bytes)
        self.paying = None if self.config.full or paying.flushes_all else paying
        """What chooses the messages that pay; ``None`` where all of them go all the way."""
        self.rewriter = Rewriter(self.writer, stamp, prove=True, partial=self.paying is not None)
        self.deleted_pivots = 0
        """Pivots of the root that go with what is flushed: the message that deleted one waits in the root."""
        self.counted: int | None = None
        self.nodes_read = nodes.counts.nodes_read
        self.bytes_read = nodes.counts.bytes_read

    def open(self, tasks: int) -> tuple[Ref, list[Ref]]:
        """Return the tree, opened at its top, and its dirty subtrees."""
        require_writable(self.backend, self.base)
        tree = self.rewriter.ref_of(self.base.node)
        self.top = self.rewriter.open(tree)
        if self.paying is None or tree.height == 0:
            dirty = self.rewriter.frontier(tree, tasks)
        else:
            chosen = self.choose(self.top)
            if chosen is not None:
                self.deleted_pivots = self.top.count_deleted()
            paying = [self.top.refs[index] for index in sorted(chosen or ())]
            dirty = self.rewriter.split_heavy(paying, tasks)
        return tree, dirty

    def choose(self, work: Work) -> Collection[int] | None:
        """Choose the children of a node to flush."""
        if self.paying is None:
            return dirty_children(work)
        return self.paying.of_root(work) if work is self.top else self.paying.of_others(work)

    def estimate(self, frontier: list[Ref]) -> Estimate:
        node = self.base.node
        cost = self.bound_cost(frontier)
        messages = node.subtree_messages
        if self.paying is not None and node.height:
            messages = self.deleted_pivots + sum(len(ref.pending) + (ref.messages or 0) for ref in frontier)
        if node.subtree_messages:
            full = bound_cost(self.base, self.writer.order)
        else:
            full = RewriteCost(0, 0, 0)
        return Estimate(
            version=self.base.version,
            engine=expected_engine(self.config.engine, self.spark, cost.nodes, self.config.spark_from_nodes),
            objects=node.subtree_keys,
            messages=messages,
            subtrees=len(frontier),
            nodes=cost.nodes,
            bytes=cost.bytes,
            requests=cost.requests,
            full_bytes=max(full.bytes, cost.bytes),
        )

    def bound_cost(self, frontier: list[Ref]) -> RewriteCost:
        """Return what the compaction costs at most, from what was opened of the tree."""
        node = self.base.node
        if not node.subtree_messages and not len(node.buffer):
            return RewriteCost(0, 0, 0)
        if node.height and self.paying is not None and not frontier:
            return RewriteCost(0, 0, 0)
        order = self.writer.order
        parts = []
        if not node.is_leaf:
            for ref in frontier:
                if ref.keys is None:
                    keys = order ** (ref.height + 1)
                else:
                    keys = ref.keys
                parts.append(DirtyPart(keys, ref.weight(), ref.height))
        opened = self.backend.nodes.counts.nodes_read - self.nodes_read
        return bound_cost(self.base, order, parts, opened, self.paying)

    def run(self) -> Report:
        node = self.base.node
        if node.subtree_messages == 0 and not len(node.buffer):
            return self.settle(node)
        tree, frontier = self.open(self.config.tasks or worker_pool.cores())
        planned = self.estimate(frontier)
        self.watch.lap("plan")
        if node.height and planned.messages == 0:  # nothing is worth it
            return self.review_plan(planned) or self.report(planned)
        refused = self.review_plan(planned)
        if refused is not None:
            return refused
        self.backend.refuse_unsafe()
        engine = choose_engine(self.config.engine, self.spark, planned.nodes, self.config.spark_from_nodes)
        with closing(engine):
            pieces, flushed = self.flush(engine, planned.nodes, frontier)
        planned = replace(planned, engine=engine.name, subtrees=len(pieces) or planned.subtrees)
        adopted = {id(piece): adopt(self.rewriter, row) for piece, row in zip(pieces, flushed, strict=True)}
        node = self.join(tree, adopted)
        self.watch.lap("flush")
        return self.commit(planned, node, flushed)

    def settle(self, node: Node) -> Report:
        """Commit the counts of a version in which no message waits, if its root does not say them, or says others."""
        planned = self.estimate([])
        self.count_objects(node)
        refused = self.review_plan(planned)
        if refused is not None or self.counted is None:
            return refused or self.report(planned)
        self.backend.refuse_unsafe()
        return self.commit(planned, node, [])

    def count_objects(self, node: Node) -> ObjectCounts | None:
        """Return the objects in the new tree; ``None`` where the root of the base is believed, or nodes do not count.

        A full compaction believes no root. At most two ``get`` for each level.
        """
        codec = codec_of(self.backend.definition(self.base))
        counts = None
        if self.config.full:
            counts = object_counts(self.backend.nodes, node, codec)
        elif self.base.counts is None:
            counts = settle_counts(self.backend.nodes, node, codec, self.base.count_bounds)
        if counts is not None and counts != self.base.counts:
            self.counted = counts.total
        return counts

    def commit(self, planned: Estimate, node: Node, flushed: list[Row]) -> Report:
        self.progress("commit", 0, 1)
        summary = commit_summary(
            reason=self.config.reason,
            messages=planned.messages,
            nodes_written=len(self.writer.written),
            compacted_version=self.base.version,
            engine=planned.engine,
        )
        counts = self.count_objects(node)
        change = CompactionChange(node, summary, counts)
        root = commit(self.backend, self.base, change, before_commit=self.cancel.check)
        self.watch.lap("commit")
        return replace(
            self.report(planned, flushed),
            version_after=root.version,
            messages_after=root.node.subtree_messages,
            height_after=node.height,
            nodes_written=len(self.writer.written) + sum(each["nodes_written"] for each in flushed) + 1,  # and the root
            bytes_written=self.writer.bytes_written + sum(each["bytes_written"] for each in flushed) + root.node.nbytes,
            rebased_over=change.rebased_over,
            proved=True,
        )

    def review_plan(self, planned: Estimate) -> Report | None:
        """Have the plan reviewed; return its report if the compaction ends with it."""
        report = replace(self.report(planned), dry_run=True)
        return report if self.ends_with(report) else None

    def flush(self, engine: Engine, nodes: int, frontier: list[Ref]) -> tuple[list[Ref], list[Row]]:
        """Flush subtrees; return those that were handed out, with the results. Few nodes are left to the join."""
        few = nodes * self.writer.order < _SHARED_FROM_ROWS or len(frontier) < 2
        if not frontier or (few and engine.name == "local"):
            return [], []
        tasks = engine.tasks(self.config.tasks)
        if engine.name == "spark":
            self.watch.lap("session")
        pieces = split_for_tasks(self.rewriter, self.rewriter.split_heavy(frontier, tasks), tasks)
        flushed = subtrees.flush_all(
            engine, self.backend.nodes, pieces, self.rewriter.stamp, tasks, self.progress, self.paying
        )
        if not all(result["proved"] for result in flushed):
            raise Corrupt("the proof of a subtree failed: nothing was committed; please report this as a bug")
        self.watch.lap("tasks")
        return pieces, flushed

    def join(self, tree: Ref, flushed: dict[int, Ref]) -> Node:
        """Return the root of the tree with the flushed subtrees in it, proved; what is dirty besides is flushed."""

        def descend(ref: Ref) -> Ref:
            done = flushed.get(id(ref))
            if done is not None:
                return done
            return self.rewriter.flush(ref, choose, descend)

        def choose(work: Work) -> Collection[int] | None:
            done = {index for index, ref in enumerate(work.refs) if id(ref) in flushed}
            chosen = self.choose(work)
            if chosen is None and not done:
                return None
            return done.union(chosen or ())  # none of them: what is left to flush are pivots that were deleted

        joined = self.rewriter.flush(tree, choose, descend if flushed else None)
        self.rewriter.open(joined)
        node = self.rewriter.node_of(joined)
        self.writer.flush()
        if not self.rewriter.is_proved():
            raise Corrupt("the proof of the compaction failed: nothing was committed; please report this as a bug")
        return node

    def report(self, planned: Estimate, flushed: Sequence[Row] = ()) -> Report:
        """Return the report of a compaction that has committed nothing yet."""
        before = self.base.node
        counts = self.backend.nodes.counts
        return Report(
            version_before=self.base.version,
            version_after=None,
            dry_run=False,
            plan=planned,
            messages_before=before.subtree_messages,
            messages_after=before.subtree_messages,
            height_before=before.height,
            height_after=before.height,
            counted=self.counted,
            subtrees=planned.subtrees,
            nodes_read=counts.nodes_read - self.nodes_read + sum(each["nodes_read"] for each in flushed),
            bytes_read=counts.bytes_read - self.bytes_read + sum(each["bytes_read"] for each in flushed),
            seconds=dict(self.watch.seconds),
        )
