"""Jobs among faults, by a clock: the same reports, and at most twice the time, on any machine and in no time.

``test_faults_mixed`` has a server. ``verify`` of all versions is only there: this clock lets pieces of work that
themselves read in parallel follow one another, which real threads do not.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

import pytest

from pipelines import verify
from tests.pipelines.test_faults_mixed import JOBS, Original, Stage, original_lake
from tests.support.misbehaving_clock import MisbehavingClock
from trinitylake_core import Lakehouse
from trinitylake_core.storage import open_storage

OPTIONS: Final = {"durable": False, "retry_base_seconds": 0.1, "retry_max_seconds": 5.0}
"""The pauses between retries are those of object stores."""
_SECONDS: Final = 0.5
_SECONDS_OF_SHORT: Final = 1.0
"""What is lost where everything waits for it: 1/8 s and its repetition each, on some levels, and pauses of retries."""


def _verify(stage: Stage) -> object:
    done = verify.run(stage.lake, verify.Config(definitions=True, engine=stage.engine), stage.spark)
    return done.ok, done.nodes_read, done.definitions_read


ALL: Final = {**JOBS, "verify": _verify}


@dataclass(frozen=True)
class Copies:
    """Copies of one lakehouse, each for one run."""

    original: Original
    directory: Path

    def run(self, job: Callable[[Stage], object], share: float, seed: int) -> tuple[object, MisbehavingClock]:
        """Return what a job said on a copy, and the clock."""
        root = self.directory / f"{job.__name__}-{share}-{seed}"
        shutil.copytree(self.original.lake.root.removeprefix("file://"), root)
        lake = Lakehouse.open(root.as_uri(), storage_options=OPTIONS)
        beside = open_storage(f"{root.as_uri()}-beside", OPTIONS)
        with MisbehavingClock(lake.storage, beside, share=share, seed=seed) as clock:
            said = job(Stage(lake, beside, self.original.source, None, "local"))
        assert [] == list(Lakehouse.open(root.as_uri()).check())
        return said, clock

    def assert_twice(self, job: Callable[[Stage], object], share: float, seeds: int, more: float) -> None:
        """Prove that a job says the same among faults, and takes twice as long at most, in the median.

        ``more``: seconds that it may take besides. Waits for late creations and deletions do not count.
        """
        said, calm = self.run(job, 0.0, 0)
        runs = [self.run(job, share, seed) for seed in range(seeds)]
        assert [said] * seeds == [each for each, _ in runs]
        assert any(clock.faults.total() > clock.faults["none"] for _, clock in runs)
        print(f"{job.__name__}: {calm.seconds:.2f} s, {[round(clock.seconds, 2) for _, clock in runs]}")
        assert median(clock.seconds - clock.waited for _, clock in runs) <= 2 * calm.seconds + more
        assert max(clock.requests for _, clock in runs) <= (1 + 8 * share) * calm.requests + 8


@pytest.mark.parametrize("job", ["load", "upgrade"])
def test_a_small_job_takes_at_most_twice_as_long(tmp_path: Path, job: str) -> None:
    """Each fault at 1 %, in three runs."""
    lake = original_lake(tmp_path / "lake", 120, 3)
    Copies(lake, tmp_path).assert_twice(ALL[job], 0.01, 3, _SECONDS_OF_SHORT)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Original:
    """Some thousand files."""
    return original_lake(tmp_path_factory.mktemp("large") / "lake", 900, 30)


@pytest.mark.slow
@pytest.mark.parametrize("job", ALL)
def test_a_job_takes_at_most_twice_as_long(large: Original, tmp_path: Path, job: str) -> None:
    """Each fault at 1 %, in five runs."""
    Copies(large, tmp_path).assert_twice(ALL[job], 0.01, 5, _SECONDS)
