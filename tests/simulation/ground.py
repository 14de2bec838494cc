"""The lakehouse that every schedule begins with: several levels, waiting messages, history, a snapshot, orphans.

It is made once; a run gets a copy of the dictionary of its objects, which are immutable.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from pipelines import compaction, expire
from tests.simulation import store as stores
from tests.simulation.fileio import SIM_FILE_IO
from tests.simulation.schedule import DURATIONS, MINUTE
from tests.simulation.scheduler import Outside
from tests.simulation.store import ROOT, SimStorage, Store
from tests.support.icebergs import SCHEMA, rows
from trinitylake_core import Lakehouse
from trinitylake_core.iceberg import TrinityLakeCatalog
from trinitylake_core.locations import node_path
from trinitylake_core.tables import path_below
from trinitylake_core.transactions.transaction import Transaction

BEGINNING: Final = 1_700_000_000_000
SAVED: Final = "5a5e0000-0000-4000-8000-000000000001"
"""ID of the saved transaction, which adds 1 to ``a.t2``."""
SOURCE: Final = "sim://source/"
SNAPSHOT: Final = "kept"
LOADED: Final = ("l0", "l1")
"""The tables of namespace ``b`` that a load brings."""
SIZES: Final[Mapping[str, Any]] = {
    "order": 3,
    "node_file_max_size_bytes": 4500,
    **{f"{kind}_name_max_size_bytes": 4 for kind in ("namespace", "table", "view")},
}
ROWS: Final = "a.rows"
"""The Iceberg table with rows, where a scenario needs one."""
ALSO: Final = "a.also"
"""Another Iceberg table, which names the same file of rows."""
TARGET: Final = 4
"""The version that recoveries and snapshots take over; newer ones soon need the first definition of ``t31`` no more."""
COUNTER: Final = "n"
"""The property of every table that writers count up, so that a lost or doubled commit shows."""


@dataclass(frozen=True)
class Ground:
    """The objects of the lakehouse, as of each version and at last; and what a load reads."""

    store: Store
    at: Mapping[int, Store]
    newest: int
    source: Store


def count_up(txn: Transaction, *tables: str) -> dict[str, int]:
    """Add 1 to the counter of some tables of namespace ``a``; return what it said before, by name."""
    before = {}
    for name in tables:
        before[name] = int(txn.table("a", name).properties[COUNTER])
        txn.alter_table("a", name, properties={COUNTER: str(before[name] + 1)})
    return before


def create_tables(txn: Transaction, *names: str) -> None:
    """Create tables in namespace ``a`` whose counters begin at 0."""
    for name in names:
        txn.create_table("a", name, properties={COUNTER: "0"})


@cache
def ground() -> Ground:
    """Return the lakehouse; made at the first call. REQUIRES: ``own_time`` is entered."""
    store = Store(now_millis=BEGINNING)
    at: dict[int, Store] = {}
    stores.mount(ROOT, store)
    with Outside(store, "ground").acting():
        lake = Lakehouse.create(SimStorage(), **SIZES)
        at[0] = store.copy()
        for number in range(4):
            with lake.transaction() as txn:
                if not number:
                    txn.create_namespace("a")
                    txn.create_namespace("b")
                create_tables(txn, *(f"t{number}{each}" if number else f"t{each}" for each in range(3)))
            lake.refresh()
            at[lake.version] = store.copy()
        with lake.transaction() as txn:
            count_up(txn, "t31")
        at[lake.refresh().version] = store.copy()
        compaction.run(lake, compaction.Config(engine="local"))
        at[lake.refresh().version] = store.copy()
        lake.create_snapshot(SNAPSHOT, version=2)
        at[lake.refresh().version] = store.copy()
        store.now_millis += DURATIONS["month"]
        lake.storage.write_many([(node_path(), b"left over by somebody"), (node_path(), b"by somebody else")])
        with lake.transaction() as txn:
            count_up(txn, "t0", "t1", "t30")
        with Transaction(lake.backend, lake.refresh().root_node, transaction_id=SAVED) as txn:
            count_up(txn, "t2")
            txn.save()
        at[lake.version] = store.copy()
        store.now_millis += 60 * MINUTE
    return Ground(store, at, lake.version, _source())


@cache
def with_rows() -> tuple[Store, int, frozenset[str]]:
    """Return the lakehouse with an Iceberg table that holds rows, its newest version, and the files of the table."""
    store = ground().store.copy()
    stores.mount(ROOT, store)
    with Outside(store, "iceberg").acting():
        catalog = TrinityLakeCatalog.over(Lakehouse.open(SimStorage()), **{"py-io-impl": SIM_FILE_IO})
        table = catalog.create_table(ROWS, SCHEMA, properties={"commit.retry.num-retries": "0"})
        table.append(rows(1, 2))
        also = catalog.create_table(ALSO, SCHEMA, properties={"commit.retry.num-retries": "0"})
        also.add_files(table.inspect.files()["file_path"].to_pylist())
        version = catalog.lakehouse.version
    below = tuple(str(path_below(ROOT, each.location())) for each in (table, also))
    return store, version, frozenset(path for path in store.objects if path.startswith(below))


@cache
def foreign(version: int) -> bytes:
    """Return the root of a version of another lakehouse, which has expired more, and has no snapshot."""
    store = Store(now_millis=BEGINNING)
    stores.mount(ROOT, store)
    with Outside(store, "elsewhere").acting():
        lake = Lakehouse.create(SimStorage(), **SIZES)
        for number in range(version - 1):
            with lake.transaction() as txn:
                txn.create_namespace(f"f{number}")
            lake.refresh()
        store.now_millis += DURATIONS["month"]
        expire.run(lake, expire.Config(engine="local", keep_last=2))
        assert version == lake.refresh().version
    return bytes(lake.root_node.data)


def _source() -> Store:
    store = Store(now_millis=BEGINNING)
    properties = {COUNTER: "0"}
    lines = [{"create_table": {"namespace": "b", "name": name, "properties": properties}} for name in LOADED]
    store.put("put", "objects.jsonl", "\n".join(map(json.dumps, lines)).encode())
    return store
