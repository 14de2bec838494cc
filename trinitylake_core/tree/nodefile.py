"""Node files: a node to Arrow IPC bytes and back (format, sections 4 and 7).

The only module that knows the layout of a node file; ``checksum`` knows that of its checksum.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np
import pyarrow as pa

from trinitylake_core import spec
from trinitylake_core.errors import CorruptNode, InvalidLocation
from trinitylake_core.keys import is_object_key
from trinitylake_core.locations import validate_paths
from trinitylake_core.tree.arrowsize import batches, expanded_bytes, fixed_pieces
from trinitylake_core.tree.checksum import checksum_of
from trinitylake_core.tree.node import Messages, Node
from trinitylake_core.tree.noderows import NodeRows, Texts, as_column, set_rows

WRITE: Final = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
_PLAIN: Final = pa.ipc.IpcWriteOptions(use_threads=False)
READ: Final = pa.ipc.IpcReadOptions(use_threads=False)
_STRING: Final = pa.string()
_FIELDS: Final = [pa.field(name, _STRING) for name in spec.COLUMNS]
_SCHEMA: Final = pa.schema(_FIELDS)
_SYSTEM_NUMBERS: Final = (spec.N_KEYS, spec.HEIGHT, spec.SUBTREE_KEYS, spec.SUBTREE_MESSAGES)
_DIGITS: Final = bytes(ord("0") if chr(byte) in "0123456789" else byte for byte in range(256))
_TOO_LARGE: Final = b"0" * 19
_POINTER: Final = np.frombuffer(b"0000/0000/0000/00000000-node-00000000-0000-0000-0000-000000000000.ipc", np.uint8)
_RANDOM: Final = 29
"""Where the random digits in the name of a node begin."""
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
    """The file has no ``n_keys``: its layout follows only from the order in the lakehouse definition."""

    def __init__(self, path: str, system: dict[str, str]) -> None:
        super().__init__(f"node file {path!r} has no n_keys and the order is not known", path=path)
        self.system = system


def encode(node: Node, order: int, path: str | None = None) -> memoryview:
    """Return the bytes of a node file in the canonical layout, which knows that it lies at ``path``.

    ``node.system`` holds the rows that only this node has; the counted rows and the name are derived here.
    Without a ``path`` the node is no file: it travels to a task, or back.
    REQUIRES: children none or one more than keys; counts set. Raises ``ValueError`` for more than ``order - 1`` keys.
    """
    return file_of(_columns(node, order, path))


def file_of(arrays: list[pa.StringArray]) -> memoryview:
    """Return the bytes of the file of four columns, each an array of its own without an offset.

    A file that expands more than a reader accepts is not compressed.
    """
    schema = pa.schema(_FIELDS, metadata={spec.CHECKSUM_METADATA: checksum_of(arrays)})
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    data = _write_batch(batch, WRITE)
    return data if len(data) <= SMALL_BYTES or not is_bomb(data) else _write_batch(batch, _PLAIN)


def _write_batch(batch: pa.RecordBatch, options: pa.ipc.IpcWriteOptions) -> memoryview:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return memoryview(sink.getvalue()).cast("B")  # Arrow's bytes are signed, and so equal to no others


def _columns(node: Node, order: int, path: str | None) -> list[pa.StringArray]:
    system, buffer = system_rows(node, count=len(node.keys), path=path), node.buffer
    keys, values, txns = buffer.texts()
    unused = order - 1 - len(node.keys)
    if unused < 0:
        raise ValueError(f"a node of order {order} holds at most {order - 1} keys, not {len(node.keys)}")
    return [
        _join_column([*system, None, *node.keys], unused, keys),
        _join_column([*system.values(), None, *node.values], unused, values),
        _join_column(len(system), node.children or len(node.keys) + 1, unused + len(buffer)),
        _join_column(len(system) + order, txns),
    ]


def _join_column(*parts: Sequence[str | None] | pa.StringArray | int) -> pa.StringArray:
    """Return a column of texts; a number stands for so many NULLs, which most rows of a small root are."""
    arrays = [pa.nulls(part, _STRING) if isinstance(part, int) else as_column(part) for part in parts if part]
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


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

    ``order`` is needed only for nodes without ``n_keys``.

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


def decode_head(data: bytes | memoryview, path: str, order: int | None = None) -> tuple[Node, pa.StringArray]:
    """Return the node in a file without its write buffer, and the values of the messages in there as a column.

    As Python objects the messages of a large transaction take forty times as much as the file, which compresses well.
    Raises as ``decode``.
    """
    try:
        batch, checksummed = read_batch(data, path)
        start = _plain_buffer(batch)
        node = None if start is None else canonical(batch.slice(0, start), path, order)
    except UNREADABLE as error:
        raise CorruptNode(f"node file {path!r} cannot be read: {error}", path=path) from error
    if node is None or len(node.buffer):
        node = decode(data, path, order)
        values, node.buffer = node.buffer.columns().values, Messages()
        return node, values
    node.checksummed, node.nbytes = checksummed, len(data)
    return node, batch.column(spec.PVALUE).slice(start)


def _plain_buffer(batch: pa.RecordBatch) -> int | None:
    """Return the row at which the write buffer begins; ``None`` if only all rows together show it, or without one."""
    if batch.schema.names != list(spec.COLUMNS):
        return None
    keys = batch.column(spec.KEY)
    if not keys.null_count:
        return None
    valid = np.unpackbits(np.frombuffer(keys.buffers()[0], np.uint8), bitorder="little")
    unset = np.flatnonzero(valid[keys.offset : keys.offset + len(keys)] == 0)
    first, last = int(unset[0]), int(unset[-1])
    names, values = (batch.column(name).slice(0, first).to_pylist() for name in (spec.KEY, spec.PVALUE))
    count = dict(zip(names, values, strict=True)).get(spec.N_KEYS)
    if count is None or not count.isdecimal():
        return None
    start = max(last, first + int(count)) + 1
    pointers = batch.column(spec.PNODE).slice(start)
    return start if len(pointers) and pointers.null_count == len(pointers) else None


def is_bomb(data: bytes | memoryview, begin: int | None = None) -> bool:
    """Return whether a node file expands more than any node does. REQUIRES: Arrow can open it.

    ``begin`` is where its only batch begins, if that is known. A small file whose batch is compressed as we compress it
    needs no further check.

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
    data = _write_batch(pa.record_batch([pa.nulls(1, _STRING)] * 4, schema=pa.schema(_FIELDS)), WRITE)
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
    ordinary = batch.schema.equals(_SCHEMA)
    if not ordinary and any(not pa.types.is_string(field.type) for field in batch.schema):
        raise CorruptNode(f"node file {path!r} has columns that are not strings", path=path)
    if expected is not None and not ordinary and batch.schema.names != list(spec.COLUMNS):
        raise CorruptNode(f"node file {path!r} has a checksum, but not the four columns it is of", path=path)
    batch.validate(full=True)
    if expected is not None and expected != checksum_of(batch.columns):
        raise CorruptNode(f"node file {path!r} does not match its checksum", path=path)
    return batch, expected is not None


def _has_null_key(batch: pa.RecordBatch) -> bool:
    return spec.KEY in batch.schema.names and bool(batch.column(spec.KEY).null_count)


def _columns_of(batch: pa.RecordBatch) -> dict[str, pa.StringArray]:
    """Return the columns of a node by name; those that older files call otherwise, or do not have, too."""
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    if spec.PVALUE not in columns and "value" in columns:
        columns[spec.PVALUE] = columns["value"]
    for name in spec.COLUMNS:
        if name not in columns:
            columns[name] = pa.nulls(batch.num_rows, _STRING)
    return columns


def canonical(batch: pa.RecordBatch, path: str, order: int | None) -> Node:
    """Return the node that rows in the canonical layout are. Raises ``CorruptNode``, and what ``UNREADABLE`` names."""
    columns = _columns_of(batch)
    keys, valid = columns[spec.KEY], set_rows(columns[spec.KEY])
    first = (~valid & (valid + 1)).bit_length() - 1
    system = (keys.slice(0, first).to_pylist(), columns[spec.PVALUE].slice(0, first).to_pylist())
    node = Node(system=_system(*system, path), canonical=batch.schema.names == list(spec.COLUMNS))
    _take_name(node, path)
    count, counts = _take_numbers(node, path)
    if count is None:
        if order is None:
            raise OrderNeeded(path, node.system)
        table = valid >> first + 1
        count = min((~table & (table + 1)).bit_length() - 1, order - 1)
        node.canonical = False
    if count >= batch.num_rows - first:
        raise _too_few(count, "key", path)
    stop = first + 1 + count
    buffered = valid >> stop
    end = stop + (buffered & -buffered).bit_length() - 1 if buffered else len(keys)
    node.table_rows = end - first
    node.take_rows(_rows(columns, (first, stop, end), counts, path))
    if any(keys[row].as_py().startswith(" ") for row in (*range(first + 1, stop)[:1], *range(end, len(keys))[:1])):
        node.keys = [key.removeprefix(" ") for key in node.keys]
        old = node.buffer
        node.buffer = Messages([key.removeprefix(" ") for key in old.keys], old.values, old.txns)
        node.become_lists()
        node.canonical = False
    return node


def _rows(
    columns: dict[str, pa.StringArray],
    cuts: tuple[int, int, int],
    counts: tuple[str | None, str | None],
    path: str,
) -> NodeRows:
    """Return key table and write buffer, proved to be laid out as the format demands.

    ``cuts`` has the rows at which the key table begins, its keys end, and the write buffer begins.
    """
    keys, values, pointers, txns = (columns[name] for name in spec.COLUMNS)
    first, stop, end = cuts
    count, buffered = stop - first - 1, len(keys) - end
    keys_set, values_set, pointers_set = set_rows(keys), set_rows(values), set_rows(pointers)
    table, unused = (1 << count) - 1, (1 << end - stop) - 1
    for rows_set, what in ((keys_set, "key"), (values_set, "value")):
        if rows_set >> first + 1 & table != table:
            raise _too_few(count, what, path)
    if values_set >> first & 1 or (values_set | pointers_set) >> stop & unused:
        raise CorruptNode(
            f"node file {path!r}: a row of the key table is set that must be NULL", path=path, invariant="I2"
        )
    children = pointers_set >> first & (table << 1 | 1)
    if children:
        if children != table << 1 | 1:
            raise _too_few(count + 1, "child pointer", path)
        _check_pointers(pointers.slice(first, count + 1), path)
    if pointers_set >> end:
        raise CorruptNode(f"node file {path!r}: a message has a child pointer", path=path, invariant="I5")
    if keys_set >> end != (1 << buffered) - 1:
        raise _too_few(buffered, "message key", path)
    buffer = (Texts(keys.slice(end)), values.slice(end), txns.slice(end)) if buffered else None
    inner = pointers.slice(first, count + 1) if children else None
    return NodeRows(Texts(keys.slice(first + 1, count)), values.slice(first + 1, count), inner, buffer, *counts)


def _too_few(count: int, what: str, path: str) -> CorruptNode:
    invariant = {"child pointer": "I7", "message key": "I5"}.get(what, "I2")
    return CorruptNode(f"node file {path!r}: {count} rows must hold a {what}, fewer do", path=path, invariant=invariant)


def _check_pointers(pointers: pa.StringArray, path: str) -> None:
    if _are_ordinary(pointers):
        return
    children = pointers.to_pylist()
    if len(set(children)) < len(children):
        raise CorruptNode(f"node file {path!r} points to one child twice", path=path, invariant="I10")
    try:
        validate_paths(children)
    except InvalidLocation as error:
        raise CorruptNode(
            f"node file {path!r} points outside the lakehouse: {error}", path=path, invariant="I10"
        ) from None


def _are_ordinary(pointers: pa.StringArray) -> bool:
    """Return whether all pointers are names as ``node_path`` makes them, and certainly differ."""
    _, offsets, text = pointers.buffers()
    ends = np.frombuffer(offsets, np.int32)[pointers.offset : pointers.offset + len(pointers) + 1]
    width = len(_POINTER)
    if not (np.diff(ends) == width).all():
        return False
    rows = np.frombuffer(text, np.uint8)[ends[0] : ends[-1]].reshape(-1, width)
    if not ((rows - ord("0") < 10) | (rows - ord("a") < 6) | (rows == _POINTER)).all():
        return False
    some = np.ascontiguousarray(rows[:, _RANDOM : _RANDOM + 8]).view(np.uint64)
    return len(np.unique(some)) == len(pointers)


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


def _take_numbers(node: Node, path: str) -> tuple[int | None, tuple[str | None, str | None]]:
    """Take the counted rows out of the system rows; return the number of keys, and the counts of the children."""
    numbers: list[int | None] = []
    for name in _SYSTEM_NUMBERS:
        text = node.system.pop(name, None)
        if text is not None and not (text.isascii() and text.isdecimal()):
            raise CorruptNode(f"node file {path!r}: {name} is {text!r}, not a number", path=path, invariant="I9")
        numbers.append(None if text is None else int(text))
    count, node.height, node.subtree_keys, node.subtree_messages = numbers
    return count, (_take_counts(node, spec.CHILD_KEYS, path), _take_counts(node, spec.CHILD_MESSAGES, path))


def _take_counts(node: Node, name: str, path: str) -> str | None:
    """Return a list of numbers as its text, proved to be one: few readers need the numbers."""
    text = node.system.pop(name, None)
    if text is None:
        return None
    shape = b",%b," % text.encode().translate(_DIGITS)
    if shape.strip(b"0,") or b",," in shape or _TOO_LARGE in shape:
        raise CorruptNode(f"node file {path!r}: {name} is not a list of numbers", path=path, invariant="I9")
    return text


def _flat(batch: pa.RecordBatch, path: str) -> Node:
    """Read a root of the published Java SDK: system rows, then every object, not always sorted."""
    columns = _columns_of(batch)
    keys, values = columns[spec.KEY].to_pylist(), columns[spec.PVALUE].to_pylist()
    if not keys or None in keys or batch.num_columns > len(spec.COLUMNS) or "value" not in batch.schema.names:
        raise CorruptNode(f"node file {path!r} is neither a canonical node nor a root of the Java SDK", path=path)
    first = next((row for row, key in enumerate(keys) if is_object_key(key or "")), len(keys))
    node = Node(system=_system(keys[:first], values[:first], path), canonical=False)
    _take_numbers(node, path)
    node.height = 0
    objects = dict(zip(keys[first:], values[first:], strict=True))
    if len(objects) < len(keys) - first or None in values[first:]:
        raise _too_few(len(keys) - first, "key and a value of its own", path)
    node.keys = sorted(objects)
    node.values = [objects[key] for key in node.keys]
    return node
