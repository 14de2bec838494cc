"""Two lakehouses with something to see, for tests that look: trees of several levels, debt, history, a mistake."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from trinitylake_core import Lakehouse

SHAPE: Final[dict[str, Any]] = {
    "order": 6,
    "namespace_name_max_size_bytes": 40,
    "table_name_max_size_bytes": 40,
    "view_name_max_size_bytes": 40,
    "node_file_max_size_bytes": 24_000,
}
SCHEMA: Final = pa.schema([("id", pa.int64()), ("amount", pa.float64())])
REGIONS: Final = ("africa", "americas", "asia", "europe", "oceania")
NAMES: Final = ("sales-eu", "inventory")
SHORT_LIFE_MILLIS: Final = 15_000
"""How long transactions of ``inventory`` may live: versions that are older may expire at once."""

_STANZAS: Final = """
lakehouses:
  - name: sales-eu
    root: file://{here}/sales-eu
    description: Orders of Europe.
    owners: ["team:data-platform"]
    storage_options: {durable: false}
    spark:
      master: local[1]
      conf: {spark.driver.extraJavaOptions: "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}  # half the time of a short run
    schedules: {maintenance: "0 3 * * *"}
    compaction: {messages: 100}
    retention: {keep_last: 100, older_than: 7d}
    orphans: {older_than: 3d}
  - name: inventory
    root: file://{here}/inventory
    description: What is in stock, and where.
    owners: ["team:data-platform"]
    storage_options: {durable: false}
    compaction: {engine: local}
    retention: {keep_last: 10, older_than: 1s}
    orphans: {older_than: 3d}
"""


def write_stanzas(directory: Path) -> Path:
    """Write a ``lakehouses.yaml`` with both lakehouses; return its path."""
    path = directory / "lakehouses.yaml"
    path.write_text(_STANZAS, encoding="utf-8")
    return path


def begin(root: str, **definition: Any) -> Lakehouse:
    """Create a lakehouse of tiny nodes, so that a few hundred objects already make a tree of several levels."""
    lake = Lakehouse.create(root, storage_options={"durable": False}, **SHAPE, **definition)
    with lake.transaction(reason="set up") as txn:
        for region in REGIONS:
            txn.create_namespace(region, properties={"owner": f"{region}-team"})
    return lake


def work(lake: Lakehouse, first: int, last: int) -> None:
    """Commit deployments: each creates five tables, changes one of the last deployment and drops another."""
    for number in range(first, last):
        with lake.transaction(reason=f"deployment {number}") as txn:
            region, before = REGIONS[number % 5], REGIONS[(number - 1) % 5]
            for table in range(5):
                txn.create_table(region, f"orders_{number:03d}_{table}", schema=SCHEMA)
            if number:
                txn.alter_table(before, f"orders_{number - 1:03d}_0", properties={"revised": "true"})
                txn.drop_table(before, f"orders_{number - 1:03d}_4")


def mistake(lake: Lakehouse) -> int:
    """Commit a migration that went wrong, in two steps; return the version before it."""
    good = lake.refresh().version
    with lake.transaction(reason="migration 7, step 1") as txn:
        for number in range(0, 20, 5):
            txn.drop_table("africa", f"orders_{number:03d}_1")
            txn.alter_table("africa", f"orders_{number:03d}_2", properties={"format": "v2"})
    with lake.transaction(reason="migration 7, step 2") as txn:
        txn.create_table("africa", "orders_v2", schema=SCHEMA)
    lake.refresh()
    return good
