"""What could not be read, and what is odd: it protects what it may name, and no more than that."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from pyiceberg.table import Table

from pipelines import tables_clean
from pipelines.cli import main
from pipelines.engine.local import LocalEngine
from pipelines.job import silent
from pipelines.reach.kept_roots import gc_roots
from pipelines.reach.listing import everything
from pipelines.reach.table_sweep import TableSweep
from tests.support.icebergs import ids, new_iceberg, rows, with_table
from tests.support.respelled import local, needed_by
from tests.support.zero_age import clean_tables, expire_all_but_the_newest
from trinitylake_core.definitions import decode_table, encode
from trinitylake_core.errors import InvalidInput, NotAFile
from trinitylake_core.iceberg import TrinityLakeCatalog
from trinitylake_core.tables import LOCATION, METADATA_LOCATION


def lender(catalog: TrinityLakeCatalog) -> list[str]:
    """Make a table with three rows and an abandoned append, and return its data files."""
    table = with_table(catalog, "sales.lender", 1, 2)
    table.append(rows(3))
    table.transaction().append(rows(4))
    return [str(each) for each in needed_by(catalog.load_table("sales.lender")) if each.suffix == ".parquet"]


def drop(catalog: TrinityLakeCatalog, name: str) -> None:
    """Drop a table, and let every version expire that names it."""
    catalog.drop_table(name)
    expire_all_but_the_newest(catalog.lakehouse)


def manifest_of(table: Table) -> Path:
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return local(snapshot.manifests(table.io)[0].manifest_path)


def reset(catalog: TrinityLakeCatalog, name: str, table_type: str = "MANAGED", **properties: str) -> None:
    """Change all definitions of a table where they lie, as a program may write them that checks nothing."""
    lake = catalog.lakehouse.refresh()
    root = Path(lake.root.removeprefix("file://"))
    for path in root.glob(f"*/*/*/*-table-sales-{name}-*.binpb"):
        table = decode_table(path.read_bytes(), path.name)
        table.table_type = table_type
        table.format_properties.update(properties)
        path.write_bytes(encode(table))


# -- what could not be read --------------------------------------------------------------------------------------


def test_a_manifest_that_could_not_be_read_once_protects_what_it_borrowed_from_another_table(
    catalog: TrinityLakeCatalog, capsys: pytest.CaptureFixture[str]
) -> None:
    borrowed = lender(catalog)
    with_table(catalog, "sales.borrower").add_files(borrowed)
    drop(catalog, "sales.lender")
    manifest = manifest_of(catalog.load_table("sales.borrower"))
    content = manifest.read_bytes()
    manifest.write_bytes(b"")
    words = ["tables", "clean", catalog.lakehouse.root, "--older-than", "0s", "--allow-recent", "--yes"]
    assert 4 == main(words)
    assert "nothing at all was deleted" in capsys.readouterr().out
    manifest.write_bytes(content)
    assert 0 == main(words)
    assert [1, 2, 3] == ids(catalog.load_table("sales.borrower"))
    assert set(borrowed) == {str(each) for each in Path(borrowed[0]).parent.iterdir()}


def test_an_external_table_whose_metadata_cannot_be_read_ends_the_cleaning_unless_its_owner_vouches(
    catalog: TrinityLakeCatalog, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    theirs = with_table(new_iceberg(tmp_path / "other"), "a.b")
    theirs.add_files(lender(catalog))
    catalog.register_table("sales.theirs", theirs.metadata_location)
    location = catalog.load_table("sales.theirs").metadata_location
    drop(catalog, "sales.lender")
    metadata = local(location)
    content = metadata.read_bytes()
    metadata.unlink()
    refused = clean_tables(catalog.lakehouse)
    assert (0, [""]) == (refused.orphan_files, [each.directory for each in refused.doubts if each.stops_all])
    metadata.write_bytes(content)
    assert 0 < clean_tables(catalog.lakehouse).deleted
    assert [1, 2, 3] == ids(catalog.load_table("sales.theirs"))
    metadata.unlink()
    with_table(catalog, "sales.more", 1).transaction().append(rows(2))
    directory = f"{location.rpartition('/')[0]}"
    assert 0 == clean_tables(catalog.lakehouse, apart=(f"{directory}-not",)).deleted
    assert 0 < clean_tables(catalog.lakehouse, apart=(directory,)).deleted


@pytest.mark.parametrize("location", ["", "../v1.metadata.json", "tables//x/v1.metadata.json", "/etc/v1.metadata.json"])
def test_a_metadata_location_that_is_no_path_ends_the_cleaning(catalog: TrinityLakeCatalog, location: str) -> None:
    lender(catalog)
    with_table(catalog, "sales.odd", 1)
    reset(catalog, "odd", **{METADATA_LOCATION: location})
    report = clean_tables(catalog.lakehouse)
    (doubt,) = {(each.table, each.stops_all) for each in report.doubts}
    assert (0, ("sales-odd", True)) == (report.orphan_files, doubt)
    assert 4 == main(["tables", "clean", catalog.lakehouse.root, "--dry-run"])


def test_a_relative_metadata_location_of_an_external_table_ends_the_cleaning(catalog: TrinityLakeCatalog) -> None:
    lender(catalog)
    with_table(catalog, "sales.odd")
    reset(catalog, "odd", "EXTERNAL", **{METADATA_LOCATION: "tables/x/y/v1.metadata.json"})
    (doubt,) = clean_tables(catalog.lakehouse).doubts
    assert (True, "is not an absolute path") == (doubt.stops_all, doubt.reason[-23:])


def test_an_empty_directory_vouches_for_nothing() -> None:
    with pytest.raises(InvalidInput, match="directory of its metadata"):
        tables_clean.Config(apart=("",))


def test_a_marking_that_failed_leaves_nothing_noted(catalog: TrinityLakeCatalog) -> None:
    """A definition could not be read once: what it names is marked when it can be."""
    lender(catalog)
    lake = catalog.lakehouse.refresh()
    definition = next(each.path for each in lake.objects(kind="table"))
    content = lake.storage.read(definition)
    engine = LocalEngine()
    sweep = TableSweep(engine, lake.storage, lake.definition.order, silent, everything)
    sweep.list_files(None, {})
    starts = gc_roots(lake.backend).starts()
    lake.storage.delete_many([definition])
    place = Path(lake.root.removeprefix("file://"), definition)
    place.mkdir()
    with pytest.raises(NotAFile):
        sweep.mark(starts, frozenset())
    place.rmdir()
    lake.storage.write_many([(definition, content)])
    sweep.mark(starts, frozenset())
    totals = sweep.subtract(0, int(time.time() * 1000) + 1000)
    assert 3 == totals.files
    root = Path(lake.root.removeprefix("file://"))
    orphans = {root / each.path for each in sweep.orphans()}
    assert not orphans & needed_by(catalog.load_table("sales.lender"))
    sweep.release()


# -- what is odd -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("location", ["../x", "tables//x", "/etc", "tables", "tables/sales"])
def test_a_table_whose_definition_has_an_odd_location_keeps_its_files(
    catalog: TrinityLakeCatalog, location: str
) -> None:
    lender(catalog)
    reset(catalog, "lender", **{LOCATION: location})
    report = clean_tables(catalog.lakehouse)
    assert ((), 3) == (report.doubts, report.deleted)
    assert [1, 2, 3] == ids(catalog.load_table("sales.lender"))


@pytest.mark.parametrize("how", ["", "s3://bucket//lake/", "link"])
def test_a_table_without_metadata_keeps_its_directory_however_it_is_spelled(
    catalog: TrinityLakeCatalog, tmp_path: Path, how: str
) -> None:
    lender(catalog)
    lake, directory = catalog.lakehouse, local(catalog.load_table("sales.lender").location())
    (tmp_path / "link").symlink_to(directory)
    below = f"tables/sales/{directory.name}"
    location = {"": below, "link": (tmp_path / "link").as_uri()}.get(how, f"{how}{below}")
    with lake.refresh().transaction() as txn:
        txn.drop_table("sales", "lender")
        kind = "EXTERNAL" if "://" in location else "MANAGED"
        txn.create_table("sales", "other", table_type=kind, format_properties={LOCATION: location})
    expire_all_but_the_newest(catalog.lakehouse)
    before = set(directory.rglob("*"))
    report = clean_tables(catalog.lakehouse)
    assert [(f"{below}/", False)] == [(each.directory, each.stops_all) for each in report.doubts]
    assert before == set(directory.rglob("*"))


def test_an_odd_location_without_metadata_ends_the_cleaning(catalog: TrinityLakeCatalog) -> None:
    lender(catalog)
    with catalog.lakehouse.refresh().transaction() as txn:
        txn.create_table("sales", "odd", format_properties={LOCATION: "x"})
    reset(catalog, "odd", **{LOCATION: "../lake/tables/sales"})
    assert [True] == [each.stops_all for each in clean_tables(catalog.lakehouse).doubts]


def test_a_table_outside_keeps_the_files_inside_that_it_names(catalog: TrinityLakeCatalog, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    theirs = with_table(new_iceberg(tmp_path / "other"), "a.b")
    theirs.add_files(lender(catalog))
    catalog.register_table("sales.theirs", theirs.metadata_location)
    drop(catalog, "sales.lender")
    report = clean_tables(catalog.lakehouse)
    assert ((), True) == (report.doubts, 0 < report.deleted)
    assert [1, 2, 3] == ids(catalog.load_table("sales.theirs"))


@pytest.mark.parametrize("where", ["", "tables", "tables/sales"])
def test_a_claim_of_all_tables_claims_none(catalog: TrinityLakeCatalog, where: str) -> None:
    """Its owner forbids to delete its own files, and no others."""
    lender(catalog)
    table = with_table(catalog, "sales.claim", 1)
    table.transaction().append(rows(2))
    file = local(table.metadata_location)
    document = json.loads(file.read_bytes())
    document["location"] = f"{catalog.lakehouse.root}{where}".rstrip("/")
    document["properties"] |= {"gc.enabled": "false", "write.data.path": document["location"]}
    file.write_text(json.dumps(document))
    expire_all_but_the_newest(catalog.lakehouse)
    report = clean_tables(catalog.lakehouse)
    (doubt,) = report.doubts
    assert (True, f"{local(table.location()).name}/") == (
        doubt.is_wanted,
        doubt.directory.removeprefix("tables/sales/"),
    )
    assert {"data": 1, "manifest": 2, "metadata": 2} == {kind: each.files for kind, each in report.orphans.items()}
    assert "left alone, by wish of its owner" in "\n".join(report.summary())


def test_a_wish_is_no_failure(catalog: TrinityLakeCatalog) -> None:
    with_table(catalog, "sales.kept", 1, properties={"gc.enabled": "false"})
    assert 0 == main(["tables", "clean", catalog.lakehouse.root, "--older-than", "0s", "--allow-recent", "--yes"])


@pytest.mark.parametrize("name", ["a.parq", "p=1/000000_0", "000012_1_copy_2"])
def test_data_files_of_hive_and_impala_go_once_nothing_names_them(catalog: TrinityLakeCatalog, name: str) -> None:
    table = with_table(catalog, "sales.orders", 1)
    orphan = local(f"{table.location()}/data/{name}")
    orphan.parent.mkdir(exist_ok=True)
    orphan.write_bytes(b"x")
    assert 1 == clean_tables(catalog.lakehouse).deleted
    assert not orphan.exists()
