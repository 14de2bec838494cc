"""A canary in every option that may hold a secret, searched for wherever something is shown or kept: none is found.

One lakehouse is on S3 and maintained with Spark, its UI on; the others cannot be opened, each for another reason,
because errors are what quotes things.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import dagster as dg
import psutil
import pytest
import yaml

from dagster_project import check_alerts
from dagster_project.config.file import Stanzas
from dagster_project.config.settings import Notifications
from dagster_project.factory import fleet
from dagster_project.scope import FLEET_SENSOR
from dagster_project.sensor import FleetTick
from tests.dagster.conftest import filled
from tests.support import postgres
from tests.support.deployment import Deployment, deployed, eventually
from tests.support.fleets import Silent, Webhook, webhook
from tests.support.s3_servers import S3Server, free_port, run_rclone

ENVIRONMENT = {
    name: f"CANARY{number}0{name.replace('_', '')}"
    for number, name in enumerate(
        (
            "KEY", "SECRET", "TOKEN", "PASSWORD", "HEADER", "ACCOUNT_KEY", "SAS", "CONNECTION", "CLIENT_SECRET",
            "BEARER", "REMOTE", "BACKUP_SECRET", "EXPORT_SECRET", "PROXY", "HOOK",
        ), start=10,
    )
}  # fmt: skip
"""Variables, each with a value that occurs nowhere else."""
SEARCHED_FOR = "CANARY"


def env(name: str) -> dict[str, str]:
    return {"env": name}


def variables(hook: str) -> dict[str, str]:
    """Return the environment: the canaries, some of them inside of what surrounds a secret."""
    told = {"ENDPOINT": f"http://user:{ENVIRONMENT['PASSWORD']}@127.0.0.1:1", "MAINTENANCE_WEBHOOK": hook}
    told["CONNECTION"] = f"AccountName=a;AccountKey={ENVIRONMENT['CONNECTION']};BlobEndpoint=http://127.0.0.1:1/a"
    told["SAS"] = f"sv=2024&sig={ENVIRONMENT['SAS']}"
    told["REMOTE"] = f"sc://127.0.0.1:1/;token={ENVIRONMENT['REMOTE']}"
    told["PROXY"] = f"http://user:{ENVIRONMENT['PROXY']}@127.0.0.1:1"
    return ENVIRONMENT | told


def closed(folder: Path, silent: Silent, strict: S3Server) -> dict[str, dict[str, Any]]:
    """Return stanzas with canaries in every option, of lakehouses that cannot be opened."""
    s3 = {"key": env("KEY"), "secret": env("SECRET"), "token": env("TOKEN"), "region": "us-east-1"}
    azure = {"endpoint_url": "http://127.0.0.1:1/a", "account_name": "a"}
    copies = {
        "backup": {"target": "s3://lakes/copy", "storage_options": s3 | {"secret": env("BACKUP_SECRET")}},
        "export": {"target": "s3://lakes/other", "storage_options": s3 | {"secret": env("EXPORT_SECRET")}},
    }
    proxied = {"config_kwargs": {"proxies": {"http": env("PROXY")}}}
    given: dict[str, tuple[str, dict[str, Any]]] = {
        "denied": ("s3://lakes/denied", s3 | {"endpoint_url": strict.endpoint}),
        "hanging": ("s3://lakes/hanging", s3 | {"endpoint_url": silent.endpoint}),
        "nobody-there": ("s3://lakes/nobody", s3 | {"endpoint_url": env("ENDPOINT")}),
        "proxied": ("s3://lakes/proxied", s3 | proxied | {"endpoint_url": "http://127.0.0.1:1"}),
        "unknown-option": ("s3://lakes/unknown", s3 | {"no_such_option": env("HEADER")}),
        "account-key": ("az://lakes/key", azure | {"account_key": env("ACCOUNT_KEY")}),
        "sas": ("az://lakes/sas", azure | {"sas_token": env("SAS")}),
        "connection": ("az://lakes/connection", {"connection_string": env("CONNECTION")}),
        "principal": (
            "az://lakes/principal",
            azure | {"tenant_id": "t", "client_id": "c", "client_secret": env("CLIENT_SECRET")},
        ),
        "google": ("gs://lakes/google", {"bearer_token": env("BEARER"), "endpoint_url": "http://127.0.0.1:1"}),
    }
    found = {name: {"root": root, "storage_options": options} for name, (root, options) in given.items()}
    found["denied"] |= copies
    found["connect"] = {
        "root": filled((folder / "connect").as_uri()).root,
        "spark": {"mode": "connect", "remote": env("REMOTE")},
        "compaction": {"engine": "spark"},
    }
    return found


def stanzas_of(lakes: Mapping[str, Mapping[str, Any]], layout: str) -> str:
    told = {"webhook": env("MAINTENANCE_WEBHOOK")}
    rows = [json.loads(json.dumps({"name": name, **each})) for name, each in lakes.items()]
    return yaml.safe_dump({"layout": layout, "notifications": told, "lakehouses": rows}, sort_keys=False)


@pytest.fixture
def doors(tmp_path: Path) -> Iterator[tuple[Silent, S3Server]]:
    with run_rclone(tmp_path) as strict, Silent() as silent:
        yield silent, strict


def test_what_a_tick_says_of_lakehouses_that_cannot_be_opened_holds_no_secret(
    tmp_path: Path,
    doors: tuple[Silent, S3Server],
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Nor what it keeps, tells the webhook, logs, or what the page of the fleet and the monitoring text show."""
    for name, value in variables("http://127.0.0.1:1/CANARYHOOK").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(FleetTick, "poll_seconds", 2.0)
    lakes = closed(tmp_path, *doors)
    (tmp_path / "lakehouses.yaml").write_text(stanzas_of(lakes, "partitions"))
    told = Notifications.model_validate({"webhook": env("MAINTENANCE_WEBHOOK")})
    repository = fleet(Stanzas(tmp_path / "lakehouses.yaml"), told).get_repository_def()
    with dg.build_sensor_context(instance=instance, repository_def=repository) as context:
        result = repository.get_sensor_def(FLEET_SENSOR)(context)
    assert isinstance(result, dg.SensorResult)
    shown = [str(result), *(str(vars(event)) for event in result.asset_events), *capfd.readouterr()]
    said = next(str(event) for event in result.asset_events if getattr(event, "check_name", None) == "reachable")
    assert [] == [name for name in lakes if name != "connect" and name not in said]
    for event in result.asset_events:
        instance.report_runless_asset_event(event)
    with dg.build_sensor_context(instance=instance, repository_def=repository) as context:
        repository.get_sensor_def(check_alerts.NAME)(context)
    shown += capfd.readouterr()
    assert "the webhook of lakehouses.yaml did not accept" in shown[-1]
    assert [] == canaries("\n".join(shown))


def canaries(text: str) -> list[str]:
    """Return the canaries in a text, with what stands around them."""
    return [part[-60:] + SEARCHED_FOR for part in text.split(SEARCHED_FOR)[:-1]]


@pytest.mark.slow
@pytest.mark.s3
@pytest.mark.spark
def test_no_canary_is_found_anywhere_in_a_deployment(
    moto_server: S3Server, doors: tuple[Silent, S3Server], tmp_path: Path
) -> None:
    """Logs, output of runs, database, GraphQL, Spark's UI, process lists, environments of who needs none, metrics."""
    port = free_port()
    lake = filled(moto_server.new_root(), storage_options=moto_server.options)
    canary = {"key": env("KEY"), "secret": env("SECRET"), "token": env("TOKEN")}
    stanza: dict[str, Any] = {
        "root": lake.root,
        "storage_options": moto_server.options | canary,
        "spark": {"master": "local[1]", "conf": {"spark.ui.enabled": "true", "spark.ui.port": str(port)}},
        "compaction": {"engine": "spark", "messages": 10_000_000},
    }
    with webhook(f"/{ENVIRONMENT['HOOK']}") as told, postgres.run_postgres() as server:
        secrets = variables(told.url)
        text = stanzas_of({"on-s3": stanza, **closed(tmp_path, *doors)}, "assets")
        with deployed(text, server, secrets) as deployment:
            deployment.start_all()
            with Spying(deployment, port) as spy:
                wanted = ("on_s3", "denied", "nobody_there", "connect")
                launched = [deployment.launch(f"{name}_compaction") for name in wanted]
                good, *ended = [deployment.finished(run_id, 600) for run_id in launched]
            assert "SUCCESS" == good["status"], good
            assert {"FAILURE"} == {run["status"] for run in ended}
            assert {"environment", "jobs", "executors", "rest"} <= spy.pages.keys()
            assert "connect" in {message.get("lakehouse") for message in told.messages}
            down = {"denied", "nobody-there", "hanging"}
            eventually(lambda: down <= told.alerts().keys(), lambda: str(told.received), 300)
            found = everything(deployment, told, secrets) | spy.found()
            assert {name: [] for name in found} == {name: canaries(each) for name, each in found.items()}
            assert "tree_compaction" in found["graphql"]


class Spying:
    """Looks at process lists, environments and Spark's UI while runs are at work."""

    def __init__(self, deployment: Deployment, port: int) -> None:
        self.deployment, self.ui = deployment, f"http://127.0.0.1:{port}"
        self.pages: dict[str, str] = {}
        self.commands: set[str] = set()
        self.environments: dict[str, str] = {}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def found(self) -> dict[str, str]:
        """Return what was seen, by where."""
        assert any("java" in each for each in self.commands)
        pages = {f"Spark's UI: {name}": text for name, text in self.pages.items()}
        return pages | {"process list": "\n".join(self.commands)} | self.environments

    def _look(self) -> None:
        while not self._done.wait(2.0):
            for process in psutil.process_iter():
                with suppress(psutil.Error):
                    self.commands.add(" ".join(process.cmdline()))
            for unit in ("daemon", "webserver"):
                for process in self.deployment.processes(unit):
                    with suppress(psutil.Error):
                        self.environments[f"environment of {unit}"] = str(process.environ())
            with suppress(OSError, ValueError, LookupError):
                self._look_at_spark()

    def _look_at_spark(self) -> None:
        application = json.loads(fetched(f"{self.ui}/api/v1/applications"))[0]["id"]
        for name in ("environment", "jobs", "stages", "executors", "SQL", "storage"):
            self.pages[name] = self.pages.get(name, "") + fetched(f"{self.ui}/{name}/")
        rest = f"{self.ui}/api/v1/applications/{application}"
        for name in ("environment", "sql?details=true&planDescription=true", "stages?details=true", "jobs"):
            self.pages["rest"] = self.pages.get("rest", "") + fetched(f"{rest}/{name}")


def fetched(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as answer:
        text: str = answer.read().decode(errors="replace")
        return text


def everything(deployment: Deployment, told: Webhook, secrets: Mapping[str, str]) -> dict[str, str]:
    """Return all that is kept or shown, by where."""
    eventually(lambda: ticked(deployment), lambda: "no sensor has ticked")
    found = {f"log of {name}": deployment.log(name) for name in ("code", "daemon", "webserver")}
    kept = [path for path in (deployment.home / "var").rglob("*") if path.is_file()]
    found["files of runs"] = "\n".join(path.read_text(errors="replace") for path in kept)
    found["database"] = dumped(deployment)
    found["graphql"] = "\n".join(json.dumps(deployment.graphql(query)) for query in QUERIES)
    found["webhook"] = json.dumps(told.messages)
    fleet_of = [sys.executable, "-m", "trinitylake_core.launch", "fleet", str(deployment.home / "etc/lakehouses.yaml")]
    for form in (["--json"], ["--format", "openmetrics"], []):
        done = subprocess.run(
            [*fleet_of, *form],
            env=deployment.environment("code") | dict(secrets),
            capture_output=True,
            text=True,
            check=False,
        )
        found[f"trinitylake fleet {' '.join(form)}"] = done.stdout + done.stderr
    return found


def ticked(deployment: Deployment) -> bool:
    """Return whether every sensor has ticked twice."""
    location = deployment.graphql(QUERIES[0])["workspaceOrError"]["locationEntries"][0]["locationOrLoadError"]
    sensors_there = [each for repository in location["repositories"] for each in repository["sensors"]]
    return bool(sensors_there) and all(len(each["sensorState"]["ticks"]) > 1 for each in sensors_there)


def dumped(deployment: Deployment) -> str:
    """Return the whole database as text."""
    server = deployment.server
    assert server is not None
    where = {
        "PGHOST": server.host,
        "PGPORT": str(server.port),
        "PGUSER": postgres.USER,
        "PGPASSWORD": postgres.PASSWORD,
    }
    command = [postgres.programs() / "pg_dump", postgres.DATABASE]
    text = subprocess.run(command, env=where, capture_output=True, text=True, check=True).stdout
    assert "tree_compaction" in text
    return text


QUERIES = (
    """{ workspaceOrError { ... on Workspace { locationEntries { loadStatus locationOrLoadError {
      ... on PythonError { message stack } ... on RepositoryLocation { repositories {
        sensors { name description metadata { assetKeys { path } }
          sensorState { ticks(limit: 50) { status skipReason cursor error { message stack causes { message } }
            logEvents { events { message } } } } }
        schedules { name scheduleState { ticks(limit: 50) { status skipReason error { message stack } } } }
        pipelines { name description tags { key value } isAssetJob }
      } } } } } } }""",
    """{ runsOrError(limit: 100) { ... on Runs { results { runId runConfigYaml tags { key value }
      eventConnection(limit: 1000) { events { __typename ... on MessageEvent { message }
        ... on ErrorEvent { error { message stack causes { message stack } } }
        ... on MaterializationEvent { description metadataEntries { label description ... on TextMetadataEntry { text }
          ... on JsonMetadataEntry { jsonString } ... on TableMetadataEntry { table { records } } } }
      } } } } } }""",
    """{ assetNodes { assetKey { path } description
      configField { configType { recursiveConfigTypes { key description } } }
      metadataEntries { label description ... on TextMetadataEntry { text } ... on UrlMetadataEntry { url } }
      assetChecksOrError { ... on AssetChecks { checks { name description executionForLatestMaterialization {
        evaluation { description metadataEntries { label ... on TextMetadataEntry { text } } } } } } } } }""",
    "{ instance { info daemonHealth { allDaemonStatuses { daemonType lastHeartbeatErrors { message stack } } } } }",
)
