"""A day in a catalog of 20,000 tables: upgraded, changed, maintained by Dagster with Spark, broken, and mended.

    make demo

Every run starts afresh below ``.demo/``, and every figure is measured in it. Afterwards ``make ui`` shows the run.
"""

from __future__ import annotations

import io
import json
import os
import shlex
import shutil
import statistics
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import dagster as dg
import duckdb
import pyarrow as pa

from dagster_project.assets import COMPACTION, key
from dagster_project.config import load
from dagster_project.config.settings import LakehouseSettings
from dagster_project.factory import define_lakehouses
from dagster_project.metadata.pictures import DEBT, INK, KEYS
from dagster_project.resources import SparkResource
from examples.iceberg import extension, opened
from pipelines import cli, upgrade
from pipelines import load as loading
from pipelines.cli.report import table
from pipelines.reports.summary import human_bytes
from trinitylake_core import Lakehouse
from trinitylake_core.definitions import usual_order

HERE: Final = Path(__file__).absolute().parent
PROJECT: Final = HERE.parent
DEMO: Final = PROJECT / ".demo"
SAMPLE: Final = HERE / "data" / "java-sdk-small.tar.xz"
NAMESPACES: Final = (
    "billing", "catalog", "clicks", "crm", "finance", "fraud", "hr", "inventory", "iot", "legal",
    "logistics", "marketing", "orders", "payments", "pricing", "risk", "search", "shipping", "support", "users",
)  # fmt: skip
SALES: Final = "sales"
ORDERS: Final = "sales.orders"
REGIONS: Final = ("africa", "americas", "asia", "europe", "oceania")
MEASUREMENTS: Final = 25
"""How often a time is taken; the median counts."""
NODE_BYTES: Final = 4 << 20
"""The root of a transaction has room for so much of it; by default a mebibyte, about 3,000 changes. The rest goes down
in the same commit, which then takes as long as a compaction."""
BAR: Final = 44


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large the demo is: tables in the catalog, changes that wait, and rows of the Iceberg table."""

    tables: int = 20_000
    changes: int = 10_000
    rows: int = 100_000


@dataclass(frozen=True, slots=True)
class Measured:
    """What writers and readers of the catalog pay.

    Attributes:
        version: the newest version.
        waiting: changes that wait in write buffers.
        root_bytes: what every commit writes again, and every reader fetches first.
        open_seconds: to open the lakehouse.
        lookup_seconds: to open it and to read the definition of one table: nothing is cached.
        commit_bytes: what a commit of one small change writes.
    """

    version: int
    waiting: int
    root_bytes: int
    open_seconds: float
    lookup_seconds: float
    commit_bytes: int


def main() -> int:
    """Run the demo of ``make demo``; return its exit code."""
    os.environ.setdefault("DAGSTER_HOME", str(PROJECT / ".dagster"))
    Path(os.environ["DAGSTER_HOME"]).mkdir(parents=True, exist_ok=True)
    settings = next(each for each in load(PROJECT / "lakehouses.yaml").lakehouses if each.name == "demo")
    with dg.DagsterInstance.get() as instance:
        return run(DEMO, settings, instance)


def run(
    directory: Path,
    settings: LakehouseSettings,
    instance: dg.DagsterInstance,
    sizes: Sizes | None = None,
    spark: SparkResource | None = None,
) -> int:
    """Tell the whole story in a directory, which is made anew; return the exit code.

    ``settings`` name the lakehouse, ``instance`` keeps Dagster's run of its maintenance, which starts its own Spark
    where ``spark`` is ``None``.
    """
    started = time.monotonic()
    sizes = sizes or Sizes()
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    lake = upgrade_sample(directory, settings.root)
    fill_catalog(lake, directory, sizes)
    write_rows(lake, sizes.rows)
    change_tables(lake, sizes)
    before, digest = measure(lake, directory), lake.digest()
    succeeded = maintain(settings, instance, directory, spark)
    after = measure(lake, directory)
    proved(lake.digest() == digest, f"versions {before.version} and {after.version} have one content, digest {digest}")
    better = show(before, after)
    make_mistake(lake)
    undo_mistake(lake)
    query_rows(lake, sizes.rows)
    proved(not any(lake.refresh().check()), "every invariant of the format holds")
    draw_bars(before, after)
    save_picture(before, after, directory / "before-and-after.png")
    say_farewell(lake, directory, time.monotonic() - started)
    return 0 if succeeded and better else 1


# -- the catalog ---------------------------------------------------------------------------------------------


def upgrade_sample(directory: Path, root: str) -> Lakehouse:
    """Unpack a lakehouse that the published Java SDK wrote, and upgrade it, version by version."""
    with step("Upgrade a lakehouse that the TrinityLake Java SDK wrote"):
        with tarfile.open(SAMPLE) as archive:
            archive.extractall(directory, filter="data")
        source = Lakehouse.open(directory / "java-sdk-small")
        order = usual_order(source.definition)
        shape = {"order": order, "node_file_max_size_bytes": NODE_BYTES}
        how = upgrade.Config(history=True, definition=shape, engine="local")
        report = upgrade.run(source, root, how)
        lake = Lakehouse.open(root)
        tree = f"a B-epsilon tree of order {order}, with nodes of up to {human_bytes(NODE_BYTES)}"
        say(f"{report.versions} versions and {report.objects} objects are now {tree}")
        proved(lake.digest() == source.digest(), f"the content is the source's, digest {lake.digest()}")
    return lake


def fill_catalog(lake: Lakehouse, directory: Path, sizes: Sizes) -> None:
    """Load tables into it, from JSON Lines, as one version."""
    with step(f"Load a catalog of {sizes.tables:,} tables"):
        source = directory / "tables.jsonl"
        with source.open("w", encoding="utf-8") as lines:
            for entry in entries(sizes.tables):
                lines.write(json.dumps(entry) + "\n")
        report = loading.run(lake, str(source), loading.Config(engine="local", reason="the catalog moves in"))
        say(f"{report.objects:,} objects in version {report.version_after}")


def entries(tables: int) -> Iterator[dict[str, Any]]:
    """Yield what creates the namespaces, and then the tables."""
    schema = [{"name": "id", "type": "bigint"}, {"name": "amount", "type": "double"}]
    for namespace in NAMESPACES:
        yield {"create_namespace": {"namespace": namespace}}
    for namespace, name in list_tables(tables):
        yield {"create_table": {"namespace": namespace, "name": name, "schema": schema}}


def list_tables(tables: int) -> list[tuple[str, str]]:
    """Return the namespace and the name of each table."""
    return [(NAMESPACES[number % len(NAMESPACES)], f"events_{number:05}") for number in range(tables)]


def write_rows(lake: Lakehouse, rows: int) -> None:
    """Let PyIceberg write a table with rows."""
    with step(f"PyIceberg writes {rows:,} rows into {ORDERS}"):
        catalog = opened(lake.root)
        catalog.create_namespace(SALES)
        orders = pa.table(
            {
                "id": pa.array(range(rows), pa.int64()),
                "region": [REGIONS[number % len(REGIONS)] for number in range(rows)],
                "price": [5 + number % 97 * 1.25 for number in range(rows)],
            }
        )
        catalog.create_table(ORDERS, orders.schema).append(orders)
        say(f"version {lake.refresh().version}")


def change_tables(lake: Lakehouse, sizes: Sizes) -> None:
    """Commit one large transaction, as a migration does: all of its changes wait in the root."""
    with step(f"A migration gives {sizes.changes:,} tables an owner, in one transaction"):
        every = sizes.tables // sizes.changes
        with lake.refresh().transaction(reason="each table has an owner") as txn:
            for namespace, name in list_tables(sizes.tables)[::every]:
                txn.alter_table(namespace, name, properties={"owner": f"team-{namespace}"})
        waiting = lake.refresh().stats().root_messages
        held = f"all {waiting:,} changes wait in the write buffer of the root of version {lake.version}"
        proved(waiting >= sizes.changes, held)


# -- maintenance ---------------------------------------------------------------------------------------------


def measure(lake: Lakehouse, directory: Path) -> Measured:
    """Measure what the newest version costs those who use it. The small commit goes to a copy."""
    stats = lake.refresh().stats()
    tables = iter(
        [(namespace, name) for namespace in NAMESPACES for name in lake.tables(namespace)][:: len(NAMESPACES)]
    )

    def open_anew() -> Lakehouse:
        return Lakehouse.open(lake.root)

    def look_up() -> object:
        return open_anew().table_info(*next(tables))

    copy = directory / "copy"
    link_catalog(Path(lake.root.removeprefix("file://")), copy)
    files = list_files(copy)
    copied = Lakehouse.open(copy)
    with copied.transaction(reason="a small change") as txn:
        txn.create_table(SALES, "one_more", schema=pa.schema([("id", pa.int64())]))
    new = list_files(copy).items() - files.items()
    shutil.rmtree(copy)
    return Measured(
        version=stats.version,
        waiting=stats.messages or 0,
        root_bytes=stats.root_bytes,
        open_seconds=find_median(open_anew),
        lookup_seconds=find_median(look_up),
        commit_bytes=sum(size for _, size in new),
    )


def link_catalog(root: Path, copy: Path) -> None:
    """Copy a lakehouse by links, without the definitions of tables: a commit reads none."""
    for parent, _, names in os.walk(root):
        kept = [name for name in names if "-table-" not in name]
        there = copy / Path(parent).relative_to(root)
        if kept:
            there.mkdir(parents=True, exist_ok=True)
        for name in kept:
            (there / name).hardlink_to(Path(parent) / name)


def list_files(directory: Path) -> dict[tuple[str, int], int]:
    """Return the size of each file below a directory, by its path and its inode: a replaced file is a new one."""
    found: dict[tuple[str, int], int] = {}
    for parent, _, names in os.walk(directory):
        for name in names:
            path = Path(parent) / name
            about = path.stat()
            found[str(path), about.st_ino] = about.st_size
    return found


def find_median(work: Callable[[], object]) -> float:
    """Return the median of the seconds that something takes."""
    taken = []
    for _ in range(MEASUREMENTS):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def maintain(
    settings: LakehouseSettings, instance: dg.DagsterInstance, directory: Path, spark: SparkResource | None
) -> bool:
    """Let Dagster run the maintenance job with Spark; return whether it succeeded."""
    name = f"{settings.slug}_maintenance"
    with step(f"Maintenance: Dagster runs the job {name}, with Spark"):
        job = define_lakehouses((settings,), spark=spark).resolve_job_def(name)
        quiet = {"loggers": {"console": {"config": {"log_level": "ERROR"}}}}
        log = directory / "maintenance.log"
        with stderr_in(log):
            result = job.execute_in_process(instance=instance, run_config=quiet, raise_on_error=False)
        if not result.success:
            say(f"FAILED: see {log}, and run {result.run_id} in Dagster")
            return False
        page = result.asset_materializations_for_node(key(settings, COMPACTION).to_python_identifier())[0].metadata
        say(str(page["outcome"].value))
        say(f"Spark {page['spark_application'].value} on {page['spark_master'].value}, Dagster run {result.run_id}")
    return True


@contextmanager
def stderr_in(path: Path) -> Iterator[None]:
    """Write to a file what this process, and the Java that it starts, write to standard error."""
    sys.stderr.flush()
    kept = os.dup(2)
    with path.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)


def show(before: Measured, after: Measured) -> bool:
    """Print what maintenance changed; return whether what is counted became less.

    Times are shown and not judged: other programs on the machine can make any of them longer.
    """
    rows = [
        ("version", before.version, after.version),
        ("buffered changes", f"{before.waiting:,}", f"{after.waiting:,}"),
        ("size of the root", human_bytes(before.root_bytes), human_bytes(after.root_bytes)),
        *((what, text(old), text(new)) for what, text, old, new in compare(before, after)),
    ]
    print("\nBefore and after\n")
    for line in table(("", "before", "after"), [(what, str(old), str(new)) for what, old, new in rows]):
        print(f"    {line}")
    if after.open_seconds >= before.open_seconds or after.lookup_seconds >= before.lookup_seconds:
        print("\n    A time became longer, as on a busy machine. Run the demo again when this one is idle.")
    counted = [
        (before.waiting, after.waiting),
        (before.root_bytes, after.root_bytes),
        (before.commit_bytes, after.commit_bytes),
    ]
    return all(new < old for old, new in counted)


def compare(before: Measured, after: Measured) -> list[tuple[str, Callable[[float], str], float, float]]:
    """Return what is pictured: its name, how a value is written, and both values."""
    return [
        ("time to open it", to_millis, before.open_seconds, after.open_seconds),
        ("cold lookup of a table", to_millis, before.lookup_seconds, after.lookup_seconds),
        ("bytes of a small commit", to_size, before.commit_bytes, after.commit_bytes),
    ]


def to_millis(seconds: float) -> str:
    """Return a time in milliseconds, as text."""
    return f"{1000 * seconds:.2f} ms"


def to_size(size: float) -> str:
    """Return a size, as text."""
    return human_bytes(round(size))


# -- a mistake -----------------------------------------------------------------------------------------------


def make_mistake(lake: Lakehouse) -> None:
    """Drop a namespace with all of its tables, as a bad job does."""
    with step("A bad job drops a namespace"):
        with lake.refresh().transaction(reason="nightly clean-up") as txn:
            txn.drop_namespace(SALES, cascade=True)
        gone = not opened(lake.root).table_exists(ORDERS)
        proved(gone, f"version {lake.refresh().version} has no {ORDERS}")


def undo_mistake(lake: Lakehouse) -> None:
    """Undo it by one command."""
    words = ["undo", lake.root.removeprefix("file://").rstrip("/"), "--last", "--reason", "that was no clean-up"]
    with step("One command brings it back"):
        say(f"$ trinitylake {shlex.join(words)}")
        said = io.StringIO()
        with redirect_stdout(said):
            code = cli.main([*words, "--yes"])
        for line in said.getvalue().splitlines():
            say(line)
        proved(code == 0, f"version {lake.refresh().version} has {ORDERS} again")


def query_rows(lake: Lakehouse, rows: int) -> None:
    """Let DuckDB read the rows, by its Iceberg extension and the metadata file alone."""
    with step("DuckDB reads the rows"), duckdb.connect() as connection:
        for name in ("avro", "iceberg"):
            connection.load_extension(str(extension(name)))
        say("SELECT region, count(*), sum(price) FROM sales.orders GROUP BY region")
        found = connection.execute(
            "SELECT region, count(*), sum(price) FROM iceberg_scan(?) GROUP BY region ORDER BY region",
            [opened(lake.root).load_table(ORDERS).metadata_location],
        ).fetchall()
        for region, count, total in found:
            say(f"{region:10} {count:8,} {total:14,.2f}")
        proved(sum(count for _, count, _ in found) == rows, f"all {rows:,} rows are there")


# -- the end -------------------------------------------------------------------------------------------------


def draw_bars(before: Measured, after: Measured) -> None:
    """Draw each figure before and after as bars, on the terminal."""
    print("\nWhat writers and readers pay\n")
    for what, text, old, new in compare(before, after):
        most = max(old, new)
        for when, value in (("before", old), ("after", new)):
            bar = "█" * max(1, round(BAR * value / most))
            print(f"    {what if when == 'before' else '':24} {when:6} {bar} {text(value)}")


def save_picture(before: Measured, after: Measured, path: Path) -> None:
    """Draw the same as a picture, readable on black and on white."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - takes half a second

    compared = compare(before, after)
    figure = Figure(figsize=(8.7, 2.8), layout="constrained")
    title = "What readers and writers of the catalog pay, before and after its maintenance"
    figure.suptitle(title, color=INK, fontsize=10)
    panels: Sequence[Any] = figure.subplots(1, len(compared))
    for panel, (what, text, old, new) in zip(panels, compared, strict=True):
        bars = panel.bar(("before", "after"), (old, new), 0.6, color=(DEBT, KEYS))
        panel.bar_label(bars, [text(old), text(new)], color=INK, fontsize=8, padding=2)
        panel.set_title(what, color=INK, fontsize=9)
        panel.set_ylabel(f"from 0 to {text(max(old, new))}", color=INK, fontsize=8)
        panel.set_ylim(0, 1.18 * max(old, new))
        panel.set_yticks([])
        panel.patch.set_alpha(0)
        panel.tick_params(colors=INK, labelsize=8)
        for side, spine in panel.spines.items():
            spine.set_visible(side == "bottom")
            spine.set_color(INK)
    figure.savefig(path, dpi=110, transparent=True)


def say_farewell(lake: Lakehouse, directory: Path, seconds: float) -> None:
    """Print where things are, and what to try next."""
    root = lake.root.removeprefix("file://").rstrip("/")
    print(f"""
Where things are

    the lakehouse     {root}
    the picture       {directory / "before-and-after.png"}

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
    print(f"    {text}".rstrip(), flush=True)


def proved(holds: object, what: str) -> None:
    """Print what was proved, or stop the demo if it does not hold."""
    if not holds:
        sys.exit(f"    FAILED: {what}")
    say(f"proved: {what}")


if __name__ == "__main__":
    sys.exit(main())
