"""A night of several lakehouses with ``engine: spark`` on a standalone cluster, by the deployment of production.md.

    python -m benchmarks spark_night [--lakehouses 5] [--tables 600] [--workers 4]

All maintenance runs are launched at once, as a schedule does it. Printed is what the pages of each run say of Spark,
for every asset: application, stages, tasks, their seconds, and the link; and how many applications the cluster has
registered, each of which is one Java process of a driver: one for each maintenance, and for each compaction that a
sensor starts beside it. Each application takes one core. Four runs at once need four workers: with three, one waited
for an executor for three minutes, and its health went on in its own process. It fails where a run fails, or where a
lakehouse has changed.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any, Final

import yaml

from benchmarks import report
from tests.support import postgres
from tests.support.deployment import Deployment, deployed
from tests.support.lakes import FAST, filled
from tests.support.standalone import Cluster, standalone
from trinitylake_core import Lakehouse

_SECONDS: Final = 3_000.0
_PAGES: Final = """query($run: ID!) { runOrError(runId: $run) { ... on Run { eventConnection(limit: 1000) { events {
  ... on MaterializationEvent { assetKey { path } metadataEntries { label
    ... on TextMetadataEntry { text } ... on UrlMetadataEntry { url }
    ... on IntMetadataEntry { intValue } ... on FloatMetadataEntry { floatValue } } } } } } } }"""
_SAID: Final = ("application", "stages", "tasks", "task_seconds", "executors", "ui")


def _stanza(number: int, lake: Lakehouse, folder: Path, cluster: Cluster) -> dict[str, Any]:
    conf = dict(cluster.session(**{"spark.ui.enabled": "true", "spark.cores.max": "1"}).conf)
    return {
        "name": f"lake{number}",
        "root": lake.root,
        "storage_options": FAST,
        "spark": {"mode": "master", "master": cluster.master, "secret": {"env": "SPARK_SECRET"}, "conf": conf},
        "compaction": {"engine": "spark", "messages": 1},
        "health": {"spark_from_objects": 1, "definitions": True},
        "snapshots": {"daily": {"keep": 1}},
        "backup": {"target": (folder / f"copy{number}").as_uri()},
        "retention": {"keep_last": 1, "older_than": "1s"},
        "orphans": {},
    }


def _read_pages(running: Deployment, run: str) -> dict[str, dict[str, Any]]:
    """Return what the page of each asset says of Spark, by the name of the asset."""
    found = running.graphql(_PAGES, run=run)["runOrError"]["eventConnection"]["events"]
    pages: dict[str, dict[str, Any]] = {}
    for event in found:
        if not event.get("assetKey"):
            continue
        said = {}
        for entry in event["metadataEntries"]:
            label = entry.pop("label")
            said[label] = next(iter(entry.values()), None)
        if "spark_application" in said:
            pages[event["assetKey"]["path"][-1]] = {name: said.get(f"spark_{name}") for name in _SAID}
    return pages


def _launch_all(running: Deployment, count: int) -> dict[str, Any]:
    """Run the maintenance of all lakehouses; return a row for each asset that Spark worked for."""
    running.start_all()
    runs = [running.launch(f"lake{number}_maintenance") for number in range(count)]
    rows: dict[str, Any] = {}
    for number, run in enumerate(runs):
        ended = running.finished(run, _SECONDS)
        if ended["status"] != "SUCCESS":
            raise SystemExit(f"the run of lake{number} ended with {ended['status']}: {running.log('code')[-5_000:]}")
        seconds = {"run s": round(ended["endTime"] - ended["startTime"])}
        for asset, said in _read_pages(running, run).items():
            rows[f"lake{number} {asset}"] = said | seconds
    running.stop_all()
    return rows


def main(arguments: list[str]) -> None:
    """Run the night and print what the pages say."""
    parser = argparse.ArgumentParser(prog="benchmarks spark_night", description=__doc__)
    parser.add_argument("--lakehouses", type=int, default=5)
    parser.add_argument("--tables", type=int, default=600)
    parser.add_argument("--workers", type=int, default=4)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lakes = []
        for number in range(options.lakehouses):
            made = Lakehouse.create((folder / f"lake{number}").as_uri(), order=8, storage_options=FAST)
            lakes.append(filled(made, options.tables, 3, 100))
        digests = [lake.digest() for lake in lakes]
        with standalone(options.workers, folder) as cluster, postgres.run_postgres() as server:
            stanzas = [_stanza(number, lake, folder, cluster) for number, lake in enumerate(lakes)]
            text = yaml.safe_dump({"lakehouses": stanzas})
            with deployed(text, server, {"SPARK_SECRET": cluster.secret}) as running:
                figures = _launch_all(running, options.lakehouses)
            applications = (folder / "master.log").read_text(errors="replace").count("Registered app")
        if digests != [lake.refresh().digest() for lake in lakes]:
            raise SystemExit("a lakehouse has another content")
    print(report.table(figures))
    print(f"applications, each with a Java process of a driver: {applications}", flush=True)
    report.save("spark_night", {"load": os.getloadavg(), "applications": applications, "figures": figures})
