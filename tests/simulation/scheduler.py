"""A deterministic scheduler: actors are threads of which one runs, each stopped before every storage request.

The notation of what happens at which point is that of ``schedule``.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from tests.simulation import store as stores
from tests.simulation.schedule import DURATIONS, Decision, RandomSchedule, Schedule
from tests.simulation.store import Store
from trinitylake_core.errors import TrinityLakeError
from trinitylake_core.storage.failures import TransientError

STEP_LIMIT: Final = 3000
"""Requests of all actors together; a run that needs more does not end."""


def _held_lock() -> threading.Lock:
    """Return a lock that waits for its first release: half the price of a semaphore."""
    lock = threading.Lock()
    lock.acquire()
    return lock


class Died(BaseException):
    """The process of an actor was killed; it makes no further request."""


class EndlessError(AssertionError):
    """The actors made more requests than any of them needs."""


@dataclass(slots=True)
class Step:
    """One point: who was about to make which request, and what it needs to know before it may be reordered."""

    actor: int
    kind: str
    path: str
    others: tuple[int, ...]
    """Who else could go on here."""
    resumed: bool
    """Whether the actor was preempted at this very request before."""
    changed_before: int = 0
    """How many changes of the store there were before this point."""
    reads_clock: bool = False
    """Whether the actor looked at a clock between this request and its next one."""
    in_vain: bool = False
    """Whether the storage is out of the actor's reach by now: the request reaches nothing, whatever happens to it."""


@dataclass
class Actor:
    """One process: its name, what it does, how far its clock is ahead, and what became of it."""

    name: str
    action: Callable[[], Any]
    ahead_millis: int = 0
    seed: str = ""
    result: Any = None
    error: BaseException | None = None
    state: Literal["ready", "ended", "dead"] = "ready"
    outage: bool = False
    disturbed: bool = False
    """Whether a fault struck one of its requests, so that it may tell of an unknown outcome."""
    preempted: bool = False
    step: Step | None = None
    baton: threading.Lock = field(default_factory=_held_lock)
    random: random.Random = field(default_factory=random.Random)

    def __post_init__(self) -> None:
        self.random.seed(f"{self.name} {self.seed}")


class _Late(NamedTuple):
    """A request whose client waits in vain, and that the store has still to carry out."""

    actor: Actor
    action: Callable[[], Any]


class Scheduler:
    """One run of some actors on one store under one schedule."""

    def __init__(self, store: Store, schedule: Schedule | RandomSchedule) -> None:
        self.store = store
        self.schedule = schedule
        self.actors: list[Actor] = []
        self.steps: list[Step] = []
        self.running: int | None = None
        self._late: list[_Late] = []
        self._arriving = False
        self._all_ended = _held_lock()

    def run(self, actors: Sequence[Actor]) -> None:
        """Let the actors act until all have ended or died. What they raised is in ``Actor.error``."""
        self.actors = list(actors)
        threads = [threading.Thread(target=self._body, args=(number,), daemon=True) for number in range(len(actors))]
        stores.between_deletes = lambda path: self._point("delete", path)
        try:
            for thread in threads:
                thread.start()
            self._go_on(self.schedule.first)
            self._all_ended.acquire()
            for thread in threads:
                thread.join()
            while self._late:
                self._arrive()
        finally:
            stores.between_deletes = None

    def _body(self, number: int) -> None:
        actor = self.actors[number]
        actor.baton.acquire()
        _local.here = Here(self, actor)
        try:
            actor.result = actor.action()
        except Died:
            actor.state = "dead"
        except BaseException as error:  # noqa: BLE001 - the oracle judges all of them
            actor.error = error
        if actor.state == "ready":
            actor.state = "ended"
        waiting = self._others(number)
        if waiting:
            self._go_on(waiting[0])
        else:
            self.running = None
            self._all_ended.release()

    def _others(self, number: int) -> tuple[int, ...]:
        count = len(self.actors)
        order = [(number + step) % count for step in range(1, count)]
        return tuple(each for each in order if self.actors[each].state == "ready")

    def _go_on(self, number: int) -> None:
        self.running = number
        self.actors[number].baton.release()

    def request(self, kind: str, path: str, action: Callable[[], Any]) -> Any:
        """Carry out one request of the actor that runs, or the fault that the schedule contains for it."""
        actor = acting()
        fault = self._point(kind, path)
        if actor.outage:
            raise TransientError(f"the storage is out of reach for {actor.name}", undone=True)
        actor.outage = fault == "cut"
        if fault == "late":
            self._late.append(_Late(actor, action))
            raise TransientError(f"there is no answer to {kind} of {path!r}")
        try:
            return action()
        finally:
            if fault is not None:
                raise TransientError(f"the answer to {kind} of {path!r} was lost")

    def _point(self, kind: str, path: str) -> str | None:
        """Stop before a request until it may be carried out; return the fault that strikes it then."""
        actor = acting()
        if self._arriving:
            return None
        resumed = False
        while True:
            if actor.state == "dead":
                raise Died
            number = self.actors.index(actor)
            step = Step(
                number, kind, path, self._others(number), resumed, len(self.store.changed), in_vain=actor.outage
            )
            decision = self._decided(step)
            if decision is not None and decision.arrives:
                self._arrive()
            elif decision is None or decision.to is None:
                break
            else:
                self._switch(actor, decision)
            resumed = True
        actor.step = step
        if decision is None:
            return None
        actor.disturbed = True
        if decision.fault == "die":
            actor.state = "dead"
            raise Died
        actor.outage = actor.outage or decision.fault == "outage"
        return decision.fault

    def _arrive(self) -> None:
        """Carry out the first request that is late, as its actor; its conditions may hold by now, or no longer."""
        if not self._late:
            return
        late = self._late.pop(0)
        before, _local.here = _local.here, Here(self, late.actor)
        self._arriving = True
        try:
            late.action()
        except TrinityLakeError:
            pass
        finally:
            self._arriving = False
            _local.here = before

    def _decided(self, step: Step) -> Decision | None:
        point = len(self.steps)
        if point >= STEP_LIMIT:
            raise EndlessError(f"{self.actors[step.actor].name} does not end")
        self.steps.append(step)
        return self.schedule.at(point, step.others)

    def _switch(self, actor: Actor, decision: Decision) -> None:
        if decision.pause is not None:
            self.store.now_millis += DURATIONS[decision.pause]
        actor.preempted = True
        assert decision.to is not None
        self._go_on(decision.to)
        actor.baton.acquire()

    def now_millis(self, actor: Actor) -> int:
        """Return the time as an actor's process sees it."""
        if actor.step is not None:
            actor.step.reads_clock = True
        return self.store.now_millis + actor.ahead_millis


class Here(NamedTuple):
    """Who a thread is, and in which run."""

    run: Scheduler
    actor: Actor


class _Local(threading.local):
    here: Here | None = None


_local = _Local()


def current() -> Here | None:
    """Return who this thread is; ``None`` for threads outside the simulation."""
    return _local.here


def acting() -> Actor:
    """Return the actor that this thread is."""
    here = _local.here
    assert here is not None, "only actors make requests here"
    return here.actor


def running_actor() -> str:
    """Return the name of the actor that this thread is."""
    return acting().name


class Outside(Scheduler):
    """An actor that is not scheduled: it prepares a run, and examines the result."""

    def __init__(self, store: Store, name: str, ahead_millis: int = 0) -> None:
        super().__init__(store, Schedule())
        self._actor = Actor(name, lambda: None, ahead_millis)

    def request(self, kind: str, path: str, action: Callable[[], Any]) -> Any:
        """Carry out a request."""
        return action()

    @contextmanager
    def acting(self) -> Iterator[None]:
        """Let this thread be that actor."""
        before = _local.here
        _local.here = Here(self, self._actor)
        try:
            yield
        finally:
            _local.here = before
