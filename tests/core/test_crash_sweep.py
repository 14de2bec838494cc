"""Every operation, disturbed at every one of its storage requests: fail, lose the answer, kill.

Of six ways each request is disturbed in one, one that decides in two more, and in `make test-all` each in all.

After each point the newest version is the old or the new one, whole; `check` is clean; every version before reads the
same; the operation can be repeated; nothing acknowledged is missing (``tests/support/sweep.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import pytest

from tests.support.s3_servers import S3Server
from tests.support.sweep import MODES, OPERATIONS, DiskPlace, Operation, Place, S3Place, Sweep

LONG: Final = "tables compact"
Run = Callable[[Operation, Place, Callable[[int], int]], None]
LIKE_ANOTHER: Final = frozenset({"abort", "endpoint", "export-again", "resume", "thaw", "upgrade"})
"""Another operation sends the requests of each of these, or more: `make test` leaves them to `make test-all`."""
names = pytest.mark.parametrize("name", OPERATIONS)


def _every_one(requests: int) -> int:
    del requests
    return 1


def _each_in_one_way(requests: int) -> int:
    del requests
    return len(MODES)


def _some(requests: int) -> int:
    return max(3, requests // 2)


@pytest.fixture(scope="session")
def points(request: pytest.FixtureRequest) -> Iterator[dict[str, dict[str, tuple[int, int]]]]:
    """Points tried and requests there are, by place and operation; printed at the end."""
    tried: dict[str, dict[str, tuple[int, int]]] = {}
    yield tried
    reporter = request.config.pluginmanager.get_plugin("terminalreporter")
    for place, each in tried.items():
        told = ", ".join(f"{name} {count}/{requests}" for name, (count, requests) in each.items())
        line = f"crash sweep on {place}: {sum(count for count, _ in each.values())} points ({told})"
        if reporter is not None:
            reporter.write_line(f"\n{line}")


@pytest.fixture
def run(points: dict[str, dict[str, tuple[int, int]]], record_property: Callable[[str, object], None]) -> Run:
    """Return what sweeps an operation at a place and counts the points."""

    def sweep(operation: Operation, place: Place, every: Callable[[int], int]) -> None:
        swept = Sweep(operation, place)
        try:
            tried = swept.run(every(swept.prepared.requests))
        finally:
            place.close()
        record_property("points", dict(tried))
        points.setdefault(place.name, {})[operation.name] = (tried.total(), swept.prepared.requests)
        assert tried.total() > 0

    return sweep


@pytest.mark.parametrize("name", [name for name in OPERATIONS if name not in LIKE_ANOTHER])
def test_on_disk(name: str, run: Run) -> None:
    """Every request of every operation, but for one that waits for ten of them at each point."""
    run(OPERATIONS[name], DiskPlace(), _some if name == LONG else _each_in_one_way)


@pytest.mark.slow
@names
def test_on_disk_in_every_way(name: str, run: Run) -> None:
    """Every request of every operation."""
    run(OPERATIONS[name], DiskPlace(), _every_one)


@pytest.mark.s3
@pytest.mark.parametrize("name", ["commit-flushes", "save-again", "clean"])
def test_on_s3_sampled(name: str, moto_server: S3Server, run: Run) -> None:
    """A creation, a compare-and-set and a batch of deletions: two points of each kind, or a third of them."""
    run(OPERATIONS[name], S3Place(moto_server), _some)


@pytest.mark.s3
@pytest.mark.slow
@names
def test_on_s3(name: str, moto_server: S3Server, run: Run) -> None:
    """Every request of every operation."""
    run(OPERATIONS[name], S3Place(moto_server), _every_one)
