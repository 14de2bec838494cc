"""``kill -9`` of every process of a deployment, in the middle of a compaction and of a clean, under a supervisor.

Within a minute everything is back, the run has ended, its lakehouse can be worked on again, and it breaks no invariant.
"""

from __future__ import annotations

import os
import pickle
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import psutil
import pytest
import yaml

from tests.dagster.conftest import filled
from tests.support.deployment import Deployment, deployed, eventually, is_run
from tests.support.misbehaving import Misbehaving
from tests.support.postgres import run_postgres
from tests.support.s3_servers import KEY, RAW, SECRET, S3Server
from tests.support.supervisor import Supervisor
from trinitylake_core import Lakehouse
from trinitylake_core.locations import node_path

pytestmark = [pytest.mark.slow, pytest.mark.s3]
BACK_SECONDS = 60.0 * float(os.environ.get("TRINITYLAKE_BUSY", "1"))
"""The minute that is promised; a machine on which other things run says how many times longer it may take."""
NEVER = {"messages": 10_000_000, "engine": "local"}
Victim = Callable[[Deployment], psutil.Process]


@pytest.fixture(scope="module")
def slow(moto_server: S3Server) -> Iterator[Misbehaving]:
    """Return a way to the S3 server that can be made slow, so that work on it has a middle."""
    with Misbehaving(moto_server.endpoint) as between:
        yield between


@pytest.fixture(scope="module")
def lake(moto_server: S3Server) -> Lakehouse:
    """Return a lakehouse on S3."""
    return filled(moto_server.new_root(), storage_options=moto_server.options)


@pytest.fixture(scope="module")
def supervised(lake: Lakehouse, slow: Misbehaving) -> Iterator[tuple[Deployment, Supervisor]]:
    """Return a deployment that is restarted as systemd does it."""
    credentials = {"key": {"env": "ORDERS_S3_KEY"}, "secret": {"env": "ORDERS_S3_SECRET"}}
    stanza: dict[str, Any] = {
        "name": "orders",
        "root": lake.root,
        "storage_options": credentials | {"endpoint_url": slow.endpoint, "region": "us-east-1", "hedged_share": 0},
        "compaction": NEVER,
        "schedules": {"maintenance": "0 3 1 1 *"},
        "retention": {"keep_last": 1, "older_than": "1m"},
        "orphans": {"older_than": "1d"},
    }
    secrets = {"ORDERS_S3_KEY": KEY, "ORDERS_S3_SECRET": SECRET}
    with (
        run_postgres() as server,
        deployed(yaml.safe_dump({"lakehouses": [stanza]}), server, secrets) as deployment,
    ):
        deployment.start_all()
        with Supervisor(deployment) as supervisor:
            yield deployment, supervisor


def of_unit(name: str, *words: str) -> Victim:
    """Return who finds the process of a unit whose command line has some words."""

    def find(deployment: Deployment) -> psutil.Process:
        return next(each for each in deployment.processes(name) if set(words) <= {*" ".join(each.cmdline()).split()})

    return find


def run_process(deployment: Deployment) -> psutil.Process:
    return next(each for each in deployment.processes("code") if is_run(each))


def postgres(deployment: Deployment) -> psutil.Process:
    assert deployment.server is not None
    assert deployment.server.process is not None
    return psutil.Process(deployment.server.process.pid)


VICTIMS: dict[str, Victim] = {
    "the run": run_process,
    "the parent of runs": lambda deployment: psutil.Process(run_process(deployment).ppid()),
    "the daemon": of_unit("daemon", "run"),
    "the webserver": of_unit("webserver", "-h"),
    "the code server": of_unit("code", "dagster_project.instance"),
    "the process behind the code server": of_unit("code", "api", "grpc"),
    "PostgreSQL": postgres,
}


@pytest.mark.parametrize("work", ["tree_compaction", "version_expiration"])
@pytest.mark.parametrize("victim", VICTIMS)
def test_all_is_back_within_a_minute(
    supervised: tuple[Deployment, Supervisor],
    lake: Lakehouse,
    slow: Misbehaving,
    victim: str,
    work: str,
) -> None:
    deployment, supervisor = supervised
    eventually(lambda: up(deployment), lambda: str(supervisor.restarts))
    grown(lake)
    objects = lake.refresh().digest()
    run_id = begun(deployment, slow, work)
    restarts = sum(supervisor.restarts.values())
    VICTIMS[victim](deployment).kill()
    killed = time.monotonic()
    slow.delay = 0.0
    if victim not in {"the run", "the parent of runs"}:
        eventually(lambda: sum(supervisor.restarts.values()) > restarts, lambda: str(supervisor.restarts))
    eventually(lambda: up(deployment), lambda: str(supervisor.restarts))
    ready = time.monotonic() - killed
    run = ended_run(deployment, run_id)  # one that was not hit goes on
    ended = time.monotonic() - killed
    again = launched(deployment, work)
    eventually(lambda: writes(deployment, again, work), lambda: str(deployment.run(again)))
    back = time.monotonic() - killed
    print(f"{victim}, {work}: up after {ready:.0f} s, {run['status']} after {ended:.0f} s, next after {back:.0f} s")
    assert "SUCCESS" == ended_run(deployment, again)["status"], deployment.run(again)
    assert victim not in {"the run", "the parent of runs"} or "FAILURE" == run["status"]
    assert max(ready, back) < BACK_SECONDS
    assert objects == lake.refresh().digest()
    assert [] == list(lake.check())


def operations(lake: Lakehouse) -> set[str]:
    return {info.operation for info in lake.refresh().history()}


def test_a_run_that_is_killed_while_it_deletes_orphans_is_repeated(
    supervised: tuple[Deployment, Supervisor], moto_server: S3Server, lake: Lakehouse, slow: Misbehaving
) -> None:
    """The fence is in the history, some of the orphans are gone, and nothing else is; the next run deletes the rest."""
    deployment, supervisor = supervised
    eventually(lambda: up(deployment), lambda: str(supervisor.restarts))
    orphans = {node_path(): b"left over" for _ in range(3000)}
    left = left_over(moto_server, lake, orphans)
    objects = lake.refresh().digest()
    run_id = launched(deployment, "orphan_removal")
    # The proof of the store deletes a batch, too: the orphans go after the fence.
    slow.slow_for, slow.delay = b"?delete", 10.0
    eventually(lambda: "clean" in operations(lake), lambda: str(deployment.run(run_id)))
    slow.matching = 0
    eventually(lambda: slow.matching > 1, lambda: str(deployment.run(run_id)))
    VICTIMS["the run"](deployment).kill()
    slow.slow_for, slow.delay = b"", 0.0
    assert "FAILURE" == ended_run(deployment, run_id)["status"]
    assert objects == lake.refresh().digest()
    assert [] == list(lake.check())
    assert 0 < len(left() & orphans.keys()) < len(orphans)
    again = launched(deployment, "orphan_removal")
    assert "SUCCESS" == ended_run(deployment, again)["status"], deployment.run(again)
    assert not left() & orphans.keys()
    assert objects == lake.refresh().digest()
    assert [] == list(lake.check())


@pytest.mark.parametrize("victim", ["the run", "the code server"])
def test_scheduled_maintenance_that_is_killed_is_repeated(
    supervised: tuple[Deployment, Supervisor], lake: Lakehouse, slow: Misbehaving, victim: str
) -> None:
    """Once, and it succeeds; also where the code server, which the sensor needs, dies with the run."""
    deployment, supervisor = supervised
    eventually(lambda: up(deployment), lambda: str(supervisor.restarts))
    grown(lake)
    slow.delay = 0.3
    killed = deployment.launch("orders_maintenance", tags={"dagster/schedule_name": "orders_maintenance_schedule"})
    eventually(lambda: writes(deployment, killed, "tree_compaction"), lambda: killed)
    VICTIMS[victim](deployment).kill()
    slow.delay = 0.0
    assert "FAILURE" == ended_run(deployment, killed)["status"]
    eventually(lambda: bool(repeats_of(deployment, killed)), lambda: deployment.log("daemon")[-3000:])
    (again,) = repeats_of(deployment, killed)
    assert "SUCCESS" == ended_run(deployment, again)["status"], deployment.run(again)
    assert 1 == len(repeats_of(deployment, killed))
    assert 0 == lake.refresh().stats().messages
    assert [] == list(lake.check())


def repeats_of(deployment: Deployment, run_id: str) -> list[str]:
    """Return the runs that were requested because one died."""
    query = "query($filter: RunsFilter!) { runsOrError(filter: $filter) { ... on Runs { results { runId } } } }"
    with suppress(OSError):
        wanted = {"tags": [{"key": "trinitylake/repeat_of", "value": run_id}]}
        return [each["runId"] for each in deployment.graphql(query, filter=wanted)["runsOrError"]["results"]]
    return []


def left_over(server: S3Server, lake: Lakehouse, orphans: dict[str, bytes]) -> Callable[[], set[str]]:
    """Write files that nothing points to, two days old; return what lists all files there are."""
    url = f"{server.endpoint}{RAW}{lake.root.removeprefix('s3://')}"

    def files() -> dict[str, bytes]:
        with urllib.request.urlopen(url, timeout=60) as answer:
            found: dict[str, bytes] = pickle.loads(answer.read())
        return found

    data, headers = pickle.dumps(files() | orphans), {"X-Age-Seconds": "172800"}
    urllib.request.urlopen(urllib.request.Request(url, data=data, headers=headers, method="PUT"), timeout=60).close()
    return lambda: set(files())


def ended_run(deployment: Deployment, run_id: str) -> dict[str, Any]:
    """Return a run when it is over, however often nobody could say what became of it."""
    eventually(lambda: look_at(deployment, run_id).get("endTime") is not None, lambda: run_id)
    return look_at(deployment, run_id)


def look_at(deployment: Deployment, run_id: str) -> dict[str, Any]:
    """Return a run; nothing while the webserver or its database is away."""
    with suppress(OSError):
        return deployment.run(run_id)
    return {}


def up(deployment: Deployment) -> bool:
    """Return whether every unit runs and is heard of. One that has just died is not up."""
    with suppress(AssertionError):  # a unit that has ended, or an error for an answer
        return deployment.ready()
    return False


def grown(lake: Lakehouse) -> None:
    """Commit what there is to compact, and versions to expire."""
    for commit in range(4):
        with lake.refresh().transaction() as txn:
            for table in range(10):
                txn.create_table("sales", f"n{time.time_ns()}_{commit}_{table}"[-18:])


def launched(deployment: Deployment, work: str) -> str:
    """Launch a job that compacts, or everything, in which versions expire and files are deleted."""
    if work == "tree_compaction":
        return deployment.launch("orders_compaction")
    return deployment.launch("orders_maintenance")


def writes(deployment: Deployment, run_id: str, work: str) -> bool:
    """Return whether a run has got the slot of its lakehouse: a step that writes has begun."""
    run = look_at(deployment, run_id)
    begun = any(s["stepKey"].endswith("tree_compaction") and s["startTime"] for s in run.get("stepStats", ()))
    return begun or run.get("endTime") is not None


def begun(deployment: Deployment, slow: Misbehaving, work: str) -> str:
    """Launch work, and return when it is in the middle: a few of its requests were answered, slowly."""
    run_id = launched(deployment, work)

    def at_work() -> bool:
        steps = deployment.run(run_id)["stepStats"]
        return any(each["stepKey"].endswith(work) and each["startTime"] for each in steps)

    slow.delay = 0.0 if work != "tree_compaction" else 0.3
    eventually(at_work, lambda: str(deployment.run(run_id)))
    slow.delay, before = 0.3, slow.requests
    eventually(lambda: slow.requests > before + 3, lambda: str(deployment.run(run_id)))
    return run_id
