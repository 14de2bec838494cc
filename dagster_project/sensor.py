"""The sensor: polls lakehouses, records what is new, requests compactions that pay.

Both layouts have the same algorithm. With ``layout: assets`` each lakehouse has a sensor, which records
check results on its assets. With ``layout: partitions`` one sensor polls those lakehouses that are due, each with a
deadline, and records on the page of the fleet which of them fail a check.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Final, TypeAlias

import dagster as dg

from dagster_project import assets, checks, compaction_policy, fleet_health, poll
from dagster_project.checks import Trouble
from dagster_project.compaction_policy import Decision
from dagster_project.config.file import Known
from dagster_project.config.settings import LAKEHOUSE_TAG, REASON_TAG, LakehouseSettings
from dagster_project.config.values import format_duration
from dagster_project.fleet_health import Reason
from dagster_project.poll import Poll, SensorState
from dagster_project.processes.dead_runs import Undertaker
from dagster_project.scope import (
    FLEET,
    LAKEHOUSES,
    PARTITION_TAG,
    AssetJob,
    Scope,
    compaction_job,
    lakehouse_tags,
    last_result,
    run_tags,
    runs_at_work,
    sensor_of,
)
from trinitylake_core import InvalidInput
from trinitylake_core.short_repr import first_of

_FLEET_EVERY_SECONDS: Final = 30
_BAD_STANZA_SECONDS: Final = 60.0
_AT_ONCE: Final = 2000
_SELDOM: Final = 8
"""A quiet lakehouse of a fleet is polled so many times less often than a busy one, at the most."""
_NAMED: Final = 10
DATA_VERSION: Final = "dagster/data_version"
IS_OURS: Final = "dagster/data_version_is_user_provided"
"""Tags of Dagster's event log, which has no public names for them."""
_OBSERVED: Final = 50
"""Dagster takes some 10 ms of CPU for each event of a tick, one after the other, and keeps them for ever: a thousand
lakehouses with a commit a minute would be 1.4 million events a day, and ticks of minutes."""
PartitionsRequest: TypeAlias = dg.AddDynamicPartitionsRequest | dg.DeleteDynamicPartitionsRequest
Event: TypeAlias = dg.AssetObservation | dg.AssetMaterialization | dg.AssetCheckEvaluation


def compaction_sensor(
    scope: Scope,
    job: AssetJob,
    lakehouses: Callable[[], Known],
    survey: AssetJob | None = None,
) -> dg.SensorDefinition:
    """Return the sensor of one lakehouse, or of a fleet; ``lakehouses`` returns the stanzas at each tick.

    ``survey``: the job of the page of a fleet, which the first tick requests.
    """
    known = scope.known
    every = _FLEET_EVERY_SECONDS if known is None else max(1, int(known.compaction.poll.total_seconds()))
    tick = FleetTick if known is None else LakehouseTick
    undertaker = Undertaker()
    without_job = RunsWithoutJob()

    @dg.sensor(
        name=sensor_of(scope.tags),
        jobs=[job] if survey is None else [job, survey],
        minimum_interval_seconds=every,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=_description(known),
    )
    def sense(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        origin = context.code_location_origin
        if origin is not None:  # where Dagster does not say which location this is, nobody's runs are judged
            undertaker.end_dead_runs(context.instance, origin.location_name, scope.pool)
            without_job.cancel(context, origin.location_name)
        return tick(scope, context).result(lakehouses())

    return sense


def _description(known: LakehouseSettings | None) -> str:
    if known is None:
        return (
            "Reads the newest root of every lakehouse of lakehouses.yaml: busy ones every `compaction.poll`, "
            "quiet ones up to 8 times less often. Adds and removes partitions, records new versions, evaluates "
            f"the checks of {fleet_health.NAME}, and requests compactions that pay."
        )
    policy = known.compaction
    limits = [f"{policy.messages:,} messages are buffered"]
    limits += [] if policy.root_bytes is None else [f"take {policy.root_bytes:,} bytes of the root"]
    limits += [] if policy.older_than is None else [f"have waited for {format_duration(policy.older_than)}"]
    never = "never requests a compaction: compaction.enabled is false in lakehouses.yaml."
    compacts = f"requests a compaction, one at a time, once {' or '.join(limits)}." if policy.enabled else never
    return f"Reads the newest root of lakehouse {known.name!r}, records new versions and changed checks, and {compacts}"


class RunsWithoutJob:
    """The queued runs of lakehouses whose job is gone: they would fail, and not say why.

    Attributes:
        suspects: those that were found at the last call. A code server that is just being replaced has older
            definitions than a run, so a run is cancelled when it is found twice in a row.
    """

    def __init__(self) -> None:
        self.suspects: set[str] = set()

    def cancel(self, context: dg.SensorEvaluationContext, location: str) -> None:
        """Cancel those that were found at the last call, too. One query."""
        repository = context.repository_def
        if repository is None:
            return
        gone = {}
        for run in context.instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.QUEUED])):
            is_gone = LAKEHOUSE_TAG in run.tags and not repository.has_job(run.job_name)
            if is_gone and _is_from(run, location, repository):
                gone[run.run_id] = run
        for run_id in gone.keys() & self.suspects:
            lakehouse = gone[run_id].tags[LAKEHOUSE_TAG]
            why = f"The lakehouse {lakehouse!r} is not in lakehouses.yaml any more, or not with this job"
            context.instance.report_run_canceled(gone[run_id], f"{why}, so this run was cancelled.")
        self.suspects = gone.keys() - self.suspects


def _is_from(run: dg.DagsterRun, location: str, repository: dg.RepositoryDefinition) -> bool:
    origin = run.remote_job_origin
    if origin is None:
        return False
    return (location, repository.name) == (origin.location_name, origin.repository_origin.repository_name)


class LakehouseTick:
    """A tick of the sensor of one lakehouse, at each of which it is polled and every new version is recorded.

    Ends within half a minute, even if storages hang.
    """

    poll_seconds, tick_seconds = 20.0, 21.0
    """The daemon waits 60 s for a tick, which also has to ask the database."""
    observe_every_seconds = 0.0

    def __init__(self, scope: Scope, context: dg.SensorEvaluationContext) -> None:
        self.scope, self.context = scope, context
        self.now = time.time()
        self.states = poll.states_of(context.cursor)
        self.before = self.states
        self.results: dict[str, list[tuple[str, dg.AssetCheckResult]]] = {}
        """What was evaluated, by lakehouse, each with the asset that the check is on."""
        self.requests: list[dg.RunRequest] = []
        self.reasons: dict[str, str] = {}
        """Why nothing was requested, by lakehouse."""
        self.new: dict[str, tuple[int, dg.ObserveResult]] = {}
        """The new versions, with what is to be recorded of each."""
        self.tables: list[dg.AssetMaterialization] = []
        """The new versions of tables that are assets."""

    def result(self, known: Known) -> dg.SensorResult:
        """Return the result of the tick."""
        names = {**known.good, **known.bad}
        self.states = {name: self.states.get(name, SensorState()) for name in names}
        for name, reason in known.bad.items():
            self._record_failure(name, checks.trouble_of(InvalidInput(reason)), _BAD_STANZA_SECONDS)
        due, polled = self.due(known.good), 0
        by_root = {known.good[name].root: known.good[name] for name in due}
        work = (
            (root, partial(poll.poll_lakehouse, each, self.states[each.name], self.now))
            for root, each in by_root.items()
        )
        for outcome in poll.POLLS.each(work, self.poll_seconds, self.tick_seconds):
            polled += 1
            settings = by_root[outcome.name]
            if outcome.error is None:
                self._record_poll(settings, outcome.get())
            else:  # an unforeseen error, too, concerns this lakehouse only
                seconds = settings.compaction.poll.total_seconds()
                self._record_failure(settings.name, checks.trouble_of(outcome.error, settings), seconds)
        events = [*self._observations(), *self.tables, *self.check_events()]
        self.requests += self.first_requests()
        return dg.SensorResult(
            run_requests=self.requests,
            skip_reason=None if self.requests else self.skip_reason(polled, len(due) - polled),
            cursor=poll.cursor_of(self.states),
            asset_events=events,
            dynamic_partitions_requests=self.partitions({*names} - known.nameless, may_remove=not known.nameless),
        )

    def due(self, good: Mapping[str, LakehouseSettings]) -> list[str]:
        """Return the lakehouses to poll now, in this order."""
        return [*good]

    def again(self, state: SensorState, seconds: float, *, quiet: int) -> SensorState:
        """Return a state with the time of the next poll; that of one lakehouse follows from the interval of Dagster."""
        return state

    def check_events(self) -> Iterator[Event]:
        """Yield the results that differ from what was recorded last: runs evaluate the same checks."""
        for asset, result in [each for some in self.results.values() for each in some]:
            key, check = assets.key(self.scope, asset), str(result.check_name)
            last = last_result(self.context.instance, key, check)
            if last is not result.passed:
                yield checks.evaluation(key, result)

    def first_requests(self) -> list[dg.RunRequest]:
        """Return what the first tick requests besides compactions."""
        return []

    def skip_reason(self, polled: int, waiting: int) -> str:
        """Return the findings of a tick that requested nothing."""
        return "; ".join(self.reasons.values())

    def partitions(self, names: set[str], *, may_remove: bool) -> list[PartitionsRequest]:
        """Return the changes of the partitions, if there are any."""
        return []

    def _record_failure(self, name: str, trouble: Trouble, seconds: float) -> None:
        """Remember that a lakehouse cannot be opened."""
        state = replace(self.states[name], failing=self.states[name].failing + 1)
        self.reasons[name] = trouble.text
        state = self._record_results(name, state, (assets.HEALTH, checks.evaluate_unreachable(trouble)))
        self.states[name] = self.again(state, seconds, quiet=state.quiet + 1)

    def _record_poll(self, settings: LakehouseSettings, found: Poll) -> None:
        """Remember what was polled, and request a compaction if one pays."""
        name, before = settings.name, self.states[settings.name]
        if found.observed is not None:
            self.new[name] = (found.version, found.observed)
        self.tables += found.tables
        state = replace(found.state, failing=0)
        reachable = (assets.HEALTH, checks.evaluate_reachable(found.version))
        state = self._record_results(name, state, *found.results, reachable)
        decision = self._decide(settings, found, before)
        self.reasons[name] = decision.reason
        if decision.wanted:
            step = assets.key(self.scope, assets.COMPACTION).to_python_identifier()
            request = dg.RunRequest(
                job_name=compaction_job(self.scope),
                # a tick that the daemon gave up repeats this key, because its cursor was not kept: one launch, not two
                run_key=f"{name}-{found.version}-{before.requested_at:.0f}-{self.terminated_at(settings):.0f}",
                partition_key=self.scope.partition(name),
                tags={**run_tags(settings), REASON_TAG: decision.reason},
                run_config={"ops": {step: {"config": {"reason": decision.reason}}}},
            )
            self.requests.append(request)
            state = replace(state, requested_at=self.now)
        quiet = 0 if found.observed is not None or found.pays.wanted else before.quiet + 1
        self.states[name] = self.again(state, settings.compaction.poll.total_seconds(), quiet=quiet)

    def _record_results(self, name: str, state: SensorState, *results: tuple[str, dg.AssetCheckResult]) -> SensorState:
        self.results[name] = [*results]
        return replace(state, results={**state.results, **{str(each.check_name): each.passed for _, each in results}})

    def _observations(self) -> Iterator[dg.AssetObservation]:
        """Yield new versions: in a fleet of each lakehouse now and then, the one that waits longest first.

        A version that is not recorded now is recorded with those that come after it.
        """
        waiting = []
        for name in self.new:
            if self.now - self.states[name].observed_at >= self.observe_every_seconds:
                waiting.append(name)
        waiting.sort(key=lambda name: self.states[name].observed_at)
        for name in waiting[:_OBSERVED]:
            version, observed = self.new[name]
            self.states[name] = replace(self.states[name], version=version, observed_at=self.now)
            data_version = "" if observed.data_version is None else observed.data_version.value
            yield dg.AssetObservation(
                asset_key=assets.key(self.scope, assets.DEFINITION),
                metadata=observed.metadata,
                tags={DATA_VERSION: data_version, IS_OURS: "true"},
                partition=self.scope.partition(name),
            )

    def _decide(self, settings: LakehouseSettings, found: Poll, before: SensorState) -> Decision:
        """Return the decision on a compaction now. Queries the database only for a lakehouse that needs one."""
        if not settings.compaction.enabled:
            return Decision(False, f"{found.pays.reason}; compaction.enabled is false in lakehouses.yaml")
        if not found.pays.wanted:
            return found.pays
        last = max(before.requested_at, self.terminated_at(settings), self._compacted_at(settings))
        waits = compaction_policy.too_soon(settings.compaction, last, self.now)
        if waits is not None:
            return waits
        run = next(runs_at_work(self.scope, settings, self.context.instance), None)
        if run is not None:
            return Decision(False, f"run {run.run_id} of this lakehouse has not finished yet")
        return found.pays

    def _compacted_at(self, settings: LakehouseSettings) -> float:
        """Return when Dagster recorded the last compaction of a lakehouse; 0 if it recorded none. One query."""
        asset = assets.key(self.scope, assets.COMPACTION)
        partition = self.scope.partition(settings.name)
        only = dg.AssetRecordsFilter(asset, asset_partitions=None if partition is None else [partition])
        records = self.context.instance.fetch_materializations(only, limit=1).records
        return records[0].timestamp if records else 0.0

    def terminated_at(self, settings: LakehouseSettings) -> float:
        """Return when a compaction of a lakehouse was last terminated, in epoch seconds; 0 if none was.

        Whoever terminates a compaction wants it to end, not to begin again at the next tick. One query.
        """
        wanted = dg.RunsFilter(
            statuses=[dg.DagsterRunStatus.CANCELED],
            tags=lakehouse_tags(self.scope, settings),
            job_name=compaction_job(self.scope),
        )
        for record in self.context.instance.get_run_records(wanted, limit=1):
            return record.end_time or 0.0
        return 0.0


class FleetTick(LakehouseTick):
    """A tick of the sensor of a fleet, which polls and records as much as a tick has time for."""

    poll_seconds, tick_seconds = 10.0, 25.0
    observe_every_seconds = 600.0

    def due(self, good: Mapping[str, LakehouseSettings]) -> list[str]:
        """Return those whose time has come, the one that waits longest first.

        Those that failed last time come after all others: what hangs takes a thread for as long as it may.
        """
        states = {name: self.states[name] for name in good if self.states[name].next_poll <= self.now}
        return sorted(states, key=lambda name: (states[name].failing > 0, states[name].next_poll, name))[:_AT_ONCE]

    def again(self, state: SensorState, seconds: float, *, quiet: int) -> SensorState:
        """Return a state with the time of the next poll: the longer nothing happens, the later."""
        return replace(state, quiet=min(quiet, 8), next_poll=self.now + seconds * min(2.0**quiet, _SELDOM) - 1)

    def partitions(self, names: set[str], *, may_remove: bool) -> list[PartitionsRequest]:
        """Return the requests after which the partitions are the lakehouses of lakehouses.yaml.

        None goes while a stanza has no name that can be read: it may be that lakehouse's.
        """
        there, requests = set(self.context.instance.get_dynamic_partitions(FLEET)), list[PartitionsRequest]()
        if names - there:
            requests.append(LAKEHOUSES.build_add_request(sorted(names - there)))
        if may_remove and there - names:
            self.cancel_queued_runs(there - names)
            requests.append(LAKEHOUSES.build_delete_request(sorted(there - names)))
        return requests

    def cancel_queued_runs(self, removed: set[str]) -> None:
        """Cancel the queued runs of lakehouses that are no longer in lakehouses.yaml: they would fail, or never start.

        One query for each of these lakehouses.
        """
        for name in sorted(removed):
            waiting = dg.RunsFilter(statuses=[dg.DagsterRunStatus.QUEUED], tags={PARTITION_TAG: name})
            for run in self.context.instance.get_runs(waiting):
                why = f"The lakehouse {name!r} is not in lakehouses.yaml any more, so this run was cancelled."
                self.context.instance.report_run_canceled(run, why)

    def first_requests(self) -> list[dg.RunRequest]:
        """Return the request for the page of the fleet at the first tick: the schedule is due an hour later at most."""
        if self.context.cursor:
            return []
        return [dg.RunRequest(run_key="first", job_name=fleet_health.JOB)]

    def check_events(self) -> Iterator[Event]:
        """Yield the results of those checks that other lakehouses fail than before: which do, and why.

        Dagster keeps one evaluation without a run per check and partition, so these are on an asset without partitions.
        What this tick did not poll keeps the reason that was recorded last.
        """
        asset, instance = assets.key(self.scope, fleet_health.NAME), self.context.instance
        for check in fleet_health.CHECKS:
            failing = _failing(self.states, check)
            if self.before and failing == _failing(self.before, check):
                continue
            reasons = fleet_health.recorded_reasons(instance, asset, check)
            for name, results in self.results.items():
                for _, each in results:
                    if each.check_name == check:
                        reasons[name] = fleet_health.reason_of(each)
            result = fleet_health.evaluate_fleet(
                asset, check, {name: reasons.get(name, Reason()) for name in failing}, len(self.states)
            )
            yield checks.evaluation(asset, result)

    def skip_reason(self, polled: int, waiting: int) -> str:
        """Return the number of polled lakehouses, and those that cannot be opened."""
        text = f"looked at {polled} of {len(self.states)} lakehouses in {time.time() - self.now:.1f} s"
        text += f"; {waiting} wait for the next tick" if waiting else ""
        failing = _failing(self.states, checks.REACHABLE)
        if failing:
            text += f"; {len(failing)} cannot be opened: {first_of(failing, _NAMED)}"
        return text


def _failing(states: Mapping[str, SensorState], check: str) -> list[str]:
    """Return the lakehouses that failed a check when they were last polled."""
    return sorted(name for name, state in states.items() if state.results.get(check) is False)
