"""What is wrong with one node, given what all its parents say about it. Pure: no request, no Spark.

A node is shared by many versions and has a parent in each. It is examined once, against the *tightest*
expectation of all of them: the larger lower pivot, the smaller upper one. A node that fits all parents fits the
tightest range, and one that does not fit a parent does not fit the tightest either. Likewise counts: parents that
say different things about one child cannot all be right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import compress
from typing import Any, Final, TypeAlias

import mmh3
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.engine.model import INT, LONG, TEXT, Row
from pipelines.integrity.findings import FOUND, found_row
from pipelines.trees.levels import ROOT, Visitor
from trinitylake_core.check import (
    MALFORMED,
    Expected,
    Violation,
    check_counts,
    check_node,
    check_place,
    decoded,
    malformed,
    said_below,
    violation,
)
from trinitylake_core.errors import FileMissing, InvalidLocation, InvalidName
from trinitylake_core.keys import KINDS, NAMESPACE, KeyCodec
from trinitylake_core.locations import validate_paths
from trinitylake_core.tree.node import Node

IntArray: TypeAlias = npt.NDArray[np.int32]
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
SAID: Final = "said"
SETTLED: Final = (*KINDS, MALFORMED)
"""What is counted of entries that are not kept."""
_VISITED: Final = pa.schema(
    {
        "path": TEXT, "height": INT, "first": LONG, "bytes": LONG, "named": INT,
        "children": pa.list_(pa.struct(list(ASKED))),
        "found": pa.list_(pa.struct(list(FOUND))), "entries": pa.list_(_ENTRY),
        **dict.fromkeys((SAID, *SETTLED), LONG), "exists": pa.list_(TEXT), "needed": pa.list_(TEXT),
    }
)  # fmt: skip
"""What is kept of a node; its entries, ``said`` of them, only if it belongs to the version whose meaning is proved.

Of entries that are settled where they were read only sums are kept: how many objects of each kind they are, and which
namespaces they are (``exists``) or lie in (``needed``).
"""
_SUMMED: Final = ("bytes", "named", SAID, *SETTLED)
_Pair: TypeAlias = tuple[str, str | None]


def visitor(examiner: Examiner) -> Visitor:
    """Return the visitor that examines the nodes of a walk."""
    return Visitor("nodes", ASKED, _VISITED, examiner, _weight, examiner.order, summed=_SUMMED, told="found")


def _weight(row: Row) -> int:
    return 1 + len(row["children"]) + len(row["found"]) + len(row["entries"])


def asked(path: str, first: int, last: int) -> dict[str, Any]:
    """Return the row of a root before it is read: no parent expects anything of it."""
    return dict.fromkeys(ASKED.names) | {"path": path, "first": first, "last": last, "height": ROOT, "parent": ""}


@dataclass(slots=True)
class Examiner:
    """Examines nodes of one shape. Remembers the write buffer of the last root: the next one holds most of it, too.

    Attributes:
        order: of the trees.
        codec: of their keys.
        meaning_of: the first of all versions that are walked; the entries of the nodes that it reaches are kept.
        above: hashes of all keys that nodes above the leaves say something about (:func:`hashes_of`), if they are
            known: what a leaf says of another key is its meaning, and is settled.
    """

    order: int
    codec: KeyCodec
    meaning_of: int
    above: IntArray | None = None
    _buffered: dict[_Pair, str | None] = field(default_factory=dict)

    def __call__(self, row: Row, data: bytes | FileMissing) -> dict[str, Any]:
        """Return the row that is kept of a node, with its findings.

        Where a node cannot be read, or has another height than its parents record, nothing below it is read.
        """
        node = decoded(row["path"], data, self.order, row["parent"])
        return _unreadable(row, node) if isinstance(node, Violation) else self.examine(row, node)

    def examine(self, row: Row, node: Node) -> dict[str, Any]:
        """Return the row that is kept of a node that was read."""
        path, expected = row["path"], _expected(row)
        astray = check_place(node, path, expected)
        if astray is not None:
            return _unreadable(row, astray)
        height = row["height"] if node.height is None else node.height
        sound = self._sound(node)
        found = [*check_node(node, path, self.order, expected)]
        found += self._names(node, path, top=row["height"] == ROOT, sound=sound)
        found += check_counts(node, path, expected, said_below(node))
        return {
            **_visited(row, height, found),
            "bytes": node.nbytes,
            "named": int(node.named),
            "children": [_asked(row, *each) for each in expected.children(node, path, height)],
            **(self._meaning(node, height, sound=sound) if row["first"] == self.meaning_of else {}),
        }

    def _meaning(self, node: Node, height: int, *, sound: bool) -> dict[str, Any]:
        """Return the entries of a node that are kept; of the settled entries of a leaf only the sums are kept."""
        said = _entries(node)
        if height > 0 or self.above is None:
            return _kept(said)
        kept = {key: said[key] for key in compress(said, _among(hashes_of(said), self.above))}
        settled = [key for key, value in said.items() if value is not None and key not in kept]
        return _kept(kept) | self._settled(settled, sound=sound and not node.pending.keys)

    def _settled(self, keys: list[str], *, sound: bool) -> dict[str, Any]:
        """Return the number of objects of each kind among keys, and the namespaces that they name.

        ``sound`` keys are known to be well formed.
        """
        homes: Counter[tuple[str, str]] = Counter()
        malformed = 0
        if sound:
            homes.update(self.codec.homes(keys))
        else:
            for key in keys:
                try:
                    homes[self.codec.parts(key)[:2]] += 1
                except InvalidName:
                    malformed += 1
        kinds = {kind: sum(count for (each, _), count in homes.items() if each == kind) for kind in KINDS}
        exists = {namespace for kind, namespace in homes if kind == NAMESPACE}
        needed = {namespace for kind, namespace in homes if kind != NAMESPACE}
        return {**kinds, MALFORMED: malformed, "exists": sorted(exists), "needed": sorted(needed)}

    def _names(self, node: Node, path: str, *, top: bool, sound: bool) -> Iterator[Violation]:
        """Yield malformed keys and values of the key table and of messages, the overridden ones among them (I11)."""
        before, proved = self._buffered if top else {}, {}
        for pair in node.buffer.meanings():
            proved[pair] = before[pair] if pair in before else malformed(self.codec, *pair)
        if top:
            self._buffered = proved
        table = () if sound else (malformed(self.codec, *pair) for pair in zip(node.keys, node.values, strict=True))
        yield from (violation("I11", path, each) for each in (*table, *proved.values()) if each is not None)

    def _sound(self, node: Node) -> bool:
        """Return whether keys and values of the key table are well formed; ``False`` says nothing."""
        with suppress(InvalidLocation):
            validate_paths(node.values)
            return self.codec.well_formed(node.keys)
        return False


def _unreadable(row: Row, what: Violation) -> dict[str, Any]:
    return _visited(row, UNREADABLE, [what])


def _visited(row: Row, height: int, found: Sequence[Violation]) -> dict[str, Any]:
    rows = [found_row(each, row["first"], row["last"]) for each in found]
    facts = {"path": row["path"], "height": height, "first": row["first"], "found": rows}
    sums = dict.fromkeys(_SUMMED, 0)
    return {**sums, "children": [], "entries": [], "exists": [], "needed": [], **facts}


def _kept(said: Mapping[str, str | None]) -> dict[str, Any]:
    return {"entries": [{"key": key, "value": value} for key, value in said.items()], SAID: len(said)}


def hashes_of(keys: Iterable[str]) -> IntArray:
    """Return the hashes of keys; those of different keys may be equal."""
    return np.fromiter(map(mmh3.hash, keys), np.int32)


def _among(hashes: IntArray, known: IntArray) -> list[bool]:
    """Return a mask of the hashes that are among known ones. REQUIRES that these ascend: a binary search for each."""
    if not len(known):
        return [False] * len(hashes)
    return (known[np.minimum(np.searchsorted(known, hashes), len(known) - 1)] == hashes).tolist()  # type: ignore[no-any-return]


def _entries(node: Node) -> dict[str, str | None]:
    """Return the entries of a node: its key table with its own messages carried out, deletions among them."""
    meaning: dict[str, str | None] = dict(zip(node.keys, node.values, strict=True))
    meaning.update(node.pending.meanings())
    return meaning


def _expected(row: Row) -> Expected:
    """Return the values that parents record about a node."""
    return Expected(
        None if row["height"] == ROOT else row["height"],
        row["lo"],
        row["hi"],
        None if row["keys_min"] is None else (row["keys_min"], row["keys_max"]),
        None if row["messages_min"] is None else (row["messages_min"], row["messages_max"]),
        row["parent"] or None,
    )


def _asked(parent: Row, path: str, expected: Expected) -> Row:
    """Return the values that one parent records about a child, as a row."""
    keys, messages = expected.keys or (None, None), expected.messages or (None, None)
    return {
        "path": path,
        "first": parent["first"],
        "last": parent["last"],
        "height": expected.height,
        "lo": expected.low,
        "hi": expected.high,
        "keys_min": keys[0],
        "keys_max": keys[1],
        "messages_min": messages[0],
        "messages_max": messages[1],
        "parent": expected.parent,
    }
