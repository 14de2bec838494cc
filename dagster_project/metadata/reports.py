"""Reports of jobs as Dagster metadata: their sentences, their tables, and every figure by its name in ``--json``."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, is_dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import dagster as dg
from pyarrow import compute, parquet

from dagster_project.metadata import pictures
from pipelines import compaction, expire, mend, restore, rollback, snapshot, tables_compact, tables_health, undo
from pipelines.reach.plans import TABLE
from pipelines.reports.summary import (
    ByteCount,
    Summarised,
    Table,
    count,
    history_table,
    human_bytes,
    items_of,
    tables_of,
    utc,
)
from pipelines.stats import Deep
from pipelines.tables.compact.model import DONE, LOST, VOID
from pipelines.trees.policy import debt_of, estimate, waiting_bytes
from trinitylake_core import Alteration, Lakehouse, SnapshotInfo, Stats, VersionInfo
from trinitylake_core.definitions import IsolationLevel, LakehouseDef
from trinitylake_core.tables import DIRECTORY

Metadata = dict[str, Any]
PLAN_LIMIT: Final = 500
BEGINS_AT: Final = "begins_at"
"""When the first version was committed that an undo undoes."""
_PICTURED: Final = 20
_PARTS: Final = re.compile(r"/(?:data|metadata)/")
_PLAN: Final = ("path", "kind", "bytes", "modified", "reason")
_SNAPSHOTS: Final = ("name", "version", "kind", "created_at", "expires_at", "expired", "target_uri")
_MEANINGS: Final = {"debt": "buffered messages as a share of the threshold of compactions; from 1 on, one pays"}
_BROWSER_MOST: Final = 2**53
"""A browser rounds larger numbers: of a snapshot's ID it shows another one."""
_TYPES: Final = {int: "int", float: "float", bool: "bool"}
_LOGGED: Final = 20
_ROWS: Final = 1000
_HEAVY: Final = 50
_HEAVIEST: Final = (
    "table", "bytes", "old_bytes", "data_files", "small_files", "delete_files", "snapshots", "committed",
)  # fmt: skip
_LEAKS: Final = ("directory", "files", "bytes")
_LEAKIEST: Final = ("table", "old_bytes", "bytes", "snapshots", "committed")
_OF_MERGES: Final = frozenset({"outcomes", "files_before", "files_made", "bytes_before", "bytes_made", "versions"})
_SIZES: Final = "sizes"
HISTORY_LIMIT: Final = 200
_LEVELS: Final = ("height", "nodes", "holds")
_FIGURES: Final = (
    "version", "oldest_version", "operation", "objects", "root_messages", "height", "order", "root_bytes", "root_fill",
)  # fmt: skip
_GAINS: Final = ("what", "predicted", "measured")


def of_report(report: Summarised, tables: Summarised | None = None, **more: Any) -> Metadata:
    """Return a report: its sentences as ``outcome``, then ``more`` that is not ``None``, its tables and its figures.

    ``tables``: the report that has the tables, if it is another one: that of planning.
    """
    outcome = ";\n".join(report.summary())  # the page of an asset shows a break of a line as a space
    found = keep_known(outcome=outcome, **more)
    for each in tables_of(tables or report):
        if each.rows:
            label = each.title.replace(" ", "_")
            found[label] = of_table(each)
    others = {name: value for name, value in figures(report) if name not in found}
    return with_sizes(found | others)


def text_of(report: Summarised, rows: int = _LOGGED) -> str:
    """Return a report as text, for the log: its sentences, and the first rows of its tables."""
    lines = list(report.summary())
    for each in tables_of(report):
        if each.caption:
            lines += each.caption.splitlines()
        elif each.rows:
            lines.append(each.title)
        for row in each.rows[:rows]:
            known = [str(cell(value)) for value in row if value is not None]
            lines.append("  " + " ".join(known))
        left_out = each.left_out(rows)
        if left_out:
            lines.append(left_out)
    return "\n".join(lines)


def figures(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every figure of a report by its name; one of its plan as ``plan_nodes``. Of a list, how long it is."""
    for name, each in items_of(value).items():
        label = f"{prefix}{name}"
        if name == "seconds":  # of each step of the job
            yield label, round(sum(each.values()), 3)
        elif isinstance(each, datetime):
            yield label, utc(each)
        elif isinstance(each, bool | int | float | str):
            yield label, each
        elif isinstance(each, list | tuple):
            yield label, len(each)
        elif name == "rollback":  # an undo reports its rollback as its own
            yield from figures(each, prefix)
        elif is_dataclass(each) or (isinstance(each, Mapping) and name != "failures"):  # they are texts, by tables
            yield from figures(each, f"{label}_")


# -- tables ----------------------------------------------------------------------------------------------


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> dg.TableMetadataValue:
    """Return rows as a table; the first value of a column decides its type. IDs are texts."""
    described = []
    texts = {name for name in columns if _holds_ids(name, [row[name] for row in rows])}
    for name in columns:
        kind = "string" if name in texts else _kind_of(row[name] for row in rows)
        described.append(dg.TableColumn(name, kind, description=_describe(name)))
    records = []
    for row in rows:
        cells = {}
        for name in columns:
            value = cell(row[name])
            cells[name] = value if value is None or name not in texts else str(value)
        records.append(dg.TableRecord(cells))
    return dg.MetadataValue.table(records=records, schema=dg.TableSchema(columns=described))


def _holds_ids(column: str, values: Sequence[Any]) -> bool:
    """Whether a column has IDs: by its name, or because a browser could not show one of its numbers."""
    if column == "snapshot" or column.endswith("_id"):
        return True
    return any(isinstance(value, int) and abs(value) > _BROWSER_MOST for value in values)


def _kind_of(values: Iterable[Any]) -> str:
    """Return the type of the first value that there is, in words of Dagster."""
    for value in values:
        if value is not None:
            return _TYPES.get(type(value), "string")
    return "string"


def _describe(column: str) -> str | None:
    """Return what a column means, where its name does not say it."""
    if column in _MEANINGS:
        return _MEANINGS[column]
    if "bytes" in column:
        return "in bytes"
    return None


def of_table(shown: Table) -> dg.TableMetadataValue:
    """Return a table of a report."""
    rows = []
    for row in shown.rows[:_ROWS]:
        rows.append(dict(zip(shown.columns, row, strict=True)))
    return table(rows, shown.columns)


def cell(value: Any) -> str | int | float | bool | None:
    """Return a value in a form that a table cell can hold."""
    if isinstance(value, datetime):
        return utc(value)
    if isinstance(value, ByteCount):
        return int(value)  # Dagster stores no types but Python's own
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return str(value)


def keep_known(**values: Any) -> Metadata:
    """Return the values that are known."""
    return {name: value for name, value in values.items() if value is not None}


def with_sizes(metadata: Metadata) -> Metadata:
    """Return metadata with one more entry: every number of bytes, with its unit. The numbers stay, for the plots."""
    sizes = []
    for name, value in metadata.items():
        if "bytes" in name and type(value) is int:
            what = name.replace("_", " ")
            sizes.append(f"{what}: {human_bytes(value)}")
    if not sizes:
        return metadata
    return metadata | {_SIZES: ", ".join(sizes)}


# -- health, history and compactions: numbers become plots, lists tables ------------------------------------


def of_stats(stats: Stats) -> Metadata:
    """Return the figures that one read of the root gives; Dagster plots the numbers over time."""
    return keep_known(
        **{name: getattr(stats, name) for name in _FIGURES},
        buffered_messages=stats.messages,
        created_at=dg.MetadataValue.timestamp(stats.created_at),
    )


def judge_tree(stats: Stats, threshold: int) -> str:
    """Return in a sentence how large a lakehouse is, and whether a compaction pays."""
    size = count(stats.objects or 0, "object")
    waiting = count(stats.messages or 0, "buffered message")
    if debt_of(stats) >= threshold:
        return f"a compaction pays: {waiting}, threshold {threshold:,}; {size} in a tree of height {stats.height}"
    return f"well: {size} in a tree of height {stats.height}; {waiting}, threshold {threshold:,}"


def of_deep(health: Deep) -> Metadata:
    """Return the figures of a walk over the tree: sums, which Dagster plots, and a table of the levels."""
    rows = []
    plan = health.compaction
    for level in health.levels:  # a table of more columns is cut off on the page of an asset
        keys = count(level.keys, "key")
        parts = [
            f"{keys} ({level.fill:.0%} full)",
            count(level.messages, "buffered message"),
            human_bytes(level.bytes),
        ]
        if level.over_target:
            too_large = count(level.over_target, "node")
            parts.append(f"{too_large} over the target size")
        rows.append({"height": level.height, "nodes": level.nodes, "holds": ", ".join(parts)})
    return of_stats(health.summary) | keep_known(
        nodes=health.nodes,
        tree_bytes=health.bytes,
        reads_per_lookup=health.reads_per_lookup,
        reads_per_lookup_after_compaction=health.reads_per_lookup_after,
        hint_lag=health.hint_lag,
        nodes_over_target_size=sum(level.over_target for level in health.levels),
        nodes_a_compaction_would_rewrite=None if plan is None else plan.nodes,
        bytes_a_compaction_would_write=None if plan is None else plan.bytes,
        levels=table(rows, _LEVELS),
    )


def of_history(versions: Iterable[VersionInfo]) -> Metadata:
    """Return versions, newest first, as a table. There is at least one."""
    found = list(versions)
    return {
        "versions": len(found),
        "newest_version": found[0].version,
        "newest_created_at": dg.MetadataValue.timestamp(found[0].created_at),
        "history": of_table(history_table(found)),
    }


def of_waiting(lake: Lakehouse) -> Metadata:
    """Return the bytes that waiting messages cost, and the cost of a compaction now; the numbers are plotted."""
    expected = estimate(lake)
    per_commit, per_open = waiting_bytes(lake)
    return {
        "waiting_bytes_per_commit": per_commit,
        "waiting_bytes_per_open": per_open,
        "compaction_requests": expected.requests,
        "compaction_bytes": expected.bytes,
    }


def of_gains(before: Lakehouse, after: Lakehouse, done: compaction.Report) -> dg.TableMetadataValue:
    """Return the highest cost and the expected saving of a compaction, each beside the measured one.

    ``before`` and ``after`` are handles of its two versions. Messages committed in between count as not saved.
    """
    expected = done.plan
    commit, read = waiting_bytes(before)
    commit_left, read_left = waiting_bytes(after)
    gains = [
        ("cost: nodes", expected.nodes, done.nodes_written),
        ("cost: requests", expected.requests, done.nodes_read + done.nodes_written + 1),
        ("cost: written, bytes", expected.bytes, done.bytes_written),
        ("saved by each commit, bytes", commit, commit - commit_left),
        ("saved by each open with one lookup, bytes", read, read - read_left),
        ("the root, bytes", before.stats().root_bytes - commit, after.stats().root_bytes),
    ]
    rows = [dict(zip(_GAINS, each, strict=True)) for each in gains]
    return table(rows, _GAINS)


def of_planned_merges(plan: tables_compact.Report) -> dg.TableMetadataValue | None:
    """Return what is to become of each table, in two columns: a table of more is cut off on the page of an asset."""
    rows = []
    for each in plan.planned:
        what = f"{count(each.files, 'file')} of {count(each.partitions, 'partition')}, {human_bytes(each.bytes)}"
        parts = [f"{what}, would become {each.after:,}: {each.reason}"]
        if each.delete_files:
            parts.append(count(each.delete_files, "delete file"))
        if each.refs:
            parts.append(f"kept by {', '.join(each.refs)}")
        parts.append(f"engine {each.engine}")
        rows.append({"table": each.table, "plan": "; ".join(parts)})
    return table(rows, ("table", "plan")) if rows else None


def of_merged_tables(done: tables_compact.Report) -> dg.TableMetadataValue | None:
    """Return what became of each table, in two columns."""
    rows = []
    for each in done.outcomes:
        if each.outcome == DONE:
            text = (
                f"{count(each.files, 'file')}, {human_bytes(each.bytes)}, became {each.after:,}, "
                f"{human_bytes(each.bytes_after)}, in {each.seconds:.1f} s; engine {each.engine}; "
                f"{f'proved by {each.proved}' if each.proved else 'nothing was proved'}"
            )
        else:
            text = f"{each.outcome}: {each.reason}"
        rows.append({"table": each.table, "became": text})
    return table(rows, ("table", "became")) if rows else None


def without_merges(metadata: Metadata) -> Metadata:
    """Return the metadata of a compaction of tables that rewrote none, without zeros, which would be plotted."""
    return with_sizes({name: value for name, value in metadata.items() if name not in {*_OF_MERGES, _SIZES}})


def of_merges(done: tables_compact.Report) -> Metadata:
    """Return what a compaction of tables brought for its cost, and what writers cost it; the numbers are plotted.

    Nothing for a run without a rewrite: it would draw a gain of zero.
    """
    if not done.outcomes:
        return {}
    lost = sum(each.outcome in {LOST, VOID} for each in done.outcomes)
    gibibytes = done.bytes_before / 2**30
    return keep_known(
        files_before=done.files_before,
        files_made=done.files_made,
        files_less_per_gib=round((done.files_before - done.files_made) / gibibytes, 1) if gibibytes else None,
        share_lost_to_writers=round(lost / len(done.outcomes), 3),
        conflicts=sum(each.conflicts for each in done.outcomes),
    )


def of_definition(definition: LakehouseDef) -> Metadata:
    """Return the fields of a lakehouse definition, except the properties, which may be private."""
    return keep_known(
        id=definition.id,
        major_version=definition.major_version,
        node_file_max_size_bytes=definition.node_file_max_size_bytes,
        isolation_level=IsolationLevel.Name(definition.txn_isolation_level),
        snapshots=len(definition.snapshots),
    )


# -- rollback, restore, undo -----------------------------------------------------------------------------


def of_recovery(done: rollback.Report | restore.Report | undo.Report) -> Metadata:
    """Return the figures of a job that leads back, and after a dry run the next job to launch."""
    begins_at = None
    if isinstance(done, undo.Report):
        inner: rollback.Report | restore.Report = done.rollback
        begins_at = utc(done.undone[-1].created_at)
    else:
        inner = done
    again = None
    if inner.dry_run and (inner.plan.changes or inner.plan.operation != "restore"):
        again = f"launch again with dry_run: false and expected_version: {inner.plan.version}; "
        again += "the run stops if objects have changed by then"
        if isinstance(done, undo.Report) and done.others:
            again += f". It would also undo {len(done.others)} versions of others: "
            again += "set `others: true`, or restore single objects"
    return of_report(done, carry_out=again, **keep_known(**{BEGINS_AT: begins_at}))


def of_mending(done: mend.Report) -> Metadata:
    """Return what was put back, or would be, and what is damaged still."""
    put_back = [{"file": path} for path in done.files]
    left = [{"file": path, "why": why} for path, why in done.left.items()]
    tables = {"put_back": table(put_back, ("file",)), "still_damaged": table(left, ("file", "why"))}
    shown = {name: each for name, each in tables.items() if each.records}
    outcome = ";\n".join(done.summary())
    return {"outcome": outcome} | shown | dict(figures(replace(done, left={}))) | {"left": len(left)}


# -- expiration and orphans ------------------------------------------------------------------------------


def of_plan(plan: Path) -> Metadata:
    """Return a stored plan: its first files, how many it has, and from which directories of tables most bytes go."""
    rows: list[dict[str, Any]] = []
    files: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    total = 0
    with parquet.ParquetFile(plan) as file:
        for batch in file.iter_batches():
            of_files = batch.filter(compute.not_equal(batch["kind"], TABLE))
            total += len(of_files)
            rows = rows or of_files.slice(0, PLAN_LIMIT).to_pylist()
            for path, size in zip(batch["path"].to_pylist(), batch["bytes"].to_pylist(), strict=True):
                if path.startswith(DIRECTORY):
                    directory = _PARTS.split(path)[0]
                    files[directory] += 1
                    sizes[directory] += size or 0
    planned = []
    for row in rows:
        planned.append({**row, "modified": _time(row["modified_millis"])})
    heaviest = []
    for name, bytes_of_directory in sizes.most_common(_HEAVY):
        heaviest.append({"directory": name, "files": files[name], "bytes": bytes_of_directory})
    files_shown = None
    if total > len(rows):
        files_shown = len(rows)
    leakiest = None
    if heaviest:
        leakiest = table(heaviest, _LEAKS)
    return keep_known(
        plan_files=total,
        plan_files_shown=files_shown,
        plan=table(planned, _PLAN),
        leakiest=leakiest,
    )


def _time(millis: int | None) -> datetime | None:
    if millis is None:
        return None
    return datetime.fromtimestamp(millis / 1000, UTC)


def of_deletion(planned: Any, plan: Metadata, done: Any | None) -> Metadata:
    """Return the plan of a deletion, as :func:`of_plan` has it, and its outcome: ``done`` is ``None`` on a dry run."""
    dry = done is None
    report = replace(done or planned, plan=None)  # its plan was a temporary file
    why = None
    if isinstance(planned, expire.Report) and planned.kept and not planned.versions_expired:
        rule = planned.kept[0]
        setting = ""
        if rule.setting:
            setting = f" ({rule.setting})"
        why = (
            f"{rule.rule}{setting} keeps {rule.versions} versions, from {rule.first} on; the table `kept` has all rules"
        )
    shown = {"why": why, "dry_run": dry, **plan}
    bytes_deleted = 0
    if not dry:
        bytes_deleted = report.bytes
    found = of_report(
        report,
        planned,
        **shown,
        files_deleted=report.deleted,
        bytes_deleted=bytes_deleted,
    )
    only_planned = {name: value for name, value in figures(planned) if not found.get(name)}
    return found | only_planned | {"dry_run": dry}


# -- tables of Iceberg -----------------------------------------------------------------------------------


def of_tables(report: tables_health.Report) -> Metadata:
    """Return the sums, which Dagster plots, the heaviest tables, and those that only old snapshots make heavy."""
    leaking = [each for each in report.tables if each.old_bytes]
    leaking.sort(key=lambda each: (-each.old_bytes, each.table))
    picture = None
    if report.tables:
        picture = pictures.tables(report.tables[:_PICTURED])
    shown = keep_known(
        picture=picture,
        heaviest=_of_some(report.tables, _HEAVIEST),
        leakiest=_of_some(leaking, _LEAKIEST),
        unreadable=len(report.failures),
    )
    without_tables = replace(report, tables=())  # the sentences are of all, the table of the report is another one
    found = of_report(without_tables, **shown)
    return found | {"outcome": ";\n".join(report.summary()), "tables": len(report.tables)}


def _of_some(tables: Sequence[tables_health.TableHealth], columns: Sequence[str]) -> dg.TableMetadataValue | None:
    """Return the first tables; ``None`` without any."""
    rows = []
    for each in tables[:_HEAVY]:
        committed = _time(each.committed_at_millis)
        rows.append({**asdict(each), "committed": committed})
    if not rows:
        return None
    return table(rows, columns)


# -- snapshots and properties ----------------------------------------------------------------------------


def of_snapshots(report: snapshot.Report, snapshots: Iterable[SnapshotInfo]) -> Metadata:
    """Return the snapshots, and what the policies created and dropped."""
    rows = []
    for each in snapshots:
        rows.append({name: getattr(each, name) for name in _SNAPSHOTS})
    listed = None
    if rows:
        listed = table(rows, _SNAPSHOTS)
    return keep_known(
        snapshots=len(rows),
        snapshot_list=listed,
        dry_run=report.dry_run,
        due=", ".join(report.due.create) or None,
        superseded=", ".join(report.due.drop) or None,
        created=", ".join(report.created) or None,
        dropped=", ".join(report.dropped) or None,
    )


def of_alteration(done: Alteration) -> Metadata:
    """Return the properties of a lakehouse that changed."""
    rows = []
    for name, (old, new) in done.changes.items():
        rows.append({"property": name, "before": old, "after": new})
    named = ", ".join(done.changes) or "nothing to change"
    if done.version_after is not None:
        outcome = f"version {done.version_after} committed: {named}"
    elif done.dry_run:
        outcome = f"dry run, nothing was changed: {named}"
    else:
        outcome = named
    return keep_known(
        outcome=outcome,
        dry_run=done.dry_run,
        version_after=done.version_after,
        properties=table(rows, ("property", "before", "after")),
        reason=done.reason,
    )
