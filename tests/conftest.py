"""Fixtures and rules for all tests.

In CI (``CI=true``) a skipped test is a failed test: what is not tested there is tested nowhere.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import tarfile
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GOLDEN = Path(__file__).parent / "golden"
SKIPS_FAIL = os.environ.get("CI") == "true"
# What the tests that run at the same time, and the servers beside them, keep on disk at the most, several times over.
NEEDED_BYTES, NEEDED_FILES = 1 << 30, 100_000

# S3 servers on this machine, started by the first test that asks for one.
pytest_plugins = ["tests.support.s3_servers"] if importlib.util.find_spec("tests.support.s3_servers") else []

# `ci` runs the same bounded examples every time; `thorough` (`make test-all`) looks for new ones.
# No deadlines: the first call of a test may compile or import, and the machine may be busy.
settings.register_profile(
    "ci",
    max_examples=60,
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


def pytest_configure() -> None:
    """Let Ctrl-C reach what the tests start, also where this run is a background job whose shell ignores it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


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


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Return one local Spark session for all tests; it costs ten seconds once.

    The lakehouses of tests are small: much would be done in this process, and tasks would have nothing to do.
    """
    from pipelines.integrity import checks
    from pipelines.session import get_session
    from pipelines.trees import sparklevels

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sparklevels, "_HERE", 2)
        patch.setattr(checks, "_ROOTS_HERE", 2)
        session = get_session()
        yield session
        session.stop()


@pytest.fixture
def java_lakehouse(tmp_path: Path) -> str:
    """Return the URI of a fresh copy of the lakehouse that the Java SDK wrote."""
    with tarfile.open(GOLDEN / "java-sdk-small.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    return (tmp_path / "java-sdk-small").as_uri() + "/"


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
