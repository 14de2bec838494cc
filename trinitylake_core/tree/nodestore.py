"""Nodes over a storage: cached reads, batched writes (format, section 4).

The one place where node files meet the storage. ``tree`` and ``rewrite`` see only this interface.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

from trinitylake_core.errors import CorruptNode, FileMissing
from trinitylake_core.locations import node_path
from trinitylake_core.storage import Data, Storage
from trinitylake_core.tree import nodefile
from trinitylake_core.tree.leafbatch import decode_many, encode_many
from trinitylake_core.tree.leafrun import Columns, Leaves
from trinitylake_core.tree.node import Node
from trinitylake_core.tree.readahead import Cache, Content, InFlightReads, PerThread, ReadAhead
from trinitylake_core.tree.search import MAX_HEIGHT

MOST_BYTES: Final = 16 << 20
"""How many bytes of new nodes may be under way to the storage at once."""
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

    def __init__(self, storage: Storage, order: int, target_bytes: int, cache_bytes: int = 64 << 20) -> None:
        self.storage = storage
        self.order = order
        self.target_bytes = target_bytes
        self.min_keys = -(-order // 2) - 1
        """The fewest keys of a node that is not the root."""
        self.max_keys = order - 1
        self.counts = NodeCounts()
        self.cache: Cache[Node] = Cache(cache_bytes)
        self._lock = threading.Lock()
        self._local = PerThread()
        self._underway = InFlightReads(storage)

    def read(self, path: str) -> Node:
        """Return a node. One ``get``, none if cached. Raises ``CorruptNode`` also when it is missing."""
        node = self._take_held(path)
        if node is not None:
            return node
        data = self._take_expected(path)
        if data is not None:
            return self._keep_arrived(path, data)
        return self.cache.get(path, lambda: self._fetch(path))

    def _take_held(self, path: str) -> Node | None:
        """Return a node that this thread holds, or that is cached."""
        held = self._local.here.nodes
        if held:
            node = held.pop(path, None)
            if node is not None:
                return node
        return self.cache.held(path)

    def _fetch(self, path: str) -> tuple[Node, int]:
        try:
            node = self._decode(path, self.storage.read(path))
        except FileMissing:
            raise _missing(path) from None
        return node, node.nbytes * _IN_MEMORY_FACTOR

    def _keep_arrived(self, path: str, data: bytes) -> Node:
        node = self.keep(path, self._decode(path, data))
        self._underway.done(path)
        return node

    def read_many(self, paths: Sequence[str]) -> Iterator[Node]:
        """Yield nodes in the order of ``paths``, reading ahead in parallel. One ``get`` each, none if cached."""
        nodes = {}
        missing = []
        for path in paths:
            node = self._take_held(path)
            if node is None:
                missing.append(path)
            else:
                nodes[path] = node
        fetched = self._contents(missing)
        for path in paths:
            held = nodes.pop(path, None)
            yield self._decode(path, next(fetched)) if held is None else held

    def read_columns(self, paths: Sequence[str]) -> list[Columns] | None:
        """Return leaves as columns; ``None`` if one is not plain.

        One ``get`` each, none if cached. What was read in vain is held until this thread asks for it as nodes. Raises
        ``CorruptNode``.
        """
        found: dict[str, Columns | None] = {}
        missing = []
        for path in paths:
            node = self.cache.held(path)
            if node is None:
                missing.append(path)
            else:
                found[path] = node.entries()
        data = dict(zip(missing, self._contents(missing), strict=True))
        if missing:
            decoded = decode_many([*data.values()], missing, self.order)
            if decoded is None:  # of an older writer, perhaps, or damaged
                for path in missing:
                    found[path] = nodefile.decode(data[path], path).entries()
            else:
                found.update(zip(missing, decoded, strict=True))
        columns = []
        for path in paths:
            entries = found[path]
            if entries is None:
                self._local.here.files.update(data)
                return None
            columns.append(entries)
        self._count(len(data), sum(map(len, data.values())))
        return columns

    def _contents(self, paths: Sequence[str]) -> Iterator[bytes]:
        """Yield node files in the order of ``paths``, from the window if they are expected. Raises ``CorruptNode``."""
        contents: Iterator[Content]
        if paths and self._expects(paths[0]):  # children of one node are expected all, or none of them
            contents = (self._take_expected(path) or self.storage.read_or_missing(path) for path in paths)
        else:
            contents = (data for _, data in self.storage.read_many(paths))
        for path, data in zip(paths, contents, strict=True):
            self._underway.done(path)
            if isinstance(data, FileMissing):
                raise _missing(path)
            yield data

    def _expects(self, path: str) -> bool:
        """Whether a node file was read before for this thread, or is being read ahead for it."""
        here = self._local.here
        return path in here.files or (here.ahead is not None and path in here.ahead)

    def _take_expected(self, path: str) -> bytes | None:
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
        window = ReadAhead(self._underway, iter(paths), lambda: len(paths), self.cache.__contains__)
        window.fill()
        for path in paths:
            data = window.take(path)
            if isinstance(data, FileMissing):
                raise _missing(path)
            node = self.read(path) if data is None else self._keep_arrived(path, data)
            here.nodes[path] = node
            yield node

    @contextmanager
    def prefetch(self, paths: Iterable[str]) -> Iterator[None]:
        """Read ahead the nodes that this thread will read inside the block, about in this order, in a separate window.

        Inside of another such block nothing happens, and neither does where requests go out one after another.
        """
        here = self._local.here  # a generator may be closed by another thread
        if here.ahead is not None or self.storage.concurrency == 1:
            yield
            return

        def room() -> int:  # enough to keep all requests busy, if memory allows
            return max(1, min(2 * self.storage.concurrency, self._fit()))

        ahead = here.ahead = ReadAhead(self._underway, iter(paths), room, self.cache.__contains__)
        try:
            ahead.fill()
            yield
        finally:
            here.ahead = None
            here.nodes = {}
            here.files = {}
            ahead.close()

    def warm(self, root: Node, keys: Iterable[str]) -> None:
        """Read what searches for keys will read into the cache, level by level, as far as half of it has room.

        As many round trips as the tree has levels, however many keys there are.
        """
        level = [(root, sorted(set(keys)))]
        for _ in range(MAX_HEIGHT):
            below: dict[str, list[str]] = {}
            for node, wanted in level:
                for key in wanted:
                    decided, path = node.find(key)
                    if not decided and path is not None:
                        below.setdefault(path, []).append(key)
            if not below:
                return
            most = max(1, self._fit() // 2)
            paths = list(below)[:most]
            level = []
            for path, node in zip(paths, self.read_many(paths), strict=True):
                self.keep(path, node)
                level.append((node, below[path]))

    def _fit(self) -> int:
        """Return the number of nodes of the usual size that the cache has room for."""
        size = self.counts.bytes_read // max(1, self.counts.nodes_read)
        return self.cache.most_bytes // max(1, _IN_MEMORY_FACTOR * size)

    def keep(self, path: str, node: Node) -> Node:
        """Put a node into the cache and return it."""
        return self.cache.hold(path, node, node.nbytes * _IN_MEMORY_FACTOR)

    def _decode(self, path: str, data: bytes) -> Node:
        self._count(1, len(data))
        return nodefile.decode(data, path)

    def _count(self, nodes: int, size: int) -> None:
        with self._lock:
            self.counts.nodes_read += nodes
            self.counts.bytes_read += size


class WriteBehind:
    """Node files under way to the storage, the oldest first; they are cached when they are written. For one thread.

    A failure comes up at the next file that is begun, or by :meth:`finish` at the latest: the writer must call it
    before a pointer to one of the files becomes visible.
    """

    def __init__(self, store: NodeStore) -> None:
        self._store = store
        self._files: dict[str, tuple[Data, Node | None, Future[None]]] = {}
        self._bytes = 0

    def __contains__(self, path: str) -> bool:
        return path in self._files

    def __getitem__(self, path: str) -> tuple[Data, Node | None]:
        return self._files[path][:2]

    def begin(self, path: str, data: Data, node: Node | None) -> None:
        """Begin to write a file, and wait for older ones if too much is under way. Raises ``StorageError``."""
        storage = self._store.storage
        done = storage.submit(partial(storage.write, path, data), write=True)
        self._files[path] = data, node, done
        self._bytes += len(data)
        if done.done():
            done.result()  # after a failure no further one is begun
        self._finish(MOST_BYTES)

    def finish(self) -> None:
        """Wait until all files are written. Raises ``StorageError`` if one was not."""
        self._finish(most=-1)  # also files without content

    def _finish(self, most: int) -> None:
        while self._files and self._bytes > most:
            path, (data, node, done) = next(iter(self._files.items()))
            done.result()
            del self._files[path]
            self._bytes -= len(data)
            if node is not None:
                self._store.keep(path, node)


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
        self._pending: dict[str, tuple[Data, Node | None]] = {}
        self._pending_bytes = 0
        self._encoder: ThreadPoolExecutor | None = None
        self._encoding: deque[tuple[Sequence[str], Future[list[bytes]]]] = deque()
        self._shared = behind is not None
        self._behind = WriteBehind(store) if behind is None else behind

    def read(self, path: str) -> Node:
        """Return a node that was added before, or read it."""
        self._settle()
        waiting = self._behind[path] if path in self._behind else self._pending.get(path)
        if waiting is None:
            return self.store.read(path)
        data, node = waiting
        return nodefile.decode(data, path) if node is None else node

    def _holds(self, paths: Sequence[str]) -> bool:
        encoding: set[str] = set()
        for paths_of_run, _ in self._encoding:
            encoding.update(paths_of_run)
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
        if self._holds(paths):
            return None
        return self.store.read_columns(paths)

    def new_paths(self, count: int) -> list[str]:
        """Return names for new leaves."""
        return [self.store.storage.pick(node_path) for _ in range(count)]

    def add_leaves(self, leaves: Leaves, paths: Sequence[str], stamp: int, prove: Callable[[], None]) -> None:
        """Take leaves for writing, given as columns and created at ``stamp``. REQUIRES: none is empty.

        Another thread proves and encodes them, while this one goes on: Arrow and the checksums release the interpreter.
        The error of a failed proof comes up here later, or by :meth:`flush` at the latest.
        """

        def encode() -> list[bytes]:
            prove()
            return encode_many(leaves, paths, self.order, stamp)

        if self._encoder is None:
            self._encoder = ThreadPoolExecutor(1, "encode")
        self._encoding.append((paths, self._encoder.submit(encode)))
        self._settle(_ENCODING)

    def _settle(self, most: int = 0) -> None:
        """Take the oldest leaves that another thread encodes, until it has at most so many runs."""
        while len(self._encoding) > most:
            paths, coming = self._encoding.popleft()
            for path, data in zip(paths, coming.result(), strict=True):
                self._add(path, data, None)

    def _add(self, path: str, data: Data, node: Node | None) -> str:
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

    def take_back(self, path: str) -> Node | None:
        """Return a node added before and forget it, or ``None`` if it was written or is not ours."""
        if any(path in paths_of_run for paths_of_run, _ in self._encoding):
            self._settle()
        pending = self._pending.pop(path, None)
        if pending is None:
            return None
        data, node = pending
        self._pending_bytes -= len(data)
        return nodefile.decode(data, path) if node is None else node

    def flush(self) -> None:
        """Write all nodes added so far. One ``put`` each. Durable after the storage's barrier only.

        A writer with a shared ``behind`` begins to write them: they are written when that is finished.

        Raises:
            StorageError: one of them was not written; a node that points to any of them must not be committed.
            Corrupt: the proof of leaves failed.
        """
        self._settle()
        if self._encoder is not None:
            self._encoder.shutdown()
            self._encoder = None
        if self.store.storage.concurrency == 1:
            self._write_batch()
        for path in list(self._pending):
            self._begin(path)
        if not self._shared:
            self._behind.finish()

    def _write_batch(self) -> None:
        """Write all pending nodes in one call, where requests go out one after another."""
        files = self._pending
        self._pending = {}
        self._pending_bytes = 0
        self.written += files
        self.bytes_written += sum(len(data) for data, _ in files.values())
        self.store.storage.write_many([(path, data) for path, (data, _) in files.items()])
        for path, (_, node) in files.items():
            if node is not None:
                self.store.keep(path, node)


def _missing(path: str) -> CorruptNode:
    return CorruptNode(f"node file {path!r} is missing, but the tree points to it", path=path, invariant="I10")
