"""Rollback: both engines prove the same; and the commands around recovery."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipelines import expire, restore, rollback, snapshot, tables_compact, tables_expire, verify
from pipelines.job import dry_run
from pipelines.tables.compact.decision import GroupRules
from tests.pipelines.conftest import Run
from tests.support.icebergs import new_iceberg, rows, with_table
from tests.support.lakes import GOOD, compacted, content, filled, new_lake, reopened, with_a_mistake
from tests.support.surgery import Surgery
from trinitylake_core import Corrupt, Lakehouse, PlanOutdated, StorageError, locations, spec
from trinitylake_core.clock import now_millis
from trinitylake_core.spec import BOUNDARY_FILE
from trinitylake_core.storage.base import BaseStorage
from trinitylake_core.versions import from_millis

ENGINES = ["local", pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.slow])]
DAY = 86_400_000


@pytest.fixture
def lake(tmp_path: Path) -> Lakehouse:
    return with_a_mistake(tmp_path)


def session(engine: str, request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue("spark") if engine == "spark" else None


# -- jobs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_a_rollback_proves_its_target_and_commits_once(
    lake: Lakehouse, engine: str, request: pytest.FixtureRequest
) -> None:
    spark = session(engine, request)
    config = rollback.Config(version=GOOD, reason="ticket 4711", engine=engine)
    planned = rollback.run(lake, config, spark, review=dry_run)
    assert ({"added": 11, "removed": 0, "changed": 1}, None) == (planned.plan.counts, planned.version_after)
    assert ["nightly deploy"] == [info.reason for info in planned.plan.since]
    before = lake.storage.counts.snapshot()
    done = rollback.run(lake, config, spark)
    spent = lake.storage.counts - before
    target = lake.at(version=GOOD)
    assert (GOOD + 2, GOOD + 2, target.digest()) == (done.version_after, lake.version, lake.digest())
    assert (1, 1) == (spent.create, spent.put)
    assert 12 == done.definitions_checked < len(content(target))
    assert done.nodes_checked < nodes(target)
    assert spent.get <= 14 + (done.nodes_checked + done.definitions_checked if engine == "local" else 0)
    assert engine == done.engine
    assert [] == list(lake.check(definitions=True))


@pytest.mark.parametrize("compact", [False, True])
def test_the_requests_of_a_rollback_follow_what_is_undone(tmp_path: Path, compact: bool) -> None:
    """100 changed tables among 20,000: a few hundred requests, the plan and the rollback together."""
    lake = wide_lake(tmp_path, 20_000)
    good = lake.version
    with lake.transaction() as txn:
        for number in range(0, 20_000, 200):
            txn.alter_table("ns", f"t{number:06}", properties={"a": "b"})
    if compact:
        compacted(lake.refresh())
    cold = reopened(lake)
    before, planned = cold.storage.counts.snapshot(), list[rollback.Report]()
    config = rollback.Config(version=good, reason="r", engine="local")
    done = rollback.run(cold, config, review=lambda plan: not planned.append(plan))
    spent = (cold.storage.counts - before).requests()
    assert {"added": 0, "removed": 0, "changed": 100} == planned[0].plan.counts == done.plan.counts
    assert (100, cold.at(version=good).digest()) == (done.definitions_checked, cold.digest())
    assert (done.requests, spent) == (spent, done.requests)
    assert spent <= 500


def wide_lake(directory: Path, tables: int) -> Lakehouse:
    """Return a compacted lakehouse of so many tables in the namespace ns, which share one definition file."""
    lake = new_lake(directory, order=128, target=spec.DEFAULT_NODE_FILE_MAX_SIZE_BYTES)
    with lake.transaction() as txn:
        txn.create_namespace("ns")
        txn.create_table("ns", "t000000", schema=pa.schema([("a", pa.int64())]))
    path = content(lake.refresh())[lake.codec.table("ns", "t000000")]
    with lake.transaction() as txn:
        for number in range(1, tables):
            txn.put(lake.codec.table("ns", f"t{number:06}"), path)
    compacted(lake.refresh())
    return lake.refresh()


def test_a_damaged_file_is_found_before_it_is_brought_back(lake: Lakehouse) -> None:
    """One that the newest version uses as well is in use now: `verify` of the target finds it, and no rollback does."""
    surgery, target = Surgery(lake.root, lake.definition.order), content(lake.at(version=GOOD))
    shared = next(path for key, path in target.items() if content(lake).get(key) == path)
    back = next(path for path in target.values() if path not in content(lake).values())
    config = rollback.Config(version=GOOD, reason="r", engine="local")
    kept = lake.storage.read(shared)
    surgery.write(shared, b"\x07")
    assert rollback.run(lake, config, review=dry_run).dry_run
    found = verify.run(lake, verify.Config(GOOD, definitions=True, engine="local"))
    assert {shared} == {each.file for each in found.findings}
    surgery.write(shared, kept)
    surgery.write(back, b"\x07")
    with pytest.raises(Corrupt, match=back):
        rollback.run(lake, config)


def test_damaged_nodes_of_the_target_are_named_together(tmp_path: Path) -> None:
    """Every leaf that only the target uses; the newest version, which is whole, is no reason to refuse."""
    lake = filled(new_lake(tmp_path, order=8), tables=28)
    compacted(lake)
    good, before = lake.refresh().version, nodes_of(lake)
    with lake.transaction() as txn:
        for name in lake.tables("ns1"):
            txn.alter_table("ns1", name, properties={"a": "b"})
    compacted(lake.refresh())
    gone = sorted(before - nodes_of(lake.refresh()))
    assert len(gone) >= 2
    surgery = Surgery(lake.root, lake.definition.order)
    for path in gone[:2]:
        surgery.remove(path)
    with pytest.raises(Corrupt, match="is not intact, nothing was changed") as caught:
        rollback.run(reopened(lake), rollback.Config(version=good, reason="r", engine="local"))
    assert all(path in str(caught.value) for path in gone[:2])


def nodes_of(lake: Lakehouse) -> set[str]:
    waiting, found = list(lake.root_node.node.children), set[str]()
    while waiting:
        found.add(path := waiting.pop())
        waiting += lake.nodes.read(path).children
    return found


def nodes(lake: Lakehouse) -> int:
    return len(nodes_of(lake))


def test_somebody_commits_while_the_target_is_proved(lake: Lakehouse) -> None:
    def progress(*_: Any) -> None:
        raise AssertionError("not called in this process")

    other = reopened(lake)
    with other.transaction() as txn:
        txn.create_namespace("new")
    config = rollback.Config(version=GOOD, reason="r", engine="local", expected_version=GOOD + 1)
    with pytest.raises(PlanOutdated, match="another writer committed since the plan"):
        rollback.run(lake, config, progress=progress)
    assert GOOD + 2 == lake.refresh().version


def test_maintenance_of_tables_voids_no_plan_and_new_rows_do(tmp_path: Path) -> None:
    """A compaction, an expiration and a rewriting commit in between leave what was reviewed as it was."""
    catalog = new_iceberg(tmp_path)
    table = with_table(catalog, "sales.orders", 1)
    for number in range(2, 6):
        table.append(rows(number))
    lake = catalog.lakehouse.refresh()
    good = lake.version
    with lake.transaction() as txn:
        txn.create_namespace("mistake")
    planned = lake.refresh().version
    merged = tables_compact.run(lake, tables_compact.Config(engine="local", rules=GroupRules(min_files=2)))
    assert [1] == [each.after for each in merged.outcomes]
    tables_expire.run(lake, tables_expire.Config(older_than_seconds=0))
    compacted(lake.refresh())
    lake.alter({"mark": "1"}, reason="may I write?")
    assert planned + 4 <= lake.refresh().version
    config = rollback.Config(version=good, reason="r", engine="local", expected_version=planned)
    assert planned < rollback.run(lake, config, review=dry_run).version_before
    wanted = restore.Config(only=("sales.*",), version=good, reason="r", engine="local", expected_version=planned)
    restore.run(lake, wanted, review=dry_run)
    catalog.load_table("sales.orders").append(rows(6))
    for job, refused in ((rollback, config), (restore, wanted)):
        with pytest.raises(PlanOutdated, match=r"another writer committed since the plan"):
            job.run(lake.refresh(), refused)


# -- commands ------------------------------------------------------------------------------------------


@pytest.fixture
def cli(run: Run) -> Run:
    """Run a command in this process, on a disk that need not be waited for."""
    local = {"rollback": ["--engine", "local"], "restore": ["--engine", "local"]}
    return lambda *words: run(*words, "--storage-option", "durable=false", *local.get(words[0], []))


def test_snapshots_on_the_command_line(cli: Run, lake: Lakehouse, tmp_path: Path) -> None:
    root, copy = lake.root, (tmp_path / "copy").as_uri()
    assert "no snapshots\n" == cli("snapshot", "list", root)[1]
    assert 0 == cli("snapshot", "create", root, "good", "--version", str(GOOD), "--expires-in", "30d")[0]
    full = ["--kind", "full", "--target", copy, "--engine", "local"]
    assert 0 == cli("snapshot", "create", root, "offsite", *full)[0]
    listed = json.loads(cli("snapshot", "list", root, "--json")[1])["snapshots"]
    assert [("good", GOOD, "minimal"), ("offsite", 11, "full")] == [
        (each["name"], each["version"], each["kind"]) for each in listed
    ]
    assert 30 * 86_400_000 == pytest.approx(listed[0]["expires_at_millis"] - listed[0]["created_at_millis"], abs=60_000)
    assert Lakehouse.open(copy).version == listed[1]["version"]
    assert 0 == cli("rollback", root, "--to-snapshot", "good", "--reason", "r")[0]
    assert lake.at(version=GOOD).digest() == lake.refresh().digest()
    assert "snapshot good dropped" in cli("snapshot", "drop", root, "good")[1]
    assert 2 == cli("snapshot", "drop", root, "good")[0]


# -- what is done is told as done ----------------------------------------------------------------------


JOBS: dict[str, Callable[[Lakehouse], int | None]] = {
    "rollback": lambda lake: rollback.run(lake, rollback.Config(version=2, reason="r", engine="local")).version_after,
    "restore": lambda lake: (
        restore.run(lake, restore.Config(only=["ns0.*"], version=8, reason="r", engine="local")).version_after
    ),
    "expiration": lambda lake: (
        expire.run(lake, expire.Config(engine="local", keep_last=2, now_millis=now_millis() + 30 * DAY)).version_after
    ),
    "snapshot policy": lambda lake: snapshot.run(lake, {"hourly": 1}).version_after,
    "snapshot": lambda lake: lake.create_snapshot("named").version + 1,
    "drop snapshot": lambda lake: (lake.drop_snapshot("early"), lake.catch_up().version)[1],
}


@pytest.mark.parametrize("size", [10, 2000], ids=["small definition", "large definition"])
@pytest.mark.parametrize("name", JOBS)
def test_no_request_after_the_commit_turns_success_into_failure(tmp_path: Path, name: str, size: int) -> None:
    """Once it is done nothing is read any more: whoever is told of a failure tries again, and undoes others.

    An expiration is done when it has deleted; the others when their root is there, and nothing stands after it: a
    storage that does not answer that leaves the outcome unknown.
    """
    made = filled(new_lake(tmp_path, order=8, properties={"p": "x" * size}), tables=28, changes=4)
    with made.transaction() as txn:
        txn.drop_namespace("ns0", cascade=True)
    made.refresh().create_snapshot("early", version=1, expires_at=from_millis(now_millis() + DAY))
    lake = reopened(made)
    storage = lake.storage
    assert isinstance(storage, BaseStorage)
    last = "delete" if name == "expiration" else "create"
    done: list[str] = []
    after = locations.root_path(lake.version + 2)

    def fail_reads(kind: str, path: str, action: Callable[[], Any]) -> Any:
        is_proof = path in {BOUNDARY_FILE, after}
        if kind in {"get", "head"} and done and not is_proof:
            raise StorageError(f"{kind} of {path} after the commit")
        result = action()
        parsed = locations.parse(path)
        if kind == last and parsed is not None and parsed.kind == "root":
            done.append(path)
        return result

    storage.interceptor = fail_reads
    assert reopened(made).version + 1 == JOBS[name](lake)
    assert 1 == len(done)
    assert reopened(made).version == lake.catch_up().version


def test_writers_are_stopped_before_a_rollback(lake: Lakehouse, cli: Run) -> None:
    """The first step of the runbook: a plan holds, however many writers try to commit in between."""
    assert (2, True) == ((wrong := cli("freeze", lake.root))[0], "a reason is required" in wrong[2])
    assert 2 == cli("freeze", lake.root, "--reason", "incident", "--for", "soon")[0]
    code, out, _ = cli("freeze", lake.root, "--reason", "incident", "--for", "2h")
    assert (0, True) == (code, out.startswith("frozen until 20"))
    newest = str(reopened(lake).version)
    code, _, err = cli("alter", lake.root, "ns1", "--set", "a=b")
    assert (3, True, True) == (code, ": incident. Nothing was committed" in err, ", until 20" in err)
    back = ("rollback", lake.root, "--to-version", str(GOOD), "--reason", "r", "--expected-version", newest)
    assert 0 == cli(*back)[0]
    assert (0, "thawed") == ((done := cli("thaw", lake.root))[0], done[1].split()[-1])
    assert "it is not frozen" in cli("thaw", lake.root)[1]
    assert 0 == cli("alter", lake.root, "ns1", "--set", "a=b")[0]
