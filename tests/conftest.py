"""Fixtures and rules for all tests.

In CI (``CI=true``) a skipped test is a failed test: what is not tested there is tested nowhere.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import logging
import os
import signal
import tarfile
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

from trinitylake_core.storage import durability

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.clock import Clock
    from trinitylake_core import Lakehouse
    from trinitylake_core.iceberg import TrinityLakeCatalog

GOLDEN = Path(__file__).parent / "golden"
SKIPS_FAIL = os.environ.get("CI") == "true"
# What the tests that run at the same time, and the servers beside them, keep on disk at the most, several times over.
NEEDED_BYTES, NEEDED_FILES = 1 << 30, 100_000
MEMORY, IN_MEMORY_FROM_BYTES = Path("/dev/shm"), 8 << 30

# S3 servers on this machine, started by the first test that asks for one.
pytest_plugins = ["tests.support.s3_servers"] if importlib.util.find_spec("tests.support.s3_servers") else []

# Of each Java that a test starts: it ends before code that was compiled with care pays.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1")
_INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
# As in a session of a user who wants it: then a query may not use such a word as a name.
_RESERVED_WORDS = {"spark.sql.ansi.enforceReservedKeywords": "true"}

SPARK = "spark"
# Files of minutes, whose tests share nothing but what the session has; those with the longest tests first.
_SPLIT = (
    "tests/simulation/test_schedules.py",
    "tests/model/test_judge.py",
    "tests/core/test_crash_sweep.py",
    "tests/simulation/test_defects.py",
    "tests/simulation/test_model.py",
    "tests/simulation/test_mutations.py",
)

# `ci` runs the same bounded examples every time; `thorough` (`make test-all`) looks for new ones.
# No deadlines: the first call of a test may compile or import, and the machine may be busy.
settings.register_profile(
    "ci",
    max_examples=40,
    stateful_step_count=30,
    derandomize=True,
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile(
    "thorough",
    parent=settings.get_profile("ci"),
    max_examples=3000,
    stateful_step_count=60,
    derandomize=False,
)
settings.load_profile("ci")


class SplitFiles(LoadFileScheduling):  # type: ignore[misc]  # xdist publishes no types
    """Give the tests of a file to one process, but those of the dearest files one by one."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return SPARK if nodeid.endswith(f"@{SPARK}") else nodeid if file in _SPLIT else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling:
    """Hand out work in the order of ``pytest_collection_modifyitems``."""
    config.option.loadscopereorder = False
    return SplitFiles(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let one process have all tests of the Spark session, and begin with them; deal out small pieces last.

    The session's start and first queries take half a minute of CPU. With small pieces at the end no process waits long.
    The one that hands out work knows nothing of a test but its name: xdist's own suffix is lost on pytest 9.2.
    """
    items.sort(key=_turn)
    for item in items:
        if _needs_spark(item) and hasattr(item.config, "workerinput"):
            item._id = item.id.parse(f"{item.nodeid}@{SPARK}")


def _needs_spark(item: pytest.Item) -> bool:
    return SPARK in getattr(item, "fixturenames", ()) or item.get_closest_marker(SPARK) is not None


def _turn(item: pytest.Item) -> tuple[int, int]:
    if _needs_spark(item):
        return 0, 0
    file = item.nodeid.partition("::")[0]
    if file in _SPLIT:
        return 3, _SPLIT.index(file)
    return (1, 0) if file.startswith("tests/dagster/") else (2, 0)


def pytest_configure() -> None:
    """Keep files in memory, and let Ctrl-C reach what the tests start, even if the shell of this run ignores it."""
    _keep_files_in_memory()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _keep_files_in_memory() -> None:
    """Put the directories of tests into memory where there is plenty: a disk takes a millisecond for each new file."""
    if os.environ.keys() & {"PYTEST_DEBUG_TEMPROOT", "TMPDIR"} or not MEMORY.is_dir():
        return
    room = os.statvfs(MEMORY)
    if room.f_bavail * room.f_frsize >= IN_MEMORY_FROM_BYTES and os.access(MEMORY, os.W_OK):
        os.environ["PYTEST_DEBUG_TEMPROOT"] = str(MEMORY)


def pytest_sessionstart() -> None:
    """Say at once that the disk is full: thousands of tests would fail one by one, each for another reason."""
    place = os.environ.get("PYTEST_DEBUG_TEMPROOT") or tempfile.gettempdir()
    disk = os.statvfs(place)
    free_bytes, free_files = disk.f_bavail * disk.f_frsize, disk.f_favail
    if free_bytes < NEEDED_BYTES or (disk.f_files and free_files < NEEDED_FILES):
        pytest.exit(
            f"{place} has room for {free_bytes >> 20:,} MiB and {free_files:,} files; the tests need"
            f" {NEEDED_BYTES >> 20:,} MiB and {NEEDED_FILES:,} files there: free some, or set TMPDIR to another disk",
            returncode=2,
        )


def _skip_is_failure(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid}: skipped, which CI counts as a failure: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a test that was skipped in CI."""
    report = yield
    if SKIPS_FAIL:
        _skip_is_failure(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Fail a module that was skipped as a whole in CI."""
    report = yield
    if SKIPS_FAIL:
        _skip_is_failure(report)
    return report


_LOGGERS = (None, "pipelines", "trinitylake_core", "dagster_project")


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    """Undo what a command that ran in this process set up for its log: it would decide what later tests see."""
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    before = [(each.level, list(each.handlers)) for each in loggers]
    yield
    for logger, (level, handlers) in zip(loggers, before, strict=True):
        logger.setLevel(level)
        logger.handlers = [*handlers]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Return the clock of this process and of its storages, which goes forward when the test says so."""
    from tests.support.clock import Clock

    return Clock(monkeypatch)


@pytest.fixture(autouse=True, scope="session")
def _cleanings_are_judged() -> Iterator[None]:
    """Let an independent reader judge each cleaning of tables that a test runs in this process, on this disk."""
    from pipelines import tables_clean
    from tests.support.needed_files import MOST_FILES, find_files, refuse_deleted

    clean = tables_clean.run

    @functools.wraps(clean)
    def clean_and_ask(lake: Lakehouse, *args: Any, **options: Any) -> tables_clean.Report:
        root = Path(urlsplit(lake.root).path)
        before = find_files(root) if lake.root.startswith("file:") else set[str]()
        report = clean(lake, *args, **options)
        if len(before) <= MOST_FILES:
            refuse_deleted(root, before)
        return report

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables_clean, "run", clean_and_ask)
        yield


@pytest.fixture(autouse=True, scope="session")
def _no_waiting_for_the_disk() -> Iterator[None]:
    """Let no test wait for a disk that others use: processes are killed here, not machines.

    What is synced, and in which order, is the same. ``tests/core/test_storage_local.py`` really does it.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        if durability._syncfs is not None:
            patch.setattr(durability, "_syncfs", lambda _: 0)
        yield


@pytest.fixture(scope="session")
def spark_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Return one local Spark session for all tests; it costs ten seconds once.

    Another one of the same run is a mistake of who deals out the tests: each took half a minute of CPU, unnoticed.

    The lakehouses of tests are small: much would be done in this process, and tasks would have nothing to do. For so
    few rows Spark would spend most of its time in compiling Java for each query.
    """
    from pipelines.integrity import checks
    from pipelines.session import SessionConfig, get_session

    if "PYTEST_XDIST_WORKER" in os.environ:
        (tmp_path_factory.getbasetemp().parent / "spark-of-all-tests").touch(exist_ok=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checks, "_HERE", 2)
        patch.setattr(checks, "_ROOTS_HERE", 2)
        session = get_session(SessionConfig(conf=_INTERPRETED | _RESERVED_WORDS))
        yield session
        session.stop()


@pytest.fixture
def spark(spark_session: SparkSession) -> Iterator[SparkSession]:
    """Return the Spark session of all tests; what a test kept there is dropped.

    Spark compares the plan of each later query with that of all it keeps: after ten walks a query took minutes.
    """
    yield spark_session
    spark_session.catalog.clearCache()


@pytest.fixture
def catalog(tmp_path: Path) -> TrinityLakeCatalog:
    """Return the PyIceberg catalog over a new lakehouse on this disk."""
    from tests.support.icebergs import new_iceberg

    return new_iceberg(tmp_path)


def unpacked(directory: Path) -> str:
    """Unpack the lakehouse that the Java SDK wrote into a directory; return its URI."""
    with tarfile.open(GOLDEN / "java-sdk-small.tar.xz") as archive:
        archive.extractall(directory, filter="data")
    return (directory / "java-sdk-small").as_uri() + "/"


@pytest.fixture
def java_lakehouse(tmp_path: Path) -> str:
    """Return the URI of a fresh copy of the lakehouse that the Java SDK wrote."""
    return unpacked(tmp_path)


@pytest.fixture(scope="session")
def expected() -> dict[str, Any]:
    """Return what the Java SDK itself reads from ``java_lakehouse``; not to be changed by a test."""
    content: dict[str, Any] = json.loads((GOLDEN / "java-sdk-small.expected.json").read_text(encoding="utf-8"))
    return content


@pytest.fixture(scope="session")
def vectors() -> dict[str, Any]:
    """Return root file names, hashes and object keys as the Java SDK computes them."""
    content: dict[str, Any] = json.loads((GOLDEN / "java-sdk-vectors.json").read_text(encoding="utf-8"))
    return content
