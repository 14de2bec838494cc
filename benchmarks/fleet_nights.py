"""The night of a fleet, and its idle hours: what maintenance takes in Dagster, and what others take for the same.

    python -m benchmarks fleet_nights [--only disk] [--lakehouses 100] [--on-s3 100] [--on-spark 3]
                                      [--tables 2000] [--changed 100] [--commits 20] [--procedures 100]
                                      [--idle 20 300] [--seconds 300]

* **disk**, **S3**, **Spark**: lakehouses of Iceberg tables, each with a snapshot and a manifest, in the deployment of
  docs/production.md; **plain**: of tables without Iceberg's metadata. A first night has copied all to the backups; then
  a part of the tables get new metadata, by so many commits, and the night that is measured does all maintenance of each
  lakehouse in a run of its own, as its schedule would. The S3 server answers after 30 ms, in that night alone; Spark is
  ``local[2]`` in the run, on a disk. Nothing is old enough to be deleted, but versions expire.
* **procedures**: Iceberg's own for so many of the tables, one after the other on a ``local[2]`` that has started, for
  what they have; and our jobs for the same tables, in a process of their own.
* **empty**: a run of Dagster that does nothing, forked like one of maintenance.
* **idle**: so many lakehouses in which nothing happens, in both layouts, for so many seconds after the first minute.

CPU is that of all processes, without the S3 server. That of runs is counted when they have ended.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import yaml

from benchmarks import jobs, nights, report
from benchmarks.fleet import Processor, drain, query
from benchmarks.observed import cpu_seconds
from benchmarks.soak import Load
from dagster_project.assets import list_maintained_assets
from dagster_project.config.settings import LakehouseSettings
from dagster_project.scope import FLEET, PARTITION_TAG
from pipelines import tables_clean, tables_expire, tables_health
from tests.support.deployment import Deployment, deployed, eventually
from tests.support.fleets import Webhook, made, webhook
from tests.support.many_tables import change_tables, fill_tables
from tests.support.postgres import PostgresServer, run_postgres
from tests.support.s3_servers import KEY, SECRET
from tests.support.slow_s3 import SlowS3, run_slow_s3
from trinitylake_core import Lakehouse
from trinitylake_core.iceberg import TrinityLakeCatalog
from trinitylake_core.tables import METADATA_LOCATION

Row = dict[str, Any]
Lakes = Mapping[str, Lakehouse]
_DELAY: Final = 0.03
_YOUNG_MILLIS: Final = 60_000
"""Versions that are younger never expire."""
_MINUTES: Final = 60.0
_ROUNDS: Final = 3
_PRICES: Final = {"put": 5.0, "list": 5.0, "get": 0.4, "head": 0.4, "delete": 0.0, "post": 0.0}
"""US dollars for a million requests, as docs/costs.md has them. A ``post`` deletes many files."""
_POLICIES: Final[Row] = {
    "snapshots": {"daily": {"keep": 14}},
    "retention": {"keep_last": 10, "older_than": "1m"},
    "orphans": {"older_than": "3d"},
}
_ICEBERG: Final[Row] = {"tables": {"older_than": "3d"}}
_PROCEDURES: Final = {
    "expire_snapshots": "table => '{}'",
    "remove_orphan_files": "table => '{}', prefix_mismatch_mode => 'IGNORE'",
    "rewrite_manifests": "table => '{}'",
}


# -- a night -----------------------------------------------------------------------------------------------


def make_lakehouse(root: str, options: Mapping[str, Any], tables: int, *, plain: bool = False) -> Lakehouse:
    """Return a new lakehouse of so many tables, of Iceberg unless they are plain."""
    lake = Lakehouse.create(root, storage_options=options, txn_ttl_millis=_YOUNG_MILLIS)
    if not plain:
        fill_tables(TrinityLakeCatalog.over(lake), tables, 1)
        return lake.refresh()
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    with lake.transaction() as txn:
        txn.create_namespace("many")
        for number in range(tables):
            txn.create_table("many", f"t{number:04}", schema=schema)
    return lake.refresh()


def change(lake: Lakehouse, number: int, count: int, tables: int) -> None:
    """Commit a version in which so many tables are others."""
    if METADATA_LOCATION in lake.table("many", "t0000").format_properties:
        change_tables(TrinityLakeCatalog.over(lake), number, count, tables)
        return
    with lake.refresh().transaction() as txn:
        for each in range(number * count, (number + 1) * count):
            txn.alter_table("many", f"t{each % tables:04}", properties={"changed": str(number)})


@contextmanager
def deploy_fleet(lakes: Lakes, backups: Mapping[str, str], policies: Row) -> Iterator[tuple[Deployment, Webhook]]:
    """Yield a deployment at work that knows each lakehouse, and what its webhook hears."""
    stanzas = []
    for name, lake in lakes.items():
        stanzas.append({"name": name, "root": lake.root, "backup": {"target": backups[name]}, **policies})
    with run_postgres() as server, webhook() as told:
        secrets = {"NIGHT_KEY": KEY, "NIGHT_SECRET": SECRET, "NIGHT_HOOK": told.url}
        hook = {"webhook": {"env": "NIGHT_HOOK"}}
        text = yaml.safe_dump({"layout": "partitions", "notifications": hook, "lakehouses": stanzas})
        with deployed(text, server, secrets) as deployment:
            deployment.start_all()
            count = "SELECT count(*) FROM dynamic_partitions"
            eventually(lambda: query(server, count)[0][0] == len(stanzas), lambda: "the sensor added no partitions")
            yield deployment, told


def launch_maintenance(deployment: Deployment, name: str, chosen: Sequence[str]) -> None:
    """Launch the maintenance of a lakehouse, of chosen assets, as its schedule does."""
    selector = {"repositoryLocationName": deployment.location, "repositoryName": "__repository__"}
    assets = [{"path": [FLEET, each]} for each in chosen]
    params = {
        "selector": {**selector, "jobName": f"{FLEET}_maintenance", "assetSelection": assets},
        "mode": "default",
        "runConfigData": {},
        "executionMetadata": {"tags": [{"key": PARTITION_TAG, "value": name}]},
    }
    answer = deployment.graphql(_LAUNCH, params=params)["launchRun"]
    if answer["__typename"] != "LaunchRunSuccess":
        raise SystemExit(f"no run of {name} was launched: {answer}")


_LAUNCH: Final = "mutation($params: ExecutionParams!) { launchRun(executionParams: $params) { __typename } }"


def play_night(deployment: Deployment, names: Sequence[str], chosen: Sequence[str]) -> Row:
    """Let every lakehouse be maintained, and return what that took, for each of them."""
    server = deployment.server
    assert server is not None
    processor = Processor(deployment, server)
    sampler = Load(2.0, processor.take)
    before, begun = processor.seconds(), time.time()
    sampler.start()
    for name in names:
        launch_maintenance(deployment, name, chosen)
    minutes = drain(server, _MINUTES)
    ended, after = time.time(), processor.seconds()
    sampler.stop()
    if minutes is None:
        raise SystemExit("the runs took too long")
    spent = {role: (seconds - before.get(role, 0.0)) / len(names) for role, seconds in after.items()}
    own = spent.pop("runs") + spent.pop("java", 0.0)
    return {
        "lakehouses": len(names),
        **count_runs(server, begun),
        "CPU s of a run": round(own, 2),
        "of the deployment": round(sum(spent.values()), 2),
        "s for all": round(ended - begun),
        "JVMs": sum(role == "java" for role, _ in processor.known),
    }


def count_runs(server: PostgresServer, begun: float) -> Row:
    """Return how the runs of maintenance since a time ended, and their median seconds and events."""
    mine = f"pipeline_name = '{FLEET}_maintenance' AND create_timestamp >= to_timestamp({begun}) AT TIME ZONE 'UTC'"
    rows = query(server, f"SELECT status, end_time - start_time FROM runs WHERE {mine}")  # noqa: S608 - our words
    events = f"SELECT count(*) FROM event_logs WHERE run_id IN (SELECT run_id FROM runs WHERE {mine})"  # noqa: S608
    ended = Counter(status for status, _ in rows)
    seconds = [took for _, took in rows if took is not None]
    return dict(ended) | {
        "median s": round(statistics.median(seconds), 1) if seconds else None,
        "events of a run": query(server, events)[0][0] // max(1, len(rows)),
    }


def measure_steps(deployment: Deployment) -> Row:
    """Return the median seconds of each step of the newest runs of maintenance."""
    found: dict[str, list[float]] = {}
    for run in deployment.graphql(_STEPS)["runsOrError"]["results"]:
        for step in run["stepStats"]:
            if step["endTime"] and step["startTime"]:
                found.setdefault(step["stepKey"].rpartition("__")[2], []).append(step["endTime"] - step["startTime"])
    return {name: round(statistics.median(seconds), 2) for name, seconds in found.items()}


_STEPS: Final = """{ runsOrError(filter: {statuses: [SUCCESS]}, limit: 20) { ... on Runs { results {
  jobName stepStats { stepKey startTime endTime } } } } }"""


def play_nights(
    lakes: Lakes, backups: Mapping[str, str], policies: Row, options: argparse.Namespace, s3: SlowS3 | None = None
) -> Row:
    """Return what the second night took."""
    names = [*lakes]
    given = {name: value for name, value in policies.items() if name != "storage_options"}
    like = LakehouseSettings.model_validate(
        {"name": "x", "root": "file:///x", "backup": {"target": "file:///y"}, **given}
    )
    chosen = list_maintained_assets(like)
    with deploy_fleet(lakes, backups, policies) as (deployment, told):
        print({"the first night": play_night(deployment, names, chosen)}, flush=True)
        for lake in lakes.values():
            for number in range(options.commits):
                change(lake, number, options.changed // options.commits, options.tables)
        time.sleep(_YOUNG_MILLIS / 1000)  # what the first night kept may expire
        told.received.clear()
        if s3 is not None:
            s3.set(delay=_DELAY)
        row = play_night(deployment, names, chosen)
        if s3 is not None:
            row |= price(s3.busy(), len(names))
            s3.set(delay=0.0)
        row["messages sent"] = len(told.received)
        for _, message in told.received:
            print({"message": message["text"]}, flush=True)
        print({"the night": row}, flush=True)
        print({"median s of steps": measure_steps(deployment)}, flush=True)
    return row


def price(counted: Mapping[str, float], lakehouses: int) -> Row:
    """Return the requests for each lakehouse, and what they cost by list."""
    requests = {kind: count for kind, count in counted.items() if kind in _PRICES}
    each = {kind: round(count / lakehouses) for kind, count in requests.items() if count >= lakehouses}
    dollars = sum(count * _PRICES[kind] for kind, count in requests.items()) / 1e6
    return {"requests of a run": each, "$ for 1,000 runs": round(dollars / lakehouses * 1000, 2)}


def maintain_on_disk(options: argparse.Namespace, lakehouses: int, engine: str, *, plain: bool = False) -> Row:
    """Return what a night takes on a disk."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        roots = {f"lake{number}": (Path(name) / f"lake{number}").as_uri() for number in range(lakehouses)}
        lakes = {}
        for each, root in roots.items():
            lakes[each] = make_lakehouse(root, {"durable": False}, options.tables, plain=plain)
        backups = {each: f"{root}-backup" for each, root in roots.items()}
        policies = _POLICIES | {"compaction": {"engine": engine}, "spark": {"master": "local[2]"}}
        return play_nights(lakes, backups, policies | ({} if plain else _ICEBERG), options)


def maintain_on_s3(options: argparse.Namespace) -> Row:
    """Return what a night takes on a server whose answers take their time."""
    with tempfile.TemporaryDirectory() as name, run_slow_s3(Path(name)) as server:
        names = [f"lake{number}" for number in range(options.on_s3)]
        lakes = {each: make_lakehouse(server.new_root(), server.options, options.tables) for each in names}
        secrets = {"key": {"env": "NIGHT_KEY"}, "secret": {"env": "NIGHT_SECRET"}}
        reached = {"endpoint_url": server.endpoint, "region": "us-east-1", "hedged_share": 0, **secrets}
        policies = _POLICIES | _ICEBERG | {"compaction": {"engine": "local"}, "storage_options": reached}
        return play_nights(lakes, {each: server.new_root() for each in names}, policies, options, server)


# -- what others do ----------------------------------------------------------------------------------------


def call_procedures(folder: Path, tables: int) -> Row:
    """Return what Iceberg's procedures take for so many tables. In a process of its own."""
    row: Row = {"tables": tables}
    with jobs.open_spark(folder) as catalog:
        catalog.run(f"SELECT count(*) FROM {catalog.name}.many.t0000.files")  # noqa: S608 - Java compiles what it needs
        for procedure, arguments in _PROCEDURES.items():
            began, cpu = time.perf_counter(), cpu_seconds(os.getpid())
            for number in range(tables):
                catalog.run(f"CALL {catalog.name}.system.{procedure}({arguments.format(f'many.t{number:04}')})")
            spent = cpu_seconds(os.getpid()) - cpu
            row[procedure] = f"{spent:.1f} s CPU, {time.perf_counter() - began:.1f} s"
    return row


def call_jobs(folder: Path, tables: int) -> Row:
    """Return what our jobs take for the same tables. In a process of its own."""
    row: Row = {"tables": tables}
    works: dict[str, Callable[[Lakehouse], object]] = {
        "tables expire": tables_expire.run,
        "tables clean": lambda lake: tables_clean.run(lake, tables_clean.Config(engine="local")),
        "tables health": lambda lake: tables_health.run(lake, tables_health.Config(engine="local")),
    }
    for work, act in works.items():
        lake = Lakehouse.open(folder.as_uri())
        began, cpu = time.perf_counter(), cpu_seconds(os.getpid())
        act(lake)
        row[work] = f"{cpu_seconds(os.getpid()) - cpu:.2f} s CPU, {time.perf_counter() - began:.2f} s"
    return row


def beside_procedures(tables: int) -> dict[str, Row]:
    """Return what our jobs take, and then Iceberg's procedures, which write."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "lake"
        make_lakehouse(folder.as_uri(), {"durable": False}, tables)
        return {
            "our jobs": jobs.in_process(call_jobs, folder, tables),
            "Iceberg's procedures": jobs.in_process(call_procedures, folder, tables),
        }


def run_nothing() -> Row:
    """Return what a run takes that does nothing."""
    with run_postgres() as server:
        nights.name_database(server)
        sides = {"an empty run": (nights.fill_instance, partial(nights.prepare_run, is_empty=True))}
        cpu, seconds = zip(*nights.play_rounds(sides, _ROUNDS)["an empty run"], strict=True)
    return {"CPU s of a run": round(statistics.median(cpu), 2), "median s": round(statistics.median(seconds), 2)}


# -- idle hours --------------------------------------------------------------------------------------------


def wait_idle(lakehouses: int, layout: str, seconds: float) -> Row:
    """Return what a deployment takes whose lakehouses nobody uses."""
    with tempfile.TemporaryDirectory() as name, run_postgres() as server:
        stanzas = []
        for each, lake in made(Path(name), lakehouses).items():
            schedules = {"maintenance": "0 3 1 1 *"}
            stanzas.append({"name": each, "root": lake.root, "schedules": schedules, **_POLICIES})
        with deployed(yaml.safe_dump({"layout": layout, "lakehouses": stanzas}), server) as deployment:
            deployment.start_all()
            time.sleep(60.0)
            processor = Processor(deployment, server)
            sampler = Load(10.0, processor.take)
            before, begun = processor.seconds(), time.monotonic()
            sampler.start()
            time.sleep(seconds)
            after, took = processor.seconds(), time.monotonic() - begun
            sampler.stop()
    spent = {role: total - before.get(role, 0.0) for role, total in after.items()}
    memory = {role: round(statistics.median(each)) for role, each in processor.resident.items()}
    return {
        "CPU s": round(sum(spent.values()), 1),
        "% of a core": round(100 * sum(spent.values()) / took, 1),
        "MB": sum(memory.values()),
        "CPU s by role": {role: round(total, 1) for role, total in spent.items() if total >= 0.1},
        "MB by role": memory,
    }


# -- all ---------------------------------------------------------------------------------------------------


def main(arguments: list[str]) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only rows whose names begin with this")
    parser.add_argument("--lakehouses", type=int, default=100)
    parser.add_argument("--on-s3", type=int, default=100)
    parser.add_argument("--on-spark", type=int, default=3)
    parser.add_argument("--tables", type=int, default=2000)
    parser.add_argument("--changed", type=int, default=100)
    parser.add_argument("--commits", type=int, default=20)
    parser.add_argument("--procedures", type=int, default=100)
    parser.add_argument("--idle", type=int, nargs="*", default=[20, 300])
    parser.add_argument("--seconds", type=float, default=300.0)
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is stopped
    works: dict[str, Callable[[], Row]] = {
        "disk": partial(maintain_on_disk, options, options.lakehouses, "local"),
        "plain": partial(maintain_on_disk, options, options.lakehouses, "local", plain=True),
        "S3": partial(maintain_on_s3, options),
        "Spark": partial(maintain_on_disk, options, options.on_spark, "spark"),
        "empty": run_nothing,
    }
    for lakehouses in options.idle:
        for layout in ("assets", "partitions"):
            works[f"idle, {lakehouses}, {layout}"] = partial(wait_idle, lakehouses, layout, options.seconds)
    figures: dict[str, Row] = {}
    for name, measure in works.items():
        if name.startswith(options.only):
            figures[name] = measure()
            print(report.table({name: figures[name]}), flush=True)
    if "procedures".startswith(options.only):
        figures |= beside_procedures(options.procedures)
    print(report.table(figures))
    report.save("fleet_nights", {"options": vars(options), "figures": figures, "commit": report.commit()})
