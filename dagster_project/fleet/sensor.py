"""The sensor of a fleet: looks at those lakehouses that are due, each with a deadline, and none holds up another."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeAlias

import dagster as dg

from dagster_project import assets, check_results, compaction_policy, notifications, poll
from dagster_project.compaction_policy import Decision
from dagster_project.config.settings import LAKEHOUSE_TAG, REASON_TAG, LakehouseSettings, Notifications
from dagster_project.config.stanzas import Known, Stanzas
from dagster_project.fleet import cursor as cursors
from dagster_project.fleet import health
from dagster_project.fleet.cursor import Mark
from dagster_project.jobs import Jobs
from dagster_project.poll import Poll, Trouble
from dagster_project.scope import FLEET, LAKEHOUSES, PARTITION_TAG, Fleet
from dagster_project.sensors import AT_WORK
from pipelines.bounded import Outcome
from trinitylake_core import InvalidInput, TrinityLakeError

NAME: Final = f"{FLEET}_sensor"
_EVERY_SECONDS: Final = 30
_LOOK_SECONDS: Final = 10.0
_TICK_SECONDS: Final = 25.0
"""The daemon waits 60 s for a tick, which also has to ask the database and, perhaps, the webhook."""
_SLICE: Final = 2000
_SELDOM: Final = 8
"""A lakehouse that is quiet is looked at so many times less often than a busy one, at the most."""
_NAMED: Final = 10
_OBSERVED_EVERY_SECONDS: Final = 600.0
_OBSERVED: Final = 50
"""Dagster takes some 10 ms of CPU for each event of a tick, one after the other, and keeps them for ever: a thousand
lakehouses with a commit a minute would be 1.4 million events a day, and ticks of minutes."""
Event: TypeAlias = dg.AssetObservation | dg.AssetCheckEvaluation


def fleet_sensor(scope: Fleet, jobs: Jobs, stanzas: Stanzas, notify: Notifications) -> dg.SensorDefinition:
    """Return the sensor of a fleet."""

    @dg.sensor(
        name=NAME,
        job=jobs.compaction,
        minimum_interval_seconds=_EVERY_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Looks at the newest root of every lakehouse of lakehouses.yaml: busy ones as often as "
        "`compaction.poll` says, quiet ones up to 8 times less often. Adds and removes partitions, records new "
        f"versions, evaluates the checks of {health.NAME}, requests compactions that pay, and tells which lakehouses "
        "cannot be opened.",
    )
    def sense(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        return Tick(scope, context, notify, time.time(), cursors.parse(context.cursor)).result(stanzas.all())

    return sense


@dataclass
class Tick:
    """One tick: what it found so far."""

    scope: Fleet
    context: dg.SensorEvaluationContext
    notify: Notifications
    now: float
    marks: dict[str, Mark]
    events: list[Event] = field(default_factory=list)
    requests: list[dg.RunRequest] = field(default_factory=list)
    troubles: dict[str, Trouble] = field(default_factory=dict)
    alerts: dict[str, Trouble] = field(default_factory=dict)
    back: dict[str, int] = field(default_factory=dict)
    whys: dict[str, dict[str, str]] = field(default_factory=dict)
    new: dict[str, Poll] = field(default_factory=dict)

    def result(self, known: Known) -> dg.SensorResult:
        """Return the result of the tick."""
        names = {**known.good, **known.bad}
        before = {check: _failing(self.marks, check) for check in health.CHECKS} if self.marks else {}
        partitions = self._partitions(set(names))
        self.marks = {name: self.marks.get(name, Mark()) for name in names}
        for name, reason in known.bad.items():
            self._troubled(name, poll.trouble_of(InvalidInput(reason)), 60.0)
        due = self._due(known.good)
        looked = 0
        for outcome in self._looks({name: known.good[name] for name in due}):
            looked += 1
            self._take(known.good[outcome.name], outcome)
        self._observe()
        self.events += [
            self._verdict(check) for check in health.CHECKS if before.get(check) != _failing(self.marks, check)
        ]
        self._tell()
        reason = self._reason(len(names), looked, len(due) - looked)
        return dg.SensorResult(
            run_requests=self.requests,
            skip_reason=None if self.requests else reason,
            cursor=cursors.text(self.marks),
            asset_events=self.events,
            dynamic_partitions_requests=partitions,
        )

    def _partitions(self, names: set[str]) -> list[dg.AddDynamicPartitionsRequest | dg.DeleteDynamicPartitionsRequest]:
        there = set(self.context.instance.get_dynamic_partitions(FLEET))
        requests: list[dg.AddDynamicPartitionsRequest | dg.DeleteDynamicPartitionsRequest] = []
        requests += [LAKEHOUSES.build_add_request(sorted(names - there))] if names - there else []
        requests += [LAKEHOUSES.build_delete_request(sorted(there - names))] if there - names else []
        return requests

    def _due(self, good: Mapping[str, LakehouseSettings]) -> list[str]:
        """Return the lakehouses that it is time to look at, the one that waits longest first.

        Those that failed last time come after all others: what hangs takes a thread for as long as it may.
        """
        marks = {name: self.marks[name] for name in good if self.marks[name].next_look <= self.now}
        return sorted(marks, key=lambda name: (marks[name].seen.failing > 0, marks[name].next_look, name))[:_SLICE]

    def _looks(self, due: Mapping[str, LakehouseSettings]) -> Iterator[Outcome[Poll]]:
        def work(name: str) -> Poll:
            mark = self.marks[name]
            stale = mark.verdicts.get(check_results.COMPACTION_FRESH) is False
            return poll.poll_lakehouse(due[name], mark.seen, self.now, known_stale=stale)

        return poll.POLLS.each(((name, partial(work, name)) for name in due), _LOOK_SECONDS, _TICK_SECONDS)

    def _take(self, settings: LakehouseSettings, outcome: Outcome[Poll]) -> None:
        """Take in what became of one look. An error that nobody foresaw concerns this lakehouse only."""
        seconds = settings.compaction.poll.total_seconds()
        if outcome.error is None:
            self._opened(settings, outcome.get(), seconds)
        elif isinstance(outcome.error, TrinityLakeError):
            self._troubled(settings.name, poll.trouble_of(outcome.error), seconds)
        else:
            cause = f"{type(outcome.error).__name__}: {outcome.error}"
            self._troubled(settings.name, Trouble(cause, "Unexpected: see the log of the code server.", True), seconds)

    def _troubled(self, name: str, trouble: Trouble, seconds: float) -> None:
        """Remember that a lakehouse cannot be opened; record it if that is new, and tell once."""
        self.troubles[name] = trouble
        mark = self.marks[name]
        seen, due = poll.failed(mark.seen, trouble)
        if due:
            self.alerts[name] = trouble
        self._record(name, check_results.evaluate_unreachable(trouble.cause, trouble.advice))
        mark = replace(self.marks[name], seen=seen)
        self.marks[name] = self._again(mark, seconds, quiet=mark.quiet + 1)

    def _opened(self, settings: LakehouseSettings, found: Poll, seconds: float) -> None:
        """Record what is new of a lakehouse, and request a compaction if one pays."""
        name = settings.name
        if found.observed is not None:
            self.new[name] = found
        self._record(name, check_results.opened(found.version), *(verdict for _, verdict in found.verdicts))
        mark = self.marks[name]
        if mark.seen.alerted:
            self.back[name] = found.version
        since = found.seen
        seen = replace(
            poll.recovered(mark.seen),
            over_since=found.over_since,
            waiting_since=since.waiting_since,
            debt=since.debt,
        )
        seen = replace(seen, alerted=mark.seen.alerted)  # until the webhook has heard of it
        decision = self._decided(settings, found, mark)
        if decision.wanted:
            self.requests.append(self._request(settings, decision.reason, found.version))
            seen = replace(seen, requested_at=self.now)
        quiet = 0 if found.observed is not None or found.pays.wanted else mark.quiet + 1
        self.marks[name] = self._again(replace(mark, seen=seen), seconds, quiet=quiet)

    def _observe(self) -> None:
        """Record new versions: of each lakehouse now and then, the one that waits longest first.

        What is not recorded now stays new, and is recorded with what came after it.
        """
        asset = assets.key(self.scope, assets.DEFINITION)
        waiting = [name for name in self.new if self.now - self.marks[name].observed_at >= _OBSERVED_EVERY_SECONDS]
        for name in sorted(waiting, key=lambda each: self.marks[each].observed_at)[:_OBSERVED]:
            found, mark = self.new[name], self.marks[name]
            if found.observed is not None:
                self.events.append(poll.observation_event(asset, found.observed, name))
            seen = replace(mark.seen, version=found.version)
            self.marks[name] = replace(mark, seen=seen, observed_at=self.now)

    def _again(self, mark: Mark, seconds: float, *, quiet: int) -> Mark:
        """Return a mark with the time of the next look: the longer nothing happens, the later."""
        return replace(mark, quiet=min(quiet, 8), next_look=self.now + seconds * min(2.0**quiet, _SELDOM) - 1)

    def _record(self, name: str, *judged: dg.AssetCheckResult) -> None:
        """Remember verdicts, and what is said of those that fail."""
        mark = self.marks[name]
        self.marks[name] = replace(
            mark, verdicts={**mark.verdicts, **{str(each.check_name): each.passed for each in judged}}
        )
        for each in judged:
            if not each.passed:
                self.whys.setdefault(str(each.check_name), {})[name] = str(each.description)

    def _verdict(self, check: str) -> dg.AssetCheckEvaluation:
        """Return the verdict on the fleet: which lakehouses fail a check, and why.

        Dagster keeps one evaluation without a run per check and partition, so these are on an asset without partitions.
        What this tick did not look at keeps what was said of it last.
        """
        asset = assets.key(self.scope, health.NAME)
        whys = {**health.whys_last(self.context.instance, asset, check), **self.whys.get(check, {})}
        failing = {name: whys.get(name, "") for name in _failing(self.marks, check)}
        return check_results.evaluation(asset, health.verdict(asset, check, failing, len(self.marks)))

    def _decided(self, settings: LakehouseSettings, found: Poll, mark: Mark) -> Decision:
        """Return whether to request a compaction now. Asks the database only about a lakehouse that wants one."""
        if not settings.compaction.enabled or not found.pays.wanted:
            return replace(found.pays, wanted=False)
        last = max(mark.seen.requested_at, self._last_compaction(settings.name))
        waits = compaction_policy.too_soon(settings.compaction, last, self.now)
        if waits is not None:
            return waits
        here = dg.RunsFilter(statuses=AT_WORK, tags={PARTITION_TAG: settings.name})
        for run in self.context.instance.get_runs(here, limit=1):
            return Decision(wanted=False, reason=f"run {run.run_id} of this lakehouse has not finished yet")
        return found.pays

    def _last_compaction(self, name: str) -> float:
        only = dg.AssetRecordsFilter(asset_key=assets.key(self.scope, assets.COMPACTION), asset_partitions=[name])
        return next(
            (each.timestamp for each in self.context.instance.fetch_materializations(only, limit=1).records), 0.0
        )

    def _request(self, settings: LakehouseSettings, reason: str, version: int) -> dg.RunRequest:
        step = assets.key(self.scope, assets.COMPACTION).to_python_identifier()
        return dg.RunRequest(
            run_key=f"{settings.name}-{version}-{self.now:.0f}",
            partition_key=settings.name,
            tags={LAKEHOUSE_TAG: settings.slug, REASON_TAG: reason},
            run_config={"ops": {step: {"config": {"reason": reason}}}},
        )

    def _tell(self) -> None:
        """Tell the webhook what is new, in one message each; what it did not take it hears of at the next look."""
        try:
            if self.alerts:
                notifications.tell_troubles(self.notify, self.alerts)
                self._alerted(self.alerts, alerted=True)
            if self.back:
                notifications.tell_recoveries(self.notify, self.back)
                self._alerted(self.back, alerted=False)
        except OSError as error:
            self.context.log.error(str(error))  # noqa: TRY400 - the reason suffices

    def _alerted(self, names: Mapping[str, object], *, alerted: bool) -> None:
        for name in names:
            mark = self.marks[name]
            self.marks[name] = replace(mark, seen=replace(mark.seen, alerted=alerted))

    def _reason(self, count: int, looked: int, waiting: int) -> str:
        text = f"looked at {looked} of {count} lakehouses in {time.time() - self.now:.1f} s"
        text += f"; {waiting} wait for the next tick" if waiting else ""
        failing = _failing(self.marks, check_results.REACHABLE)
        if failing:
            more = f" and {len(failing) - _NAMED} more" if len(failing) > _NAMED else ""
            text += f"; {len(failing)} cannot be opened: {', '.join(failing[:_NAMED])}{more}"
        return text


def _failing(marks: Mapping[str, Mark], check: str) -> list[str]:
    """Return the lakehouses that failed a check when they were last looked at."""
    return sorted(name for name, mark in marks.items() if mark.verdicts.get(check) is False)
