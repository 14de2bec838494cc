"""Every asset materialised and every job executed on S3, credentials from the environment; slow tests use Spark."""

from __future__ import annotations

import json
from typing import Any

import dagster as dg
import pytest

from dagster_project.config.settings import LakehouseSettings
from dagster_project.factory import define_lakehouses
from dagster_project.resources import SparkResource
from tests.dagster.conftest import filled
from tests.dagster.test_assets import metadata
from tests.dagster.test_manual_jobs import told
from tests.support.clock import Clock
from tests.support.s3_servers import KEY, SECRET, S3Server
from trinitylake_core import Lakehouse
from trinitylake_core.commits.frozen import freeze_of

TEN_DAYS_MILLIS = 864_000_000
ASSETS = (
    "lakehouse_definition", "tree_health", "tree_compaction", "root_version_snapshots", "backup",
    "version_expiration", "orphan_removal",
)  # fmt: skip
CHECKS = ("integrity", "compaction_debt", "compaction_fresh", "snapshots_fresh", "backup_verified")


class Place:
    """A lakehouse on S3, and room for its copies; all of it maintained with one engine."""

    def __init__(self, instance: dg.DagsterInstance, server: S3Server, engine: str) -> None:
        self.instance, self.engine = instance, engine
        self.root, self.options = server.new_root(), server.options
        root, options = self.root, self.options
        secrets = {name: {"env": f"TL_EVERYWHERE_{name}"} for name in ("key", "secret")}
        self.lake = filled(f"{root}lake/", commits=2, storage_options=options)
        stanza = {
            "name": "everywhere",
            "root": f"{root}lake/",
            "storage_options": options | secrets,
            "spark": {"master": "local[2]"},
            "health": {"spark_from_objects": 1},
            "compaction": {"messages": 5, "engine": engine},
            "snapshots": {"daily": {"keep": 1}},
            "retention": {"keep_last": 2, "older_than": "8d"},
            "orphans": {"older_than": "1d"},
            "backup": {"target": f"{root}backup/"},
            "export": {"allowed": [root]},
        }
        settings = LakehouseSettings.model_validate(stanza)
        self.defs = define_lakehouses((settings,), spark=SparkResource(keep_running=True))
        self.executed: set[str] = set()

    def open(self, folder: str = "lake") -> Lakehouse:
        """Return the newest version of the lakehouse, or of one of its copies."""
        return Lakehouse.open(f"{self.root}{folder}/", storage_options=self.options)

    def launch(self, job: str, **config: Any) -> dg.ExecuteInProcessResult:
        """Execute a job, its launchpad filled in, some of it changed; it succeeds."""
        result = self.ended(job, **config)
        assert result.success, result.get_step_failure_events()
        return result

    def ended(self, job: str, **config: Any) -> dg.ExecuteInProcessResult:
        """Execute a job."""
        resolved = self.defs.resolve_job_def(f"everywhere_{job}")
        step = f"lakehouse__everywhere__{job}"
        filled_in = (resolved.run_config or {}).get("ops", {}).get(step, {}).get("config", {})
        ops = {step: {"config": {**filled_in, **config}}} if config or filled_in else {}
        result = resolved.execute_in_process(instance=self.instance, run_config={"ops": ops}, raise_on_error=False)
        self.refuse_secrets(result)
        self.executed.add(job)
        return result

    def refuse_secrets(self, result: dg.ExecuteInProcessResult) -> None:
        """Prove that events, tags and run configuration hold no credentials."""
        events = [entry.to_json() for entry in self.instance.all_logs(result.run_id)]
        run = self.instance.get_run_by_id(result.run_id)
        assert events
        assert run is not None
        stored = "\n".join([*events, json.dumps(run.run_config), str(run.tags), str(run)])
        assert [] == [secret for secret in (KEY, SECRET) if secret in stored]


@pytest.fixture(params=["local", pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.slow])])
def place(
    request: pytest.FixtureRequest,
    instance: dg.DagsterInstance,
    moto_server: S3Server,
    monkeypatch: pytest.MonkeyPatch,
) -> Place:
    """Return a lakehouse whose credentials only the environment knows."""
    for name in ("key", "secret"):
        monkeypatch.setenv(f"TL_EVERYWHERE_{name}", moto_server.options[name])
    if request.param == "spark":
        request.getfixturevalue("spark")
    return Place(instance, moto_server, request.param)


@pytest.mark.s3
def test_every_asset_and_every_job(place: Place, monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    """One lakehouse through all of them; each leaves a sound one behind, and no credentials where Dagster stores."""
    before = place.lake
    clock.forward(days=10)

    done = place.launch("maintenance")
    materialised = {event.asset_key.path[-1] for event in done.get_asset_materialization_events() if event.asset_key}
    seen = {event.asset_key.path[-1] for event in done.get_asset_observation_events() if event.asset_key}
    assert set(ASSETS) == materialised | seen
    assert dict.fromkeys(CHECKS, True) == {each.check_name: each.passed for each in done.get_asset_check_evaluations()}
    kept = place.open()
    assert (before.digest(), 0, before.version + 1) == (
        kept.digest(),
        kept.stats().messages,
        kept.stats().oldest_version,
    )
    assert place.open("backup").digest() == kept.digest()

    _write_and_undo(place)
    copied = told(place.launch("export"))  # the launchpad is filled in with the backup
    assert (f"{place.root}backup/", place.open().version) == (copied["target"], place.open("backup").version)
    verified = told(place.launch("verify", versions="all"))
    assert (place.engine, place.engine, 0) == (copied["plan_engine"], verified["engine"], verified["findings"])
    told(place.launch("upgrade", target=f"{place.root}new/", dry_run=False, definition={"order": 7}))
    assert (7, place.open().digest()) == (place.open("new").definition.order, place.open("new").digest())
    _guard(place)
    place.launch("freeze", reason="audit", lasts="1h")
    assert "audit" == getattr(freeze_of(place.open().definition), "reason", None)
    place.launch("thaw", reason="audit")
    assert freeze_of(place.open().definition) is None
    mended = told(place.launch("mend", source=f"{place.root}backup/", reason="audit", dry_run=False))
    assert "nothing" in mended["outcome"]
    jobs = {job.name.removeprefix("everywhere_") for job in place.defs.get_repository_def().get_all_jobs()}
    assert jobs - {"__ASSET_JOB"} == place.executed
    monkeypatch.setenv("TL_EVERYWHERE_secret", "")
    failed = place.ended("compaction")  # a run that cannot open the lakehouse names the variable that is missing
    assert "the environment variable TL_EVERYWHERE_secret is not set" in str(failed.get_step_failure_events())


def _guard(place: Place) -> None:
    """Forbid deleting: a version with the same content, in which nothing but the property is new."""
    before = place.open()
    guard = "maintenance.delete.enabled"
    done = told(place.launch("alter", properties={guard: "false"}, reason="audit", dry_run=False))
    after = place.open()
    assert [{"property": guard, "before": None, "after": "false"}] == done["properties"]
    assert (before.version + 1, after.version) == (after.version, done["version_after"])
    assert ({guard: "false"}, before.digest()) == (dict(after.definition.properties), after.digest())


def _write_and_undo(place: Place) -> None:
    """Compact, restore and roll back what somebody wrote."""
    lake = place.open()
    version, digest = lake.version, lake.digest()
    with lake.transaction() as txn:
        txn.drop_table("sales", "t0_1")
        txn.create_table("sales", "mistake")
    compacted = place.launch("compaction")
    assert (place.engine, 0) == (metadata(compacted, "tree_compaction")["plan_engine"], place.open().stats().messages)
    restored = told(place.launch("restore", only=["sales.t0_1"], version=version, reason="dropped", dry_run=False))
    assert ["sales.t0_1"] == [row["name"] for row in restored["changes"]]
    undone = told(place.launch("rollback", version=version, reason="all of it", dry_run=False))
    assert ("local", digest) == (undone["engine"], place.open().digest())  # no incident waits for Spark
    newest = told(place.launch("history", operations=["rollback"]))
    assert ["all of it"] == [row["reason"] for row in newest["history"]]
    assert ["sales.mistake"] == [
        row["name"] for row in told(place.launch("diff", before="HEAD~1", after="HEAD"))["changes"]
    ]
    again = told(place.launch("undo", matching="all of it", reason="not all"))
    assert (newest["version"], "local") == (again["plan_version"], again["engine"])
