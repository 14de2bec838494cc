"""Upgrades a lakehouse that the Java SDK wrote, fills it with changes, and lets Dagster and Spark maintain it.

    make demo

Every run starts afresh below ``.demo/``. Afterwards ``make ui`` shows the Dagster run.
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
from dagster_project.factory import define_lakehouses
from pipelines import stats, upgrade
from pipelines.cli.report import table
from pipelines.stats import Deep
from pipelines.summary import human_bytes
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
"""Tiny nodes, so that a few hundred objects already form a tree of several levels."""
COMMITS: Final = 100
MEASURED: Final = (
    ("size of the root", "91 KB", "3 KB"),
    ("time to open the lakehouse", "1.35 ms", "0.22 ms"),
    ("time of a cold lookup", "1.42 ms", "0.40 ms"),
    ("time of a small commit", "3.98 ms", "0.88 ms"),
    ("bytes that a small commit writes", "90 KB", "5 KB"),
)
"""What a compaction changed in a lakehouse of 200,000 objects with 44,000 messages waiting."""
GAIN: Final = """\
    Every commit rewrites the root, and every reader fetches it first. A compaction empties the root's buffer, so
    opening, lookups and commits become cheap again. In a tree as tiny as this one a lookup may read more nodes after
    a compaction, because before it ended at the first buffer that held its key. At scale, measured with 44,000
    messages waiting in a lakehouse of 200,000 objects:
"""
REGIONS: Final = ("africa", "americas", "asia", "europe", "oceania")


def main() -> int:
    """Run the demo; return its exit code."""
    started = time.monotonic()
    settings = next(each for each in load(PROJECT / "lakehouses.yaml").lakehouses if each.name == "demo")
    shutil.rmtree(DEMO, ignore_errors=True)
    with step("The sample: a lakehouse that the TrinityLake Java SDK wrote"):
        source = unpacked()
        say(f"{source.version + 1} versions, {count(source)} objects, all in one flat node; read-only for this library")
    with step("Upgrade: the same objects, version by version, in the canonical B-epsilon tree"):
        how = upgrade.Config(history=True, definition=SHAPE, engine="local")
        report = upgrade.run(source, settings.root, how)
        lake = Lakehouse.open(settings.root)
        say(f"{report.versions} versions, {report.objects} objects; order {SHAPE['order']}: tiny nodes, many levels")
        proved(lake.digest() == source.digest(), f"content digest {lake.digest()}, equal to that of the source")
    with step(f"Writers at work: {COMMITS} transactions"):
        changed = commit_changes(lake)
        say(f"{changed} changes committed; the newest wait in the write buffers of the upper levels")
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
    """Commit the changes of a busy day: create, alter and drop namespaces and tables. Return the number of changes."""
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
    job = define_lakehouses((settings,)).resolve_job_def(f"{settings.slug}_maintenance")
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
        ("size of the root", human_bytes(before.summary.root_bytes), human_bytes(after.summary.root_bytes)),
        ("height of the tree", before.summary.height, after.summary.height),
        ("nodes", before.nodes, after.nodes),
        ("size of all nodes", human_bytes(before.bytes), human_bytes(after.bytes)),
        ("node files read per lookup", before.reads_per_lookup, after.reads_per_lookup),
    ]
    print("\nBefore and after\n")
    for line in table(("", "before", "after"), [(what, str(old), str(new)) for what, old, new in rows]):
        print(f"    {line}")
    print("\nWhat a compaction gives\n")
    print(GAIN)
    for line in table(("", "before", "after"), MEASURED):
        print(f"    {line}")
    print("\nLevel by level (nodes, keys, buffered messages)\n")
    for line in table(("", "before", "after"), levels(before, after)):
        print(f"    {line}")


def levels(before: Deep, after: Deep) -> Iterator[Sequence[str]]:
    """Yield one line per level, from the root down."""
    top = max(before.levels[0].height, after.levels[0].height)
    for height in range(top, -1, -1):
        name = "leaves" if height == 0 else f"height {height}"
        yield (name, *(described(health, height) for health in (before, after)))


def described(health: Deep, height: int) -> str:
    """Return the description of one level."""
    found = [level for level in health.levels if level.height == height]
    return f"{found[0].nodes} nodes, {found[0].keys} keys, {found[0].messages} messages" if found else "-"


def farewell(settings: LakehouseSettings, seconds: float) -> None:
    """Print where things are, and what to try next."""
    root = settings.root.rstrip("/")
    print(f"""
Where things are

    the lakehouse     {root}
    the sample        {(DEMO / "java-sdk-small").as_uri()}
    Dagster's runs    {os.environ["DAGSTER_HOME"]}

What to try next

    make ui                                          the Dagster UI with this run, at http://127.0.0.1:3000
    .venv/bin/trinitylake history {root}
    .venv/bin/trinitylake stats {root}

Done in {seconds:.0f} seconds.""")


@contextmanager
def step(title: str) -> Iterator[None]:
    """Print a headline, and afterwards the duration of the step."""
    print(f"\n{title}", flush=True)
    started = time.monotonic()
    yield
    say(f"({time.monotonic() - started:.1f} s)")


def say(text: str) -> None:
    """Print one line of a step."""
    print(f"    {text}", flush=True)


def proved(holds: object, what: str) -> None:
    """Print what was proved, or stop the demo if it does not hold."""
    if not holds:
        sys.exit(f"    FAILED: {what}")
    say(f"proved: {what}")


if __name__ == "__main__":
    sys.exit(main())
