"""Roots that were lost where a search by probes ends: each job that lists the roots finds the hole, and refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipelines import backup, clean, export, verify
from pipelines import expire as expire_job
from pipelines.job import Review, dry_run
from tests.support.lakes import filled, new_lake, reopened
from tests.support.surgery import Surgery, listing
from trinitylake_core import CorruptNode, Lakehouse, spec
from trinitylake_core.clock import now_millis
from trinitylake_core.locations import root_path

LOST = {"two neighbours": (6, 7), "one, and the hint is behind": (6,)}
CLEANING = clean.Config("local", older_than_seconds=0, allow_recent=True)


@pytest.fixture(params=LOST.values(), ids=LOST.keys())
def lake(tmp_path: Path, request: pytest.FixtureRequest) -> Lakehouse:
    """A cold handle of a lakehouse of the versions 0 to 11, of which some are lost; it shows version 5."""
    made = filled(new_lake(tmp_path), tables=40)
    assert 11 == made.version
    surgery = Surgery(made.root, made.definition.order)
    surgery.write(spec.HINT_FILE, b"5")
    for version in request.param:
        surgery.remove(root_path(version))
    found = reopened(made)
    assert 5 == found.version
    return found


def expire(lake: Lakehouse, review: Review[expire_job.Report] | None = None) -> None:
    later = now_millis() + 30 * 86_400_000
    expire_job.run(lake, expire_job.Config("local", keep_last=1, now_millis=later), review=review)


def exported(lake: Lakehouse, **more: Any) -> None:
    export.run(lake, lake.root.replace("/lake/", "/copy/"), export.Config(engine="local", **more))


JOBS: dict[str, Callable[[Lakehouse], object]] = {
    "expire": expire,
    "expire, dry run": lambda lake: expire(lake, dry_run),
    "clean": lambda lake: clean.run(lake, CLEANING),
    "clean, dry run": lambda lake: clean.run(lake, CLEANING, review=dry_run),
    "export": exported,
    "export of the history": lambda lake: exported(lake, history=True),
    "backup": lambda lake: backup.run(lake, lake.root.replace("/lake/", "/copy/"), backup.Config(engine="local")),
}


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS.keys())
def test_a_job_that_lists_the_roots_refuses(
    lake: Lakehouse, job: Callable[[Lakehouse], object], tmp_path: Path
) -> None:
    """It would take version 5 for the newest: nothing is written, nothing is deleted."""
    before = listing(tmp_path)
    with pytest.raises(CorruptNode, match="version 6 is missing") as raised:
        job(lake)
    assert ("I14", root_path(6)) == (raised.value.invariant, raised.value.path)
    assert before == listing(tmp_path)


def test_verify_says_which_root_is_missing(lake: Lakehouse) -> None:
    for versions in ("newest", "all"):
        report = verify.run(lake, verify.Config(versions, engine="local"))
        assert [("I14", root_path(6))] == [(found.invariant, found.file) for found in report.findings]


def test_verify_of_all_versions_is_not_empty_where_the_newest_root_says_that_they_expired(tmp_path: Path) -> None:
    """A boundary beyond the version itself is damage (I14)."""
    made = filled(new_lake(tmp_path), tables=8)
    Surgery(made.root, made.definition.order).system_row(root_path(made.version), spec.OLDEST_VERSION, str(1 << 40))
    report = verify.run(reopened(made), verify.Config("all", engine="local"))
    assert list(range(made.version + 1)) == report.versions
    assert {("I14", root_path(made.version))} == {(found.invariant, found.file) for found in report.findings}


def test_a_version_by_number_can_still_be_exported(lake: Lakehouse) -> None:
    """What is left is saved by that."""
    exported(lake, version=11)
    assert [] == list(Lakehouse.open(lake.root.replace("/lake/", "/copy/")).check(definitions=True))


def test_a_backup_with_a_hole_is_not_good_and_an_export_fills_it(tmp_path: Path) -> None:
    """An export creates what is missing; until then the backup opens at an old version, though later ones are there."""
    lake, copy = filled(new_lake(tmp_path), tables=40), (tmp_path / "copy").as_uri()
    export.run(lake, copy, export.Config(engine="local", history=True))
    surgery = Surgery(copy + "/", lake.definition.order)
    surgery.remove(root_path(6))
    surgery.write(spec.HINT_FILE, b"5")
    found = backup.run(lake, copy, backup.Config(engine="local"))
    assert not found.ok
    assert "version 6 is missing" in found.problems[0]
    export.run(lake, copy, export.Config(engine="local", history=True))
    assert backup.run(lake, copy, backup.Config(engine="local")).ok
