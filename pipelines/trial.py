"""A first lakehouse in a directory of its own: Iceberg tables with rows, a mistake, its undo, and all of it proved.

Everything is done as a user would do it, by the catalog and the jobs, and each figure is measured in the run. Neither
Spark nor a server is needed; where the endpoint is installed, a table is also read by HTTP.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pyarrow as pa

from pipelines import undo, verify
from trinitylake_core import Lakehouse
from trinitylake_core.errors import AlreadyExists, Corrupt, InvalidInput
from trinitylake_core.extras import install_command

NAME: Final = "first"
"""What the lakehouse is called in ``lakehouses.yaml``, and by clients of the endpoint."""
TABLE: Final = "sales.orders"
ROWS: Final = 10_000
CUSTOMERS: Final = 500
REGIONS: Final = ("africa", "americas", "asia", "europe", "oceania")
_LAKE: Final = "lake"
_LAKEHOUSES: Final = """\
# Commands in this directory, and Dagster, know the lakehouse by its name.
lakehouses:
  - name: first
    root: file://{here}/lake
    schedules: {maintenance: "0 3 * * *", enabled: false}   # stopped: switch it on in Dagster, at *Automation*
    compaction: {engine: auto}   # Spark, and so Java, only on a cluster and for large work
"""


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that was done: what, what came of it, and how long it took."""

    title: str
    outcome: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Report:
    """What a trial made, and did. ``rows_over_rest`` is ``None`` where the endpoint is not installed."""

    root: str
    directory: str
    version: int
    rows: int
    rows_over_rest: int | None
    steps: tuple[Step, ...]


def run(directory: Path) -> Report:
    """Make the lakehouse, the mistake and the undo in a directory that is not there yet, or empty.

    Raises:
        AlreadyExists: there is something in the directory; nothing was changed.
        InvalidInput: PyIceberg is not installed.
        Corrupt: the undo did not bring the rows back.
    """
    if find_spec("pyiceberg") is None:
        raise InvalidInput(f"a trial needs the extra 'iceberg': {install_command('iceberg')}")
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise AlreadyExists(f"{directory} is not empty: name a directory that is not there yet")
    directory.mkdir(parents=True, exist_ok=True)
    trial = _Trial(directory)
    trial.make_tables()
    trial.make_mistake()
    trial.undo_mistake()
    trial.prove_rows()
    over_rest = trial.read_over_rest()
    (directory / "lakehouses.yaml").write_text(_LAKEHOUSES, encoding="utf-8")
    lake = trial.lake.refresh()
    return Report(
        root=lake.root,
        directory=str(directory),
        version=lake.version,
        rows=ROWS,
        rows_over_rest=over_rest,
        steps=tuple(trial.steps),
    )


class _Trial:
    def __init__(self, directory: Path) -> None:
        from trinitylake_core.iceberg import TrinityLakeCatalog  # with PyIceberg, which need not be installed

        self.lake = Lakehouse.create(directory / _LAKE)
        self.catalog = TrinityLakeCatalog(NAME, uri=self.lake.root)
        self.steps: list[Step] = []
        self._began = time.perf_counter()

    def note(self, title: str, outcome: str) -> None:
        now = time.perf_counter()
        seconds = round(now - self._began, 2)
        self.steps.append(Step(title, outcome, seconds))
        self._began = now

    def make_tables(self) -> None:
        self.catalog.create_namespace("sales")
        contents = {TABLE: _make_orders(), "sales.customers": _make_customers()}
        for name, rows in contents.items():
            table = self.catalog.create_table(name, rows.schema)
            table.append(rows)
        version = self.lake.refresh().version
        self.note("two Iceberg tables", f"{ROWS:,} orders and {CUSTOMERS:,} customers, version {version}")

    def make_mistake(self) -> None:
        with self.lake.refresh().transaction(reason="clean up") as txn:
            txn.drop_namespace("sales", cascade=True)
        version = self.lake.refresh().version
        self.note("a mistake", f"version {version} drops the namespace sales with both tables")

    def undo_mistake(self) -> None:
        config = undo.Config(last=True, reason="that was no clean-up", engine="local")
        done = undo.run(self.lake.refresh(), config)
        plan = done.rollback.plan
        self.note(
            "its undo",
            f"version {done.rollback.version_after} has the content of version {plan.target_version} again: "
            f"{plan.counts['added']} objects are back",
        )

    def prove_rows(self) -> None:
        found = self.catalog.load_table(TABLE).scan().to_arrow()
        expected = list(range(ROWS))
        if found.num_rows != ROWS or found.column("id").to_pylist() != expected:
            raise Corrupt(f"{TABLE} does not hold the {ROWS:,} rows that were written; please report this as a bug")
        config = verify.Config(versions=verify.ALL, definitions=True, tables=1.0, engine="local")
        checked = verify.run(self.lake.storage, config)
        if not checked.ok:
            raise Corrupt(f"the trial left a broken lakehouse: {checked.findings[0]}; please report this as a bug")
        self.note("the proof", f"all {ROWS:,} orders read by PyIceberg; every invariant of all versions holds")

    def read_over_rest(self) -> int | None:
        """Read the table by HTTP, as every other engine would; ``None`` where the endpoint is not installed."""
        if find_spec("starlette") is None or find_spec("uvicorn") is None:
            return None
        from trinitylake_core.rest import endpoint

        with endpoint(self.lake.refresh(), NAME) as at:
            rows: int = at.catalog().load_table(TABLE).scan().to_arrow().num_rows
        self.note("the endpoint", f"{rows:,} orders read over Iceberg REST")
        return rows


def _make_orders() -> pa.Table:
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    return pa.table(
        {
            "id": pa.array(range(ROWS), pa.int64()),
            "customer": pa.array([number * 7 % CUSTOMERS for number in range(ROWS)], pa.int64()),
            "region": [REGIONS[number % len(REGIONS)] for number in range(ROWS)],
            "price": [round(5 + number % 97 * 1.25, 2) for number in range(ROWS)],
            "ordered_at": pa.array(
                [begin + timedelta(minutes=number) for number in range(ROWS)], pa.timestamp("us", "UTC")
            ),
        }
    )


def _make_customers() -> pa.Table:
    return pa.table(
        {
            "id": pa.array(range(CUSTOMERS), pa.int64()),
            "name": [f"customer {number:03}" for number in range(CUSTOMERS)],
        }
    )


def engine_lines() -> Iterator[str]:
    """Yield what PyIceberg, DuckDB and Spark are told, to read the table from an endpoint of this machine."""
    uri = "http://127.0.0.1:8181"
    query = f"SELECT region, count(*), sum(price) FROM {NAME}.{TABLE} GROUP BY region"  # noqa: S608 - for people
    yield "PyIceberg:"
    yield "  from pyiceberg.catalog import load_catalog"
    yield f'  catalog = load_catalog("{NAME}", type="rest", uri="{uri}", warehouse="{NAME}")'
    yield f'  catalog.load_table("{TABLE}").scan().to_arrow()'
    yield "DuckDB (once: INSTALL iceberg):"
    yield "  LOAD iceberg;"
    yield f"  ATTACH '{NAME}' AS {NAME} (TYPE iceberg, ENDPOINT '{uri}', AUTHORIZATION_TYPE 'none');"
    yield f"  {query};"
    yield "Spark:"
    yield "  spark-sql --packages org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0 \\"
    yield f"    --conf spark.sql.catalog.{NAME}=org.apache.iceberg.spark.SparkCatalog \\"
    for setting, value in (("type", "rest"), ("uri", uri), ("warehouse", NAME)):
        yield f"    --conf spark.sql.catalog.{NAME}.{setting}={value} \\"
    yield f'    -e "{query}"'
