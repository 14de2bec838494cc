"""A lakehouse that the Java SDK wrote, upgraded, filled with changes and then maintained by Dagster and Spark.

    make demo

Everything is made anew below ``.demo/`` each time. ``make ui`` shows the run afterwards.
"""

from __future__ import annotations

import os
import shutil
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import dagster as dg
import pyarrow as pa

from dagster_project.config import load
from dagster_project.config.settings import LakehouseSettings
from dagster_project.factory import merged
from pipelines import stats, upgrade
from pipelines.cli.report import human_bytes, table
from pipelines.stats import Deep
from trinitylake_core import Lakehouse

HERE: Final = Path(__file__).absolute().parent
PROJECT: Final = HERE.parent
DEMO: Final = PROJECT / ".demo"
SAMPLE: Final = HERE / "data" / "java-sdk-small.tar.xz"
SHAPE: Final[dict[str, Any]] = {
    "order": 6,
    "namespace_name_max_size_bytes": 40,
    "table_name_max_size_bytes": 40,
    "view_name_max_size_bytes": 40,
    "node_file_max_size_bytes": 24_000,
}
"""Tiny nodes, so that a few hundred objects already make a tree of several levels."""
COMMITS: Final = 100
REGIONS: Final = ("africa", "americas", "asia", "europe", "oceania")


def main() -> int:
    """Run the demo; return its exit code."""
    started = time.monotonic()
    settings = next(each for each in load(PROJECT / "lakehouses.yaml").lakehouses if each.name == "demo")
    shutil.rmtree(DEMO, ignore_errors=True)
    with step("The sample: a lakehouse that the TrinityLake Java SDK wrote"):
        source = unpacked()
        say(f"{source.version + 1} versions, {count(source)} objects, all in one flat node; this library only reads it")
    with step("Upgrade: the same objects, version by version, in the canonical B-epsilon tree"):
        how = upgrade.Config(history=True, definition=SHAPE, engine="local")
        report = upgrade.run(None, source, settings.root, how)
        lake = Lakehouse.open(settings.root)
        say(f"{report.versions} versions, {report.objects} objects; order {SHAPE['order']}: tiny nodes, many levels")
        proved(lake.digest() == source.digest(), f"content digest {lake.digest()}, the same as the source's")
    with step(f"Writers at work: {COMMITS} transactions"):
        changed = commit_changes(lake)
        say(f"{changed} changes committed; the newest wait in the write buffers of the tree's upper levels")
    before, objects, digest = stats.deep(lake.refresh()), count(lake), lake.digest()
    with step("Maintenance: Dagster runs the job demo_maintenance, with Spark (about 20 seconds)"):
        run_id, succeeded = maintained(settings)
        say(f"Dagster run {run_id}: {'succeeded' if succeeded else 'FAILED'}")
    old = before.summary.version
    after = stats.deep(lake.refresh())
    show(before, after, objects, count(lake))
    print("\nProof that the content is the same\n")
    proved(lake.digest() == digest, f"digest of version {old} and of version {lake.version}: {digest}")
    proved(not any(lake.diff(old, lake.version)), f"diff of versions {old} and {lake.version}: no change")
    proved(not any(lake.check()), "check: every invariant of the format holds")
    farewell(settings, time.monotonic() - started)
    return 0 if succeeded else 1


def unpacked() -> Lakehouse:
    """Return the sample, unpacked below ``.demo/``."""
    DEMO.mkdir(parents=True)
    with tarfile.open(SAMPLE) as archive:
        archive.extractall(DEMO, filter="data")
    return Lakehouse.open((DEMO / "java-sdk-small").as_uri())


def commit_changes(lake: Lakehouse) -> int:
    """Commit what a busy day brings: new namespaces and tables, changed and dropped ones. Return the changes."""
    changes = 0
    for number in range(COMMITS):
        region = REGIONS[number % len(REGIONS)]
        with lake.transaction(reason=f"deployment {number}") as txn:
            if number < len(REGIONS):
                txn.create_namespace(region, properties={"owner": f"{region}-team"})
                changes += 1
            for line in range(5):
                name = f"orders_{number:03d}_{line}"
                txn.create_table(region, name, schema=pa.schema([("id", pa.int64()), ("amount", pa.float64())]))
                changes += 1
            if number >= 2 * len(REGIONS):
                txn.alter_table(region, f"orders_{number - len(REGIONS):03d}_0", properties={"revised": "true"})
                txn.drop_table(region, f"orders_{number - len(REGIONS):03d}_4")
                changes += 2
    return changes


def maintained(settings: LakehouseSettings) -> tuple[str, bool]:
    """Run the maintenance job in this process, in the Dagster instance that ``make ui`` shows."""
    os.environ.setdefault("DAGSTER_HOME", str(PROJECT / ".dagster"))
    Path(os.environ["DAGSTER_HOME"]).mkdir(parents=True, exist_ok=True)
    job = merged((settings,)).resolve_job_def(f"{settings.slug}_maintenance")
    quiet = {"loggers": {"console": {"config": {"log_level": "ERROR"}}}}
    with dg.DagsterInstance.get() as instance:
        result = job.execute_in_process(instance=instance, run_config=quiet, raise_on_error=False)
    return result.run_id, result.success


def count(lake: Lakehouse) -> int:
    """Return how many objects a version has."""
    return sum(1 for _ in lake.objects())


def show(before: Deep, after: Deep, objects_before: int, objects_after: int) -> None:
    """Print what maintenance changed, side by side."""
    rows = [
        ("version", before.summary.version, after.summary.version),
        ("objects", objects_before, objects_after),
        ("buffered messages", before.messages, after.messages),
        ("  of them in the root", before.summary.root_messages, after.summary.root_messages),
        ("height of the tree", before.summary.height, after.summary.height),
        ("nodes", before.nodes, after.nodes),
        ("node files read per lookup", before.reads_per_lookup, after.reads_per_lookup),
        ("bytes of all nodes", human_bytes(before.bytes), human_bytes(after.bytes)),
        ("bytes of the root", human_bytes(before.summary.root_bytes), human_bytes(after.summary.root_bytes)),
    ]
    print("\nBefore and after\n")
    for line in table(("", "before", "after"), [(what, str(old), str(new)) for what, old, new in rows]):
        print(f"    {line}")
    print("\n    A key that waits in a buffer is found on the way down, so a lookup may read less before than after.")
    print("    After a compaction scans have nothing to merge, and the next commits find their buffers empty.")
    print("\nLevel by level (nodes, keys, buffered messages)\n")
    for line in table(("", "before", "after"), levels(before, after)):
        print(f"    {line}")


def levels(before: Deep, after: Deep) -> Iterator[Sequence[str]]:
    """Yield one line for each level, from the root down."""
    top = max(before.levels[0].height, after.levels[0].height)
    for height in range(top, -1, -1):
        name = "leaves" if height == 0 else f"height {height}"
        yield (name, *(described(health, height) for health in (before, after)))


def described(health: Deep, height: int) -> str:
    """Return one level in words."""
    found = [level for level in health.levels if level.height == height]
    return f"{found[0].nodes} nodes, {found[0].keys} keys, {found[0].messages} messages" if found else "-"


def farewell(settings: LakehouseSettings, seconds: float) -> None:
    """Print where everything is, and what to try next."""
    root = settings.root.rstrip("/")
    print(f"""
Where things are

    the lakehouse     {root}
    the sample        {(DEMO / "java-sdk-small").as_uri()}
    Dagster's runs    {os.environ["DAGSTER_HOME"]}

What to try next

    make ui                                          the Dagster UI: open http://127.0.0.1:3000, the run is there
    .venv/bin/trinitylake history {root}
    .venv/bin/trinitylake stats {root}

Done in {seconds:.0f} seconds.""")


@contextmanager
def step(title: str) -> Iterator[None]:
    """Print a headline, and how long the step took."""
    print(f"\n{title}", flush=True)
    started = time.monotonic()
    yield
    say(f"({time.monotonic() - started:.1f} s)")


def say(text: str) -> None:
    """Print one line of a step."""
    print(f"    {text}", flush=True)


def proved(holds: object, what: str) -> None:
    """Print what was proved, or stop the demo."""
    if not holds:
        sys.exit(f"    FAILED: {what}")
    say(f"proved: {what}")


if __name__ == "__main__":
    sys.exit(main())
