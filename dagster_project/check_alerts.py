"""Sends what has begun to fail, or ceased to: asset checks, freshness, and runs that wait without end.

Each change is sent once. Lakehouses that cannot be opened because one storage fails are one change. Dagster shows
these on its pages, where nobody looks at night. Failed runs have a sensor of their own
(:mod:`dagster_project.notifications`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import dagster as dg

from dagster_project import checks, fleet_health, notifications
from dagster_project.assets import BACKUP_VERIFIED, INTEGRITY
from dagster_project.config.settings import Notifications
from dagster_project.notifications import Trouble
from dagster_project.scope import FLEET, last_evaluation
from trinitylake_core.short_repr import first_of

NAME: Final = notifications.CHECK_CHANGES
_EVERY_SECONDS: Final = 30
_WAITS_TOO_LONG_SECONDS: Final = 3600.0
_FIRST_DAY_SECONDS: Final = 86_400.0
_SINCE: Final = "since"
"""The key of the cursor with the time of the first tick; those of problems have two words."""
_SETTLING: Final = "settling"
_FAILED: Final = "failed"
"""The keys of the cursor with the memory of storages that fail; the third one is in :mod:`.notifications`."""
_JOINED: Final = "joined"
_SEVERITIES: Final = {each: f" ({each})" for each in (notifications.ERROR, notifications.WARNING)}
"""How what is known of a problem ends, by its severity when it was last sent or seen."""
_SETTLES_SECONDS: Final = 75.0
"""Lakehouses are polled once a minute: by then all of a storage that fails have failed, or it is well again."""
_NAMED: Final = 10
_AT_ONCE: Final = 50
"""So many changes are sent in one tick; the others wait for the next one."""
_NOT_SENT: Final = frozenset({checks.DEBT, checks.NOT_FROZEN})
"""Checks whose changes are not sent: the sensor answers a debt with a compaction, and whoever froze a lakehouse
knows."""
_NOT_SENT_AT_FIRST: Final = _NOT_SENT | {checks.COMPACTION_FRESH, checks.SNAPSHOTS_FRESH}
"""Checks whose changes are not sent on the first day: what is late then was so before anything ran here."""
_PASSED, _FAILS, _OVERDUE = "SUCCEEDED", "FAILED", "FAIL"
"""Values of Dagster's states of a check and of freshness, whose classes have no public names."""


@dataclass(frozen=True, slots=True)
class Survey:
    """What fails now.

    Attributes:
        failing: the problems, each by a text that stays the same while it lasts.
        undecided: problems that may have ended or not, because a run is about to evaluate them again.
        unreachable: lakehouses that cannot be opened, by the storage that fails, or else each by itself; each with why
            and the page that says so.
        again: problems that are known and have grown: they are sent again.
        joined: of warnings that were no problems of their own, the runs.
    """

    failing: dict[str, Trouble] = field(default_factory=dict)
    undecided: set[str] = field(default_factory=set)
    unreachable: dict[str, dict[str, tuple[str, str]]] = field(default_factory=dict)
    again: set[str] = field(default_factory=set)
    joined: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Memory:
    """What is remembered of storages that fail or failed lately, by problem.

    Attributes:
        settling: when what is not sent yet of a problem was first seen.
        failed: when each lakehouse failed last: since the problem was sent, or lately.
        told: the lakehouses of its last message that have not been well for long since.
    """

    settling: dict[str, float] = field(default_factory=dict)
    failed: dict[str, dict[str, float]] = field(default_factory=dict)
    told: dict[str, list[str]] = field(default_factory=dict)

    def forget(self, each: str) -> None:
        """Forget a problem that is over."""
        for part in (self.settling, self.failed, self.told):
            part.pop(each, None)


def check_sensors(
    notify: Notifications, *, only_ours: bool = False, mistakes: Mapping[str, str] = MappingProxyType({})
) -> list[dg.SensorDefinition]:
    """Return the sensor that sends changes to the webhook, if there is one.

    ``only_ours``: not those of other people's assets in the same code location. ``mistakes``: what is wrong in stanzas
    of lakehouses.yaml that have no definitions, by lakehouse.
    """
    if notify.webhook is None:
        return []

    @dg.sensor(
        name=NAME,
        minimum_interval_seconds=_EVERY_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Reports to the webhook of lakehouses.yaml, once for each change, which asset checks fail or pass "
        "again, which assets are overdue, and which runs have waited for an hour.",
    )
    def send_changes(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        instance = context.instance
        known = json.loads(context.cursor or "{}")
        survey = Survey(joined=known.pop(_JOINED, {}))
        for name, text in mistakes.items():
            about = f"{name} in lakehouses.yaml"
            survey.failing[f"stanza {name}"] = Trouble(about, notifications.ERROR, text, "locations")
        repository = context.repository_def
        now = time.time()
        since = float(known.pop(_SINCE, 0 if context.cursor else now))
        memory = Memory(*(known.pop(part, {}) for part in (_SETTLING, _FAILED, notifications.TOLD)))
        if repository is not None:
            add_assets_and_checks(survey, instance, repository, only_ours=only_ours, since=since)
        add_waiting_runs(survey, instance, now)
        hold_back_settling(survey, known, memory, now)
        compare_severities(survey, known)
        sent, failing = send_changes_of(survey, known, memory, notify, context.log)
        remembered = {_SETTLING: memory.settling, _FAILED: memory.failed, notifications.TOLD: memory.told}
        cursor = json.dumps({**failing, _SINCE: str(since), _JOINED: survey.joined, **remembered}, sort_keys=True)
        return dg.SensorResult(skip_reason=f"{sent} changes were sent", cursor=cursor)

    return [send_changes]


def is_ours(asset: dg.AssetKey) -> bool:
    """Return whether an asset belongs to a lakehouse or to a fleet of this project."""
    return asset.path[0] in {"lakehouse", FLEET}


# -- what fails now --------------------------------------------------------------------------------------


def add_assets_and_checks(
    survey: Survey, instance: dg.DagsterInstance, repository: dg.RepositoryDefinition, *, only_ours: bool, since: float
) -> None:
    """Add what fails of the assets and checks of a code location.

    ``since``: when the sensor first ticked. For a day after that nothing is late: a new deployment made nothing yet.
    """
    graph = repository.asset_graph
    is_new = time.time() - since < _FIRST_DAY_SECONDS
    unsent = _NOT_SENT_AT_FIRST if is_new else _NOT_SENT
    plain: list[dg.AssetCheckKey] = []
    partitioned: list[dg.AssetCheckKey] = []
    for key in sorted(graph.asset_check_keys, key=str):
        if key.name in unsent or (only_ours and not is_ours(key.asset_key)):
            continue
        has_partitions = graph.get_check_spec(key).partitions_def is not None
        if has_partitions and key.name == checks.REACHABLE:
            continue  # the page of the fleet has it for all
        (partitioned if has_partitions else plain).append(key)
    add_failed_checks(survey, instance, plain)
    add_failed_partitions(survey, instance, partitioned)
    _join_warnings(survey)
    _add_unreachable(survey)
    assets = [key for key in graph.materializable_asset_keys if is_ours(key) or not only_ours]
    if not is_new:
        add_overdue_assets(survey, instance, assets)


def add_failed_checks(survey: Survey, instance: dg.DagsterInstance, keys: Sequence[dg.AssetCheckKey]) -> None:
    """Add the checks without partitions that failed last. One query for all of them."""
    for key, summary in instance.event_log_storage.get_asset_check_summary_records(keys).items():
        record = summary.last_completed_check_execution_record
        if record is not None and isinstance(record.evaluation, dg.AssetCheckEvaluation):
            _add_evaluation(survey, key, None, record.evaluation, record.run_id)


def add_failed_partitions(survey: Survey, instance: dg.DagsterInstance, keys: list[dg.AssetCheckKey]) -> None:
    """Add the partitions of checks that failed last. One query for each check, and one for each that fails."""
    for info in instance.event_log_storage.get_asset_check_partition_info(keys):
        key, partition, status = info.check_key, info.partition_key, info.latest_execution_status.value
        if status == _FAILS:
            evaluation = last_evaluation(instance, key.asset_key, key.name, partition)
            if evaluation is not None:
                _add_evaluation(survey, key, partition, evaluation, info.latest_planned_run_id)
        elif status != _PASSED:
            survey.undecided.add(_check_id(key, partition))


def _add_evaluation(
    survey: Survey, key: dg.AssetCheckKey, partition: str | None, evaluation: dg.AssetCheckEvaluation, run_id: str
) -> None:
    if evaluation.passed:
        return
    page = notifications.page_of_check(key.asset_key, key.name)
    if key.name == checks.REACHABLE:
        name = key.asset_key.path[-2]
        alone = {name: fleet_health.reason_of(evaluation)}
        for name, reason in (fleet_health.reasons_in(evaluation) or alone).items():
            cause = f"storage {reason.storage}" if reason.storage else f"lakehouse {name}"
            survey.unreachable.setdefault(cause, {})[name] = (reason.why, page)
        return
    lakehouse = partition or "/".join(key.asset_key.path[:-1])
    survey.failing[_check_id(key, partition)] = Trouble(
        about=f"{key.name} of {lakehouse}",
        severity=notifications.ERROR if evaluation.severity is dg.AssetCheckSeverity.ERROR else notifications.WARNING,
        text=evaluation.description or "no reason was recorded",
        page=page,
        check=key.name,
        run_id=run_id,
    )


def _join_warnings(survey: Survey) -> None:
    """Leave out that a backup warns where the lakehouse itself does: most often both name one damaged snapshot.

    And where it did when the backup was proved: the lakehouse is proved before its backup, and ends its warning first.
    """
    abouts = {each.about for each in survey.failing.values()}
    before = dict(survey.joined)
    survey.joined.clear()
    for each, problem in list(survey.failing.items()):
        if problem.check != BACKUP_VERIFIED or problem.severity != notifications.WARNING:
            continue
        if problem.about.replace(BACKUP_VERIFIED, INTEGRITY) in abouts or before.get(each) == problem.run_id:
            del survey.failing[each]
            survey.undecided.add(each)
            survey.joined[each] = problem.run_id


def _add_unreachable(survey: Survey) -> None:
    """Add a problem for each storage that fails, and for each other lakehouse that cannot be opened."""
    for cause, found in survey.unreachable.items():
        names = sorted(found)
        why, page = found[names[0]]
        each, settles = f"{checks.REACHABLE} {cause}", cause.startswith("storage ")
        survey.failing[each] = Trouble(
            _describe_unreachable(each, names), notifications.ERROR, why, page, checks.REACHABLE, names, settles=settles
        )


def _describe_unreachable(each: str, names: Sequence[str]) -> str:
    """Return what a problem is about: the check, and the lakehouses that cannot be opened."""
    what = each.split(" ", 2)[-1]
    who = first_of(names, _NAMED)
    if len(names) > 1:
        who = f"{len(names)} lakehouses at {what}: {who}"
    return f"{checks.REACHABLE} of {who}"


def _check_id(key: dg.AssetCheckKey, partition: str | None) -> str:
    return f"check {key.asset_key.to_user_string()} {key.name} {partition or ''}"


def add_overdue_assets(survey: Survey, instance: dg.DagsterInstance, keys: Sequence[dg.AssetKey]) -> None:
    """Add the assets whose freshness policy fails. One query. Dagster's daemon judges them, if it is told to."""
    for key, state in instance.event_log_storage.get_freshness_state_records(keys).items():
        if state.freshness_state.value == _OVERDUE:
            name = key.to_user_string()
            text = "it was not materialised in time: see its last runs, its schedule, and whether the daemon runs"
            page = f"assets/{name}"
            survey.failing[f"fresh {name}"] = Trouble(f"{name} is overdue", notifications.ERROR, text, page)


def add_waiting_runs(survey: Survey, instance: dg.DagsterInstance, now: float) -> None:
    """Add the runs that have waited for an hour: in the queue, or for a pool that another run holds.

    One query for the queue, one for the pools.
    """
    for record in instance.get_run_records(dg.RunsFilter(statuses=[dg.DagsterRunStatus.QUEUED])):
        if now - record.create_timestamp.timestamp() > _WAITS_TOO_LONG_SECONDS:
            run = record.dagster_run
            text = "it waits in the queue: see which runs are at work, and the limits of `concurrency` in dagster.yaml"
            _add_waiting_run(survey, run.run_id, f"run of {run.job_name}", text)
    storage = instance.event_log_storage
    if not storage.supports_global_concurrency_limits:
        return
    for pool in sorted(storage.get_concurrency_keys()):
        info = storage.get_concurrency_info(pool)
        holders = ", ".join(sorted(info.active_run_ids)) or "no run"
        for step in info.pending_steps:
            if step.assigned_timestamp is None and now - step.enqueued_timestamp.timestamp() > _WAITS_TOO_LONG_SECONDS:
                text = f"its step {step.step_key} waits for the pool {pool}, which {holders} holds"
                _add_waiting_run(survey, step.run_id, f"run {step.run_id}", text)


def _add_waiting_run(survey: Survey, run_id: str, about: str, text: str) -> None:
    waits = Trouble(f"{about} has waited for an hour", notifications.ERROR, text, f"runs/{run_id}")
    survey.failing[f"run {run_id}"] = waits


def hold_back_settling(survey: Survey, known: Mapping[str, str], memory: Memory, now: float) -> None:
    """Leave out what has not lasted yet of problems that may end by themselves, and what is not over for long.

    A storage that comes and goes is one problem, which ends when it has been well for as long as it has to last.
    """
    for each, problem in survey.failing.items():
        if problem.settles:
            memory.failed.setdefault(each, {}).update(dict.fromkeys(problem.lakehouses, now))
    for each in [*memory.failed]:
        _hold_back(survey, each, memory, now, is_known=each in known)


def _hold_back(survey: Survey, each: str, memory: Memory, now: float, *, is_known: bool) -> None:
    """Decide of one problem whether it is sent, sent again, or neither, and whether it is over."""
    failed = memory.failed[each]
    lately = {name: last for name, last in failed.items() if now - last < _SETTLES_SECONDS}
    told = [name for name in memory.told.get(each, ()) if name in lately]
    if not is_known:
        memory.failed[each], told = lately, []
        if not lately:
            memory.forget(each)
            return
    memory.told[each] = told
    if lately and each not in survey.failing:
        survey.undecided.add(each)
    has_lasted = False
    if lately.keys() - told:
        has_lasted = now - memory.settling.setdefault(each, now) >= _SETTLES_SECONDS
    else:
        memory.settling.pop(each, None)
    if each in survey.failing and is_known and has_lasted:
        survey.again.add(each)
    elif not is_known and not has_lasted:
        survey.failing.pop(each, None)


def compare_severities(survey: Survey, known: dict[str, str]) -> None:
    """Let a check that warned, or of which an older release noted no severity, be sent again as an error.

    Which error is a warning now is noted.
    """
    for each in survey.failing.keys() & known.keys():
        problem = survey.failing[each]
        if known[each].endswith(_SEVERITIES[problem.severity]):
            continue
        if problem.severity == notifications.ERROR and problem.check not in {None, checks.REACHABLE}:
            survey.again.add(each)
        else:
            known[each] = _without_severity(known[each]) + _SEVERITIES[problem.severity]


def _without_severity(known: str) -> str:
    """Return what a problem is about by what is known of it."""
    for end in _SEVERITIES.values():
        known = known.removesuffix(end)
    return known


# -- what is sent ----------------------------------------------------------------------------------------


def send_changes_of(
    survey: Survey, known: dict[str, str], memory: Memory, notify: Notifications, log: Any
) -> tuple[int, dict[str, str]]:
    """Send what begins to fail, grows or ended; return how many changes were sent, and what is known to fail now.

    A change that the webhook does not accept stays unknown, so the next tick sends it again.
    """
    failing = dict(known)
    begun = [each for each in survey.failing if each not in known or each in survey.again]
    ended = [each for each in known if each not in survey.failing and each not in survey.undecided]
    sent = 0
    for each in [*begun, *ended][:_AT_ONCE]:
        problem = survey.failing.get(each)
        well = sorted(memory.failed.get(each, ()))
        about = _describe_unreachable(each, well) if well else _without_severity(known.get(each, ""))
        try:
            notifications.send_problem(notify, each, problem, about, well)
        except OSError as error:
            log.error(str(error))  # noqa: TRY400 - the reason suffices
            break  # it would refuse the others, too, and a tick has a minute
        sent += 1
        memory.settling.pop(each, None)
        if problem is None:
            del failing[each]
            memory.forget(each)
            continue
        failing[each] = problem.about + _SEVERITIES[problem.severity]
        if problem.settles:
            memory.told[each] = [*problem.lakehouses]
    return sent, failing
