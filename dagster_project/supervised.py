"""Runs long work in a thread and watches it from the main one; turns its errors into failures with advice.

Progress goes to the event log, and Terminate stops Spark. A run that was cancelled or timed out never commits
afterwards: right before its commit the work checks whether it still may.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import dagster as dg

from dagster_project.config.settings import LakehouseSettings
from dagster_project.resources import SparkResource, hang_up, open_lakehouse
from pipelines.engine.local import find_full_disk
from pipelines.job import dry_run
from pipelines.session import LazySession, SessionConfig
from pipelines.session.usage import SparkUsage, measure_usage
from trinitylake_core import Lakehouse, errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RETRY: Final = dg.RetryPolicy(max_retries=4, delay=30, backoff=dg.Backoff.EXPONENTIAL)
"""For work that is safe to repeat: it continues where it stopped, or finds nothing left to do.

After 30, 90, 210 and 450 seconds: an outage of ten minutes costs no night."""
DRY_RUN_TAG: Final = "trinitylake/dry_run"
"""The tag that tells the runs which show a plan from those which act, in Dagster's list of runs."""
SENT_AS: Final = "sent_as"
"""In the metadata of a step's failure: the check that says the same, which the sensor `check_changes` sends."""
OPENED: Final = "reachable"
"""The check that says of a lakehouse that it cannot be opened."""
INTERRUPTED: Final = "the run was cancelled"
"""How the failure of a step begins that was cancelled, or whose process received a signal to end."""
REPAIR: Final = (
    "Run the job `mend` with the backup as `source`: it puts damaged files back. If the backup does not have them, "
    "`verify` tells which versions are intact, and `rollback` returns to one."
)
_ADVICE: Final = (
    (errors.NotALakehouse, "Check `root` in lakehouses.yaml."),
    (
        errors.VersionExpired,
        "The job `history` lists those that can still be read; `restore` with a `source` takes objects from a backup.",
    ),
    (errors.NotFound, "The history (asset root_version_snapshots) lists the versions and snapshots that exist."),
    (errors.InvalidInput, "Correct the run configuration or lakehouses.yaml, and launch again."),
    (errors.AlreadyExists, "Choose another name or target. Remove nothing before you know what it is."),
    (
        errors.PlanOutdated,
        "Another writer has committed since: make a new plan with `dry_run: true`, review it, and launch again.",
    ),
    (
        errors.LakehouseFrozen,
        "It takes no commits and loads now: launch again when the freeze is over, or end it with the job `thaw`.",
    ),
    (errors.WentBack, "Stop the writers, remove no copy, delete nothing; see the runbook, 'A bucket was set back'."),
    (errors.CommitConflict, "Another writer committed first: launch again."),
    (errors.ReadOnly, "First upgrade the lakehouse to another root with the job `upgrade`."),
    (errors.Refused, "The message names what would allow it."),
    (errors.Corrupt, REPAIR),
    (errors.StorageDenied, "Check the credentials in `storage_options` of lakehouses.yaml, and their permissions."),
    (errors.UnsafeStorage, "This storage lets two writers win one race, so writing to it is unsafe: use another one."),
    (
        errors.StorageFull,
        "Make room there, and launch again: the run continues where it stopped. See the runbook, 'When machines fail'.",
    ),
    (errors.StorageError, "The storage failed: launch again when it is available."),
)
IDLE: Final = "auto instead of spark: no object has changed since this ran last"
_EXPECTED: Final = (errors.Refused, errors.InvalidInput, errors.NotFound, errors.AlreadyExists)
_FLAG: Final = re.compile(r"--(allow-recent|damaged|dry-run|exact|force|history|others)\b")
_LAUNCHPAD: Final = re.compile(r" \(in a launchpad [^)]*\)")
_PERMANENT: Final = (errors.StorageDenied, errors.StorageFull, errors.UnsafeStorage)
_POLL_SECONDS: Final = 0.5
_LOG_EVERY_SECONDS: Final = 3.0
_STOPS_WITHIN_SECONDS: Final = 30.0
_CANCELLED: Final = (dg.DagsterRunStatus.CANCELING, dg.DagsterRunStatus.CANCELED, dg.DagsterRunStatus.FAILURE)
"""A run that Dagster counts as failed while it is at work was given up: another one may have begun already."""
T = TypeVar("T")
Context: TypeAlias = dg.AssetExecutionContext | dg.OpExecutionContext | dg.AssetCheckExecutionContext


class Stopped(Exception):
    """The work was stopped before it committed."""


class _TooLate(Exception):
    """The timeout has passed."""


class Supervisor:
    """The handle that the work gets: Spark, progress reports, and the question whether it may still commit."""

    def __init__(self, context: Context, session: LazySession) -> None:
        self.spark = replace(session, start=self._start_session)
        """The session; its settings name where it would run."""
        self._instance = context.instance
        self._run_id = context.run.run_id
        self._start = session.start
        self._session: SparkSession | None = None
        self._usage_before: SparkUsage | None = None
        self._stop = threading.Event()
        self.latest: tuple[str, int, int | None] | None = None

    def _start_session(self, config: SessionConfig) -> SparkSession:
        self._refuse_stopped()
        self._session = self._start(config)
        if self._usage_before is None:  # the steps of a run share a session
            self._usage_before = measure_usage(self._session)
        self._refuse_stopped()
        return self._session

    def engine_metadata(self) -> dict[str, Any]:
        """Return which engine ran and why, and, where Spark did, what it did: for people."""
        shown: dict[str, Any] = {}
        if self._session is None:
            ran = [each for each in self.spark.choices if not each.startswith("spark:")]
            none = ["none: Spark was chosen, and nothing was left for it to do"] if self.spark.choices else []
            if ran or none:
                shown["engine_chosen"] = "\n".join(dict.fromkeys(ran or none))
            return shown
        shown["engine_chosen"] = "\n".join(dict.fromkeys(self.spark.choices))
        usage = measure_usage(self._session).since(self._usage_before)
        shown |= {"spark_application": usage.application_id, "spark_master": usage.master}
        if usage.ui is not None:
            shown["spark_ui"] = dg.MetadataValue.url(usage.ui)
        if usage.tasks is not None and usage.executors is not None:
            shown |= {"spark_stages": usage.stages, "spark_tasks": usage.tasks, "spark_executors": usage.executors}
            shown |= {"spark_task_seconds": usage.task_seconds, "spark_shuffle_bytes": usage.shuffle_bytes}
        return shown

    def progress(self, phase: str, done: int, total: int | None = None, /) -> None:
        """Report progress. Cheap: the main thread logs it now and then.

        A cancelled run stops before a new phase, because that phase may commit or delete.
        """
        if self.latest is None or self.latest[0] != phase:
            self.check()
        self._refuse_stopped()
        self.latest = (phase, done, total)

    def check(self) -> None:
        """Raise ``Stopped`` if the run was cancelled or given up, even if no signal has arrived."""
        self._refuse_stopped()
        run = self._instance.get_run_by_id(self._run_id)
        if run is not None and run.status in _CANCELLED:
            raise Stopped

    def stop(self) -> None:
        """Stop the work: interrupt its Spark jobs, and refuse its commit.

        The session belongs to this run, so everything on it is interrupted. Tags would not work: Spark classic finds
        the jobs of a tag only from the thread that set it.
        """
        self._stop.set()
        if self._session is not None:
            self._session.interruptAll()

    def _refuse_stopped(self) -> None:
        if self._stop.is_set():
            raise Stopped


@dataclass(frozen=True, slots=True)
class Launch:
    """What a job works with: the lakehouse, its settings, the options of the launchpad, and who supervises the run.

    ``is_idle``: no object of the lakehouse has changed since this step ran last.
    """

    lake: Lakehouse
    settings: LakehouseSettings
    options: Any
    dry: bool
    context: Context
    supervisor: Supervisor
    is_idle: bool = False

    @property
    def engine(self) -> str:
        """The engine that was chosen, or that of lakehouses.yaml: not Spark while nothing changes."""
        return self.options.engine or choose_by_settings(self.settings, is_idle=self.is_idle)

    def engine_metadata(self) -> dict[str, Any]:
        """Return which engine ran and why; also why it was not Spark, where lakehouses.yaml asks for it."""
        found = self.supervisor.engine_metadata()
        ran = found.get("engine_chosen")
        is_other = self.is_idle and self.settings.compaction.engine == "spark"
        if is_other and ran is not None and not self.options.engine:
            found["engine_chosen"] = f"{IDLE}\n{ran}"
        return found

    @property
    def spark(self) -> LazySession:
        """The Spark session, which starts when it is first needed."""
        return self.supervisor.spark

    @property
    def more(self) -> dict[str, Any]:
        """The arguments that every pipeline takes: where to report progress."""
        return {"progress": self.supervisor.progress}

    @property
    def writes(self) -> dict[str, Any]:
        """The arguments that every pipeline which writes takes: also what can stop it, and the review of a dry run."""
        return self.more | {"cancel": self.supervisor, "review": dry_run if self.dry else None}

    def carry_out(self, run: Callable[..., T], show: Callable[[T], object]) -> T:
        """Carry out a job that shows its plan before it acts, or, on a dry run, instead; return its report.

        ``run`` takes the arguments of :attr:`writes`.
        """

        def approve(planned: T) -> bool:
            show(planned)
            self.supervisor.check()
            return True

        if not self.dry:
            return run(**self.writes | {"review": approve})
        planned = run(**self.writes)
        show(planned)
        return planned


def tag_plan(context: Context) -> None:
    """Mark the run of a step that only shows a plan."""
    context.instance.add_run_tags(context.run.run_id, {DRY_RUN_TAG: "true"})


def choose_by_settings(settings: LakehouseSettings, *, is_idle: bool) -> str:
    """Return the engine of lakehouses.yaml; ``auto`` instead of Spark where no object has changed since the last run.

    A lakehouse in which nothing happens costs no Java process then, unless ``auto`` finds the work large enough.
    """
    chosen = settings.compaction.engine
    return "auto" if is_idle and chosen == "spark" else chosen


def run_supervised(
    context: Context,
    settings: LakehouseSettings,
    spark: SparkResource,
    work: Callable[[Lakehouse, Supervisor], T],
    *,
    damaged: bool = False,
    timeout: timedelta | None = None,
) -> T:
    """Open a lakehouse and carry out work on it in a thread; errors become failures with advice.

    With ``damaged`` the work gets the newest version that can be read. ``timeout`` overrides that of lakehouses.yaml.
    Raises ``dagster.Failure``; it is not retried if the run was cancelled or timed out.
    """
    seconds, future = timeout or settings.timeout, Future[T]()
    with with_advice():
        config = settings.spark.session_config(f"trinitylake {settings.name}")
        watch = Supervisor(context, LazySession(config, spark.session))

        def carry_out() -> None:
            try:
                result = work(open_for_run(settings, damaged=damaged), watch)
            except BaseException as error:  # noqa: BLE001 - it is raised again in the main thread
                future.set_exception(error)
            else:
                future.set_result(result)
            finally:
                hang_up()

        thread = threading.Thread(target=carry_out, name="maintenance", daemon=True)
        thread.start()
        try:
            return _follow_work(context, watch, future, time.monotonic() + seconds.total_seconds())
        except Stopped:
            raise _failure(INTERRUPTED, future) from None
        except dg.DagsterExecutionInterruptedError:
            _end(watch, thread)
            raise _failure(INTERRUPTED, future) from None
        except _TooLate:
            _end(watch, thread)
            raise _failure(f"the work exceeded its timeout of {seconds}", future) from None


def open_for_run(settings: LakehouseSettings, *, damaged: bool = False) -> Lakehouse:
    """Open a lakehouse in a run.

    Raises ``dagster.Failure``: it cannot be opened until a person acts, and the check ``reachable`` says that, too.
    """
    try:
        return open_lakehouse(settings, damaged=damaged)
    except (errors.StorageError, errors.InvalidInput):
        raise  # one that was denied for a moment is no message of the check, nor a secret that only this process lacks
    except errors.TrinityLakeError as error:
        raise failure(error, {SENT_AS: OPENED}) from None


def _end(watch: Supervisor, thread: threading.Thread) -> None:
    """Stop the work and wait until it ends. A Spark job may just be starting, so interrupt more than once."""
    deadline = time.monotonic() + _STOPS_WITHIN_SECONDS
    while thread.is_alive() and time.monotonic() < deadline:
        watch.stop()
        thread.join(_POLL_SECONDS)


def _follow_work(context: Context, watch: Supervisor, future: Future[T], deadline: float) -> T:
    logged, log_at = None, time.monotonic() + _LOG_EVERY_SECONDS
    while True:
        try:
            return future.result(timeout=_POLL_SECONDS)
        except TimeoutError:
            if future.done():
                raise
        now = time.monotonic()
        if now > deadline:
            raise _TooLate
        if now >= log_at and watch.latest is not None and watch.latest != logged:
            logged, log_at = watch.latest, now + _LOG_EVERY_SECONDS
            phase, done, total = logged
            context.log.info(f"{phase}: {done:,}" if total is None else f"{phase}: {done:,} of {total:,}")


def _failure(why: str, future: Future[T]) -> dg.Failure:
    if not future.done():
        outcome = "the work has not stopped yet, but it will not commit"
    elif future.exception() is None:
        outcome = "too late: the work had already been committed"
    else:
        outcome = "Spark was stopped before the work ended; the history shows whether it had committed a version"
    return dg.Failure(f"{why}; {outcome}", allow_retries=False)


# -- errors --------------------------------------------------------------------------------------------


def advice(error: errors.TrinityLakeError) -> str:
    """Return the next step after an error."""
    return next((text for kind, text in _ADVICE if isinstance(error, kind)), "")


def failure(error: errors.TrinityLakeError, metadata: Mapping[str, str] | None = None) -> dg.Failure:
    """Return a failure with the error and what to do. Only a storage failure or a lost race is worth a retry."""
    again = not is_permanent(error) or isinstance(error, errors.CommitConflict | errors.PlanOutdated)
    text = sentences(in_launchpad(str(error)), advice(error))
    return dg.Failure(text, metadata, allow_retries=again)


def sentences(cause: str, what_to_do: str) -> str:
    """Return a cause and an advice as sentences, one to a line: a page may show both in one."""
    end = "" if not cause or cause[-1] in ".!?" or not what_to_do else "."
    return f"{cause}{end}\n{what_to_do}".strip()


def in_launchpad(text: str) -> str:
    """Return a message with the options of the command line as fields of the launchpad."""
    return _FLAG.sub(lambda found: f"`{found[1].replace('-', '_')}: true`", _LAUNCHPAD.sub("", text))


def is_permanent(error: errors.TrinityLakeError) -> bool:
    """Return whether an error stays until a person acts: every one except a storage that fails for a while."""
    return not isinstance(error, errors.StorageError) or isinstance(error, _PERMANENT)


@contextmanager
def with_advice() -> Iterator[None]:
    """Turn errors of the block into failures with advice. A cancelled step is never retried."""
    try:
        yield
    except dg.DagsterExecutionInterruptedError:
        raise dg.Failure(INTERRUPTED, allow_retries=False) from None
    except errors.TrinityLakeError as error:
        # a refusal needs no stack; what may be a defect, or is a storage that fails, shows where it came from
        raise failure(error) from (None if isinstance(error, _EXPECTED) else error)
    except OSError as error:
        full = find_full_disk(error)
        if full is None:
            raise
        raise failure(full) from error
