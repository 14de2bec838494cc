"""What is wrong with one node, given what all its parents say about it. Pure: no request, no Spark.

A node is shared by many versions and has a parent in each. It is examined once, against the *tightest*
expectation of all of them: the larger lower pivot, the smaller upper one. A node that fits all parents fits the
tightest range, and one that does not fit a parent does not fit the tightest either. Likewise counts: parents that
say different things about one child cannot all be right.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import pyarrow as pa

from pipelines.integrity.findings import FOUND, found_row
from pipelines.tasks import INT, LONG, TEXT, Row
from pipelines.trees.levels import ROOT, Visitor
from trinitylake_core import spec
from trinitylake_core.check import Violation, check_node, violation
from trinitylake_core.errors import Corrupt, FileMissing, InvalidLocation, InvalidName
from trinitylake_core.keys import KeyCodec
from trinitylake_core.locations import validate_path, validate_paths
from trinitylake_core.tree.node import Node
from trinitylake_core.tree.nodefile import decode
from trinitylake_core.tree.search import MAX_HEIGHT

UNREADABLE: Final = -1
"""The height of a node that could not be read: what lies below it is not looked at."""
ASKED: Final = pa.schema(
    {
        "path": TEXT, "first": LONG, "last": LONG, "height": INT, "lo": TEXT, "hi": TEXT, "keys_min": LONG,
        "keys_max": LONG, "messages_min": LONG, "messages_max": LONG, "parent": TEXT,
    }
)  # fmt: skip
"""What parents say about a child; ``parent`` is one of them. NULL = nothing is said."""
_ENTRY: Final = pa.struct({"key": TEXT, "value": TEXT})
_VISITED: Final = pa.schema(
    {
        "path": TEXT, "height": INT, "first": LONG, "bytes": LONG, "named": INT,
        "children": pa.list_(pa.struct(list(ASKED))),
        "found": pa.list_(pa.struct(list(FOUND))), "entries": pa.list_(_ENTRY),
    }
)  # fmt: skip
"""What is kept of a node; its entries only if it belongs to the version whose meaning is proved."""
_Pair: TypeAlias = tuple[str, str | None]


def visitor(examiner: Examiner) -> Visitor:
    """Return what examines the nodes of a walk."""
    return Visitor("nodes", ASKED, _VISITED, examiner, _weight, examiner.order, summed=("bytes", "named"), told="found")


def _weight(row: Row) -> int:
    return 1 + len(row["children"]) + len(row["found"]) + len(row["entries"])


def asked(path: str, first: int, last: int) -> dict[str, Any]:
    """Return what is asked of a root: nothing."""
    return dict.fromkeys(ASKED.names) | {"path": path, "first": first, "last": last, "height": ROOT, "parent": ""}


@dataclass(slots=True)
class Examiner:
    """Examines nodes of one shape. Remembers the write buffer of the last root: the next one holds most of it, too.

    Attributes:
        order: of the trees.
        codec: of their keys.
        meaning_of: the first of all versions that are walked; the entries of the nodes that it reaches are kept.
    """

    order: int
    codec: KeyCodec
    meaning_of: int
    _buffered: dict[_Pair, str | None] = field(default_factory=dict)

    def __call__(self, row: Row, data: bytes | FileMissing) -> dict[str, Any]:
        """Return what is kept of a node, the findings among it.

        Where a node cannot be read, or is of another height than its parents say, nothing below it is looked at.
        """
        path = row["path"]
        if isinstance(data, FileMissing):
            found = "the file is missing" + (f", but {row['parent']!r} points to it" if row["parent"] else "")
            return _unreadable(row, violation("I10", path, found))
        try:
            node = decode(data, path, self.order)
        except Corrupt as error:
            return _unreadable(row, violation(error.invariant, path, str(error)))
        return self.examine(row, node)

    def examine(self, row: Row, node: Node) -> dict[str, Any]:
        """Return what is kept of a node that was read."""
        path, lo, hi, top = row["path"], row["lo"], row["hi"], row["height"] == ROOT
        height = row["height"] if node.height is None else node.height
        if not top and height != row["height"]:
            message = f"has height {height} below {row['parent']!r}, where height {row['height']} is expected"
            return _unreadable(row, violation("I8", path, message))
        if height > MAX_HEIGHT:
            return _unreadable(row, violation("I8", path, f"height {height} is more than any tree has"))
        if lo is not None and hi is not None and lo >= hi:
            message = "is reached from places whose ranges exclude each other: twice from one root, or astray"
            return _unreadable(row, violation("I10", path, message))
        found = [*check_node(node, path, self.order, (lo, hi), top=top), *self._names(node, path, top=top)]
        found += _counts(node, row)
        return {
            **_visited(row, height, found),
            "bytes": node.nbytes,
            "named": int(node.named),
            "children": list(_children(node, row, height)),
            "entries": _entries(node) if row["first"] == self.meaning_of else [],
        }

    def _names(self, node: Node, path: str, *, top: bool) -> Iterator[Violation]:
        """Yield malformed keys and values of the key table and of messages, the overridden ones among them (I11)."""
        before, proved = self._buffered if top else {}, {}
        for pair in node.buffer.meanings():
            proved[pair] = before[pair] if pair in before else self._wrong(pair)
        if top:
            self._buffered = proved
        table = () if self._sound(node) else map(self._wrong, zip(node.keys, node.values, strict=True))
        yield from (violation("I11", path, each) for each in (*table, *proved.values()) if each is not None)

    def _sound(self, node: Node) -> bool:
        """Return whether keys and values of the key table are well formed; ``False`` says nothing."""
        with suppress(InvalidLocation):
            validate_paths(node.values)
            return self.codec.well_formed(node.keys)
        return False

    def _wrong(self, pair: _Pair) -> str | None:
        """Return what is wrong with a key or its value, ``None`` if nothing is."""
        key, value = pair
        try:
            self.codec.parts(key)
            if value is not None:
                validate_path(value)
        except (InvalidName, InvalidLocation) as error:
            return str(error)
        return None


def _unreadable(row: Row, what: Violation) -> dict[str, Any]:
    return _visited(row, UNREADABLE, [what])


def _visited(row: Row, height: int, found: Sequence[Violation]) -> dict[str, Any]:
    rows = [found_row(each, row["first"], row["last"]) for each in found]
    facts = {"path": row["path"], "height": height, "first": row["first"], "found": rows}
    return {"bytes": 0, "named": 0, "children": [], "entries": [], **facts}


def _entries(node: Node) -> list[Row]:
    """Return what a node says: its key table with its own messages carried out, deletions among them."""
    meaning: dict[str, str | None] = dict(zip(node.keys, node.values, strict=True))
    meaning.update(node.pending.meanings())
    return [{"key": key, "value": value} for key, value in meaning.items()]


def _counts(node: Node, row: Row) -> Iterator[Violation]:
    path = row["path"]
    for name, own, mine, below in (
        (spec.SUBTREE_KEYS, node.subtree_keys, len(node.keys), node.child_keys),
        (spec.SUBTREE_MESSAGES, node.subtree_messages, len(node.buffer), node.child_messages),
    ):
        if own is not None and (node.is_leaf or below is not None) and own != mine + sum(below or ()):
            yield violation("I9", path, f"{name} says {own}, the node and its children count {mine + sum(below or ())}")
    for what, own, low, high in (
        (spec.CHILD_KEYS, node.subtree_keys, row["keys_min"], row["keys_max"]),
        (spec.CHILD_MESSAGES, node.subtree_messages, row["messages_min"], row["messages_max"]),
    ):
        if own is not None and low is not None and not low == own == high:
            claimed = str(low) if low == high else f"{low} and {high}"
            yield violation("I9", path, f"{what} of {row['parent']!r} says {claimed}, the node says {own}")


def _children(node: Node, row: Row, height: int) -> Iterator[Row]:
    keys, messages = _of_children(node.child_keys, node), _of_children(node.child_messages, node)
    for index, child in enumerate(node.children):
        low, high = node.bounds(index) if index <= len(node.keys) else (None, None)
        yield {
            "path": child,
            "first": row["first"],
            "last": row["last"],
            "height": height - 1,
            "lo": _pick(max, low, row["lo"]),
            "hi": _pick(min, high, row["hi"]),
            "keys_min": keys[index],
            "keys_max": keys[index],
            "messages_min": messages[index],
            "messages_max": messages[index],
            "parent": row["path"],
        }


def _pick(choose: Any, one: Any, two: Any) -> Any:
    return two if one is None else one if two is None else choose(one, two)


def _of_children(counts: list[int] | None, node: Node) -> list[int] | list[None]:
    if counts is None or len(counts) != len(node.children):
        return [None] * len(node.children)
    return counts
