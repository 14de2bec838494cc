"""`export --tables`: a copy with the data of tables, and what can be read, proved and brought back from it."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.exceptions import ForbiddenError
from pyiceberg.manifest import DataFileContent

from pipelines import backup, compaction, doctor, expire, export, tables_clean, tables_expire, tables_health, verify
from pipelines.cli import main
from pipelines.job import dry_run
from tests.support.engines import connected
from tests.support.icebergs import IMPL, ids, new_iceberg, opened, rows, with_table
from tests.support.lakes import FAST
from tests.support.mayhem import DAY
from tests.support.s3_servers import S3Server
from tests.support.surgery import listing
from trinitylake_core import Lakehouse
from trinitylake_core.clock import now_millis
from trinitylake_core.errors import Corrupt
from trinitylake_core.iceberg import TrinityLakeCatalog
from trinitylake_core.rest import endpoint
from trinitylake_core.storage import open_storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = export.Config(engine="local", tables=True)
HISTORY = export.Config(engine="local", tables=True, history=True)
ORDERS, CUSTOMERS = "sales.orders", "sales.customers"


@pytest.fixture
def catalog(tmp_path: Path) -> TrinityLakeCatalog:
    """Two tables, one with four snapshots and one that shares no file with it; and a third that was dropped."""
    made = new_iceberg(tmp_path)
    orders = with_table(made, ORDERS, 1, 2, 3)
    orders.append(rows(4))
    orders.delete("id = 2")
    with_table(made, CUSTOMERS, 7)
    with_table(made, "sales.dropped", 8)
    made.drop_table("sales.dropped")
    compaction.run(made.lakehouse, compaction.Config(engine="local"))  # what a waiting message names is needed
    return made


@pytest.fixture
def copy(tmp_path: Path) -> str:
    return (tmp_path / "copy").as_uri()


def run(
    catalog: TrinityLakeCatalog, target: str, config: export.Config = HERE, spark: Any = None, review: Any = None
) -> export.Report:
    return export.run(catalog.lakehouse, target, config, spark, storage_options=FAST, review=review)


def files(root: str) -> dict[str, bytes]:
    """Return the files of tables below a root."""
    found = listing(Path(root.removeprefix("file://")))
    return {path: data for path, data in found.items() if path.startswith("tables/") and not path.endswith(".crc")}


def lose(catalog: TrinityLakeCatalog) -> str:
    """Delete a lakehouse; return its root."""
    root = catalog.lakehouse.root
    shutil.rmtree(root.removeprefix("file://"))
    return root


def one(catalog: TrinityLakeCatalog, pattern: str, table: str = ORDERS) -> Path:
    """Return the oldest file of a table that matches a pattern."""
    directory = Path(catalog.load_table(table).location().removeprefix("file://"))
    return min(directory.rglob(pattern), key=lambda path: path.stat().st_mtime_ns)


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def cleaned_to_the_newest(catalog: TrinityLakeCatalog) -> int:
    """Let all versions but the newest expire, as if a month had gone by; return how many files of tables went."""
    now = now_millis() + 30 * DAY
    expire.run(catalog.lakehouse, expire.Config(engine="local", keep_last=1, now_millis=now))
    how = tables_clean.Config(engine="local", older_than_seconds=0, allow_recent=True)
    return tables_clean.run(catalog.lakehouse, how).deleted


def said(*arguments: str, capsys: pytest.CaptureFixture[str]) -> Any:
    main([*arguments, "--json"])
    return json.loads(capsys.readouterr().out)


# -- what is copied ------------------------------------------------------------------------------------


def test_every_version_of_every_table_reads_at_the_copy_when_the_original_is_gone(
    catalog: TrinityLakeCatalog, copy: str
) -> None:
    wanted = files(catalog.lakehouse.root)
    done = run(catalog, copy, HISTORY)
    assert wanted == files(copy)
    assert (len(wanted), len(wanted), {}, 0) == (
        done.plan.table_files, done.table_files_copied, done.plan.tables_lacking, done.plan.table_files_elsewhere,
    )  # fmt: skip
    lose(catalog)
    there = opened(copy)
    assert ([1, 3, 4], [7]) == (ids(there.load_table(ORDERS)), ids(there.load_table(CUSTOMERS)))
    contents = [ids(opened(copy, version=str(each)).load_table(ORDERS)) for each in (3, 4, 5)]
    assert [[1, 2, 3], [1, 2, 3, 4], [1, 3, 4]] == contents
    assert [8] == ids(opened(copy, version=str(there.lakehouse.version - 2)).load_table("sales.dropped"))


def test_one_version_has_the_files_that_it_reaches(catalog: TrinityLakeCatalog, copy: str) -> None:
    run(catalog, copy)
    assert files(copy).keys() < files(catalog.lakehouse.root).keys()
    assert not any("sales/dropped" in path for path in files(copy))
    assert [1, 3, 4] == ids(opened(copy).load_table(ORDERS))
    assert [1, 2, 3] == ids_of_oldest(opened(copy))


def ids_of_oldest(catalog: TrinityLakeCatalog) -> list[int]:
    """Return the rows of the first snapshot of a table, which its metadata still name."""
    table = catalog.load_table(ORDERS)
    first = min(table.metadata.snapshots, key=lambda each: each.sequence_number or 0)
    return sorted(table.scan(snapshot_id=first.snapshot_id).to_arrow()["id"].to_pylist())


def test_repeated_it_copies_what_is_new_or_was_cut_short(catalog: TrinityLakeCatalog, copy: str) -> None:
    run(catalog, copy, HISTORY)
    again = run(catalog, copy, HISTORY)
    assert (0, 0) == (again.plan.table_files, again.bytes_copied)
    assert any(line.startswith("nothing to copy") for line in again.summary())
    before = files(copy)
    catalog.load_table(ORDERS).append(rows(9))
    cut = Path(copy.removeprefix("file://"), next(path for path in before if path.endswith(".parquet")))
    shorten(cut)
    done = run(catalog, copy, HISTORY)
    assert len(files(copy).keys() - before.keys()) + 1 == done.table_files_copied == 5
    assert files(catalog.lakehouse.root) == files(copy)


def test_a_copy_without_tables_becomes_one_with_them(catalog: TrinityLakeCatalog, copy: str) -> None:
    run(catalog, copy, export.Config(engine="local"))
    assert {} == files(copy)
    done = run(catalog, copy)
    assert (0, 0) == (done.roots_created, done.definitions_copied)
    assert 0 < done.table_files_copied == len(files(copy))


def test_a_dry_run_says_what_is_copied(catalog: TrinityLakeCatalog, copy: str) -> None:
    planned = run(catalog, copy, HISTORY, review=dry_run)
    assert {} == files(copy)
    done = run(catalog, copy, HISTORY)
    assert (planned.plan.table_files, planned.plan.bytes) == (done.table_files_copied, done.bytes_copied)
    assert any(f"{done.table_files_copied} files of tables" in line for line in planned.summary())


def test_each_file_is_read_once_and_asked_for_only_where_no_listing_shows_it(
    catalog: TrinityLakeCatalog, copy: str
) -> None:
    source, target = open_storage(catalog.lakehouse.root, FAST), open_storage(copy, FAST)
    lake = Lakehouse.open(source)
    before = source.counts.snapshot()
    export.run(lake, target, HERE)
    spent, files_of_tables = source.counts - before, files(copy)
    read_to_plan = sum(not path.endswith(".parquet") for path in files_of_tables)
    definitions = 3  # of both tables, once to plan; and that of the namespace only to copy
    assert spent.get <= read_to_plan + len(files_of_tables) + definitions + 12
    assert 0 == spent.head + target.counts.head


def test_tables_elsewhere_and_external_ones_stay_there(catalog: TrinityLakeCatalog, copy: str, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    theirs = with_table(new_iceberg(tmp_path / "other"), "a.b", 1)
    catalog.register_table("sales.theirs", theirs.metadata_location)
    far = next(iter(theirs.inspect.files()["file_path"].to_pylist()))
    catalog.load_table(CUSTOMERS).add_files([far])
    unlike = run(catalog, copy).plan.tables_lacking
    assert ["sales-customers"] == list(unlike)
    assert f"{far} lies outside the places of its table" in unlike["sales-customers"]
    options = {**FAST, "allowed_locations": f"tables/other=s3://x/y, tables/sales={far.rpartition('/')[0]}"}
    done = export.run(Lakehouse.open(catalog.lakehouse.root, storage_options=options), copy, HERE)
    assert (1, {}) == (done.plan.table_files_elsewhere, done.plan.tables_lacking)
    assert "outside the root, and not copied: 1 file of tables" in list(done.summary())
    there = opened(copy)
    assert [1] == ids(there.load_table("sales.theirs"))
    assert [1, 7] == ids(there.load_table(CUSTOMERS))


def test_a_table_below_the_root_and_beside_the_area_is_copied(catalog: TrinityLakeCatalog, copy: str) -> None:
    root = catalog.lakehouse.root
    catalog.create_namespace("own", {"location": f"{root}mine"})
    with_table(catalog, "own.place", 5)
    run(catalog, copy)
    lose(catalog)
    assert [5] == ids(opened(copy).load_table("own.place"))


@pytest.mark.s3
def test_to_s3_and_back(catalog: TrinityLakeCatalog, moto_server: S3Server) -> None:
    """The locations in the metadata are those of a disk, the files lie in a bucket."""
    target = open_storage(moto_server.new_root(), moto_server.options)
    export.run(catalog.lakehouse, target, HISTORY)
    root = lose(catalog)
    there = TrinityLakeCatalog.over(Lakehouse.open(target))
    assert [1, 3, 4] == ids(there.load_table(ORDERS))
    export.run(there.lakehouse, root, HISTORY, storage_options=FAST)
    assert [1, 3, 4] == ids(opened(root).load_table(ORDERS))


@pytest.mark.slow
def test_spark_makes_the_same_copy(catalog: TrinityLakeCatalog, tmp_path: Path, spark: SparkSession) -> None:
    one(catalog, "*.parquet").unlink()
    here = run(catalog, (tmp_path / "here").as_uri(), HISTORY)
    there = run(catalog, (tmp_path / "there").as_uri(), export.Config(tables=True, history=True), spark)
    assert files((tmp_path / "here").as_uri()) == files((tmp_path / "there").as_uri())
    assert (here.plan.table_files, here.plan.tables_lacking, here.bytes_copied) == (
        there.plan.table_files, there.plan.tables_lacking, there.bytes_copied,
    )  # fmt: skip


# -- what is missing or damaged ------------------------------------------------------------------------


@pytest.mark.parametrize("size", [100, None], ids=["cut", "as long as before"])
def test_a_damaged_definition_is_read_at_the_copy_and_where_neither_has_it_its_table_is_named(
    catalog: TrinityLakeCatalog, copy: str, tmp_path: Path, size: int | None
) -> None:
    """It ended the export: nobody knew which files it names."""
    run(catalog, copy, HISTORY)
    (path,) = [each.path for each in catalog.lakehouse.objects() if each.name == "orders"]
    here, there = (Path(root.removeprefix("file://"), path) for root in (catalog.lakehouse.root, copy))
    good = here.read_bytes()
    here.write_bytes(bytes(size or len(good)))
    catalog.load_table(CUSTOMERS).append(rows(9))
    done = run(catalog, copy, HISTORY)
    assert (True, {}) == (done.plan.is_whole, done.plan.tables_lacking)
    assert [1, 3, 4] == ids(opened(copy).load_table(ORDERS))
    if size is None:
        there.write_bytes(bytes(len(good)))
        assert ["sales-orders"] == [*run(catalog, copy, HISTORY).plan.tables_lacking]
    with pytest.raises(Corrupt, match=path):
        run(catalog, (tmp_path / "fresh").as_uri(), HISTORY)


def test_the_command_ends_with_1_and_names_the_table(
    catalog: TrinityLakeCatalog, copy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    one(catalog, "*.parquet").unlink()
    assert 1 == main(["export", catalog.lakehouse.root, copy, "--tables", "--engine", "local"])
    assert "the copy lacks files of 1 table: sales-orders" in capsys.readouterr().out
    again = said("export", catalog.lakehouse.root, copy, "--tables", "--engine", "local", capsys=capsys)
    assert ["sales-orders"] == [*again["plan"]["tables_lacking"]]


def test_a_version_that_is_cleaned_meanwhile_is_no_damage(
    catalog: TrinityLakeCatalog, copy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files go between the plan and the copying: nothing becomes a lakehouse, and the export can be repeated."""
    from pipelines.copy.plan import FilesToCopy

    def cleaned(self: FilesToCopy, *kinds: str) -> tuple[int, int, int]:
        monkeypatch.setattr(FilesToCopy, "copy", act)
        assert 0 < cleaned_to_the_newest(catalog)
        return act(self, *kinds)

    act = FilesToCopy.copy
    monkeypatch.setattr(FilesToCopy, "copy", cleaned)
    with pytest.raises(Exception, match="expired while the export ran") as found:
        run(catalog, copy, HISTORY)
    assert not isinstance(found.value, Corrupt)
    run(catalog, copy, HISTORY)
    assert [1, 3, 4] == ids(opened(copy).load_table(ORDERS))


# -- what can be done with a copy ----------------------------------------------------------------------


def test_nothing_writes_at_the_copy_and_other_engines_get_a_plain_error(catalog: TrinityLakeCatalog, copy: str) -> None:
    with catalog.load_table(ORDERS).transaction() as change_of_place:
        change_of_place.set_properties({"write.data.path": f"{catalog.lakehouse.root}beside/orders"})
    run(catalog, copy)
    there = opened(copy)
    for change in (lambda: there.load_table(ORDERS).append(rows(9)), lambda: there.load_table(ORDERS).delete("id = 1")):
        with pytest.raises(ForbiddenError, match=f"was written below {catalog.lakehouse.root}"):
            change()
    with endpoint(there.lakehouse) as at, connected(at) as connection, pytest.raises(Exception, match="was written"):
        connection.execute(f"SELECT * FROM l.{ORDERS}")
    assert [1, 3, 4] == sorted(
        row[0] for row in there.load_table(ORDERS).scan().to_duckdb("t").execute("FROM t").fetchall()
    )
    there.create_table("sales.own", rows().schema).append(rows(1))
    assert [1] == ids(there.load_table("sales.own"))


def test_position_deletes_that_duckdb_wrote_count_at_the_copy(catalog: TrinityLakeCatalog, copy: str) -> None:
    """They name data files by the locations of the original."""
    with endpoint(catalog.lakehouse) as at, connected(at) as connection:
        connection.execute("CREATE TABLE l.sales.merged (id BIGINT, name VARCHAR)")
        connection.execute("INSERT INTO l.sales.merged VALUES (1, 'a'), (2, 'b'), (3, 'c')")
        connection.execute("DELETE FROM l.sales.merged WHERE id = 2")
    contents = catalog.load_table("sales.merged").inspect.files()["content"].to_pylist()
    assert DataFileContent.POSITION_DELETES in contents
    run(catalog, copy)
    lose(catalog)
    assert [1, 3] == ids(opened(copy).load_table("sales.merged"))


def test_the_copy_is_proved_measured_and_never_cleaned(catalog: TrinityLakeCatalog, copy: str) -> None:
    run(catalog, copy, HISTORY)
    good = backup.Config(engine="local", tables=True)
    assert backup.run(catalog.lakehouse, copy, good, storage_options=FAST).ok
    there, health = opened(copy), tables_health.run(catalog.lakehouse)
    deep = verify.Config("all", engine="local", tables=1.0, deep=True)
    original = verify.run(catalog.lakehouse.storage, deep).table_files
    lose(catalog)
    found = verify.run(there.lakehouse.storage, deep)
    assert (True, original) == (found.ok, found.table_files)
    assert health.tables == tables_health.run(there.lakehouse).tables
    retention = doctor.table_retention(there.lakehouse)
    assert retention is not None
    assert 0 == retention.lost_count
    how = tables_clean.Config(engine="local", older_than_seconds=0, allow_recent=True)
    cleaned = tables_clean.run(there.lakehouse, how)
    assert (0, 3) == (cleaned.deleted, len(cleaned.doubts))
    assert ORDERS in tables_expire.run(there.lakehouse, tables_expire.Config(older_than_seconds=0)).failures


@pytest.mark.parametrize("pattern", ["*.metadata.json", "snap-*.avro", "*-m0.avro", "*.parquet"])
def test_a_backup_that_lacks_a_file_is_not_good(catalog: TrinityLakeCatalog, copy: str, pattern: str) -> None:
    run(catalog, copy)
    next(Path(copy.removeprefix("file://"), "tables").rglob(pattern)).unlink()
    found = backup.run(catalog.lakehouse, copy, backup.Config(engine="local", tables=True), storage_options=FAST)
    assert not found.ok
    assert re.match(r"the backup breaks \d+ invariants?, I", found.problems[0])
    run(catalog, copy)
    assert backup.run(catalog.lakehouse, copy, backup.Config(engine="local", tables=True), storage_options=FAST).ok


def test_the_lakehouse_is_gone_and_comes_back_from_its_copy(catalog: TrinityLakeCatalog, copy: str) -> None:
    """To the same root: the metadata name their files by it. Then everything goes on as before."""
    run(catalog, copy, HISTORY)
    root = lose(catalog)
    run(opened(copy), root, HISTORY)
    back = opened(root)
    back.load_table(ORDERS).append(rows(10))
    assert [1, 3, 4, 10] == ids(back.load_table(ORDERS))
    with endpoint(back.lakehouse) as at, connected(at) as connection:
        assert (4,) == connection.execute(f"SELECT count(*) FROM l.{ORDERS}").fetchone()
    assert verify.run(back.lakehouse.storage, verify.Config("all", engine="local", tables=1.0, deep=True)).ok
    assert 0 < run(back, copy, HISTORY).table_files_copied, "the copy is its backup, as before"


def test_a_table_that_was_cleaned_away_comes_back_from_the_copy(catalog: TrinityLakeCatalog, copy: str) -> None:
    """Its directory is copied back, and its metadata are registered: the rule for commits finds them young."""
    run(catalog, copy, HISTORY)
    location = opened(copy).load_table(ORDERS).metadata_location
    catalog.drop_table(ORDERS)
    assert 0 < cleaned_to_the_newest(catalog)
    path = location.removeprefix(opened(copy).lakehouse.root)
    directory = path.partition("/metadata/")[0]
    here, there = (Path(each.removeprefix("file://"), directory) for each in (catalog.lakehouse.root, copy))
    shutil.copytree(there, here, copy_function=shutil.copyfile, dirs_exist_ok=True)
    catalog.register_table(ORDERS, catalog.lakehouse.root + path)
    assert [1, 3, 4] == ids(catalog.load_table(ORDERS))
    catalog.load_table(ORDERS).append(rows(11))


def test_a_catalog_of_the_past_opens_at_the_copy(catalog: TrinityLakeCatalog, copy: str) -> None:
    from pyiceberg.catalog import load_catalog

    run(catalog, copy, HISTORY)
    lose(catalog)
    past = load_catalog("past", **{"py-catalog-impl": IMPL, "uri": copy, "version": "3"})
    assert [1, 2, 3] == ids(past.load_table(ORDERS))
