"""A commit adds no file to a table that a cleaning of tables may have removed (format, section 6)."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table, Transaction
from pyiceberg.table.update import SetPropertiesUpdate

from pipelines import expire
from tests.support import icebergs
from tests.support.icebergs import SCHEMA, ids, new_iceberg, opened, rows
from tests.support.rounds import Rounds
from trinitylake_core import Lakehouse, spec
from trinitylake_core.clock import now_millis
from trinitylake_core.commits.changes import Fence, commit_summary
from trinitylake_core.commits.commit import commit
from trinitylake_core.errors import CommitConflict
from trinitylake_core.iceberg import TrinityLakeCatalog
from trinitylake_core.iceberg.commit_rules.added import AddedFiles
from trinitylake_core.storage import open_storage
from trinitylake_core.tables import VIEW_METADATA_LOCATION
from trinitylake_core.versions import Root

ONCE = {"commit.retry.num-retries": "0"}
"""PyIceberg writes manifests again and repeats a commit that was refused, which takes time and does not help."""
MONTH = 30 * 86_400_000
VOID = "written before the last cleaning of tables; write them again"


def fence(catalog: TrinityLakeCatalog, before: int | None = None) -> Root:
    """Commit the fence of a cleaning of tables by another process, at the storage's time now."""
    lake = Lakehouse.open(catalog.lakehouse.root)
    if before is None:
        time.sleep(0.02)
        lake.storage.replace("clock", b"")
        before = lake.storage.info("clock").modified_millis
        time.sleep(0.02)
    return commit(lake.backend, lake.backend.newest_seen, Fence(before, commit_summary(), of_tables=True))


def with_table(catalog: TrinityLakeCatalog, name: str, *numbers: int, **properties: str) -> Table:
    return icebergs.with_table(catalog, name, *numbers, properties={**ONCE, **properties})


def waiting(table: Table, *numbers: int) -> Callable[[], None]:
    """Write rows of an append, and return its commit."""
    transaction = table.transaction()
    transaction.append(rows(*numbers))
    return lambda: void(transaction.commit_transaction())


def void(result: object) -> None:
    del result


def asked(catalog: TrinityLakeCatalog, act: Callable[[], object]) -> tuple[int, int]:
    """Return the gets and heads of the lakehouse's storage for an action."""
    before = catalog.lakehouse.storage.counts.snapshot()
    act()
    counts = catalog.lakehouse.storage.counts - before
    return counts.get, counts.head


def test_the_fence_of_tables_is_carried_on_and_only_grows(catalog: TrinityLakeCatalog) -> None:
    assert (7, 7, 9) == tuple(fence(catalog, each).tables_void_before_millis for each in (7, 5, 9))
    with_table(catalog, "sales.orders", 1)
    newest = catalog.lakehouse.root_node
    assert (9, 0, "commit") == (newest.tables_void_before_millis, newest.void_before_millis, newest.operation)
    assert [] == list(catalog.lakehouse.check())


def test_files_written_before_a_cleaning_are_refused_and_newer_ones_are_not(catalog: TrinityLakeCatalog) -> None:
    table = with_table(catalog, "sales.orders", 1)
    late = waiting(table, 2)
    fence(catalog)
    version = catalog.lakehouse.version
    with pytest.raises(CommitFailedException, match=VOID):
        late()
    assert (version, [1]) == (catalog.lakehouse.version, ids(catalog.load_table("sales.orders")))
    table.refresh().append(rows(3))
    assert [1, 3] == ids(catalog.load_table("sales.orders"))


def test_an_own_metadata_file_that_a_fence_overtook_is_written_again(
    catalog: TrinityLakeCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else was added, so the catalog can repeat the commit by itself."""
    table = with_table(catalog, "sales.orders", 1)
    create, met = catalog.lakehouse.storage.create, []

    def first(path: str, data: Any) -> None:
        if not met:
            met.append(fence(catalog))
        create(path, data)

    monkeypatch.setattr(catalog.lakehouse.storage, "create", first)
    with table.transaction() as change:
        change.set_properties(owner="me")
    assert "me" == catalog.load_table("sales.orders").properties["owner"]
    assert (
        catalog.lakehouse.storage.info(str(_definition(catalog)["metadata_location"])).modified_millis
        >= met[0].tables_void_before_millis
    )


def _definition(catalog: TrinityLakeCatalog, name: str = "orders") -> dict[str, str]:
    return dict(catalog.lakehouse.table("sales", name).format_properties)


def test_what_the_base_refers_to_may_be_as_old_as_it_is(catalog: TrinityLakeCatalog) -> None:
    """Manifests that are merged, rows that are deleted, snapshots that are cherry-picked take over old files."""
    properties = {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "2"}
    table = with_table(catalog, "sales.orders", 1, **properties)
    table.append(rows(2, 3))
    first = table.metadata.snapshots[0].snapshot_id
    fence(catalog)
    table.refresh().append(rows(4))
    table.delete("id = 3")
    table.manage_snapshots().create_tag(first, "kept").commit()
    assert [1, 2, 4] == ids(catalog.load_table("sales.orders"))


def test_added_registered_and_staged_files_are_held_to_the_same(catalog: TrinityLakeCatalog, tmp_path: Path) -> None:
    table = with_table(catalog, "sales.orders", 1)
    outside, inside = tmp_path / "outside.parquet", Path(table.location().removeprefix("file://")) / "data/mine.parquet"
    pq.write_table(rows(7), outside)
    pq.write_table(rows(8), inside)
    metadata = table.metadata_location
    catalog.drop_table("sales.orders")
    fence(catalog)
    with pytest.raises(CommitFailedException, match=f"{VOID}.*restore it"):
        catalog.register_table("sales.again", metadata)
    table = with_table(catalog, "sales.other", 2)
    table.add_files([outside.as_uri()])  # nobody cleans it
    with pytest.raises(CommitFailedException, match=VOID):
        table.add_files([inside.as_uri()])
    staged = catalog.create_table_transaction("sales.staged", SCHEMA, properties=ONCE)
    staged.append(rows(5))
    fence(catalog)
    with pytest.raises(CommitFailedException, match=VOID):
        staged.commit_transaction()
    assert [("sales", "other")] == catalog.list_tables("sales")


def test_a_table_elsewhere_that_names_files_here_is_held_to_the_same(
    catalog: TrinityLakeCatalog, tmp_path: Path
) -> None:
    """A cleaning that has marked before would remove them, and nobody would have told."""
    table = with_table(catalog, "sales.orders", 1)
    inside = Path(table.location().removeprefix("file://")) / "data/mine.parquet"
    pq.write_table(rows(8), inside)
    (tmp_path / "other").mkdir()
    other = new_iceberg(tmp_path / "other")
    catalog.register_table("sales.sound", with_table(other, "a.sound", 1).metadata_location)
    theirs = with_table(other, "a.b", 1)
    theirs.add_files([inside.as_uri()])
    fence(catalog)
    with pytest.raises(CommitFailedException, match=VOID):
        catalog.register_table("sales.theirs", theirs.metadata_location)
    assert [1] == ids(catalog.load_table("sales.sound"))
    inside.write_bytes(inside.read_bytes())
    catalog.register_table("sales.theirs", theirs.metadata_location)
    assert [1, 8] == ids(catalog.load_table("sales.theirs"))


def _twice(catalog: TrinityLakeCatalog, late: Transaction) -> None:
    """Commit what a transaction of PyIceberg prepared, and a second change of the same table, in one version."""
    owner = SetPropertiesUpdate(updates={"owner": "me"})
    with catalog.transaction() as both:
        both.commit_table(both.load_table("sales.orders"), late._requirements, late._updates)
        both.commit_table(both.load_table("sales.orders"), (), (owner,))


def _as_one_request(catalog: TrinityLakeCatalog, late: Transaction) -> None:
    """The same as one request over several tables, as the REST endpoint carries it out."""
    name = ("sales", "orders")
    owner = SetPropertiesUpdate(updates={"owner": "me"})
    catalog.commit_tables([(name, late._requirements, late._updates), (name, (), (owner,))])


@pytest.mark.parametrize("commit_both", [_twice, _as_one_request])
@pytest.mark.parametrize("grouped", ["true", "false"])
def test_of_two_changes_of_a_table_the_first_does_not_vouch_for_the_second(
    tmp_path: Path, commit_both: Callable[[TrinityLakeCatalog, Transaction], None], grouped: str
) -> None:
    """What counts as known is what the base version names, and that is the state before both."""
    new_iceberg(tmp_path)
    catalog = opened((tmp_path / "lake").as_uri(), **{"group-commits": grouped})
    table = with_table(catalog, "sales.orders", 1)
    late = table.transaction()
    late.append(rows(2))
    fence(catalog)
    version = catalog.lakehouse.version
    with pytest.raises(CommitFailedException, match=VOID):
        commit_both(catalog, late)
    assert version == catalog.lakehouse.version
    fresh = catalog.load_table("sales.orders").transaction()
    fresh.append(rows(3))
    commit_both(catalog, fresh)
    assert [1, 3] == ids(catalog.load_table("sales.orders"))


def test_a_table_that_was_registered_in_the_same_transaction_vouches_for_nothing(catalog: TrinityLakeCatalog) -> None:
    metadata = with_table(catalog, "sales.orders", 1).metadata_location
    catalog.drop_table("sales.orders")
    fence(catalog)
    owner = SetPropertiesUpdate(updates={"owner": "me"})
    with pytest.raises(CommitFailedException, match=VOID), catalog.transaction() as both:  # noqa: PT012 - its end raises
        both.register_table("sales.again", metadata)
        both.commit_table(both.load_table("sales.again"), (), (owner,))
    assert [] == catalog.list_tables("sales")


def test_a_manifest_that_calls_an_old_file_existing_proves_nothing(catalog: TrinityLakeCatalog) -> None:
    """A writer took a file of a table that is dropped, and writes it into a manifest of another one as EXISTING."""
    lost = with_table(catalog, "sales.lost", 1)
    entry = lost.current_snapshot().manifests(lost.io)[0].fetch_manifest_entry(lost.io)[0]  # type: ignore[union-attr]
    catalog.drop_table("sales.lost")
    table = with_table(catalog, "sales.orders", 2)
    fence(catalog)
    transaction = table.transaction()
    with transaction.update_snapshot().fast_append() as append:
        append._existing_manifests = lambda: [_with_existing(append, entry)]  # type: ignore[method-assign]
    with pytest.raises(CommitFailedException, match=VOID):
        transaction.commit_transaction()
    assert [2] == ids(catalog.load_table("sales.orders"))


def _with_existing(append: Any, entry: Any) -> Any:
    with append.new_manifest_writer(append.spec(0)) as writer:
        writer.existing(entry)
    return writer.to_manifest_file()


@pytest.mark.parametrize("spelling", ["localhost", "slashes", "link", "percent", "bucket"])
def test_a_file_is_held_to_the_fence_whichever_way_it_is_spelled(
    catalog: TrinityLakeCatalog, tmp_path: Path, spelling: str
) -> None:
    inside = Path(with_table(catalog, "sales.lost", 1).location().removeprefix("file://")) / "data/mine.parquet"
    pq.write_table(rows(8), inside)
    (tmp_path / "link").symlink_to(inside.parents[3])
    below = inside.relative_to(inside.parents[3])
    uris = {
        "localhost": f"file://localhost{inside}",
        "slashes": f"file://{inside.parents[3]}//{below}",
        "link": f"file://{tmp_path}/link/{below}",
        "percent": f"file://{str(inside).replace('mine', 'm%69ne')}",
        "bucket": f"s3://another-name/tables/{below}",
    }
    table = with_table(catalog, "sales.orders", 2)
    fence(catalog)
    added = AddedFiles(catalog.lakehouse.storage)
    added.add(None, None, table.metadata_location)
    added._paths = set(added._in_area([uris[spelling]]))
    with pytest.raises(CommitConflict, match=VOID):
        added.refuse_void(catalog.lakehouse.root_node)


def test_a_file_elsewhere_whose_end_is_like_one_of_ours_is_not_missing_here(catalog: TrinityLakeCatalog) -> None:
    table = with_table(catalog, "sales.orders", 2)
    fence(catalog, 1)
    added = AddedFiles(catalog.lakehouse.storage)
    added.add(None, None, table.metadata_location)
    added._paths = set(added._in_area(["s3://another/tables/a/b-0123456789ab/data/none.parquet"]))
    added.refuse_void(catalog.lakehouse.root_node)


def test_several_tables_and_groups_are_proved_together(tmp_path: Path) -> None:
    new_iceberg(tmp_path)
    catalog = opened((tmp_path / "lake").as_uri(), **{"group-commits": "true"})
    one, two = with_table(catalog, "sales.one", 1), with_table(catalog, "sales.two", 1)
    fence(catalog)
    with catalog.transaction() as both:
        for name in ("one", "two"):
            both.load_table(f"sales.{name}").append(rows(2))
    late = waiting(one.refresh(), 3)
    fence(catalog)
    two.refresh().append(rows(3))
    with pytest.raises(CommitFailedException, match=VOID):
        late()
    assert ([1, 2], [1, 2, 3]) == tuple(ids(catalog.load_table(f"sales.{name}")) for name in ("one", "two"))


def test_three_rounds_more_and_none_where_tables_were_never_cleaned(catalog: TrinityLakeCatalog) -> None:
    """Two manifest lists, then the new manifest, then the list, manifest, data file and metadata file asked for."""
    table = with_table(catalog, "sales.orders", 1)
    measured = []
    for number in range(2, 4):
        late = waiting(table.refresh(), number)
        with Rounds(catalog.lakehouse.storage) as rounds:
            late()
        measured.append((rounds.chain, rounds.requests))
        if number == 2:
            fence(catalog, 1)
            catalog.load_table("sales.orders")  # the fence is no race
    (chain, requests), (more, all_requests) = measured
    assert (3, 2 + 1 + 4) == (more - chain, all_requests - requests)


def test_the_row_of_an_unreadable_root_counts_as_a_fence(catalog: TrinityLakeCatalog) -> None:
    with_table(catalog, "sales.orders", 1)
    late = waiting(catalog.load_table("sales.orders"), 2)
    lake = catalog.lakehouse
    storage = open_storage(lake.root)
    storage.replace(lake.root_node.path, b"garbage")
    damaged = Lakehouse.open(lake.root, damaged=True)
    time.sleep(0.02)
    damaged.rollback(version=damaged.version, reason="r")
    again = Lakehouse.open(lake.root)
    assert 0 < again.root_node.tables_void_before_millis == int(again.root_node.system[spec.VOID_BEFORE_MILLIS])
    with pytest.raises(CommitFailedException):
        late()


def _raw(location: str) -> dict[str, Any]:
    return {"table_format": "ICEBERG", "format_properties": {"metadata_location": location}}


def test_metadata_that_nothing_proves_are_refused_once_tables_were_cleaned(
    catalog: TrinityLakeCatalog, tmp_path: Path
) -> None:
    """By a plain transaction, from a backup, and in a saved transaction; before the fence they were not."""
    with_table(catalog, "sales.orders", 1)
    catalog.lakehouse.refresh()
    location = _definition(catalog)["metadata_location"]
    backup = Lakehouse.create((tmp_path / "backup").as_uri())
    with backup.transaction() as txn:
        txn.create_namespace("sales")
        txn.create_table("sales", "lost", **_raw(location))
    with catalog.lakehouse.transaction() as txn:
        txn.create_table("sales", "copied", **_raw(location))
    saved = catalog.lakehouse.refresh().transaction()
    saved.create_table("sales", "saved", **_raw(location))
    fence(catalog)
    lake = catalog.lakehouse
    with pytest.raises(CommitConflict, match="register_table"):
        saved.save()
    lake.refresh()
    with pytest.raises(CommitConflict, match=f"^{location}.*register_table"), lake.transaction() as txn:
        txn.create_table("sales", "again", **_raw(location))
    with pytest.raises(CommitConflict, match="register_table"), lake.transaction() as txn:
        txn.alter_table("sales", "copied", format_properties={"metadata_location": f"{location}x"})
    with pytest.raises(CommitConflict, match="register_table"), lake.transaction() as txn:
        txn.create_view("sales", "v", "SELECT 1", properties={VIEW_METADATA_LOCATION: location})
    with pytest.raises(CommitConflict, match="register_table"):
        lake.restore(["sales.lost"], source=backup.refresh(), reason="r")
    assert [[], ["copied", "orders"]] == [lake.refresh().views("sales"), lake.tables("sales")]


def test_what_the_base_names_needs_no_proof(catalog: TrinityLakeCatalog) -> None:
    """A plain transaction alters and renames the table, and names metadata elsewhere."""
    with_table(catalog, "sales.orders", 1)
    fence(catalog)
    lake = catalog.lakehouse.refresh()
    with lake.transaction() as txn:
        txn.alter_table("sales", "orders", properties={"a": "b"})
        txn.alter_table("sales", "orders", properties={"c": "d"})
        txn.rename_table("sales", "orders", "sales", "renamed")
        txn.create_table("sales", "other", table_type="EXTERNAL", **_raw("s3://other/a.metadata.json"))
    assert {"a": "b", "c": "d", **ONCE} == dict(lake.refresh().table("sales", "renamed").properties)
    assert [1] == ids(catalog.load_table("sales.renamed"))


def test_a_copy_of_a_definition_is_refused_in_a_group_once_its_base_has_expired_and_tables_were_cleaned(
    catalog: TrinityLakeCatalog,
) -> None:
    """A group rebases from memory, so nothing else looks whether the version that the copy was made from is kept."""
    with_table(catalog, "sales.orders", 1)
    lake = catalog.lakehouse.refresh()
    group = lake.group()
    late = lake.transaction(group=group)
    location = late.table("sales", "orders").format_properties["metadata_location"]
    late.create_table("sales", "copy", **_raw(location))
    catalog.drop_table("sales.orders")
    other = Lakehouse.open(lake.root)
    expire.run(other, expire.Config(keep_last=1, engine="local", now_millis=now_millis() + MONTH))
    fence(catalog)
    with lake.refresh().transaction(group=group) as txn:  # from now on the group remembers all versions in between
        txn.create_namespace("other")
    assert other.refresh().root_node.oldest_version > late.base_version
    with pytest.raises(CommitConflict, match=r"register_table|expired"):
        late.commit()
    assert [] == catalog.list_tables("sales")
