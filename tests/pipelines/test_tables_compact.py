"""Compaction of tables in this process: the rows stay, many tables are one version, and a writer is never overruled."""

from __future__ import annotations

import datetime as dt
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
import pytest
from pyarrow import parquet
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.types import IntegerType, ListType, LongType, MapType, NestedField, StringType, StructType

from pipelines import tables_clean, tables_compact
from pipelines.job import dry_run
from pipelines.tables.compact import model
from pipelines.tables.compact.decision import GroupRules
from pipelines.tables.compact.local import LocalRewriter
from pipelines.tables_compact import Config, Policy, Settings
from tests.support.engines import connected
from tests.support.icebergs import SCHEMA, ids, new_iceberg, rows, with_table
from trinitylake_core.errors import InvalidInput, LakehouseFrozen
from trinitylake_core.iceberg import TrinityLakeCatalog
from trinitylake_core.rest import endpoint

FILES: Final = 8


@pytest.fixture
def catalog(tmp_path: Path) -> TrinityLakeCatalog:
    return new_iceberg(tmp_path)


def small_files(catalog: TrinityLakeCatalog, name: str = "sales.orders", files: int = FILES, **more: Any) -> Table:
    """Return a table with a row in each of many small files."""
    table = with_table(catalog, name, **more)
    for number in range(files):
        table.append(rows(number))
    return table


def contents(table: Table, snapshot_id: int | None = None) -> Counter[tuple[Any, ...]]:
    """Return the rows of a snapshot as a multiset, read by DuckDB from its data files: not by what wrote them."""
    files = [each.file.file_path for each in table.scan(snapshot_id=snapshot_id).plan_files()]
    if not files:
        return Counter()
    found = duckdb.execute("SELECT * FROM read_parquet($1, union_by_name=true)", [files]).fetchall()
    return Counter(found)


def data_files(catalog: TrinityLakeCatalog, name: str = "sales.orders") -> int:
    return len(list(catalog.load_table(name).scan().plan_files()))


def test_small_files_become_one_and_the_rows_of_every_version_stay(catalog: TrinityLakeCatalog) -> None:
    table = small_files(catalog)
    before = {each.snapshot_id: contents(table, each.snapshot_id) for each in table.metadata.snapshots}
    version = catalog.lakehouse.version
    report = tables_compact.run(catalog.lakehouse, Config(reason="too slow"))
    assert ({}, 1, FILES, 1, "local") == (
        report.failures, report.versions, report.files_before, report.files_made, report.engine,
    )  # fmt: skip
    assert (version + 1, version + 1) == (report.version_after, catalog.lakehouse.version)
    assert "too slow: compact sales.orders" == catalog.lakehouse.info().reason
    table = catalog.load_table("sales.orders")
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert "replace" == snapshot.summary.operation.value
    assert str(FILES) == snapshot.summary["total-records"] == snapshot.summary["deleted-data-files"]
    assert "1" == snapshot.summary["total-data-files"]
    assert 1 == data_files(catalog)
    assert (
        before[table.metadata.snapshots[-2].snapshot_id]
        == contents(table)
        == Counter((number, f"n{number}") for number in range(FILES))
    )
    assert before == {number: contents(table, number) for number in before}
    assert list(range(FILES)) == ids(table)
    again = tables_compact.run(catalog.lakehouse)
    assert ((), None, version + 1) == (again.planned, again.version_after, catalog.lakehouse.version)


def test_files_of_another_schema_are_sparks_and_the_other_partitions_are_merged(catalog: TrinityLakeCatalog) -> None:
    """A translation lost NULL lists and maps, and the proof read both sides through it."""
    table = with_table(catalog, "sales.orders")
    table.update_spec().add_identity("name").commit()
    for _ in range(6):
        table.append(rows(1, 2))
    with table.update_schema() as change:
        change.add_column("more", StringType())
    for number in range(6):
        table.append(rows(3).append_column("more", [[f"{number}"]]))
    before = contents(table)
    report = tables_compact.run(catalog.lakehouse, Config(settings=Settings(prove=model.HASH)))
    why = report.failures["sales.orders"]
    assert "not by this engine: 2 of 3 partitions are left" in why
    assert "has another schema than the table has now: column 'more' is not in it" in why
    assert "needs engine 'spark'" in why
    [outcome] = report.outcomes
    assert (1, 6, 1, 1) == (outcome.partitions, report.files_before, report.files_made, report.versions)
    assert report.version_after == catalog.lakehouse.version
    assert (before, 13) == (contents(catalog.load_table("sales.orders")), data_files(catalog))


_PARTS: Final = (NestedField(8, "a", IntegerType(), required=True), NestedField(9, "b", StringType(), required=False))
_NESTED: Final = Schema(
    NestedField(1, "n", IntegerType(), required=True),
    NestedField(2, "l", ListType(5, IntegerType(), element_required=True), required=False),
    NestedField(3, "m", MapType(6, StringType(), 7, IntegerType(), value_required=False), required=False),
    NestedField(4, "s", StructType(*_PARTS), required=False),
)
_EVOLVED: Final[dict[str, tuple[Callable[[UpdateSchema], object], bool]]] = {
    "reordered": (lambda change: change.move_first("s"), True),
    "optional": (lambda change: change.make_column_optional("s.a"), True),
    "renamed": (lambda change: change.rename_column("s.a", "z"), False),
    "reordered_inside": (lambda change: change.move_first("s.b"), False),
    "wider": (lambda change: change.update_column("l.element", LongType()), False),
    "wider_value": (lambda change: change.update_column("m.value", LongType()), False),
    "dropped": (lambda change: change.delete_column("s.b"), False),
    "added": (lambda change: change.add_column(("s", "c"), StringType()), False),
}
"""Changes of a schema, and whether files from before it need no translation."""


def test_files_are_merged_here_only_if_what_is_nested_is_the_same(catalog: TrinityLakeCatalog) -> None:
    catalog.create_namespace("a")
    row = {"n": 1, "l": [2], "m": [("k", None)], "s": {"a": 3, "b": None}}
    for name, (evolve, _) in _EVOLVED.items():
        table = catalog.create_table(f"a.{name}", _NESTED)
        data = pa.Table.from_pylist([row], _NESTED.as_arrow())
        for _ in range(5):
            table.append(data)
        with table.update_schema() as change:
            evolve(change)
    config = Config(rules=GroupRules(min_files=2), settings=Settings(prove=model.HASH))
    report = tables_compact.run(catalog.lakehouse, config)
    done = {each.table.removeprefix("a."): each.outcome == model.DONE for each in report.outcomes}
    assert {name: is_same for name, (_, is_same) in _EVOLVED.items()} == done
    assert all("has another schema than the table has now" in why for why in report.failures.values())
    merged = catalog.load_table("a.reordered").scan().to_arrow().to_pylist()
    assert [row] * 5 == merged


@pytest.mark.parametrize(
    ("properties", "says"),
    [
        ({"write.format.default": "orc"}, "files of another format"),
        ({"write.parquet.compression-codec": "lzo"}, "a codec that Arrow does not write"),
        ({"write.parquet.stats-enabled.column.id": "false"}, "only Iceberg's own writer does"),
        ({"write.parquet.bloom-filter-enabled.column.nothing": "true"}, "no column of a file"),
    ],
)
def test_properties_for_files_that_arrow_cannot_keep_are_sparks(
    catalog: TrinityLakeCatalog, properties: dict[str, str], says: str
) -> None:
    with small_files(catalog, files=6).transaction() as change:
        change.set_properties(properties)
    report = tables_compact.run(catalog.lakehouse)
    assert says in report.failures["sales.orders"]
    assert "needs engine 'spark'" in report.failures["sales.orders"]
    assert 6 == data_files(catalog)


def test_properties_for_files_are_kept(catalog: TrinityLakeCatalog) -> None:
    wanted = {
        "write.parquet.compression-codec": "gzip",
        "write.parquet.row-group-size-bytes": "4000",
        "write.parquet.bloom-filter-enabled.column.id": "true",
    }
    table = with_table(catalog, "sales.orders")
    for number in range(6):
        table.append(rows(*range(number * 100, number * 100 + 100)))
    with table.transaction() as change:
        change.set_properties(wanted)
    assert {} == tables_compact.run(catalog.lakehouse).failures
    [task] = catalog.load_table("sales.orders").scan().plan_files()
    path = task.file.file_path.removeprefix("file://")
    footer = parquet.read_metadata(path)
    column = footer.row_group(0).column(0)
    assert ("GZIP", True, True) == (column.compression, column.has_column_index, column.has_offset_index)
    assert 1 < footer.num_row_groups == len(task.file.split_offsets or ())
    probe = "SELECT DISTINCT bloom_filter_excludes FROM parquet_bloom_probe($1, 'id', 100000)"
    assert [(True,)] == duckdb.execute(probe, [path]).fetchall()


def test_columns_whose_values_hardly_repeat_are_written_without_a_dictionary(catalog: TrinityLakeCatalog) -> None:
    table = with_table(catalog, "sales.orders")
    for first in range(0, 6_000, 1_000):
        numbers = range(first, first + 1_000)
        table.append(pa.table({"id": numbers, "name": [f"name {each % 7}" for each in numbers]}, rows(0).schema))
    assert {} == tables_compact.run(catalog.lakehouse).failures
    [task] = catalog.load_table("sales.orders").scan().plan_files()
    group = parquet.read_metadata(task.file.file_path.removeprefix("file://")).row_group(0)
    assert [False, True] == [group.column(number).has_dictionary_page for number in range(2)]


def test_bounds_of_a_file_are_not_those_of_its_row_groups_that_have_some(catalog: TrinityLakeCatalog) -> None:
    """Arrow leaves out bounds of more than 4 KiB: those of the other row groups would hide rows from readers."""
    table = with_table(catalog, "sales.orders")
    for text in ("b", "z" * 5000, "c"):
        table.append(pa.table({"id": [1], "name": [text]}))
    with table.transaction() as change:
        change.set_properties({"write.parquet.row-group-size-bytes": "1"})
    assert {} == tables_compact.run(catalog.lakehouse, Config(rules=GroupRules(min_files=2))).failures
    table = catalog.load_table("sales.orders")
    assert 1 == data_files(catalog)
    assert 1 == table.scan(row_filter="name > 'y'").to_arrow().num_rows


@pytest.mark.parametrize(
    ("name", "properties"),
    [("\ud7ff" * 20, {}), ("n", {"write.metadata.metrics.column.name": "junk"})],
    ids=["a bound that cannot be cut", "a metrics mode that is none"],
)
def test_figures_that_pyiceberg_cannot_make_are_sparks(
    catalog: TrinityLakeCatalog, name: str, properties: dict[str, str]
) -> None:
    table = with_table(catalog, "sales.orders", properties={"write.metadata.metrics.column.name": "counts"})
    for number in range(2):
        table.append(pa.table({"id": [number], "name": [name]}))
    with table.transaction() as change:
        change.remove_properties("write.metadata.metrics.column.name").set_properties(properties)
    report = tables_compact.run(catalog.lakehouse, Config(rules=GroupRules(min_files=2)))
    assert "needs engine 'spark'" in report.failures["sales.orders"]
    assert [model.UNSUPPORTED] == [each.outcome for each in report.outcomes]
    assert 2 == data_files(catalog)


def test_tags_and_branches_stay_and_are_named(catalog: TrinityLakeCatalog) -> None:
    table = small_files(catalog, files=6)
    current = table.metadata.current_snapshot_id
    assert current is not None
    table.manage_snapshots().create_tag(current, "audit").create_branch(current, "test").commit()
    planned = tables_compact.run(catalog.lakehouse, review=dry_run)
    assert ("audit", "test") == planned.planned[0].refs
    assert planned.takes_bytes == planned.bytes > 0
    assert "keep the old files" in " ".join(planned.summary())
    tables_compact.run(catalog.lakehouse)
    refs = catalog.load_table("sales.orders").metadata.refs
    assert {current} == {refs["audit"].snapshot_id, refs["test"].snapshot_id}
    assert refs["main"].snapshot_id != current


def test_rows_that_take_less_when_they_are_written_become_fewer_files(catalog: TrinityLakeCatalog) -> None:
    """Two of half the size that was asked for would count as small, and be merged again."""
    wide = pa.table({"id": range(40_000), "name": [f"{number:08}" for number in range(40_000)]}, rows(0).schema)
    table = with_table(catalog, "sales.orders", properties={"write.parquet.compression-codec": "uncompressed"})
    for number in range(20):
        table.append(wide.slice(2000 * number, 2000))
    size = sum(each.file.file_size_in_bytes for each in table.scan().plan_files())
    with table.transaction() as change:
        change.set_properties(
            {
                "write.parquet.compression-codec": "zstd",
                "write.parquet.row-group-size-bytes": str(size // 8),
                "write.target-file-size-bytes": str(size * 10 // 19),
            }
        )
    before = contents(table)
    report = tables_compact.run(catalog.lakehouse, Config(settings=Settings(prove=model.HASH)))
    assert ({}, 20, 2, 1) == (report.failures, report.files_before, report.after, report.files_made)
    assert before == contents(catalog.load_table("sales.orders"))


def test_large_files_become_several_and_stay_where_no_engine_can_split_them(catalog: TrinityLakeCatalog) -> None:
    """One of 512 MiB and more is Spark's, and so are all partitions of a table of format version 3."""
    table = with_table(catalog, "sales.orders")
    table.append(rows(*range(10_000)))
    table.append(rows(10_000))
    large = max(each.file.file_size_in_bytes for each in table.scan().plan_files())
    with table.transaction() as change:
        change.set_properties({"write.target-file-size-bytes": str(large // 3)})
    before = contents(table)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("pipelines.tables.compact.local.GROUP_BYTES", large)
        report = tables_compact.run(catalog.lakehouse)
        assert (0, {}) == (len(report.planned), report.failures)
    report = tables_compact.run(catalog.lakehouse, Config(settings=Settings(prove=model.HASH)))
    assert ({}, 2, 4) == (report.failures, report.files_before, report.files_made)
    assert before == contents(catalog.load_table("sales.orders"))
    assert () == tables_compact.run(catalog.lakehouse).planned


def test_new_files_that_do_not_pack_as_the_old_ones_did_are_bounded(catalog: TrinityLakeCatalog) -> None:
    """They are in memory."""
    table = with_table(catalog, "sales.orders")
    names = [f"{'x' * 500}{each}" for each in range(3_000)]
    for number in range(8):
        table.append(pa.table({"id": [number] * 3_000, "name": names}, rows(0).schema))
    size = sum(each.file.file_size_in_bytes for each in table.scan().plan_files())
    with table.transaction() as change:
        change.set_properties({"write.parquet.compression-codec": "uncompressed"})
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("pipelines.tables.compact.local.GROUP_BYTES", size)
        report = tables_compact.run(catalog.lakehouse)
    assert "would become more than" in report.failures["sales.orders"]
    assert 0 == report.files_made


def test_of_large_partitions_one_is_merged_at_a_time(
    catalog: TrinityLakeCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new files of each are in memory."""
    for name in ("sales.one", "sales.two"):
        with_table(catalog, name, 1).append(rows(2))
    turns: list[bool] = []

    class Noted(LocalRewriter):
        def _rewrite_group(self, *given: Any) -> Any:
            turns.append(self._large_turn.locked())
            return super()._rewrite_group(*given)

    monkeypatch.setattr("pipelines.tables.compact.engines.LocalRewriter", Noted)
    monkeypatch.setattr("pipelines.tables.compact.local._LARGE_GROUP", 0)
    assert 2 == tables_compact.run(catalog.lakehouse, Config(rules=GroupRules(min_files=2))).files_made
    assert [True, True] == turns


class _StopsLater:
    """Stops a run when it has asked for some time."""

    def __init__(self) -> None:
        self.asked = 0

    def check(self) -> None:
        """Raise when this was asked five times."""
        self.asked += 1
        if self.asked > 5:
            raise KeyboardInterrupt


@pytest.mark.timeout(30)
def test_a_large_partition_that_waits_for_its_turn_can_be_stopped(
    catalog: TrinityLakeCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Waits(LocalRewriter):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self._large_turn.acquire()

    with_table(catalog, "sales.one", 1).append(rows(2))
    monkeypatch.setattr("pipelines.tables.compact.engines.LocalRewriter", Waits)
    monkeypatch.setattr("pipelines.tables.compact.local._LARGE_GROUP", 0)
    with pytest.raises(KeyboardInterrupt):
        tables_compact.run(catalog.lakehouse, Config(rules=GroupRules(min_files=2)), cancel=_StopsLater())


def test_columns_that_spark_has_no_type_for_are_named_where_only_spark_could_merge(catalog: TrinityLakeCatalog) -> None:
    """No session is started for them, which would fail."""
    catalog.create_namespace("sales")
    opens = pa.struct([pa.field("opens", pa.time64("us"))])
    table = catalog.create_table("sales.shops", pa.schema([pa.field("id", pa.int64()), pa.field("hours", opens)]))
    for number in range(6):
        table.append(pa.table([[number], [{"opens": dt.time(9)}]], names=["id", "hours"]))
    why = "Spark cannot read the table: it has a column of type time"

    def refuse_session() -> Any:
        raise AssertionError("Spark was started")

    sorting = Config(settings=Settings(strategy=model.SORT))
    report = tables_compact.run(catalog.lakehouse, sorting, refuse_session)
    assert {"sales.shops": f"sorting needs engine 'spark'; {why}"} == report.failures
    with table.update_schema() as change:
        change.add_column("more", StringType())
    report = tables_compact.run(catalog.lakehouse, Config(), refuse_session)
    assert report.failures["sales.shops"].endswith(f"which needs engine 'spark'; {why}")
    [outcome] = report.outcomes
    assert model.UNSUPPORTED == outcome.outcome


def test_sorts_and_manifests_are_sparks(catalog: TrinityLakeCatalog) -> None:
    small_files(catalog)
    report = tables_compact.run(catalog.lakehouse, Config(settings=Settings(strategy=model.SORT)))
    assert {"sales.orders": "sorting needs engine 'spark'; there is no Spark session"} == report.failures
    report = tables_compact.run(catalog.lakehouse, Config(manifests=FILES))
    assert "merging manifests needs engine 'spark'" in report.failures["sales.orders"]
    assert (FILES, 1) == (report.files_before, data_files(catalog)), "its files are merged all the same"


# -- writers ---------------------------------------------------------------------------------------------


class WriterBetween(LocalRewriter):
    """An engine beside which a writer commits, between the writing of the files and the commit."""

    act: Callable[[], Any]
    times = 1

    def _commit(self, batch: Any) -> Any:
        if batch and self.times:
            type(self).times -= 1
            type(self).act()
        yield from super()._commit(batch)


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return what has a writer commit between the writing of the new files and the commit."""

    def between(act: Callable[[], Any], times: int = 1) -> None:
        engine = type("Between", (WriterBetween,), {"act": staticmethod(act), "times": times})
        monkeypatch.setattr("pipelines.tables.compact.engines.LocalRewriter", engine)

    return between


def test_deletes_beside_it_win_and_the_table_is_planned_again(
    catalog: TrinityLakeCatalog, beside: Callable[..., None]
) -> None:
    table = small_files(catalog)
    small_files(catalog, "sales.other")
    beside(lambda: table.delete("id = 3"))
    report = tables_compact.run(catalog.lakehouse)
    assert {} == report.failures
    assert {"sales.orders": 1, "sales.other": 0} == {each.table: each.conflicts for each in report.outcomes}
    assert [number for number in range(FILES) if number != 3] == ids(catalog.load_table("sales.orders"))
    assert (1, 1) == (data_files(catalog), data_files(catalog, "sales.other"))


def test_a_table_that_loses_twice_is_named_and_the_others_go_on(
    catalog: TrinityLakeCatalog, beside: Callable[..., None]
) -> None:
    table = small_files(catalog)
    small_files(catalog, "sales.other")
    beside(lambda: table.delete(f"id = {min(ids(catalog.load_table('sales.orders')))}"), times=9)
    report = tables_compact.run(catalog.lakehouse)
    assert ["sales.orders"] == list(report.failures)
    assert "lost to a writer: a writer replaced or deleted files" in report.failures["sales.orders"]
    assert 1 == data_files(catalog, "sales.other")


def test_position_deletes_beside_it_win(catalog: TrinityLakeCatalog, beside: Callable[..., None]) -> None:
    """DuckDB deletes by position: its rows would come back if the rewrite of their file counted."""
    table = small_files(catalog)

    def delete_by_position() -> None:
        with endpoint(catalog.lakehouse) as at, connected(at) as connection:
            connection.execute("DELETE FROM l.sales.orders WHERE id = 0")

    beside(delete_by_position)
    report = tables_compact.run(catalog.lakehouse)
    assert ["sales.orders"] == list(report.failures)
    assert "a writer deleted rows of the files that were rewritten" in report.failures["sales.orders"]
    assert list(range(1, FILES)) == ids(table.refresh())


def test_a_cleaning_of_age_zero_beside_it_removes_none_of_its_files(
    catalog: TrinityLakeCatalog, beside: Callable[..., None]
) -> None:
    """Without the hold the fence made the new files void, and hours of work were refused."""
    table = small_files(catalog)
    orphan = Path(table.location().removeprefix("file://")) / "data" / "orphan.parquet"
    orphan.write_bytes(b"of a writer that died")
    age_zero = tables_clean.Config(older_than_seconds=0, allow_recent=True)
    seen: list[tables_clean.Report] = []

    def clean_later() -> None:
        time.sleep(0.05)  # the clock of a disk has ticks
        seen.append(tables_clean.run(catalog.lakehouse, age_zero))

    beside(clean_later)
    report = tables_compact.run(catalog.lakehouse)
    assert ({}, 0, 0) == (report.failures, report.outcomes[0].conflicts, seen[0].deleted)
    assert "a compaction of tables is under way" in " ".join(seen[0].summary())
    assert list(range(FILES)) == ids(catalog.load_table("sales.orders"))
    assert 1 == tables_clean.run(catalog.lakehouse, age_zero).deleted
    assert not orphan.exists()
    assert list(range(FILES)) == ids(catalog.load_table("sales.orders"))


def test_files_that_a_cleaning_without_the_hold_made_void_are_written_again(
    catalog: TrinityLakeCatalog, beside: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a cleaning of an older release does: the new files are gone, no row is, and the next ones count."""
    table = small_files(catalog)
    (Path(table.location().removeprefix("file://")) / "data" / "orphan.parquet").write_bytes(b"of a writer that died")
    monkeypatch.setattr(tables_clean.TablesCleaning, "hold_back", lambda self, cutoff, saved: cutoff)
    age_zero = tables_clean.Config(older_than_seconds=0, allow_recent=True)

    def clean_later() -> None:
        time.sleep(0.05)  # the clock of a disk has ticks
        assert 2 == tables_clean.run(catalog.lakehouse, age_zero).deleted

    beside(clean_later)
    report = tables_compact.run(catalog.lakehouse)
    assert ({}, 1) == (report.failures, report.outcomes[0].conflicts)
    assert (list(range(FILES)), 1) == (ids(catalog.load_table("sales.orders")), data_files(catalog))


def test_tables_that_are_dropped_or_replaced_meanwhile_are_named(
    catalog: TrinityLakeCatalog, beside: Callable[..., None]
) -> None:
    small_files(catalog)
    small_files(catalog, "sales.other")

    def replace_it() -> None:
        catalog.drop_table("sales.orders")
        catalog.create_table("sales.orders", SCHEMA)

    beside(replace_it)
    report = tables_compact.run(catalog.lakehouse)
    assert "another table has its name" in report.failures["sales.orders"]
    assert (0, 1) == (data_files(catalog), data_files(catalog, "sales.other"))


# -- plans, policies, budgets ----------------------------------------------------------------------------


def test_a_plan_is_carried_out_as_it_is(catalog: TrinityLakeCatalog, tmp_path: Path) -> None:
    table = small_files(catalog)
    small_files(catalog, "sales.other")
    plan = (tmp_path / "plan.parquet").as_uri()
    version = catalog.lakehouse.version
    written = tables_compact.run(catalog.lakehouse, Config(plan_to=plan))
    assert (version, 2, plan) == (catalog.lakehouse.version, len(written.planned), written.plan)
    table.append(rows(100))
    report = tables_compact.run(catalog.lakehouse, Config(plan=plan))
    assert {"sales.orders": "it has changed since the plan was made; make a new plan"} == report.failures
    assert (1, FILES + 1) == (data_files(catalog, "sales.other"), data_files(catalog))
    with pytest.raises(InvalidInput, match="cannot be combined"):
        Config(plan=plan, pattern="sales.*")


def test_a_budget_takes_the_best_first_and_says_what_is_left(catalog: TrinityLakeCatalog) -> None:
    small_files(catalog, "sales.many", 12)
    small_files(catalog, "sales.few", 5)
    size = tables_compact.run(catalog.lakehouse, Config(pattern="sales.many"), review=dry_run).bytes
    report = tables_compact.run(catalog.lakehouse, Config(budget_bytes=size))
    assert (["sales.many"], 1) == ([each.table for each in report.outcomes], report.over_budget)
    assert "left for the next run" in " ".join(report.summary())


def test_conditions_choose_partitions(catalog: TrinityLakeCatalog) -> None:
    table = with_table(catalog, "sales.orders")
    table.update_spec().add_identity("name").commit()
    for _ in range(6):
        table.append(rows(1, 2))
    report = tables_compact.run(catalog.lakehouse, Config(where="name = 'n1'"))
    assert (6, 1, 7) == (report.files_before, report.files_made, data_files(catalog))
    assert () == tables_compact.run(catalog.lakehouse, Config(where="id > 0")).planned
    for wrong in ("name = ", "nothing = 1"):
        found = tables_compact.run(catalog.lakehouse, Config(where=wrong))
        assert "where" in found.failures["sales.orders"]


def test_days_are_compared_with_today(catalog: TrinityLakeCatalog) -> None:
    from datetime import UTC, datetime, timedelta

    from pyiceberg.types import DateType

    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "day", DateType()))
    catalog.create_namespace("logs")
    table = catalog.create_table("logs.days", schema)
    table.update_spec().add_identity("day").commit()
    today = datetime.now(UTC).date()
    days = [today - timedelta(days=number) for number in range(3)]
    for _ in range(5):
        table.append(pa.table({"id": [1, 2, 3], "day": days}))
    assert 10 == tables_compact.run(catalog.lakehouse, Config(where="day < current_date()"), review=dry_run).files
    assert 5 == tables_compact.run(catalog.lakehouse, Config(where="day < current_date() - 1"), review=dry_run).files


def test_policies_and_owners_decide(catalog: TrinityLakeCatalog) -> None:
    small_files(catalog, "logs.one", 6)
    small_files(catalog, "raw.one", 6)
    small_files(catalog, "raw.own", 6, properties={"self-optimizing.enabled": "false"})
    policies = (
        Policy("raw.one", enabled=False),
        Policy("logs.*", rules=GroupRules(settled_seconds=3600)),
        Policy("nothing.*"),
    )
    config = Config(policies=policies)
    report = tables_compact.run(catalog.lakehouse, config)
    assert ((), {"raw.one", "raw.own"}) == (report.planned, set(report.left_alone))
    assert ("nothing.*",) == report.idle
    later = replace(config, now_millis=catalog.load_table("logs.one").metadata.last_updated_ms + 3_600_001)
    assert ["logs.one"] == [each.table for each in tables_compact.run(catalog.lakehouse, later).outcomes]


def test_names_with_dots_are_names(catalog: TrinityLakeCatalog) -> None:
    """The policy that forbids one of them counts, and the other is merged, not a table of a deeper namespace."""
    catalog.create_namespace("raw")
    for name in ("one.day", "two.day"):
        table = catalog.create_table(("raw", name), rows(0).schema)
        for number in range(6):
            table.append(rows(number))
    report = tables_compact.run(catalog.lakehouse, Config(policies=(Policy(r"raw.one\.day", enabled=False),)))
    assert ({"raw.one.day"}, (), {}) == (set(report.left_alone), report.idle, report.failures)
    assert [("raw.two.day", model.DONE)] == [(each.table, each.outcome) for each in report.outcomes]
    merged = catalog.load_table(("raw", "two.day"))
    assert (1, [*range(6)]) == (len(list(merged.scan().plan_files())), ids(merged))


# -- bad input -------------------------------------------------------------------------------------------


def test_a_table_that_cannot_be_read_is_named_and_the_others_are_done(catalog: TrinityLakeCatalog) -> None:
    small_files(catalog)
    broken = small_files(catalog, "sales.broken", 6)
    Path(next(iter(broken.scan().plan_files())).file.file_path.removeprefix("file://")).write_bytes(b"garbage")
    gone = small_files(catalog, "sales.gone", 6)
    Path(next(iter(gone.scan().plan_files())).file.file_path.removeprefix("file://")).unlink()
    zero = small_files(catalog, "sales.same-size", 6)
    file = Path(next(iter(zero.scan().plan_files())).file.file_path.removeprefix("file://"))
    file.write_bytes(b"x" * file.stat().st_size)
    report = tables_compact.run(catalog.lakehouse)
    assert {"sales.broken", "sales.gone", "sales.same-size"} == set(report.failures)
    assert not [text for text in report.failures.values() if "garbage" in text or "xxxx" in text]
    assert 1 == data_files(catalog)


def test_partitions_with_deletes_are_named_and_the_others_are_merged(catalog: TrinityLakeCatalog) -> None:
    """The whole table was left for one partition that needs Spark."""
    table = with_table(catalog, "sales.orders")
    table.update_spec().add_identity("name").commit()
    for _ in range(6):
        table.append(rows(1, 2, 3))
    with endpoint(catalog.lakehouse) as at, connected(at) as connection:
        connection.execute("DELETE FROM l.sales.orders WHERE id = 2")
    before = contents(table.refresh())
    planned = tables_compact.run(catalog.lakehouse, review=dry_run)
    report = tables_compact.run(catalog.lakehouse)
    assert (2, 12, 2) == (report.outcomes[0].partitions, report.files_before, report.files_made)
    assert planned.failures == report.failures
    why = report.failures["sales.orders"]
    assert "1 of 3 partitions are left, one with " in why
    assert "delete files apply to its files, which needs engine 'spark'" in why
    assert before == contents(catalog.load_table("sales.orders"))
    assert [1] * 6 + [3] * 6 == ids(catalog.load_table("sales.orders"))


def test_a_plan_that_was_made_for_spark_brings_no_deleted_row_back_here(
    catalog: TrinityLakeCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stored plan names files, and said nothing of deletes."""
    small_files(catalog)
    with endpoint(catalog.lakehouse) as at, connected(at) as connection:
        connection.execute("DELETE FROM l.sales.orders WHERE id = 3")
    plan = (tmp_path / "plan.parquet").as_uri()
    with monkeypatch.context() as patched:
        patched.setattr(LocalRewriter, "why_not", lambda engine, table: None)
        assert FILES == tables_compact.run(catalog.lakehouse.refresh(), Config(plan_to=plan)).files
        report = tables_compact.run(catalog.lakehouse, Config(plan=plan))
        assert "delete files apply to its files" in report.failures["sales.orders"], "the engine looks by itself"
    report = tables_compact.run(catalog.lakehouse, Config(plan=plan))
    assert ((), True) == (report.planned, "delete files apply" in report.failures["sales.orders"])
    assert [number for number in range(FILES) if number != 3] == ids(catalog.load_table("sales.orders"))


@pytest.mark.parametrize("is_beside", [False, True])
def test_rows_that_duckdb_deleted_of_files_of_an_older_spec_do_not_come_back(
    catalog: TrinityLakeCatalog, beside: Callable[..., None], is_beside: bool
) -> None:
    """It writes such position deletes by the newest spec, so they seem to be of another partition."""
    table = small_files(catalog)
    table.update_spec().add_identity("name").commit()
    table.append(rows(*range(100, 104)))

    def by_duckdb(statement: str) -> list[int]:
        with endpoint(catalog.lakehouse) as at, connected(at) as connection:
            found = connection.execute(statement).fetchall()
        return sorted(number for (number,) in found)

    delete = partial(by_duckdb, "DELETE FROM l.sales.orders WHERE id IN (1, 2, 3)")
    beside(delete) if is_beside else delete()
    report = tables_compact.run(catalog.lakehouse)
    why = "a writer deleted rows" if is_beside else "position deletes by another partition spec may apply"
    assert why in report.failures["sales.orders"]
    assert [0, *range(4, FILES), *range(100, 104)] == by_duckdb("SELECT id FROM l.sales.orders")


def test_a_frozen_lakehouse_is_told_before_anything_is_read(catalog: TrinityLakeCatalog) -> None:
    small_files(catalog, files=6)
    catalog.lakehouse.freeze(reason="audit")
    with pytest.raises(LakehouseFrozen):
        tables_compact.run(catalog.lakehouse)
    assert 6 == tables_compact.run(catalog.lakehouse, review=dry_run).files
