"""A node in memory: the mirror of one node file (format, section 4). Pure data, no storage."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from trinitylake_core import spec
from trinitylake_core.tree.noderows import NodeRows

_CELL_BYTES = 18
"""What a table row costs beside its text: four offsets and validity bits."""
_SCANS = 8
_SEARCHES = 4
_LISTS = ("keys", "values", "children", "buffer", "child_keys", "child_messages")
_FILE_BYTES = 2048
"""What an empty node file costs: Arrow schema, footer and system rows."""


@dataclass(slots=True)
class Messages:
    """Columns of messages: ``values[i] is None`` deletes ``keys[i]``. Oldest first, or sorted by key.

    The functions of ``tree`` pass *sorted* messages around: ascending keys, at most one message a key.
    """

    keys: list[str] = field(default_factory=list)
    values: list[str | None] = field(default_factory=list)
    txns: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[tuple[str, str | None, str]]:
        return zip(self.keys, self.values, self.txns, strict=True)

    def meanings(self) -> Iterator[tuple[str, str | None]]:
        """Return key and value of each message, of all transactions."""
        return zip(self.keys, self.values, strict=True)

    def slice(self, start: int, stop: int | None = None) -> Messages:
        """Return rows ``start`` to ``stop``."""
        return Messages(self.keys[start:stop], self.values[start:stop], self.txns[start:stop])

    def between(self, lo: str | None, hi: str | None) -> Messages:
        """Return the messages of *sorted* messages that lie strictly between two pivots."""
        start = 0 if lo is None else bisect_right(self.keys, lo)
        stop = len(self.keys) if hi is None else bisect_left(self.keys, hi)
        return self.slice(start, stop)

    def on(self, key: str) -> Messages:
        """Return the message of *sorted* messages for one key, if there is one."""
        row = bisect_left(self.keys, key)
        return self.slice(row, row + (row < len(self.keys) and self.keys[row] == key))

    def append(self, key: str, value: str | None, txn: str) -> None:
        """Add one message behind the others."""
        self.keys.append(key)
        self.values.append(value)
        self.txns.append(txn)

    def extend(self, newer: Messages) -> None:
        """Add messages behind the others."""
        self.keys += newer.keys
        self.values += newer.values
        self.txns += newer.txns

    def of_transaction(self, txn: str) -> Messages:
        """Return the rows of one transaction, in order."""
        return Messages.of(row for row in self if row[2] == txn)

    def nbytes(self) -> int:
        """Return the uncompressed size in bytes in a node file."""
        values = len("".join(filter(None, self.values)))
        return text_bytes(self.keys) + values + len("".join(self.txns)) + _CELL_BYTES * len(self.keys)

    def newest(self) -> Messages:
        """Return sorted messages: of each key the last one here."""
        keys = self.keys
        if all(a < b for a, b in pairwise(keys)):
            return self
        last = {key: row for row, key in enumerate(keys)}
        ordered = sorted(last)
        rows = [last[key] for key in ordered]
        return Messages(ordered, [self.values[r] for r in rows], [self.txns[r] for r in rows])

    @classmethod
    def of(cls, rows: Iterator[tuple[str, str | None, str]] | Sequence[tuple[str, str | None, str]]) -> Messages:
        """Return messages from rows of (key, value, transaction ID)."""
        columns = list(zip(*rows, strict=True))
        return cls(*map(list, columns)) if columns else cls()


def merged(older: Messages | None, newer: Messages | None) -> Messages:
    """Return sorted messages that mean both; where a key is in both, ``newer`` wins."""
    if not older:
        return newer or Messages()
    if not newer:
        return older
    if older.keys[-1] < newer.keys[0]:
        return Messages(older.keys + newer.keys, older.values + newer.values, older.txns + newer.txns)
    both = Messages(list(older.keys), list(older.values), list(older.txns))
    both.extend(newer)
    return both.newest()


def text_bytes(texts: Sequence[str]) -> int:
    """Return the size of texts in UTF-8 bytes."""
    joined = "".join(texts)
    return len(joined) if joined.isascii() else len(joined.encode())


@dataclass(slots=True)
class Node:
    """One node: system rows, node key table, write buffer. Immutable by convention once read or written.

    ``children`` holds the paths of ``len(keys) + 1`` children, or nothing in a leaf. ``child_keys``
    and ``child_messages`` tell what each child's subtree holds, ``None`` where the writer did not say.
    ``height`` is ``None`` where unknown. ``table_rows`` is the number of rows of the key table as read.
    """

    keys: list[str] = field(default_factory=list)
    values: list[str] = field(default_factory=list)
    children: list[str] = field(default_factory=list)
    buffer: Messages = field(default_factory=Messages)
    system: dict[str, str] = field(default_factory=dict)
    height: int | None = 0
    subtree_keys: int | None = None
    subtree_messages: int | None = None
    child_keys: list[int] | None = None
    child_messages: list[int] | None = None
    table_rows: int | None = None
    canonical: bool = True
    checksummed: bool = True
    named: bool = False
    """Whether the file it was read from knows its own path."""
    nbytes: int = 0
    """The size of the node's file in bytes, as read or written."""
    _pending: Messages | None = None
    _estimate: int | None = None
    _scans: int = 0
    _rows: NodeRows | None = field(default=None, repr=False, compare=False)

    def take_rows(self, rows: NodeRows) -> None:
        """Hold the rows that were read: the lists of the node are made when they are asked for."""
        self._rows = rows
        for name in _LISTS:
            delattr(self, name)

    if not TYPE_CHECKING:  # it would hide misspelt names from the type checker

        def __getattr__(self, name: str) -> Any:
            if name not in _LISTS:
                raise AttributeError(name)
            rows = self._rows
            if rows is not None:
                made = rows.list_of(name)
                setattr(self, name, Messages(*made) if name == "buffer" else made)
            return object.__getattribute__(self, name)

    def become_lists(self) -> None:
        """Make all lists: after some searches they are cheaper than rows."""
        for name in _LISTS:
            getattr(self, name)
        self._rows = None

    @property
    def is_leaf(self) -> bool:
        """Whether the node has no children."""
        return not self.children if self._rows is None else self._rows.pointers is None

    @property
    def pending(self) -> Messages:
        """The write buffer as sorted messages, the newest of each key."""
        if self._pending is None:
            self._pending = self.buffer.newest()
        return self._pending

    def find(self, key: str) -> tuple[bool, str | None]:
        """Return whether this node decides what a key means, and its value; else the path of the child to go on in.

        The first searches go through the rows as they were read; those in lists are faster, once these are made.
        """
        rows = self._rows
        if rows is not None:
            self._scans += 1
            if self._scans <= _SEARCHES:
                message = rows.message(key)
                return rows.find(key) if message is None else (True, message[0])
            self.become_lists()
        if self._pending is None or self._pending.keys:
            message = self.message(key)
            if message is not None:
                return True, message[0]
        keys = self.keys
        row = bisect_right(keys, key)
        if row and keys[row - 1] == key:
            return True, self.values[row - 1]
        children = self.children
        return (False, children[row]) if children else (True, None)

    def message(self, key: str) -> tuple[str | None] | None:
        """Return the value that the newest message for ``key`` sets, in a tuple, or ``None`` without a message.

        The first lookups in a buffer scan it, which is cheaper than sorting it for them.
        """
        if self._pending is None and self._scans < _SCANS:
            self._scans += 1
            keys = self.buffer.keys
            return (self.buffer.values[~keys[::-1].index(key)],) if key in keys else None
        pending = self.pending
        row = bisect_left(pending.keys, key)
        return (pending.values[row],) if row < len(pending.keys) and pending.keys[row] == key else None

    def child_index(self, key: str) -> int:
        """Return the index of the child whose range holds ``key``, which is not a pivot."""
        return bisect_right(self.keys, key)

    def position(self, key: str) -> int | None:
        """Return the row of ``key`` in the key table, or ``None``."""
        row = bisect_left(self.keys, key)
        return row if row < len(self.keys) and self.keys[row] == key else None

    def bounds(self, child: int) -> tuple[str | None, str | None]:
        """Return the pivots around a child; ``None`` at the edges."""
        return (self.keys[child - 1] if child else None, self.keys[child] if child < len(self.keys) else None)

    def table_bytes(self) -> int:
        """Return the uncompressed size of system rows and key table, in bytes."""
        rows = len(self.keys) * 2 * _CELL_BYTES
        return _FILE_BYTES + text_bytes(self.keys) + text_bytes(self.values) + text_bytes(self.children) + rows

    def estimated_bytes(self) -> int:
        """Return the uncompressed size in bytes, which ``node_file_max_size_bytes`` bounds."""
        if self._estimate is None:
            self._estimate = self.table_bytes() + self.buffer.nbytes()
        return self._estimate

    def with_messages(self, newer: Messages) -> Node:
        """Return a copy whose write buffer ends in ``newer``; system rows are left to the caller."""
        buffer = Messages(
            self.buffer.keys + newer.keys, self.buffer.values + newer.values, self.buffer.txns + newer.txns
        )
        inside = None if self.subtree_messages is None else self.subtree_messages + len(newer)
        return Node(
            self.keys, self.values, self.children, buffer, {}, self.height, self.subtree_keys, inside,
            self.child_keys, self.child_messages, _estimate=self.estimated_bytes() + newer.nbytes(),
        )  # fmt: skip

    @property
    def version(self) -> int | None:
        """The version in the system rows of a root, if it is there."""
        text = self.system.get(spec.VERSION)
        return int(text) if text is not None and text.isdecimal() else None
