"""A maintenance run and a load over Spark Connect, in a process of their own: Python has one kind of Spark at a time.

python -m tests.support.over_connect sc://host:port DIRECTORY      prints what was seen, as JSON
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import dagster as dg

from dagster_project.config.settings import LakehouseSettings
from dagster_project.factory import define_lakehouses
from pipelines import load
from pipelines.session import SessionConfig, get_session
from tests.dagster.conftest import filled
from trinitylake_core import Lakehouse

OBJECTS = Path(__file__).parent / "objects.jsonl"


def maintained(remote: str, lake: Lakehouse, backup: str) -> dict[str, Any]:
    """Run the whole maintenance; there is nothing that could be removed."""
    stanza = {
        "name": "sales-eu",
        "root": lake.root,
        "spark": {"mode": "connect", "remote": remote},
        "health": {"spark_from_objects": 1},
        "snapshots": {"daily": {"keep": 1}},
        "retention": {},
        "orphans": {},
        "backup": {"target": backup},
    }
    job = define_lakehouses((LakehouseSettings.model_validate(stanza),)).resolve_job_def("sales_eu_maintenance")
    with dg.DagsterInstance.ephemeral() as instance:
        result = job.execute_in_process(instance=instance, raise_on_error=False)
    done = [event.asset_key.path[-1] for event in result.get_asset_materialization_events() if event.asset_key]
    checks = {each.check_name: each.passed for each in result.get_asset_check_evaluations()}
    failures = [str(each.event_specific_data) for each in result.get_step_failure_events()]
    return {"success": result.success, "assets": sorted(done), "checks": checks, "failures": failures}


def main(remote: str, directory: Path) -> None:
    """Maintain a lakehouse, load into it, and tell."""
    lake, backup = filled((directory / "lake").as_uri()), (directory / "backup").as_uri()
    told = maintained(remote, lake, backup)
    told["same"] = lake.refresh().digest() == Lakehouse.open(backup).digest()
    with lake.transaction() as txn:
        for name in ("ns0", "ns1"):
            txn.create_namespace(name)
    session = get_session(SessionConfig(mode="connect", remote=remote))
    try:
        loaded = load.run(lake, str(OBJECTS), load.Config(engine="spark"), session)
    finally:
        session.stop()
    told |= {"engine": loaded.engine, "added": loaded.added, "violations": len(list(lake.refresh().check()))}
    print(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
