"""Bulk load: many new objects as one version, without messages (``docs/format.md``, operation ``load``).

The source is JSON Lines: on each line one entry of ``entries`` that creates an object.

    {"create_namespace": {"namespace": "sales"}}
    {"create_table": {"namespace": "sales", "name": "orders", "schema": [{"name": "id", "type": "bigint"}]}}

All lines are read and checked before anything is written. Then the entries, new and old, are sorted, each range of
keys is packed into a tree of its own, and the driver joins the trees and commits one root. So a load reads and
rewrites every node, however few objects it brings: it pays from some per cent of the lakehouse on, ``apply`` below.
Writers go on during a load. Their commits stay, unless they touch objects that are loaded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from itertools import pairwise
from operator import itemgetter
from typing import Any, Final

import pyarrow as pa

from pipelines.engine import Row, Rows
from pipelines.engine.choice import choose_engine
from pipelines.engine.counting import (
    COUNTING,
    IS_NO_COUNT,
    MARK,
    CountedGroups,
    GivenRows,
    ask_of_given,
    with_counts,
    without_counts,
)
from pipelines.engine.model import GroupWork
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
from pipelines.reports.summary import DRY_RUN, count, human_bytes
from pipelines.source import loading
from pipelines.source.lines import TextPlace, cut_into_blocks, describe_place, find_text_files
from pipelines.source.loading import (
    EXISTING,
    REFUSE,
    SHOWN,
    SKIP,
    LoadCounts,
    ShareTree,
    Tally,
    Target,
    WrongLine,
    prove_complete,
    refuse_wrong_lines,
    sum_tallies,
)
from pipelines.trees.subtrees import adopt
from trinitylake_core import Lakehouse, clock
from trinitylake_core.commits.changes import FilesVoid, LoadChange, commit_summary
from trinitylake_core.commits.commit import commit, require_writable
from trinitylake_core.commits.frozen import refuse_frozen
from trinitylake_core.errors import AlreadyExists, Corrupt, InvalidInput, ObjectNotFound
from trinitylake_core.storage import Storage, options_for
from trinitylake_core.tree.node import Node
from trinitylake_core.tree.nodestore import NodeWriter
from trinitylake_core.tree.rewrite import Rewriter
from trinitylake_core.versions import Root, objects_of

SUFFIXES: Final = (".jsonl", ".ndjson", ".json")
_SHARE: Final = "share"
"""The column with the number of a share."""


@dataclass(frozen=True, slots=True)
class Config:
    """How to load.

    Attributes:
        existing: what becomes of an object that is there already: ``refuse`` the load, ``skip`` the object, or
            ``replace`` its definition.
        engine: ``spark``, ``local`` (this machine, a process per core; what is loaded waits in temporary files),
            or ``auto``: Spark on other machines from ``spark_from_bytes`` of source on.
        reason: why, for the history.
        spark_from_bytes: where ``auto`` changes from this process to Spark.
        restarts: how often to start over after `clean` removed, or may have removed, what was written or read.
    """

    existing: str = REFUSE
    engine: str = "auto"
    reason: str | None = None
    spark_from_bytes: int = 128 << 20
    restarts: int = 5

    def __post_init__(self) -> None:
        refuse_unknown(self.engine)
        if self.existing not in EXISTING:
            raise InvalidInput(f"existing must be one of {', '.join(EXISTING)}, not {self.existing!r}")


@dataclass(frozen=True, slots=True)
class Report:
    """What a load did. ``source`` is the file or the directory.

    ``version_after`` is ``None`` on a dry run, or when everything was skipped.
    """

    root: str
    source: str
    version_before: int
    version_after: int | None
    dry_run: bool
    engine: str
    files: int
    source_bytes: int
    added: int
    replaced: int
    skipped: int
    objects: int | None
    trees: int = 0
    nodes_written: int = 0
    bytes_written: int = 0
    rebased_over: int = 0
    restarts: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    def summary(self) -> Iterator[str]:
        """Yield what the load did."""
        if self.version_after is None:
            if self.dry_run:
                yield DRY_RUN
            else:
                yield "nothing to do"
        elif self.objects is None:
            yield f"version {self.version_after} committed"
        else:
            yield f"version {self.version_after} committed; it holds {count(self.objects, 'object')}"
        counts = {"added": self.added, "replaced": self.replaced, "skipped": self.skipped}
        objects = ", ".join(f"{number:,} {what}" for what, number in counts.items() if number)
        yield f"objects: {objects or 'none'}, from {count(self.files, 'file')} ({human_bytes(self.source_bytes)})"


def run(
    lake: Lakehouse,
    source: str,
    config: Config | None = None,
    spark: Session = None,
    *,
    review: Review[Report] | None = None,
    cancel: Cancel | None = None,
    progress: Progress | None = None,
    source_options: Mapping[str, Any] | None = None,
) -> Report:
    """Load the objects in a file, or in the files of a directory, as a version; the handle moves to it.

    The arguments are those of every job (:mod:`pipelines.job`), and:
        source: the URI, or a local path, of a file of JSON Lines, perhaps compressed (``.gz``), or of a directory.
        review: called with what would be loaded, when every line is checked; ``False`` writes nothing.
        cancel: checked right before the root is created.
        source_options: storage options for the source; by default those of the lakehouse that apply to it.

    Costs one ``get`` per node that is there, a second one right below the root, one ``put`` per definition and new
    node, and one ``create``.

    Raises:
        InvalidInput: a line is not an object, or an object is given twice; nothing was written.
        AlreadyExists, ObjectNotFound: an object is there already, a namespace is not; nothing was written.
        CommitConflict: others changed the same objects, dropped a skipped one, or replaced the tree; load again.
        LakehouseFrozen: the lakehouse takes no loads now.
        ReadOnly, Corrupt, StorageError.
    """
    how = config or Config()
    options = options_for(source, *lake.storage.spec()) if source_options is None else source_options

    def begin() -> _Load:
        return _Load(
            lake=lake.refresh(),
            config=how,
            spark=spark,
            review=review,
            cancel=cancel or NEVER_CANCELLED,
            progress=progress or silent,
            uri=source,
            options=options,
        )

    report: Report = start_over_if_void(begin, how.restarts, FilesVoid)
    return report


@dataclass(eq=False, kw_only=True)
class _Load(JobRun[Config, Report]):
    uri: str
    options: Mapping[str, Any]

    def __post_init__(self) -> None:
        lake = self.lake
        self.base: Root = lake.root_node
        require_writable(lake.backend, self.base)
        refuse_frozen(lake.backend)
        self.source, self.sources = find_text_files(self.uri, self.options, SUFFIXES)
        self.named = self.name_source()
        self.bytes = sum(size for _, size in self.sources)
        # nothing but the size is known yet
        self.engine = choose_engine(self.config.engine, self.spark, self.bytes, self.config.spark_from_bytes)
        nodes = lake.backend.nodes
        self.target = Target(
            codec=lake.codec,
            order=nodes.order,
            target_bytes=nodes.target_bytes,
            stamp=max(clock.now_millis(), self.base.created_at_millis),
            cleaned=lake.root if self.base.tables_void_before_millis else "",
        )
        self.cuts: Sequence[str] = ()
        self.objects = 0
        self.unchanged = Tally()
        self.asked = GivenRows(0)
        """What the rows of the shares ask of work on them."""

    def name_source(self) -> str:
        """Return the URI of the source: of a file if one was named, and otherwise of the directory."""
        if len(self.sources) == 1 and not self.uri.endswith("/"):
            ((name, _),) = self.sources
            if self.uri.endswith(name):
                return self.source.root + name
        return self.source.root

    def run(self) -> Report:
        with closing(self.engine):
            new = self.read()
            self.watch.lap("read")
            both, counts = self.compare(new)
            self.watch.lap("compare")
            planned = replace(self.report(counts), dry_run=True)
            if self.ends_with(planned):
                return planned
            if not counts.added + counts.replaced:
                return self.report(counts)
            self.lake.backend.refuse_unsafe()
            trees = self.build(both)
            self.watch.lap("build")
            return self.commit(counts, trees, partial(self.find_given, both))

    def map_blocks(
        self,
        phase: str,
        work: GroupWork,
        blocks: Rows,
        schema: pa.Schema,
        storage: Storage,
    ) -> Rows:
        """Return the result of work on each block."""
        return self.engine.map_groups(
            work,
            blocks,
            schema,
            storage,
            by="number",
            weight="weight",
            # what the blocks have for the shares is taken by share afterwards; a sample has none
            key=_SHARE if _SHARE in schema.names else "",
            progress=partial(self.progress, phase),
        )

    def count_share_rows(self, what: str, blocks: Sequence[Row], rows: Rows) -> Tally:
        """Return the tally of what all blocks have for the shares. Raises ``StorageError``: the engine lost rows.

        What these rows ask of work on them is added to what all ask.
        """
        listed = self.engine.sql(f"SELECT objects, hash, {', '.join(COUNTING)} FROM rows r", rows=rows).list()
        tally = Tally()
        number = 0
        marks = 0
        for row in without_counts(what, ask_of_given(blocks, "number"), listed):
            tally += Tally(row["objects"], int(row["hash"] or 0))
            number += 1
            marks += row[MARK]
        self.asked = GivenRows(self.asked.rows + number, self.asked.keys + marks)
        return tally

    def list_in_shares(
        self,
        phase: str,
        work: GroupWork,
        both: Rows,
        schema: pa.Schema,
        *storages: Storage,
    ) -> list[Row]:
        """Return the result of work on each share. Raises ``StorageError``: the engine lost rows."""
        made = self.engine.map_groups(
            CountedGroups(work, schema, MARK),
            both,
            with_counts(schema),
            *storages,
            by=_SHARE,
            weight="objects",
            progress=partial(self.progress, phase),
        )
        return list(without_counts("rows of shares", self.asked, made.list()))

    def read(self) -> Rows:
        """Return all objects of the source, divided among the shares."""
        block_bytes = loading.block_bytes(self.sources, self.engine.tasks())
        blocks = []
        for number, block in enumerate(cut_into_blocks(self.sources, block_bytes)):
            blocks.append(loading.block_row(number, block))
        given = self.engine.table(blocks, loading.SOURCE_BLOCK).keep("number", repeatable=True)
        try:
            sample_keys = partial(loading.sample_keys, target=self.target)
            sample = self.map_blocks(
                "sample",
                sample_keys,
                given,
                loading.SAMPLE,
                self.source,
            )
            self.guess_cuts(sample)
            read_blocks = partial(loading.read_source_blocks, target=self.target, cuts=self.cuts)
            new = self.map_blocks(
                "read bytes",
                CountedGroups(read_blocks, loading.SHARE_ROW, "number"),
                given,
                with_counts(loading.SHARE_ROW),
                self.source,
            )
        except InvalidInput:
            self.refuse_wrong_lines(given)
            raise
        self.objects = self.count_share_rows("blocks of the source", blocks, new).count
        if not self.objects:
            raise InvalidInput(
                f"there is nothing to load at {self.named}: {count(len(self.sources), 'file')}, no lines"
            )
        self.progress("read", self.objects, self.objects)
        return new

    def refuse_wrong_lines(self, blocks: Rows) -> None:
        """Refuse all wrong lines at once, if there are several: who corrects one wants to know of the others."""
        list_wrong_lines = partial(loading.list_wrong_lines, target=self.target)
        rows = self.engine.map(
            list_wrong_lines,
            blocks,
            loading.WRONG,
            self.source,
            each=1,
        ).list()
        found = []
        for row in rows:
            found.append(WrongLine(_place_of(row), row["why"]))
        number = sum(row["wrong"] for row in rows)
        refuse_wrong_lines(self.source, number, found)

    def guess_cuts(self, sample: Rows) -> None:
        """Guess where shares of about the same size begin. One ``get`` per child of the root that is no leaf."""
        node = self.base.node
        keys = [*node.keys, *node.buffer.keys]
        if (node.height or 0) > 1:
            for child in self.lake.backend.nodes.read_many(node.children):
                keys += child.keys
        keys_below = node.subtree_keys or 0
        stands_for = max(1, keys_below // max(1, len(keys)))
        weighed = [(key, stands_for) for key in keys]
        for row in sample.list():
            weighed.append((row["key"], row["objects"]))
        self.cuts = loading.guess_cuts(weighed, self.engine.tasks())
        sample.drop()

    def read_existing(self) -> Rows:
        """Return the entries of the base, divided among the shares. One ``get`` per node."""
        blocks = self.list_tree_blocks()
        given = self.engine.table(blocks, loading.TREE_BLOCK).keep("number", repeatable=True)
        base = loading.LoadBase(self.base.path, bytes(self.base.data))
        read_blocks = partial(loading.read_tree_blocks, target=self.target, base=base, cuts=self.cuts)
        old = self.map_blocks(
            "read tree",
            CountedGroups(read_blocks, loading.SHARE_ROW, "number"),
            given,
            with_counts(loading.SHARE_ROW),
            self.lake.storage,
        )
        self.unchanged = self.count_share_rows("blocks of the tree", blocks, old)
        return old

    def list_tree_blocks(self) -> list[Row]:
        """Return the children of the root in blocks of about the same number."""
        children = len(self.base.node.children) or 1
        blocks = min(children, loading.block_count(self.engine.tasks()))
        ends = [children * block // blocks for block in range(blocks + 1)]
        rows: list[Row] = []
        for start, stop in pairwise(ends):
            row = {"number": len(rows), "start": start, "stop": stop, "weight": stop - start}
            rows.append(row)
        return rows

    def compare(self, new: Rows) -> tuple[Rows, LoadCounts]:
        """Compare with what is there, proved, and decide what to load; return all rows of the shares, too."""
        old = self.read_existing()
        columns = ", ".join((*loading.SHARE_ROW.names, MARK))
        query = f"SELECT {columns} FROM new WHERE {IS_NO_COUNT} UNION ALL SELECT {columns} FROM old WHERE {IS_NO_COUNT}"
        both = self.engine.sql(query, new=new, old=old)
        found = self.list_in_shares("compare", loading.compare_shares, both, loading.FOUND)
        found.sort(key=itemgetter("share", "key", "file", "offset"))
        self.refuse_found(found)
        rows_there = [row for row in found if row["what"] == loading.ALL_THERE]
        there = sum_tallies(rows_there)
        added = self.objects - there.count
        if self.config.existing == SKIP:
            return both, LoadCounts(added=added, skipped=there.count)
        self.unchanged -= there
        return both, LoadCounts(added=added, replaced=there.count)

    def refuse_found(self, found: Sequence[Row]) -> None:
        """Refuse what cannot be loaded. Raises ``InvalidInput``, ``ObjectNotFound``, ``AlreadyExists``."""
        kinds: dict[str, list[Row]] = defaultdict(list)
        for row in found:
            kinds[row["what"]].append(row)
        twice = kinds[loading.TWICE]
        missing = kinds[loading.MISSING]
        there = kinds[loading.THERE]
        if twice:
            first, second, *_ = twice
            where = f"{self.describe_place(first)} and {self.describe_place(second)}"
            raise InvalidInput(f"{self.describe_object(first)} appears twice: {where}; nothing was loaded")
        if missing:
            self.refuse_missing(missing)
        if there and self.config.existing == REFUSE:
            number = sum(row["objects"] for row in kinds[loading.ALL_THERE])
            self.refuse_existing(there, number)

    def refuse_missing(self, rows: Sequence[Row]) -> None:
        names = []
        for row in rows[:SHOWN]:
            _, namespace, _ = self.target.codec.split(row["key"])
            names.append(repr(namespace))
        if len(rows) > SHOWN:
            names.append("...")
        raise ObjectNotFound(
            f'there is no namespace {", ".join(names)}; load it, too: {{"create_namespace": {{"namespace": ...}}}}'
        )

    def refuse_existing(self, rows: Sequence[Row], number: int) -> None:
        """Raise ``AlreadyExists``: ``number`` objects are in the lakehouse already; ``rows`` are some of them."""
        names = []
        for row in rows[:SHOWN]:
            what = self.describe_object(row)
            where = self.describe_place(row)
            names.append(f"{what} ({where})")
        if number > SHOWN:
            names.append("...")
        raise AlreadyExists(
            f"{number} objects exist already: {', '.join(names)}; `--existing skip` leaves "
            "such objects as they are, `--existing replace` gives them the new definition"
        )

    def describe_object(self, row: Row) -> str:
        name = self.target.codec.decode(row["key"])
        return f"{name.kind} {str(name)!r}"

    def describe_place(self, row: Row) -> str:
        return describe_place(self.source, _place_of(row))

    def build(self, both: Rows) -> Sequence[ShareTree]:
        """Write the definitions, and one tree per share. One ``put`` per file."""
        build_shares = partial(loading.build_shares, target=self.target, existing=self.config.existing)
        built = self.list_in_shares(
            "build",
            build_shares,
            both,
            loading.BUILT,
            self.lake.storage,
        )
        return sorted(built, key=itemgetter("first"))

    def find_given(self, both: Rows, keys: Sequence[str]) -> Sequence[str]:
        """Return those of some keys that the source gives: a pass over the shares, if somebody dropped objects."""
        find_given = partial(loading.find_given, keys=frozenset(keys))
        found = self.list_in_shares("look again", find_given, both, loading.FOUND)
        return [row["key"] for row in found]

    def commit(
        self, counts: LoadCounts, trees: Sequence[ShareTree], find_given: Callable[[Sequence[str]], Sequence[str]]
    ) -> Report:
        writer = NodeWriter(self.lake.backend.nodes)
        prove_complete(counts, self.unchanged, trees)
        node = self.join(writer, trees)
        if self.base.node.subtree_messages == 0:  # only then the root knows how many objects there are
            known = self.base.counts
            if known is None:
                before = self.base.node.subtree_keys
            else:
                before = known.total
            if before is not None and node.subtree_keys != before + counts.added:
                raise Corrupt(
                    "objects were lost during the load, so nothing was committed; please report this as a bug"
                )
        self.progress("commit", 0, 1)
        summary = commit_summary(
            reason=self.config.reason,
            added=counts.added,
            replaced=counts.replaced,
            skipped=counts.skipped,
            engine=self.engine.name,
            source=self.named,
        )
        change = LoadChange(
            backend=self.lake.backend,
            base=self.base,
            node=node,
            summary=summary,
            find_skipped=find_given if counts.skipped else None,
        )
        root = commit(self.lake.backend, self.base, change, before_commit=self.cancel.check)
        self.lake.catch_up()
        self.watch.lap("commit")
        planned = self.report(counts)
        return replace(
            planned,
            version_after=root.version,
            objects=objects_of(root.node),
            trees=len(trees),
            nodes_written=len(writer.written) + sum(tree["nodes_written"] for tree in trees) + 1,  # and the root
            bytes_written=writer.bytes_written + sum(tree["bytes_written"] for tree in trees),
            rebased_over=change.rebased_over,
        )

    def join(self, writer: NodeWriter, trees: Sequence[ShareTree]) -> Node:
        """Return the root of one tree of all shares, proved. A few ``get`` per share, along its edges.

        The right edges, where the next share is joined, are read at the same time, a round trip per level.
        """
        rewriter = Rewriter(writer, self.target.stamp, prove=True)
        parts = [adopt(rewriter, tree) for tree in trees]
        rewriter.open_right_edges(parts[:-1])
        whole = reduce(rewriter.join_without_key, parts)
        node = rewriter.node_of(whole)
        writer.flush()
        if not rewriter.is_proved():
            raise Corrupt("the proof of a load failed: nothing was committed, please report this as a bug")
        return node

    def report(self, counts: LoadCounts) -> Report:
        """Return the report of a load that has committed nothing yet."""
        return Report(
            root=self.lake.root,
            source=self.named,
            version_before=self.base.version,
            version_after=None,
            dry_run=False,
            engine=self.engine.name,
            files=len(self.sources),
            source_bytes=self.bytes,
            added=counts.added,
            replaced=counts.replaced,
            skipped=counts.skipped,
            objects=objects_of(self.base.node),
            seconds=dict(self.watch.seconds),
        )


def _place_of(row: Row) -> TextPlace:
    return TextPlace(row["file"], row["offset"])
