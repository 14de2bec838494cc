"""The difference of two versions: what it costs where one side is a long run of messages, and that it is right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, starmap
from typing import Any, ClassVar

from hypothesis import given
from hypothesis import strategies as st

from trinitylake_core.diff import diff_nodes
from trinitylake_core.diff.compare import _compare
from trinitylake_core.diff.stream import Run, Stream
from trinitylake_core.tree.node import Messages, Node
from trinitylake_core.tree.search import apply_messages

LEAF = 64


class Key(str):
    """A key that counts how often one is compared with another."""

    __slots__ = ()
    compared: ClassVar[int] = 0

    def __lt__(self, other: str) -> bool:
        Key.compared += 1
        return str.__lt__(self, other)

    def __gt__(self, other: str) -> bool:
        Key.compared += 1
        return str.__gt__(self, other)

    def __eq__(self, other: object) -> bool:
        Key.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


class Rows(list[str]):
    """A column that counts the rows that are taken out of it."""

    def __init__(self, rows: Sequence[str]) -> None:
        super().__init__(rows)
        self.taken = 0

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        self.taken += len(found) if isinstance(index, slice) else 1
        return found

    def __iter__(self) -> Iterator[str]:
        self.taken += len(self)
        return super().__iter__()


class Reader:
    """Nodes by path, out of memory."""

    def __init__(self, nodes: dict[str, Node]) -> None:
        self.nodes = nodes
        self.reads = 0

    def read(self, path: str) -> Node:
        """Return one node."""
        self.reads += 1
        return self.nodes[path]

    def read_many(self, paths: Sequence[str]) -> Iterator[Node]:
        """Yield nodes in order."""
        return (self.read(path) for path in paths)


def keys(count: int) -> list[Key]:
    return [Key(f"{number:08}") for number in range(count)]


def buffered(count: int) -> Node:
    """Return a root whose write buffer holds everything: a version right after one large commit."""
    return Node(buffer=Messages(list(keys(count)), ["value"] * count, ["txn"] * count))


def compacted(count: int, changed: int | None = None) -> tuple[Reader, Node]:
    """Return the same in leaves, all of it pushed down, with another value for one key."""
    every = keys(count)
    values = ["other" if number == changed else "value" for number in range(count)]
    cuts = [-1, *range(LEAF, count, LEAF + 1), count]
    leaves = {f"leaf {lo}": Node(list(every[lo + 1 : hi]), values[lo + 1 : hi]) for lo, hi in pairwise(cuts)}
    pivots = cuts[1:-1]
    root = Node([every[at] for at in pivots], [values[at] for at in pivots], list(leaves), height=1)
    return Reader(leaves), root


def comparisons(count: int) -> int:
    """Return how many comparisons it takes to see that a compaction changed nothing."""
    old, (reader, new) = buffered(count), compacted(count)
    Key.compared = 0
    assert [] == list(diff_nodes(reader, old, reader, new))
    assert reader.reads == len(reader.nodes)
    return Key.compared


def test_comparing_a_large_commit_with_its_compaction_costs_the_same_per_object() -> None:
    """Eight times the objects, at most nine times the comparisons; when each leaf copied the rest it took forty."""
    assert comparisons(8 * 2048) <= 9 * comparisons(2048)


def test_one_change_among_many_is_found() -> None:
    (reader, new), old = compacted(1000, changed=500), buffered(1000)
    assert [("00000500", "value", "other")] == list(diff_nodes(reader, old, reader, new))
    assert [("00000500", "other", "value")] == list(diff_nodes(reader, new, reader, old))
    assert 1000 == len(list(diff_nodes(reader, Node(), reader, new)))


_SIDES = st.dictionaries(st.sampled_from("abcdefghijklmnop"), st.sampled_from("xyz"))
_CUTS = st.lists(st.integers(0, 16), max_size=6)


def _cut(side: dict[str, str], cuts: list[int]) -> Iterator[tuple[list[str], list[str]]]:
    rows = sorted(side.items())
    for lo, hi in pairwise([0, *sorted(cuts), 16]):
        yield [key for key, _ in rows[lo:hi]], [value for _, value in rows[lo:hi]]


@given(_SIDES, _CUTS, _SIDES, _CUTS)
def test_runs_cut_anywhere_yield_what_differs(
    old: dict[str, str], old_cuts: list[int], new: dict[str, str], new_cuts: list[int]
) -> None:
    wanted = [(key, old.get(key), new.get(key)) for key in sorted(old | new) if old.get(key) != new.get(key)]
    before, after = (Stream(None, runs=starmap(Run, _cut(*side))) for side in ((old, old_cuts), (new, new_cuts)))
    assert wanted == list(_compare(before, after))


@given(
    st.dictionaries(st.text("abc", min_size=1, max_size=3), st.sampled_from("xy"), max_size=4),
    st.dictionaries(st.text("abc", min_size=1, max_size=3), st.sampled_from(["v", "w", None]), min_size=1),
)
def test_rows_with_few_or_many_messages_carried_out_are_what_the_messages_mean(
    table: dict[str, str], messages: dict[str, str | None]
) -> None:
    keys, values = sorted(table), [table[key] for key in sorted(table)]
    waiting = Messages.of([(key, messages[key], "t") for key in sorted(messages)])
    meant = {key: value for key, value in (table | messages).items() if value is not None}
    assert apply_messages(keys, values, waiting) == (sorted(meant), [meant[key] for key in sorted(meant)])
