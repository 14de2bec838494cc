"""Tables of Iceberg's format version 3: through the endpoint, in this process, and with DuckDB and Spark."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from pyiceberg.exceptions import ValidationError
from pyiceberg.types import LongType

from tests.core.test_rest import Client
from tests.support.engines import by_spark_sql, connected
from tests.support.icebergs import ids, new_iceberg, rows, with_table, write_empty_list
from tests.support.writers import pool
from trinitylake_core import Lakehouse
from trinitylake_core.iceberg import TrinityLakeCatalog
from trinitylake_core.rest import Served, endpoint

_TABLES: Final = "/v1/lake/namespaces/a/tables"
_TABLE: Final = f"{_TABLES}/t"
_V3: Final = {"format-version": "3"}
_LONG: Final = {"id": 1, "name": "x", "type": "long", "required": False}


@pytest.fixture
def call(served: Served) -> Client:
    client = Client(served.uri, served.token)
    client("POST", "/v1/lake/namespaces", {"namespace": ["a"]})
    return client


def _schema(*fields: dict[str, Any], number: int = 0) -> dict[str, Any]:
    return {"type": "struct", "schema-id": number, "fields": list(fields)}


def _create(call: Client, *fields: dict[str, Any], **properties: str) -> Any:
    body = {"name": "t", "schema": _schema(*fields or (_LONG,)), "properties": properties or _V3}
    return call("POST", _TABLES, body)


def _commit(call: Client, *updates: dict[str, Any]) -> Any:
    return call("POST", _TABLE, {"requirements": [], "updates": updates})


def _metadata(call: Client) -> dict[str, Any]:
    found: dict[str, Any] = call("GET", _TABLE).json()["metadata"]
    return found


def _snapshot(call: Client, number: int, **fields: Any) -> dict[str, Any]:
    """Return the update that adds a snapshot of ten rows, whose manifest list is empty."""
    listed = f"{_metadata(call)['location']}/metadata/snap-{number}.avro"
    write_empty_list(listed)
    snapshot = {
        "snapshot-id": number,
        "sequence-number": number,
        "timestamp-ms": 1_800_000_000_000 + number,
        "manifest-list": listed,
        "summary": {"operation": "append"},
        "first-row-id": 0,
        "added-rows": 10,
    }
    snapshot |= {name.replace("_", "-"): value for name, value in fields.items()}
    wanted = {name: value for name, value in snapshot.items() if value is not None}
    return {"action": "add-snapshot", "snapshot": wanted}


# -- create, upgrade, commit -------------------------------------------------------------------------------------


def test_a_new_table_begins_with_row_0_and_is_served_with_what_java_asks_for(call: Client) -> None:
    assert 200 == _create(call).status
    found = _metadata(call)
    assert (3, 0, 0) == (found["format-version"], found["next-row-id"], found["last-sequence-number"])


@pytest.mark.parametrize("version", [1, 2])
def test_a_table_is_upgraded_keeps_its_snapshots_and_goes_no_way_back(call: Client, version: int) -> None:
    _create(call, **{"format-version": str(version)})
    assert 200 == _commit(call, _snapshot(call, 1, first_row_id=None, added_rows=None)).status
    upgraded = _commit(call, {"action": "upgrade-format-version", "format-version": 3})
    assert 200 == upgraded.status, upgraded.text
    found = _metadata(call)
    assert (3, 0, [1]) == (
        found["format-version"],
        found["next-row-id"],
        [s["snapshot-id"] for s in found["snapshots"]],
    )
    again = _commit(call, {"action": "upgrade-format-version", "format-version": 3})
    assert (200, found) == (again.status, _metadata(call))
    for number, words in ((2, "Cannot downgrade v3 table to v2"), (4, "Unsupported table format version: 4")):
        refused = _commit(call, {"action": "upgrade-format-version", "format-version": number})
        assert 400 == refused.status
        assert words in refused.text


def test_rows_get_ids_without_a_gap_and_a_commit_that_began_earlier_is_a_lost_race(call: Client) -> None:
    _create(call)
    assert 200 == _commit(call, _snapshot(call, 1)).status
    stale_rows = _commit(call, _snapshot(call, 2, first_row_id=9, parent_snapshot_id=1))
    assert (409, "CommitFailedException") == stale_rows.problem
    assert "first row id" in stale_rows.text
    stale_order = _commit(call, _snapshot(call, 3, sequence_number=1, first_row_id=10, parent_snapshot_id=1))
    assert (409, "CommitFailedException") == stale_order.problem
    assert "sequence number" in stale_order.text
    assert 10 == _metadata(call)["next-row-id"]
    assert 200 == _commit(call, _snapshot(call, 2, first_row_id=10, added_rows=5, parent_snapshot_id=1)).status
    assert 15 == _metadata(call)["next-row-id"]
    assert 200 == _commit(call, _snapshot(call, 3, first_row_id=20, added_rows=0, parent_snapshot_id=2)).status
    assert 20 == _metadata(call)["next-row-id"], "no later snapshot may give an ID again that this one skipped"


@pytest.mark.parametrize("field", ["first_row_id", "added_rows"])
def test_a_snapshot_of_a_client_that_does_not_know_version_3_is_refused(call: Client, field: str) -> None:
    _create(call)
    refused = _commit(call, _snapshot(call, 1, **{field: None}))
    assert (400, "IllegalArgumentException") == refused.problem
    assert "needs first-row-id and added-rows" in refused.text
    assert [] == _metadata(call)["snapshots"]


# -- types and default values ------------------------------------------------------------------------------------

_TYPES: Final = (
    "variant",
    "unknown",
    "timestamp_ns",
    "geometry",
    "geometry(srid:4326)",
    "geography(srid:4326, spherical)",
    {"type": "list", "element-id": 2, "element": "variant", "element-required": False},
    {"type": "map", "key-id": 2, "key": "string", "value-id": 3, "value": "variant", "value-required": False},
    {"type": "struct", "fields": [{"id": 2, "name": "y", "type": "variant", "required": False}]},
)


@pytest.mark.parametrize("kind", _TYPES)
def test_types_of_version_3_are_passed_through_and_are_refused_below_it(call: Client, kind: Any) -> None:
    column = {"id": 1, "name": "x", "type": kind, "required": False}
    refused = _create(call, column, **{"format-version": "2"})
    assert (400, "IllegalArgumentException") == refused.problem
    assert _create(call, column).status == 200
    assert [column] == _metadata(call)["schemas"][0]["fields"]
    more = {"id": 9, "name": "more", "type": "variant", "required": False}
    added = _commit(call, {"action": "add-schema", "schema": _schema(column, more, number=1)})
    assert 200 == added.status, added.text
    assert [column, more] == _metadata(call)["schemas"][1]["fields"]


_DEFAULTS: Final = {
    "boolean": True,
    "long": 7,
    "double": 1.5,
    "decimal(9, 2)": "1.50",
    "date": "2026-11-26",
    "timestamp": "2026-11-26T07:00:00.123456",
    "timestamptz": "2026-11-26T07:00:00.123456+00:00",
    "string": "seven",
    "uuid": "f79c3e09-677c-4bbd-a479-3f349cb785e7",
    "binary": "00ff",
}


@pytest.mark.parametrize("kind", _DEFAULTS)
def test_default_values_are_carried_through_and_are_refused_below_version_3(call: Client, kind: str) -> None:
    """PyIceberg gives a new table fresh column IDs, and drops default values on the way."""
    value = _DEFAULTS[kind]
    inner = {"id": 3, "name": "y", "type": kind, "required": False, "initial-default": value, "write-default": value}
    struct = {"id": 1, "name": "s", "type": {"type": "struct", "fields": [inner]}, "required": False}
    plain = {"id": 2, "name": "x", "type": kind, "required": False}
    refused = _create(call, struct, plain, **{"format-version": "2"})
    assert (400, "IllegalArgumentException") == refused.problem
    assert "column s.y has a default value, which tables of format version 2 cannot have" in refused.text
    assert 200 == _create(call, struct, plain).status
    assert [struct, plain] == _metadata(call)["schemas"][0]["fields"]


def test_a_later_schema_is_compared_with_the_format_version_as_well(call: Client) -> None:
    _create(call, **{"format-version": "2"})
    more = {"id": 2, "name": "y", "type": "long", "required": False, "initial-default": 7, "write-default": 7}
    change = {"action": "add-schema", "schema": _schema(_LONG, more, number=1)}
    refused = _commit(call, change)
    assert (400, "IllegalArgumentException") == refused.problem
    assert "column y has a default value" in refused.text
    assert 200 == _commit(call, {"action": "upgrade-format-version", "format-version": 3}, change).status


def test_a_view_of_a_variant_keeps_its_type(call: Client) -> None:
    column = {"id": 1, "name": "v", "type": "variant", "required": False}
    version = {
        "version-id": 1,
        "schema-id": 0,
        "timestamp-ms": 1,
        "summary": {},
        "default-namespace": ["a"],
        "representations": [{"type": "sql", "sql": "SELECT v FROM a.t", "dialect": "spark"}],
    }
    body = {"name": "w", "schema": _schema(column), "view-version": version, "properties": {}}
    made = call("POST", "/v1/lake/namespaces/a/views", body)
    assert 200 == made.status, made.text
    assert [column] == call("GET", "/v1/lake/namespaces/a/views/w").json()["metadata"]["schemas"][0]["fields"]


# -- what would be lost, and what PyIceberg cannot do ------------------------------------------------------------


def test_metadata_of_which_a_part_would_be_lost_are_refused(call: Client, lake: Lakehouse) -> None:
    """An encrypted table without its keys could not be read again."""
    _create(call)
    catalog = TrinityLakeCatalog.over(lake.refresh())
    file = Path(catalog.metadata_location("a.t").removeprefix("file://"))
    text = file.read_text()
    for before, after, words in (
        ('"format-version":3', '"format-version":3,"encryption-keys":[{"key-id":"k"}]', "the table is encrypted"),
        ('"next-row-id":0', '"next-row-id":null', "its next-row-id is no number"),
    ):
        assert before in text
        file.write_text(text.replace(before, after))
        with pytest.raises(ValidationError, match=words):
            catalog.load_table("a.t")
        refused = call("GET", _TABLE)
        assert 400 == refused.status
        assert words in refused.text


def test_the_catalog_in_this_process_says_that_it_writes_no_data_before_it_writes_a_file(tmp_path: Path) -> None:
    catalog = new_iceberg(tmp_path)
    table = with_table(catalog, "sales.orders", properties=_V3)
    for act in (
        lambda: table.append(rows(1)),
        lambda: table.overwrite(rows(1)),
        lambda: table.delete("id = 1"),
        lambda: table.add_files([]),
        lambda: table.upsert(rows(1), ["id"]),
    ):
        with pytest.raises(NotImplementedError, match=r"such as sales.orders.*`trinitylake serve`"):
            act()
    assert [] == list((tmp_path / "lake").rglob("*.parquet"))
    table.transaction().set_properties({"owner": "emea"}).commit_transaction()
    with table.update_schema() as change:
        change.add_column("more", LongType())
    assert "emea" == catalog.load_table("sales.orders").properties["owner"]
    assert [] == ids(catalog.load_table("sales.orders"))


# -- engines -----------------------------------------------------------------------------------------------------


def test_duckdb_creates_appends_deletes_and_updates_with_deletion_vectors(lake: Lakehouse) -> None:
    with endpoint(lake) as at, connected(at) as connection:
        run = connection.execute
        run("CREATE SCHEMA l.a")
        run("CREATE TABLE l.a.t (x BIGINT, y VARCHAR DEFAULT 'd', v VARIANT) WITH ('format-version' = 3)")
        run("INSERT INTO l.a.t (x, v) VALUES (1, 1::VARIANT), (2, 'two'::VARIANT), (3, 3::VARIANT)")
        run("DELETE FROM l.a.t WHERE x = 1")
        run("UPDATE l.a.t SET y = 'z' WHERE x = 2")
        assert [(2, "z"), (3, "d")] == run("SELECT x, y FROM l.a.t ORDER BY x").fetchall()
    table = TrinityLakeCatalog.over(lake.refresh()).load_table("a.t")
    assert 4 == table.metadata.next_row_id  # type: ignore[union-attr]
    assert [] == list(lake.check())
    assert list(Path(lake.root.removeprefix("file://")).rglob("*.puffin")), "deletes are deletion vectors"


@pytest.mark.slow
def test_spark_creates_upgrades_and_writes_version_3_with_deletion_vectors(lake: Lakehouse) -> None:
    """With Iceberg's runtime, and so with Maven Central."""
    with endpoint(lake) as at, pool(1) as process:

        def run(*statements: str) -> list[tuple[object, ...]]:
            return process.submit(partial(by_spark_sql, at, at.warehouse), *statements).result()[-1]

        merge_on_read = ", ".join(f"'write.{each}.mode' = 'merge-on-read'" for each in ("delete", "update", "merge"))
        run(
            "CREATE NAMESPACE l.a",
            f"CREATE TABLE l.a.t (x BIGINT, y STRING) TBLPROPERTIES ('format-version' = '3', {merge_on_read})",
            "INSERT INTO l.a.t SELECT id, 'a' FROM range(0, 10, 1, 1)",
            "DELETE FROM l.a.t WHERE x = 1",
            "UPDATE l.a.t SET y = 'z' WHERE x = 2",
            """MERGE INTO l.a.t USING (SELECT 3 AS x UNION ALL SELECT 30) AS n ON n.x = t.x
            WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (x, y) VALUES (n.x, 'n')""",
            "CREATE TABLE l.a.old (x BIGINT) TBLPROPERTIES ('format-version' = '2')",
            "INSERT INTO l.a.old VALUES (1)",
            "ALTER TABLE l.a.old SET TBLPROPERTIES ('format-version' = '3')",
            "INSERT INTO l.a.old VALUES (2)",
            "CREATE TABLE l.a.c TBLPROPERTIES ('format-version' = '3') AS SELECT * FROM l.a.t",
            "CREATE TABLE l.a.v TBLPROPERTIES ('format-version' = '3') AS SELECT parse_json('{\"k\": 7}') AS v",
        )
        lineage = run("SELECT x, _row_id FROM l.a.t ORDER BY x")
        assert [0, 2, 4, 5, 6, 7, 8, 9, 30] == [x for x, _ in lineage]
        assert [0, 2, 4, 5, 6, 7, 8, 9] == [number for x, number in lineage if x != 30], "rows keep their IDs"
        assert [(1,), (2,)] == run("SELECT x FROM l.a.old ORDER BY x")
        assert [(9,)] == run("SELECT count(*) FROM l.a.c")
        assert [(7,)] == run("SELECT variant_get(v, '$.k', 'int') FROM l.a.v")
        with connected(at) as connection:
            found = connection.execute("SELECT x FROM l.a.t ORDER BY x").fetchall()
        assert [x for x, _ in lineage] == [x for (x,) in found]
    assert [] == list(lake.check())
