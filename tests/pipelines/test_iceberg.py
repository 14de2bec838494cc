"""Maintenance that knows Iceberg tables: do their files exist, and to which snapshot does a rollback take each."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyiceberg.exceptions import ForbiddenError

from examples.iceberg import read_by_duckdb
from pipelines import restore, rollback, verify
from pipelines.cli import main
from pipelines.job import dry_run
from pipelines.reach.table_files import TableFiles, in_sample, refuse_no_share
from tests.support.icebergs import ids, new_iceberg, opened, rows, with_table
from trinitylake_core.definitions import TableDef, table_def
from trinitylake_core.errors import Corrupt, InvalidInput
from trinitylake_core.iceberg import TrinityLakeCatalog
from trinitylake_core.versions import from_millis


def _remove_metadata(catalog: TrinityLakeCatalog, name: str, version: int) -> Path:
    """Remove the metadata file that a table has in a version, as an engine's own maintenance does."""
    namespace, _, own = name.partition(".")
    location = catalog.lakehouse.at(version=version).table(namespace, own).format_properties["metadata_location"]
    file = Path(location.removeprefix("file://") if ":" in location else f"{_root(catalog)}{location}")
    file.unlink()
    return file


def _root(catalog: TrinityLakeCatalog) -> str:
    return catalog._places.base.removeprefix("file://")


def _verified(catalog: TrinityLakeCatalog, versions: str | int, tables: float | None) -> verify.Report:
    return verify.run(catalog.lakehouse, verify.Config(versions, tables=tables, engine="local"))


def test_verify_finds_the_tables_whose_metadata_file_is_gone(catalog: TrinityLakeCatalog, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    theirs = with_table(new_iceberg(tmp_path / "other"), "a.b", 1)
    orders = with_table(catalog, "sales.orders", 1)
    catalog.register_table("sales.theirs", theirs.metadata_location)
    good = catalog.lakehouse.version
    orders.append(rows(2))
    before = catalog.lakehouse.storage.counts.snapshot()
    report = _verified(catalog, "newest", 1.0)
    assert (True, 2, 0) == (report.ok, report.tables_checked, report.tables_unknown)
    assert 1 == (catalog.lakehouse.storage.counts - before).head, "the other storage counts its own"
    gone = _remove_metadata(catalog, "sales.orders", good)
    assert _verified(catalog, "newest", 1.0).ok, "the newest version names another file"
    report = _verified(catalog, "all", 1.0)
    assert [("I19", f"does not exist: {catalog.lakehouse.root}{gone.relative_to(_root(catalog))}")] == [
        (each.invariant, each.message[-len(each.message.partition("does not")[2]) - 8 :]) for each in report.findings
    ]
    assert "sales.orders" in report.findings[0].message
    assert _verified(catalog, "all", None).ok
    assert _verified(catalog, "all", 0.0).ok
    Path(theirs.metadata_location.removeprefix("file://")).unlink()
    assert ["I19"] == [each.invariant for each in _verified(catalog, "newest", 1.0).findings]


def test_a_rollback_to_a_version_whose_tables_expired_is_refused_and_can_be_forced(catalog: TrinityLakeCatalog) -> None:
    orders = with_table(catalog, "sales.orders", 1)
    good = catalog.lakehouse.version
    orders.append(rows(2))
    _remove_metadata(catalog, "sales.orders", good)
    config = rollback.Config(version=good, reason="test", engine="local")
    with pytest.raises(Corrupt, match=r"metadata file of table 'sales.orders' does not exist"):
        rollback.run(catalog.lakehouse, config)
    back = restore.Config(only=["sales.orders"], version=good, reason="test", engine="local")
    with pytest.raises(Corrupt, match=r"metadata file of table 'sales.orders' does not exist"):
        restore.run(catalog.lakehouse, back)
    assert [1, 2] == ids(catalog.load_table("sales.orders"))
    anyway = rollback.Config(version=good, reason="test", engine="local", tables=None)
    assert rollback.run(catalog.lakehouse, anyway).version_after is not None


@pytest.mark.parametrize("count", [5, pytest.param(50, marks=pytest.mark.slow)])
def test_the_plan_names_for_each_table_the_snapshot_and_time_it_goes_back_to(
    catalog: TrinityLakeCatalog, count: int
) -> None:
    """Tables that one job damaged: each is named, and one command brings each back."""
    catalog.create_namespace("sales")
    names = [f"sales.t{number:02}" for number in range(count)]
    with catalog.transaction() as txn:
        for number, name in enumerate(names):
            with_table(txn, name, number)
    good = catalog.lakehouse.version
    expected = {
        name: (found.snapshot_id, from_millis(found.timestamp_ms))
        for name in names
        if (found := catalog.load_table(name).current_snapshot()) is not None
    }
    with catalog.transaction(reason="bad job") as txn:
        for name in names[: count - 2]:
            txn.load_table(name).overwrite(rows(999))
        for name in names[count - 2 :]:
            txn.drop_table(name)
    config = rollback.Config(version=good, reason="undo the bad job", engine="local")
    planned = rollback.run(catalog.lakehouse, config, review=dry_run)
    assert expected == {
        f"{each.namespace}.{each.name}": (each.snapshot_id, each.snapshot_at) for each in planned.tables
    }
    assert count == planned.tables_checked
    done = rollback.run(catalog.lakehouse, config)
    assert (good + 2, ()) == (done.version_after, done.tables)
    assert {name: [number] for number, name in enumerate(names)} == {
        name: ids(catalog.load_table(name)) for name in names
    }
    assert [1] * count == [read_by_duckdb(catalog.load_table(name)) for name in names]


def test_a_table_that_says_nothing_itself_is_asked_by_its_metadata_file(catalog: TrinityLakeCatalog) -> None:
    """As the published SDK writes them: the location alone."""
    table = with_table(catalog, "sales.orders", 1)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    full = catalog.lakehouse.table("sales", "orders").format_properties["metadata_location"]
    files = TableFiles(catalog.lakehouse.storage)

    def state(**fields: str) -> tuple[int | None, bool]:
        found = next(iter(files.states([("s", "t", _external(**fields))])))
        return found.snapshot_id, found.known

    def _external(metadata_location: str = "", table_type: str = "MANAGED") -> TableDef:
        facts = {"metadata_location": metadata_location} if metadata_location else {}
        return table_def(table_type=table_type, format_properties=facts)

    assert (snapshot.snapshot_id, True) == state(metadata_location=full)
    assert (snapshot.snapshot_id, True) == state(metadata_location=table.metadata_location, table_type="EXTERNAL")
    assert (None, True) == state()
    assert (None, False) == state(metadata_location=full + "x")
    assert (None, False) == state(metadata_location="nosuch://b/t", table_type="EXTERNAL")


def test_export_says_of_how_many_tables_it_leaves_the_files(
    catalog: TrinityLakeCatalog, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with_table(catalog, "sales.orders", 1)
    target = (tmp_path / "copy").as_uri()
    assert 0 == main(["export", catalog.lakehouse.root, target, "--engine", "local"])
    assert "not the data and metadata files of 1 table" in capsys.readouterr().out
    copy = opened(target)
    with pytest.raises(FileNotFoundError):
        copy.load_table("sales.orders")
    shutil.copytree(f"{_root(catalog)}tables", tmp_path / "copy" / "tables")
    assert [1] == ids(copy.load_table("sales.orders")), "the data are those of the original"
    with pytest.raises(ForbiddenError, match="came here with its lakehouse"):
        copy.load_table("sales.orders").append(rows(2))
    assert copy.lakehouse.version == catalog.lakehouse.version


def test_a_sample_is_the_same_everywhere_and_about_its_share() -> None:
    paths = [f"table-{number}" for number in range(2000)]
    chosen = [path for path in paths if in_sample(path, 0.25)]
    assert 400 < len(chosen) < 600
    assert set(chosen) <= {path for path in paths if in_sample(path, 0.5)}
    assert ([], paths) == ([p for p in paths if in_sample(p, 0.0)], [p for p in paths if in_sample(p, 1.0)])
    with pytest.raises(InvalidInput):
        refuse_no_share(1.5)
