"""The rows of a node as it was read: Arrow columns, without a Python object per row (format, section 4).

A search needs a few keys of a node and one value of it. So a node that was read keeps its columns, and searches go
through the bytes in them; lists are made when a caller asks for all rows. The layout is proved already (``nodefile``).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa

MANY: Final = 1000
"""So many messages stay columns; fewer are cheaper as lists."""


_COMPARED_TOGETHER: Final = 200
"""So many texts of one length are compared by NumPy. Fewer are searched sooner than their common length is proved."""


def text_array(texts: Sequence[str | None]) -> Any:
    """Return a column of texts.

    ``pa.array`` imports pandas where that is installed, to see whether it is given something of it: 0.4 s of CPU in the
    first commit or compaction of a process. A builder makes the same, in 0.1 microseconds more a text.
    """
    builder = pa.lib.StringBuilder()
    builder.append_values(texts)
    return builder.finish()


def as_column(texts: Any) -> Any:
    """Return texts, which may be a column already, as a column."""
    if isinstance(texts, pa.Array):
        return texts
    return text_array(texts)


def joined_texts(parts: Iterable[Any]) -> Any:
    """Return texts, some of them lists and some columns, as one column."""
    return pa.concat_arrays([as_column(part) for part in parts])


def repeat_text(text: str, count: int) -> Any:
    """Return a column of one text so many times."""
    data = text.encode()
    ends = np.arange(count + 1, dtype=np.int32) * len(data)
    offsets = pa.py_buffer(ends)
    return pa.StringArray.from_buffers(count, offsets, pa.py_buffer(data * count))


def text_size(column: Any) -> int:
    """Return the size of the texts of a column in bytes."""
    if not len(column):
        return 0
    _, offsets, _ = column.buffers()
    if offsets is None:
        return 0
    ends = memoryview(offsets).cast("B").cast("i")
    first = ends[column.offset]
    last = ends[column.offset + len(column)]
    return int(last - first)


def fixed_width(column: Any) -> Any:
    """Return texts of one length, which keys of one kind are, as a NumPy array of their bytes; else ``None``.

    Keys hold no NUL (format, section 3), so that padding with them changes no comparison.
    """
    if not len(column):
        return None
    _, offsets, text = column.buffers()
    ends = np.frombuffer(offsets, np.int32)
    ends = ends[column.offset : column.offset + len(column) + 1]
    first = int(ends[0])
    width = int(ends[1]) - first
    if width == 0 or not (np.diff(ends) == width).all():
        return None
    return np.frombuffer(text, dtype=f"S{width}", count=len(column), offset=first)


class Texts:
    """A column of texts, searched by its bytes: UTF-8 sorts as code points do."""

    def __init__(self, column: Any) -> None:
        self.column = column
        _, offsets, text = column.buffers()
        ends = memoryview(offsets or b"\0\0\0\0").cast("i")
        self._ends = ends[column.offset : column.offset + len(column) + 1]
        self._text = memoryview(text or b"").cast("B")

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, row: int) -> bytes:
        if not 0 <= row < len(self):
            raise IndexError(row)
        return bytes(self._text[self._ends[row] : self._ends[row + 1]])

    @cached_property
    def _fixed_width(self) -> Any:
        return fixed_width(self.column)

    def up_to(self, wanted: bytes) -> int:
        """Return how many texts are at most ``wanted``. REQUIRES: they ascend."""
        fixed = self._fixed_width
        if fixed is None:
            return bisect_right(self, wanted)
        return int(fixed.searchsorted(wanted[: fixed.itemsize], "right"))

    def last(self, wanted: bytes) -> int | None:
        """Return the last row with a text, ``None`` if there is none. REQUIRES: the text is not empty."""
        if len(self) >= _COMPARED_TOGETHER and self._fixed_width is not None:
            if len(wanted) != self._fixed_width.itemsize:
                return None
            rows = np.flatnonzero(self._fixed_width == wanted)
            return int(rows[-1]) if len(rows) else None
        begin = self._ends[0]
        text = bytes(self._text[begin : self._ends[-1]])
        at = text.rfind(wanted)
        while at >= 0:
            # What was found may be a part of a text, or lie across two of them.
            row = bisect_right(self._ends, begin + at) - 1
            if self[row] == wanted:
                return row
            at = text.rfind(wanted, 0, at + len(wanted) - 1)
        return None


@dataclass(frozen=True, slots=True)
class NodeRows:
    """Key table and write buffer of a node, as columns. ``pointers`` is ``None`` in a leaf."""

    keys: Texts
    values: Any
    pointers: Any
    buffer: tuple[Texts, Any, Any] | None
    """Keys, values and transactions of the messages; ``None`` if there are none."""
    child_keys: str | None
    child_messages: str | None

    def list_of(self, name: str) -> Any:
        """Return the value of the attribute ``name`` of the node, other than its write buffer."""
        if name == "keys":
            return self.keys.column.to_pylist()
        if name == "values":
            return self.values.to_pylist()
        if name == "children":
            return [] if self.pointers is None else self.pointers.to_pylist()
        counts = self.child_keys if name == "child_keys" else self.child_messages
        if counts is None:
            return None
        return [int(count) for count in counts.split(",")]

    def message(self, key: str) -> tuple[str | None] | None:
        """Return the value that the newest message for ``key`` sets, in a tuple, or ``None`` without a message."""
        if self.buffer is None:
            return None
        keys, values, _ = self.buffer
        row = keys.last(_bytes(key))
        return None if row is None else (values[row].as_py(),)

    def find(self, key: str) -> tuple[bool, str | None]:
        """Return whether the key table decides what a key means, and its value; else the path of a child."""
        wanted = _bytes(key)
        row = self.keys.up_to(wanted)
        if row and self.keys[row - 1] == wanted:
            return True, self.values[row - 1].as_py()
        if self.pointers is None:
            return True, None
        return False, self.pointers[row].as_py()


def _bytes(key: str) -> bytes:
    return key.encode(errors="surrogatepass")


def txns_of(column: Any) -> list[str]:
    """Return the transactions of messages; many messages are of few, and share the text."""
    if len(column) < MANY:
        return [txn or "" for txn in column.to_pylist()]
    found = column.dictionary_encode(null_encoding="encode")
    names = [name or "" for name in found.dictionary.to_pylist()]
    return [names[index] for index in found.indices.to_pylist()]


def bits_of_set_rows(column: Any) -> int:
    """Return the rows of a column that are not NULL, as the bits of a number, the first row the lowest bit."""
    every_row: int = (1 << len(column)) - 1
    bits, *_ = column.buffers()
    if bits is None:
        return every_row
    bits_set: int = int.from_bytes(bits, "little") >> column.offset
    return bits_set & every_row
