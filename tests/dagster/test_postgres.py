"""The deployment of docs/production.md, for real: PostgreSQL, and the three units from the files of ``deploy/``.

They are started and stopped the way systemd does it (see ``tests/support/deployment.py``), as the runner's own user and
without the sandbox.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import psutil
import pytest
import yaml
from dagster._core.events import EngineEventData
from dagster._core.remote_origin import GrpcServerCodeLocationOrigin, RemoteRepositoryOrigin

from dagster_project import config
from dagster_project.config.settings import LakehouseSettings
from dagster_project.factory import define_lakehouses
from dagster_project.processes.dead_runs import end_dead_runs, end_those_without_process
from tests.dagster.conftest import filled
from tests.support import postgres
from tests.support.deployment import DEPLOY, UNITS, Deployment, Unit, deployed, eventually, variables
from tests.support.s3_servers import KEY, SECRET, S3Server
from trinitylake_core import Lakehouse

NEVER = {"messages": 10_000_000}
QUEUE = "{ runsOrError(filter: {statuses: [QUEUED]}) { ... on Runs { count } } }"
RELOAD = 'mutation { reloadRepositoryLocation(repositoryLocationName: "trinitylake") { __typename } }'
VALIDATE = "dagster definitions validate -m dagster_project.definitions -a defs"
DOCUMENT = DEPLOY.parent / "docs" / "production.md"


@pytest.fixture(scope="module")
def sales(tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    """Return a lakehouse on this disk that needs a compaction."""
    return filled((tmp_path_factory.mktemp("lakes") / "sales").as_uri())


@pytest.fixture(scope="module")
def orders(moto_server: S3Server) -> Lakehouse:
    """Return one on S3."""
    return filled(moto_server.new_root(), storage_options=moto_server.options)


@pytest.fixture(scope="module")
def deployment(sales: Lakehouse, orders: Lakehouse, moto_server: S3Server) -> Iterator[Deployment]:
    """Return the deployment of both, up and running."""
    credentials = {"key": {"env": "ORDERS_S3_KEY"}, "secret": {"env": "ORDERS_S3_SECRET"}}
    local = {"spark": {"master": "local[1]", "conf": {"spark.driver.memory": "512m"}}, "compaction": NEVER}
    stanzas: list[dict[str, Any]] = [
        {"name": "sales", "root": sales.root, **local},
        {"name": "orders", "root": orders.root, "storage_options": moto_server.options | credentials, **local},
    ]
    secrets = {"ORDERS_S3_KEY": KEY, "ORDERS_S3_SECRET": SECRET}
    with (
        postgres.run_postgres() as server,
        deployed(yaml.safe_dump({"lakehouses": stanzas}), server, secrets) as running,
    ):
        running.start_all()
        yield running
        if running.running:
            running.stop_all()
        assert [] == running.processes()


@pytest.mark.s3
def test_a_run_compacts_the_lakehouse_on_disk_and_another_one_that_on_s3(
    deployment: Deployment, sales: Lakehouse, orders: Lakehouse
) -> None:
    _owe(sales, orders)
    requested = [compact(deployment, name, "local") for name in ("sales", "orders")]
    finished = [deployment.finished(run_id) for run_id in requested]
    assert ["SUCCESS"] * 2 == [run["status"] for run in finished], deployment.log("code")[-5000:]
    assert [0, 0] == [lake.refresh().stats().messages for lake in (sales, orders)]
    assert [] == [*sales.check(), *orders.check()]


@pytest.mark.slow
@pytest.mark.s3
def test_compactions_of_one_lakehouse_wait_for_each_other_those_of_two_do_not(
    deployment: Deployment, sales: Lakehouse, orders: Lakehouse
) -> None:
    """Requested at once: two of `sales`, which is on disk, and one of `orders`, which is on S3."""
    _owe(sales, orders)
    wanted = [("sales", "spark"), ("sales", "local"), ("orders", "local")]  # Spark takes ten seconds and more to start
    requested = [compact(deployment, *each) for each in wanted]
    finished = [deployment.finished(run_id) for run_id in requested]
    assert ["SUCCESS"] * 3 == [run["status"] for run in finished], deployment.log("code")[-5000:]
    (first, first_ends), (second, _), (other, other_ends) = map(step, finished)
    assert first < first_ends < second
    assert other < first_ends
    assert first < other_ends
    assert [0, 0] == [lake.refresh().stats().messages for lake in (sales, orders)]
    assert [] == [*sales.check(), *orders.check()]


def _owe(*lakes: Lakehouse) -> None:
    """Leave messages that a compaction finds."""
    for lake in lakes:
        while not lake.refresh().stats().messages:
            with lake.transaction() as txn:
                txn.create_table("sales", f"owed{lake.version}")


def test_no_secret_is_on_a_command_line_in_a_log_or_in_the_database(deployment: Deployment) -> None:
    told = [" ".join(process.cmdline()) for process in deployment.processes()]
    assert len(told) > len(UNITS)
    told += [deployment.log(name) for name in UNITS]
    assert [] == [secret for secret in (SECRET, postgres.PASSWORD) if secret in "\n".join(told)]
    assert deployment.server
    with closing(deployment.server.connection()) as connection, connection.cursor() as cursor:
        tables = {"event_logs": "event", "runs": "run_body", "job_ticks": "tick_body", "instigators": "instigator_body"}
        cursor.execute(" UNION ALL ".join(f"SELECT {column} FROM {table}" for table, column in tables.items()))
        stored = "\n".join(text for (text,) in cursor.fetchall())
    assert "tree_compaction" in stored
    assert [] == [secret for secret in (SECRET, postgres.PASSWORD) if secret in stored]


def test_no_unit_reads_the_environment_of_another_one(deployment: Deployment) -> None:
    """The daemon and the webserver work as others than the code server, which has the secrets.

    As far as this user may start processes of others.
    """
    may = os.geteuid() == 0 and shutil.which("setpriv") is not None
    users = {psutil.Process(process.pid).uids().real for process in deployment.running.values()}
    assert (len(UNITS) if may else 1) == len(users)


@pytest.mark.slow
def test_stopping_the_code_server_cancels_its_runs_and_stops_their_spark(
    deployment: Deployment, sales: Lakehouse
) -> None:
    """Nothing is committed, no process is left; daemon and webserver find the code server again when it is back."""
    with sales.transaction() as txn:
        for number in range(20):
            txn.create_table("sales", f"more{number}")
    version = sales.refresh().version
    eventually(lambda: "java" not in names(deployment), lambda: "the Spark of the test before has not stopped")
    run_id = compact(deployment, "sales")
    eventually(lambda: "java" in names(deployment), lambda: str(deployment.run(run_id)))
    seconds = deployment.stop("code")  # asserts that nothing is left
    print(f"the code server, a run and its Spark stopped in {seconds:.1f} s")
    assert version == sales.refresh().version
    run = deployment.run(run_id)
    assert "FAILURE" == run["status"]
    assert "the run was cancelled" in str(run["eventConnection"])

    deployment.start("code")  # whether it is found again, the next test shows
    deployment.wait_until_ready()


@pytest.mark.slow
def test_a_lakehouse_is_added_without_disturbing_the_run_that_is_at_work(
    deployment: Deployment, sales: Lakehouse
) -> None:
    """By a stanza, and by the button that reloads the code location."""
    path = deployment.home / "etc" / "lakehouses.yaml"
    stanzas = yaml.safe_load(path.read_text())
    more = sales.root.rstrip("/") + "-more"
    Lakehouse.create(more)
    stanzas["lakehouses"].append({"name": "more", "root": more, "compaction": NEVER})
    path.write_text(yaml.safe_dump(stanzas))
    run_id = compact(deployment, "sales", engine="local")
    eventually(lambda: deployment.run(run_id)["status"] == "STARTED", lambda: str(deployment.run(run_id)))
    assert "WorkspaceLocationEntry" == deployment.graphql(RELOAD)["reloadRepositoryLocation"]["__typename"]
    deployment.wait_until_ready()
    assert "SUCCESS" == deployment.finished(compact(deployment, "more", engine="local"))["status"]
    assert "SUCCESS" == deployment.finished(run_id)["status"]


@pytest.mark.slow
def test_what_the_document_says_to_type_and_to_watch(deployment: Deployment) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{deployment.port}/server_info", timeout=30) as answer:
        assert "dagster_webserver_version" in json.load(answer)
    assert 0 == deployment.graphql(QUEUE)["runsOrError"]["count"]
    for text in (QUEUE, "dagster-daemon liveness-check", "dagster instance migrate", VALIDATE):
        assert text in DOCUMENT.read_text(encoding="utf-8")
    programs = sysconfig.get_path("scripts")
    for command in ("dagster-daemon liveness-check", "dagster instance migrate", VALIDATE):
        done = subprocess.run(
            f"{programs}/{command}",
            shell=True,
            env=deployment.environment("code"),
            cwd=deployment.home / "var",
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert 0 == done.returncode, done.stdout + done.stderr


def test_every_unit_stops_in_time_and_leaves_nothing_behind(deployment: Deployment) -> None:
    """And the probe of the document says before and after what there is to say."""
    assert 0 == probe(deployment)
    took = deployment.stop_all()
    assert {*UNITS} == took.keys()
    assert 1 == probe(deployment)
    assert [] == deployment.processes()


@pytest.mark.slow
def test_the_dump_of_the_database_can_take_its_place(deployment: Deployment, tmp_path: Path) -> None:
    """With the commands of the document, into another database, which Dagster opens with all runs."""
    server = deployment.server
    assert server is not None
    text = DOCUMENT.read_text(encoding="utf-8")
    assert "pg_dump -Fc dagster > dagster.dump" in text
    assert "pg_restore --no-owner -d dagster dagster.dump" in text
    where = {
        "PGHOST": server.host,
        "PGPORT": str(server.port),
        "PGUSER": postgres.USER,
        "PGPASSWORD": postgres.PASSWORD,
    }
    there, dump = postgres.programs(), tmp_path / "dagster.dump"
    with dump.open("wb") as file:
        subprocess.run([there / "pg_dump", "-Fc", postgres.DATABASE], env=where, stdout=file, check=True)
    subprocess.run([there / "createdb", "restored"], env=where, check=True)
    subprocess.run([there / "pg_restore", "--no-owner", "-d", "restored", dump], env=where, check=True)
    count = "import dagster as dg; print(len(dg.DagsterInstance.get().get_runs()))"
    environment = deployment.environment("code")
    seen = [
        subprocess.run([sys.executable, "-c", count], env=each, capture_output=True, text=True, check=True).stdout
        for each in (environment, environment | {"DAGSTER_PG_DB": "restored"})
    ]
    assert seen[0] == seen[1]
    assert int(seen[0]) > 1


def test_dead_runs_are_ended_and_the_others_are_left_alone(settings: LakehouseSettings) -> None:
    """A run that was being cancelled is cancelled; one that has not begun is left to who waits for it."""
    job = define_lakehouses((settings,)).get_repository_def().get_job("sales_eu_verify")
    statuses = ("NOT_STARTED", "STARTING", "STARTED", "CANCELING", "SUCCESS")
    with dg.DagsterInstance.ephemeral() as instance:
        runs = {each: instance.create_run_for_job(job, status=dg.DagsterRunStatus[each]).run_id for each in statuses}
        assert {runs["STARTING"], runs["STARTED"], runs["CANCELING"]} == set(end_dead_runs(instance))
        after = [run.status.value for each in statuses if (run := instance.get_run_by_id(runs[each]))]
        assert [] == end_dead_runs(instance)
    assert ["NOT_STARTED", "FAILURE", "FAILURE", "CANCELED", "SUCCESS"] == after


def test_a_run_whose_process_is_gone_at_two_looks_is_ended(settings: LakehouseSettings, memory: str) -> None:
    """Dagster stops looking when the database is away at the moment at which a run dies with it."""
    repository = define_lakehouses((settings,)).get_repository_def()
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    zombie = subprocess.Popen([sys.executable, "-c", ""])
    eventually(lambda: psutil.Process(zombie.pid).status() == psutil.STATUS_ZOMBIE, lambda: "it runs on")
    with dg.DagsterInstance.local_temp(memory) as instance:

        def run(pid: int, location: str = "trinitylake", status: str = "STARTED") -> str:
            made = instance.create_run_for_job(
                repository.get_job("sales_eu_verify"),
                status=dg.DagsterRunStatus[status],
                remote_job_origin=origin(location),
            )
            instance.report_engine_event("Started", made, EngineEventData.in_process(pid))
            return made.run_id

        gone = {run(child.pid), run(zombie.pid), run(child.pid, status="CANCELING")}
        others = {run(os.getpid()), run(child.pid, "elsewhere"), run(child.pid, status="SUCCESS")}
        before = {run_id: status_of(instance, run_id) for run_id in others}
        assert gone == end_those_without_process(instance, "trinitylake", set())
        assert {"STARTED", "CANCELING"} == {status_of(instance, run_id) for run_id in gone}
        assert set() == end_those_without_process(instance, "trinitylake", gone)
        assert {"FAILURE", "CANCELED"} == {status_of(instance, run_id) for run_id in gone}
        assert before == {run_id: status_of(instance, run_id) for run_id in others}
    zombie.wait()


def status_of(instance: dg.DagsterInstance, run_id: str) -> str:
    run = instance.get_run_by_id(run_id)
    assert run is not None
    return run.status.value


def origin(location: str) -> Any:
    """Return where a run of a deployment comes from."""
    server = GrpcServerCodeLocationOrigin(host="localhost", socket="code.sock", location_name=location)
    return RemoteRepositoryOrigin(server, "__repository__").get_job_origin("sales_eu_verify")


def test_the_schedule_skips_while_its_last_run_is_not_over(settings: LakehouseSettings, memory: str) -> None:
    """Otherwise runs that take longer than the time between two pile up in the queue."""
    repository = define_lakehouses((settings,)).get_repository_def()
    schedule = repository.get_schedule_def("sales_eu_maintenance_schedule")
    job = repository.get_job("sales_eu_maintenance")
    with (
        dg.DagsterInstance.local_temp(memory) as instance,
        dg.build_schedule_context(instance, datetime.now(UTC)) as context,
    ):
        assert 1 == len(schedule.evaluate_tick(context).run_requests or [])
        run = instance.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED)
        skipped = schedule.evaluate_tick(context)
        assert ([], f"run {run.run_id} of this job has not finished yet") == (
            skipped.run_requests,
            skipped.skip_message,
        )
        instance.report_run_failed(run)
        assert schedule.evaluate_tick(context).run_requests


def test_the_document_names_every_file() -> None:
    text = DOCUMENT.read_text(encoding="utf-8") + DOCUMENT.with_name("production.md").read_text(encoding="utf-8")
    assert [] == [path.name for path in DEPLOY.iterdir() if path.name not in text]


def test_each_unit_has_a_user_and_the_secrets_that_it_needs() -> None:
    """Secrets of storages are files, which systemd gives to one unit, under the names that its configuration has."""
    path = DEPLOY / "lakehouses.yaml"
    assert ["sales", "orders"] == [each.name for each in config.load(path).lakehouses]
    units = {name: Unit((DEPLOY / f"trinitylake-{name}.service").read_text()) for name in (*UNITS, "serve")}
    assert 4 == len({unit.one("User") for unit in units.values()})
    given = {name: [each.split(":")[0] for each in unit.all("LoadCredential")] for name, unit in units.items()}
    served = variables((DEPLOY / "serve.env").read_text())["TRINITYLAKE_STORAGE_OPTIONS"]
    named = [re.findall(r'{"?file"?: "?(\w+)"?}', text) for text in (path.read_text(), served)]
    assert {"code": named[0], "serve": named[1], "daemon": [], "webserver": []} == given
    assert 4 == len({*named[0], *named[1]})
    kept = {name: unit.all("StateDirectory") for name, unit in units.items()}
    assert {"code": ["trinitylake"], "serve": ["trinitylake-serve"], "daemon": [], "webserver": []} == kept
    assert ("75%", "1G") == (units["code"].one("MemoryMax"), units["serve"].one("MemoryMax"))
    assert {} == variables((DEPLOY / "lakehouses.env").read_text())


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    """As far as systemd is on this machine; what they start is started by the tests above."""
    units = [_with_programs(path, tmp_path) for path in sorted(DEPLOY.glob("*.service"))]
    assert 4 == len(units)
    program = shutil.which("systemd-analyze")
    if program is None:
        return
    command = [program, "verify", "--man=no", *map(str, units)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    complaints = [line for line in done.stderr.splitlines() if "trinitylake" in line]
    assert [] == complaints


def _with_programs(path: Path, folder: Path) -> Path:
    """Copy a unit, its programs replaced by one that exists: `verify` looks for them."""
    text, bin_directory = path.read_text(encoding="utf-8"), "/opt/trinitylake/venv/bin/"
    for name in ("dagster-webserver", "dagster-daemon", "dagster", "python", "trinitylake"):
        text = text.replace(f"{bin_directory}{name} ", "/bin/true ")
    assert bin_directory not in text
    copy = folder / path.name
    copy.write_text(text, encoding="utf-8")
    return copy


def compact(deployment: Deployment, name: str, engine: str = "spark") -> str:
    step = f"lakehouse__{name}__tree_compaction"
    return deployment.launch(f"{name}_compaction", {"ops": {step: {"config": {"engine": engine}}}})


def probe(deployment: Deployment) -> int:
    """Ask the code server whether it answers, as a load balancer does."""
    command = deployment.unit("code").one("ExecStart").split()
    return subprocess.run([*command, "--probe"], cwd=DEPLOY.parent, check=False).returncode


def step(run: dict[str, Any]) -> tuple[float, float]:
    (stats,) = (each for each in run["stepStats"] if each["stepKey"].endswith("tree_compaction"))
    return stats["startTime"], stats["endTime"]


def names(deployment: Deployment) -> set[str]:
    return {process.name() for process in deployment.processes("code")}
