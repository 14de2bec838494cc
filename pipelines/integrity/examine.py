"""What is wrong with one node, told what all its parents say about it. Pure: no request, no Spark.

A node is shared by many versions and has a parent in each. It is examined once, against the *tightest*
expectation of all of them: the larger lower pivot, the smaller upper one. A node that fits all parents fits the
tightest range, and one that does not fit a parent does not fit the tightest either. Likewise counts: parents that
say different things about one child cannot all be right.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa

from pipelines.tasks import INT, LONG, TEXT
from trinitylake_core import spec
from trinitylake_core.check import Violation, check_node, violation
from trinitylake_core.errors import Corrupt, FileMissing, InvalidLocation, InvalidName
from trinitylake_core.keys import KeyCodec
from trinitylake_core.locations import validate_path
from trinitylake_core.node import Node
from trinitylake_core.nodefile import decode
from trinitylake_core.tree import MAX_HEIGHT

Row = dict[str, Any]
EXPECTED: Final = pa.schema(
    {
        "path": TEXT, "first": LONG, "last": LONG, "height": INT, "lo": TEXT, "hi": TEXT, "keys_min": LONG,
        "keys_max": LONG, "messages_min": LONG, "messages_max": LONG, "parent": TEXT,
    }
)  # fmt: skip
"""What parents say about a child; height -1 is a root, ``parent`` one of them. NULL = nothing is said."""


_REMEMBERED: Final = 1 << 15


def merged(one: Row, two: Row) -> Row:
    """Return the tightest expectation of two about the same node at the same height."""
    return {
        **one,
        "first": min(one["first"], two["first"]),
        "last": max(one["last"], two["last"]),
        "lo": _pick(max, one["lo"], two["lo"]),
        "hi": _pick(min, one["hi"], two["hi"]),
        "keys_min": _pick(min, one["keys_min"], two["keys_min"]),
        "keys_max": _pick(max, one["keys_max"], two["keys_max"]),
        "messages_min": _pick(min, one["messages_min"], two["messages_min"]),
        "messages_max": _pick(max, one["messages_max"], two["messages_max"]),
        "parent": min(one["parent"], two["parent"]),
    }


def _pick(choose: Any, one: Any, two: Any) -> Any:
    return two if one is None else one if two is None else choose(one, two)


def start(path: str, first: int, last: int) -> Row:
    """Return the expectation of a root: none."""
    row: Row = dict.fromkeys(EXPECTED.names, None)
    return row | {"path": path, "first": first, "last": last, "height": -1, "parent": ""}


def examined(
    row: Row, data: bytes | FileMissing, order: int, codec: KeyCodec
) -> tuple[Node | None, list[Violation], list[Row]]:
    """Return the node, what is wrong with it, and what it says about its children.

    Where a node cannot be read, or is of another height than its parents say, nothing below it is looked at.
    """
    path = row["path"]
    if isinstance(data, FileMissing):
        found = "the file is missing" + (f", but {row['parent']!r} points to it" if row["parent"] else "")
        return None, [violation("I10", path, found)], []
    try:
        node = decode(data, path, order)
    except Corrupt as error:
        return None, [violation(error.invariant, path, str(error))], []
    top = row["height"] < 0
    height = node.height if top or node.height is None else row["height"]
    if height is None:
        height = row["height"]
    if node.height is not None and not top and node.height != row["height"]:
        message = f"has height {node.height} below {row['parent']!r}, where height {row['height']} is expected"
        return None, [violation("I8", path, message)], []
    if height > MAX_HEIGHT:
        return None, [violation("I8", path, f"height {height} is more than any tree has")], []
    lo, hi = row["lo"], row["hi"]
    if lo is not None and hi is not None and lo >= hi:
        message = "is reached from places whose ranges exclude each other: twice from one root, or astray"
        return None, [violation("I10", path, message)], []
    problems = [*check_node(node, path, order, (lo, hi), top=top), *_names(node, path, codec), *_counts(node, row)]
    return node, problems, list(_children(node, row, height))


def _names(node: Node, path: str, codec: KeyCodec) -> Iterator[Violation]:
    """Yield malformed keys and values of the key table and of messages, the overridden ones among them (I11)."""
    pairs = [*zip(node.keys, node.values, strict=True), *zip(node.buffer.keys, node.buffer.values, strict=True)]
    for key, value in pairs:
        try:
            _decoded(codec, key)
            if value is not None:
                _validated(value)
        except (InvalidName, InvalidLocation) as error:
            yield violation("I11", path, str(error))


@lru_cache(_REMEMBERED)
def _decoded(codec: KeyCodec, key: str) -> None:
    """Decode a key; what neighbouring versions have in their write buffers is the same thousands of times."""
    codec.decode(key)


@lru_cache(_REMEMBERED)
def _validated(path: str) -> None:
    validate_path(path)


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
            stated = str(low) if low == high else f"{low} and {high}"
            yield violation("I9", path, f"{what} of {row['parent']!r} says {stated}, the node says {own}")


def _children(node: Node, row: Row, height: int) -> Iterator[Row]:
    keys, messages = _or_unstated(node.child_keys, node), _or_unstated(node.child_messages, node)
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


def _or_unstated(counts: list[int] | None, node: Node) -> list[int] | list[None]:
    if counts is None or len(counts) != len(node.children):
        return [None] * len(node.children)
    return counts
