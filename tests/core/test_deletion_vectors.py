"""A commit that loses deletion vectors of data files that stay is refused; one that removes the files, too, is not."""

from __future__ import annotations

import io
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import duckdb
import fastavro
import pytest
from pyiceberg.table.metadata import TableMetadataUtil

from tests.core.test_rest import Client
from tests.support.engines import by_spark_sql, connected
from tests.support.writers import pool
from trinitylake_core import Lakehouse
from trinitylake_core.iceberg.commit_rules.deletion_vectors import refuse_lost_vectors
from trinitylake_core.rest import Served
from trinitylake_core.table_places import Located

_TABLE: Final = "/v1/lake/namespaces/a/tables/t"
_DELETED: Final = 2
Row = dict[str, Any]
Change = Callable[[Row], Row | None]
"""Returns a row of a manifest as it is to be, ``None`` to leave it out."""


class Handmade:
    """A table of format version 3 of two data files, each with a deletion vector, and snapshots made by hand."""

    def __init__(self, served: Served) -> None:
        self.client = Client(served.uri, served.token)
        with connected(served) as connection:
            run = connection.execute
            run("CREATE SCHEMA l.a")
            run("CREATE TABLE l.a.t (id BIGINT) WITH ('format-version' = 3)")
            run("INSERT INTO l.a.t SELECT * FROM range(20)")
            run("INSERT INTO l.a.t SELECT * FROM range(20, 30)")
            run("DELETE FROM l.a.t WHERE id IN (0, 1, 21)")

    def metadata(self) -> dict[str, Any]:
        """Return the newest metadata."""
        found: dict[str, Any] = self.client("GET", _TABLE).json()["metadata"]
        return found

    def commit(
        self, change: Change, *, keep_data: bool = True, keep_deletes: bool = False, manifests: Change = lambda row: row
    ) -> Any:
        """Add a snapshot whose delete manifests are written anew after a change.

        At will it lacks the data, or has the delete manifests of its parent as well.
        """
        metadata = self.metadata()
        (parent,) = (each for each in metadata["snapshots"] if each["snapshot-id"] == metadata["current-snapshot-id"])
        schema, rows = _read(parent["manifest-list"])
        listed = []
        for row in rows:
            if row["content"] == 1:
                if keep_deletes:
                    listed.append(row)
                row = self._rewritten(row, change)  # noqa: PLW2901 - the same manifest after it
            elif not keep_data:
                continue
            kept = manifests(row)
            if kept is not None:
                listed.append(kept)
        place = f"{metadata['location']}/metadata/snap-{uuid.uuid4()}.avro"
        _write(place, schema, listed)
        sequence = metadata["last-sequence-number"] + 1
        snapshot = {
            "snapshot-id": sequence,
            "parent-snapshot-id": parent["snapshot-id"],
            "sequence-number": sequence,
            "timestamp-ms": metadata["last-updated-ms"] + 1,
            "manifest-list": place,
            "summary": {"operation": "overwrite"},
            "first-row-id": metadata["next-row-id"],
            "added-rows": 0,
        }
        main = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": sequence}
        updates = [{"action": "add-snapshot", "snapshot": snapshot}, main]
        return self.client("POST", _TABLE, {"requirements": [], "updates": updates})

    def _rewritten(self, row: Row, change: Change) -> Row:
        schema, entries = _read(row["manifest_path"])
        changed = [each for each in map(change, entries) if each is not None]
        place = f"{row['manifest_path'].rpartition('/')[0]}/{uuid.uuid4()}-m0.avro"
        size = _write(place, schema, changed)
        return row | {"manifest_path": place, "manifest_length": size}


def _path(uri: str) -> Path:
    return Path(uri.removeprefix("file://"))


def _read(uri: str) -> tuple[Any, list[Any]]:
    with _path(uri).open("rb") as file:
        reader = fastavro.reader(file)
        rows = list(reader)
        return reader.writer_schema, rows


def _write(uri: str, schema: Any, rows: list[Row]) -> int:
    data = io.BytesIO()
    fastavro.writer(data, schema, rows)
    return _path(uri).write_bytes(data.getvalue())


@pytest.fixture
def table(served: Served) -> Handmade:
    return Handmade(served)


def _is_of_second_file(entry: Row) -> bool:
    return entry["data_file"]["record_count"] == 1


def _without_second(entry: Row) -> Row | None:
    return None if _is_of_second_file(entry) else entry


def _with_second_deleted(entry: Row) -> Row:
    return entry | {"status": _DELETED} if _is_of_second_file(entry) else entry


def _with_fewer_rows(entry: Row) -> Row:
    file = entry["data_file"]
    return entry | {"data_file": file | {"record_count": min(1, file["record_count"])}}


@pytest.mark.parametrize("change", [_without_second, _with_second_deleted, _with_fewer_rows, lambda _: None])
def test_a_snapshot_that_brings_rows_back_is_refused_and_changes_nothing(table: Handmade, change: Change) -> None:
    before = table.metadata()
    answer = table.commit(change)
    assert 400 == answer.status
    assert "would bring deleted rows back" in answer.json()["error"]["message"]
    assert before == table.metadata()


def test_a_snapshot_without_the_manifest_of_the_vectors_is_refused(table: Handmade) -> None:
    answer = table.commit(lambda entry: entry, manifests=lambda row: None if row["content"] == 1 else row)
    assert 400 == answer.status


def test_a_data_file_with_two_vectors_is_refused(table: Handmade) -> None:
    def doubled(entry: Row) -> Row:
        return entry | {"data_file": entry["data_file"] | {"referenced_data_file": "file:///one.parquet"}}

    answer = table.commit(doubled, keep_data=False)
    assert 400 == answer.status
    assert "two deletion vectors" in answer.json()["error"]["message"]


def test_a_second_vector_beside_one_that_stays_is_refused(table: Handmade) -> None:
    before = table.metadata()
    answer = table.commit(lambda entry: entry, keep_deletes=True)
    assert 400 == answer.status
    assert "two deletion vectors" in answer.json()["error"]["message"]
    assert before == table.metadata()


def test_a_first_vector_beside_those_that_stay_is_taken(table: Handmade) -> None:
    def of_another_file(entry: Row) -> Row | None:
        file = entry["data_file"]
        return (
            None if _is_of_second_file(entry) else entry | {"data_file": file | {"referenced_data_file": "file:///x"}}
        )

    assert 200 == table.commit(of_another_file, keep_deletes=True).status


def _spend(lake: Lakehouse, before: dict[str, Any], after: dict[str, Any]) -> int:
    """Return how many files are read to judge what changed between two metadata."""
    old, new = (TableMetadataUtil.parse_obj(each) for each in (before, after))
    counts = lake.storage.counts
    read = counts.get
    refuse_lost_vectors(Located(lake.storage), "a.t", old, new)
    return counts.get - read


def test_only_manifests_that_a_commit_changes_are_read_and_shared_ones_for_first_vectors(
    served: Served, table: Handmade, lake: Lakehouse
) -> None:
    def run(statement: str) -> tuple[dict[str, Any], dict[str, Any]]:
        before = table.metadata()
        with connected(served) as connection:
            connection.execute(statement)
        return before, table.metadata()

    lists = 2
    assert lists == _spend(lake, *run("INSERT INTO l.a.t SELECT * FROM range(30, 40)"))
    first = 1 + _delete_manifests(table.metadata())
    assert lists + first == _spend(lake, *run("DELETE FROM l.a.t WHERE id = 31"))
    before = table.metadata()
    rewritten = 2 * _delete_manifests(before)
    assert 200 == table.commit(lambda entry: entry).status
    assert lists + rewritten == _spend(lake, before, table.metadata())


def _delete_manifests(metadata: dict[str, Any]) -> int:
    (current,) = (each for each in metadata["snapshots"] if each["snapshot-id"] == metadata["current-snapshot-id"])
    _, rows = _read(current["manifest-list"])
    return sum(row["content"] == 1 for row in rows)


def test_vectors_that_move_to_another_manifest_or_go_with_their_data_are_taken(table: Handmade) -> None:
    assert 200 == table.commit(lambda entry: entry).status
    assert 200 == table.commit(lambda _: None, keep_data=False).status


def test_what_may_not_be_read_is_refused_before_it_is_judged(table: Handmade) -> None:
    elsewhere = "s3://somewhere-else/manifest.avro"
    answer = table.commit(lambda entry: entry, manifests=lambda row: row | {"manifest_path": elsewhere})
    assert 403 == answer.status
    assert f"the file {elsewhere} is outside what this catalog may use for the table" in answer.text


def test_a_commit_without_vectors_reads_one_list_more(served: Served, lake: Lakehouse) -> None:
    with connected(served) as connection:
        connection.execute("CREATE SCHEMA l.a")
        for version in (2, 3):
            connection.execute(f"CREATE TABLE l.a.t{version} (id BIGINT) WITH ('format-version' = {version})")
            connection.execute(f"INSERT INTO l.a.t{version} VALUES (1)")
        counts = lake.storage.counts
        spent = []
        for version in (2, 3):
            before = counts.get
            connection.execute(f"INSERT INTO l.a.t{version} VALUES (2)")
            spent.append(counts.get - before)
    assert spent[0] + 1 == spent[1]


@pytest.mark.slow
def test_duckdb_is_refused_where_it_drops_vectors_of_spark(served: Served) -> None:
    """With Iceberg's runtime, and so with Maven Central. Spark puts the vectors of both files into one Puffin file."""
    merge_on_read = "'format-version' = '3', 'write.delete.mode' = 'merge-on-read'"
    statements = (
        "CREATE NAMESPACE l.a",
        f"CREATE TABLE l.a.t (id BIGINT) TBLPROPERTIES ({merge_on_read})",
        "INSERT INTO l.a.t SELECT id FROM range(0, 10, 1, 1)",
        "INSERT INTO l.a.t SELECT id FROM range(10, 20, 1, 1)",
        "DELETE FROM l.a.t WHERE id IN (0, 10)",
    )
    with pool(1) as process:
        process.submit(partial(by_spark_sql, served, served.warehouse), *statements).result()
    with connected(served) as connection, pytest.raises(duckdb.Error, match="would bring deleted rows back"):
        connection.execute("DELETE FROM l.a.t WHERE id = 1")
    with connected(served) as connection:
        found = connection.execute("SELECT id FROM l.a.t ORDER BY id").fetchall()
    assert [*range(1, 10), *range(11, 20)] == [number for (number,) in found]
