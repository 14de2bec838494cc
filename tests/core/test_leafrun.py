"""Runs of leaves as columns, against dictionaries; the bytes of leaf files, against those that nodes make."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trinitylake_core.errors import CorruptNode
from trinitylake_core.tree import leaffile, nodefile
from trinitylake_core.tree.leafbatch import encode_many
from trinitylake_core.tree.leafrun import Columns, cut, laid_out, merged, pieces_of, proved
from trinitylake_core.tree.node import Messages, Node

FIXED = st.integers(0, 120).map("C{:04}".format)
MIXED = FIXED | st.sampled_from(["C1", "Cß", "C日本", "C\U0001f600", "D", "C00011"])
VALUES = st.sampled_from(["u", "v", "wß"])


def columns(entries: dict[str, str]) -> Columns:
    keys = sorted(entries)
    return Columns(pa.array(keys, pa.string()), pa.array([entries[key] for key in keys], pa.string()))


def rows(of: Columns) -> list[tuple[str, str]]:
    return list(zip(of.keys.to_pylist(), of.values.to_pylist(), strict=True))


def messages_of(changes: dict[str, str | None]) -> Messages:
    return Messages.of([(key, value, "t") for key, value in sorted(changes.items())])


def changed(entries: dict[str, str], changes: dict[str, str | None]) -> list[tuple[str, str]]:
    meaning: dict[str, str | None] = {**entries, **changes}
    return sorted((key, value) for key, value in meaning.items() if value is not None)


@pytest.mark.parametrize("keys", [FIXED, MIXED], ids=["one width", "mixed"])
def test_merging_columns_means_what_a_dictionary_means(keys: st.SearchStrategy[str]) -> None:
    @given(st.dictionaries(keys, VALUES), st.dictionaries(keys, st.none() | VALUES, min_size=1))
    def check(entries: dict[str, str], changes: dict[str, str | None]) -> None:
        old, messages = columns(entries), messages_of(changes)
        new = merged(old, messages)
        assert changed(entries, changes) == rows(new)
        assert proved(old, messages, new, None, None)

    check()


@given(st.dictionaries(FIXED, VALUES, min_size=9), st.dictionaries(FIXED, st.none() | VALUES, min_size=1), st.data())
def test_the_proof_sees_whatever_is_lost_doubled_swapped_or_changed(
    entries: dict[str, str], changes: dict[str, str | None], data: st.DataObject
) -> None:
    old, messages = columns(entries), messages_of(changes)
    right = rows(merged(old, messages))
    wrong = list(right)
    if not wrong:
        return
    at = data.draw(st.integers(0, len(wrong) - 1))
    match data.draw(st.sampled_from(["drop", "double", "swap", "value", "key", "undo"])):
        case "drop":
            del wrong[at]
        case "double":
            wrong.insert(at, wrong[at])
        case "swap":
            other = data.draw(st.integers(0, len(wrong) - 1))
            wrong[at], wrong[other] = wrong[other], wrong[at]
        case "value":
            wrong[at] = wrong[at][0], "another"
        case "key":
            wrong[at] = wrong[at][0] + "x", wrong[at][1]
        case _:
            wrong = sorted(entries.items())
    broken = Columns(pa.array([k for k, _ in wrong], pa.string()), pa.array([v for _, v in wrong], pa.string()))
    assert (wrong == right) == proved(old, messages, broken, None, None)


def test_the_proof_sees_keys_outside_of_their_range() -> None:
    run = columns({"b": "1", "c": "2"})
    assert proved(run, Messages(), run, "a", "d")
    assert not proved(run, Messages(), run, "b", "d")
    assert not proved(run, Messages(), run, "a", "c")


@given(st.integers(0, 400), st.integers(1, 12), st.integers(3, 40))
def test_a_run_is_cut_into_leaves_that_are_full_enough_and_fit(count: int, leaves: int, order: int) -> None:
    fewest, most = max(1, -(-order // 2) - 1), order - 1
    pieces = pieces_of(count, leaves, fewest, most)
    if pieces is None:
        assert count < 3 * most
        return
    entries = {f"C{number:05}": str(number) for number in range(count)}
    parts, pivots = cut(columns(entries), pieces)
    assert all(fewest <= len(part) <= most for part in parts)
    assert sorted(entries.items()) == rows(laid_out(parts, pivots))


def test_a_deleted_pivot_is_not_laid_out() -> None:
    one, two = columns({"a": "1"}), columns({"c": "3"})
    assert [("a", "1"), ("c", "3")] == rows(laid_out([one, two], [None]))
    assert [("a", "1"), ("b", "2"), ("c", "3")] == rows(laid_out([one, two], [("b", "2")]))


@given(st.dictionaries(MIXED, VALUES, min_size=1, max_size=15), st.integers(0, 40))
def test_a_leaf_of_columns_has_the_bytes_of_the_same_node(entries: dict[str, str], room: int) -> None:
    run = columns({"A": "before", **entries})
    leaf = run.slice(1, len(run))  # a slice of something larger, as a cut makes them
    order, path = len(leaf) + 1 + room, "0000/0000/0000/00000000-node-x.ipc"
    system = {"created_at_millis": "17"}
    node = Node([*leaf.keys.to_pylist()], [*leaf.values.to_pylist()], system=dict(system))
    node.subtree_keys, node.subtree_messages = len(leaf), 0
    (data,) = encode_many([leaf], order, [path], dict(system))
    assert nodefile.encode(node, order, path) == data
    again = leaffile.decode_columns(data, path, order)
    assert again is not None
    assert rows(leaf) == rows(again)


def leaf_file(path: str, **fields: object) -> bytes:
    node = Node(["C1", "C2"], ["u", "v"], system={"created_at_millis": "17"}, subtree_keys=2, subtree_messages=0)
    for name, value in fields.items():
        setattr(node, name, value)
    return bytes(nodefile.encode(node, 4, path))


@pytest.mark.parametrize(
    "fields",
    [
        {"buffer": Messages(["C3"], ["w"], ["t"])},
        {"height": 1, "children": ["x", "y", "z"]},
        {"height": None},
        {"keys": [], "values": []},
    ],
    ids=["buffer", "inner", "no height", "empty"],
)
def test_what_is_no_plain_leaf_is_left_to_the_general_way(fields: dict[str, object]) -> None:
    assert leaffile.decode_columns(leaf_file("p", **fields), "p", 4) is None
    assert leaffile.decode_columns(leaf_file("p"), "p", 4) is not None


def test_a_leaf_that_lies_elsewhere_is_left_to_the_general_way_which_refuses_it() -> None:
    assert leaffile.decode_columns(leaf_file("p"), "q", 4) is None


def test_a_damaged_leaf_is_refused() -> None:
    data = leaf_file("p")
    random.seed(3)
    for _ in range(200):
        at = random.randrange(len(data))
        broken = data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :]
        try:
            found = leaffile.decode_columns(broken, "p", 4)
        except CorruptNode:
            continue
        assert found is None or [("C1", "u"), ("C2", "v")] == rows(found)
    with pytest.raises(CorruptNode):
        leaffile.decode_columns(data[:100], "p", 4)
