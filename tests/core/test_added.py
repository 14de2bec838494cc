"""What a commit adds to tables, rule by rule; ``test_table_fences`` has whole commits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.statistics import StatisticsFile

from tests.core.test_table_fences import VOID, fence
from tests.support.icebergs import new_iceberg, rows, with_table
from tests.support.rounds import Rounds
from trinitylake_core import clock
from trinitylake_core.commits.fences import CLOCKS_DIFFER_MILLIS
from trinitylake_core.errors import CommitConflict, StorageError
from trinitylake_core.iceberg import TrinityLakeCatalog
from trinitylake_core.iceberg.commit_rules.added import AddedFiles, TableFilesVoid
from trinitylake_core.iceberg.errors import TableForbidden
from trinitylake_core.iceberg.names import CatalogName
from trinitylake_core.table_places import TablePlaces


def _path(uri: str) -> Path:
    return Path(uri.removeprefix("file://"))


def _snapshots(metadata: TableMetadata, *numbers: int, **changed: Any) -> TableMetadata:
    """Return metadata with some of the snapshots, counted from the oldest, and with changes."""
    kept = [metadata.snapshots[number] for number in numbers]
    return metadata.model_copy(update={"snapshots": kept, **changed})


def _fresh(table: Table) -> str:
    """Write the newest metadata file of a table once more, as a commit does, and return where it is."""
    path = _path(table.metadata_location)
    path.write_bytes(path.read_bytes())
    return table.metadata_location


def _manifests(table: Table, number: int = -1) -> list[str]:
    return [each.manifest_path for each in table.metadata.snapshots[number].manifests(table.io)]


@pytest.fixture
def table(catalog: TrinityLakeCatalog) -> Table:
    """One with two snapshots, each of which added a file."""
    made = with_table(catalog, "sales.orders", 1)
    made.append(rows(2))
    return catalog.load_table("sales.orders")


@pytest.fixture
def added(catalog: TrinityLakeCatalog) -> AddedFiles:
    """Nothing yet."""
    return AddedFiles(catalog.lakehouse.storage)


def refuse_void(added: AddedFiles, catalog: TrinityLakeCatalog) -> None:
    """Hold what was added to the fence of the newest version."""
    added.refuse_void(catalog.lakehouse.refresh().root_node)


# -- what cannot be read -----------------------------------------------------------------------------------------------


def test_a_new_list_or_manifest_that_is_missing_is_refused(catalog: TrinityLakeCatalog, table: Table) -> None:
    metadata, lost = table.metadata, table.metadata.snapshots[1].manifest_list
    fence(catalog, 1)
    for path in (_manifests(table)[0], lost):
        _path(path).unlink()
        added = AddedFiles(catalog.lakehouse.storage)
        added.add(_snapshots(metadata, 0), metadata, table.metadata_location)
        with pytest.raises(TableFilesVoid, match="which is missing or cannot be read"):
            refuse_void(added, catalog)


@pytest.mark.parametrize("what", ["list", "manifest"])
def test_what_the_parent_named_need_not_be_readable(
    catalog: TrinityLakeCatalog, table: Table, added: AddedFiles, what: str
) -> None:
    """It only saves requests to know what is old."""
    table.delete("id = 1")
    metadata = table.refresh().metadata
    replaced = set(_manifests(table, 1)) - set(_manifests(table))
    fence(catalog, 1)
    for lost in replaced if what == "manifest" else [metadata.snapshots[1].manifest_list]:
        _path(lost).unlink()
    added.add(_snapshots(metadata, 0, 1), metadata, table.metadata_location)
    refuse_void(added, catalog)


@pytest.mark.parametrize("what", ["list", "manifest"])
def test_what_a_table_elsewhere_names_need_not_be_readable(
    catalog: TrinityLakeCatalog, tmp_path: Path, added: AddedFiles, what: str
) -> None:
    """Each cleaning that meets it stops at it."""
    (tmp_path / "other").mkdir()
    table = with_table(new_iceberg(tmp_path / "other"), "a.b", 1)
    with_table(catalog, "sales.orders", 1)
    fence(catalog, 1)
    _path(_manifests(table)[0] if what == "manifest" else table.metadata.snapshots[0].manifest_list).unlink()
    added.add(None, table.metadata, table.metadata_location, is_own=False)
    refuse_void(added, catalog)


def test_a_storage_that_fails_proves_nothing(catalog: TrinityLakeCatalog, table: Table, added: AddedFiles) -> None:
    """Also where what it does not give would only save requests."""
    metadata = table.metadata
    fence(catalog, 1)
    parent = _path(metadata.snapshots[0].manifest_list).name

    def fail(kind: str, path: str, action: Callable[[], object]) -> object:
        if path.endswith(parent):
            raise StorageError(f"{kind}: out of reach")
        return action()

    catalog.lakehouse.storage.interceptor = fail
    added.add(_snapshots(metadata, 0), metadata, table.metadata_location)
    with pytest.raises(StorageError, match="out of reach"):
        refuse_void(added, catalog)


def test_each_file_can_be_refused_before_it_is_read(catalog: TrinityLakeCatalog, table: Table) -> None:
    """An endpoint opens no file that its operator has not allowed; the places of the table are known to it."""
    metadata, asked = table.metadata, []

    def refuse(_name: CatalogName | None, uris: Iterable[str], places: TablePlaces) -> None:
        asked.extend((uri, list(places.prefixes)) for uri in uris)
        if _manifests(table)[0] in uris:
            raise TableForbidden("not below an allowed place")

    fence(catalog, 1)
    added = AddedFiles(catalog.lakehouse.storage, refuse)
    added.add(_snapshots(metadata, 0), metadata, table.metadata_location)
    added.add(None, None, table.metadata_location)
    with pytest.raises(TableForbidden, match="not below an allowed place"):
        refuse_void(added, catalog)
    lists = {each.manifest_list for each in metadata.snapshots}
    assert lists | {_manifests(table)[0]} == {uri for uri, _ in asked}
    assert [[f"{table.location()}/"]] * len(asked) == [known for _, known in asked]


# -- what counts as known ----------------------------------------------------------------------------------------------


def test_what_the_table_before_names_is_kept_however_the_new_metadata_spell_it(
    catalog: TrinityLakeCatalog, table: Table, added: AddedFiles, tmp_path: Path
) -> None:
    """By its text each manifest list is new then, and nothing in it has a parent that is known."""
    metadata = table.metadata
    link = tmp_path / "link"
    link.symlink_to(_path(catalog.lakehouse.root))
    fence(catalog)
    moved = []
    for each in metadata.snapshots:
        respelled = each.manifest_list.replace(catalog.lakehouse.root.rstrip("/"), link.as_uri())
        assert respelled != each.manifest_list
        moved.append(each.model_copy(update={"manifest_list": respelled}))
    after = metadata.model_copy(update={"snapshots": moved})
    added.add(metadata, after, _fresh(table))
    refuse_void(added, catalog)
    nobody = AddedFiles(catalog.lakehouse.storage)
    nobody.add(None, after, _fresh(table))
    with pytest.raises(TableFilesVoid, match="write them again"):
        refuse_void(nobody, catalog)


def test_a_file_of_an_older_snapshot_may_come_back(
    catalog: TrinityLakeCatalog, table: Table, added: AddedFiles
) -> None:
    """As a cherry-pick brings it: the parent of the new snapshot does not name it any more."""
    table.overwrite(rows(3))
    metadata = table.refresh().metadata
    fence(catalog)
    again = metadata.snapshots[1].model_copy(
        update={"snapshot_id": 7, "parent_snapshot_id": metadata.snapshots[-1].snapshot_id}
    )
    copy = _path(again.manifest_list).with_name("copy-of-list.avro")
    copy.write_bytes(_path(again.manifest_list).read_bytes())
    again = again.model_copy(update={"manifest_list": copy.as_uri()})
    after = metadata.model_copy(update={"snapshots": [*metadata.snapshots, again]})
    added.add(metadata, after, _fresh(table))
    refuse_void(added, catalog)


def test_a_merged_manifest_costs_no_request_for_what_its_parents_name(catalog: TrinityLakeCatalog) -> None:
    merging = {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "2"}
    table = with_table(catalog, "sales.orders", 1, properties=merging)
    table.append(rows(2))
    fence(catalog, 1)
    late = table.refresh().transaction()
    late.append(rows(3))
    with Rounds(catalog.lakehouse.storage) as rounds:
        late.commit_transaction()
    heads = [path for _, kind, path in rounds.log if kind == "head" and path.endswith(".parquet")]
    assert 1 == len(heads)


def test_statistics_are_new_or_those_of_before(catalog: TrinityLakeCatalog, table: Table, added: AddedFiles) -> None:
    metadata, found = table.metadata, []
    for name in ("old", "new"):
        path = _path(table.location()) / "metadata" / f"{name}.puffin"
        path.write_bytes(b"PFA1")
        found.append(
            StatisticsFile(
                snapshot_id=metadata.snapshots[0].snapshot_id,
                statistics_path=path.as_uri(),
                file_size_in_bytes=4,
                file_footer_size_in_bytes=0,
                blob_metadata=[],
            )
        )
    before, both = (metadata.model_copy(update={"statistics": found[:count]}) for count in (1, 2))
    fence(catalog)
    added.add(before, before, _fresh(table))
    refuse_void(added, catalog)
    added.add(before, both, _fresh(table))
    with pytest.raises(TableFilesVoid, match=r"1: tables/.*new\.puffin\)"):
        refuse_void(added, catalog)


def test_what_is_added_after_a_proof_is_proved_by_the_next(
    catalog: TrinityLakeCatalog, table: Table, added: AddedFiles
) -> None:
    metadata = table.metadata
    first = _snapshots(metadata, 0)
    fence(catalog)
    added.add(first, first, _fresh(table))
    refuse_void(added, catalog)
    added.add(first, metadata, _fresh(table))
    with pytest.raises(TableFilesVoid, match=VOID):
        refuse_void(added, catalog)


def test_a_second_proof_reads_nothing_again(catalog: TrinityLakeCatalog, table: Table, added: AddedFiles) -> None:
    metadata = table.metadata
    fence(catalog, 1)
    added.add(_snapshots(metadata, 0), metadata, table.metadata_location)
    refuse_void(added, catalog)
    root = catalog.lakehouse.root_node
    with Rounds(catalog.lakehouse.storage) as rounds:
        added.refuse_void(root)
    assert 0 == rounds.requests


def test_an_object_without_a_table_has_no_parent(catalog: TrinityLakeCatalog, table: Table, added: AddedFiles) -> None:
    fence(catalog, 1)
    added.add(table.metadata, None, table.metadata_location)
    refuse_void(added, catalog)


# -- what is refused, and how ------------------------------------------------------------------------------------------


def test_only_an_own_metadata_file_can_be_written_again(catalog: TrinityLakeCatalog, table: Table) -> None:
    metadata = table.metadata
    root = fence(catalog)
    refusals = []
    for before, is_own in ((metadata, True), (metadata, False), (_snapshots(metadata, 0), True)):
        added = AddedFiles(catalog.lakehouse.storage)
        added.add(before, metadata, table.metadata_location, is_own=is_own)
        with pytest.raises(CommitConflict, match=VOID) as refused:
            refuse_void(added, catalog)
        refusals.append((type(refused.value), refused.value.version))
    wanted = [CommitConflict, TableFilesVoid, TableFilesVoid]
    assert [(kind, root.version) for kind in wanted] == refusals


def test_a_file_that_is_missing_is_called_so(catalog: TrinityLakeCatalog, table: Table, added: AddedFiles) -> None:
    data = next(_path(table.location()).joinpath("data").glob("*.parquet"))
    data.unlink()
    fence(catalog)
    for path in _path(table.location()).rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes())
    added.add(None, table.metadata, table.metadata_location)
    with pytest.raises(TableFilesVoid, match=rf"\(1: tables/.*{data.name} \(missing\)\)"):
        refuse_void(added, catalog)


def test_a_file_of_the_moment_of_the_fence_is_not_older(
    catalog: TrinityLakeCatalog, table: Table, added: AddedFiles
) -> None:
    path = _path(table.location()) / "data" / "mine.parquet"
    time.sleep(0.02)
    pq.write_table(rows(8), path)
    inside = str(path.relative_to(_path(catalog.lakehouse.root)))
    fence(catalog, catalog.lakehouse.storage.info(inside).modified_millis)
    added.add(None, None, inside)
    added._paths = {inside}
    refuse_void(added, catalog)


def test_a_fence_in_the_future_is_told_from_one_that_is_not(
    catalog: TrinityLakeCatalog, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By more than clocks may differ."""
    root = fence(catalog, clock.now_millis() + 10 * CLOCKS_DIFFER_MILLIS)
    added = AddedFiles(catalog.lakehouse.storage)
    added.add(None, table.metadata, table.metadata_location)
    for ahead, message in ((1, "lies in the future"), (0, VOID)):
        now = root.tables_void_before_millis - CLOCKS_DIFFER_MILLIS - ahead
        monkeypatch.setattr(clock, "now_millis", lambda now=now: now)
        with pytest.raises(TableFilesVoid, match=message) as refused:
            added.refuse_void(root)
        assert root.version == refused.value.version


def test_a_file_beside_the_area_whose_end_is_like_one_in_it_is_not_asked_for(
    catalog: TrinityLakeCatalog, table: Table, added: AddedFiles
) -> None:
    """It lies below the root, so its path is no guess."""
    end = _path(table.metadata_location).relative_to(_path(catalog.lakehouse.root))
    assert [str(end)] == list(added._in_area([table.metadata_location]))
    assert [] == list(added._in_area([f"{catalog.lakehouse.root}beside/{end}"]))
