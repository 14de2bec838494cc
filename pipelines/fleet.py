"""The state of many lakehouses at once, the worst first: as rows, and as text for monitoring systems.

Each lakehouse is opened in a thread with a deadline, so that one whose storage hangs costs no more than that. The
sensor of Dagster opens lakehouses with the same options (:func:`hurry`). It keeps a poll of its own: a poll reads one
root and decides from it. A survey also reads the snapshots, the oldest version and the backup, which would cost a
sensor three times the requests each minute.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from pipelines.engine.deadline_pool import DeadlinePool
from pipelines.reports.summary import count
from pipelines.source import lakehouses
from pipelines.trees.policy import debt_of, waiting_bytes
from trinitylake_core import Lakehouse, clock
from trinitylake_core.errors import InvalidInput, TrinityLakeError
from trinitylake_core.short_repr import ShortRepr
from trinitylake_core.storage import Options, normalise_root

_SECONDS: Final = 20.0
_DAY: Final = 86_400.0
_SHORTEST_HISTORY: Final = 3600.0
"""A shorter history is not enough to estimate the growth of a day."""


@dataclass(frozen=True, slots=True)
class Member:
    """A lakehouse of a fleet, and what counts as much there.

    Attributes:
        name: what people call it.
        root: its root URI.
        options: returns the options of its storage; called when it is opened, since they may hold secrets.
        threshold: the number of buffered messages from which a compaction pays.
        backup: the root URI of its backup, if it has one.
        backup_options: returns the options of that storage.
    """

    name: str
    root: str
    options: Callable[[], Options] = dict
    threshold: int = 10_000
    backup: str | None = None
    backup_options: Callable[[], Options] = dict


@dataclass(frozen=True, slots=True)
class Growth:
    """How fast a lakehouse grows. A figure that is not known is ``None``.

    Attributes:
        since: when the oldest version that is kept was made; the rates are since then.
        versions_per_day: versions that were made.
        objects_per_day: objects that came, less those that went.
        kept_bytes: about the size of the roots that are kept, together.
        waiting_bytes: bytes that each commit writes because messages wait in the root.
    """

    since: datetime | None = None
    versions_per_day: float | None = None
    objects_per_day: float | None = None
    kept_bytes: int | None = None
    waiting_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class State:
    """The state of one lakehouse. What could not be read is ``None``.

    Attributes:
        name: what people call it.
        root: its root URI.
        problem: why it cannot be opened; ``None`` if it can.
        version: the newest version.
        committed_at: when that was created.
        versions_kept: how many versions are kept.
        objects: how many objects the tree holds.
        messages: how many messages are buffered that are more than may wait there: those that a compaction pays for.
        debt: these as a share of the threshold from which a compaction pays.
        height: the height of the tree.
        snapshots: how many snapshots there are.
        snapshot_at: when the newest of them was made.
        backup_problem: why the backup cannot be opened; ``None`` if it can, or if there is to be none.
        backup_version: the newest version in the backup.
        backup_lag: how many versions it is behind.
        backup_at: when its newest version was made.
        growth: how fast it grows.
    """

    name: str
    root: str
    problem: str | None = None
    version: int | None = None
    committed_at: datetime | None = None
    versions_kept: int | None = None
    objects: int | None = None
    messages: int | None = None
    debt: float | None = None
    height: int | None = None
    snapshots: int | None = None
    snapshot_at: datetime | None = None
    backup_problem: str | None = None
    backup_version: int | None = None
    backup_lag: int | None = None
    backup_at: datetime | None = None
    growth: Growth = field(default_factory=Growth)

    @property
    def rank(self) -> tuple[int, float, int, str]:
        """What the list is sorted by: those that cannot be opened, then the worst debt, then the oldest backup."""
        if self.problem is not None:
            group = 0
        elif self.backup_problem is not None:
            group = 1
        else:
            group = 2
        return group, -(self.debt or 0.0), -(self.backup_lag or 0), self.name


@dataclass(frozen=True, slots=True, repr=False)
class Report(ShortRepr):
    """The states of a fleet, the worst first."""

    states: Sequence[State]
    seconds: float = 0.0

    @property
    def unreachable(self) -> int:
        """How many lakehouses cannot be opened."""
        return sum(state.problem is not None for state in self.states)

    @property
    def over_threshold(self) -> int:
        """In how many a compaction pays."""
        return sum((state.debt or 0.0) >= 1 for state in self.states)

    @property
    def objects(self) -> int:
        """How many objects there are in all."""
        return sum(state.objects or 0 for state in self.states)

    @property
    def messages(self) -> int:
        """How many messages are buffered in all."""
        return sum(state.messages or 0 for state in self.states)

    def summary(self) -> Iterator[str]:
        """Yield how many lakehouses there are, and how many of them need attention."""
        debts = f"{self.unreachable} cannot be opened, {self.over_threshold} need a compaction"
        held = f"{count(self.objects, 'object')}, {count(self.messages, 'buffered message')}"
        lakehouses = count(len(self.states), "lakehouse")
        yield f"{lakehouses}: {debts}; {held}"


@dataclass(frozen=True, slots=True)
class Config:
    """How a fleet is surveyed: how many lakehouses at once, and how long one, and all, may take (seconds)."""

    at_once: int = 16
    seconds: float = _SECONDS
    total_seconds: float = _DAY


def run(members: Iterable[Member], config: Config | None = None) -> Report:
    """Return the state of each member. Costs five requests per lakehouse, four per backup; raises nothing."""
    config = config or Config()
    began = time.monotonic()
    wanted = {member.name: member for member in members}
    late = f"not read: the time for all of them, {config.total_seconds:.0f} s, was over"
    found = {}
    for name, member in wanted.items():
        found[name] = State(name, member.root, late)
    work = ((name, partial(state_of, member)) for name, member in wanted.items())
    for outcome in DeadlinePool(config.at_once).each(work, config.seconds, config.total_seconds):
        if outcome.error is None:
            found[outcome.name] = outcome.get()
        else:
            problem = _describe_error(outcome.error)
            found[outcome.name] = replace(found[outcome.name], problem=problem)
    states = sorted(found.values(), key=attrgetter("rank"))
    return Report(states, round(time.monotonic() - began, 3))


def _describe_error(error: Exception) -> str:
    if isinstance(error, TrinityLakeError):
        return str(error)
    return f"{type(error).__name__}: {error}"  # a library's, whose sentence says little without it


def state_of(member: Member) -> State:
    """Return the state of one lakehouse. Raises ``TrinityLakeError`` if it cannot be opened."""
    options = hurry(member.root, member.options())
    lake = Lakehouse.open(member.root, storage_options=options)
    stats = lake.stats()
    messages = debt_of(stats)
    snapshots_at = [each.created_at for each in lake.snapshots()]
    state = State(
        name=member.name,
        root=lake.root,
        version=stats.version,
        committed_at=stats.created_at,
        versions_kept=stats.version - stats.oldest_version + 1,
        objects=stats.objects,
        messages=messages,
        debt=round(messages / max(1, member.threshold), 4),
        height=stats.height,
        snapshots=len(snapshots_at),
        snapshot_at=max(snapshots_at, default=None),
        growth=growth_of(lake),
    )
    if member.backup is None:
        return state
    return _add_backup(state, member.backup, member.backup_options(), stats.version)


def growth_of(lake: Lakehouse) -> Growth:
    """Return the growth of a lakehouse. One ``get``: the oldest root that is kept."""
    now = lake.stats()
    of_each_commit, _ = waiting_bytes(lake)
    growth = Growth(waiting_bytes=of_each_commit)
    try:
        first = lake.at(version=now.oldest_version).stats()
    except TrinityLakeError:  # it has just expired, or is damaged, which `verify` finds
        return growth
    kept = now.version - now.oldest_version + 1
    bytes_of_roots = kept * (first.root_bytes + now.root_bytes) // 2
    growth = replace(growth, since=first.created_at, kept_bytes=bytes_of_roots)
    seconds = (now.created_at - first.created_at).total_seconds()
    if seconds < _SHORTEST_HISTORY:
        return growth
    days = seconds / _DAY
    versions = now.version - first.version
    growth = replace(growth, versions_per_day=round(versions / days, 2))
    if now.objects is None or first.objects is None:
        return growth
    objects = now.objects - first.objects
    return replace(growth, objects_per_day=round(objects / days, 2))


def _add_backup(
    state: State,
    target: str,
    options: Options,
    version: int,
) -> State:
    try:
        copy = Lakehouse.open(target, storage_options=hurry(target, options))
    except TrinityLakeError as error:
        return replace(state, backup_problem=str(error))
    lag = max(0, version - copy.version)
    return replace(state, backup_version=copy.version, backup_lag=lag, backup_at=copy.stats().created_at)


def hurry(root: str, options: Options) -> dict[str, Any]:
    """Return storage options with which a request that gets no answer fails within seconds."""
    limits = {"retries": 1, "retry_max_seconds": 1.0, "max_concurrency": 4}
    if root.startswith("s3"):
        limits |= {"connect_timeout": 3, "read_timeout": 6, "request_timeout": 8}
    hurried = dict(options)
    for name, limit in limits.items():
        hurried[name] = _at_most(options.get(name), limit)
    return hurried


def _at_most(given: Any, limit: float) -> Any:
    if given is None:
        return limit
    try:
        if float(given) < limit:
            return given
        return limit
    except (TypeError, ValueError):
        return given  # opening it raises the error


# -- lakehouses.yaml --------------------------------------------------------------------------------------


def members_of(path: Path, options_for: Callable[[str], Options]) -> Iterator[Member]:
    """Yield the lakehouses of a ``lakehouses.yaml``, as far as a survey needs to know them.

    ``options_for`` returns the options that other settings give for a URI; those of the file prevail. A stanza with a
    mistake becomes a member that cannot be opened. Raises ``ConfigError`` if the file has no list of lakehouses.
    """
    stanzas = lakehouses.raw_stanzas(lakehouses.read(path), path)
    for number, raw in enumerate(stanzas, 1):
        where = f"{path}: {lakehouses.label(raw, number)}"
        try:
            yield _read_member(raw, where, options_for)
        except InvalidInput as error:
            why = str(error)
            if not why.startswith(where):
                why = f"{where}: {why}"
            if isinstance(raw, Mapping):
                name = raw.get("name", number)
            else:
                name = number
            yield Member(str(name), "", partial(_refuse, why))


def _refuse(why: str) -> Options:
    raise InvalidInput(why)


def _read_member(raw: Any, where: str, options_for: Callable[[str], Options]) -> Member:
    lakehouses.refuse_unknown_fields(raw, where)
    root = normalise_root(lakehouses.required_text(raw, "root", where))
    name = lakehouses.required_text(raw, "name", where)
    given = lakehouses.options(raw, "storage_options", where)
    messages = lakehouses.options(raw, "compaction", where).get("messages", 10_000)
    try:
        threshold = int(messages)
    except (TypeError, ValueError):
        raise InvalidInput(f"{where}: compaction.messages: must be a number") from None
    member = Member(
        name=name,
        root=root,
        options=partial(_join_options, options_for, root, given),
        threshold=threshold,
    )
    copy = lakehouses.options(raw, "backup", where)
    if not copy:
        return member
    target = normalise_root(lakehouses.required_text(copy, "backup.target", where))
    copy_given = lakehouses.options(copy, "backup.storage_options", where) or given
    return replace(member, backup=target, backup_options=partial(_join_options, options_for, target, copy_given))


def _join_options(
    options_for: Callable[[str], Options],
    uri: str,
    given: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the storage options for a URI; those of the file prevail, and their variables are looked up now."""
    return {**options_for(uri), **lakehouses.look_up(given)}


# -- for monitoring systems ----------------------------------------------------------------------------

_GAUGES: Final = (
    ("up", "Whether the lakehouse can be opened.", lambda state, _: int(state.problem is None)),
    ("version", "The newest version.", lambda state, _: state.version),
    ("last_commit_age_seconds", "Time since the newest version.", lambda state, now: _age(state.committed_at, now)),
    ("versions_kept", "Versions that are kept.", lambda state, _: state.versions_kept),
    ("objects", "Objects in the tree.", lambda state, _: state.objects),
    ("buffered_messages", "Messages that wait for a compaction.", lambda state, _: state.messages),
    ("debt_ratio", "These as a share of the threshold of compactions.", lambda state, _: state.debt),
    ("tree_height", "The height of the tree.", lambda state, _: state.height),
    ("snapshots", "Snapshots.", lambda state, _: state.snapshots),
    ("snapshot_age_seconds", "Time since the newest snapshot.", lambda state, now: _age(state.snapshot_at, now)),
    (
        "backup_age_seconds",
        "Time since the newest version in it.",
        lambda state, now: _age(state.backup_at, now),
    ),
    ("versions_per_day", "Versions made per day.", lambda state, _: state.growth.versions_per_day),
    ("objects_per_day", "Objects that came per day.", lambda state, _: state.growth.objects_per_day),
    ("waiting_bytes_per_commit", "Bytes of waiting messages.", lambda state, _: state.growth.waiting_bytes),
    ("backup_lag_versions", "Versions that are not in the backup.", lambda state, _: state.backup_lag),
)


def openmetrics(report: Report, now: datetime | None = None) -> str:
    """Return the states as OpenMetrics text, which Prometheus reads. No root URI and no error text is in it."""
    when = now or clock.utc_now()
    lines: list[str] = []
    for name, description, value in _GAUGES:
        lines.append(f"# TYPE trinitylake_{name} gauge")
        lines.append(f"# HELP trinitylake_{name} {description}")
        for state in sorted(report.states, key=attrgetter("name")):
            figure = value(state, when)
            if figure is not None:
                lines.append(f'trinitylake_{name}{{lakehouse="{_escape(state.name)}"}} {figure}')
    return "\n".join([*lines, "# EOF", ""])


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _age(moment: datetime | None, now: datetime) -> float | None:
    if moment is None:
        return None
    seconds = (now - moment).total_seconds()
    return round(max(0.0, seconds), 3)
