"""What a large transaction changed: its root does not contain that (format, "Large transactions")."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from trinitylake_core.diff import EVERYWHERE, Span, diff_nodes
from trinitylake_core.errors import CommitConflict, Corrupt, NotFound
from trinitylake_core.tree.node import Meaning, Messages, Node
from trinitylake_core.tree.nodestore import NodeStore
from trinitylake_core.tree.search import lookup_many
from trinitylake_core.versions import Delta, Versions


class ChangesUnreadable(CommitConflict):
    """What a version changed cannot be read any more: it may be anything, also what a transaction depends on."""


@dataclass(frozen=True, slots=True)
class BulkDelta(Delta):
    """A version that is asked what it changed: its tree and the one before are compared, as far as that is asked.

    Its changes are not kept, however many there are; its two roots are, from the first question on (two ``get`` each).
    All methods raise ``ChangesUnreadable``.
    """

    nodes: NodeStore = field(repr=False)
    versions: Versions = field(repr=False)
    _roots: list[Node] = field(default_factory=list, repr=False)

    def own_messages(self) -> Messages:
        """Return all that it changed, in memory. One ``get`` for each node that differs."""
        return Messages.of((key, value, self.txn or "") for key, value in self.changes())

    def changes(self, span: Span = EVERYWHERE) -> Iterator[Meaning]:
        """Yield each key of a span whose meaning it changed, with the new one. One ``get`` for each node that differs.

        What it wrote without changing it is not among them.
        """
        with self._refuse_unreadable():
            before, after = self._read_roots()
            for key, _, value in diff_nodes(self.nodes, before, self.nodes, after, span):
                yield key, value

    def changes_of(self, keys: Sequence[str]) -> Iterator[Meaning]:
        """Yield those of some ascending keys that it changed, with the new meaning. Twice what ``values_of`` costs."""
        with self._refuse_unreadable():
            before = lookup_many(self.nodes, self._read_roots()[0], keys)
            after = self.values_of(keys)
        for key in keys:
            if before.get(key) != after.get(key):
                yield key, after.get(key)

    def values_of(self, keys: Sequence[str]) -> dict[str, str]:
        """Return what those of some ascending keys mean that it has. One ``get`` for each node on their ways."""
        with self._refuse_unreadable():
            return lookup_many(self.nodes, self._read_roots()[1], keys)

    def _read_roots(self) -> list[Node]:
        if not self._roots:
            for version in (self.version - 1, self.version):
                self._roots.append(self.versions.root(version).node)
        return self._roots

    @contextmanager
    def _refuse_unreadable(self) -> Iterator[None]:
        try:
            yield
        except (Corrupt, NotFound) as error:
            raise ChangesUnreadable(
                f"version {self.version} changed many objects, and what they were cannot be read any more ({error}); "
                "read again and retry the transaction",
                version=self.version,
            ) from error


def with_all_changes(deltas: Iterable[Delta], nodes: NodeStore, versions: Versions) -> list[Delta]:
    """Return versions of which each can be asked for all that it changed. No request."""
    found: list[Delta] = []
    for delta in deltas:
        if delta.is_bulk:
            found.append(BulkDelta(delta.version, delta.path, delta.rows, delta.messages, nodes, versions))
        else:
            found.append(delta)
    return found
