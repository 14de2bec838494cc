"""Nodes over a storage: cached reads, batched writes (format, section 4).

The one place where node files meet the storage. ``tree`` and ``rewrite`` see only this interface.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from trinitylake_core.errors import CorruptNode, FileMissing
from trinitylake_core.locations import node_path
from trinitylake_core.storage import Storage
from trinitylake_core.tree import nodefile
from trinitylake_core.tree.leaffile import decode_columns, encode_columns
from trinitylake_core.tree.leafrun import Columns
from trinitylake_core.tree.node import Node

DEFAULT_CACHE_BYTES: Final = 64 << 20
_WRITE_BATCH_BYTES: Final = 16 << 20
_IN_MEMORY_FACTOR: Final = 6
"""How much larger a decoded node is than its lz4 file, roughly."""


@dataclass(slots=True)
class NodeCounts:
    """Nodes and bytes read through a store."""

    nodes_read: int = 0
    bytes_read: int = 0


class NodeStore:
    """Reads nodes through a cache bounded in bytes. Thread-safe."""

    def __init__(self, storage: Storage, order: int, target_bytes: int, cache_bytes: int = DEFAULT_CACHE_BYTES) -> None:
        self.storage = storage
        self.order = order
        self.target_bytes = target_bytes
        self.counts = NodeCounts()
        self._cache: OrderedDict[str, Node] = OrderedDict()
        self._cached_bytes = 0
        self._cache_limit = cache_bytes
        self._lock = threading.Lock()

    @property
    def min_keys(self) -> int:
        """The fewest keys of a node that is not the root."""
        return -(-self.order // 2) - 1

    @property
    def max_keys(self) -> int:
        """The most keys of a node."""
        return self.order - 1

    def read(self, path: str) -> Node:
        """Return a node. One ``get``, none if cached. Raises ``CorruptNode`` also when it is missing."""
        node = self.cached(path)
        if node is not None:
            return node
        try:
            return self.keep(path, self._decode(path, self.storage.read(path)))
        except FileMissing:
            raise _missing(path) from None

    def read_many(self, paths: Sequence[str]) -> Iterator[Node]:
        """Yield nodes in the order of ``paths``, reading ahead in parallel. One ``get`` each, none if cached."""
        nodes = {path: node for path in paths if (node := self.cached(path)) is not None}
        fetched = self.storage.read_many([path for path in paths if path not in nodes])
        for path in paths:
            node = nodes.pop(path, None)
            if node is None:
                _, data = next(fetched)
                if isinstance(data, FileMissing):
                    raise _missing(path)
                node = self._decode(path, data)
            yield node

    def read_columns(self, paths: Sequence[str]) -> list[Columns] | None:
        """Return leaves as columns, ``None`` if one of them is not plain. One ``get`` each, none if cached.

        What was read in vain is cached, so that reading it as nodes next costs nothing. Raises ``CorruptNode``.
        """
        nodes = {path: node for path in paths if (node := self.cached(path)) is not None}
        data = dict(self.storage.read_many([path for path in paths if path not in nodes]))
        found: list[Columns | None] = []
        for path in paths:
            content = data.get(path)
            if isinstance(content, FileMissing):
                raise _missing(path)
            found.append(_columns_of(nodes[path]) if content is None else decode_columns(content, path, self.order))
        plain = [each for each in found if each is not None]
        if len(plain) < len(found):
            for path, content in data.items():
                if not isinstance(content, FileMissing):
                    self.keep(path, self._decode(path, content))
            return None
        self._count(len(data), sum(len(content) for content in data.values() if not isinstance(content, FileMissing)))
        return plain

    def prefetch(self, paths: Sequence[str]) -> None:
        """Read several nodes in parallel, so that reading them next costs nothing."""
        missing = [path for path in paths if self.cached(path) is None]
        if len(missing) > 1:
            for path, node in zip(missing, self.read_many(missing), strict=True):
                self.keep(path, node)

    def cached(self, path: str) -> Node | None:
        """Return a node if it is in the cache."""
        with self._lock:
            node = self._cache.get(path)
            if node is not None:
                self._cache.move_to_end(path)
            return node

    def keep(self, path: str, node: Node) -> Node:
        """Put a node into the cache and return it."""
        with self._lock:
            if path not in self._cache:
                self._cache[path] = node
                self._cached_bytes += node.nbytes * _IN_MEMORY_FACTOR
            while self._cached_bytes > self._cache_limit and len(self._cache) > 1:
                _, dropped = self._cache.popitem(last=False)
                self._cached_bytes -= dropped.nbytes * _IN_MEMORY_FACTOR
        return node

    def _decode(self, path: str, data: bytes) -> Node:
        self._count(1, len(data))
        return nodefile.decode(data, path, self.order)

    def _count(self, nodes: int, size: int) -> None:
        with self._lock:
            self.counts.nodes_read += nodes
            self.counts.bytes_read += size


class NodeWriter:
    """Collects new nodes over a store and writes them in batches. One writer belongs to one thread.

    A node that is added and taken back before its batch is written never reaches the storage.
    """

    def __init__(self, store: NodeStore) -> None:
        self.store = store
        self.order = store.order
        self.target_bytes = store.target_bytes
        self.min_keys = store.min_keys
        self.max_keys = store.max_keys
        self.written: list[str] = []
        self.bytes_written = 0
        self._pending: dict[str, tuple[memoryview, Node | None]] = {}
        self._pending_bytes = 0

    def read(self, path: str) -> Node:
        """Return a node that was added before, or read it."""
        pending = self._pending.get(path)
        return self.store.read(path) if pending is None else self._node(path, *pending)

    def _node(self, path: str, data: memoryview, node: Node | None) -> Node:
        return nodefile.decode(data, path, self.order) if node is None else node

    def read_many(self, paths: Sequence[str]) -> Iterator[Node]:
        """Yield nodes in the order of ``paths``."""
        if any(path in self._pending for path in paths):
            return (self.read(path) for path in paths)
        return self.store.read_many(paths)

    def prefetch(self, paths: Sequence[str]) -> None:
        """Read nodes in parallel that will be read next."""
        self.store.prefetch([path for path in paths if path not in self._pending])

    def add(self, node: Node) -> str:
        """Take a new node for writing and return its path. The write happens by :meth:`flush` at the latest."""
        path = node_path()
        data = nodefile.encode(node, self.order, path)
        node.nbytes = len(data)
        return self._add(path, data, node)

    def read_columns(self, paths: Sequence[str]) -> list[Columns] | None:
        """Return leaves as columns, ``None`` if one of them is not plain, or not written yet."""
        return None if any(path in self._pending for path in paths) else self.store.read_columns(paths)

    def add_columns(self, rows: Columns, system: dict[str, str]) -> str:
        """Take a leaf for writing, given as columns, and return its path."""
        path = node_path()
        return self._add(path, encode_columns(rows, self.order, path, system), None)

    def _add(self, path: str, data: memoryview, node: Node | None) -> str:
        self._pending[path] = (data, node)
        self._pending_bytes += len(data)
        if self._pending_bytes >= _WRITE_BATCH_BYTES:
            self.flush()
        return path

    def take_back(self, path: str) -> Node | None:
        """Return a node added before and forget it, or ``None`` if it was written or is not ours."""
        pending = self._pending.pop(path, None)
        if pending is None:
            return None
        self._pending_bytes -= len(pending[0])
        return self._node(path, *pending)

    def flush(self) -> None:
        """Write all nodes added so far. One ``put`` each. Durable after the storage's barrier only."""
        if not self._pending:
            return
        self.written += self._pending
        self.store.storage.write_many([(path, data) for path, (data, _) in self._pending.items()])
        self.bytes_written += self._pending_bytes
        for path, (_, node) in self._pending.items():
            if node is not None:
                self.store.keep(path, node)
        self._pending.clear()
        self._pending_bytes = 0


def _columns_of(node: Node) -> Columns | None:
    if node.children or len(node.buffer) or not node.keys:
        return None
    return Columns(pa.array(node.keys, pa.string()), pa.array(node.values, pa.string()))


def _missing(path: str) -> CorruptNode:
    return CorruptNode(f"node file {path!r} is missing, but the tree points to it", path=path, invariant="I10")
