"""A node in memory: the mirror of one node file (format, section 4). Pure data, no storage."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from trinitylake_core import spec
from trinitylake_core.tree.leafrun import Columns, as_bits, newest_rows, positions
from trinitylake_core.tree.noderows import MANY, NodeRows, Texts, as_column, joined_texts, text_size, txns_of

_CELL_BYTES = 18
"""What a table row costs beside its text: four offsets and validity bits."""
_SCANS = 8
_SEARCHES = 32
_LISTS = ("keys", "values", "children", "buffer", "child_keys", "child_messages")
_TABLE = ("keys", "values")
_FILE_BYTES = 2048
"""What an empty node file costs: Arrow schema, footer and system rows."""

Meaning: TypeAlias = tuple[str, str | None]
"""What a message says: its key, and the path of the definition there; ``None`` deletes the key."""


@dataclass(slots=True)
class Messages:
    """Messages: ``values[i] is None`` deletes ``keys[i]``. Oldest first, or sorted by key.

    The functions of ``tree`` pass *sorted* messages around: ascending keys, at most one message a key. Many messages
    are Arrow columns, from a transaction to the leaves, and the lists are made where a caller asks for one.
    """

    keys: list[str] = field(default_factory=list)
    values: list[str | None] = field(default_factory=list)
    txns: list[str] = field(default_factory=list)
    table: tuple[Any, Any, Any] | None = field(default=None, init=False, repr=False, compare=False)
    """Columns, without NULL but in the values, of which rows ``start`` to before ``stop`` are the same messages.

    The lists need not be there then. Messages for many children share one table, and cost no column each.
    """
    start: int = field(default=0, init=False, repr=False, compare=False)
    stop: int = field(default=0, init=False, repr=False, compare=False)

    @classmethod
    def of_columns(cls, keys: Any, values: Any, txns: Any) -> Messages:
        """Return messages given as columns without NULL but in the values."""
        return cls._of_table((keys, values, txns), 0, len(keys))

    @classmethod
    def _of_table(cls, table: tuple[Any, Any, Any], start: int, stop: int) -> Messages:
        made = cls.__new__(cls)  # without the lists, which are made when somebody asks for them
        made.table = table
        made.start = start
        made.stop = max(start, stop)
        return made

    @property
    def arrow(self) -> tuple[Any, Any, Any] | None:
        """The messages as three columns, if they are columns."""
        if self.table is None:
            return None
        keys, values, txns = (column.slice(self.start, len(self)) for column in self.table)
        return keys, values, txns

    if not TYPE_CHECKING:  # it would hide misspelt names from the type checker

        def __getattr__(self, name: str) -> Any:
            if name not in {"keys", "values", "txns"}:
                raise AttributeError(name)
            keys, values, txns = self.arrow
            if name == "keys":
                self.keys = keys.to_pylist()
            elif name == "values":
                self.values = values.to_pylist()
            else:
                self.txns = txns_of(txns)
            return object.__getattribute__(self, name)

    def __len__(self) -> int:
        if self.table is None:
            return len(self.keys)
        return self.stop - self.start

    def __iter__(self) -> Iterator[tuple[str, str | None, str]]:
        return zip(self.keys, self.values, self.txns, strict=True)

    def meanings(self) -> Iterator[Meaning]:
        """Return key and value of each message, of all transactions."""
        return zip(self.keys, self.values, strict=True)

    def texts(self) -> tuple[Any, Any, Any]:
        """Return keys, values and transactions as they are: three lists or three columns."""
        return self.arrow or (self.keys, self.values, self.txns)

    def columns(self) -> Columns:
        """Return keys and values as columns."""
        keys, values, _ = self.texts()
        return Columns(as_column(keys), as_column(values))

    def slice(self, start: int, stop: int | None = None) -> Messages:
        """Return rows ``start`` to ``stop``."""
        if self.table is None:
            return Messages(self.keys[start:stop], self.values[start:stop], self.txns[start:stop])
        start, stop, _ = slice(start, stop).indices(len(self))
        return self._of_table(self.table, self.start + start, self.start + stop)

    def slice_between(self, lo: str | None, hi: str | None) -> Messages:
        """Return the messages of *sorted* messages that lie strictly between two pivots."""
        start = 0 if lo is None else bisect_right(self.keys, lo)
        stop = len(self.keys) if hi is None else bisect_left(self.keys, hi)
        return self.slice(start, stop)

    def on(self, key: str) -> Messages:
        """Return the message of *sorted* messages for one key, if there is one."""
        row = bisect_left(self.keys, key)
        is_there = row < len(self.keys) and self.keys[row] == key
        return self.slice(row, row + is_there)

    def places(self, keys: Sequence[str]) -> Iterator[tuple[int, bool]]:
        """Yield where each of ascending keys would stand among *sorted* messages, and whether one is for it."""
        arrow = self.arrow
        if arrow is not None:
            rows, there = positions(arrow[0], as_column(keys))
            yield from zip(rows.tolist(), there.tolist(), strict=True)
            return
        row = 0
        for key in keys:
            row = bisect_left(self.keys, key, row)
            yield row, row < len(self.keys) and self.keys[row] == key

    def append(self, key: str, value: str | None, txn: str) -> None:
        """Add one message behind the others."""
        self.extend(Messages([key], [value], [txn]))

    def extend(self, newer: Messages) -> None:
        """Add messages behind the others."""
        self.keys += newer.keys
        self.values += newer.values
        self.txns += newer.txns
        self.table = None

    def of_transaction(self, txn: str) -> Messages:
        """Return the rows of one transaction, in order."""
        arrow = self.arrow
        if arrow is None:
            return Messages.of(row for row in self if row[2] == txn)
        keys, values, txns = arrow
        is_mine = as_bits(np.array([each == txn for each in txns_of(txns)]))
        return Messages.of_columns(keys.filter(is_mine), values.filter(is_mine), txns.filter(is_mine))

    def deletions(self) -> int:
        """Return the number of messages that delete a key."""
        arrow = self.arrow
        if arrow is None:
            return self.values.count(None)
        _, values, _ = arrow
        return int(values.null_count)

    def nbytes(self) -> int:
        """Return the uncompressed size in bytes in a node file."""
        arrow = self.arrow
        if arrow is None:
            texts = text_bytes(self.keys)
            texts += len("".join(filter(None, self.values)))  # paths and transaction IDs are ASCII
            texts += len("".join(self.txns))
        else:
            texts = sum(map(text_size, arrow))
        return texts + _CELL_BYTES * len(self)

    def newest(self) -> Messages:
        """Return sorted messages: of each key the last one here."""
        arrow = self.arrow
        if arrow is not None:
            keys, values, txns = arrow
            last = newest_rows(keys)
            if last is None:
                return self
            return Messages.of_columns(keys.take(last), values.take(last), txns.take(last))
        if all(a < b for a, b in pairwise(self.keys)):
            return self
        last_rows = {key: row for row, key in enumerate(self.keys)}
        ordered = sorted(last_rows)
        rows = [last_rows[key] for key in ordered]
        return Messages(ordered, [self.values[row] for row in rows], [self.txns[row] for row in rows])

    @classmethod
    def of(cls, rows: Iterator[tuple[str, str | None, str]] | Sequence[tuple[str, str | None, str]]) -> Messages:
        """Return messages from rows of (key, value, transaction ID)."""
        made = cls()
        for key, value, txn in rows:
            made.keys.append(key)
            made.values.append(value)
            made.txns.append(txn)
        return made

    @classmethod
    def join(cls, parts: Iterable[Messages]) -> Messages:
        """Return messages one behind the other: columns if some are, or else new lists."""
        some: list[Messages] = []
        for part in parts:
            if some and some[-1].continues_in(part):
                last = some.pop()
                part = cls._of_table(last.table, last.start, part.stop)  # type: ignore[arg-type]  # noqa: PLW2901
            if len(part):
                some.append(part)
        if len(some) == 1 and some[0].table is not None:
            return some[0].slice(0)
        if any(part.table is not None for part in some):
            columns = zip(*(part.texts() for part in some), strict=True)
            keys, values, txns = map(joined_texts, columns)
            return cls.of_columns(keys, values, txns)
        made = cls()
        for part in some:
            made.extend(part)
        return made

    def continues_in(self, other: Messages) -> bool:
        """Whether other messages are the rows of the same table behind these."""
        return self.table is not None and self.table is other.table and self.stop == other.start


def merge_messages(older: Messages | None, newer: Messages | None) -> Messages:
    """Return sorted messages that mean both; where a key is in both, ``newer`` wins."""
    if not older:
        return newer or Messages()
    if not newer:
        return older
    return Messages.join([older, newer]).newest()


def _messages(buffer: tuple[Texts, Any, Any] | None) -> Messages:
    """Return a write buffer as it was read; a large one stays columns."""
    if buffer is None:
        return Messages()
    texts, values, txns = buffer
    keys = texts.column
    if len(keys) < MANY:
        return Messages(keys.to_pylist(), values.to_pylist(), txns_of(txns))
    if txns.null_count:
        txns = txns.fill_null("")
    return Messages.of_columns(keys, values, txns)


def text_bytes(texts: Sequence[str]) -> int:
    """Return the size of texts in UTF-8 bytes."""
    joined = "".join(texts)
    return len(joined) if joined.isascii() else len(joined.encode())


@dataclass(slots=True)
class Node:
    """One node: system rows, node key table, write buffer. Immutable by convention once read or written.

    ``children`` holds the paths of ``len(keys) + 1`` children, or nothing in a leaf. ``child_keys``
    and ``child_messages`` count what each child's subtree holds, ``None`` where the writer did not.
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
    _meanings: dict[str, str | None] | None = None
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
                setattr(self, name, _messages(rows.buffer) if name == "buffer" else rows.list_of(name))
                if name in _TABLE and all(map(self._has, _TABLE)):
                    self.become_lists()  # or the node would hold its text twice
            return object.__getattribute__(self, name)

        def _has(self, name: str) -> bool:
            try:
                object.__getattribute__(self, name)
            except AttributeError:
                return False
            return True

    def become_lists(self) -> None:
        """Make all lists: after some searches they are cheaper than rows."""
        for name in _LISTS:
            getattr(self, name)
        self._rows = None

    def take_buffer(self) -> Messages:
        """Return the write buffer, which the node does not have any more."""
        taken = self.buffer
        self.buffer = Messages()
        self._pending = None
        self._meanings = None
        self._estimate = None
        if self._rows is not None:
            self._rows = replace(self._rows, buffer=None)
        return taken

    @property
    def is_leaf(self) -> bool:
        """Whether the node has no children."""
        if self._rows is None:
            return not self.children
        return self._rows.pointers is None

    def entries(self) -> Columns | None:
        """Return the entries of a leaf as columns; ``None`` of other nodes, if there are none, or if messages wait."""
        if self.height != 0 or not self.is_leaf:
            return None
        rows = self._rows
        if rows is None:
            is_plain = len(self.keys) > 0 and not len(self.buffer)
            return Columns.of(self.keys, self.values) if is_plain else None
        is_plain = len(rows.keys) > 0 and rows.buffer is None
        return Columns(rows.keys.column, rows.values) if is_plain else None

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
        if self._meanings is None or self._meanings:
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

        The first lookups in a buffer scan it, which is cheaper than a table of it for them.
        """
        if self._meanings is None and self._scans < _SCANS:
            self._scans += 1
            keys = self.buffer.keys
            if key not in keys:
                return None
            behind = keys[::-1].index(key)  # rows behind the last message
            return (self.buffer.values[~behind],)
        if self._meanings is None:
            self._meanings = dict(self.buffer.meanings())  # of each key the last message stays
        if key in self._meanings:
            return (self._meanings[key],)
        return None

    def child_index(self, key: str) -> int:
        """Return the index of the child whose range holds ``key``, which is not a pivot."""
        return bisect_right(self.keys, key)

    def position(self, key: str) -> int | None:
        """Return the row of ``key`` in the key table, or ``None``."""
        row = bisect_left(self.keys, key)
        if row == len(self.keys) or self.keys[row] != key:
            return None
        return row

    def bounds(self, child: int) -> tuple[str | None, str | None]:
        """Return the pivots around a child; ``None`` at the edges."""
        low = self.keys[child - 1] if child > 0 else None
        high = self.keys[child] if child < len(self.keys) else None
        return low, high

    def table_bytes(self) -> int:
        """Return the uncompressed size of system rows and key table, in bytes."""
        cells = 2 * len(self.keys)
        texts = text_bytes(self.keys) + text_bytes(self.values) + text_bytes(self.children)
        return _FILE_BYTES + texts + cells * _CELL_BYTES

    def estimated_bytes(self) -> int:
        """Return the uncompressed size in bytes, which ``node_file_max_size_bytes`` bounds."""
        if self._estimate is None:
            self._estimate = self.table_bytes() + self.buffer.nbytes()
        return self._estimate

    def with_messages(self, newer: Messages) -> Node:
        """Return a copy whose write buffer ends in ``newer``; system rows are left to the caller."""
        inside = None
        if self.subtree_messages is not None:
            inside = self.subtree_messages + len(newer)
        return Node(
            self.keys,
            self.values,
            self.children,
            Messages.join([self.buffer, newer]),
            height=self.height,
            subtree_keys=self.subtree_keys,
            subtree_messages=inside,
            child_keys=self.child_keys,
            child_messages=self.child_messages,
            _estimate=self.estimated_bytes() + newer.nbytes(),
        )

    @property
    def version(self) -> int | None:
        """The version in the system rows of a root, if it is there."""
        text = self.system.get(spec.VERSION)
        return int(text) if text is not None and text.isdecimal() else None
