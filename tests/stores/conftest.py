"""Only `make test-stores` runs what is here: it needs servers that take long to build."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.stores import table
from tests.support.authority import make_certificate
from tests.support.real_stores import FIT, RunningStore, run_store

collect_ignore_glob = [] if os.environ.get("TRINITYLAKE_STORES") else ["test_*.py"]


_MINIO = next(each for each in FIT if each.name == "MinIO")


@pytest.fixture(scope="session")
def minio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStore]:
    """A store with an STS, which looks at policies."""
    if not _MINIO.is_there:
        pytest.skip("scripts/stores.sh has no MinIO")
    directory = tmp_path_factory.mktemp("minio")
    with run_store(_MINIO, directory, make_certificate(directory)) as store:
        yield store


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[Any]:
    """Note which store passed which step, and how long it took."""
    report = yield
    if call.when == "call" and not report.skipped:  # what is left out is said at the end, with the reason
        table.note(item.name, passed=report.passed, seconds=call.duration)
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the table of stores."""
    for line in table.lines():
        terminalreporter.write_line(line)
