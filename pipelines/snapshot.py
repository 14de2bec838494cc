"""Snapshots: those that policies require, and full ones, which are an export with a name (format, section 6)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pipelines import export
from pipelines.job import NEVER_CANCELLED, Cancel, Progress, Review, Session
from trinitylake_core import Lakehouse, SnapshotInfo, clock
from trinitylake_core.errors import AlreadyExists, InvalidInput, SnapshotNotFound
from trinitylake_core.short_repr import ShortRepr
from trinitylake_core.snapshots import refuse_bad_name

_PERIODS: Final = {
    "hourly": ("hourly-%Y-%m-%dT%H", r"hourly-\d{4}-\d\d-\d\dT\d\d"),
    "daily": ("daily-%Y-%m-%d", r"daily-\d{4}-\d\d-\d\d"),
    "weekly": ("weekly-%G-W%V", r"weekly-\d{4}-W\d\d"),
    "monthly": ("monthly-%Y-%m", r"monthly-\d{4}-\d\d"),
    "yearly": ("yearly-%Y", r"yearly-\d{4}"),
}
"""For each period: the format of the names of its snapshots, and a pattern that they match. Names sort by time."""
PERIODS: Final = tuple(_PERIODS)


@dataclass(frozen=True, slots=True)
class Due:
    """What policies ask for now: names to create, and names to drop because newer ones took their place."""

    create: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Overdue:
    """A period whose snapshot is overdue: the name of the missing one, and the newest one that exists."""

    period: str
    name: str
    newest: str | None


@dataclass(frozen=True, slots=True, repr=False)
class Report(ShortRepr):
    """The snapshots that were created and dropped. ``version_after`` is the newest version afterwards."""

    version_before: int
    version_after: int
    dry_run: bool
    due: Due
    created: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Full:
    """A full snapshot and the export that it names. ``snapshot`` is ``None`` on a dry run."""

    snapshot: SnapshotInfo | None
    export: export.Report


def name_of(period: str, now: datetime) -> str:
    """Return the name of the snapshot of a period, in UTC: ``daily-2026-11-20``, ``weekly-2026-W47``.

    Raises:
        InvalidInput: there is no such period.
    """
    if period not in _PERIODS:
        raise InvalidInput(f"a snapshot policy is one of {', '.join(PERIODS)}, not {period!r}")
    if now.tzinfo is not None:
        now = now.astimezone(UTC)
    time_format, _ = _PERIODS[period]
    return now.strftime(time_format)


def due(policies: Mapping[str, int], snapshots: Iterable[SnapshotInfo], now: datetime) -> Due:
    """Return the snapshots that policies require. Pure.

    A period without a snapshot gets one; of its snapshots the newest ``keep`` stay, this one among them.
    Snapshots with other names, and those of periods without a policy, are never dropped.

    Args:
        policies: the number of snapshots to keep, by period: ``{"daily": 14, "weekly": 8}``.
        snapshots: the snapshots that exist.
        now: the time; UTC if it has no zone.

    Raises:
        InvalidInput: an unknown period, or one of which fewer than one is to be kept.
    """
    existing = [info.name for info in snapshots if not info.expired]
    create: list[str] = []
    drop: list[str] = []
    for period, keep in policies.items():
        current = name_of(period, now)
        if keep < 1:
            raise InvalidInput(f"snapshot policy {period}: keep must be at least 1, not {keep}")
        of_period = _of_period(period, existing, current)
        if current not in of_period:
            create.append(current)
        newest_first = sorted(of_period | {current}, reverse=True)
        drop += newest_first[keep:]
    to_create = [name for name in create if name not in drop]
    to_drop = sorted(name for name in set(drop) if name in existing)
    return Due(tuple(to_create), tuple(to_drop))


def overdue(graces: Mapping[str, timedelta], snapshots: Iterable[SnapshotInfo], now: datetime) -> list[Overdue]:
    """Return the periods that have begun longer ago than their grace, and neither they nor later ones have a snapshot.

    Pure. Raises ``InvalidInput`` for an unknown period.
    """
    existing = [info.name for info in snapshots if not info.expired]
    found = []
    for period, grace in graces.items():
        name = name_of(period, now - grace)
        current = name_of(period, now)
        newest = max(_of_period(period, existing, current), default=None)
        if newest is None or newest < name:
            found.append(Overdue(period, name, newest))
    return found


def _of_period(period: str, names: Sequence[str], current: str) -> set[str]:
    """Return the names of snapshots of a period; of one in the future, by a clock that was wrong, nobody knows."""
    _, pattern = _PERIODS[period]
    return {each for each in names if re.fullmatch(pattern, each) and each <= current}


def run(
    lake: Lakehouse,
    policies: Mapping[str, int],
    now: datetime | None = None,
    *,
    reason: str | None = None,
    review: Review[Report] | None = None,
    cancel: Cancel | None = None,
) -> Report:
    """Create and drop snapshots of the newest version as policies require; the handle moves there. One commit a name.

    A snapshot that another writer created or dropped in between counts as created or dropped.

    Raises:
        InvalidInput, ReadOnly, StorageError.
    """
    before = lake.refresh().version
    asked = due(policies, lake.snapshots(), now or clock.utc_now())
    report = Report(
        version_before=before,
        version_after=before,
        dry_run=True,
        due=asked,
    )
    if review is not None and not review(report):
        return report
    report = replace(report, dry_run=False)
    if not (asked.create or asked.drop):
        return report
    cancel = cancel or NEVER_CANCELLED
    how: dict[str, Any] = {
        "reason": reason or "snapshot policy",
        "before_commit": cancel.check,
    }
    created = list[str]()
    dropped = list[str]()
    for name in asked.create:
        with suppress(AlreadyExists):
            lake.create_snapshot(name, version=before, **how)
            created.append(name)
    for name in asked.drop:
        with suppress(SnapshotNotFound):
            lake.drop_snapshot(name, **how)
            dropped.append(name)
    return replace(
        report,
        version_after=lake.catch_up().version,
        created=tuple(created),
        dropped=tuple(dropped),
    )


def full(
    lake: Lakehouse,
    name: str,
    target_uri: str,
    config: export.Config | None = None,
    spark: Session = None,
    *,
    expires_at: datetime | None = None,
    reason: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    review: Review[Full] | None = None,
    cancel: Cancel | None = None,
    progress: Progress | None = None,
) -> Full:
    """Export a version and record the copy as a snapshot. The handle moves to the newest version.

    Raises:
        AlreadyExists: a snapshot of this name, or another lakehouse at the target.
        InvalidInput, VersionNotFound, VersionExpired, Refused, Corrupt, StorageError.
    """
    config = config or export.Config()
    refuse_bad_name(name)
    if config.history:
        raise InvalidInput("a snapshot holds one version, so it cannot be made with history")
    if any(info.name == name and not info.expired for info in lake.refresh().snapshots()):
        raise AlreadyExists(f"snapshot {name!r} already exists; drop it first, or choose another name")
    review_export = None
    if review is not None:
        review_full = review

        def review_export(planned: export.Report) -> bool:
            return review_full(Full(None, planned))

    done = export.run(
        lake,
        target_uri,
        config,
        spark,
        storage_options=storage_options,
        review=review_export,
        cancel=cancel,
        progress=progress,
    )
    if done.dry_run:
        return Full(None, done)
    made = lake.create_snapshot(
        name,
        version=done.plan.version,
        kind="full",
        target_uri=done.target,
        expires_at=expires_at,
        reason=reason,
        before_commit=(cancel or NEVER_CANCELLED).check,
    )
    lake.catch_up()
    return Full(made, done)
