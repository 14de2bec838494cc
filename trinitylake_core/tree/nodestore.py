"""Nodes over a storage: cached reads, batched writes (format, section 4).

The one place where node files meet the storage. ``tree`` and ``rewrite`` see only this interface.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Final

from trinitylake_core.errors import CorruptNode, FileMissing
from trinitylake_core.locations import node_path
from trinitylake_core.storage import Storage
from trinitylake_core.tree import nodefile
from trinitylake_core.tree.leafbatch import decode_many, encode_many
from trinitylake_core.tree.leafrun import Columns, Leaves
from trinitylake_core.tree.node import Node
from trinitylake_core.tree.readahead import Content, InFlightReads, PerThread, ReadAhead, SingleFlight
from trinitylake_core.tree.writebehind import MOST_BYTES, WriteBehind

DEFAULT_CACHE_BYTES: Final = 64 << 20
_RECENT: Final = 32
"""Nodes that a writer holds back: a rewrite takes some of the latest ones back and merges them with others."""
_ENCODING: Final = 1
"""How many runs of leaves, of some MiB each, may be with the thread that encodes while another one is made."""
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
        self._local = PerThread()
        self._once: SingleFlight[Node] = SingleFlight()
        self._underway = InFlightReads(storage)

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
        held = self._local.here.nodes
        node = (held.pop(path, None) if held else None) or self.cached(path)
        if node is not None:
            return node
        data = self._expected(path)
        if data is None:
            return self._once.get(path, self._fetched)
        return self._arrived(path, data)

    def _arrived(self, path: str, data: bytes) -> Node:
        node = self.keep(path, self._decode(path, data))
        self._underway.done(path)
        return node

    def _fetched(self, path: str) -> Node:
        try:
            return self.keep(path, self._decode(path, self.storage.read(path)))
        except FileMissing:
            raise _missing(path) from None

    def read_many(self, paths: Sequence[str]) -> Iterator[Node]:
        """Yield nodes in the order of ``paths``, reading ahead in parallel. One ``get`` each, none if cached."""
        held = self._local.here.nodes
        nodes = {path: node for path in paths if (node := held.pop(path, None) or self.cached(path)) is not None}
        fetched = self._contents([path for path in paths if path not in nodes])
        for path in paths:
            node = nodes.pop(path, None)
            yield self._decode(path, next(fetched)) if node is None else node

    def read_columns(self, paths: Sequence[str]) -> list[Columns] | None:
        """Return leaves as columns; ``None`` if one is not plain.

        One ``get`` each, none if cached. What was read in vain is held until this thread asks for it as nodes. Raises
        ``CorruptNode``.
        """
        found = {path: node.entries() for path in paths if (node := self.cached(path)) is not None}
        missing = [path for path in paths if path not in found]
        data = dict(zip(missing, self._contents(missing), strict=True))
        read = decode_many([*data.values()], missing, self.order) if missing else []
        if read is None:  # of an older writer, perhaps, or damaged
            found |= {path: nodefile.decode(data[path], path, self.order).entries() for path in missing}
        else:
            found |= zip(missing, read, strict=True)
        plain = [each for path in paths if (each := found[path]) is not None]
        if len(plain) < len(paths):
            self._local.here.files.update(data)
            return None
        self._count(len(data), sum(map(len, data.values())))
        return plain

    def _contents(self, paths: Sequence[str]) -> Iterator[bytes]:
        """Yield node files in the order of ``paths``, from the window if they are expected. Raises ``CorruptNode``."""
        here = self._local.here
        found: Iterator[Content]
        if paths and (paths[0] in here.files or (here.ahead is not None and paths[0] in here.ahead)):
            found = (self._expected(path) or self.storage.read_or_missing(path) for path in paths)
        else:
            found = (data for _, data in self.storage.read_many(paths))
        for path, data in zip(paths, found, strict=True):
            self._underway.done(path)
            if isinstance(data, FileMissing):
                raise _missing(path)
            yield data

    def _expected(self, path: str) -> bytes | None:
        """Return a node file that was read before, if it was. Raises ``CorruptNode``."""
        here = self._local.here
        if path in here.files:
            return here.files.pop(path)
        found = None if here.ahead is None else here.ahead.take(path)
        if isinstance(found, FileMissing):
            self._underway.done(path)
            raise _missing(path)
        return found

    def held(self, paths: Sequence[str]) -> Iterator[Node]:
        """Yield nodes as :meth:`read_many` does; while this thread expects some, hold each until it asks for it."""
        here = self._local.here
        if here.ahead is None:
            yield from self.read_many(paths)
            return
        window = ReadAhead(self._underway, iter(paths), lambda: len(paths), self._cache.__contains__)
        window.fill()
        for path in paths:
            data = window.take(path)
            if isinstance(data, FileMissing):
                raise _missing(path)
            here.nodes[path] = node = self.read(path) if data is None else self._arrived(path, data)
            yield node

    def warmed(self, paths: Sequence[str]) -> Iterator[Node]:
        """Yield the first of these nodes, read in parallel, as many as half of the cache holds; they are cached."""
        size = self.counts.bytes_read // max(1, self.counts.nodes_read)
        some = paths[: max(1, self._cache_limit // max(1, 2 * _IN_MEMORY_FACTOR * size))]
        return (self.keep(path, node) for path, node in zip(some, self.read_many(some), strict=True))

    @contextmanager
    def prefetch(self, paths: Iterable[str]) -> Iterator[None]:
        """Read ahead the nodes that this thread will read inside the block, about in this order, in a separate window.

        Inside of another such block nothing happens, and neither does where requests go out one after another.
        """
        here = self._local.here  # a generator may be closed by another thread
        if here.ahead is not None or self.storage.concurrency == 1:
            yield
            return
        ahead = here.ahead = ReadAhead(self._underway, iter(paths), self._room, self._cache.__contains__)
        try:
            ahead.fill()
            yield
        finally:
            here.ahead, here.nodes, here.files = None, {}, {}
            ahead.close()

    def write_behind(self) -> WriteBehind:
        """Return a writer that writes nodes in the background; they are cached when they are written."""
        return WriteBehind(self.storage, self.keep)

    def _room(self) -> int:
        """Return the number of nodes that may be read ahead: enough to keep all requests busy, if memory allows."""
        size = self.counts.bytes_read // max(1, self.counts.nodes_read)
        return max(1, min(2 * self.storage.concurrency, self._cache_limit // max(1, _IN_MEMORY_FACTOR * size)))

    def cached(self, path: str) -> Node | None:
        """Return a node if it is in the cache."""
        node = self._cache.get(path)
        if node is not None:
            try:
                self._cache.move_to_end(path)
            except KeyError:  # another thread dropped it meanwhile
                return node
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
    """Collects new nodes over a store and writes them. One writer belongs to one thread.

    A node that is added and taken back before it is written never reaches the storage. So the latest ones are held
    back; the others are written behind what goes on, or in batches where requests go out one after another.
    """

    def __init__(self, store: NodeStore, behind: WriteBehind | None = None) -> None:
        """Write through ``store``. With ``behind``, which others write through, too, its owner waits in the end."""
        self.store = store
        self.order = store.order
        self.target_bytes = store.target_bytes
        self.min_keys = store.min_keys
        self.max_keys = store.max_keys
        self.written: list[str] = []
        self.bytes_written = 0
        self._pending: dict[str, tuple[bytes | memoryview, Node | None]] = {}
        self._pending_bytes = 0
        self._encoder: ThreadPoolExecutor | None = None
        self._encoding: deque[tuple[Sequence[str], Future[list[bytes]]]] = deque()
        self._shared = behind is not None
        self._behind = store.write_behind() if behind is None else behind

    def read(self, path: str) -> Node:
        """Return a node that was added before, or read it."""
        self._settle_all()
        if path in self._behind:
            return self._node(path, *self._behind[path][:2])
        pending = self._pending.get(path)
        return self.store.read(path) if pending is None else self._node(path, *pending)

    def _node(self, path: str, data: bytes | memoryview, node: Node | None) -> Node:
        return nodefile.decode(data, path, self.order) if node is None else node

    def _holds(self, paths: Sequence[str]) -> bool:
        encoding = {path for some, _ in self._encoding for path in some}
        return any(path in encoding or path in self._pending or path in self._behind for path in paths)

    def read_many(self, paths: Sequence[str]) -> Iterator[Node]:
        """Yield nodes in the order of ``paths``."""
        if self._holds(paths):
            return (self.read(path) for path in paths)
        return self.store.read_many(paths)

    def prefetch(self, paths: Iterable[str]) -> AbstractContextManager[None]:
        """Read nodes ahead; see :meth:`NodeStore.prefetch`."""
        return self.store.prefetch(paths)

    def add(self, node: Node) -> str:
        """Take a new node for writing and return its path. The write happens by :meth:`flush` at the latest."""
        path = self.store.storage.pick(node_path)
        data = nodefile.encode(node, self.order, path)
        node.nbytes = len(data)
        return self._add(path, data, node)

    def read_columns(self, paths: Sequence[str]) -> list[Columns] | None:
        """Return leaves as columns; ``None`` if one is not plain, or not written yet."""
        return None if self._holds(paths) else self.store.read_columns(paths)

    def new_paths(self, count: int) -> list[str]:
        """Return names for new leaves."""
        return [self.store.storage.pick(node_path) for _ in range(count)]

    def add_leaves(self, leaves: Leaves, paths: Sequence[str], stamp: int, prove: Callable[[], None]) -> None:
        """Take leaves for writing, given as columns and created at ``stamp``. REQUIRES: none is empty.

        Another thread proves and encodes them, while this one goes on: Arrow and the checksums release the interpreter.
        The error of a failed proof comes up here later, or by :meth:`flush` at the latest.
        """
        if self._encoder is None:
            self._encoder = ThreadPoolExecutor(1, "encode")
        self._encoding.append((paths, self._encoder.submit(_encoded, prove, leaves, paths, self.order, stamp)))
        while len(self._encoding) > _ENCODING:
            self._settle()

    def _settle(self) -> None:
        """Take the oldest leaves that another thread encodes."""
        paths, coming = self._encoding.popleft()
        for path, data in zip(paths, coming.result(), strict=True):
            self._add(path, data, None)

    def _settle_all(self) -> None:
        while self._encoding:
            self._settle()

    def _add(self, path: str, data: bytes | memoryview, node: Node | None) -> str:
        self._pending[path] = (data, node)
        self._pending_bytes += len(data)
        if self.store.storage.concurrency > 1:
            while len(self._pending) > _RECENT:
                self._begin(next(iter(self._pending)))
        elif self._pending_bytes >= MOST_BYTES:
            self.flush()
        return path

    def _begin(self, path: str) -> None:
        """Begin to write a node."""
        data, node = self._pending.pop(path)
        self._pending_bytes -= len(data)
        self.written.append(path)
        self.bytes_written += len(data)
        self._behind.begin(path, data, node)

    def _write_now(self) -> None:
        """Write all nodes added so far, one after another."""
        files, self._pending, self._pending_bytes = self._pending, {}, 0
        self.written += files
        self.bytes_written += sum(len(data) for data, _ in files.values())
        self.store.storage.write_many((path, data) for path, (data, _) in files.items())
        for path, (_, node) in files.items():
            if node is not None:
                self.store.keep(path, node)

    def take_back(self, path: str) -> Node | None:
        """Return a node added before and forget it, or ``None`` if it was written or is not ours."""
        if any(path in some for some, _ in self._encoding):
            self._settle_all()
        pending = self._pending.pop(path, None)
        if pending is None:
            return None
        self._pending_bytes -= len(pending[0])
        return self._node(path, *pending)

    def flush(self) -> None:
        """Write all nodes added so far. One ``put`` each. Durable after the storage's barrier only.

        A writer with a shared ``behind`` begins to write them: they are written when that is finished.

        Raises:
            StorageError: one of them was not written; a node that points to any of them must not be committed.
            Corrupt: the proof of leaves failed.
        """
        self._settle_all()
        if self._encoder is not None:
            self._encoder.shutdown()
            self._encoder = None
        if self.store.storage.concurrency == 1:
            self._write_now()
        for path in list(self._pending):
            self._begin(path)
        if not self._shared:
            self._behind.finish()


def _encoded(prove: Callable[[], None], leaves: Leaves, paths: Sequence[str], order: int, stamp: int) -> list[bytes]:
    prove()
    return encode_many(leaves, paths, order, stamp)


def _missing(path: str) -> CorruptNode:
    return CorruptNode(f"node file {path!r} is missing, but the tree points to it", path=path, invariant="I10")
