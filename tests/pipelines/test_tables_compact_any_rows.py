"""Whatever writers have in their rows: a merge in this process changes none of them, nor what manifests say of them."""

from __future__ import annotations

import math
import random
from collections import Counter
from pathlib import Path
from typing import Any, Final

import duckdb
import pytest
from pyarrow import dataset
from pyiceberg.conversions import from_bytes
from pyiceberg.table import Table
from pyiceberg.types import DoubleType, FloatType, PrimitiveType, StructType

from pipelines import tables_compact
from pipelines.tables.compact import model
from pipelines.tables.compact.decision import GroupRules
from pipelines.tables_compact import Config, Settings
from tests.support.any_rows import any_rows, any_schema, as_exact
from tests.support.engines import connected
from tests.support.icebergs import new_iceberg
from trinitylake_core.iceberg import TrinityLakeCatalog
from trinitylake_core.rest import endpoint

HASHED: Final = Config(rules=GroupRules(min_files=2), settings=Settings(prove=model.HASH))
FILES: Final = 2


@pytest.mark.parametrize(
    ("seed", "tables"), [(1, 25), *(pytest.param(seed, 100, marks=pytest.mark.slow) for seed in range(2, 22))]
)
def test_any_rows_of_any_schema_stay(tmp_path: Path, seed: int, tables: int) -> None:
    chance = random.Random(seed)
    catalog = new_iceberg(tmp_path)
    catalog.create_namespace("any")
    names = [f"any.t{number}" for number in range(tables)]
    with endpoint(catalog.lakehouse) as at, connected(at) as connection:
        for number, name in enumerate(names):
            write(chance, catalog, connection if number % 2 else None, name)
    catalog.lakehouse.refresh()
    before = {name: contents(catalog.load_table(name)) for name in names}
    report = tables_compact.run(catalog.lakehouse, HASHED)
    assert ({}, {"local"}) == (report.failures, {each.engine for each in report.outcomes})
    assert set(names) == {each.table for each in report.outcomes}
    for name in names:
        table = catalog.load_table(name)
        assert before[name] == contents(table), name
        refuse_wrong_figures(table)


def write(chance: random.Random, catalog: TrinityLakeCatalog, connection: Any, name: str) -> None:
    """Write a table of a few files: by PyIceberg, or by DuckDB."""
    schema = any_schema(chance, by_duckdb=connection is not None)
    files = [any_rows(chance, schema, chance.randint(1, 12), 100 * number) for number in range(FILES)]
    if connection is None:
        table = catalog.create_table(name, schema)
        for each in files:
            table.append(each)
        return
    connection.register("first", files[0])
    described = connection.execute("DESCRIBE first").fetchall()
    columns = ", ".join(f'"{each[0]}" {each[1]}' for each in described)
    connection.execute(f"CREATE TABLE l.{name} ({columns})")
    for each in files:
        connection.register("rows", each)
        connection.execute(f"INSERT INTO l.{name} SELECT * FROM rows")


def contents(table: Table) -> tuple[Counter[Any], Counter[Any]]:
    """Return the rows of a table by two readers: DuckDB, and Arrow's scanner, which no rewrite uses."""
    files = [each.file.file_path.removeprefix("file://") for each in table.scan().plan_files()]
    rows = duckdb.execute("SELECT * FROM read_parquet($1)", [files]).fetchall()
    scanned = dataset.dataset(files).to_table()
    by_arrow = scanned.to_pylist(maps_as_pydicts=None)
    return Counter(map(as_exact, rows)), Counter(as_exact(tuple(row.values())) for row in by_arrow)


def refuse_wrong_figures(table: Table) -> None:
    """Compare what the manifest has of the new file with its rows, as DuckDB reads them."""
    [task] = table.scan().plan_files()
    file = task.file
    rows = duckdb.execute("SELECT * FROM read_parquet($1)", [file.file_path.removeprefix("file://")]).fetchall()
    assert file.record_count == len(rows)
    assert file.split_offsets
    assert file.column_sizes
    names = [each.name for each in table.schema().fields]
    fields = [(each, [row[names.index(each.name)] for row in rows]) for each in table.schema().fields]
    while fields:
        field, values = fields.pop()
        if isinstance(field.field_type, StructType):
            for inner in field.field_type.fields:
                fields.append((inner, [None if each is None else each[inner.name] for each in values]))
        if not isinstance(field.field_type, PrimitiveType):
            continue
        number = field.field_id
        assert sum(each is None for each in values) == file.null_value_counts[number], field
        if isinstance(field.field_type, FloatType | DoubleType):
            nans = sum(each is not None and math.isnan(each) for each in values)
            assert nans == (file.nan_value_counts or {})[number], field
            values = [each for each in values if each is None or not math.isnan(each)]
        there = [each for each in values if each is not None]
        for bounds, is_beyond in ((file.lower_bounds, min), (file.upper_bounds, max)):
            if number in bounds and there and not isinstance(there[0], bool):
                bound = from_bytes(field.field_type, bounds[number])
                most = is_beyond(there)
                if type(most) is type(bound):
                    assert is_beyond(most, bound) == bound, (field, most, bound)
