"""Subtrees that this process flushes one after another, dealt to it as others take some, too.

While one is flushed the next ones are taken and read; where requests go out one after another, none is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, Protocol

from pipelines.trees.subtrees import Flush
from trinitylake_core.tree.node import Node
from trinitylake_core.tree.nodestore import NodeStore
from trinitylake_core.tree.writebehind import WriteBehind

_TAKEN: Final = 2
"""Subtrees that are taken at once where they are read ahead; another two are at work."""


class Work(Protocol):
    """Subtrees to flush, of which others take some."""

    store: NodeStore

    def next(self) -> int | None:
        """Return a subtree that no worker has, ``None`` when there is none."""

    def flush(self, index: int, behind: WriteBehind) -> Flush:
        """Return the flush of a subtree."""


def flushed_here(work: Work) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Flush subtrees until there are none left; yield what each became, as a row. In the end all is written.

    What was read, the store of ``work`` counts itself: it is not in the rows.
    """
    return _Dealt(work).rows()


class _Dealt:
    """What was taken and is not flushed yet."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._behind = work.store.write_behind()
        self._taken: deque[tuple[int, Flush]] = deque()

    def rows(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """See :func:`flushed_here`."""
        with self._work.store.prefetch(self._leaf_paths_ahead()):
            while self._taken or self._take(1):
                index, flush = self._taken.popleft()
                yield index, {**flush.run(), "nodes_read": 0, "bytes_read": 0}
        self._behind.finish()

    def _leaf_paths_ahead(self) -> Iterator[str]:
        """Yield the leaves that will be read, while the topmost nodes of the next subtrees are being read."""
        following = self._begun()
        while some := following:
            following = self._begun()
            for flush, node in some:
                if flush.begun:
                    continue
                if node is not None:
                    flush.open(node.result())
                yield from flush.leaf_paths_ahead()

    def _begun(self) -> list[tuple[Flush, Future[Node] | None]]:
        store = self._work.store
        return [
            (flush, store.storage.submit(partial(store.read, flush.ref.path or "")) if flush.ref.height else None)
            for flush in self._take(_TAKEN)
        ]

    def _take(self, most: int) -> list[Flush]:
        """Take some subtrees that no worker has."""
        taken: list[Flush] = []
        while len(taken) < most and (index := self._work.next()) is not None:
            taken.append(self._work.flush(index, self._behind))
            self._taken.append((index, taken[-1]))
        return taken
