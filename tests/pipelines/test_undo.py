"""Undo: what somebody did is found by time, author or reason, and only that is undone unless somebody says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipelines import undo
from pipelines.job import dry_run
from tests.support.lakes import compacted, filled, new_lake, reopened
from tests.support.surgery import Surgery, directory_of, listing
from trinitylake_core import InvalidInput, Lakehouse, PlanOutdated, Refused, VersionNotFound
from trinitylake_core.commits.commit import acting_as
from trinitylake_core.locations import root_path
from trinitylake_core.storage import open_storage
from trinitylake_core.transactions.group import Entry

Commit = Callable[[str, str, str], int]
GOOD = 4


@pytest.fixture
def lake(tmp_path: Path) -> Lakehouse:
    return filled(new_lake(tmp_path), tables=12)


@pytest.fixture
def commit(lake: Lakehouse) -> Commit:
    """Commit a namespace as somebody; return the version."""

    def committed(author: str, name: str, reason: str) -> int:
        with acting_as(author), lake.transaction(reason=reason) as txn:
            txn.create_namespace(name)
        return lake.refresh().version

    return committed


@pytest.fixture
def deployed(lake: Lakehouse, commit: Commit) -> Lakehouse:
    """After version 4: two commits of the bot, with a compaction in between; before them an older one of its own."""
    assert GOOD == lake.version
    commit("bot@ci", "old", "nightly deploy 1")
    commit("ada@home", "hers", "by hand")
    commit("bot@ci", "one", "nightly deploy 2, step 1")
    compacted(lake.refresh())
    commit("bot@ci", "two", "nightly deploy 2, step 2")
    return lake.refresh()


def undone(lake: Lakehouse, review: Any = None, **options: Any) -> undo.Report:
    return undo.run(lake, undo.Config(reason="incident", engine="local", **options), review=review)


@pytest.mark.parametrize(
    "options", [{"author": "bot@*"}, {"matching": "DEPLOY 2"}, {"author": "bot@ci", "matching": "deploy"}]
)
def test_the_newest_commits_in_a_row_are_undone(deployed: Lakehouse, options: dict[str, str]) -> None:
    """What changes no object does not interrupt the row; somebody else's commit does."""
    digest = deployed.at(version=6).digest()
    done = undone(deployed, **options)
    assert ([9, 7], (), 6, 10) == (
        [each.version for each in done.undone], done.others, done.rollback.plan.target_version,
        done.rollback.version_after,
    )  # fmt: skip
    after = reopened(deployed)
    assert (digest, "incident") == (after.digest(), after.info().reason)


def test_what_others_committed_after_it_is_not_undone_in_silence(deployed: Lakehouse, commit: Commit) -> None:
    """The dry run shows it, the run refuses it, and ``others`` undoes it too."""
    commit("ada@home", "after", "hers too")
    directory = directory_of(deployed)
    before = listing(directory)
    planned = undone(deployed, author="bot@*", review=dry_run)
    assert ([9, 7], [10]) == ([each.version for each in planned.undone], [each.version for each in planned.others])
    with pytest.raises(Refused, match="others committed after version 7: version 10 by ada@home"):
        undone(deployed, author="bot@*")
    assert before == listing(directory)
    undone(deployed, author="bot@*", others=True)
    assert deployed.at(version=6).digest() == reopened(deployed).digest()


def test_only_the_plan_that_was_approved_is_carried_out(deployed: Lakehouse, commit: Commit) -> None:
    planned = undone(deployed, author="bot@*", review=dry_run)
    commit("bot@ci", "three", "nightly deploy 2, step 3")
    with pytest.raises(PlanOutdated):
        undone(deployed, author="bot@*", expected_version=planned.rollback.version_before)
    assert [11 - 1, 9, 7] == [each.version for each in undone(deployed, author="bot@*").undone]


def test_nothing_that_matches_is_nothing_to_undo(deployed: Lakehouse) -> None:
    with pytest.raises(VersionNotFound, match="no version that is kept matches"):
        undone(deployed, author="nobody@*")
    with pytest.raises(VersionNotFound):
        undone(deployed, since="2999-01-01", author="bot@*")
    for options, message in (({}, "undo needs at least one of"), ({"since": "yesterday"}, "ISO 8601")):
        with pytest.raises(InvalidInput, match=message):
            undone(deployed, **options)


def _commit_together(lake: Lakehouse, **reasons: str) -> int:
    """Have a group commit one namespace of each author, for a reason; return the version."""
    group, entries = lake.group(), []
    for author, reason in reasons.items():
        txn = lake.refresh().transaction(reason=reason)
        txn.create_namespace(f"of_{author}")
        txn.change.write_definitions()
        entries.append(Entry(txn.change, author))
    group.commit_together(entries)
    return lake.refresh().version


def test_the_commit_of_another_author_in_the_same_version_is_not_undone_without_a_word(lake: Lakehouse) -> None:
    """Commits that arrive together become one version: it is everybody's."""
    version = _commit_together(lake, bot="nightly deploy", ada="by hand")
    for options in ({"author": "*bot*"}, {"author": "ada"}, {"matching": "deploy"}):
        other = "bot" if options == {"author": "ada"} else "ada"
        with pytest.raises(Refused, match=f"in version {version}, or after it: version {version} by {other};"):
            undone(lake, **options)
    with pytest.raises(VersionNotFound):
        undone(lake, author="ada", matching="deploy")
    assert ["of_ada", "of_bot"] == [each for each in lake.refresh().namespaces() if each.startswith("of_")]
    report = undone(lake, author="bot", others=True)
    for found in (report.undone, report.others):
        assert [version] == [each.version for each in found]


def test_a_version_of_one_author_alone_is_undone(lake: Lakehouse) -> None:
    first = _commit_together(lake, bot="step 1", robot="step 2")
    assert [first] == [each.version for each in undone(lake, author="*bot").undone]


def test_an_unreadable_newest_root_counts_as_somebody_elses(deployed: Lakehouse) -> None:
    Surgery(deployed.root, deployed.definition.order).write(root_path(9), b"rubbish")
    cold = Lakehouse.open(open_storage(*deployed.storage.spec()), damaged=True)
    with pytest.raises(Refused, match="others committed after version 7: version 9 by an unknown author"):
        undone(cold, author="bot@*")
    done = undone(cold, author="bot@*", others=True)
    assert (6, 10) == (done.rollback.plan.target_version, done.rollback.version_after)
