"""PyIceberg's catalog over a lakehouse: what it writes, races, several tables at once, and the past."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    ForbiddenError,
    NamespaceNotEmptyError,
    NoSuchNamespaceError,
    NoSuchTableError,
    NoSuchViewError,
    TableAlreadyExistsError,
    ViewAlreadyExistsError,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BinaryType,
    DecimalType,
    FixedType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
    UUIDType,
)
from pyiceberg.view.metadata import SQLViewRepresentation, ViewRepresentation, ViewVersion

from pipelines import clean, compaction, expire, tables_clean
from tests.support.engines import connected
from tests.support.icebergs import SCHEMA, ids, new_iceberg, opened, rows, with_table
from tests.support.lakes import compacted
from trinitylake_core.clock import now_millis
from trinitylake_core.definitions import check_schema
from trinitylake_core.iceberg import TrinityLakeCatalog
from trinitylake_core.iceberg.rights.locations import Locations
from trinitylake_core.iceberg.rights.metadata_files import MetadataFiles
from trinitylake_core.iceberg.schemas import schema_from_iceberg, schema_to_iceberg
from trinitylake_core.locations import node_path
from trinitylake_core.rest import endpoint
from trinitylake_core.tables import path_below

MONTH = 30 * 86_400_000
LATER = now_millis() + 30 * 86_400_000
"""A month from now: whatever is old enough to go, goes."""


def _files(catalog: TrinityLakeCatalog) -> set[str]:
    return {info.path for info in catalog.lakehouse.storage.list("")}


# -- what a table is -----------------------------------------------------------------------------------


def test_a_table_made_here_is_managed_and_its_definition_says_what_its_metadata_say(
    catalog: TrinityLakeCatalog,
) -> None:
    schema = Schema(
        NestedField(1, "id", LongType(), required=True, doc="the key"),
        NestedField(2, "day", StringType()),
        identifier_field_ids=[1],
    )
    catalog.create_namespace("sales")
    table = catalog.create_table(
        "sales.orders",
        schema,
        partition_spec=PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "day")),
        sort_order=SortOrder(SortField(1, IdentityTransform())),
        properties={"owner": "emea"},
    )
    with table.transaction() as change:
        change.set_properties(tier="gold")
        change.remove_properties("owner")
    found = catalog.lakehouse.table("sales", "orders")
    location = found.format_properties["metadata_location"]
    assert ("MANAGED", "ICEBERG") == (found.table_type, found.table_format)
    assert location.startswith("tables/sales/orders-")
    assert table.metadata_location == f"{table.catalog._places.base}{location}"
    assert found.format_properties["previous_metadata_location"].startswith("tables/sales/orders-")
    assert found.format_properties["uuid"] == str(table.metadata.table_uuid)
    assert {"tier": "gold"} == dict(found.properties)
    assert ([1], [2], [1]) == (list(found.primary_keys), list(found.distribution_keys), list(found.sort_keys))
    assert [("id", False), ("day", True)] == [(column.name, column.nullable) for column in found.schema.columns]


def test_a_schema_keeps_ids_types_and_comments_both_ways() -> None:
    schema = Schema(
        NestedField(1, "id", UUIDType(), required=True),
        NestedField(2, "price", DecimalType(12, 2), doc="net"),
        NestedField(3, "tags", MapType(4, StringType(), 5, IntegerType(), value_required=True)),
        NestedField(6, "at", ListType(7, StructType(NestedField(8, "when", TimestamptzType())))),
        NestedField(9, "raw", FixedType(3)),
        NestedField(10, "blob", BinaryType()),
    )
    stored = schema_from_iceberg(schema)
    check_schema(stored)
    assert schema.as_struct() == schema_to_iceberg(stored).as_struct()


def test_clean_touches_no_file_of_a_table_and_no_version_loses_one(
    catalog: TrinityLakeCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything that PyIceberg wrote, also through the object-store layout whose names look like ours, stays.

    Release 0.1 made tables at the root.
    """
    monkeypatch.setattr(Locations, "shared_ground", lambda *_: [])
    table = with_table(catalog, "sales.orders", 1, properties={"write.object-storage.enabled": "true"})
    root = catalog.lakehouse.root
    there = with_table(
        catalog,
        "sales.at_the_root",
        1,
        location=root.rstrip("/"),
        properties={
            "write.object-storage.enabled": "true",
            "write.object-storage.partitioned-paths": "false",
            "write.data.path": root.rstrip("/"),
        },
    )
    table.append(rows(2))
    there.append(rows(2))
    catalog.drop_table("sales.orders")
    theirs = {path for path in _files(catalog) if path.endswith((".parquet", ".avro", ".json"))}
    before = catalog.lakehouse.version
    catalog.lakehouse.storage.write_many([(node_path(), b"an orphan")])
    expire.run(catalog.lakehouse, expire.Config(keep_last=1, engine="local", now_millis=LATER))
    report = clean.run(catalog.lakehouse, clean.Config(engine="local", now_millis=LATER))
    assert 1 == report.deleted
    assert theirs <= _files(catalog)
    assert 12 < len(theirs)
    assert [1, 2] == ids(catalog.load_table("sales.at_the_root"))
    assert catalog.lakehouse.version > before


# -- namespaces ----------------------------------------------------------------------------------------


def test_a_parent_exists_because_of_its_children_and_becomes_real_with_its_first_table(
    catalog: TrinityLakeCatalog,
) -> None:
    catalog.create_namespace("eu.de")
    assert catalog.namespace_exists("eu")
    assert not catalog.namespace_exists("e")
    assert {} == catalog.load_namespace_properties("eu")
    with pytest.raises(NamespaceNotEmptyError, match="namespaces are below it"):
        catalog.drop_namespace("eu")
    with_table(catalog, "eu.orders")
    assert ["eu", "eu.de"] == catalog.lakehouse.namespaces()
    assert [("eu", "de")] == catalog.list_namespaces("eu")
    assert [("eu",)] == catalog.list_namespaces()


# -- races ---------------------------------------------------------------------------------------------


def test_an_append_that_loses_a_race_is_done_again_by_pyiceberg(catalog: TrinityLakeCatalog) -> None:
    with_table(catalog, "sales.orders")
    first, second = catalog.load_table("sales.orders"), opened(catalog.lakehouse.root).load_table("sales.orders")
    first.append(rows(1))
    second.append(rows(2))
    assert [1, 2] == ids(catalog.load_table("sales.orders"))


def test_requirements_are_proved_against_what_others_committed(catalog: TrinityLakeCatalog) -> None:
    """What they do not touch is applied on top; what they broke is refused, and leaves no file."""
    with_table(catalog, "sales.orders")
    stale = catalog.load_table("sales.orders")
    also = catalog.load_table("sales.orders")
    with catalog.load_table("sales.orders").update_schema() as change:
        change.add_column("a", StringType())
    with stale.transaction() as txn:
        txn.set_properties(owner="me")
    before = _files(catalog)
    with pytest.raises(CommitFailedException, match="current schema id has changed"), also.update_schema() as change:
        change.add_column("b", StringType())
    assert before == _files(catalog)
    found = catalog.load_table("sales.orders")
    assert ("me", ["id", "name", "a"]) == (found.properties["owner"], found.schema().column_names)


def test_a_race_over_one_table_is_retried_inside_as_long_as_the_requirements_hold(
    catalog: TrinityLakeCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody commits between the look at the newest version and the creation of the root."""
    table = with_table(catalog, "sales.orders")
    other = opened(catalog.lakehouse.root)
    write, lost = catalog._places.write, []

    def late(*args: object) -> object:
        if not lost:
            lost.append(1)
            other.load_table("sales.orders").append(rows(7))
        return write(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(catalog._places, "write", late)
    with table.transaction() as txn:
        txn.set_properties(owner="me")
    assert ([7], "me") == (ids(found := catalog.load_table("sales.orders")), found.properties["owner"])
    metadata = [path for path in _files(catalog) if path.endswith(".metadata.json")]
    assert 4 == len(metadata), "those of the try that lost stay: a root that was tried names them"


def test_a_table_and_a_view_of_one_name_exclude_each_other_in_a_race(catalog: TrinityLakeCatalog) -> None:
    catalog.create_namespace("sales")
    pending = catalog.transaction()
    pending.create_table("sales.x", SCHEMA)
    _create_view(catalog, "sales.x")
    with pytest.raises(CommitFailedException):
        pending.commit()
    with pytest.raises(TableAlreadyExistsError):
        catalog.create_table("sales.x", SCHEMA)
    with_table(catalog, "sales.y")
    with pytest.raises(ViewAlreadyExistsError):
        _create_view(catalog, "sales.y")


# -- rename, drop, purge, register ---------------------------------------------------------------------


def test_a_dropped_table_and_a_purged_one_read_in_older_versions(catalog: TrinityLakeCatalog) -> None:
    with_table(catalog, "sales.orders", 1)
    with_table(catalog, "sales.items", 2)
    version = str(catalog.lakehouse.version)
    catalog.drop_table("sales.orders")
    catalog.purge_table("sales.items")
    past = opened(catalog.lakehouse.root, version=version)
    assert ([1], [2]) == (ids(past.load_table("sales.orders")), ids(past.load_table("sales.items")))
    assert "purge table sales.items" == catalog.lakehouse.info().reason
    with pytest.raises(NoSuchTableError):
        catalog.purge_table("sales.items")


def test_registered_tables_are_external_outside_the_root_and_managed_inside(
    catalog: TrinityLakeCatalog, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    theirs = with_table(new_iceberg(tmp_path / "other"), "a.b", 1)
    catalog.create_namespace("sales")
    external = catalog.register_table("sales.theirs", theirs.metadata_location.removeprefix("file://"))
    external.append(rows(2))
    found = catalog.lakehouse.table("sales", "theirs")
    assert "EXTERNAL" == found.table_type
    assert found.format_properties["metadata_location"].startswith(f"file://{tmp_path}/other/lake/tables/a/b-")
    assert [1, 2] == ids(catalog.load_table("sales.theirs"))
    assert [1] == ids(theirs.refresh()), "the other catalog goes on by itself"
    inside = with_table(catalog, "sales.own", 5)
    catalog.drop_table("sales.own")
    catalog.register_table("sales.again", inside.metadata_location)
    assert "MANAGED" == catalog.lakehouse.table("sales", "again").table_type
    with pytest.raises(TableAlreadyExistsError):
        catalog.register_table("sales.again", inside.metadata_location)
    catalog.drop_table("sales.theirs")
    catalog.register_table("sales.again", theirs.metadata_location, overwrite=True)
    assert [1] == ids(catalog.load_table("sales.again"))


def test_stage_create_makes_the_table_with_its_first_rows(catalog: TrinityLakeCatalog) -> None:
    catalog.create_namespace("eu.de")
    version = catalog.lakehouse.version
    with catalog.create_table_transaction("eu.de.orders", SCHEMA) as staged:
        with staged.update_snapshot().fast_append():
            pass
        staged.set_properties(owner="me")
        assert not catalog.table_exists("eu.de.orders")
    assert version + 1 == catalog.lakehouse.version
    assert "me" == catalog.load_table("eu.de.orders").properties["owner"]


# -- several tables at once ----------------------------------------------------------------------------


def test_a_transaction_that_fails_leaves_nothing(catalog: TrinityLakeCatalog) -> None:
    """By an exception in the block, or by a race over one of its tables."""
    with_table(catalog, "sales.orders", 1)
    with_table(catalog, "sales.items", 1)
    before = {path for path in _files(catalog) if path.endswith(("metadata.json", "binpb"))}
    with pytest.raises(NoSuchTableError), catalog.transaction() as txn:  # noqa: PT012 - what the block raises is the point
        txn.load_table("sales.orders").append(rows(2))
        txn.load_table("sales.none")
    assert before == {path for path in _files(catalog) if path.endswith(("metadata.json", "binpb"))}
    with pytest.raises(CommitFailedException), catalog.transaction() as txn:  # noqa: PT012 - raised at its end
        txn.load_table("sales.orders").append(rows(2))
        txn.purge_table("sales.items")
        catalog.load_table("sales.orders").append(rows(3))
    assert ([1, 3], [1]) == (ids(catalog.load_table("sales.orders")), ids(catalog.load_table("sales.items")))


def test_metadata_are_packed_where_the_properties_of_the_table_say_so(catalog: TrinityLakeCatalog) -> None:
    name = "write.metadata.compression-codec"
    table = with_table(catalog, "sales.orders", 1, properties={name: "gzip"})
    table.append(rows(2))
    packed = catalog.load_table("sales.orders").metadata_location
    assert packed.endswith(".gz.metadata.json")
    assert Path(packed.removeprefix("file://")).read_bytes().startswith(b"\x1f\x8b")
    with endpoint(catalog.lakehouse) as at, connected(at) as connection:
        assert [(1,), (2,)] == connection.execute("SELECT id FROM l.sales.orders ORDER BY 1").fetchall()
        connection.execute("INSERT INTO l.sales.orders VALUES (3, 'x')")
    catalog.lakehouse.refresh()
    with catalog.load_table("sales.orders").transaction() as change:
        change.remove_properties(name)
    plain = catalog.load_table("sales.orders")
    assert (True, [1, 2, 3]) == (Path(plain.metadata_location).name.startswith("00004-"), ids(plain))
    assert Path(plain.metadata_location.removeprefix("file://")).read_bytes().startswith(b"{")
    expire.run(catalog.lakehouse, expire.Config(keep_last=1, engine="local", now_millis=LATER))
    compaction.run(catalog.lakehouse, compaction.Config(engine="local"))
    expire.run(catalog.lakehouse, expire.Config(keep_last=1, engine="local", now_millis=LATER))
    how = tables_clean.Config(engine="local", older_than_seconds=0, allow_recent=True)
    assert () == tables_clean.run(catalog.lakehouse, how).doubts
    assert path_below(catalog.lakehouse.root, packed) not in _files(catalog)
    assert [1, 2, 3] == ids(catalog.load_table("sales.orders"))


def test_packed_metadata_are_held_by_their_size_in_memory(catalog: TrinityLakeCatalog) -> None:
    properties = {"write.metadata.compression-codec": "gzip", "much": "x" * (3 << 20)}
    metadata = with_table(catalog, "sales.orders", properties=properties).metadata
    places = MetadataFiles(catalog.lakehouse.storage, Locations(catalog.lakehouse.root))
    places.serve_clients()
    files = [places.new_metadata_file(metadata, number) for number in range(2)]
    for file in files:
        places.write(metadata, file)
    assert places._recent is not None
    assert [False, True] == [places._recent.held(file) is not None for file in files]


# -- maintenance beside it, and the past ---------------------------------------------------------------


def test_the_past_is_opened_by_version_time_and_snapshot_and_is_read_only(catalog: TrinityLakeCatalog) -> None:
    table = with_table(catalog, "sales.orders", 1)
    good = catalog.lakehouse.info()
    catalog.lakehouse.create_snapshot("good", version=good.version)
    table.append(rows(2))
    root = catalog.lakehouse.root
    millis = str(int(good.created_at.timestamp() * 1000))
    for how in ({"version": str(good.version)}, {"timestamp": good.created_at.isoformat()}, {"timestamp": millis}):
        past = opened(root, **how)
        assert [1] == ids(past.load_table("sales.orders"))
    past = opened(root, snapshot="good")
    old = past.load_table("sales.orders")
    assert [1] == ids(old)
    for refused in (lambda: old.append(rows(9)), lambda: past.drop_table("sales.orders"), past.transaction):
        with pytest.raises(ForbiddenError, match="read-only"):
            refused()
    assert [1, 2] == ids(catalog.load_table("sales.orders"))


def test_a_version_that_expires_and_is_cleaned_while_it_is_read_is_left_for_a_newer_one(
    catalog: TrinityLakeCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader, a writer and a transaction have found the newest version; before they read on, its files go."""
    with_table(catalog, "sales.orders", 1)
    other, looked = opened(catalog.lakehouse.root), type(catalog._backend).newest
    began = catalog.transaction()
    late: list[int] = []

    def newest(files: Any) -> Any:
        found = looked(files)
        if files is catalog._backend and not late:
            late.append(found.version)
            other.load_table("sales.orders").append(rows(len(late) + found.version))
            compacted(other.lakehouse)
            expire.run(other.lakehouse, expire.Config(keep_last=1, engine="local", now_millis=now_millis() + MONTH))
            clean.run(other.lakehouse, clean.Config(engine="local", now_millis=now_millis() + MONTH))
        return found

    monkeypatch.setattr(type(catalog._backend), "newest", newest)
    assert 2 == len(ids(catalog.load_table("sales.orders")))
    late.clear()
    with catalog.load_table("sales.orders").transaction() as txn:
        txn.set_properties(owner="me")
    assert "me" == catalog.load_table("sales.orders").properties["owner"]
    with pytest.raises(CommitFailedException, match="has expired"):
        began.load_table("sales.orders")


# -- views ---------------------------------------------------------------------------------------------


def _create_view(catalog: Catalog, name: str) -> None:
    query = ViewRepresentation(SQLViewRepresentation(type="sql", sql="SELECT 1", dialect="spark"))
    version = ViewVersion.model_validate(
        {"schema-id": 0, "timestamp-ms": 5, "representations": [query], "default-namespace": ["sales"]}
        | {"summary": {"engine": "test"}, "default-catalog": "lake"}
    )
    schema = Schema(NestedField(1, "one", LongType(), doc="always 1"))
    catalog.create_view(name, schema, version, properties={"owner": "me"})


def test_a_view_comes_back_as_it_was_made(catalog: TrinityLakeCatalog, tmp_path: Path) -> None:
    catalog.create_namespace("sales")
    _create_view(catalog, "sales.top")
    view = catalog.load_view("sales.top")
    assert ("SELECT 1", "lake") == (view.sql_for("Spark").sql, view.current_version().default_catalog)  # type: ignore[union-attr]
    assert ({"owner": "me"}, 5) == (view.properties, view.current_version().timestamp_ms)
    assert Schema(NestedField(1, "one", LongType(), doc="always 1")).as_struct() == view.schema().as_struct()
    assert [("sales", "top")] == catalog.list_views("sales")
    file = tmp_path / "view.json"
    file.write_text(view.metadata.model_dump_json(by_alias=True))
    registered = catalog.register_view("sales.second", file.as_uri())
    assert view.current_version() == registered.current_version()
    catalog.drop_view("sales.top")
    assert not catalog.view_exists("sales.top")
    with pytest.raises(NoSuchViewError):
        catalog.load_view("sales.top")


# -- beside the library --------------------------------------------------------------------------------


def test_a_table_that_the_library_made_has_no_metadata_yet(catalog: TrinityLakeCatalog) -> None:
    with catalog.lakehouse.transaction() as txn:
        txn.create_namespace("sales")
        txn.create_table("sales", "orders", SCHEMA)
    assert not catalog.table_exists("sales.orders")
    with pytest.raises(NoSuchTableError, match="nothing has written metadata"):
        catalog.load_table("sales.orders")
    with pytest.raises(TableAlreadyExistsError):
        catalog.create_table("sales.orders", SCHEMA)
    assert [("sales", "orders")] == catalog.list_tables("sales")
    catalog.drop_table("sales.orders")
    assert [] == catalog.list_tables("sales")


def test_a_missing_namespace_is_pyicebergs_exception_everywhere(catalog: TrinityLakeCatalog) -> None:
    for act in (
        lambda: catalog.list_tables("no"),
        lambda: catalog.list_views("no"),
        lambda: catalog.list_namespaces("no"),
        lambda: catalog.load_namespace_properties("no"),
        lambda: catalog.update_namespace_properties("no", updates={"a": "b"}),
        lambda: catalog.drop_namespace("no"),
        lambda: catalog.create_table("no.t", SCHEMA),
        lambda: catalog.register_table("no.t", "file:///nowhere"),
        lambda: _create_view(catalog, "no.v"),
    ):
        with pytest.raises(NoSuchNamespaceError):
            act()
    assert 0 == catalog.lakehouse.version
