"""The rules of the fences alone, as a model of which every state is visited (``docs/format.md``, "Fences").

    python -m tests.simulation.scopes            every scope
    python -m tests.simulation.scopes "W E K"    one of them

A process is a generator (``processes``): each ``yield`` is one storage request, and between any two requests of anybody
another process may go on, a clock tick, or a process die. The world is a value, requests are functions of it, and what
a process does next follows from the answers it got. A state is the world and where each process stands with which
variables; each is visited once. A violation comes with the schedule that leads to it.

Files are sets of names: what a version needs is there, or it is not. Everything else about trees is left out.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Root(NamedTuple):
    """One root. ``maker`` tells it from every other root of its version."""

    version: int
    maker: str
    files: frozenset[str]
    oldest: int = 0
    void: int = 0
    tables: int = 0
    """The fence of tables: the time before which their files are void. Their names begin with ``d``."""
    pins: frozenset[str] = frozenset()
    """What snapshots need."""
    txn: str = ""
    """The saved transaction that it commits, with its revision (``x0``), or aborts (``-x``)."""
    below: str = ""
    """The maker of its predecessor."""


class Saved(NamedTuple):
    """The file of the one saved transaction: its revision, its definition, and who took it for committing.

    ``pending`` is the definition of the next revision, before it is confirmed; no process resumes that.
    """

    revision: int
    definition: str
    state: str = "open"
    pending: str = ""


class World(NamedTuple):
    """The storage, the true history, and what was acknowledged to whom."""

    roots: frozenset[Root]
    history: tuple[Root, ...]
    files: frozenset[tuple[str, int]]
    """Names and when they were written, by the storage's clock."""
    saved: Saved | None = None
    boundary: int = 0
    now: int = 1
    facts: frozenset[tuple[Any, ...]] = frozenset()
    losses: int = 0
    """How many answers to creations may still be lost."""
    late: frozenset[Root] = frozenset()
    """Roots whose creation was given up by its client, and may be carried out at any moment."""
    ahead: int = 0
    """How far the clocks of some front ends of the storage are ahead of the others'."""
    stored: frozenset[tuple[int, str, int]] = frozenset()
    """When roots were stored, by version and maker, where clocks differ."""

    @property
    def newest(self) -> Root:
        """The newest version of the true history."""
        return self.history[-1]

    def root(self, version: int) -> Root | None:
        """Return the root that a ``get`` finds."""
        return next((root for root in self.roots if root.version == version), None)

    def created(self, root: Root) -> World | None:
        """Return the world after the creation of a root, ``None`` if its version is not free."""
        if self.root(root.version) is not None:
            return None
        history = (*self.history, root) if root.version == self.newest.version + 1 else self.history
        return self._replace(roots=self.roots | {root}, history=history)

    def names(self) -> frozenset[str]:
        """Return the names of all files."""
        return frozenset(name for name, _ in self.files)


class Fact(NamedTuple):
    """A result that a process received, or reported; takes no time."""

    fact: tuple[Any, ...]


Request = Callable[[World], list[tuple[World, Any]]]
"""What one request does: every world that may come of it, and the answer."""
Process = Generator[Request | Fact, Any, None]
Rules = frozenset[str]
Answers = tuple[Any, ...]


def broken(world: World) -> Iterator[str]:
    """Yield every promise that a state breaks."""
    names = world.names()
    for version in world.history[world.newest.oldest :]:
        if version not in world.roots:
            yield f"version {version.version} is gone"
        yield from (f"version {version.version} needs {name}, which is gone" for name in sorted(version.files - names))
    yield from (f"a snapshot needs {name}, which is gone" for name in sorted(world.newest.pins - names))
    for kind, *about in world.facts:
        if kind == "committed" and about[0] not in world.history:
            yield f"version {about[0].version} was acknowledged to {about[0].maker} and is not in the history"
        if kind == "found" and about[0] not in world.history:
            yield f"a reader found version {about[0].version} of {about[0].maker}, which is not in the history"
        if kind == "found" and about[0] in world.history and about[0].version < about[1]:
            yield f"a reader found version {about[0].version}, and {about[1]} was there when it began"
        if kind == "refused" and any(root.maker == about[0] for root in world.history):
            yield f"{about[0]} was told that nothing was committed, and it was"
        if kind == "saved":
            yield from _broken_save(world, about[0], names)
    makers = [root.maker for root in world.history if root.maker != "before"]
    yield from (f"{maker} committed twice" for maker in sorted({*makers}) if makers.count(maker) > 1)
    commits = [root.txn for root in world.history if root.txn.startswith("x")]
    if len(commits) > 1:
        yield "the saved transaction was committed twice"
    if commits and ("aborted",) in world.facts:
        yield "the saved transaction was aborted, acknowledged, and committed"


def _broken_save(world: World, revision: int, names: frozenset[str]) -> Iterator[str]:
    """An acknowledged save can be resumed, unless it or a later one was committed, or a process aborted it."""
    commits = [int(root.txn[1:]) for root in world.history if root.txn.startswith("x")]
    if any(root.txn == "-x" for root in world.history) or (world.saved is not None and world.saved.state == "aborted"):
        return
    if commits:
        if commits[0] < revision:
            yield f"revision {revision} was saved, and revision {commits[0]} was committed"
    elif world.saved is None or world.saved.revision < revision:
        yield f"revision {revision} was saved and is gone"
    elif world.saved.definition not in names:
        yield f"revision {revision} was saved, and {world.saved.definition}, which replaced it, is gone"


# Visiting every state.


@dataclass(frozen=True)
class Scope:
    """Which processes meet in which world, how often the clock may tick, and how many processes may die."""

    world: World
    processes: Sequence[Callable[[Rules], Process]]
    ticks: int = 1
    deaths: int = 1


class _State(NamedTuple):
    world: World
    answers: tuple[Answers | None, ...]
    """What each process was answered so far; ``None`` once it has ended or died."""
    ticks: int
    deaths: int


class _Stand(NamedTuple):
    """Where a process stands: what it does next, and all that this and everything after depends on."""

    request: Request | Fact | None
    variables: tuple[Any, ...] = ()


@dataclass
class Visit:
    """A visit of all states of a scope: how many there are, and the first violation with its schedule."""

    scope: Scope
    rules: Rules
    states: int = 0
    violation: str | None = None
    schedule: tuple[str, ...] = ()
    limit: int = 5_000_000
    _stands: dict[tuple[int, Answers], _Stand] = field(default_factory=dict)

    def run(self) -> Visit:
        """Visit every state, depth first."""
        scope = self.scope
        start = _State(scope.world, ((),) * len(scope.processes), scope.ticks, scope.deaths)
        seen = {self.key(start)}
        waiting: list[tuple[_State, tuple[Any, ...]]] = [(start, ())]
        while waiting:
            state, path = waiting.pop()
            self.states += 1
            if self.states > self.limit:
                raise MemoryError(f"more than {self.limit} states")
            for label, after in self.steps(state):
                key = self.key(after)
                if key in seen:
                    continue
                seen.add(key)
                wrong = next(broken(after.world), None) if after.world is not state.world else None
                if wrong is not None:
                    self.violation, self.schedule = wrong, _unwound((label, path))
                    return self
                waiting.append((after, (label, path)))
        return self

    def steps(self, state: _State) -> Iterator[tuple[str, _State]]:
        """Yield everything that may happen next."""
        for number, answers in enumerate(state.answers):
            if answers is None:
                continue
            request = self.request(number, answers)
            assert callable(request)
            for world, answer in request(state.world):
                label = f"{number}:{getattr(request, '__name__', '')}={_shown(answer)}"
                yield label, self.advanced(state._replace(world=world), number, (*answers, answer))
            if state.deaths and answers:
                yield (
                    f"{number} dies",
                    state._replace(answers=_put(state.answers, number, None), deaths=state.deaths - 1),
                )
        for root in state.world.late:
            world = state.world._replace(late=state.world.late - {root})
            yield f"late {root.version} of {root.maker}", state._replace(world=world.created(root) or world)
        if state.ticks:
            world = state.world._replace(now=state.world.now + 1)
            yield "tick", state._replace(world=world, ticks=state.ticks - 1)

    def advanced(self, state: _State, number: int, answers: Answers) -> _State:
        """Return a state after an answer, facts noted on the way to the next request."""
        world = state.world
        while isinstance(request := self.request(number, answers), Fact):
            world = world._replace(facts=world.facts | {request.fact})
            answers = (*answers, None)
        return state._replace(world=world, answers=_put(state.answers, number, None if request is None else answers))

    def key(self, state: _State) -> tuple[Any, ...]:
        """Return a value that identifies a state: answers that lead to the same stand are the same."""
        stands = (None if a is None else self.stand(n, a).variables for n, a in enumerate(state.answers))
        return (state.world, *stands, state.ticks, state.deaths)

    def request(self, number: int, answers: Answers) -> Request | Fact | None:
        """Return the request of a process after some answers; ``None`` at its end."""
        return self.stand(number, answers).request

    def stand(self, number: int, answers: Answers) -> _Stand:
        """Return where a process stands after some answers."""
        key = (number, answers)
        if key not in self._stands:
            process = self.scope.processes[number](self.rules)
            try:
                request = next(process)
                for answer in answers:
                    request = process.send(answer)
            except StopIteration:
                self._stands[key] = _Stand(None)
            else:
                self._stands[key] = _Stand(request, tuple(_variables(process)))
        return self._stands[key]


def _variables(process: Any) -> Iterator[Any]:
    """Yield the place and the variables of a process and of what it delegates to; functions follow from these."""
    while process is not None:
        yield process.gi_frame.f_lasti
        for name, value in sorted(process.gi_frame.f_locals.items()):
            if not callable(value) and not inspect.isgenerator(value) and name not in {"args", "how", "rules"}:
                yield name, value
        process = process.gi_yieldfrom


def _put(items: tuple[Any, ...], number: int, item: Any) -> tuple[Any, ...]:
    return (*items[:number], item, *items[number + 1 :])


def _shown(answer: Any) -> str:
    return f"root {answer.version} of {answer.maker}" if isinstance(answer, Root) else str(answer)[:40]


def _unwound(path: tuple[Any, ...]) -> tuple[str, ...]:
    labels: list[str] = []
    while path:
        label, path = path
        labels.append(label)
    return tuple(reversed(labels))
