"""The defects of one node, given what all its parents record about it. Pure: no request, no Spark.

A node is shared by many versions and has a parent in each. It is examined once, against the *tightest*
expectation of all of them: the larger lower pivot, the smaller upper one. A node that fits all parents fits the
tightest range, and one that does not fit a parent does not fit the tightest either. Likewise counts: parents that
record different things about one child cannot all be right.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import compress, islice
from typing import Any, Final, TypeAlias

import mmh3
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.engine.model import INT, LONG, READ_AHEAD, TEXT, Row
from pipelines.integrity.findings import VIOLATION
from pipelines.trees.walk import CHILD, NAMED, NODE, ROOT
from trinitylake_core.check import (
    Expected,
    VersionContent,
    Violation,
    check_counts,
    check_node,
    check_place,
    decode_node,
    defect_of_entry,
    violation,
    well_formed,
)
from trinitylake_core.errors import FileMissing
from trinitylake_core.keys import KeyCodec
from trinitylake_core.storage import Storage
from trinitylake_core.tree.node import Node

IntArray: TypeAlias = npt.NDArray[np.int32]
Kept: TypeAlias = tuple[Any, ...]
"""A row of :data:`KEPT`."""
UNREADABLE: Final = -1
"""The height of a node that could not be read: nothing below it is read."""
ASKED: Final = pa.schema(
    {
        "path": TEXT, "height": INT, "first": LONG, "last": LONG, "lo": TEXT, "hi": TEXT, "keys_min": LONG,
        "keys_max": LONG, "messages_min": LONG, "messages_max": LONG, "parent": TEXT,
    }
)  # fmt: skip
"""What parents record about a child; ``parent`` is one of them. NULL = nothing."""
FINDING: Final = -1
ENTRY: Final = 3
KIND: Final = 4
EXISTS: Final = 5
NEEDED: Final = 6
KEPT: Final = pa.schema(
    {
        "role": INT, **{each.name: each.type for each in ASKED}, "size": LONG, "named": INT, "value": TEXT,
        **dict.fromkeys(VIOLATION, TEXT),
    }
)  # fmt: skip
"""What is kept of a node: itself and its bytes, what it records of its children, and its findings.

With files also the definitions that it and its messages name (:data:`pipelines.trees.walk.NAMED`).
Of the version whose content is proved also its entries (``path`` is the key). Of entries that are settled where they
were read only sums are kept: how many objects of each kind they are (``path`` is the kind), and which namespaces they
are (``EXISTS``) or lie in (``NEEDED``).
"""
_NO_EDGE: Final = (None,) * (len(ASKED) - 4)
NO_FINDING: Final = (None,) * len(VIOLATION)
_Pair: TypeAlias = tuple[str, str | None]


def visits(rows: Iterator[Row], storage: Storage, *, examiner: Examiner, most: int | None) -> Iterator[Kept]:
    """Yield what is kept of nodes, until ``most`` findings. One ``get`` each, read ahead."""
    found = set[Kept]()
    while (most is None or len(found) < most) and (some := list(islice(rows, READ_AHEAD))):
        for row, (_, data) in zip(some, storage.read_many([row["path"] for row in some]), strict=True):
            kept = examiner(row, data)
            yield from kept
            found.update(each[-len(VIOLATION) :] for each in kept if most is not None and each[0] == FINDING)


def row_of_root(path: str, first: int, last: int) -> dict[str, Any]:
    """Return the row of a root before it is read: no parent expects anything of it."""
    return dict.fromkeys(ASKED.names) | {"path": path, "first": first, "last": last, "height": ROOT, "parent": ""}


@dataclass(slots=True)
class Examiner:
    """Examines nodes of one shape. Remembers the write buffer of the last root: the next one holds most of it, too.

    Attributes:
        order: of the trees.
        codec: of their keys.
        content_of: the first of all versions that are walked; the entries of the nodes that it reaches are kept.
        above: hashes of all keys in nodes above the leaves, also of messages (:func:`hashes_of`), if they are known:
            the value that a leaf has for another key counts, and is settled.
        files: whether the definitions that nodes name are kept.
    """

    order: int
    codec: KeyCodec
    content_of: int
    above: IntArray | None = None
    files: bool = False
    _buffered: dict[_Pair, str | None] = field(default_factory=dict)

    def __call__(self, row: Row, data: bytes | FileMissing) -> list[Kept]:
        """Return the rows that are kept of a node, with its findings.

        Where a node cannot be read, or has another height than its parents record, nothing below it is read.
        """
        node = decode_node(row["path"], data, row["parent"])
        return _unreadable(row, node) if isinstance(node, Violation) else self.examine(row, node)

    def examine(self, row: Row, node: Node) -> list[Kept]:
        """Return the rows that are kept of a node that was read."""
        path, expected = row["path"], _expected_by_parents(row)
        astray = check_place(node, path, expected)
        if astray is not None:
            return _unreadable(row, astray)
        height = row["height"] if node.height is None else node.height
        sound = well_formed(node, self.codec)
        kept = [_keep_row(NODE, row, path, height, size=node.nbytes, named=int(node.named))]
        for found in (
            check_node(node, path, self.order, expected),
            self._names(node, path, top=row["height"] == ROOT, sound=sound),
            check_counts(node, path, expected),
        ):
            kept += (_finding(row, each) for each in found)
        kept += (_child(row, *each) for each in expected.expect_children(node, path, height))
        if self.files:
            named = (*node.values, *(value for value in node.buffer.values if value is not None))
            kept += (_keep_row(NAMED, row, each, None) for each in named)
        if row["first"] == self.content_of:
            kept += self._kept_entries(row, node, height, sound=sound)
        return kept

    def _kept_entries(self, row: Row, node: Node, height: int, *, sound: bool) -> Iterator[Kept]:
        """Yield the entries of a node that are kept.

        Of the settled entries of a leaf only the number of objects of each kind and the namespaces that they name are.
        """
        entries = _entries(node)
        kept = entries
        if height == 0 and self.above is not None:
            kept = {key: entries[key] for key in compress(entries, _among(hashes_of(entries), self.above))}
            settled = [key for key, value in entries.items() if value is not None and key not in kept]
            content = VersionContent(self.codec)
            content.note_many(settled, well_formed=sound and not node.pending.keys)
            yield from (_keep_row(KIND, row, kind, None, size=count) for kind, count in content.kinds.items())
            for role, names in ((EXISTS, content.exists), (NEEDED, content.needed)):
                yield from (_keep_row(role, row, name, None) for name in sorted(names))
        yield from (_keep_row(ENTRY, row, key, height, value=value) for key, value in kept.items())

    def _names(self, node: Node, path: str, *, top: bool, sound: bool) -> Iterator[Violation]:
        """Yield malformed keys and values of the key table and of messages, the overridden ones among them (I11)."""
        before, proved = self._buffered if top else {}, {}
        for pair in node.buffer.meanings():
            proved[pair] = before[pair] if pair in before else defect_of_entry(self.codec, *pair)
        if top:
            self._buffered = proved
        table = (
            () if sound else (defect_of_entry(self.codec, *pair) for pair in zip(node.keys, node.values, strict=True))
        )
        yield from (violation("I11", path, each) for each in (*table, *proved.values()) if each is not None)


def _unreadable(row: Row, what: Violation) -> list[Kept]:
    return [_keep_row(NODE, row, row["path"], UNREADABLE, size=0, named=0), _finding(row, what)]


def _keep_row(
    role: int, row: Row, path: str, height: int | None, *, size: int | None = None, named: int | None = None,
    value: str | None = None,
) -> Kept:  # fmt: skip
    return (role, path, height, row["first"], row["last"], *_NO_EDGE, size, named, value, *NO_FINDING)


def _finding(row: Row, what: Violation) -> Kept:
    found = (getattr(what, name) for name in VIOLATION)
    return (FINDING, row["path"], None, row["first"], row["last"], *_NO_EDGE, None, None, None, *found)


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
    return {**dict(zip(node.keys, node.values, strict=True)), **dict(node.pending.meanings())}


def _expected_by_parents(row: Row) -> Expected:
    """Return the values that parents record about a node."""
    return Expected(
        None if row["height"] == ROOT else row["height"],
        row["lo"],
        row["hi"],
        None if row["keys_min"] is None else (row["keys_min"], row["keys_max"]),
        None if row["messages_min"] is None else (row["messages_min"], row["messages_max"]),
        row["parent"] or None,
    )


def _child(parent: Row, path: str, expected: Expected) -> Kept:
    """Return the values that one parent records about a child, as a row."""
    keys, messages = expected.keys or (None, None), expected.messages or (None, None)
    edge = (expected.low, expected.high, *keys, *messages, expected.parent)
    return (
        CHILD, path, expected.height, parent["first"], parent["last"], *edge, None, None, None, *NO_FINDING,
    )  # fmt: skip
