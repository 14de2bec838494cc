"""Node files: a node to Arrow IPC bytes and back (format, sections 4 and 7).

The only module that knows the layout of a node file; ``checksum`` knows that of its checksum.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from trinitylake_core import spec
from trinitylake_core.errors import CorruptNode, InvalidLocation
from trinitylake_core.keys import is_object_key
from trinitylake_core.locations import validate_paths
from trinitylake_core.storage import Data
from trinitylake_core.tree.arrowsize import batches, expanded_bytes, fixed_pieces
from trinitylake_core.tree.checksum import checksum_of
from trinitylake_core.tree.node import Node
from trinitylake_core.tree.noderows import NodeRows, Texts, as_column, bits_of_set_rows

WRITE: Final = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
_PLAIN: Final = pa.ipc.IpcWriteOptions(use_threads=False)
READ: Final = pa.ipc.IpcReadOptions(use_threads=False)
_STRING: Final = pa.string()
_FIELDS: Final = [pa.field(name, _STRING) for name in spec.COLUMNS]
_SCHEMA: Final = pa.schema(_FIELDS)
_SDK_VALUE: Final = "value"
"""What the published Java SDK calls the column of values."""
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
    if len(data) > SMALL_BYTES and is_bomb(data):
        return _write_batch(batch, _PLAIN)
    return data


def _write_batch(batch: pa.RecordBatch, options: pa.ipc.IpcWriteOptions) -> memoryview:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return memoryview(sink.getvalue()).cast("B")  # Arrow's bytes are signed, and so equal to no others


def _columns(node: Node, order: int, path: str | None) -> list[pa.StringArray]:
    count = len(node.keys)
    system = system_rows(node, count=count, path=path)
    keys, values, txns = node.buffer.texts()
    unused = order - 1 - count
    if unused < 0:
        raise ValueError(f"a node of order {order} holds at most {order - 1} keys, not {count}")
    children = node.children or count + 1  # a number stands for so many NULLs
    return [
        _join_column([*system, None, *node.keys], unused, keys),
        _join_column([*system.values(), None, *node.values], unused, values),
        _join_column(len(system), children, unused + len(node.buffer)),
        _join_column(len(system) + order, txns),
    ]


def _join_column(*parts: Sequence[str | None] | pa.StringArray | int) -> pa.StringArray:
    """Return a column of texts; a number stands for so many NULLs, which most rows of a small root are."""
    arrays = []
    for part in parts:
        if isinstance(part, int):
            if part:
                arrays.append(pa.nulls(part, _STRING))
        elif len(part):
            arrays.append(as_column(part))
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def system_rows(node: Node, *, count: int, path: str | None) -> dict[str, str]:
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


def decode(data: Data, path: str) -> Node:
    """Return the node in a file, checked against its checksum: canonical, or the root of a published Java SDK.

    Raises:
        CorruptNode: cut short, garbage, checksum mismatch, or not laid out as the format demands.
    """
    try:
        batch, checksummed = read_batch(data, path)
        is_canonical = batch.schema.names == list(spec.COLUMNS)
        node = canonical(batch, path) if is_canonical else _flat(batch, path)
    except UNREADABLE as error:
        raise CorruptNode(f"node file {path!r} cannot be read: {error}", path=path) from error
    node.checksummed = checksummed
    node.nbytes = len(data)
    return node


def decode_head(data: Data, path: str) -> tuple[Node, pa.StringArray]:
    """Return the node in a file without its write buffer, and the values of the messages in there as a column.

    As Python objects the messages of a large transaction take forty times as much as the file, which compresses well.
    Raises as ``decode``.
    """
    node = decode(data, path)
    return node, node.take_buffer().columns().values


def is_bomb(data: Data, begin: int | None = None) -> bool:
    """Return whether a node file expands more than any node does. REQUIRES: Arrow can open it.

    ``begin`` is where its only batch begins, if that is known. A small file whose batch is compressed as we compress it
    needs no further check.

    Raises:
        ValueError: what the file declares makes no sense.
    """
    if len(data) <= SMALL_BYTES:
        if begin is None:
            found = batches(data)
            begin = found[0][0] if len(found) == 1 else None
        if begin is not None and _is_compressed_as_ours(data, begin):
            return False
    limit = _EXPANSION * max(len(data), spec.DEFAULT_NODE_FILE_MAX_SIZE_BYTES)
    return expanded_bytes(data, batches(data)) > limit


def _is_compressed_as_ours(data: Data, begin: int) -> bool:
    return all(data[begin + start : begin + end] == piece for start, end, piece in _ordinary())


@lru_cache(maxsize=1)
def _ordinary() -> list[tuple[int, int, bytes]]:
    """Return the first bytes of the metadata of each batch that this version of Arrow writes for us."""
    columns = [pa.nulls(1, _STRING)] * len(_FIELDS)
    data = _write_batch(pa.record_batch(columns, schema=_SCHEMA), WRITE)
    begin, _ = batches(data)[0]
    return fixed_pieces(data, begin)


def read_batch(data: Data, path: str) -> tuple[pa.RecordBatch, bool]:
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
            columns = [column.combine_chunks() for column in table.columns]
            batch = pa.RecordBatch.from_arrays(columns, names=table.column_names)
    expected = metadata.get(spec.CHECKSUM_METADATA)
    if not batch.schema.equals(_SCHEMA):
        if not all(pa.types.is_string(field.type) for field in batch.schema):
            raise CorruptNode(f"node file {path!r} has columns that are not strings", path=path)
        if expected is not None and batch.schema.names != list(spec.COLUMNS):
            raise CorruptNode(f"node file {path!r} has a checksum, but not the four columns it is of", path=path)
    batch.validate(full=True)
    if expected is not None and expected != checksum_of(batch.columns):
        raise CorruptNode(f"node file {path!r} does not match its checksum", path=path)
    return batch, expected is not None


class _Layout(NamedTuple):
    """Where the parts of a canonical node begin: rows, numbered from 0.

    Attributes:
        first: the first row of the key table, whose key is NULL; before it stand the system rows.
        stop: the row behind its last key; the rows from there on to ``end`` are unused.
        end: the first row of the write buffer.
    """

    first: int
    stop: int
    end: int

    @property
    def key_count(self) -> int:
        """The number of keys."""
        return self.stop - self.first - 1


def canonical(batch: pa.RecordBatch, path: str) -> Node:
    """Return the node that rows in the canonical layout are. Raises ``CorruptNode``, and what ``UNREADABLE`` names."""
    keys = batch.column(spec.KEY)
    values = batch.column(spec.PVALUE)
    keys_set = bits_of_set_rows(keys)
    first = _lowest_unset(keys_set)
    system = _system(keys.slice(0, first).to_pylist(), values.slice(0, first).to_pylist(), path)
    node = Node(system=system)
    _take_name(node, path)
    count = _take_numbers(node, path)
    if count is None:
        raise CorruptNode(f"node file {path!r} has no row {spec.N_KEYS}", path=path, invariant="I2")
    if count >= batch.num_rows - first:
        raise _too_few(count, "key", path)
    stop = first + 1 + count
    behind_keys = keys_set >> stop
    end = stop + _lowest_set(behind_keys) if behind_keys else len(keys)
    node.table_rows = end - first
    counts = (_take_counts(node, spec.CHILD_KEYS, path), _take_counts(node, spec.CHILD_MESSAGES, path))
    node.take_rows(_rows(batch, _Layout(first, stop, end), counts, path))
    return node


def _lowest_unset(bits: int) -> int:
    """Return the number of the lowest bit that is not set."""
    return (~bits & (bits + 1)).bit_length() - 1


def _lowest_set(bits: int) -> int:
    """Return the number of the lowest bit that is set. REQUIRES: there is one."""
    return (bits & -bits).bit_length() - 1


def _ones(count: int) -> int:
    """Return a number whose lowest so many bits are set."""
    return (1 << count) - 1


def _rows(batch: pa.RecordBatch, layout: _Layout, counts: tuple[str | None, str | None], path: str) -> NodeRows:
    """Return key table and write buffer, proved to be laid out as the format demands."""
    first, stop, end = layout
    count = layout.key_count
    keys, values, pointers, txns = batch.columns
    keys_set = bits_of_set_rows(keys)
    values_set = bits_of_set_rows(values)
    pointers_set = bits_of_set_rows(pointers)

    # Each key has a value. The row before the keys, and those that are unused, have none, and no pointer.
    every_key = _ones(count)
    for rows_set, what in ((keys_set, "key"), (values_set, "value")):
        if rows_set >> first + 1 & every_key != every_key:
            raise _too_few(count, what, path)
    unused = _ones(end - stop)
    if values_set >> first & 1 or (values_set | pointers_set) >> stop & unused:
        raise CorruptNode(
            f"node file {path!r}: a row of the key table is set that must be NULL", path=path, invariant="I2"
        )

    # A node has one child more than keys, or none.
    inner = None
    every_child = _ones(count + 1)
    children_set = pointers_set >> first & every_child
    if children_set:
        if children_set != every_child:
            raise _too_few(count + 1, "child pointer", path)
        inner = pointers.slice(first, count + 1)
        _check_pointers(inner, path)

    # Each message has a key, and points to nothing.
    if pointers_set >> end:
        raise CorruptNode(f"node file {path!r}: a message has a child pointer", path=path, invariant="I5")
    buffered = len(keys) - end
    if keys_set >> end != _ones(buffered):
        raise _too_few(buffered, "message key", path)
    buffer = (Texts(keys.slice(end)), values.slice(end), txns.slice(end)) if buffered else None

    child_keys, child_messages = counts
    table_keys = Texts(keys.slice(first + 1, count))
    table_values = values.slice(first + 1, count)
    return NodeRows(table_keys, table_values, inner, buffer, child_keys, child_messages)


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
    ends = np.frombuffer(offsets, np.int32)
    ends = ends[pointers.offset : pointers.offset + len(pointers) + 1]
    width = len(_POINTER)
    if not (np.diff(ends) == width).all():
        return False
    characters = np.frombuffer(text, np.uint8)[ends[0] : ends[-1]].reshape(-1, width)
    is_digit = characters - ord("0") < 10  # the numbers have no sign: what is less than "0" becomes a large one
    is_letter = characters - ord("a") < 6
    is_fixed = characters == _POINTER
    if not (is_digit | is_letter | is_fixed).all():
        return False
    random_digits = np.ascontiguousarray(characters[:, _RANDOM : _RANDOM + 8]).view(np.uint64)
    return len(np.unique(random_digits)) == len(pointers)


def _system(keys: list[str], values: list[str | None], path: str) -> dict[str, str]:
    rows = {key: value for key, value in zip(keys, values, strict=True) if value is not None}
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
    """Take the counted rows out of the system rows; return the number of keys."""
    count = _take_number(node, spec.N_KEYS, path)
    node.height = _take_number(node, spec.HEIGHT, path)
    node.subtree_keys = _take_number(node, spec.SUBTREE_KEYS, path)
    node.subtree_messages = _take_number(node, spec.SUBTREE_MESSAGES, path)
    return count


def _take_number(node: Node, name: str, path: str) -> int | None:
    text = node.system.pop(name, None)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal()):
        raise CorruptNode(f"node file {path!r}: {name} is {text!r}, not a number", path=path, invariant="I9")
    return int(text)


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
    if batch.schema.names != [spec.KEY, _SDK_VALUE]:
        raise CorruptNode(f"node file {path!r} is neither a canonical node nor a root of the Java SDK", path=path)
    keys = batch.column(spec.KEY).to_pylist()
    values = batch.column(_SDK_VALUE).to_pylist()
    if not keys or None in keys:
        raise CorruptNode(f"node file {path!r} is neither a canonical node nor a root of the Java SDK", path=path)
    first = 0
    while first < len(keys) and not is_object_key(keys[first]):
        first += 1
    node = Node(system=_system(keys[:first], values[:first], path), canonical=False)
    _take_numbers(node, path)  # a wrong n_keys is ignored
    node.height = 0
    objects = dict(zip(keys[first:], values[first:], strict=True))
    if len(objects) < len(keys) - first or None in values[first:]:
        raise _too_few(len(keys) - first, "key and a value of its own", path)
    node.keys = sorted(objects)
    node.values = [objects[key] for key in node.keys]
    return node
