"""The Spark data source: each table says what the library says, and filters spare nodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pipelines.datasource.reading import PRUNED, TABLES, Wanted, pin, rows
from tests.support.lakes import compacted, filled, new_lake
from trinitylake_core import Lakehouse
from trinitylake_core.errors import InvalidInput
from trinitylake_core.locations import parse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def lake(tmp_path: Path) -> Lakehouse:
    """Three levels, compacted, with messages in the root and below it again; a snapshot, and a drop."""
    made = filled(new_lake(tmp_path, order=4), tables=60, namespaces=6)
    compacted(made)
    for number in range(12):
        with made.refresh().transaction() as txn:
            txn.alter_table(f"ns{number % 6}", f"t{number:03}", properties={"a": "b"})
    made.refresh().create_snapshot("s1")
    with made.refresh().transaction(reason="clean up") as txn:
        txn.drop_table("ns1", "t001")
    return made.refresh()


def read(lake: Lakehouse, table: str, parts: int = 3, before: Lakehouse | None = None, **wanted: set[str]) -> Any:
    return list(_read(lake, table, parts, before, Wanted(**{name: frozenset(each) for name, each in wanted.items()})))


def _read(lake: Lakehouse, table: str, parts: int, before: Lakehouse | None, wanted: Wanted) -> Iterator[Any]:
    request, cut = pin(lake, table, wanted, before, parts)
    for part in cut:
        for row in rows(request, part, wanted, lake.storage):
            assert len(TABLES[table]) == len(row)
            yield row


@pytest.mark.parametrize("parts", [1, 2, 3, 64])
def test_objects_are_what_the_library_lists_each_once(lake: Lakehouse, parts: int) -> None:
    expected = [(each.kind, each.namespace, each.name, each.path) for each in lake.objects()]
    assert expected == read(lake, "objects", parts)


def test_a_filter_reads_only_the_nodes_that_may_hold_what_it_wants(lake: Lakehouse) -> None:
    """Counted: one ``get`` of the root for each part, and each node on the way to the keys once."""
    everything = len(read(lake, "nodes", 1))

    def cost(table: str, **wanted: set[str]) -> int:
        before = lake.storage.counts.snapshot()
        read(lake, table, 1, **wanted)
        return (lake.storage.counts - before).get

    height = lake.stats().height
    assert height is not None
    assert everything == cost("objects")
    single = [cost("objects", kinds={"table"}, namespaces={"ns3"}, names={name}) for name in lake.tables("ns3")]
    assert (1 + height, True) == (min(single), max(single) <= 1 + 2 * height), "a pivot has two neighbours"
    assert cost("objects", kinds={"table"}, namespaces={"ns3"}) < everything / 2
    assert cost("messages", namespaces={"ns3"}, kinds={"table"}) < everything / 2
    assert 0 == cost("objects", kinds={"table"}, namespaces={"much too long a name for this"})


@pytest.mark.parametrize(
    "wanted",
    [
        {"kinds": {"namespace"}},
        {"kinds": {"table"}, "namespaces": {"ns1", "ns2"}},
        {"namespaces": {"ns4"}},
        {"names": {"t010"}},
        {"kinds": {"table"}, "namespaces": {"ns0", "ns5"}, "names": {"t005", "t006", "none"}},
        {"kinds": set()},
        {"namespaces": {"a name that is too long", "ns2"}},
    ],
)
@pytest.mark.parametrize("table", sorted(PRUNED))
def test_a_filter_loses_nothing(lake: Lakehouse, table: str, wanted: dict[str, set[str]]) -> None:
    columns = {"kinds": "kind", "namespaces": "namespace", "names": "name"}
    index = {name: TABLES[table].get_field_index(column) for name, column in columns.items()}

    def holds(row: Any) -> bool:
        return all(row[index[name]] in values for name, values in wanted.items())

    before = lake.at(version=lake.version - 10)
    for parts in (1, 3):
        everything = [row for row in read(lake, table, parts, before) if holds(row)]
        assert everything == [row for row in read(lake, table, parts, before, **wanted) if holds(row)]


def test_nodes_messages_and_files_are_those_of_the_version(lake: Lakehouse) -> None:
    nodes = read(lake, "nodes")
    assert 1 == sum(row[0] == lake.root_node.path for row in nodes)
    assert lake.stats().messages == sum(row[3] for row in nodes) == len(read(lake, "messages"))
    assert len({row[0] for row in nodes}) == len(nodes)
    files = read(lake, "files")
    kinds = {"root": "root", "node": "node", "lakehouse_def": "lakehouse_def"}
    assert all((found := parse(path)) and found.kind == kinds.get(kind, kind) for kind, _, _, path in files)
    assert len(nodes) + 1 + len(list(lake.objects())) == len(files)
    deleted = [row for row in read(lake, "messages") if row[3] == "delete"]
    assert [("table", "ns1", "t001")] == [row[:3] for row in deleted]


def test_versions_changes_and_snapshots_are_those_of_the_lakehouse(lake: Lakehouse) -> None:
    found = read(lake, "versions")
    assert [info.version for info in lake.history()][::-1] == [row[0] for row in found]
    assert "clean up" == found[-1][4]
    assert [("removed", "table", "ns1", "t001")] == [
        row[:4] for row in read(lake, "changes", before=lake.at(version=lake.version - 1))
    ]
    old = lake.at(version=3)
    expected = [(e.change, e.kind, e.namespace, e.name, e.old_path, e.new_path) for e in lake.diff(old, lake)]
    assert expected == read(lake, "changes", before=old)
    assert [("s1", lake.version - 2)] == [row[:2] for row in read(lake, "snapshots")]
    assert [] == read(lake.at(version=3), "snapshots")


def test_what_cannot_be_read_is_refused(lake: Lakehouse, java_lakehouse: str) -> None:
    with pytest.raises(InvalidInput, match="there is no table"):
        read(lake, "nonsense")
    with pytest.raises(InvalidInput, match="earlier version"):
        read(lake, "changes")
    with pytest.raises(InvalidInput, match="upgrade"):
        read(Lakehouse.open(java_lakehouse), "objects")


def test_an_option_that_does_not_exist_is_refused(lake: Lakehouse) -> None:
    from pipelines.datasource.source import TrinityLakeSource

    with pytest.raises(InvalidInput, match=r"unknown option verzion; there are path, table, version"):
        TrinityLakeSource({"path": lake.root, "verzion": "3"}).schema()
    assert TrinityLakeSource({"path": lake.root, "version": "3", "storage.durable": "false"}).schema()


@pytest.mark.spark
def test_spark_reads_a_lakehouse_by_its_name(lake: Lakehouse, spark: SparkSession) -> None:
    from pipelines.datasource.source import register

    register(spark)
    source = spark.read.format("trinitylake").option("partitions", "3")
    objects = source.load(lake.root)
    some = objects.where("kind = 'table' and namespace in ('ns3', 'ns4')").select("namespace", "name").collect()
    expected = [(each.namespace, each.name) for each in lake.objects() if each.kind == "table"]
    assert sorted(each for each in expected if each[0] in {"ns3", "ns4"}) == sorted(map(tuple, some))
