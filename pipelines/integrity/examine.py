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
from pipelines.integrity.findings import VIOLATION, columns_of
from pipelines.reach.walk import CHILD, NAMED, NODE, ROOT
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
from trinitylake_core.tree.node import Meaning, Node

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
NEEDED: Final = 8
KEPT: Final = pa.schema(
    {
        "role": INT, **{each.name: each.type for each in ASKED}, "size": LONG, "named": INT, "value": TEXT,
        **dict.fromkeys(VIOLATION, TEXT),
    }
)  # fmt: skip
"""What is kept of a node: itself and its bytes, what it records of its children, and its findings.

With files also the definitions that it and its messages name (:data:`pipelines.reach.walk.NAMED`).
Of the version whose content is proved also its entries (``path`` is the key). Of entries that are settled where they
were read only sums are kept: how many objects of each kind they are (``path`` is the kind), and which namespaces they
are (``EXISTS``) or lie in (``NEEDED``).
"""
_NO_EDGE: Final = (None,) * (len(ASKED) - 4)
NO_FINDING: Final = (None,) * len(VIOLATION)


def visits(
    rows: Iterator[Row],
    storage: Storage,
    *,
    examiner: Examiner,
) -> Iterator[Kept]:
    """Yield what is kept of nodes. One ``get`` each, read ahead."""
    while batch := list(islice(rows, READ_AHEAD)):
        paths = [row["path"] for row in batch]
        for row, (_, data) in zip(batch, storage.read_many(paths), strict=True):
            yield from examiner(row, data)


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
    _buffered: dict[Meaning, str | None] = field(default_factory=dict)

    def __call__(self, row: Row, data: bytes | FileMissing) -> list[Kept]:
        """Return the rows that are kept of a node, with its findings.

        Where a node cannot be read, or has another height than its parents record, nothing below it is read.
        """
        node = decode_node(row["path"], data, row["parent"])
        if isinstance(node, Violation):
            return _unreadable(row, node)
        return self.examine(row, node)

    def examine(self, row: Row, node: Node) -> list[Kept]:
        """Return the rows that are kept of a node that was read."""
        path = row["path"]
        expected = _expected_by_parents(row)
        astray = check_place(node, path, expected)
        if astray is not None:
            return _unreadable(row, astray)
        if node.height is None:
            height = row["height"]
        else:
            height = node.height
        is_root = row["height"] == ROOT
        is_sound = well_formed(node.keys, node.values, self.codec)

        kept = [
            _keep_row(
                NODE,
                row,
                path,
                height,
                size=node.nbytes,
                named=int(node.named),
            )
        ]
        findings = [*check_node(node, path, self.order, expected)]
        findings += self._check_names(node, path, is_root=is_root, is_sound=is_sound)
        findings += check_counts(node, path, expected)
        for finding in findings:
            kept.append(_finding(row, finding))
        for child, expected_of_child in expected.expect_children(node, path, height):
            kept.append(_child(row, child, expected_of_child))
        if self.files:
            for named in (*node.values, *node.buffer.values):
                if named is not None:
                    kept.append(_keep_row(NAMED, row, named, None))
        if row["first"] == self.content_of:
            kept += self._keep_entries(row, node, height, is_sound=is_sound)
        return kept

    def _keep_entries(
        self,
        row: Row,
        node: Node,
        height: int,
        *,
        is_sound: bool,
    ) -> Iterator[Kept]:
        """Yield the entries of a node that are kept.

        Of the settled entries of a leaf only the number of objects of each kind and the namespaces that they name are.
        """
        entries = _entries(node)
        if height == 0 and self.above is not None:
            is_above = _among(hashes_of(entries), self.above)
            unsettled = {key: entries[key] for key in compress(entries, is_above)}
            settled = [key for key, value in entries.items() if value is not None and key not in unsettled]
            content = VersionContent(self.codec)
            content.note_many(settled, well_formed=is_sound and not node.pending.keys)
            for kind, count in content.kinds.items():
                yield _keep_row(KIND, row, kind, None, size=count)
            for namespace in sorted(content.exists):
                yield _keep_row(EXISTS, row, namespace, None)
            for namespace in sorted(content.needed):
                yield _keep_row(NEEDED, row, namespace, None)
            entries = unsettled
        for key, value in entries.items():
            yield _keep_row(ENTRY, row, key, height, value=value)

    def _check_names(
        self,
        node: Node,
        path: str,
        *,
        is_root: bool,
        is_sound: bool,
    ) -> Iterator[Violation]:
        """Yield malformed keys and values of the key table and of messages, the overridden ones among them (I11)."""
        defects = []
        if not is_sound:
            for key, value in zip(node.keys, node.values, strict=True):
                defects.append(defect_of_entry(self.codec, key, value))
        if is_root:
            known = self._buffered
        else:
            known = {}
        proved: dict[Meaning, str | None] = {}
        for pair in node.buffer.meanings():
            proved[pair] = known[pair] if pair in known else defect_of_entry(self.codec, *pair)
        if is_root:
            self._buffered = proved
        defects += proved.values()
        for defect in defects:
            if defect is not None:
                yield violation("I11", path, defect)


def _unreadable(row: Row, what: Violation) -> list[Kept]:
    node = _keep_row(NODE, row, row["path"], UNREADABLE, size=0, named=0)
    return [node, _finding(row, what)]


def _keep_row(
    role: int,
    row: Row,
    path: str,
    height: int | None,
    *,
    size: int | None = None,
    named: int | None = None,
    value: str | None = None,
) -> Kept:
    return (role, path, height, row["first"], row["last"], *_NO_EDGE, size, named, value, *NO_FINDING)


def _finding(row: Row, what: Violation) -> Kept:
    place = (row["path"], None, row["first"], row["last"])
    return (FINDING, *place, *_NO_EDGE, None, None, None, *columns_of(what))


def hashes_of(keys: Iterable[str]) -> IntArray:
    """Return the hashes of keys; those of different keys may be equal."""
    return np.fromiter(map(mmh3.hash, keys), np.int32)


def _among(hashes: IntArray, known: IntArray) -> list[bool]:
    """Return a mask of the hashes that are among known ones. REQUIRES that these ascend: a binary search for each."""
    if not len(known):
        return [False] * len(hashes)
    at = np.searchsorted(known, hashes)
    neighbours = known[np.minimum(at, len(known) - 1)]
    mask: list[bool] = (neighbours == hashes).tolist()
    return mask


def _entries(node: Node) -> dict[str, str | None]:
    """Return the entries of a node: its key table with its own messages carried out, deletions among them."""
    entries: dict[str, str | None] = dict(zip(node.keys, node.values, strict=True))
    entries.update(node.pending.meanings())
    return entries


def _expected_by_parents(row: Row) -> Expected:
    """Return the values that parents record about a node."""
    height = row["height"]
    keys_min = row["keys_min"]
    messages_min = row["messages_min"]
    return Expected(
        height=None if height == ROOT else height,
        low=row["lo"],
        high=row["hi"],
        keys=None if keys_min is None else (keys_min, row["keys_max"]),
        messages=None if messages_min is None else (messages_min, row["messages_max"]),
        parent=row["parent"] or None,
    )


def _child(parent: Row, path: str, expected: Expected) -> Kept:
    """Return the values that one parent records about a child, as a row."""
    keys = expected.keys or (None, None)
    messages = expected.messages or (None, None)
    edge = (expected.low, expected.high, *keys, *messages, expected.parent)
    return (
        CHILD, path, expected.height, parent["first"], parent["last"], *edge, None, None, None, *NO_FINDING,
    )  # fmt: skip
