"""Lakehouses that PyIceberg writes: a catalog over a new lakehouse, and small tables."""

from __future__ import annotations

import secrets
import time
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyiceberg.catalog import load_catalog
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import write_manifest_list
from pyiceberg.table import Table

from tests.support.lakes import FAST
from trinitylake_core import Lakehouse
from trinitylake_core.iceberg import CatalogTransaction, TrinityLakeCatalog

SCHEMA: Final = pa.schema([("id", pa.int64()), ("name", pa.string())])
IMPL: Final = "trinitylake_core.iceberg.TrinityLakeCatalog"


def new_iceberg(directory: Path, order: int | None = None, **properties: str) -> TrinityLakeCatalog:
    """Create a lakehouse below a directory and return the catalog over it, as users load it."""
    root = (directory / "lake").as_uri()
    if order is None:
        Lakehouse.create(root, storage_options=FAST)
    else:
        Lakehouse.create(root, storage_options=FAST, order=order)
    return opened(root, **properties)


def opened(root: str, **properties: str) -> TrinityLakeCatalog:
    """Return the catalog over the lakehouse at a root."""
    named = {"py-catalog-impl": IMPL, "uri": root, **properties}
    if root.startswith("file:"):
        named["storage.durable"] = "false"
    catalog = load_catalog("lake", **named)
    assert isinstance(catalog, TrinityLakeCatalog)
    return catalog


def rows(*numbers: int) -> pa.Table:
    """Return rows with these IDs."""
    return pa.table({"id": numbers, "name": [f"n{number}" for number in numbers]}, SCHEMA)


def ids(table: Table) -> list[int]:
    """Return the IDs in a table, sorted."""
    found: list[int] = table.scan().to_arrow()["id"].to_pylist()
    return sorted(found)


def with_table(
    catalog: TrinityLakeCatalog | CatalogTransaction, name: str = "sales.orders", *numbers: int, **more: Any
) -> Table:
    """Create a table, and its namespace if there is none, with some rows."""
    catalog.create_namespace_if_not_exists(name.rpartition(".")[0])
    table = catalog.create_table(name, SCHEMA, **more)
    if numbers:
        table.append(rows(*numbers))
    return table


def request_key(ahead_seconds: float = 0) -> str:
    """Return a UUIDv7 of now, or of another time, as clients send it in `Idempotency-Key`."""
    text = f"{int((time.time() + ahead_seconds) * 1000):012x}7{secrets.token_hex(10)}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-8{text[17:20]}-{text[20:32]}"


def write_empty_list(uri: str) -> None:
    """Write a manifest list of a snapshot without files, below the root of a lakehouse on a disk."""
    with write_manifest_list(2, PyArrowFileIO().new_output(uri), 1, None, 1, "null"):
        pass
