"""What a root of a disk means, read from the bytes of its node files by Arrow alone: no code of the product."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa

KINDS: Final = {"B": 0, "C": 1, "D": 2}
"""The first character of a key, and the place of its kind among the counts."""


class PlainNode(NamedTuple):
    """System rows, key table, children, and messages, the oldest first."""

    system: dict[str, str]
    table: dict[str, str]
    children: list[str]
    messages: list[tuple[str, str | None]]


class PlainVersion(NamedTuple):
    """The content of a version, by key, and the messages that wait in it."""

    system: dict[str, str]
    content: dict[str, str]
    waiting: int
    pivots: list[str]

    def bounds(self) -> tuple[list[int], list[int]] | None:
        """Return how many objects of each kind its root says that there are at least and at most."""
        rows = [self.system.get(name) for name in ("namespaces", "tables", "views")]
        if None not in rows:
            exact = [int(row or "") for row in rows]
            return exact, exact
        if "count_bounds" not in self.system:
            return None
        numbers = [int(part) for part in self.system["count_bounds"].split(",")]
        return numbers[::2], numbers[1::2]

    def held(self) -> list[int]:
        """Return how many objects of each kind there are."""
        counts = [0, 0, 0]
        for key in self.content:
            counts[KINDS[key[0]]] += 1
        return counts


class PlainReader:
    """Reads the versions of one lakehouse on a disk; what is not a root is read once."""

    def __init__(self, directory: Path, order: int) -> None:
        self._directory = directory
        self._order = order
        self._nodes: dict[str, PlainNode] = {}

    def newest(self) -> PlainVersion:
        """Return the newest version, found by looking for one root after the other."""
        version = 0
        while (self._directory / _root_name(version + 1)).exists():
            version += 1
        return self.read(version)

    def read(self, version: int) -> PlainVersion:
        """Return a version."""
        pivots: list[str] = []
        root = self._node(_root_name(version))
        content, waiting = self._content(root, pivots)
        return PlainVersion(root.system, content, waiting, pivots)

    def _content(self, node: PlainNode, pivots: list[str]) -> tuple[dict[str, str], int]:
        found: dict[str, str] = {}
        waiting = len(node.messages)
        for child in node.children:
            below, more = self._content(self._node(child), pivots)
            found |= below
            waiting += more
        if node.children:
            pivots += node.table
        found |= node.table
        for key, value in node.messages:
            if value is None:
                found.pop(key, None)
            else:
                found[key] = value
        return found, waiting

    def _node(self, path: str) -> PlainNode:
        node = self._nodes.get(path)
        if node is None:
            node = self._nodes[path] = self._parse((self._directory / path).read_bytes())
        return node

    def _parse(self, data: bytes) -> PlainNode:
        columns = pa.ipc.open_file(pa.BufferReader(data)).read_all().to_pydict()
        keys, values, children = columns["key"], columns["pvalue"], columns["pnode"]
        top = keys.index(None)
        end = top + self._order
        table = {key: value for key, value in zip(keys[top:end], values[top:end], strict=True) if key is not None}
        assert [*table] == sorted(table)
        return PlainNode(
            dict(zip(keys[:top], values[:top], strict=True)),
            table,
            [child for child in children[top:end] if child is not None],
            list(zip(keys[end:], values[end:], strict=True)),
        )


def _root_name(version: int) -> str:
    digits = f"{version:032b}"
    return f"_{digits[::-1]}.ipc"
