"""Health, history and compactions as Dagster metadata: numbers become plots, lists become tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import dagster as dg

from pipelines import compaction, compaction_policy
from pipelines.stats import Deep, Level
from pipelines.summary import human_bytes, utc
from trinitylake_core import Lakehouse, Stats, VersionInfo
from trinitylake_core.definitions import IsolationLevel, LakehouseDef

Metadata = dict[str, Any]
HISTORY_LIMIT: Final = 200
FINDINGS_LIMIT: Final = 500
_HISTORY: Final = (
    "version", "created_at", "operation", "changes", "objects", "messages", "author", "reason",
)  # fmt: skip
_LEVELS: Final = ("height", "nodes", "holds")
_MEANINGS: Final = {"debt": "buffered messages as a share of the threshold of compactions; from 1 on, one pays"}
_TYPES: Final = {int: "int", float: "float", bool: "bool"}


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> dg.TableMetadataValue:
    """Return rows as a table; the first value of a column decides its type."""
    kinds = [
        next((_TYPES.get(type(row[name]), "string") for row in rows if row[name] is not None), "string")
        for name in columns
    ]
    schema = dg.TableSchema(
        columns=[
            dg.TableColumn(name, kind, description=_MEANINGS.get(name, "in bytes" if "bytes" in name else None))
            for name, kind in zip(columns, kinds, strict=True)
        ]
    )
    records = [dg.TableRecord({name: cell(row[name]) for name in columns}) for row in rows]
    return dg.MetadataValue.table(records=records, schema=schema)


def cell(value: Any) -> str | int | float | bool | None:
    """Return a value in a form that a table cell can hold."""
    if isinstance(value, datetime):
        return utc(value)
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


def given(**values: Any) -> Metadata:
    """Return the values that are known."""
    return {name: value for name, value in values.items() if value is not None}


def with_sizes(metadata: Metadata) -> Metadata:
    """Return metadata with one more entry: every number of bytes, with its unit. The numbers stay, for the plots."""
    sizes = {
        name: value
        for name, value in metadata.items()
        if "bytes" in name and isinstance(value, int) and not isinstance(value, bool)
    }
    shown = ", ".join(f"{name.replace('_', ' ')}: {human_bytes(value)}" for name, value in sizes.items())
    return metadata | ({"sizes": shown} if shown else {})


def of_stats(stats: Stats) -> Metadata:
    """Return the figures that one read of the root gives; Dagster plots the numbers over time."""
    return given(
        version=stats.version,
        oldest_version=stats.oldest_version,
        created_at=dg.MetadataValue.timestamp(stats.created_at),
        operation=stats.operation,
        objects=stats.objects,
        buffered_messages=stats.messages,
        root_messages=stats.root_messages,
        height=stats.height,
        order=stats.order,
        root_bytes=stats.root_bytes,
        root_fill=stats.root_fill,
    )


def of_deep(health: Deep) -> Metadata:
    """Return what a walk over the tree found: sums, which Dagster plots, and a table of the levels."""
    rows = [{"height": each.height, "nodes": each.nodes, "holds": _holds(each)} for each in health.levels]
    plan = health.compaction
    return of_stats(health.summary) | given(
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


def _holds(level: Level) -> str:
    """Return what a level holds, for people: a table of more columns is cut off on the page of an asset."""
    parts = [
        f"{_number(level.keys, 'key')} ({level.fill:.0%} full)",
        _number(level.messages, "buffered message"),
        human_bytes(level.bytes),
        *([f"{_number(level.over_target, 'node')} over the target size"] if level.over_target else []),
    ]
    return ", ".join(parts)


def _number(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def of_history(versions: Iterable[VersionInfo]) -> Metadata:
    """Return versions, newest first, as a table. There is at least one."""
    found = list(versions)
    return {
        "versions": len(found),
        "newest_version": found[0].version,
        "newest_created_at": dg.MetadataValue.timestamp(found[0].created_at),
        "history": history_table(found),
    }


def history_table(versions: Sequence[VersionInfo]) -> dg.TableMetadataValue:
    """Return versions as a table, in their order."""
    return table([{name: getattr(each, name) for name in _HISTORY} for each in versions], _HISTORY)


def of_waiting(lake: Lakehouse) -> Metadata:
    """Return the bytes that waiting messages cost, and the cost of a compaction now; the numbers are plotted."""
    expected = compaction_policy.estimate(lake)
    per_commit, per_open = compaction_policy.waiting_bytes(lake)
    return {
        "waiting_bytes_per_commit": per_commit,
        "waiting_bytes_per_open": per_open,
        "compaction_requests": expected.requests,
        "compaction_bytes": expected.bytes,
    }


def of_gains(gains: Sequence[compaction_policy.Gain]) -> Metadata:
    """Return the expected cost and saving of a compaction beside the realised ones, as a table."""
    rows = [
        {"what": each.what, "unit": each.unit, "predicted": each.predicted, "realised": each.realised} for each in gains
    ]
    return {"predicted_and_realised": table(rows, ("what", "unit", "predicted", "realised"))}


def of_compaction(report: compaction.Report, pictured: Metadata) -> Metadata:
    """Return what a compaction predicted and what it did, before and after side by side, with what pictures it."""
    pairs = [
        ("version", report.version_before, report.version_after),
        ("buffered messages", report.messages_before, report.messages_after),
        ("height", report.height_before, report.height_after),
    ]
    after = [{"what": what, "before": cell(before), "after": cell(after)} for what, before, after in pairs]
    expected = [
        ("nodes to rewrite", report.plan.nodes, report.nodes_written),
        ("bytes", report.plan.bytes, report.bytes_written),
    ]
    measured = [{"what": what, "predicted": predicted, "measured": done} for what, predicted, done in expected]
    told = given(
        outcome=_outcome(report),
        **pictured,
        before_and_after=table(after, ("what", "before", "after")),
        predicted_and_measured=table(measured, ("what", "predicted", "measured")),
        engine=report.plan.engine,
        messages_pushed_down=(report.messages_before or 0) - (report.messages_after or 0),
        subtrees=report.subtrees,
        nodes_read=report.nodes_read,
        nodes_written=report.nodes_written,
        bytes_read=report.bytes_read,
        bytes_written=report.bytes_written,
        commits_in_between=report.rebased_over,
        seconds=round(sum(report.seconds.values()), 3),
        phases=dg.MetadataValue.json(report.seconds),
    )
    return with_sizes(told)


def _outcome(report: compaction.Report) -> str:
    if report.version_after is None:
        return f"version {report.version_before} has nothing to push down" if not report.dry_run else "dry run"
    return (
        f"version {report.version_after}: {report.messages_before} buffered messages before, {report.messages_after} "
        f"after; {report.nodes_written} nodes written, {human_bytes(report.bytes_written)}"
    )


def of_definition(definition: LakehouseDef) -> Metadata:
    """Return the fields of a lakehouse definition, except the properties, which may be private."""
    return given(
        id=definition.id,
        major_version=definition.major_version,
        node_file_max_size_bytes=definition.node_file_max_size_bytes,
        isolation_level=IsolationLevel.Name(definition.txn_isolation_level),
        snapshots=len(definition.snapshots),
    )
