"""The shape of every job: its engine, its progress, and the time and requests that it takes.

A job is a module with a frozen ``Config``, ``run``, and a frozen ``Report`` of what was done. The arguments of ``run``:

    lake      any handle of the lakehouse
    config    the options, checked when they were made
    spark     a Spark session, or a function that returns one and is called only if Spark is needed
    review    called with the report of what the job would do, between planning and acting, before anything is committed
              or deleted; ``False`` ends the job with that report. A dry run is such a review (:func:`dry_run`)
    cancel    checked before each commit and deletion; raises if the job must stop
    progress  called with phase, done and total
Some jobs also have ``estimate``: about what ``run`` would do, from the top of the tree, cheap enough to be made each
time that a sensor runs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeAlias, TypeVar

from trinitylake_core import Lakehouse
from trinitylake_core.commits.backend import LakehouseBackend
from trinitylake_core.commits.fences import may_be_void
from trinitylake_core.errors import Corrupt, InvalidInput
from trinitylake_core.storage import RequestCounts, Storage

if TYPE_CHECKING:  # the command line must not wait for pyspark where no Spark runs
    from pyspark.sql import SparkSession

    Session: TypeAlias = SparkSession | Callable[[], SparkSession] | None
else:
    Session = Any
"""A Spark session, or a function that returns one and is called only when Spark is needed, or nothing."""

Progress: TypeAlias = Callable[[str, int, int | None], None]
"""Called with the phase, what is done of it, and of how much (``None`` = unknown); often, and from any thread."""

_LOG: Final = logging.getLogger(__name__)
_R = TypeVar("_R")
_K = TypeVar("_K")


Review: TypeAlias = Callable[[_R], bool]
"""Called with the report of what a job would do, before it does any of it; ``False`` ends the job with that report.

A job that has to start over, because of what other writers did, makes a new plan, which is reviewed again.
"""


def dry_run(report: object) -> bool:
    """Return ``False``: the review of a dry run. A job that is given this one does without what only acting needs."""
    del report
    return False


class Cancel(Protocol):
    """What can stop a job while it runs.

    It is the only way to stop one. The core, which deletes nothing on its own, knows no job: it has one moment at which
    giving up is safe, right before a root is created, and calls ``before_commit`` there. A job passes ``cancel.check``.
    """

    def check(self) -> None:
        """Raise if the job must stop. Called before each commit, and before files are deleted."""


class _NeverCancelled:
    def check(self) -> None:
        """Let the job go on."""


NEVER_CANCELLED: Final[Cancel] = _NeverCancelled()
"""For a job that nothing stops."""


ENGINES: Final = ("spark", "local", "auto")


def silent(phase: str, done: int, total: int | None) -> None:
    """Report no progress."""
    del phase, done, total


def refuse_unknown(engine: str) -> None:
    """Raise ``InvalidInput`` for an engine that does not exist."""
    if engine not in ENGINES:
        raise InvalidInput(f"engine must be one of {', '.join(ENGINES)}, not {engine!r}")


def start_spark(spark: Session) -> SparkSession:
    """Return the session, started if need be. Raises ``InvalidInput`` when there is none."""
    session = spark() if callable(spark) else spark
    if session is None:
        raise InvalidInput("engine 'spark' needs a Spark session; pass one, or choose engine 'local'")
    return session


@dataclass(slots=True)
class Stopwatch:
    """How many seconds each phase of a job took."""

    seconds: dict[str, float] = field(default_factory=dict)
    _began: float = field(default_factory=time.perf_counter)

    def lap(self, phase: str) -> None:
        """Record what was done since the lap before as a phase, or as more of it."""
        now = time.perf_counter()
        before = self.seconds.get(phase, 0.0)
        self.seconds[phase] = round(before + now - self._began, 4)
        self._began = now


@dataclass(eq=False)
class JobRun(Generic[_K, _R]):
    """One run of a job: what its ``run`` was called with, and the time of its phases."""

    lake: Lakehouse
    config: _K
    spark: Session
    review: Review[_R] | None
    cancel: Cancel
    progress: Progress
    watch: Stopwatch = field(init=False, default_factory=Stopwatch)

    def __post_init__(self) -> None:
        """Prepare the run, in jobs that have something to prepare."""

    def ends_with(self, planned: _R) -> bool:
        """Whether the run ends with its plan: so the review says, if there is one."""
        return self.review is not None and not self.review(planned)

    @property
    def backend(self) -> LakehouseBackend:
        """The store of the lakehouse."""
        return self.lake.backend


def start_over_if_void(begin: Callable[[], Any], restarts: int, replaced: type[Exception]) -> Any:
    """Return the report of a run that rewrites a tree; start over where its files, or the tree itself, went meanwhile.

    Args:
        begin: makes a run, which has ``base``, the root that it stands on.
        restarts: how often to start over.
        replaced: the error for a tree that another job has replaced.
    """
    for restart in range(restarts + 1):
        work = begin()
        try:
            report = work.run()
        except (replaced, Corrupt) as error:
            # A cleaning may have taken what was written or read. A damaged file is no reason to try again.
            can_succeed = isinstance(error, replaced) or may_be_void(work.backend, work.base)
            if restart == restarts or not can_succeed:
                raise
            _LOG.warning("starting over: %s", error)
        else:
            return replace(report, restarts=restart)
    raise AssertionError("unreachable")


class Meter:
    """What a job asked of storages since the meter was made; what tasks ask is counted by themselves."""

    def __init__(self, *storages: Storage) -> None:
        self._began = [(storage, storage.counts.snapshot()) for storage in storages]

    def list_spent(self) -> list[RequestCounts]:
        """Return requests and bytes by kind, of each storage."""
        return [storage.counts - before for storage, before in self._began]

    def requests(self) -> int:
        """Return the number of requests."""
        return sum(counts.requests() for counts in self.list_spent())

    def by_kind(self) -> dict[str, int]:
        """Return the requests by kind, those that were made."""
        found: dict[str, int] = {}
        for counts in self.list_spent():
            for name, count in counts.as_dict().items():
                if not name.startswith("bytes"):
                    found[name] = found.get(name, 0) + count
        return found
