"""Health, history and compactions as Dagster metadata: numbers become plots, lists become tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import dagster as dg

from dagster_project.metadata.reports import Metadata, given, of_table, table
from pipelines import compaction_policy
from pipelines.stats import Deep, Level
from pipelines.summary import count, history_table, human_bytes
from trinitylake_core import Lakehouse, Stats, VersionInfo
from trinitylake_core.definitions import IsolationLevel, LakehouseDef

HISTORY_LIMIT: Final = 200
_LEVELS: Final = ("height", "nodes", "holds")
_FIGURES: Final = (
    "version", "oldest_version", "operation", "objects", "root_messages", "height", "order", "root_bytes", "root_fill",
)  # fmt: skip
_GAINS: Final = ("what", "unit", "predicted", "realised")


def of_stats(stats: Stats) -> Metadata:
    """Return the figures that one read of the root gives; Dagster plots the numbers over time."""
    return given(
        **{name: getattr(stats, name) for name in _FIGURES},
        buffered_messages=stats.messages,
        created_at=dg.MetadataValue.timestamp(stats.created_at),
    )


def of_deep(health: Deep) -> Metadata:
    """Return the figures of a walk over the tree: sums, which Dagster plots, and a table of the levels."""
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
    """Return the content of a level, for people: a table of more columns is cut off on the page of an asset."""
    parts = [
        f"{count(level.keys, 'key')} ({level.fill:.0%} full)",
        count(level.messages, "buffered message"),
        human_bytes(level.bytes),
        *([f"{count(level.over_target, 'node')} over the target size"] if level.over_target else []),
    ]
    return ", ".join(parts)


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
    rows = [{name: getattr(each, name) for name in _GAINS} for each in gains]
    return {"predicted_and_realised": table(rows, _GAINS)}


def of_definition(definition: LakehouseDef) -> Metadata:
    """Return the fields of a lakehouse definition, except the properties, which may be private."""
    return given(
        id=definition.id,
        major_version=definition.major_version,
        node_file_max_size_bytes=definition.node_file_max_size_bytes,
        isolation_level=IsolationLevel.Name(definition.txn_isolation_level),
        snapshots=len(definition.snapshots),
    )
