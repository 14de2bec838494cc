"""A tree in memory: node files in a dictionary, for tests of the algorithms alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np

from trinitylake_core.tree import nodefile
from trinitylake_core.tree.leafbatch import decode_many, encode_many
from trinitylake_core.tree.leafrun import Columns, Leaves
from trinitylake_core.tree.node import Node


class MemorySink:
    """Nodes by path; each goes through its file's bytes, so that nothing is shared by accident.

    With ``batch`` the last nodes added can be taken back, as from a ``NodeWriter``.
    """

    def __init__(self, order: int, batch: int = 0) -> None:
        self.order = order
        self.min_keys = -(-order // 2) - 1
        self.max_keys = order - 1
        self.files: dict[str, bytes] = {}
        self.read_paths: list[str] = []
        self.added = 0
        self._batch = batch
        self._numbers: dict[str, int] = {}
        self._count: Counter[int | None] = Counter()

    def read(self, path: str) -> Node:
        """Return one node."""
        self.read_paths.append(path)
        return nodefile.decode(self.files[path], path)

    def read_many(self, paths: Sequence[str]) -> Iterator[Node]:
        """Yield nodes in order."""
        return (self.read(path) for path in paths)

    def prefetch(self, paths: Iterable[str]) -> AbstractContextManager[None]:
        """Read nothing ahead, but let everything above the leaves be opened before anything is flushed."""
        for _ in paths:
            pass
        return nullcontext()

    def add(self, node: Node) -> str:
        """Take a node, which must be one that may stand below a root."""
        assert len(node.keys) <= self.max_keys, f"{len(node.keys)} keys at order {self.order}"
        assert len(node.children) in {0, len(node.keys) + 1}
        path = self._name(node.height)
        self.files[path] = bytes(nodefile.encode(node, self.order, path))
        return path

    def _name(self, height: int | None) -> str:
        """Return a new name: nodes of one height are numbered, however those of others come in between."""
        self.added += 1
        self._count[height] += 1
        path = f"node-{height}-{self._count[height]}"
        self._numbers[path] = self.added
        return path

    def take_back(self, path: str) -> Node | None:
        """Return a node added lately and forget it."""
        if path not in self.files or self._numbers[path] <= self.added - self._batch:
            return None
        return nodefile.decode(self.files.pop(path), path)


class ColumnMemorySink(MemorySink):
    """The same, whose leaves come and go as columns, too."""

    def read_columns(self, paths: Sequence[str]) -> list[Columns] | None:
        """Return leaves as columns."""
        self.read_paths += paths
        files = [self.files[path] for path in paths]
        found = decode_many(files, paths, self.order)
        if found is not None:
            return found
        each = [nodefile.decode(data, path).entries() for data, path in zip(files, paths, strict=True)]
        plain = [leaf for leaf in each if leaf is not None]
        return plain if len(plain) == len(each) else None

    def new_paths(self, count: int) -> list[str]:
        """Return names for leaves."""
        return [self._name(0) for _ in range(count)]

    def add_leaves(self, leaves: Leaves, paths: Sequence[str], stamp: int, prove: Callable[[], None]) -> None:
        """Take leaves."""
        prove()
        assert all(self.min_keys <= count <= self.max_keys for count in leaves.counts)
        self.files.update(zip(paths, encode_many(leaves, paths, self.order, stamp), strict=True))


def leaves_of(leaves: Sequence[Columns]) -> Leaves:
    """Return leaves that are given apart, each but the last one with a pivot behind it."""
    parts = [part for leaf in leaves for part in (leaf, Columns.of(["~"], ["a pivot"]))][:-1]
    return Leaves(Columns.join(parts), np.array([len(leaf) for leaf in leaves], dtype=np.int64))


def prove_tree(sink: MemorySink, root: Node) -> None:
    """Assert every invariant of a tree: order, ranges, widths, heights, counts."""
    _prove(sink, root, None, None, top=True)


def _prove(sink: MemorySink, node: Node, low: str | None, high: str | None, *, top: bool) -> tuple[int, int]:
    assert (0 if top else sink.min_keys) <= len(node.keys) <= sink.max_keys
    assert all(a < b for a, b in zip(node.keys, node.keys[1:], strict=False))
    for key in (*node.keys, *node.buffer.keys):
        assert low is None or low < key
        assert high is None or key < high
    keys, messages = len(node.keys), len(node.buffer)
    assert node.is_leaf == (node.height == 0)
    assert not node.children or len(node.keys) > 0, "a node with a single child"
    for index, path in enumerate(node.children):
        child = nodefile.decode(sink.files[path], path)
        assert node.height is not None
        assert node.height - 1 == child.height
        left, right = node.bounds(index)
        inside = _prove(sink, child, left or low, right or high, top=False)
        assert node.child_keys is not None
        assert node.child_messages is not None
        assert inside == (node.child_keys[index], node.child_messages[index])
        keys, messages = keys + inside[0], messages + inside[1]
    assert (keys, messages) == (node.subtree_keys, node.subtree_messages)
    return keys, messages
