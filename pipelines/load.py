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

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from itertools import count as numbers
from itertools import pairwise
from operator import itemgetter
from typing import Any, Final

import pyarrow as pa

from pipelines import loading
from pipelines.engine import Row, Rows
from pipelines.engine.model import GroupWork
from pipelines.engine_choice import choose_engine
from pipelines.job import NEVER_CANCELLED, Cancel, JobRun, Progress, Review, Session, refuse_unknown, silent
from pipelines.loading import (
    EXISTING,
    REFUSE,
    SHOWN,
    SKIP,
    Built,
    Counts,
    Tally,
    Target,
    Wrong,
    prove_complete,
    refuse_wrong,
)
from pipelines.source.lines import Place, cut_into_blocks, describe_place, find_text_files
from pipelines.summary import DRY_RUN, count, human_bytes
from pipelines.trees.subtrees import adopt
from trinitylake_core import Lakehouse
from trinitylake_core.commits.changes import FilesVoid, LoadChange, commit_summary
from trinitylake_core.commits.commit import commit, now_millis, require_writable
from trinitylake_core.commits.fences import may_be_void
from trinitylake_core.commits.frozen import refuse_frozen
from trinitylake_core.errors import AlreadyExists, Corrupt, InvalidInput, ObjectNotFound
from trinitylake_core.storage import Storage, options_for
from trinitylake_core.tree.node import Node
from trinitylake_core.tree.nodestore import NodeWriter
from trinitylake_core.tree.rewrite import Rewriter
from trinitylake_core.versions import Root, objects_of

_LOG: Final = logging.getLogger(__name__)
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
        counts = {"added": self.added, "replaced": self.replaced, "skipped": self.skipped}
        objects = ", ".join(f"{number:,} {what}" for what, number in counts.items() if number) or "none"
        if self.version_after is not None:
            there = "" if self.objects is None else f"; it holds {count(self.objects, 'object')}"
            yield f"version {self.version_after} committed{there}"
        else:
            yield DRY_RUN if self.dry_run else "nothing to do"
        yield f"objects: {objects}, from {count(self.files, 'file')} ({human_bytes(self.source_bytes)})"


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

    The arguments are those of every job (:class:`pipelines.job.Job`), and:
        source: the URI, or a local path, of a file of JSON Lines, perhaps compressed (``.gz``), or of a directory.
        review: called with what would be loaded, when every line is checked; ``False`` writes nothing.
        cancel: checked right before the root is created.
        source_options: storage options for the source; by default those of the lakehouse that apply to it.

    Costs one ``get`` per node that is there, a second one right below the root, one ``put`` per definition and new
    node, and one ``create``.

    Raises:
        InvalidInput: a line is not an object, or an object is given twice; nothing was written.
        AlreadyExists, ObjectNotFound: an object is there already, a namespace is not; nothing was written.
        CommitConflict: another writer changed the same objects, or replaced the tree; load again.
        LakehouseFrozen: the lakehouse takes no loads now.
        ReadOnly, Corrupt, StorageError.
    """
    options = options_for(source, *lake.storage.spec()) if source_options is None else source_options
    config = config or Config()
    for restart in range(config.restarts + 1):
        call = (lake.refresh(), config, spark, review, cancel or NEVER_CANCELLED, progress or silent)
        work = _Load(*call, uri=source, options=options)
        try:
            report = work.run()
        except (FilesVoid, Corrupt) as error:
            if restart == config.restarts or (isinstance(error, Corrupt) and not may_be_void(lake.files, work.base)):
                raise
            _LOG.warning("starting over: %s", error)
        else:
            return replace(report, restarts=restart)
    raise AssertionError("unreachable")


@dataclass(eq=False, kw_only=True)
class _Load(JobRun[Config, Report]):
    uri: str
    options: Mapping[str, Any]

    def __post_init__(self) -> None:
        lake, uri = self.lake, self.uri
        self.base: Root = lake.root_node
        require_writable(lake.files, self.base)
        refuse_frozen(lake.files)
        self.source, self.sources = find_text_files(uri, self.options, SUFFIXES)
        single = [name for name, _ in self.sources if uri.endswith(name) and not uri.endswith("/")]
        self.named = self.source.root + (single[0] if len(self.sources) == 1 and single else "")
        self.bytes = sum(size for _, size in self.sources)
        # nothing but the size is known yet
        self.engine = choose_engine(self.config.engine, self.spark, self.bytes, self.config.spark_from_bytes)
        store = lake.files.store
        stamp = max(now_millis(), self.base.created_at_millis)
        cleaned = lake.root if self.base.tables_void_before_millis else ""
        self.target = Target(lake.codec, store.order, store.target_bytes, stamp, cleaned)
        self.cuts: Sequence[str] = ()
        self.unchanged = Tally()

    def run(self) -> Report:
        with closing(self.engine):
            new = self.read()
            self.watch.lap("read")
            both, counts = self.compare(new)
            self.watch.lap("compare")
            planned = replace(self.report(counts), dry_run=True)
            if self.review is not None and not self.review(planned):
                return planned
            if not counts.added + counts.replaced:
                return self.report(counts)
            self.lake.files.refuse_unsafe(self.base)
            made = self.build(both)
            self.watch.lap("build")
        return self.committed(counts, made)

    def grouped(
        self, phase: str, work: GroupWork, rows: Rows, schema: pa.Schema, *storages: Storage, by: str, key: str = ""
    ) -> Rows:
        """Return the result of work on blocks or parts, by ``number``, or on shares."""
        weight, progress = "objects" if by == _SHARE else "weight", partial(self.progress, phase)
        return self.engine.map_groups(work, rows, schema, *storages, by=by, weight=weight, key=key, progress=progress)

    def read(self) -> Rows:
        """Return all objects of the source as slices."""
        each = loading.block_bytes(self.sources, self.engine.tasks())
        rows = map(loading.block_row, numbers(), cut_into_blocks(self.sources, each))
        given = self.engine.table(rows, loading.BLOCK).keep("number", repeatable=True)
        try:
            work = partial(loading.sampled, target=self.target)
            self.cut(self.grouped("sample", work, given, loading.SAMPLE, self.source, by="number"))
            work = partial(loading.read, target=self.target, cuts=self.cuts)
            new = self.grouped("read bytes", work, given, loading.SLICE, self.source, by="number", key=_SHARE)
        except InvalidInput:
            wrong = partial(loading.wrong, target=self.target)
            rows_of_wrong = self.engine.map(wrong, given, loading.WRONG, self.source, each=1).list()
            found = [Wrong(_place(row), row["why"]) for row in rows_of_wrong]
            refuse_wrong(self.source, sum(row["wrong"] for row in rows_of_wrong), found)
            raise
        self.objects = self.engine.sql("SELECT coalesce(sum(objects), 0) AS objects FROM new", new=new).one()["objects"]
        if not self.objects:
            raise InvalidInput(
                f"there is nothing to load at {self.named}: {count(len(self.sources), 'file')}, no lines"
            )
        self.progress("read", self.objects, self.objects)
        return new

    def cut(self, sample: Rows) -> None:
        """Guess where shares of about the same size begin. One ``get`` per child of the root that is no leaf."""
        node = self.base.node
        keys = [*node.keys, *node.buffer.keys]
        if (node.height or 0) > 1:
            keys += (key for child in self.lake.files.store.read_many(node.children) for key in child.keys)
        each = max(1, (node.subtree_keys or 0) // max(1, len(keys)))
        new = ((row["key"], row["objects"]) for row in sample.list())
        self.cuts = loading.cuts_between([*new, *((key, each) for key in keys)], self.engine.tasks())
        sample.drop()

    def existing(self) -> Rows:
        """Return the entries of the base as slices. One ``get`` per node."""
        node = self.base.node
        children = len(node.children) or 1
        parts = min(children, loading.parts(self.engine.tasks()))
        ends = [children * part // parts for part in range(parts + 1)]
        rows = [
            {"number": number, "start": start, "stop": stop, "weight": stop - start}
            for number, (start, stop) in enumerate(pairwise(ends))
        ]
        base = loading.Base(self.base.path, bytes(self.base.data))
        work = partial(loading.existing, target=self.target, base=base, cuts=self.cuts)
        given = self.engine.table(rows, loading.PART).keep("number", repeatable=True)
        return self.grouped("read tree", work, given, loading.SLICE, self.lake.storage, by="number", key=_SHARE)

    def compare(self, new: Rows) -> tuple[Rows, Counts]:
        """Compare with what is there, proved, and decide what to load; return all slices, too."""
        old = self.existing()
        rows = self.engine.sql("SELECT objects, hash FROM old", old=old).list()
        self.unchanged = Tally(sum(row["objects"] for row in rows), sum(int(row["hash"]) for row in rows))
        both = self.engine.sql("SELECT * FROM new UNION ALL SELECT * FROM old", new=new, old=old)
        found = self.grouped("compare", loading.compared, both, loading.FOUND, by=_SHARE).list()
        found.sort(key=itemgetter("share", "key", "file", "offset"))
        self.refuse(found)
        tallies = [row for row in found if row["what"] == loading.ALL_THERE]
        there = Tally(sum(row["objects"] for row in tallies), sum(int(row["hash"]) for row in tallies))
        if self.config.existing == SKIP:
            return both, Counts(self.objects - there.count, 0, there.count)
        self.unchanged -= there
        return both, Counts(self.objects - there.count, there.count, 0)

    def refuse(self, found: Sequence[Row]) -> None:
        """Refuse what cannot be loaded. Raises ``InvalidInput``, ``ObjectNotFound``, ``AlreadyExists``."""
        kinds = (loading.TWICE, loading.MISSING, loading.THERE, loading.ALL_THERE)
        twice, missing, there, counted = ([row for row in found if row["what"] == kind] for kind in kinds)
        codec, source = self.target.codec, self.source

        def named(key: str) -> str:
            name = codec.decode(key)
            return f"{name.kind} {str(name)!r}"

        if twice:
            where = " and ".join(describe_place(source, _place(row)) for row in twice[:2])
            raise InvalidInput(f"{named(twice[0]['key'])} appears twice: {where}; nothing was loaded")
        if missing:
            names = ", ".join(repr(codec.split(row["key"])[1]) for row in missing[:SHOWN])
            raise ObjectNotFound(
                f"there is no namespace {names}{', ...' if len(missing) > SHOWN else ''}; load it, too: "
                '{"create_namespace": {"namespace": ...}}'
            )
        if there and self.config.existing == REFUSE:
            names = ", ".join(f"{named(row['key'])} ({describe_place(source, _place(row))})" for row in there[:SHOWN])
            number = sum(row["objects"] for row in counted)
            raise AlreadyExists(
                f"{number} objects exist already: {names}{', ...' if number > SHOWN else ''}; `--existing skip` leaves "
                "such objects as they are, `--existing replace` gives them the new definition"
            )

    def build(self, both: Rows) -> Sequence[Built]:
        """Write the definitions, and one tree per share. One ``put`` per file."""
        work = partial(loading.built, target=self.target, existing=self.config.existing)
        found = self.grouped("build", work, both, loading.BUILT, self.lake.storage, by=_SHARE).list()
        return sorted(found, key=itemgetter("first"))

    def committed(self, counts: Counts, built: Sequence[Built]) -> Report:
        writer = NodeWriter(self.lake.files.store)
        prove_complete(counts, self.unchanged, built)
        node = self.joined(writer, built)
        before = objects_of(self.base.node) if self.base.node.subtree_messages == 0 else None
        if before is not None and node.subtree_keys != before + counts.added:
            raise Corrupt("objects were lost during the load, so nothing was committed; please report this as a bug")
        self.progress("commit", 0, 1)
        summary = commit_summary(
            reason=self.config.reason, added=counts.added, replaced=counts.replaced, skipped=counts.skipped,
            engine=self.engine.name, source=self.named,
        )  # fmt: skip
        change = LoadChange(self.lake.files, self.base, node, summary)
        root = commit(self.lake.files, self.base, change, before_commit=self.cancel.check)
        self.lake.catch_up()
        self.watch.lap("commit")
        return self.report(counts, built, root, writer, change.rebased_over)

    def joined(self, writer: NodeWriter, built: Sequence[Built]) -> Node:
        """Return the root of one tree of all ranges, proved. A few ``get`` per range, along its edges.

        The right edges, where the next range is joined, are read at the same time, a round trip per level.
        """
        rewriter = Rewriter(writer, self.target.stamp, prove=True)
        trees = [adopt(rewriter, each) for each in built]
        rewriter.open_right_edges(trees[:-1])
        node = rewriter.node_of(reduce(rewriter.join_without_key, trees))
        writer.flush()
        if not rewriter.proved():
            raise Corrupt("the proof of a load failed: nothing was committed, please report this as a bug")
        return node

    def report(
        self,
        counts: Counts,
        built: Sequence[Built] = (),
        root: Root | None = None,
        writer: NodeWriter | None = None,
        rebased_over: int = 0,
    ) -> Report:
        joined = (0, 0) if writer is None else (len(writer.written), writer.bytes_written)
        return Report(
            root=self.lake.root,
            source=self.named,
            version_before=self.base.version,
            version_after=None if root is None else root.version,
            dry_run=False,
            engine=self.engine.name,
            files=len(self.sources),
            source_bytes=self.bytes,
            added=counts.added,
            replaced=counts.replaced,
            skipped=counts.skipped,
            objects=objects_of(self.base.node if root is None else root.node),
            trees=len(built),
            nodes_written=joined[0] + sum(each["nodes_written"] for each in built) + (root is not None),
            bytes_written=joined[1] + sum(each["bytes_written"] for each in built),
            rebased_over=rebased_over,
            seconds=dict(self.watch.seconds),
        )


def _place(row: Row) -> Place:
    return Place(row["file"], row["offset"])
