"""Node files: a node to Arrow IPC bytes and back (format, sections 4 and 7).

The only module that knows the layout of a node file; ``checksum`` knows that of its checksum.
"""

from __future__ import annotations

import re
import sys
from functools import lru_cache
from typing import Final

import pyarrow as pa

from trinitylake_core import spec
from trinitylake_core.errors import CorruptNode, InvalidLocation
from trinitylake_core.keys import is_object_key
from trinitylake_core.locations import validate_paths
from trinitylake_core.tree.arrowsize import batches, expanded_bytes, fixed_pieces
from trinitylake_core.tree.checksum import checksum_of
from trinitylake_core.tree.node import Messages, Node

WRITE: Final = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
_PLAIN: Final = pa.ipc.IpcWriteOptions(use_threads=False)
READ: Final = pa.ipc.IpcReadOptions(use_threads=False)
_STRING: Final = pa.string()
_FIELDS: Final = [pa.field(name, _STRING) for name in spec.COLUMNS]
_SYSTEM_NUMBERS: Final = (spec.N_KEYS, spec.HEIGHT, spec.SUBTREE_KEYS, spec.SUBTREE_MESSAGES)
_COUNTS: Final = re.compile(r"[0-9]{1,18}(,[0-9]{1,18})*")
_MANY: Final = 1000
_EXPANSION: Final = 64
"""How many times larger than its file, or than a node of the default size, the content of a node may be in memory.

Twenty to forty times is what the messages of a large transaction reach, whose padded keys compress well.
"""
SMALL_BYTES: Final = 1 << 16
"""LZ4 expands a byte to 255 bytes at the most: a file that is compressed so and not larger is no bomb."""
_Column = list[str | None]
UNREADABLE: Final = (pa.ArrowException, ArithmeticError, LookupError, MemoryError, OSError, TypeError, ValueError)
"""What Arrow and Python raise for bytes that are no node file."""


class OrderNeeded(CorruptNode):
    """The file does not say ``n_keys``: only the order in the lakehouse definition tells its layout."""

    def __init__(self, path: str, system: dict[str, str]) -> None:
        super().__init__(f"node file {path!r} has no n_keys and the order is not known", path=path)
        self.system = system


def encode(node: Node, order: int, path: str | None = None) -> memoryview:
    """Return the bytes of a node file in the canonical layout, which knows that it lies at ``path``.

    ``node.system`` holds the rows that only this node has; the counted rows and the name are derived here.
    Without a ``path`` the node is no file: it travels to a task, or back.
    REQUIRES: at most ``order - 1`` keys; children none or one more than keys; counts set.
    """
    return file_of([_array(column) for column in _columns(node, order, path)])


def file_of(arrays: list[pa.StringArray]) -> memoryview:
    """Return the bytes of the file of four columns, each an array of its own without an offset.

    A file that expands more than a reader accepts is not compressed.
    """
    schema = pa.schema(_FIELDS, metadata={spec.CHECKSUM_METADATA: checksum_of(arrays)})
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    data = _written(batch, WRITE)
    return data if len(data) <= SMALL_BYTES or not is_bomb(data) else _written(batch, _PLAIN)


def _written(batch: pa.RecordBatch, options: pa.ipc.IpcWriteOptions) -> memoryview:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return memoryview(sink.getvalue()).cast("B")  # Arrow's bytes are signed, and so equal to no others


def _array(column: _Column) -> pa.StringArray:
    """Return an Arrow column; one without a value costs next to nothing, and half of them are.

    ``pa.array`` imports pandas where that is installed, to see whether it is given something of it: 0.2 s and more of
    CPU in the first commit of a process. A builder makes the same, in some microseconds more.
    """
    if not any(column) and None in column:
        return pa.nulls(len(column), _STRING)
    if "pandas" in sys.modules:
        return pa.array(column, _STRING)
    builder = pa.lib.StringBuilder()
    builder.append_values(column)
    return builder.finish()


def _columns(node: Node, order: int, path: str | None) -> tuple[_Column, _Column, _Column, _Column]:
    system = system_rows(node, count=len(node.keys), path=path)
    unused: _Column = [None] * (order - 1 - len(node.keys))
    no_system: _Column = [None] * len(system)
    buffer = node.buffer
    no_buffer: _Column = [None] * len(buffer)
    children: _Column = [*node.children] if node.children else [None] * (len(node.keys) + 1)
    return (
        [*system, None, *node.keys, *unused, *buffer.keys],
        [*system.values(), None, *node.values, *unused, *buffer.values],
        [*no_system, *children, *unused, *no_buffer],
        [*no_system, *[None] * order, *buffer.txns],
    )


def system_rows(node: Node, *, count: int, path: str | None = None) -> dict[str, str]:
    """Return the system rows of a node of ``count`` keys, in the order of its file."""
    rows = dict(node.system)
    rows[spec.N_KEYS] = str(count)
    if node.height is not None:
        rows[spec.HEIGHT] = str(node.height)
    if node.subtree_keys is not None:
        rows[spec.SUBTREE_KEYS] = str(node.subtree_keys)
    if node.subtree_messages is not None:
        rows[spec.SUBTREE_MESSAGES] = str(node.subtree_messages)
    if node.child_keys is not None:
        rows[spec.CHILD_KEYS] = ",".join(map(str, node.child_keys))
    if node.child_messages is not None:
        rows[spec.CHILD_MESSAGES] = ",".join(map(str, node.child_messages))
    if path is not None:
        rows[spec.SELF] = path
    return rows


def decode(data: bytes | memoryview, path: str, order: int | None = None) -> Node:
    """Return the node in a file, checked against its checksum; canonical or of an older generation.

    ``order`` is needed only for nodes that do not say ``n_keys``.

    Raises:
        CorruptNode: cut short, garbage, checksum mismatch, or not laid out as the format demands.
    """
    try:
        batch, checksummed = read_batch(data, path)
        node = canonical(batch, path, order) if _has_null_key(batch) else _flat(batch, path)
    except UNREADABLE as error:
        raise CorruptNode(f"node file {path!r} cannot be read: {error}", path=path) from error
    node.checksummed = checksummed
    node.nbytes = len(data)
    return node


def is_bomb(data: bytes | memoryview, begin: int | None = None) -> bool:
    """Return whether a node file expands more than any node does. REQUIRES: Arrow can open it.

    ``begin`` is where its only batch begins, if that is known. A small file whose batch is compressed as we compress it
    needs no closer look.

    Raises:
        ValueError: what the file declares makes no sense.
    """
    if begin is None or len(data) > SMALL_BYTES:
        found = batches(data)
        begin = found[0][0] if len(found) == 1 and len(data) <= SMALL_BYTES else None
    if begin is not None and all(data[begin + start : begin + end] == piece for start, end, piece in _ordinary()):
        return False
    return expanded_bytes(data, batches(data)) > _EXPANSION * max(len(data), spec.DEFAULT_NODE_FILE_MAX_SIZE_BYTES)


@lru_cache(maxsize=1)
def _ordinary() -> list[tuple[int, int, bytes]]:
    """Return the first bytes of the metadata of each batch that this version of Arrow writes for us."""
    data = _written(pa.record_batch([pa.nulls(1, _STRING)] * 4, schema=pa.schema(_FIELDS)), WRITE)
    return fixed_pieces(data, batches(data)[0][0])


def read_batch(data: bytes | memoryview, path: str) -> tuple[pa.RecordBatch, bool]:
    """Return the rows of a node file, proved against its checksum, and whether it has one."""
    with pa.ipc.open_file(pa.py_buffer(data), options=READ) as reader:
        if is_bomb(data):
            declared = expanded_bytes(data, batches(data))
            raise CorruptNode(
                f"node file {path!r} of {len(data):,} bytes declares content of {declared:,} bytes, more than a node "
                "of its size has, and is not read",
                path=path,
            )
        metadata = reader.schema.metadata or {}
        if reader.num_record_batches == 1:
            batch = reader.get_batch(0)
        else:
            table = reader.read_all()
            table.validate(full=True)
            batch = pa.RecordBatch.from_arrays([c.combine_chunks() for c in table.columns], names=table.column_names)
    expected = metadata.get(spec.CHECKSUM_METADATA)
    if any(not pa.types.is_string(field.type) for field in batch.schema):
        raise CorruptNode(f"node file {path!r} has columns that are not strings", path=path)
    if expected is not None and batch.schema.names != list(spec.COLUMNS):
        raise CorruptNode(f"node file {path!r} has a checksum, but not the four columns it is of", path=path)
    batch.validate(full=True)
    if expected is not None and expected != checksum_of(batch.columns):
        raise CorruptNode(f"node file {path!r} does not match its checksum", path=path)
    return batch, expected is not None


def _has_null_key(batch: pa.RecordBatch) -> bool:
    return spec.KEY in batch.schema.names and bool(batch.column(spec.KEY).null_count)


def _column(batch: pa.RecordBatch, *names: str) -> _Column:
    for name in names:
        if name in batch.schema.names:
            array = batch.column(name)
            column: _Column = [None] * len(array) if array.null_count == len(array) else array.to_pylist()
            return column
    return [None] * batch.num_rows


def canonical(batch: pa.RecordBatch, path: str, order: int | None) -> Node:
    """Return the node that rows in the canonical layout are. Raises ``CorruptNode``, and what ``UNREADABLE`` names."""
    keys = _column(batch, spec.KEY)
    values = _column(batch, spec.PVALUE, "value")
    first = keys.index(None)
    node = Node(system=_system(keys[:first], values[:first], path), canonical=batch.schema.names == list(spec.COLUMNS))
    _take_name(node, path)
    count = _take_numbers(node, path)
    if count is None:
        if order is None:
            raise OrderNeeded(path, node.system)
        table = keys[first + 1 : first + order]
        count = next((row for row, key in enumerate(table) if key is None), len(table))
        node.canonical = False
    _fill_table(node, batch, keys, values, first, count, path)
    if any(key.startswith(" ") for key in (*node.keys[:1], *node.buffer.keys[:1])):
        node.keys = [key.removeprefix(" ") for key in node.keys]
        node.buffer.keys = [key.removeprefix(" ") for key in node.buffer.keys]
        node.canonical = False
    return node


def _fill_table(
    node: Node, batch: pa.RecordBatch, keys: _Column, values: _Column, first: int, count: int, path: str
) -> None:
    start, stop = first + 1, first + 1 + count
    end = len(keys)
    if keys.count(None) < end - count - first:  # a write buffer follows
        end = next((row for row in range(stop, end) if keys[row] is not None), end)
    pointers = _column(batch, spec.PNODE)
    node.keys = _all_set(keys[start:stop], count, "key", path)
    node.values = _all_set(values[start:stop], count, "value", path)
    if values[first] is not None or _any_set(values[stop:end]) or _any_set(pointers[stop:end]):
        raise CorruptNode(
            f"node file {path!r}: a row of the key table is set that must be NULL", path=path, invariant="I2"
        )
    children = pointers[first:stop]
    if _any_set(children):
        node.children = _all_set(children, count + 1, "child pointer", path)
        _check_pointers(node, path)
    node.table_rows = end - first
    if end < len(keys):
        if _any_set(pointers[end:]):
            raise CorruptNode(f"node file {path!r}: a message has a child pointer", path=path, invariant="I5")
        txns = _txns(batch, end)
        buffered = len(keys) - end
        node.buffer = Messages(_all_set(keys[end:], buffered, "message key", path), values[end:], txns)


def _txns(batch: pa.RecordBatch, start: int) -> list[str]:
    """Return the transactions of messages; many messages are of few, and share the text."""
    if batch.num_rows - start < _MANY or spec.TXN not in batch.schema.names:
        return [txn or "" for txn in _column(batch, spec.TXN)[start:]]
    column = batch.column(spec.TXN).slice(start).dictionary_encode(null_encoding="encode")
    names = [name or "" for name in column.dictionary.to_pylist()]
    return [names[index] for index in column.indices.to_pylist()]


def _any_set(column: _Column) -> bool:
    return column.count(None) < len(column)


def _all_set(column: _Column, count: int, what: str, path: str) -> list[str]:
    if len(column) != count or None in column:
        invariant = {"child pointer": "I7", "message key": "I5"}.get(what, "I2")
        raise CorruptNode(
            f"node file {path!r}: {count} rows must hold a {what}, fewer do", path=path, invariant=invariant
        )
    return column  # type: ignore[return-value]  # proved above: no element is None


def _check_pointers(node: Node, path: str) -> None:
    if len(set(node.children)) < len(node.children):
        raise CorruptNode(f"node file {path!r} points to one child twice", path=path, invariant="I10")
    try:
        validate_paths(node.children)
    except InvalidLocation as error:
        raise CorruptNode(
            f"node file {path!r} points outside the lakehouse: {error}", path=path, invariant="I10"
        ) from None


def _system(keys: _Column, values: _Column, path: str) -> dict[str, str]:
    rows = {key: value for key, value in zip(keys, values, strict=True) if key is not None and value is not None}
    if len(rows) != len(keys):
        raise CorruptNode(f"node file {path!r} has a system row that is empty or appears twice", path=path)
    return rows


def _take_name(node: Node, path: str) -> None:
    """Prove that a node which knows its name was read by it: else another file lies in its place."""
    name = node.system.pop(spec.SELF, None)
    node.named = name is not None
    if name not in {None, path}:
        raise CorruptNode(f"node file {path!r} says it is {name!r}: it was swapped", path=path, invariant="I18")


def _take_numbers(node: Node, path: str) -> int | None:
    numbers: list[int | None] = []
    for name in _SYSTEM_NUMBERS:
        text = node.system.pop(name, None)
        if text is not None and not (text.isascii() and text.isdecimal()):
            raise CorruptNode(f"node file {path!r}: {name} is {text!r}, not a number", path=path, invariant="I9")
        numbers.append(None if text is None else int(text))
    count, node.height, node.subtree_keys, node.subtree_messages = numbers
    node.child_keys = _take_counts(node, spec.CHILD_KEYS, path)
    node.child_messages = _take_counts(node, spec.CHILD_MESSAGES, path)
    return count


def _take_counts(node: Node, name: str, path: str) -> list[int] | None:
    text = node.system.pop(name, None)
    if text is None:
        return None
    if not _COUNTS.fullmatch(text):
        raise CorruptNode(f"node file {path!r}: {name} is not a list of numbers", path=path, invariant="I9")
    return [int(part) for part in text.split(",")]


def _flat(batch: pa.RecordBatch, path: str) -> Node:
    """Read a root of the published Java SDK: system rows, then every object, not always sorted."""
    keys = _column(batch, spec.KEY)
    values = _column(batch, spec.PVALUE, "value")
    if not keys or None in keys or batch.num_columns > len(spec.COLUMNS) or "value" not in batch.schema.names:
        raise CorruptNode(f"node file {path!r} is neither a canonical node nor a root of the Java SDK", path=path)
    first = next((row for row, key in enumerate(keys) if is_object_key(key or "")), len(keys))
    node = Node(system=_system(keys[:first], values[:first], path), canonical=False)
    _take_numbers(node, path)
    node.height = 0
    objects = dict(zip(_all_set(keys[first:], len(keys) - first, "key", path), values[first:], strict=True))
    node.keys = sorted(objects)
    node.values = _all_set([objects[key] for key in node.keys], len(keys) - first, "value", path)
    return node
