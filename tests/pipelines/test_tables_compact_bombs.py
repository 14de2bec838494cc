"""Data files that unpack to more than a machine has: they cost their table, and neither memory nor the other tables."""

from __future__ import annotations

import io
import itertools
import resource
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import fastavro
import pyarrow as pa
import pytest
from pyarrow import orc, parquet
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.typedef import Record
from pyiceberg.types import ListType, LongType, NestedField, StringType

from pipelines import stats, tables_compact, tables_health, verify
from pipelines.engine import open_engine
from pipelines.job import NEVER_CANCELLED
from pipelines.tables.changing import NamedTable
from pipelines.tables.compact import model
from pipelines.tables.compact.decision import GroupRules
from pipelines.tables.compact.local import LocalRewriter
from pipelines.tables.compact.plan import plan_table
from pipelines.tables_compact import Config, Settings
from tests.support.icebergs import ids, new_iceberg, opened, rows, with_table
from tests.support.respelled import local, rewrite_avro
from trinitylake_core.iceberg import TrinityLakeCatalog, border
from trinitylake_core.iceberg.reading import parquet_pages
from trinitylake_core.iceberg.rewriting import data_files
from trinitylake_core.table_places import Located

EAGER: Final = GroupRules(min_files=2)
TEXT: Final = 512 << 10
LIMIT: Final = 1 << 30
LISTS: Final = ListType(2, ListType(3, StringType(), element_required=False), element_required=False)


def packed(*fields: tuple[str, pa.DataType, int], **columns: pa.Array) -> bytes:
    """Return a Parquet file of columns with field IDs, packed well."""
    typed = [pa.field(name, kind, metadata={"PARQUET:field_id": str(number)}) for name, kind, number in fields]
    table = pa.table(list(columns.values()), schema=pa.schema(typed))
    stream = io.BytesIO()
    parquet.write_table(table, stream, compression="zstd", store_schema=False, dictionary_pagesize_limit=1 << 30)
    return stream.getvalue()


def repeated(count: int) -> pa.DictionaryArray:
    """Return one long text, so many times."""
    return pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), pa.array(["x" * TEXT]))


def numbers(count: int) -> pa.Array:
    return pa.array([0] * count, pa.int64())


def dictionary() -> tuple[bytes, int]:
    rows = 2_400  # 1.2 GiB of text
    kind = repeated(1).type
    return packed(("id", pa.int64(), 1), ("name", kind, 2), id=numbers(rows), name=repeated(rows)), rows


def wrong_footer() -> tuple[bytes, int]:
    data, count = dictionary()
    return data[:-8] + (1 << 30).to_bytes(4, "little") + data[-4:], count


def cut_pages() -> tuple[bytes, int]:
    data, count = dictionary()
    return data[:4] + bytes(200) + data[204:], count


def many_columns() -> tuple[bytes, int]:
    schema = pa.schema([pa.field(f"c{number}", pa.int64()) for number in range(20_000)])
    stream = io.BytesIO()
    parquet.write_table(pa.table([numbers(1)] * 20_000, schema=schema), stream, store_schema=False)
    return stream.getvalue(), 1


def columns_of_nothing() -> tuple[bytes, int]:
    """A footer that describes 2,400,000 columns by three bytes each: Arrow makes 228 bytes of each byte."""
    schema = bytes.fromhex("1502 192c 4801721502 00 1502 2502 180161 00 1600")
    group = bytes.fromhex("19fc 80ea30") + bytes.fromhex("260800") * 800_000 + bytes.fromhex("1600 1600 00")
    footer = schema + bytes.fromhex("193c") + group * 3 + bytes.fromhex("00")
    return b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1", 1


def nested() -> tuple[bytes, int]:
    """One row: a list of 2,400 lists, each of one long text."""
    texts = repeated(2_400)
    inner = pa.list_(pa.field("element", texts.type, metadata={"PARQUET:field_id": "3"}))
    outer = pa.list_(pa.field("element", inner, metadata={"PARQUET:field_id": "2"}))
    each = pa.ListArray.from_arrays(pa.array(range(2_401), pa.int32()), texts).cast(inner)
    return packed(
        ("lists", outer, 1), lists=pa.ListArray.from_arrays(pa.array([0, 2_400], pa.int32()), each).cast(outer)
    ), 1


def orc_texts() -> tuple[bytes, int]:
    stream = io.BytesIO()
    batch = pa.table({"id": numbers(100), "name": repeated(100).cast(pa.string())})
    with orc.ORCWriter(stream, compression="zstd") as writer:
        for _ in range(24):
            writer.write(batch)
    return stream.getvalue(), 2_400


def avro_texts() -> tuple[bytes, int]:
    """One block of 2,400 rows, packed by Zstandard."""
    fields = [("id", "long", 1), ("name", "string", 2)]
    columns = [{"name": name, "type": kind, "field-id": number} for name, kind, number in fields]
    schema = {"type": "record", "name": "r", "fields": columns}
    header = io.BytesIO()
    fastavro.writer(header, schema, [], sync_marker=bytes(16))
    row = b"\0" + number_of(TEXT) + b"x" * TEXT
    block = pa.BufferOutputStream()
    with pa.CompressedOutputStream(block, "zstd") as stream:
        for _ in range(2_400):
            stream.write(row)
    data = bytes(block.getvalue())
    packed = header.getvalue().replace(b"\x08null", b"\x12zstandard")
    return packed + number_of(2_400) + number_of(len(data)) + data + bytes(16), 2_400


def puffin_vector() -> tuple[bytes, int]:
    """A deletion vector of one Roaring bitmap whose run says that all rows are deleted; a footer of 1.2 GiB, packed."""
    footer = pa.BufferOutputStream()
    with pa.CompressedOutputStream(footer, "lz4") as stream:
        for _ in range(2_400):
            stream.write(b" " * TEXT)
    data = bytes(footer.getvalue())
    return b"PFA1PFA1" + data + len(data).to_bytes(4, "little") + b"\1\0\0\0PFA1", 1


OTHER_FORMATS: Final = {orc_texts: "ORC", avro_texts: "AVRO", puffin_vector: "PUFFIN"}
"""Bombs, and what the manifest says that they are; in a second table it says Parquet of each."""
BOMBS: Final = {
    columns_of_nothing: {model.UNSUPPORTED},
    dictionary: {model.DONE},
    wrong_footer: {model.UNREADABLE, model.TOO_LARGE},
    cut_pages: {model.UNREADABLE},
    many_columns: {model.UNSUPPORTED, model.TOO_LARGE},
}


def add_file(catalog: TrinityLakeCatalog, name: str, data: bytes, count: int, kind: str = "PARQUET") -> None:
    """Commit a data file to a table, as a writer may that makes its files by hand; one of Puffin are deletes."""
    table = catalog.load_table(name)
    uri = f"{table.location()}/data/bomb.parquet"
    Path(uri.removeprefix("file://")).write_bytes(data)
    figures = {"record_count": count, "column_sizes": {}, "value_counts": {}, "null_value_counts": {}}
    with table.transaction() as change, change.update_snapshot().fast_append() as append:
        append.append_data_file(border.new_data_file(uri, len(data), 0, Record(), figures))
    if kind != "PARQUET":
        rename_format(catalog.load_table(name), uri, kind)


def rename_format(table: Table, uri: str, kind: str) -> None:
    """Make the manifest of a data file say that it is of another format; one of Puffin are deletes."""
    snapshot = table.current_snapshot()
    assert snapshot is not None
    content = int(kind == "PUFFIN")
    newest = local(snapshot.manifests(table.io)[0].manifest_path)

    def change(row: Any) -> None:
        assert row["data_file"]["file_path"] == uri
        row["data_file"] |= {"file_format": kind, "content": content}

    def resize(row: Any) -> None:
        if row["manifest_path"] == newest.as_uri():
            row |= {"manifest_length": newest.stat().st_size, "content": content}

    rewrite_avro(newest, change)
    rewrite_avro(local(snapshot.manifest_list), resize)


def test_bombs_cost_their_own_tables_and_little_memory(tmp_path: Path) -> None:
    catalog = new_iceberg(tmp_path)
    with_table(catalog, "sales.other", 1).append(rows(2))
    for bomb in BOMBS:
        name = f"sales.{bomb.__name__}"
        with_table(catalog, name, 1).append(rows(2))
        add_file(catalog, name, *bomb())
    for bomb, kind in OTHER_FORMATS.items():
        data, count = bomb()
        for said in (kind, "PARQUET"):
            name = f"sales.{bomb.__name__}_{said}"
            with_table(catalog, name, 1).append(rows(2))
            add_file(catalog, name, data, count, said)
    lists = catalog.create_table("sales.nested", Schema(NestedField(1, "lists", LISTS, required=False)))
    lists.append(pa.table({"lists": pa.array([[["one"]]], pa.list_(pa.list_(pa.string())))}))
    add_file(catalog, "sales.nested", *nested())
    script = f"from {__name__} import compact_in_bounds; compact_in_bounds({catalog.lakehouse.root!r})"
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=300)
    assert not done.returncode, done.stderr
    outcomes = dict(each.split("=") for each in done.stdout.strip().split(";"))
    assert model.DONE == outcomes.pop("sales.other")
    assert model.TOO_LARGE == outcomes.pop("sales.nested")
    for bomb, right in BOMBS.items():
        assert outcomes[f"sales.{bomb.__name__}"] in right
    for bomb, kind in OTHER_FORMATS.items():
        planned = outcomes.get(f"sales.{bomb.__name__}_{kind}", model.UNSUPPORTED)  # deletes are Spark's by the plan
        assert model.UNSUPPORTED == planned
        assert model.UNREADABLE == outcomes[f"sales.{bomb.__name__}_PARQUET"]
    assert [1, 2] == ids(opened(catalog.lakehouse.root).load_table("sales.other"))


def compact_in_bounds(root: str) -> None:
    """Compact with 1 GiB of memory above what the process has before; print the outcomes."""
    catalog = opened(root)
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + LIMIT, held + LIMIT))
    report = tables_compact.run(catalog.lakehouse, Config(rules=EAGER, settings=Settings(at_once=1)))
    tables_health.run(catalog.lakehouse, tables_health.Config(engine="local"))
    verify.run(catalog.lakehouse, verify.Config(tables=1.0, deep=True, engine="local"))
    stats.deep(catalog.lakehouse, open_engine("local", None), storage=True)
    print(";".join(f"{each.table}={each.outcome}" for each in report.outcomes))


def test_a_table_that_has_begun_has_a_time_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = new_iceberg(tmp_path)
    with_table(catalog, "sales.orders", 1).append(rows(2))
    lake = catalog.lakehouse.refresh()
    engine = LocalRewriter(lake, Settings(seconds=3600), NEVER_CANCELLED)
    table = NamedTable("sales", "orders", lake.table("sales", "orders"))
    planned = plan_table(Located(lake.storage), table, Config(rules=EAGER), 0)
    read = data_files.DataFileReader.content

    def read_for_hours(reader: data_files.DataFileReader, file: Any) -> bytes:
        engine.time._ends = 0.0
        return read(reader, file)

    monkeypatch.setattr(data_files.DataFileReader, "content", read_for_hours)
    assert [model.TIMEOUT] == [each.outcome for each in engine.rewrite([planned])]
    assert [1, 2] == ids(catalog.load_table("sales.orders"))


def test_tables_that_take_all_the_time_there_is_leave_some_to_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer makes two of them, for there are two threads; each gets half of what is left when it begins."""
    catalog = new_iceberg(tmp_path)
    for name in ("sales.bomb1", "sales.bomb2", "sales.other"):
        with_table(catalog, name, 1).append(rows(2))
    clock = itertools.count()
    monkeypatch.setattr(model, "monotonic", lambda: float(next(clock)))
    read = data_files.DataFileReader.rows

    def read_for_hours(reader: data_files.DataFileReader, file: Any, opened: Any) -> Iterator[pa.RecordBatch]:
        for batch in read(reader, file, opened):
            while "bomb" in file.uri:
                yield batch.slice(0, 0)
            yield batch

    monkeypatch.setattr(data_files.DataFileReader, "rows", read_for_hours)
    settings = Settings(seconds=1_000, at_once=1)
    report = tables_compact.run(catalog.lakehouse.refresh(), Config(engine="local", rules=EAGER, settings=settings))
    found = {each.table: each.outcome for each in report.outcomes}
    assert {"sales.bomb1": model.TIMEOUT, "sales.bomb2": model.TIMEOUT, "sales.other": model.DONE} == found


def forged(**values: Any) -> bytes:
    return packed(("a", next(iter(values.values())).type, 1), **values)


@pytest.mark.parametrize(
    ("data", "most"),
    [
        (forged(a=repeated(200)), 128),
        (forged(a=pa.array(["x"] * 100_000)), 1 << 16),
        (forged(a=pa.array([f"{number:09}" for number in range(200_000)])), 1 << 16),
        (forged(a=numbers(1_000_000)), 1 << 16),
    ],
)
def test_batches_are_as_large_as_what_they_unpack_to(data: bytes, most: int) -> None:
    found = parquet_pages.measure(data, parquet.read_metadata(io.BytesIO(data)))
    assert most / 2 <= found.batch_rows <= most
    assert found.largest_group >= parquet.read_table(io.BytesIO(data)).nbytes


@pytest.mark.parametrize("sizes", [[0], [3, 9], [255, 1], [9, 256], [5, 0, 7], [4, 70_000, 2]])
@pytest.mark.parametrize("letter", [b"a", b"\0", b"\1"])
def test_the_longest_text_of_a_dictionary_is_found_whatever_its_bytes(sizes: list[int], letter: bytes) -> None:
    texts = [letter * size for size in sizes]
    data = b"".join(len(text).to_bytes(4, "little") + text for text in texts)
    steps = parquet_pages._Steps(10_000)
    assert max(sizes) == parquet_pages._longest_entry(data, len(data), "UNCOMPRESSED", steps)


def test_a_large_dictionary_of_nothing_but_zeros_takes_little_more_memory_than_itself() -> None:
    data = bytes(8 << 20)
    steps = parquet_pages._Steps(len(data) // 100)
    tracemalloc.start()
    try:
        with pytest.raises(parquet_pages.TooLarge, match="too many entries"):
            parquet_pages._longest_entry(data, len(data), "UNCOMPRESSED", steps)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < len(data)


@pytest.mark.parametrize("values", [repeated(8).cast(pa.string()), numbers(1_000_000)])
def test_a_row_that_unpacks_to_more_than_a_batch_may_is_too_large(
    values: pa.Array, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_pages, "MOST_BYTES", 2 << 20)
    data = forged(a=pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values))
    with pytest.raises(parquet_pages.TooLarge, match="unpack"):
        parquet_pages.measure(data, parquet.read_metadata(io.BytesIO(data)))


def test_files_without_rows_are_merged_with_the_others(tmp_path: Path) -> None:
    catalog = new_iceberg(tmp_path)
    table = with_table(catalog, "sales.orders", 1)
    table.append(rows(2))
    empty = packed(("id", pa.int64(), 1), ("name", pa.string(), 2), id=numbers(0), name=pa.array([], pa.string()))
    add_file(catalog, "sales.orders", empty, 0)
    report = tables_compact.run(catalog.lakehouse, Config(rules=EAGER))
    assert {} == report.failures
    assert [3] == [each.files for each in report.outcomes]
    assert [1, 2] == ids(catalog.load_table("sales.orders"))


def test_values_that_share_what_they_begin_with_are_sparks(tmp_path: Path) -> None:
    catalog = new_iceberg(tmp_path)
    with_table(catalog, "sales.orders", 1).append(rows(2))
    schema = catalog.load_table("sales.orders").scan().to_arrow().schema
    ids_of = {"id": "1", "name": "2"}
    typed = pa.schema(
        [pa.field(each.name, each.type, metadata={"PARQUET:field_id": ids_of[each.name]}) for each in schema]
    )
    stream = io.BytesIO()
    table = pa.table({"id": [3], "name": ["n3"]}).cast(typed)
    parquet.write_table(table, stream, use_dictionary=False, column_encoding={"name": "DELTA_BYTE_ARRAY"})
    add_file(catalog, "sales.orders", stream.getvalue(), 1)
    report = tables_compact.run(catalog.lakehouse, Config(rules=EAGER))
    assert [model.UNSUPPORTED] == [each.outcome for each in report.outcomes]
    assert "share what they begin with, which needs engine 'spark'" in report.failures["sales.orders"]


def number_of(length: int) -> bytes:
    """Return a length as a footer has it."""
    value, made = length << 1, b""
    while value > 127:
        made += bytes([value & 127 | 128])
        value >>= 7
    return made + bytes([value])


@pytest.mark.parametrize("values", [[None], []])
def test_a_row_of_one_huge_value_is_too_large_whatever_little_is_stored(values: list[None]) -> None:
    short, long = number_of(1 << 27), number_of(1500 << 20)
    data = forged(a=pa.array(values, pa.binary(1 << 27)))
    assert len(short) == len(long)
    assert 1 == data.count(short)
    data = data.replace(short, long)
    with pytest.raises(parquet_pages.TooLarge, match="a row"):
        data_files.open_parquet("x", data)


@pytest.mark.parametrize("depth", [1, 30])
def test_lists_in_lists_are_measured_with_all_of_their_offsets(depth: int) -> None:
    count = 20_000
    values: pa.Array = numbers(count)
    for _ in range(depth - 1):
        values = pa.ListArray.from_arrays(pa.array(range(count + 1), pa.int32()), values)
    data = forged(a=pa.ListArray.from_arrays(pa.array([0, count], pa.int32()), values))
    opened, found = data_files.open_parquet("x", data)
    [batch] = opened.iter_batches(found.batch_rows)
    assert batch.nbytes <= found.largest_group <= 4 * batch.nbytes


@pytest.mark.parametrize("groups", [1, 40])
def test_what_is_looked_at_in_a_file_has_a_bound_that_all_row_groups_share(
    groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_pages, "BATCH_BYTES", 1 << 10)
    monkeypatch.setattr(parquet_pages, "_STEPS", 20_000)
    stream = io.BytesIO()
    table = pa.table({"a": [f"{number:0300}" for number in range(1_000)] * groups})
    parquet.write_table(table, stream, row_group_size=1_000)
    if groups == 1:
        data_files.open_parquet("x", stream.getvalue())
        return
    with pytest.raises(parquet_pages.TooLarge, match="too many"):
        data_files.open_parquet("x", stream.getvalue())


def test_columns_are_measured_no_further_than_they_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_pages, "MOST_BYTES", 2 << 20)
    measured: list[Any] = []
    measure_chunk = parquet_pages._measure_chunk
    monkeypatch.setattr(parquet_pages, "_measure_chunk", lambda *given: measured.append(given) or measure_chunk(*given))
    stream = io.BytesIO()
    table = pa.table({f"c{number}": pa.array(range(100_000)) for number in range(20)})
    parquet.write_table(table, stream, use_dictionary=False, compression="none", data_page_size=1 << 20)
    with pytest.raises(parquet_pages.TooLarge, match="unpack"):
        data_files.open_parquet("x", stream.getvalue())
    assert len(measured) < 15


def test_no_byte_of_a_file_crashes_or_hangs_what_measures_it() -> None:
    data = forged(a=pa.array(["x", "yy", None] * 100))
    footer = parquet.read_metadata(io.BytesIO(data))
    for at in range(4, len(data) - 8):
        for flipped in (data[at] ^ 0x80, data[at] ^ 1, 0, 255):
            changed = data[:at] + bytes([flipped]) + data[at + 1 :]
            try:
                parquet_pages.measure(changed, footer)
            except parquet_pages.Malformed:
                continue


def written(rows: int, columns: int, groups: int = 1, **asked: str) -> int:
    """Return how long a new file is of columns with bloom filters, by some properties of each."""
    names = [f"c{number}" for number in range(columns)]
    properties = {f"write.parquet.bloom-filter-enabled.column.{each}": "true" for each in names}
    properties |= {f"write.parquet.bloom-filter-fpp.column.{each}": asked.get("fpp", "0.01") for each in names}
    properties |= {
        "write.parquet.bloom-filter-max-bytes": asked.get("most", "1048576"),
        "write.parquet.row-group-size-bytes": "1",
    }
    fields = [NestedField(number, each, LongType(), required=False) for number, each in enumerate(names, 1)]
    metadata = new_table_metadata(
        Schema(*fields), UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, "file:///nowhere/t", properties
    )
    arrow = [pa.field(each, pa.int64(), metadata={"PARQUET:field_id": f"{at}"}) for at, each in enumerate(names, 1)]
    batch = pa.RecordBatch.from_arrays([pa.array(range(rows), pa.int64())] * columns, schema=pa.schema(arrow))
    like: Any = SimpleNamespace(replaced_by=lambda *_: None)
    found = data_files.RowWriter(metadata).write([batch] * groups, like, lambda _: None)
    assert found is not None
    return len(found[1])


def test_a_bloom_filter_is_no_larger_than_the_properties_allow_and_no_property_makes_it_huge() -> None:
    assert written(1, 1, fpp="1e-300") < 4096
    least = written(50_000, 1, most="32")
    assert 4000 < written(50_000, 1, most="4096", fpp="0.000001") - least < 4200
    assert 65_000 < written(50_000, 1) - least < 66_000


def test_bloom_filters_of_all_columns_and_row_groups_have_one_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_files, "_BLOOM_MOST", 1 << 20)
    assert written(50_000, 4) > 0
    for columns, groups in ((20, 1), (2, 10)):
        with pytest.raises(data_files.NeedsSpark, match="bloom filters of more than"):
            written(50_000, columns, groups)
