"""Whatever writers have in their rows: a merge changes none of them, nor what manifests say of them."""

from __future__ import annotations

import math
import os
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import duckdb
import pytest
from pyarrow import dataset, parquet
from pyiceberg.conversions import from_bytes
from pyiceberg.table import Table
from pyiceberg.types import DoubleType, FloatType, PrimitiveType, StructType

from pipelines import tables_compact
from pipelines.job import NEVER_CANCELLED
from pipelines.session import SessionConfig, get_session
from pipelines.session.iceberg import TESTED
from pipelines.tables.compact import model
from pipelines.tables.compact.decision import GroupRules
from pipelines.tables.compact.statements import SparkCatalog
from pipelines.tables_compact import Config, Settings
from tests.support.any_rows import any_rows, any_schema, as_exact
from tests.support.engines import connected
from tests.support.icebergs import new_iceberg
from tests.support.writers import pool
from trinitylake_core.iceberg import TrinityLakeCatalog
from trinitylake_core.rest import endpoint

HASHED: Final = Config(rules=GroupRules(min_files=2), settings=Settings(prove=model.HASH))
FILES: Final = 2


@pytest.mark.parametrize(
    ("seed", "tables"), [(1, 12), *(pytest.param(seed, 100, marks=pytest.mark.slow) for seed in range(2, 22))]
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


WRITERS: Final = ("pyiceberg", "duckdb", "spark", "spark 3")
"""The last one writes tables of format version 3."""


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(101, 121))
def test_any_rows_that_spark_writes_or_merges_stay(tmp_path: Path, seed: int) -> None:
    with pool(1) as process:
        print(seed, process.submit(write_and_merge, tmp_path, seed, int(os.environ.get("SCHEMAS", "40"))).result(590))


def write_and_merge(directory: Path, seed: int, tables: int) -> Counter[tuple[str, str]]:
    """Have tables written by each writer and merged by both engines; return how many by whom.

    Their rows, and the IDs of those of format version 3, are read before and after by readers that are neither's.
    """
    chance = random.Random(seed)
    catalog = new_iceberg(directory)
    spark = get_session(SessionConfig(master="local[2]", iceberg=TESTED))
    engines = {"local": "here", "spark": "there"}
    for each in engines.values():
        catalog.create_namespace(each)
    done = Counter[tuple[str, str]]()
    names: dict[str, str] = {}
    with endpoint(catalog.lakehouse) as at, connected(at) as connection:
        by_spark = SparkCatalog(spark, at.properties(), NEVER_CANCELLED, lambda: False)
        for number in range(tables):
            writer = WRITERS[number % len(WRITERS)]
            engine = "spark" if writer == WRITERS[-1] else chance.choice([*engines])
            name = f"{engines[engine]}.t{number}"
            if writer.startswith("spark"):
                version = 3 if writer == WRITERS[-1] else 2
                write_by_spark(chance, directory / "rows.parquet", by_spark, name, version)
            else:
                by_duckdb = connection if writer == "duckdb" else None
                write(chance, catalog, by_duckdb, name, on_spark=engine == "spark")
            names[name] = writer
            done[writer, engine] += 1
        catalog.lakehouse.refresh()
        before = {name: (contents(catalog.load_table(name)), ids(connection, catalog, name)) for name in names}
        for engine, namespace in engines.items():
            report = tables_compact.run(
                catalog.lakehouse, replace(HASHED, engine=engine, pattern=f"{namespace}.*"), spark
            )
            merged = {each.table for each in report.outcomes if (each.engine, each.outcome) == (engine, model.DONE)}
            assert ({}, {each for each in names if each.startswith(namespace)}) == (report.failures, merged)
        for name, writer in names.items():
            table = catalog.load_table(name)
            assert before[name] == (contents(table), ids(connection, catalog, name)), (name, writer)
            assert 1 == len(list(table.scan().plan_files())), name
            if name.startswith(engines["local"]):
                refuse_wrong_figures(table)
    return done


def write_by_spark(chance: random.Random, path: Path, catalog: SparkCatalog, name: str, version: int) -> None:
    """Write a table of a few files by Spark, which reads its rows from a file of Arrow's."""
    schema = any_schema(chance, on_spark=True)
    table = f"{catalog.name}.{name}"
    for number in range(FILES):
        parquet.write_table(any_rows(chance, schema, chance.randint(1, 12), 100 * number), path)
        made = f"CREATE TABLE {table} TBLPROPERTIES ('format-version' = '{version}') AS"
        catalog.run(f"{f'INSERT INTO {table}' if number else made} SELECT * FROM parquet.`{path}`")


def ids(connection: Any, catalog: TrinityLakeCatalog, name: str) -> dict[int, tuple[int, int]]:
    """Return the ID of each row of format version 3, and when it was changed last, by manifests as DuckDB reads them.

    A manifest gives its files without a first ID theirs, one after the other; a file may name the IDs of its rows.
    """
    table = catalog.load_table(name)
    found: dict[int, tuple[int, int]] = {}
    snapshot = table.current_snapshot()
    if table.metadata.format_version < 3 or snapshot is None:
        return found
    listed = "SELECT manifest_path, sequence_number, first_row_id FROM read_avro($1)"
    for manifest, sequence, first_of_manifest in connection.execute(
        listed, [as_path(snapshot.manifest_list)]
    ).fetchall():
        following = first_of_manifest
        entries = "SELECT status, sequence_number, data_file FROM read_avro($1)"
        for status, own_sequence, file in connection.execute(entries, [as_path(manifest)]).fetchall():
            first = file["first_row_id"]
            if first is None:
                first = following
                following += file["record_count"]
            if status == 2:
                continue
            rows = parquet.read_table(as_path(file["file_path"])).to_pylist()
            for number, row in enumerate(rows):
                own = row.get("_row_id")
                changed = row.get("_last_updated_sequence_number")
                own_id = first + number if own is None else own
                found[row["id"]] = (own_id, (own_sequence or sequence) if changed is None else changed)
    return found


def write(
    chance: random.Random, catalog: TrinityLakeCatalog, connection: Any, name: str, *, on_spark: bool = False
) -> None:
    """Write a table of a few files: by PyIceberg, or by DuckDB."""
    schema = any_schema(chance, by_duckdb=connection is not None, on_spark=on_spark)
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


LINEAGE: Final = ("_row_id", "_last_updated_sequence_number")
_COLUMNS: Final = f"COLUMNS(name -> name NOT IN {LINEAGE})"


def as_path(uri: str) -> str:
    """Return the path of a file, whose URI has one slash or three."""
    return uri.removeprefix("file:").removeprefix("//")


def contents(table: Table) -> tuple[Counter[Any], Counter[Any]]:
    """Return the rows of a table by two readers: DuckDB, and Arrow's scanner, which no rewrite uses."""
    files = [as_path(each.file.file_path) for each in table.scan().plan_files()]
    rows = duckdb.execute(f"SELECT {_COLUMNS} FROM read_parquet($1)", [files]).fetchall()
    scanned = dataset.dataset(files).to_table()
    scanned = scanned.drop_columns([each for each in scanned.column_names if each in LINEAGE])
    by_arrow = scanned.to_pylist(maps_as_pydicts=None)
    return Counter(map(as_exact, rows)), Counter(as_exact(tuple(row.values())) for row in by_arrow)


def refuse_wrong_figures(table: Table) -> None:
    """Compare what the manifest has of the new file with its rows, as DuckDB reads them."""
    [task] = table.scan().plan_files()
    file = task.file
    rows = duckdb.execute("SELECT * FROM read_parquet($1)", [as_path(file.file_path)]).fetchall()
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
