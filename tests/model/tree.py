"""The judge of trees: reads the nodes of a version with pyarrow alone, and proves the invariants of docs/format.md.

Nodes never change, so each is judged once: what its subtree holds is kept as a sum over its objects, and a new version
costs the nodes that it does not share.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import mmh3
import pyarrow as pa
import pyarrow.ipc

COLUMNS: Final = ("key", "pvalue", "pnode", "txn")
KINDS: Final = "BCD"
ROWS_KEPT: Final = 400_000
"""Of how many rows nodes are remembered, before all are forgotten."""
BIG: Final = 1 << 64
ALONE: Final = pa.ipc.IpcReadOptions(use_threads=False)
"""To hand a small file to another thread takes thirty times as long as to read it."""


class Broken(AssertionError):
    """An invariant of the format that does not hold."""


def refuse(wrong: object, invariant: str, path: str, why: str) -> None:
    """Raise ``Broken`` if something is wrong."""
    if wrong:
        raise Broken(f"{invariant} {path}: {why}")


def root_path(version: int) -> str:
    """Return the file name of the root of a version."""
    return "_" + f"{version:032b}"[::-1] + ".ipc"


@dataclass(slots=True)
class Node:
    """One node file, and what its subtree holds once all messages in it are applied."""

    path: str
    system: dict[str, str]
    keys: list[str]
    values: list[str]
    children: list[str]
    messages: list[tuple[str, str | None, str]]
    size: int
    """Bytes of the texts below the system rows: less than what the format bounds."""
    below: list[Node] = field(default_factory=list)
    newest: dict[str, str | None] = field(default_factory=dict)
    height: int = 0
    all_keys: int = 0
    all_messages: int = 0
    counts: tuple[int, int, int] = (0, 0, 0)
    sum: int = 0
    low: str | None = None
    high: str | None = None

    def look_up(self, key: str) -> str | None:
        """Return the path that a key means here and below."""
        if key in self.newest:
            return self.newest[key]
        return self.look_up_below(key)

    def look_up_below(self, key: str) -> str | None:
        """Return what it means without the messages of this node."""
        at = bisect.bisect_left(self.keys, key)
        if at < len(self.keys) and self.keys[at] == key:
            return self.values[at]
        return self.below[at].look_up(key) if self.below else None

    def content(self) -> dict[str, str]:
        """Return key and path of every object, without any order."""
        found: dict[str, str] = dict(zip(self.keys, self.values, strict=True))
        for child in self.below:
            found |= child.content()
        for key, path in self.newest.items():
            if path is None:
                found.pop(key, None)
            else:
                found[key] = path
        return found

    def walk(self) -> Iterator[Node]:
        """Yield this node and those below it."""
        yield self
        for child in self.below:
            yield from child.walk()


def parse(path: str, data: bytes, order: int | None = None) -> Node:
    """Return a node from the bytes of its file: I1, I2, I3, and the checksum."""
    try:
        reader = pa.ipc.open_file(pa.BufferReader(data), options=ALONE)
        table = reader.read_all()
    except (pa.ArrowException, OSError) as error:
        raise Broken(f"I1 {path}: {error}") from error
    refuse(tuple(table.schema.names) != COLUMNS, "I1", path, f"columns {table.schema.names}")
    refuse(any(each.type != pa.string() for each in table.schema), "I1", path, "a column is not of strings")
    content = b"".join(_content(table.column(name)) for name in COLUMNS)
    digest = (table.schema.metadata or {}).get(b"trinitylake.checksum", b"").decode()
    refuse(digest != mmh3.hash_bytes(content, 0).hex(), "I1", path, "the checksum is missing or wrong")
    keys, values, nodes, txns = (table.column(name).to_pylist() for name in COLUMNS)
    refuse(None not in keys, "I2", path, "there is no key table")
    top = keys.index(None)
    system = dict(zip(keys[:top], values[:top], strict=True))
    refuse(len(system) != top, "I2", path, "a system row is there twice")
    count = int(system["n_keys"])
    if order is None:
        order = next((at for at in range(count + 1, len(keys) - top) if keys[top + at] is not None), len(keys) - top)
    refuse(values[top] is not None, "I2", path, "row 0 has a value")
    own = slice(top + 1, top + 1 + count)
    unused = range(top + 1 + count, top + order)
    refuse(top + order > len(keys), "I2", path, f"fewer than {order} rows")
    for column in (keys, values, nodes, txns):
        refuse(any(column[row] is not None for row in unused), "I2", path, "an unused row is not empty")
    refuse(None in keys[own] or None in values[own], "I2", path, "a key or its value is missing")
    refuse(any(a >= b for a, b in zip(keys[own], keys[own][1:], strict=False)), "I3", path, "keys do not ascend")
    children = nodes[top : top + 1 + count]
    refuse(None in children and any(children), "I7", path, "some children are missing")
    rest = slice(top + order, None)
    messages = list(zip(keys[rest], values[rest], txns[rest], strict=True))
    size = sum(len(each.encode()) for column in (keys, values, nodes, txns) for each in column[top:] if each)
    refuse(any(each is not None for each in nodes[rest]), "I5", path, "a message has a child")
    refuse(any(key is None or not txn for key, _, txn in messages), "I5", path, "a message has no key or transaction")
    return Node(path, system, keys[own], values[own], children if any(children) else [], messages, size)


def _content(column: pa.ChunkedArray) -> bytes:
    """Return the bytes of a column that its checksum covers."""
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks)
    rows = len(array)
    parts = [rows.to_bytes(8, "little")]
    valid, offsets, text = array.buffers()
    if array.null_count:
        parts.append(bytes(valid)[: (rows + 7) // 8])
    if rows:
        raw = bytes(offsets)[: 4 * (rows + 1)]
        assert array.offset == 0
        assert raw[:4] == b"\0\0\0\0"
        parts.append(raw)
        parts.append(bytes(text)[: int.from_bytes(raw[-4:], "little")] if text is not None else b"")
    return b"".join(parts)


@dataclass
class TreeJudge:
    """Reads nodes by ``read``; ``means`` says what a path means to the model, and fails where the file is damaged."""

    read: Callable[[str], bytes]
    means: Callable[[str, str], str]
    order: int
    node_bytes: int
    name_sizes: dict[str, int]
    nodes: dict[str, Node] = field(default_factory=dict)
    judged: int = 0
    _rows: int = 0

    def judge(self, path: str, data: bytes | None = None) -> Node:
        """Return the tree of a root."""
        if self._rows > ROWS_KEPT:
            self.nodes.clear()
            self._rows = 0
        node = self._node(path, data)
        refuse(len(node.keys) > self.order - 1, "I6", path, f"{len(node.keys)} keys")
        return node

    def _node(self, path: str, data: bytes | None = None) -> Node:
        known = self.nodes.get(path)
        if known is not None:
            return known
        segments = path.split("/")
        refuse("" in segments or "." in segments or ".." in segments or "://" in path, "I10", path, "not a path")
        try:
            data = self.read(path) if data is None else data
        except FileNotFoundError:
            raise Broken(f"I10 {path}: the file is missing") from None
        node = parse(path, data, self.order)
        self.judged += 1
        self._rows += len(node.keys) + len(node.messages) + 1
        refuse(node.system.get("self") != path, "I18", path, f"says that it lies at {node.system.get('self')}")
        node.below = [self._node(child) for child in node.children]
        self._judge(node)
        self.nodes[path] = node
        return node

    def _judge(self, node: Node) -> None:
        """Prove what is true of one node and its children, and sum up what it holds."""
        path, least = node.path, (self.order + 1) // 2 - 1
        refuse(node.children and len(node.children) != len(node.keys) + 1, "I7", path, "wrong number of children")
        heights = {child.height for child in node.below}
        refuse(len(heights) > 1, "I8", path, f"children of heights {heights}")
        node.height = max(heights, default=-1) + 1
        for at, child in enumerate(node.below):
            refuse(not least <= len(child.keys) < self.order, "I6", child.path, f"{len(child.keys)} keys")
            after = at > 0 and child.low is not None and child.low <= node.keys[at - 1]
            before = at < len(node.keys) and child.high is not None and child.high >= node.keys[at]
            refuse(after or before, "I4/I5", child.path, f"holds keys outside of its range below {path}")
        node.newest = {key: value for key, value, _ in node.messages}
        touched = [*node.keys[:1], *node.keys[-1:], *node.newest]
        lows = [child.low for child in node.below if child.low is not None]
        highs = [child.high for child in node.below if child.high is not None]
        node.low = min(touched + lows, default=None)
        node.high = max(touched + highs, default=None)
        for key in (*node.keys, *node.newest):
            self._judge_key(path, key)
        node.all_keys = len(node.keys) + sum(child.all_keys for child in node.below)
        node.all_messages = len(node.messages) + sum(child.all_messages for child in node.below)
        self._judge_counts(node)
        self._sum_up(node)

    def _judge_key(self, path: str, key: str) -> None:
        kind, rest = key[:1], key[4:].encode()
        refuse(key[:4] not in {"B===", "C===", "D==="}, "I11", path, f"key {key!r}")
        size = self.name_sizes["B"] + (0 if kind == "B" else self.name_sizes[kind])
        refuse(len(rest) != size, "I11", path, f"key {key!r} has {len(rest)} bytes")

    def _judge_counts(self, node: Node) -> None:
        said = node.system
        expected = {"height": node.height, "subtree_keys": node.all_keys, "subtree_messages": node.all_messages}
        for name, number in expected.items():
            refuse(int(said.get(name, number)) != number, "I8/I9", node.path, f"{name} {said.get(name)}, not {number}")
        for name, numbers in (
            ("child_keys", [child.all_keys for child in node.below]),
            ("child_messages", [child.all_messages for child in node.below]),
        ):
            if name in said and node.below:
                refuse(
                    said[name] != ",".join(map(str, numbers)), "I9", node.path, f"{name} {said[name]}, not {numbers}"
                )
        refuse(node.size > self.node_bytes and not node.system.get("version"), "size", node.path, f"{node.size} bytes")
        if "fits" in said:
            refuse(node.size > int(said["fits"]), "I21", node.path, f"{node.size} bytes")

    def _sum_up(self, node: Node) -> None:
        total = sum(child.sum for child in node.below)
        counts = [sum(child.counts[kind] for child in node.below) for kind in range(3)]
        for key, path in zip(node.keys, node.values, strict=True):
            total += self.worth(key, path)
            counts[KINDS.index(key[0])] += 1
        for key, path in node.newest.items():
            before = node.look_up_below(key)
            if before is not None:
                total -= self.worth(key, before)
            if path is not None:
                total += self.worth(key, path)
            counts[KINDS.index(key[0])] += (path is not None) - (before is not None)
        node.sum = total % BIG
        node.counts = (counts[0], counts[1], counts[2])

    def worth(self, key: str, path: str) -> int:
        """Return what an object adds to the sum of a subtree."""
        return hash((key, self.means(key, path)))


def differences(found: dict[str, Any], expected: dict[str, Any], limit: int = 6) -> str:
    """Return how two dictionaries differ, in one line."""
    parts = []
    for key in sorted(found.keys() | expected.keys()):
        if found.get(key) != expected.get(key):
            parts.append(f"{key.rstrip()!r}: is {found.get(key)!r}, the model says {expected.get(key)!r}")
    more = f" and {len(parts) - limit} more" if len(parts) > limit else ""
    return "; ".join(parts[:limit]) + more
