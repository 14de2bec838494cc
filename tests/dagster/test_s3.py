"""A lakehouse on S3, its credentials from the environment: compacted by Spark, and no secret told to anybody."""

from __future__ import annotations

import json
from typing import Any

import dagster as dg
import pytest

from dagster_project import assets
from dagster_project.config.settings import LakehouseSettings
from dagster_project.factory import merged
from dagster_project.resources import SparkResource
from tests.dagster.conftest import SMALL
from tests.dagster.test_assets import metadata
from tests.support.s3_servers import KEY, SECRET, S3Server
from trinitylake_core import Lakehouse


@pytest.mark.s3
@pytest.mark.spark
def test_compaction_on_s3_with_credentials_from_the_environment(
    moto_server: S3Server, instance: dg.DagsterInstance, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tasks get what they need to open the storage; events, tags, run configuration and errors hold none of it."""
    monkeypatch.setenv("TL_TEST_KEY", KEY)
    monkeypatch.setenv("TL_TEST_SECRET", SECRET)
    lake = Lakehouse.create(moto_server.new_root(), storage_options=moto_server.options, **SMALL)
    with lake.transaction() as txn:
        txn.create_namespace("sales")
        for number in range(20):
            txn.create_table("sales", f"t{number}")
    given = {"key": {"env": "TL_TEST_KEY"}, "secret": {"env": "TL_TEST_SECRET"}}
    stanza: dict[str, Any] = {
        "name": "on-s3",
        "root": lake.root,
        "spark": {"master": "local[2]"},
        "storage_options": moto_server.options | given,
    }
    digest, messages, secrets = lake.refresh().digest(), lake.stats().messages, (KEY, SECRET)
    assert messages
    settings = LakehouseSettings.model_validate(stanza)
    defs = merged((settings,), spark=SparkResource(keep_running=True))
    key = assets.key(settings, assets.COMPACTION)
    job = defs.get_repository_def().get_job("__ASSET_JOB").get_subset(asset_selection={key})
    result = job.execute_in_process(instance=instance, raise_on_error=False)
    assert result.success
    assert (digest, 0, []) == (lake.refresh().digest(), lake.stats().messages, list(lake.check()))
    assert ("spark", messages) == (
        metadata(result, assets.COMPACTION)["plan_engine"],
        metadata(result, assets.COMPACTION)["messages_before"],
    )
    refuse_secrets(instance, result, secrets)

    monkeypatch.setenv("TL_TEST_SECRET", "")  # a run that cannot open the lakehouse says which variable is missing
    failed = job.execute_in_process(instance=instance, raise_on_error=False)
    assert "the environment variable TL_TEST_SECRET is not set" in str(failed.get_step_failure_events())
    refuse_secrets(instance, failed, secrets)


def refuse_secrets(instance: dg.DagsterInstance, result: dg.ExecuteInProcessResult, secrets: tuple[str, ...]) -> None:
    events = [entry.to_json() for entry in instance.all_logs(result.run_id)]
    assert events
    run = instance.get_run_by_id(result.run_id)
    assert run is not None
    stored = "\n".join([*events, json.dumps(run.run_config), str(run.tags), str(run)])
    assert [] == [secret for secret in secrets if secret in stored]
