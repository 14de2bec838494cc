"""A frozen lakehouse takes no ordinary commits: who froze it, why, and what goes on all the same."""

from __future__ import annotations

import pickle
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyiceberg.exceptions import CommitFailedException

from pipelines import clean, compaction, expire, load
from tests.support.clock import Clock
from tests.support.icebergs import SCHEMA
from tests.support.lakes import new_lake, reopened
from trinitylake_core import InvalidInput, Lakehouse, LakehouseFrozen, Refused, spec
from trinitylake_core.commits import commit as commits
from trinitylake_core.commits.frozen import freeze_of
from trinitylake_core.definitions import encode
from trinitylake_core.errors import ClocksDisagree
from trinitylake_core.iceberg import TrinityLakeCatalog


@pytest.fixture
def lake(tmp_path: Path) -> Lakehouse:
    """A namespace with two tables, at version 2."""
    made = new_lake(tmp_path)
    for name in ("t0", "t1"):
        with made.transaction() as txn:
            if name == "t0":
                txn.create_namespace("ns")
            txn.create_table("ns", name)
    return made.refresh()


def write(lake: Lakehouse, name: str) -> int:
    txn = lake.transaction()
    txn.create_table("ns", name)
    return txn.commit()


def test_writers_are_refused_with_who_why_and_until_when(lake: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a writer that begins at an older version, and one that holds a transaction since before the freeze."""
    monkeypatch.setattr(commits, "whoami", lambda: "ada@oncall")
    monkeypatch.setattr("trinitylake_core.lakehouse.whoami", lambda: "ada@oncall")
    open_txn = reopened(lake).transaction()
    open_txn.create_table("ns", "open")
    end = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=2)
    frozen = reopened(lake).freeze(reason="incident 4711", until=end)
    assert frozen == reopened(lake).frozen
    for commit in (lambda: write(reopened(lake), "new"), lambda: write(lake, "stale"), open_txn.commit):
        with pytest.raises(
            LakehouseFrozen, match=r"frozen since 20.*Z by ada@oncall, until .*: incident 4711"
        ) as caught:
            commit()
        error = caught.value
        assert ("incident 4711", "ada@oncall", frozen.since, end) == (
            error.reason, error.author, error.since, error.until,
        )  # fmt: skip
    assert isinstance(error, Refused)
    copy = pickle.loads(pickle.dumps(error))  # a process of a pool raised it: the pool broke
    assert (f"{error}", vars(error)) == (f"{copy}", vars(copy))
    assert (3, spec.OP_ALTER, "incident 4711") == (lake.refresh().version, lake.info().operation, lake.info().reason)
    assert (3, 4) == ((done := reopened(lake).thaw()).version, done.version_after)
    assert (5, ["open", "t0", "t1"]) == (open_txn.commit(), lake.refresh().tables("ns"))
    assert [] == list(lake.check(definitions=True))


def test_maintenance_and_recovery_go_on_and_a_rollback_does_not_thaw(lake: Lakehouse) -> None:
    lake.freeze(reason="incident")
    lake.create_snapshot("kept")
    assert compaction.run(lake, compaction.Config(engine="local")).version_after is not None
    lake.restore("ns.t1", version=1, reason="incident", exact=True)
    lake.rollback(version=1, reason="incident", force=True)
    assert ["t0"] == lake.refresh().tables("ns")
    for job in (expire, clean):
        job.run(lake, job.Config(engine="local"))
    with pytest.raises(LakehouseFrozen):
        write(reopened(lake), "new")
    lake.refresh().thaw()
    write(reopened(lake), "new")
    lake.rollback(version=lake.refresh().version - 2, reason="to a frozen version", force=True)
    assert reopened(lake).frozen is None, "a rollback to a frozen version does not freeze"


def test_a_load_is_refused_before_it_reads(lake: Lakehouse, tmp_path: Path) -> None:
    lake.freeze(reason="incident")
    with pytest.raises(LakehouseFrozen):
        load.run(lake, str(tmp_path / "nothing"), load.Config(engine="local"))


def test_a_handle_that_saw_the_freeze_sees_the_thaw(lake: Lakehouse) -> None:
    """It is neither refused for ever nor does it need a refresh."""
    lake.freeze(reason="incident")
    stale = reopened(lake)
    lake.thaw()
    assert 5 == write(stale, "new")


def test_it_ends_by_itself(lake: Lakehouse, clock: Clock) -> None:
    end = datetime.now(UTC) + timedelta(minutes=30)
    lake.freeze(reason="incident", until=end)
    with pytest.raises(LakehouseFrozen):
        write(lake, "new")
    clock.forward(hours=1)
    assert 4 == write(reopened(lake), "new")
    assert reopened(lake).frozen is None
    with pytest.raises(InvalidInput, match="lies in the past"):
        lake.freeze(reason="incident", until=end)


def test_another_author_cannot_replace_it_but_may_thaw(lake: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.freeze(reason="first")
    lake.freeze(reason="longer", until=None)
    assert "longer" == getattr(reopened(lake).frozen, "reason", None)
    monkeypatch.setattr("trinitylake_core.lakehouse.whoami", lambda: "bob")
    with pytest.raises(LakehouseFrozen, match="longer"):
        lake.freeze(reason="mine")
    assert lake.thaw(reason="done").version_after == 5
    assert lake.thaw().version_after is None
    lake.freeze(reason="mine")
    with pytest.raises(InvalidInput, match="a reason is required"):
        lake.freeze(reason=" ")


def test_a_value_that_is_no_freeze_freezes(lake: Lakehouse) -> None:
    """A writer of another release may mean more by it than this one knows."""
    with pytest.raises(InvalidInput, match="`freeze` sets the property"):
        lake.alter({spec.FREEZE: "true"})
    definition = lake.definition
    definition.properties[spec.FREEZE] = "true"
    assert b"true" in encode(definition)
    assert "unknown writer" in str(freeze_of(definition))


def test_it_costs_a_commit_no_request_but_to_learn_once_that_it_is_over(lake: Lakehouse, clock: Clock) -> None:
    def spent() -> object:
        cold = reopened(lake)
        before = cold.storage.counts.snapshot()
        write(cold, f"t{cold.version}")
        return (cold.storage.counts - before).requests()

    free = spent()
    lake.refresh().freeze(reason="incident", until=datetime.now(UTC) + timedelta(minutes=30))
    clock.forward(hours=1)
    assert (free + 2, free) == (spent(), spent())


def test_pyiceberg_gets_an_exception_that_its_clients_retry(lake: Lakehouse) -> None:
    catalog = TrinityLakeCatalog.over(lake, **{"py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO"})
    lake.freeze(reason="incident")
    with pytest.raises(CommitFailedException, match=r"frozen since .*: incident"):
        catalog.create_table("ns.iceberg", SCHEMA)
    with pytest.raises(CommitFailedException, match="incident"), catalog.transaction() as txn:
        txn.create_table("ns.iceberg", SCHEMA)
    lake.thaw()
    catalog.create_table("ns.iceberg", SCHEMA)
    assert "iceberg" in reopened(lake).tables("ns")


def test_a_freeze_that_loses_races_writes_its_definition_once_and_does_not_wait(
    lake: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writers that commit all the time must not keep it off: it is the first step of a recovery."""
    waited: list[float] = []
    here, sleep = threading.current_thread(), time.sleep

    def record(seconds: float) -> None:
        # Other threads of this process, such as those of a Spark session, must go on sleeping: they would spin.
        (waited.append if threading.current_thread() is here else sleep)(seconds)

    monkeypatch.setattr(commits.time, "sleep", record)
    before, lost = lake.storage.counts.snapshot(), 0

    def others() -> None:
        nonlocal lost
        if lost < 8:
            lost += 1
            write(reopened(lake), f"w{lost}")

    lake.freeze(reason="incident", before_commit=others)
    assert (8, 11, []) == (lost, reopened(lake).version, waited)
    assert 2 == (lake.storage.counts - before).put, "the definition and the hint"


def test_a_freeze_counts_by_the_clock_of_the_storage(lake: Lakehouse, clock: Clock) -> None:
    """On a machine that is two hours behind it froze nobody; on one that is ten minutes behind it ended too early."""
    with clock.another(hours=-2, with_storage=False), pytest.raises(ClocksDisagree, match="Correct it, and run"):
        lake.freeze(reason="incident", lasts=timedelta(hours=1))
    with clock.another(hours=-1 / 6, with_storage=False):
        frozen = reopened(lake).freeze(reason="incident", lasts=timedelta(minutes=5))
    with pytest.raises(LakehouseFrozen):
        write(reopened(lake), "new")
    with clock.another(hours=2, with_storage=False), pytest.raises(LakehouseFrozen):
        write(reopened(lake), "ahead")
    clock.forward(hours=1)
    assert frozen.until is not None
    with clock.another(hours=-2, with_storage=False):
        assert 4 == write(reopened(lake), "behind")
