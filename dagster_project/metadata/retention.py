"""Results of snapshots, expiration and orphan removal as Dagster metadata, with the plan of a deletion as a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from pyarrow import parquet

from dagster_project.metadata.health import Metadata, given, table
from pipelines import expiration, orphans, snapshot
from pipelines.summary import human_bytes
from trinitylake_core import SnapshotInfo

PLAN_LIMIT: Final = 500
_PLAN: Final = ("path", "kind", "bytes", "modified", "reason")
_SNAPSHOTS: Final = ("name", "version", "kind", "created_at", "expires_at", "expired", "target_uri")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Deletion(Generic[T]):
    """A plan of a deletion, and its result.

    Attributes:
        planned: the report of planning.
        done: the report of carrying the plan out; ``None`` on a dry run.
        rows: the first files of the plan, at most ``PLAN_LIMIT``.
        files: how many files the plan has.
    """

    planned: T
    done: T | None
    rows: list[dict[str, Any]]
    files: int

    @property
    def report(self) -> T:
        """The report of what was carried out, or else of what was planned."""
        return self.planned if self.done is None else self.done


def rows_of(plan: Path) -> tuple[list[dict[str, Any]], int]:
    """Return the first rows of a plan, and how many it has."""
    with parquet.ParquetFile(plan) as file:
        batch = next(file.iter_batches(PLAN_LIMIT), None)
        rows: list[dict[str, Any]] = [] if batch is None else batch.to_pylist()
        total = int(file.metadata.num_rows)
    return [{**row, "modified": _time(row["modified_millis"])} for row in rows], total


def _time(millis: int | None) -> datetime | None:
    return None if millis is None else datetime.fromtimestamp(millis / 1000, UTC)


def _of_plan(deletion: Deletion[Any]) -> Metadata:
    shown = {} if deletion.files <= len(deletion.rows) else {"plan_files_shown": len(deletion.rows)}
    return {"dry_run": deletion.done is None, "plan_files": deletion.files, "plan": table(deletion.rows, _PLAN)} | shown


def _of_deletes(report: expiration.Report | orphans.Report, *, dry_run: bool) -> Metadata:
    failures = [{"path": path, "reason": why} for path, why in report.failures.items()]
    return {
        "files_deleted": report.deleted,
        "bytes_deleted": 0 if dry_run else report.bytes,
        "already_gone": report.already_gone,
        "failed": report.failed,
    } | ({"failures": table(failures, ("path", "reason"))} if failures else {})


def of_expiration(deletion: Deletion[expiration.Report]) -> Metadata:
    """Return what an expiration planned and did."""
    report, freed, dry = deletion.report, deletion.planned.freed, deletion.done is None
    each = () if freed is None else freed.each
    rows = [{"version": one.version, "files": one.files, "bytes": one.bytes} for one in each]
    verb = "would expire" if dry else "expired"
    size = "" if freed is None else f"; only they reach {freed.files} files, {human_bytes(freed.bytes)}"
    outcome = f"{report.versions_expired} versions {verb}; oldest version: {report.boundary_after}{size}"
    return (
        {"outcome": outcome}
        | _of_plan(deletion)
        | given(
            versions_expired=report.versions_expired,
            oldest_version_before=report.boundary_before,
            oldest_version=report.boundary_after,
            version_committed=report.version_after,
            snapshots_expired=", ".join(report.snapshots_expired) or None,
            leftovers=report.leftovers,
            files_freed=None if freed is None else freed.files,
            bytes_freed=None if freed is None else freed.bytes,
            freed_by_version=table(rows, ("version", "files", "bytes")) if rows else None,
            seconds=_seconds(deletion),
        )
        | _of_deletes(report, dry_run=dry)
    )


def of_orphans(deletion: Deletion[orphans.Report]) -> Metadata:
    """Return what a removal of orphans planned and did."""
    report, planned, dry = deletion.report, deletion.planned, deletion.done is None
    kinds = [{"kind": kind, "files": size.files, "bytes": size.bytes} for kind, size in planned.orphans.items()]
    verb = "would be removed" if dry else "removed"
    files, size = (planned.orphan_files, planned.orphan_bytes) if dry else (report.deleted, report.bytes)
    outcome = f"{files} files {verb}, {human_bytes(size)}; {planned.young.files} are too young"
    return (
        {"outcome": outcome}
        | _of_plan(deletion)
        | given(
            files_listed=planned.listed.files,
            bytes_listed=planned.listed.bytes,
            orphan_files=planned.orphan_files,
            orphan_bytes=planned.orphan_bytes,
            too_young_files=planned.young.files,
            foreign_files=planned.foreign.files,
            saved_transactions=planned.transactions,
            snapshots_kept=planned.snapshots,
            temporary_removed=report.temporary_removed,
            nodes_read=planned.nodes_read,
            engine=planned.engine,
            orphans_by_kind=table(kinds, ("kind", "files", "bytes")) if kinds else None,
            seconds=_seconds(deletion),
        )
        | _of_deletes(report, dry_run=dry)
    )


def _seconds(deletion: Deletion[Any]) -> float:
    both: Iterable[Mapping[str, float]] = [each.seconds for each in (deletion.planned, deletion.done) if each]
    return round(sum(sum(each.values()) for each in both), 3)


def of_snapshots(report: snapshot.Report, snapshots: Iterable[SnapshotInfo]) -> Metadata:
    """Return the snapshots, and what the policies created and dropped."""
    rows = [{name: getattr(each, name) for name in _SNAPSHOTS} for each in snapshots]
    return given(
        snapshots=len(rows),
        snapshot_list=table(rows, _SNAPSHOTS) if rows else None,
        dry_run=report.dry_run,
        due=_names(report.due.create),
        superseded=_names(report.due.drop),
        created=_names(report.created),
        dropped=_names(report.dropped),
    )


def _names(names: tuple[str, ...]) -> str | None:
    return ", ".join(names) or None
