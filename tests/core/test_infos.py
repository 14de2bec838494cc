"""Definitions as programs use them: what a table, a view and a namespace say, without a protobuf message in sight."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.lakes import new_lake
from trinitylake_core import InvalidDefinition, InvalidLocation, Lakehouse, ObjectNotFound, TableInfo
from trinitylake_core.definitions import Column, Schema, TableDef, table_def

ORDERS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("price", pa.decimal128(10, 2)),
        pa.field("buyer", pa.struct([pa.field("country", pa.string())])),
    ]
)


@pytest.fixture
def lake(tmp_path: Path) -> Lakehouse:
    """Return a lakehouse with a table, a view and a namespace that say all they can."""
    lake = new_lake(tmp_path / "a lake")
    with lake.transaction() as txn:
        txn.create_namespace("sales", {"owner": "emea"})
        txn.create_table(
            "sales",
            "orders",
            ORDERS,
            primary_keys=["id"],
            sort_keys=["buyer.country", "id"],
            properties={"tier": "gold"},
            format_properties={
                "location": "tables/orders/",
                "metadata_location": "tables/orders/1.metadata.json",
                "current-snapshot-id": "7",
            },
        )
        txn.create_view("sales", "top", sql="SELECT 1", referenced_object_full_names=["sales.orders"], schema=ORDERS)
        txn.create_view(
            "sales", "low", sql_representations=[{"sql": "A", "dialect": "x"}, {"sql": "B", "dialect": "y"}]
        )
    return lake.refresh()


def test_a_table_says_its_arrow_schema_its_keys_by_name_and_where_it_is(lake: Lakehouse) -> None:
    table = lake.table_info("sales", "orders")
    below = lake.root.replace("%20", " ")
    assert ORDERS.equals(table.schema, check_metadata=False)
    assert (["id"], ["buyer.country", "id"], [], []) == (
        table.primary_keys,
        table.sort_keys,
        table.distribution_keys,
        table.unique_columns,
    )
    assert ("MANAGED", "ICEBERG", 7) == (table.type, table.format, table.snapshot_id)
    assert (f"{below}tables/orders", f"{below}tables/orders/1.metadata.json") == (
        table.location,
        table.metadata_location,
    )
    assert {"tier": "gold"} == table.properties
    assert "tables/orders/" == table.format_properties["location"]
    assert (table.definition.id, table.definition) == (table.id, lake.table("sales", "orders"))


def test_its_schema_goes_back_into_a_definition_unchanged(lake: Lakehouse) -> None:
    table = lake.table_info("sales", "orders")
    assert table.definition.schema == table_def(table.schema).schema


def test_views_and_namespaces_say_what_they_hold(lake: Lakehouse) -> None:
    top, low = (lake.view_info("sales", name) for name in ("top", "low"))
    assert ({"spark": "SELECT 1"}, [("sales", "orders")], False) == (top.sql, top.references, top.schema_binding)
    assert top.schema is not None
    assert ORDERS.equals(top.schema)
    assert ({"x": "A", "y": "B"}, [], None, {}) == (low.sql, low.references, low.schema, low.properties)
    namespace = lake.namespace_info("sales")
    assert ("sales", {"owner": "emea"}) == (namespace.name, namespace.properties)
    assert lake.namespace("sales").id == namespace.id != low.id == lake.view("sales", "low").id


def test_a_transaction_says_what_it_would_commit_and_a_handle_what_was(lake: Lakehouse) -> None:
    with lake.transaction() as txn:
        txn.alter_table("sales", "orders", properties={"tier": "tin"})
        assert {"tier": "tin"} == txn.table_info("sales", "orders").properties
    assert {"tier": "gold"} == lake.table_info("sales", "orders").properties
    with pytest.raises(ObjectNotFound):
        lake.table_info("sales", "none")


def test_what_is_handed_out_changes_nothing(lake: Lakehouse) -> None:
    lake.table_info("sales", "orders").properties["tier"] = "tin"
    assert {"tier": "gold"} == lake.table_info("sales", "orders").properties


def test_a_definition_that_names_no_place_has_none_and_one_that_leads_out_is_refused() -> None:
    def info(table: TableDef) -> TableInfo:
        return TableInfo("n", "t", "s3://bucket/lake/", table)

    assert (None, None, None) == (
        info(table_def()).location,
        info(table_def()).metadata_location,
        info(table_def()).snapshot_id,
    )
    outside = table_def(table_type="EXTERNAL", format_properties={"location": "s3://else/t"})
    assert "s3://else/t" == info(outside).location
    garbage = TableDef(table_type="MANAGED", format_properties={"location": "../t", "current-snapshot-id": "x"})
    assert info(garbage).snapshot_id is None
    with pytest.raises(InvalidLocation):
        _ = info(garbage).location


def test_a_column_of_a_newer_release_hides_nothing_else() -> None:
    newer = TableDef(
        schema=Schema(columns=[Column(id=1, name="c", type=99)]), primary_keys=[1, 2], properties={"a": "b"}
    )
    table = TableInfo("n", "t", "s3://bucket/lake/", newer)
    assert ({"a": "b"}, ["c", "2"]) == (table.properties, table.primary_keys)
    assert "c" in repr(table)
    with pytest.raises(InvalidDefinition):
        _ = table.schema
