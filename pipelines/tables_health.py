"""Health of Iceberg tables (``tables health``): what their metadata record; nothing is written.

Files, bytes, small files, delete files, manifests, snapshots, and what only old snapshots keep: the figures by which
people decide about compaction of data, ``tables expire`` and ``tables clean``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from functools import partial
from itertools import islice
from typing import Final

import pyarrow as pa

from pipelines.diff import SPAN, TreeRoot
from pipelines.engine import Row
from pipelines.engine.choice import choose_engine_for_all
from pipelines.engine.counting import map_counted
from pipelines.engine.model import LONG, READ_AHEAD, TEXT, Engine, MadeRow
from pipelines.job import Meter, Progress, Session, Stopwatch, refuse_unknown, silent
from pipelines.reach.table_files import refuse_no_iceberg, why_unreadable
from pipelines.reports.summary import Table, count, failures_table, human_bytes
from pipelines.tables.compact.decision import GroupRules, decide_table
from trinitylake_core import Lakehouse, clock
from trinitylake_core.definitions import decode_table
from trinitylake_core.diff import Span, diff_nodes, differing_subtrees
from trinitylake_core.errors import Corrupt, FileMissing, InvalidInput, StorageError
from trinitylake_core.keys import TABLE, KeyRange, label
from trinitylake_core.recovery.patterns import Pattern
from trinitylake_core.storage import Storage
from trinitylake_core.table_places import Located
from trinitylake_core.tables import ICEBERG, METADATA_LOCATION, metadata_uri
from trinitylake_core.tree.node import Node

_NOT_SHOWN: Final = frozenset({"committed_at_millis", "namespace"})
_SPANS_PER_TASK: Final = 4
"""Some spans of keys have more Iceberg tables than others."""


@dataclass(frozen=True, slots=True)
class Config:
    """The tables to measure, and the engine.

    Attributes:
        pattern: only tables of these names: ``sales.*``.
        engine: ``spark``, ``local``, or ``auto``: Spark on other machines for large lakehouses.
    """

    pattern: str | None = None
    engine: str = "auto"

    def __post_init__(self) -> None:
        refuse_unknown(self.engine)


@dataclass(frozen=True, slots=True)
class TableHealth:
    """The figures of one table, of its newest metadata.

    Attributes:
        table: its name, with that of its namespace.
        table_type: MANAGED or EXTERNAL.
        snapshots: how many there are; ``committed_at_millis`` is when the current one was made, ``None`` without one.
        manifests: those of the current snapshot; so are ``data_files``, ``delete_files`` and ``bytes``.
        small_files: data files below 75 % of the table's target size that a rewrite can merge with others: one small
            file in each partition is none.
        old_bytes: what only older snapshots keep: ``tables expire`` lets them go.
        rewrite_files: the data files that ``tables compact`` would replace by its defaults, of ``rewrite_bytes``.
        files_after: how many it would make of them.
        namespace: its namespace. Names may have dots, so ``table`` does not tell it.
    """

    table: str
    table_type: str
    snapshots: int = 0
    committed_at_millis: int | None = None
    manifests: int = 0
    data_files: int = 0
    small_files: int = 0
    delete_files: int = 0
    bytes: int = 0
    old_bytes: int = 0
    rewrite_files: int = 0
    rewrite_bytes: int = 0
    files_after: int = 0
    namespace: str = ""

    @property
    def name(self) -> str:
        """Its name in its namespace."""
        return self.table.removeprefix(f"{self.namespace}.")


_FIGURES: Final = tuple(each.name for each in fields(TableHealth) if each.type != "str")
"""Every column that is a number. A new one is a field of :class:`TableHealth`, and of ``Figures`` in
``trinitylake_core/iceberg/reading/health.py``; ``dagster_project/metadata/reports.py`` names what Dagster shows."""
_HEALTH: Final = pa.schema(
    {"namespace": TEXT, "name": TEXT, "table_type": TEXT, "failure": TEXT, **dict.fromkeys(_FIGURES, LONG)}
)


@dataclass(frozen=True, slots=True)
class Report:
    """The health of the tables of a version, the heaviest first.

    Attributes:
        tables: those that could be read.
        failures: the others, with the reason.
        requests: those of this process; Spark tasks make their own.
    """

    root: str
    version: int
    engine: str
    tables: tuple[TableHealth, ...] = ()
    data_files: int = 0
    small_files: int = 0
    delete_files: int = 0
    bytes: int = 0
    old_bytes: int = 0
    rewrite_files: int = 0
    rewrite_bytes: int = 0
    files_after: int = 0
    failures: dict[str, str] = field(default_factory=dict)
    requests: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def summary(self) -> Iterator[str]:
        """Yield the sums."""
        yield (
            f"{count(len(self.tables), 'table')}: {count(self.data_files, 'data file')}, {human_bytes(self.bytes)}, "
            f"{self.small_files:,} of them small, {count(self.delete_files, 'delete file')}"
        )
        if self.rewrite_files:
            yield (
                f"worth a rewrite: {count(self.rewrite_files, 'data file')}, {human_bytes(self.rewrite_bytes)}, would "
                f"become {self.files_after:,}: `tables compact`"
            )
        if self.old_bytes:
            yield f"{human_bytes(self.old_bytes)} for old snapshots of tables only: `tables expire`, `tables clean`"
        if self.failures:
            yield f"cannot be read: {count(len(self.failures), 'table')}"

    def summary_tables(self) -> Iterator[Table]:
        """Yield a row for each table, the heaviest first, and those that could not be read."""
        columns = [each.name for each in fields(TableHealth) if each.name not in _NOT_SHOWN]
        yield Table("tables", tuple(columns), [[getattr(each, name) for name in columns] for each in self.tables])
        yield failures_table(self.failures)


def run(
    lake: Lakehouse, config: Config | None = None, spark: Session = None, *, progress: Progress | None = None
) -> Report:
    """Read the metadata of all Iceberg tables of the newest version. Nothing is written.

    Costs the nodes that contain the tables; for each table one ``get`` for its definition, its metadata, each manifest
    list and each distinct manifest.

    Raises:
        InvalidInput: PyIceberg is not installed.
        Corrupt, StorageError: the lakehouse itself cannot be read.
    """
    refuse_no_iceberg()
    config, tell, watch = config or Config(), progress or silent, Stopwatch()
    lake, meter = lake.refresh(), Meter(lake.storage)
    pattern = None if config.pattern is None else Pattern(config.pattern)
    work = choose_engine_for_all(config.engine, spark, lake.root_node)
    tables: list[TableHealth] = []
    failures: dict[str, str] = {}
    try:
        spans = _spans_of_tables(lake, pattern, work)
        measure = partial(_healths, tree=TreeRoot.of(lake), pattern=pattern)
        measured = map_counted(work, "ranges of keys", measure, spans, SPAN, _HEALTH, lake.storage, each=1)
        for done, row in enumerate(measured, 1):
            tell("tables", done, None)
            table = label(row["namespace"], row["name"])
            if row["failure"] is not None:
                failures[table] = row["failure"]
            else:
                figures = {name: row[name] for name in _FIGURES}
                tables.append(TableHealth(table, row["table_type"], namespace=row["namespace"], **figures))
    finally:
        work.close()
    watch.lap("read")
    tables.sort(key=lambda each: (-each.bytes - each.old_bytes, each.table))
    summed = [each.name for each in fields(Report) if each.name in _FIGURES]
    sums = {name: sum(getattr(each, name) for each in tables) for name in summed}
    return Report(
        lake.root, lake.version, work.name, tuple(tables), **sums, failures=dict(sorted(failures.items())),
        requests=meter.by_kind(), seconds=dict(watch.seconds),
    )  # fmt: skip


def _spans_of_tables(lake: Lakehouse, pattern: Pattern | None, engine: Engine) -> list[Row]:
    """Return the spans of keys in which the tables lie, as many as there are tasks for; reads the top of the tree.

    No name of a table is among what this process reads for that.
    """
    ranges = [lake.codec.range(TABLE)] if pattern is None else list(pattern.ranges(lake.codec, (TABLE,)))
    spans = [Span()]
    tasks = engine.tasks()
    if tasks > 1:
        want = tasks * _SPANS_PER_TASK
        top = differing_subtrees(lake.nodes, Node(), lake.nodes, lake.root_node.node, want)
        spans = top.spans(want)
    found: list[Row] = []
    for within in ranges:
        for span in spans:
            found += _cut(span, within)
    return found


def _cut(span: Span, within: KeyRange) -> Iterator[Row]:
    """Yield the part of a span that lies in a range, if there is one."""
    lo = max(span.lo or "", within.lo)
    end = f"{within.hi}\0"  # the first key behind the range
    hi = end if span.hi is None else min(span.hi, end)
    if lo < hi:
        yield {"lo": lo, "hi": hi}


def _healths(rows: Iterator[Row], storage: Storage, *, tree: TreeRoot, pattern: Pattern | None) -> Iterator[MadeRow]:
    """Yield the health of the Iceberg tables in spans of keys; others are left out."""
    located = Located(storage)
    tables = _tables_in(rows, storage, tree, pattern)
    while some := list(islice(tables, READ_AHEAD)):
        for found in storage.map(some, lambda table: list(_health(*table, located))):
            yield from found


def _tables_in(
    rows: Iterator[Row], storage: Storage, tree: TreeRoot, pattern: Pattern | None
) -> Iterator[tuple[str, str | None, str]]:
    """Yield namespace, name and definition of each wanted table in spans: how the version differs from an empty one."""
    opened = None
    for row in rows:
        opened = opened or tree.open(storage)
        for key, _, path in diff_nodes(opened.store, Node(), opened.store, opened.root, Span(row["lo"], row["hi"])):
            kind, namespace, name = tree.codec.split(key)
            if kind == TABLE and path and (pattern is None or pattern.matches(namespace, name)):
                yield namespace, name, path


def _health(namespace: str, name: str | None, path: str, located: Located) -> Iterator[MadeRow]:
    from trinitylake_core.iceberg.reading.health import figures

    try:
        table = decode_table(located.storage.read(path), path)
        if table.table_format != ICEBERG or not table.format_properties.get(METADATA_LOCATION):
            return
        found = figures(located, metadata_uri(located.storage.root, table) or "")
    except (FileMissing, Corrupt, InvalidInput, StorageError) as error:
        yield (namespace, name, "", why_unreadable(error), *(None for _ in _FIGURES))
    else:
        decided = decide_table(found.groups, found.target, GroupRules(), clock.now_millis())
        figures_of_rewrite = {
            "small_files": decided.mergeable,
            "rewrite_files": decided.files,
            "rewrite_bytes": decided.bytes,
            "files_after": decided.after,
        }
        measured = (
            figures_of_rewrite[each] if each in figures_of_rewrite else getattr(found, each) for each in _FIGURES
        )
        yield (namespace, name, table.table_type, None, *measured)
