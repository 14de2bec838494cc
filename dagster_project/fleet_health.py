"""The page of a fleet: all lakehouses, the worst first; and the checks that name those that fail."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

import dagster as dg

from dagster_project import assets, checks, poll
from dagster_project.config.file import Known, Stanzas
from dagster_project.config.settings import LakehouseSettings
from dagster_project.metadata.reports import keep_known, table, with_sizes
from dagster_project.poll import SensorState
from dagster_project.scope import FLEET, PARTITION_TAG, Scope, last_evaluation
from pipelines import fleet
from pipelines.engine.deadline_pool import DeadlinePool
from pipelines.fleet import Member, Report, State
from trinitylake_core import InvalidInput, clock
from trinitylake_core.short_repr import first_of

NAME: Final = "fleet_health"
JOB: Final = f"{FLEET}_health"
CHECKS: Final = {
    checks.REACHABLE: "Fails while a lakehouse cannot be opened.",
    checks.NOT_FROZEN: "Warns while a lakehouse is frozen: by whom, why and until when.",
    checks.DEBT: "Warns while so many messages are buffered somewhere that a compaction pays.",
    checks.COMPACTION_FRESH: "Warns while the compactions of a lakehouse do not keep up.",
    checks.SNAPSHOTS_FRESH: "Warns while a required snapshot is missing somewhere after its grace period.",
}
STORAGE: Final = "storage"
_COLUMNS: Final = (
    "lakehouse", "problem", "debt", "messages", "objects", "version", "last_commit", "versions_kept", "snapshots",
    "newest_snapshot", "backup_lag", "last_failure",
)  # fmt: skip
_GROWTH: Final = (
    "lakehouse", "newest_backup", "objects_per_day", "versions_per_day", "kept_bytes", "bytes_reclaimed_in_a_week",
)  # fmt: skip
_AS_THEY_ARE: Final = ("messages", "objects", "version", "versions_kept", "snapshots", "backup_lag")
_ROWS: Final = 500
"""So many rows a page shows."""
_FURTHER: Final = "further"
"""The metadata with the failing lakehouses of which a page shows no row."""
_NAMED: Final = 10
_PAGE: Final = 1000
"""So many records are asked for at once; a fleet of a thousand has ten thousand in a week."""
_POLL_SECONDS: Final = 20.0
_NO_DEADLINE_SECONDS: Final = 86_400.0
"""A run, other than a tick of the sensor, may wait for every lakehouse."""
_WEEK: Final = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a lakehouse fails a check, and the storage that fails, if that is why."""

    why: str = ""
    storage: str = ""


def reason_of(result: dg.AssetCheckResult | dg.AssetCheckEvaluation) -> Reason:
    """Return the reason of the result of one lakehouse."""
    storage = (result.metadata or {}).get(STORAGE)
    return Reason(result.description or "no reason was recorded", str(storage.value) if storage else "")


def fleet_health(scope: Scope, stanzas: Stanzas) -> dg.AssetsDefinition:
    """Return the asset that surveys all lakehouses."""

    @dg.asset(
        key=assets.key(scope, NAME),
        description="All lakehouses of lakehouses.yaml, the worst first: those that cannot be opened, those whose "
        "backup cannot, then by debt. The totals are plotted over time. `trinitylake fleet` shows the same in a "
        "terminal, and as text for monitoring systems.",
        group_name=scope.slug,
        kinds={"trinitylake"},
    )
    def survey_lakehouses(context: dg.AssetExecutionContext) -> dg.MaterializeResult[Any]:
        known = stanzas.all()
        report = fleet.run(_member_of(each) for each in known.good.values())
        failures, reclaimed = _failures(context.instance), _sum_reclaimed_bytes(scope, context.instance)
        return dg.MaterializeResult(metadata=_metadata(report, known, failures, reclaimed))

    return survey_lakehouses


def fleet_checks(scope: Scope, stanzas: Stanzas) -> dg.AssetChecksDefinition:
    """Return the checks of the fleet. The sensor evaluates them, too, whenever a lakehouse begins or ends to fail."""
    asset = assets.key(scope, NAME)

    @dg.multi_asset_check(
        name=f"{FLEET}__checks",
        specs=[dg.AssetCheckSpec(name, asset=asset, description=text) for name, text in CHECKS.items()],
    )
    def evaluate_checks() -> Iterator[dg.AssetCheckResult]:
        known = stanzas.all()
        failing = find_failing_lakehouses(known)
        count = len(known.good) + len(known.bad)
        for name in CHECKS:
            yield evaluate_fleet(asset, name, failing[name], count)

    return evaluate_checks


def find_failing_lakehouses(known: Known) -> dict[str, dict[str, Reason]]:
    """Poll every lakehouse once; return for each check the lakehouses that fail it, and why."""
    failing: dict[str, dict[str, Reason]] = {name: {} for name in CHECKS}
    for name, reason in known.bad.items():
        failing[checks.REACHABLE][name] = Reason(checks.trouble_of(InvalidInput(reason)).text)
    now = time.time()
    polls = ((name, partial(poll.poll_lakehouse, each, SensorState(), now)) for name, each in known.good.items())
    for outcome in DeadlinePool().each(polls, _POLL_SECONDS, _NO_DEADLINE_SECONDS):
        name = outcome.name
        if outcome.error is not None:
            trouble = checks.trouble_of(outcome.error, known.good[name])
            failing[checks.REACHABLE][name] = reason_of(checks.evaluate_unreachable(trouble))
            continue
        for _, result in outcome.get().results:
            if result.passed:
                continue
            of_check = failing[str(result.check_name)]
            of_check[name] = reason_of(result)
    return failing


def _member_of(settings: LakehouseSettings) -> Member:
    """Return a lakehouse as a survey wants it; secrets are read when it is opened."""
    target = None if settings.backup is None else settings.backup.target
    there = partial(settings.resolved_target_options, target or "")
    messages = settings.compaction.messages
    return Member(settings.name, settings.root, settings.resolved_storage_options, messages, target, there)


def evaluate_fleet(asset: dg.AssetKey, check: str, failing: Mapping[str, Reason], count: int) -> dg.AssetCheckResult:
    """Return the result of a check of a fleet, from the reasons of the lakehouses that fail."""
    names = sorted(failing)
    columns = ("lakehouse", "why", STORAGE) if check == checks.REACHABLE else ("lakehouse", "why")
    rows = [{"lakehouse": name, **asdict(failing[name])} for name in names]
    shown = first_of(names, _NAMED)
    metadata: dict[str, Any] = {"failing": len(names), "lakehouses": table(rows[:_ROWS], columns)}
    if rows[_ROWS:]:
        metadata[_FURTHER] = dg.MetadataValue.json(rows[_ROWS:])
    return dg.AssetCheckResult(
        asset_key=asset,
        check_name=check,
        passed=not names,
        severity=dg.AssetCheckSeverity.ERROR if check == checks.REACHABLE else dg.AssetCheckSeverity.WARN,
        description=f"{len(names)} of {count} lakehouses fail: {shown}" if names else f"none of {count} fails",
        metadata=metadata,
    )


def recorded_reasons(instance: dg.DagsterInstance, asset: dg.AssetKey, check: str) -> dict[str, Reason]:
    """Return the recorded reasons for which lakehouses fail a check, by lakehouse."""
    last = last_evaluation(instance, asset, check)
    return {} if last is None else reasons_in(last)


def reasons_in(evaluation: dg.AssetCheckEvaluation) -> dict[str, Reason]:
    """Return the reasons that an evaluation of a check of the fleet lists, by lakehouse."""
    shown = evaluation.metadata.get("lakehouses")
    rows = [row.data for row in shown.records] if isinstance(shown, dg.TableMetadataValue) else []
    further = evaluation.metadata.get(_FURTHER)
    if isinstance(further, dg.JsonMetadataValue) and isinstance(further.data, list):
        rows += further.data
    found = {}
    for row in rows:
        found[str(row["lakehouse"])] = Reason(str(row["why"]), str(row.get(STORAGE) or ""))
    return found


def _failures(instance: dg.DagsterInstance) -> dict[str, datetime]:
    """Return the time of the last failed run of each lakehouse within a week."""
    wanted = dg.RunsFilter(statuses=[dg.DagsterRunStatus.FAILURE], created_after=clock.utc_now() - _WEEK)
    found: dict[str, datetime] = {}
    cursor: str | None = None
    while records := instance.get_run_records(wanted, limit=_PAGE, cursor=cursor):
        for record in records:
            name, cursor = record.dagster_run.tags.get(PARTITION_TAG), record.dagster_run.run_id
            if name is not None:
                found.setdefault(name, record.create_timestamp)
    return found


def _sum_reclaimed_bytes(scope: Scope, instance: dg.DagsterInstance) -> dict[str, int]:
    """Return the bytes that maintenance deleted within a week, by lakehouse; a query for each thousand runs."""
    found: dict[str, int] = {}
    since = (clock.utc_now() - _WEEK).timestamp()
    for name in (assets.EXPIRATION, assets.ORPHANS, assets.TABLE_CLEANING):
        only = dg.AssetRecordsFilter(asset_key=assets.key(scope, name), after_timestamp=since)
        cursor, more = None, True
        while more:
            page = instance.fetch_materializations(only, limit=_PAGE, cursor=cursor)
            cursor, more = page.cursor, page.has_more
            for record in page.records:
                made = record.asset_materialization
                value = None if made is None else made.metadata.get("bytes_deleted")
                if record.partition_key is not None and value is not None and isinstance(value.value, int):
                    found[record.partition_key] = found.get(record.partition_key, 0) + value.value
    return found


def _metadata(
    report: Report, known: Known, failures: Mapping[str, datetime], reclaimed: Mapping[str, int]
) -> dict[str, Any]:
    wrong = [State(name, "", reason) for name, reason in known.bad.items()]
    rows = [_row(state, failures, reclaimed) for state in [*wrong, *report.states][:_ROWS]]
    behind = [state.backup_lag for state in report.states if state.backup_lag is not None]
    snapshots = [state.snapshot_at for state in report.states if state.snapshot_at is not None]
    backups = [state.backup_at for state in report.states if state.backup_at is not None]
    found: dict[str, Any] = keep_known(
        worst=table(rows, _COLUMNS),
        lakehouses=len(report.states) + len(wrong),
        unreachable=report.unreachable + len(wrong),
        over_threshold=report.over_threshold,
        failed_within_a_week=len(failures),
        objects=report.objects,
        buffered_messages=report.messages,
        most_versions_behind_in_a_backup=max(behind, default=None),
        oldest_of_the_newest_snapshots=dg.MetadataValue.timestamp(min(snapshots)) if snapshots else None,
        oldest_of_the_newest_backups=dg.MetadataValue.timestamp(min(backups)) if backups else None,
        objects_per_day=round(sum(state.growth.objects_per_day or 0.0 for state in report.states), 4),
        kept_bytes=sum(state.growth.kept_bytes or 0 for state in report.states),
        bytes_reclaimed_in_a_week=sum(reclaimed.values()),
        seconds=report.seconds,
        growth=table(rows, _GROWTH),
    )
    return with_sizes(found)


def _minute(moment: datetime | None) -> str | None:
    """Return a time short enough for one of many columns."""
    return None if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%MZ}"


def _row(state: State, failures: Mapping[str, datetime], reclaimed: Mapping[str, int]) -> dict[str, Any]:
    backup = None if state.backup_problem is None else f"backup: {state.backup_problem}"
    return {
        **{name: getattr(state, name) for name in _AS_THEY_ARE},
        **{name: getattr(state.growth, name) for name in ("objects_per_day", "versions_per_day", "kept_bytes")},
        "lakehouse": state.name,
        "problem": state.problem or backup,
        "debt": None if state.debt is None else round(state.debt, 1),
        "last_commit": _minute(state.committed_at),
        "newest_snapshot": _minute(state.snapshot_at),
        "newest_backup": state.backup_at,
        "bytes_reclaimed_in_a_week": reclaimed.get(state.name),
        "last_failure": _minute(failures.get(state.name)),
    }
