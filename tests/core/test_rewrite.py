"""Build, join and flush against a dictionary, and the proof that a rewrite lost nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.memory import ColumnMemorySink, MemorySink, prove_tree
from trinitylake_core.errors import Corrupt, CorruptNode
from trinitylake_core.keys import EVERYTHING, KeyRange
from trinitylake_core.tree import search
from trinitylake_core.tree.leafrun import Columns
from trinitylake_core.tree.node import Messages, Node
from trinitylake_core.tree.proof import Proof, entries_hash
from trinitylake_core.tree.rewrite import Rewriter
from trinitylake_core.tree.subtree import PayingChildren, Ref, dirty_children, heaviest_children

ORDERS = st.integers(3, 9)
IN_FOUR_WAYS = settings(max_examples=settings().max_examples // 3)
"""Of a test that is run for each of four ways to break something."""


@pytest.fixture(scope="module", autouse=True)
def short_runs() -> Iterator[None]:
    """Two neighbours are columns already: the trees here are small."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trinitylake_core.tree.leafflush.FEWEST_LEAVES", 2)
        patch.setattr("trinitylake_core.tree.leafflush.LARGEST_ROWS", 30)
        yield


TARGETS = st.sampled_from([1, 2100, 2400, 3000, 4000, 8000])
Changes = list[tuple[str, str | None]]
KEYS = st.integers(0, 299).map("C{:04}".format)
ENTRIES = st.dictionaries(KEYS, st.sampled_from("uvw"), max_size=150)
CHANGES = st.lists(st.tuples(KEYS, st.none() | st.sampled_from("xyz")), max_size=40)
FILLS = st.sampled_from([0.5, 0.7, 0.9, 1.0])


def build(rewriter: Rewriter, entries: dict[str, str], fill: float = 0.9, batch: int = 7) -> Ref:
    keys = sorted(entries)
    parts = [keys[start : start + batch] for start in range(0, len(keys), batch)]
    return rewriter.build([Columns.of(part, [entries[key] for key in part]) for part in parts], fill)


def rooted(rewriter: Rewriter, ref: Ref) -> Node:
    rewriter.open(ref)
    return rewriter.node_of(ref)


def entries_of(sink: MemorySink, root: Node, within: KeyRange = EVERYTHING) -> dict[str, str]:
    rows = [row for keys, values in search.scan(sink, root, within) for row in zip(keys, values, strict=True)]
    assert [key for key, _ in rows] == sorted({key for key, _ in rows})
    return dict(rows)


def messages_of(changes: Changes, txn: str = "t") -> Messages:
    return Messages.of([(key, value, txn) for key, value in changes])


def apply_to(model: dict[str, str], changes: Changes) -> None:
    for key, value in changes:
        if value is None:
            model.pop(key, None)
        else:
            model[key] = value


def eager(order: int) -> PayingChildren:
    """Return the policy of a compaction that pays, as it is of larger orders: two messages are worth a leaf."""
    policy = PayingChildren(order, 0)
    policy.worth, policy._kept = 2, 3
    return policy


def flushed(
    sink: MemorySink, root: Node, policy: object, *, prove: bool = False, partial: bool = False
) -> tuple[Node, Rewriter]:
    rewriter = Rewriter(sink, 1, prove=prove, partial=partial)
    node = rooted(rewriter, rewriter.flush(rewriter.ref_of(root), policy))  # type: ignore[arg-type]
    return node, rewriter


@given(ORDERS, ENTRIES, FILLS, st.integers(1, 60))
def test_a_built_tree_is_whole(order: int, entries: dict[str, str], fill: float, batch: int) -> None:
    """Packed at any fill, from batches of any size, it is a B-tree of exactly these entries."""
    sink = ColumnMemorySink(order)
    rewriter = Rewriter(sink, 1, prove=True)
    root = rooted(rewriter, build(rewriter, entries, fill, batch))
    prove_tree(sink, root)
    assert entries == entries_of(sink, root)


@given(ORDERS, ENTRIES, KEYS, FILLS, st.booleans())
def test_two_trees_joined_are_one(order: int, entries: dict[str, str], cut: str, fill: float, with_key: bool) -> None:
    """Whatever their heights, with a key between them or without."""
    sink = ColumnMemorySink(order)
    rewriter = Rewriter(sink, 1)
    left = build(rewriter, {key: value for key, value in entries.items() if key < cut}, fill)
    right = build(rewriter, {key: value for key, value in entries.items() if key > cut}, 0.5)
    higher = max(left.height, right.height)
    joined = rewriter.join(left, cut, "cut", right) if with_key else rewriter.join_without_key(left, right)
    root = rooted(rewriter, joined)
    prove_tree(sink, root)
    expected = {key: value for key, value in entries.items() if key != cut} | ({cut: "cut"} if with_key else {})
    assert expected == entries_of(sink, root)
    assert higher + 1 >= (root.height or 0)


@given(
    ORDERS, TARGETS, ENTRIES, st.lists(st.tuples(CHANGES, st.sampled_from(["none", "full", "heavy", "pays"]))), FILLS
)
def test_messages_mean_the_same_wherever_they_are(
    order: int,
    target: int,
    entries: dict[str, str],
    rounds: list[tuple[list[tuple[str, str | None]], str]],
    fill: float,
) -> None:
    """Commits and flushes of both kinds in any order; after each the tree is whole and says what the model says."""
    sink, model = ColumnMemorySink(order), dict(entries)
    rewriter = Rewriter(sink, 1)
    root = rooted(rewriter, build(rewriter, entries, fill))
    for number, (changes, flush) in enumerate(rounds):
        if flush == "heavy":
            root, proof = flushed(sink, root, heaviest_children(target), prove=True, partial=True)
            assert proof.is_proved()
        elif flush == "pays":
            root, proof = flushed(sink, root, eager(order).of_others, prove=True, partial=True)
            assert proof.is_proved()
        elif flush == "full":
            root, proof = flushed(sink, root, dirty_children, prove=True)
            assert proof.is_proved()
            assert 0 == root.subtree_messages
        prove_tree(sink, root)
        assert model == entries_of(sink, root)
        root = root.with_messages(messages_of(changes, f"t{number}"))
        apply_to(model, changes)
    prove_tree(sink, root)
    assert model == entries_of(sink, root)
    for key in ("C0000", "C0150", "C0299", "C", "D"):
        assert model.get(key) == search.lookup(sink, root, key)
    within = KeyRange("C0100", "C0199")
    assert {key: value for key, value in model.items() if key in within} == entries_of(sink, root, within)


@given(ORDERS, ENTRIES, CHANGES, st.integers(0, 50))
def test_nodes_taken_back_before_they_were_written_change_nothing(
    order: int, entries: dict[str, str], changes: Changes, batch: int
) -> None:
    """A node added and opened again in one rewrite is one node, and counts once in the proof."""
    sink = ColumnMemorySink(order, batch)
    build_rewriter = Rewriter(sink, 1)
    root = rooted(build_rewriter, build(build_rewriter, entries, 0.5)).with_messages(messages_of(changes))
    model = dict(entries)
    apply_to(model, changes)
    sink._batch = 0
    before = dict(sink.files)
    sink._batch = batch
    sink.added += batch
    root, proof = flushed(sink, root, dirty_children, prove=True)
    assert before.items() <= sink.files.items(), "files of other versions are never taken back"
    assert proof.is_proved()
    prove_tree(sink, root)
    assert model == entries_of(sink, root)


@given(ORDERS, ENTRIES)
def test_deleting_everything_leaves_an_empty_leaf(order: int, entries: dict[str, str]) -> None:
    sink = ColumnMemorySink(order)
    rewriter = Rewriter(sink, 1)
    root = rooted(rewriter, build(rewriter, entries))
    root = root.with_messages(messages_of([(key, None) for key in entries]))
    root, proof = flushed(sink, root, dirty_children, prove=True)
    assert proof.is_proved()
    assert (0, [], 0) == (root.height, root.keys, root.subtree_keys)


@given(ORDERS, ENTRIES.filter(lambda entries: len(entries) > 60), KEYS)
def test_a_clean_subtree_is_not_read(order: int, entries: dict[str, str], key: str) -> None:
    """One change costs one path: a full flush reads no more than the nodes around it."""
    sink = ColumnMemorySink(order)
    rewriter = Rewriter(sink, 1)
    root = rooted(rewriter, build(rewriter, entries)).with_messages(messages_of([(key, "new")]))
    sink.read_paths.clear()
    root, proof = flushed(sink, root, dirty_children, prove=True)
    assert proof.is_proved()
    assert 3 * ((root.height or 0) + 1) >= len(set(sink.read_paths))


Sabotage = Callable[[Node], None]


def drop(node: Node) -> None:
    node.keys, node.values = node.keys[:-1], node.values[:-1]


def duplicate(node: Node) -> None:
    node.keys, node.values = [*node.keys, node.keys[-1] + "x"], [*node.values, node.values[-1]]


def change(node: Node) -> None:
    node.values = [*node.values[:-1], "other"]


def swap(node: Node) -> None:
    node.values = node.values[::-1]


@pytest.mark.parametrize("sabotage", [drop, duplicate, change, swap])
@IN_FOUR_WAYS
@given(order=ORDERS, number=st.integers(0, 20))
def test_a_rewrite_that_breaks_an_entry_is_not_proved(sabotage: Sabotage, order: int, number: int) -> None:
    """An entry lost, doubled or changed between reading and writing, in any one node, shows in the sums."""
    sink = ColumnMemorySink(order)
    rewriter = Rewriter(sink, 1)
    entries = {f"C{key:04}": f"v{key}" for key in range(120)}
    changes = [(f"C{key:04}", None if key % 3 else f"w{key}") for key in range(0, 140, 2)]
    root = rooted(rewriter, build(rewriter, entries)).with_messages(messages_of(changes))
    proof = Rewriter(sink, 1, prove=True)
    opened = []

    def broken(node: Node, ref: Ref) -> object:
        work = honest(node, ref)
        opened.append(work)
        if len(opened) == number + 1 and len(work.keys) > 1 and not work.refs:
            sabotage(work)  # type: ignore[arg-type]
            opened.append(None)
        return work

    honest = proof._work
    proof._work = broken  # type: ignore[method-assign, assignment]
    rooted(proof, proof.flush(proof.ref_of(root), dirty_children))
    assert (None not in opened) == proof.is_proved()


def test_swapped_values_are_never_a_proof() -> None:
    """The sums are of a hash that mixes key and value well: sums of ``hash`` of tuples agree for half of all swaps."""
    for number in range(300):
        keys, values = [f"k{number}", f"l{number}"], [f"v{number}", f"w{number}"]
        assert entries_hash(keys, values) != entries_hash(keys, values[::-1])


@pytest.mark.parametrize("way", ["lost", "changed", "made a deletion", "doubled"])
@IN_FOUR_WAYS
@given(order=ORDERS, number=st.integers(0, 12), target=st.sampled_from([0, 3000, 6000]))
def test_a_message_that_stays_and_is_not_the_same_is_not_proved(way: str, order: int, number: int, target: int) -> None:
    """Of messages that a partial flush leaves in the buffers of new nodes, in any one of them."""
    sink = ColumnMemorySink(order)
    rewriter = Rewriter(sink, 1)
    entries = {f"C{key:04}": f"v{key}" for key in range(150)}
    changes = [(f"C{key:04}x", f"w{key}") for key in range(0, 160, 2)]
    root = rooted(rewriter, build(rewriter, entries)).with_messages(messages_of(changes))
    proof = Rewriter(sink, 1, prove=True, partial=True)
    seen: list[int] = []
    broken: list[bool] = []

    def seal(ref: Ref) -> Ref:
        for child in [] if ref.work is None else ref.work.refs:
            if not len(child.pending):
                continue
            seen.append(ref.height)
            if len(seen) == number + 1:
                _break_pending(child, way)
                broken.append(True)
        return honest(ref)

    honest = proof.seal
    proof.seal = seal  # type: ignore[method-assign]
    tree = proof.flush(proof.ref_of(root), heaviest_children(target))
    proof.open(tree)
    try:
        proof.node_of(tree)
        proved = proof.is_proved()
    except Corrupt:
        proved = False
    assert proved == (True not in broken)


def _break_pending(child: Ref, way: str) -> None:
    """Break what waits for a child."""
    rows = list(child.pending)
    key, value, txn = rows[-1]
    if way == "lost":
        rows = rows[:-1]
    elif way == "changed":
        rows[-1] = key, "other", txn
    elif way == "made a deletion":
        rows[-1] = key, None, txn
    else:
        rows.append((key + "y", value, txn))
    child.pending = Messages.of(rows)


def test_a_message_lost_on_the_way_down_is_not_proved() -> None:
    """Sums are over what messages mean too, not only over rows."""
    sink = ColumnMemorySink(4)
    rewriter = Rewriter(sink, 1)
    entries = {f"C{key:04}": f"v{key}" for key in range(60)}
    for lost in ([("C0030", "new")], [("C0031", None)], [("C9999", "more")]):
        root = rooted(rewriter, build(rewriter, entries)).with_messages(messages_of([("C0001", "x"), *lost]))
        proof = Rewriter(sink, 1, prove=True)
        ref = proof.ref_of(root)
        for child in proof.open(ref).refs:
            kept = [row for row in child.pending if row[0] != lost[0][0]]
            child.pending = Messages.of(kept)
        values = [entries.get(key, value) for key, value in zip(ref.work.keys, ref.work.values, strict=True)]  # type: ignore[union-attr]
        ref.work.values = values  # type: ignore[union-attr]
        rooted(proof, proof.flush(ref, dirty_children))
        assert not proof.is_proved()


@pytest.mark.parametrize("height", [0, 2])
def test_a_subtree_of_another_height_is_refused(height: int) -> None:
    """What a pointer leads to is proved before it is used."""
    sink = ColumnMemorySink(4)
    rewriter = Rewriter(sink, 1)
    path = sink.add(Node(["C1"], ["v"], ["node-8", "node-9"], height=1, subtree_keys=1, subtree_messages=0))
    with pytest.raises(CorruptNode):
        rewriter.open(Ref(height, path))


@given(ORDERS, ENTRIES, FILLS, st.integers(1, 60), st.integers(1, 80))
def test_a_tree_is_the_same_however_its_entries_come(
    order: int, entries: dict[str, str], fill: float, batch: int, together: int
) -> None:
    """The same files byte for byte, and proved."""
    at_once, columns = ColumnMemorySink(order), ColumnMemorySink(order)
    expected = rooted(Rewriter(at_once, 1), build(Rewriter(at_once, 1), entries, fill, batch=1000))
    assert entries_of(at_once, expected) == entries
    keys = sorted(entries)
    parts = [keys[start : start + batch] for start in range(0, len(keys), batch)]
    rewriter = Rewriter(columns, 1, prove=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trinitylake_core.tree.leafbuild._ROWS", together)
        fed = [Columns.of(part, [entries[key] for key in part]) for part in parts]
        for part in fed:
            rewriter.proof.fed_columns(part)  # type: ignore[union-attr]
        tree = rewriter.build(fed, fill)
    root = rooted(rewriter, tree)
    assert rewriter.is_proved()
    assert at_once.files == columns.files
    assert (expected.keys, expected.children, expected.child_keys) == (root.keys, root.children, root.child_keys)


@given(ENTRIES.filter(bool), st.data())
def test_a_tree_built_of_other_columns_than_were_fed_is_not_proved(
    entries: dict[str, str], data: st.DataObject
) -> None:
    """Whichever entry is lost, or has another value, on the way into the tree."""
    rewriter = Rewriter(ColumnMemorySink(3), 1, prove=True)
    keys = sorted(entries)
    rewriter.proof.fed_columns(Columns.of(keys, [entries[key] for key in keys]))  # type: ignore[union-attr]
    index = data.draw(st.integers(0, len(keys) - 1))
    if data.draw(st.booleans()):
        entries[keys[index]] += "?"
    else:
        del keys[index]
    rooted(rewriter, rewriter.build([Columns.of(keys, [entries[key] for key in keys])]))
    assert not rewriter.is_proved()


@pytest.mark.parametrize(
    ("fed", "built", "same"),
    [((0, 6), (0, 6), True), ((0, 5), (1, 6), False), ((1, 6), (1, 6), True), ((1, 6), (1, 5), False)],
)
def test_rows_of_one_memory_are_the_same_only_in_the_same_place(
    fed: tuple[int, int], built: tuple[int, int], same: bool
) -> None:
    rows = Columns.of([*"abcdef"], [*"uvwxyz"])
    proof = Proof()
    proof.fed_columns(rows.slice(*fed))
    proof.cut(rows.slice(*built))
    assert same == proof.holds()


def test_columns_of_one_memory_are_compared_each_with_its_own() -> None:
    rows = Columns.of([*"abcdef"], [*"abcdeg"])
    for other in (Columns(rows.keys, rows.keys), Columns(rows.values, rows.values)):
        proof = Proof()
        proof.fed_columns(rows)
        proof.cut(other)
        assert not proof.holds()


@pytest.mark.parametrize("wrong", [["a", "c", "b", "d"], ["a", "b", "b", "c"]], ids=["out of order", "twice"])
@pytest.mark.parametrize("batch", [1, 2, 4])
def test_columns_that_do_not_ascend_are_refused(wrong: list[str], batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trinitylake_core.tree.leafbuild._ROWS", 1)
    rewriter = Rewriter(ColumnMemorySink(3), 1, prove=True)
    parts = [Columns.of(wrong[start : start + batch], ["v"] * batch) for start in range(0, len(wrong), batch)]
    with pytest.raises(Corrupt, match="do not ascend"):
        rewriter.build(parts)
