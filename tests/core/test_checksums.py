"""Definitions that know their content, and nodes that know their name (format, sections 3 and 5)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mmh3
import pytest

from tests.support.lakes import FAST, compacted, filled, new_lake
from tests.support.surgery import Surgery
from trinitylake_core import Lakehouse, spec
from trinitylake_core.check import check_version
from trinitylake_core.definitions import DECODERS as OF_OBJECTS
from trinitylake_core.definitions import (
    Definition,
    LakehouseDef,
    NamespaceDef,
    TableDef,
    TransactionDef,
    ViewDef,
    decode_lakehouse,
    encode,
    to_dict,
    view_def,
)
from trinitylake_core.errors import CorruptDefinition, CorruptNode
from trinitylake_core.locations import root_path
from trinitylake_core.tree import nodefile
from trinitylake_core.tree.node import Node

DECODERS: dict[str, Any] = {**OF_OBJECTS, "lakehouse": decode_lakehouse}
DEFINITIONS: list[tuple[str, Definition]] = [
    ("lakehouse", LakehouseDef(id="l", order=5, properties={"b": "2", "a": "1"})),
    ("namespace", NamespaceDef(id="n", properties={"owner": "me"})),
    ("table", TableDef(id="t", table_type="MANAGED", primary_keys=[1, 2])),
    ("view", view_def("select 1", dialect="spark")),
    ("view", ViewDef(id="v", substrait_read_rel=b"\x0a\x02\x0a\x00")),
]
KINDS = pytest.mark.parametrize(
    ("kind", "definition"), DEFINITIONS, ids=["lakehouse", "namespace", "table", "sql", "rel"]
)


@KINDS
def test_a_definition_ends_with_the_checksum_of_its_other_bytes(kind: str, definition: Definition) -> None:
    """Field 120, 16 bytes, MurMur3 x64 128 of what stands before it; nobody sees it who reads the definition."""
    data = encode(definition)
    assert b"\xc2\x07\x10" == data[-19:-16]
    assert mmh3.mmh3_x64_128_digest(data[:-19]) == data[-16:]
    assert definition == DECODERS[kind](data, "p")
    assert "checksum" not in to_dict(DECODERS[kind](data, "p"))
    assert definition == DECODERS[kind](data[:-19], "p"), "a file without a checksum is sound"


@KINDS
def test_a_definition_that_was_changed_by_one_byte_is_found(kind: str, definition: Definition) -> None:
    """Wherever the byte is, in the content or in the checksum itself."""
    data = encode(definition)
    for place in (*range(len(data) - 19), *range(len(data) - 16, len(data))):
        damaged = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        with pytest.raises(CorruptDefinition):
            DECODERS[kind](damaged, "p")


def test_a_checksum_counts_only_at_the_end() -> None:
    """Who adds a field behind it changed the definition without proving it again."""
    data = encode(NamespaceDef(id="n"))
    with pytest.raises(CorruptDefinition, match="does not match its checksum"):
        DECODERS["namespace"](data + NamespaceDef(properties={"a": "b"}).SerializeToString(), "p")


def test_a_saved_transaction_has_no_checksum() -> None:
    message = TransactionDef(id="t")
    assert message.SerializeToString() == encode(message)


# -- nodes ---------------------------------------------------------------------------------------------


def _lake(tmp_path: Path) -> Lakehouse:
    return filled(new_lake(tmp_path))


def test_a_node_knows_its_name() -> None:
    """Written under its own path, and proved when it is read by a path; in memory it has none."""
    node = Node(["B===a"], ["p"], system={})
    data = bytes(nodefile.encode(node, 4, "0000/node"))
    read = nodefile.decode(data, "0000/node")
    assert read.named
    assert spec.SELF not in read.system
    with pytest.raises(CorruptNode, match="says it is '0000/node'") as caught:
        nodefile.decode(data, "0000/other")
    assert "I18" == caught.value.invariant
    old = nodefile.decode(bytes(nodefile.encode(node, 4)), "anything")
    assert not old.named


def test_every_node_and_root_that_is_written_knows_its_name(tmp_path: Path) -> None:
    """Those of commits, of the first version, of a snapshot's copy and of a saved transaction."""
    lake = _lake(tmp_path)
    compacted(lake)
    lake.refresh().create_snapshot("minimal")
    lake.refresh().create_snapshot("deep", kind="partial")
    txn = lake.refresh().transaction()
    txn.create_namespace("saved")
    txn.save()
    surgery = Surgery(lake.root, 4)
    files = [path for path in surgery.listing() if path.endswith(".ipc")]
    assert len(files) > 30
    assert [] == [path for path in files if not surgery.decode(path).named]
    for name, snapshot in lake.refresh().definition.snapshots.items():
        assert surgery.decode(snapshot.root_node_file_path).named, name


def test_two_nodes_that_were_swapped_are_found_at_once(tmp_path: Path) -> None:
    """Reading one of them fails, and verify names both (I18)."""
    lake = _lake(tmp_path)
    surgery = Surgery(lake.root, 4)
    one, two = [path for path, node in surgery.tree(lake.version) if node.is_leaf][:2]
    a, b = surgery.read(one), surgery.read(two)
    surgery.write(one, b)
    surgery.write(two, a)
    again = Lakehouse.open(lake.root, storage_options=FAST)
    with pytest.raises(CorruptNode, match="says it is"):
        again.tables("ns0"), again.tables("ns1"), again.tables("ns2")
    found = {(each.invariant, each.file) for each in check_version(again.backend.versions, again.version)}
    assert {("I18", one), ("I18", two)} <= found


def test_a_root_that_was_replaced_by_another_version_is_found(tmp_path: Path) -> None:
    """Also where the row ``version`` was changed with it."""
    lake = _lake(tmp_path)
    surgery = Surgery(lake.root, 4)
    surgery.write(root_path(7), surgery.read(root_path(6)))
    with pytest.raises(CorruptNode):
        lake.at(version=7)


@pytest.mark.parametrize("order", [5, 2**32 - 1])
def test_an_order_that_is_not_that_of_the_nodes_allocates_nothing(tmp_path: Path, order: int) -> None:
    """A definition that says another order would make each writer fill a key table of so many rows."""
    lake = _lake(tmp_path)
    surgery = Surgery(lake.root, 4)
    definition = LakehouseDef()
    definition.CopyFrom(lake.definition)
    definition.order = order
    root = lake.root_node
    surgery.write(root.definition_path, encode(definition))
    surgery.strip(root.path, spec.LAKEHOUSE_DEF_COPY)
    again = Lakehouse.open(lake.root, storage_options=FAST)
    with pytest.raises(CorruptNode, match="key table of 4 rows"), again.transaction() as txn:
        txn.create_namespace("new")
    assert lake.version == Lakehouse.open(lake.root, storage_options=FAST).version
