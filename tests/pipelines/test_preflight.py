"""The pre-flight of a rollback: `verify` of one version with definitions, which stops after the first few findings."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.integrity.preflight import SHOWN, Preflight
from tests.support.lakes import compacted, content, filled, new_lake, reopened
from tests.support.surgery import Surgery
from trinitylake_core import Lakehouse, Violation


@pytest.fixture
def lake(tmp_path: Path) -> Lakehouse:
    """Two levels, with messages above them."""
    made = filled(new_lake(tmp_path, order=8), tables=28)
    compacted(made)
    with made.refresh().transaction() as txn:
        txn.alter_table("ns1", "t001", properties={"a": "b"})
    return reopened(made)


def found(lake: Lakehouse) -> list[Violation]:
    return list(Preflight(None, lake.backend, "local", 0)(lake.root_node))


def test_every_node_and_definition_is_read_once(lake: Lakehouse) -> None:
    """The root was read by whoever chose the version; the definition of the lakehouse is read past every cache."""
    surgery = Surgery(lake.root, lake.definition.order)
    nodes, definitions = len(surgery.tree(lake.version)) - 1, len(content(reopened(lake)))
    preflight, before = Preflight(None, lake.backend, "local", 0), lake.storage.counts.snapshot()
    assert [] == list(preflight(lake.root_node))
    assert nodes + definitions + 1 == (lake.storage.counts - before).get
    assert (nodes, definitions) == (preflight.checked.nodes, preflight.checked.definitions)


def test_it_stops_after_the_first_few_findings(lake: Lakehouse) -> None:
    surgery = Surgery(lake.root, lake.definition.order)
    for path in content(reopened(lake)).values():
        surgery.remove(path)
    assert SHOWN == len(found(lake))
    assert {"I15"} == {each.invariant for each in found(lake)}


def test_a_namespace_that_is_gone_is_found(lake: Lakehouse) -> None:
    """Every table in it is named, with the root of the version."""
    with lake.transaction() as txn:
        txn._delete(lake.codec.namespace("ns1"))
    lake.refresh()
    findings = found(lake)
    assert {("I12", lake.root_node.path)} == {(each.invariant, each.file) for each in findings}
    lost = {f"table 'ns1.{name}' lies in a namespace that does not exist" for name in lake.tables("ns1")}
    assert {each.message for each in findings} <= lost
    assert min(SHOWN, len(lost)) == len(findings)


def test_a_namespace_is_not_missed_where_a_node_cannot_be_read(lake: Lakehouse) -> None:
    """What lies in the missing leaf is unknown: the leaf is the only finding."""
    leaf = lake.root_node.node.children[0]
    Surgery(lake.root, lake.definition.order).remove(leaf)
    assert [("I10", leaf)] == [(each.invariant, each.file) for each in found(lake)]
