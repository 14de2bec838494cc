"""Flushing subtrees on all cores of this machine, without Spark: in this process and its helpers (``processes``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any, Final

from pipelines.processes import Answer, Enough, Helper, Work, cores, never, shared
from pipelines.trees.dealt import flushed_here
from pipelines.trees.subtrees import Flush, flush_subtrees, subtree_row
from trinitylake_core.storage import Storage, open_storage
from trinitylake_core.tree.nodestore import NodeStore
from trinitylake_core.tree.subtree import Ref
from trinitylake_core.tree.writebehind import WriteBehind

__all__ = ["Row", "cores", "flush_here", "flusher"]
_CACHE_BYTES: Final = 32 << 20
_AT_ONCE: Final = 4
"""Subtrees that a helper is given at once where it reads ahead: it waits for the first reads and the last writes."""

Row = Mapping[str, Any]


def flush_here(
    store: NodeStore,
    frontier: list[Ref],
    stamp: int,
    progress: Callable[[str, int, int | None], None],
    enough: Enough = never,
) -> tuple[list[Row], list[int]]:
    """Flush subtrees in this process and, where that pays, in one more per core.

    Return the results in order, and the subtrees that were left where it was ``enough`` (:func:`processes.shared`).
    Memory: one subtree's path and its cache per process.

    Raises:
        Corrupt, StorageError: of the first subtree that failed; nothing of the others is of use then.
    """
    work = _Work(store, frontier, stamp)
    rows = shared(work, cores(), lambda: progress("flush subtrees", work.done, len(frontier)), enough)
    return rows, work.left


class _Work(Work[Row]):
    """Subtrees to flush."""

    def __init__(self, store: NodeStore, frontier: list[Ref], stamp: int) -> None:
        super().__init__([ref.weight() for ref in frontier], 1 if store.storage.concurrency == 1 else _AT_ONCE)
        self.store = store
        self.stamp = stamp
        self._frontier = frontier

    def here(self) -> Iterator[tuple[int, Row]]:
        """Flush subtrees in this process."""
        return flushed_here(self)

    def message(self, index: int) -> Row:
        """Return a subtree as what is sent to a worker."""
        return subtree_row(index, self._frontier[index], self.store.order)

    def flush(self, index: int, behind: WriteBehind) -> Flush:
        """Return the flush of a subtree in this process.

        It works on a copy of the reference: what it opens goes away with it, and not with the last subtree of all.
        """
        return Flush(self.store, copy(self._frontier[index]), self.stamp, behind)

    def helper(self) -> Helper:
        """Start a process that flushes subtrees."""
        root, options = self.store.storage.spec()
        return Helper(flusher, root, dict(options), self.store.order, self.store.target_bytes, self.stamp)


def flusher(root: str, options: Mapping[str, Any], order: int, target_bytes: int, stamp: int) -> Answer:
    """Return the function by which a helper flushes subtrees below a root."""
    return partial(_flushed, open_storage(root, options), order, target_bytes, stamp)


def _flushed(
    storage: Storage, order: int, target_bytes: int, stamp: int, rows: Sequence[Row] | None
) -> list[Row] | None:
    if rows is None:
        storage.barrier()
        return None
    return [*flush_subtrees(NodeStore(storage, order, target_bytes, _CACHE_BYTES), rows, stamp)]
