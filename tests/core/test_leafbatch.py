"""Many leaf files in one go, against those that nodes make one by one."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.memory import leaves_of
from trinitylake_core import spec
from trinitylake_core.tree import leafbatch, nodefile
from trinitylake_core.tree.leafbatch import decode_many, encode_many
from trinitylake_core.tree.leafrun import Columns, Leaves
from trinitylake_core.tree.node import Messages, Node

KEYS = st.integers(0, 10**6).map("C{:07}".format) | st.sampled_from(["C1", "Cß", "C日本", "C\U0001f600", "D" * 300])
LEAVES = st.lists(
    st.dictionaries(KEYS, st.sampled_from(["u", "vv", "wß" * 40, ""]), min_size=1, max_size=9), min_size=1
)
STAMP = 17
SYSTEM = {"created_at_millis": "17"}


def columns(entries: dict[str, str]) -> Columns:
    keys = sorted(entries)
    return Columns(pa.array(keys, pa.string()), pa.array([entries[key] for key in keys], pa.string()))


def node_of(entries: dict[str, str], **fields: object) -> Node:
    node = Node(sorted(entries), [entries[key] for key in sorted(entries)], height=0, system=dict(SYSTEM))
    node.subtree_keys, node.subtree_messages = len(entries), 0
    for name, value in fields.items():
        setattr(node, name, value)
    return node


def places(count: int) -> list[str]:
    return [f"0000/0000/0000/00000000-node-{number}.ipc" for number in range(count)]


def rows(of: Columns) -> dict[str, str]:
    return dict(zip(of.keys.to_pylist(), of.values.to_pylist(), strict=True))


@given(LEAVES, st.integers(10, 60), st.booleans())
def test_many_leaves_have_the_bytes_of_the_same_nodes_and_are_read_again(
    leaves: list[dict[str, str]], order: int, as_views: bool
) -> None:
    paths = places(len(leaves))
    given = leaves_of([columns(leaf) for leaf in leaves])
    if as_views:
        given = Leaves(given.columns.views(), given.counts)
    files = encode_many(given, paths, order, STAMP)
    assert [nodefile.encode(node_of(leaf), order, path) for leaf, path in zip(leaves, paths, strict=True)] == files
    again = decode_many(files, paths, order)
    assert again is not None
    assert leaves == [rows(leaf) for leaf in again]


def plain(count: int = 3) -> tuple[list[bytes], list[str]]:
    leaves = [{f"C{leaf}{row}": f"v{row}" for row in range(3)} for leaf in range(count)]
    paths = places(count)
    return encode_many(leaves_of([columns(leaf) for leaf in leaves]), paths, 8, STAMP), paths


@pytest.mark.parametrize(
    "fields",
    [
        {"buffer": Messages(["C9"], ["w"], ["t"])},
        {"height": 1, "children": ["x", "y"]},
        {"height": None},
        {"keys": [], "values": []},
        {"system": {**SYSTEM, spec.VERSION: "3"}},
        {"keys": [" C7"]},
    ],
    ids=["buffer", "inner", "no height", "empty", "a root", "an old key"],
)
def test_one_leaf_that_is_not_plain_leaves_all_to_the_general_way(fields: dict[str, object]) -> None:
    files, paths = plain()
    odd = node_of({"C7": "x"}, **fields)
    assert decode_many(files, paths, 8) is not None
    assert decode_many([*files[:-1], bytes(nodefile.encode(odd, 8, paths[-1]))], paths, 8) is None


@pytest.mark.parametrize("count", ["9" * 18, "9" * 5000, "-1", "\u0661", "", "0", "2", "8", "3 "])
def test_a_leaf_with_a_count_that_cannot_be_is_left_to_the_general_way(count: str) -> None:
    files, paths = plain(1)
    texts = [*nodefile.decode(files[0], paths[0]).entries().values.to_pylist()]  # type: ignore[union-attr]
    node = node_of(dict(zip(["C00", "C01", "C02"], texts, strict=True)))
    arrays = nodefile._columns(node, 8, paths[0])
    values = [
        count if key == spec.N_KEYS else value for key, value in zip(*(a.to_pylist() for a in arrays[:2]), strict=True)
    ]
    wrong = bytes(nodefile.file_of([arrays[0], pa.array(values, pa.string()), *arrays[2:]]))
    assert decode_many([wrong], paths, 8) is None
    assert files == [bytes(nodefile.file_of(arrays))]


@pytest.mark.parametrize(
    ("fields", "some"),
    [({}, True), ({"height": 1, "children": ["x", "y"]}, False), ({"keys": [], "values": []}, False)],
)
def test_the_entries_of_an_older_leaf_are_columns_too(fields: dict[str, object], some: bool) -> None:
    """Without a name of its own, for example: it is read by itself."""
    data = bytes(nodefile.encode(node_of({"C7": "x"}, **fields), 8))
    assert decode_many([data], ["p"], 8) is None
    node = nodefile.decode(data, "p")
    found = node.entries()
    assert (found is not None) == some
    node.become_lists()
    assert found == node.entries() or {"C7": "x"} == rows(found) == rows(node.entries())  # type: ignore[arg-type]


def test_leaves_of_another_order_or_place_are_left_to_the_general_way() -> None:
    files, paths = plain()
    assert decode_many(files, paths, 9) is None
    assert decode_many(files, paths[::-1], 8) is None


def test_one_damaged_leaf_is_never_taken_for_a_sound_one() -> None:
    files, paths = plain()
    whole = [rows(leaf) for leaf in decode_many(files, paths, 8) or []]
    chance = random.Random(7)
    refused = 0
    for _ in range(300):
        leaf, at = chance.randrange(3), chance.randrange(len(files[0]))
        broken = list(files)
        broken[leaf] = files[leaf][:at] + bytes([files[leaf][at] ^ 1 << chance.randrange(8)]) + files[leaf][at + 1 :]
        found = decode_many(broken, paths, 8)
        assert found is None or whole == [rows(each) for each in found]
        refused += found is None
    assert refused > 150
    for cut in range(0, len(files[0]), 7):
        assert decode_many([files[0][:cut], *files[1:]], paths, 8) is None
    assert decode_many([files[0] + files[1], *files[1:]], paths, 8) is None


@pytest.mark.parametrize("as_views", [False, True])
def test_pivots_stand_behind_their_leaves_and_are_no_part_of_files(as_views: bool) -> None:
    files, paths = plain()
    found = decode_many(files, paths, 8)
    assert found is not None
    together = Columns.join([found[0], Columns.of(["C03"], ["p"]), found[1]])
    leaves = Leaves(together.views() if as_views else together, np.array([3, 3]))
    assert leaves.pivots() == (["C03"], ["p"])
    assert leaves.edges() == [("C00", "C02"), ("C10", "C12")]
    assert files[:2] == encode_many(leaves, paths[:2], 8, STAMP)


def test_an_arrow_whose_files_are_not_understood_writes_them_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    files, paths = plain()
    leaves = leaves_of(decode_many(files, paths, 8) or [])
    monkeypatch.setattr(leafbatch, "learn_frame", lambda: None)
    assert files == encode_many(leaves, paths, 8, STAMP)
    assert decode_many(files, paths, 8) is None
