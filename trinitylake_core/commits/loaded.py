"""A bulk load as a change: what is new beside what is there (format, section 6)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, zip_longest
from typing import Any

from trinitylake_core import spec
from trinitylake_core.catalog import codec_of, object_counts
from trinitylake_core.commits.changes import CompactionChange
from trinitylake_core.commits.files import LakehouseStore
from trinitylake_core.errors import CommitConflict
from trinitylake_core.keys import NAMESPACE, TABLE, VIEW, KeyCodec, KeyRange
from trinitylake_core.tree.node import Node
from trinitylake_core.tree.search import lookup, scan
from trinitylake_core.versions import Delta, ObjectCounts, Root


class LoadChange(CompactionChange):
    """A root of a new tree: what version ``base`` says, and what was loaded. Nothing is deleted by it.

    Commits of others stay, if they touch nothing that the load wrote, and drop no namespace that it filled.
    """

    operation = spec.OP_LOAD
    again = "load again"

    def __init__(self, files: LakehouseStore, base: Root, node: Node, summary: dict[str, Any]) -> None:
        """Take the tree of a load. Two ``get`` per level at the most, to count what it holds."""
        super().__init__(node, summary, object_counts(files.store, node, codec_of(files.definition(base))))
        self._files = files
        self._before = base.node
        self._gained = None if self._counts is None else self._counts.less(base.counts)

    def _counted(self, base: Root) -> ObjectCounts | None:
        """Return the object counts: those of other commits since, and the objects that the load added."""
        if not self._is_rebased:
            return self._counts
        return None if self._gained is None else self._gained.plus(base.counts)

    def rebase(self, base: Root, newer: Sequence[Delta]) -> None:
        """Take over the messages of newer versions. About one ``get`` per level and changed key, twice.

        Raises:
            CommitConflict: one of them touches what was loaded.
            Corrupt: the version below the load has expired, and a cleaning removed its nodes; or they are damaged.
        """
        super().rebase(base, newer)
        codec = codec_of(self._files.definition(base))
        for root in newer:
            own = root.own_messages()
            touched = [key for key, value in zip(own.keys, own.values, strict=True) if self._loaded(codec, key, value)]
            if touched:
                named = ", ".join(str(codec.decode(key)) for key in touched[:5])
                raise CommitConflict(
                    f"version {root.version} changed {named}, which this load wrote or depends on; {self.again}",
                    keys=touched,
                    version=root.version,
                )

    def _loaded(self, codec: KeyCodec, key: str, value: str | None) -> bool:
        before, after = (lookup(self._files.store, node, key) for node in (self._before, self._node))
        name = codec.decode(key)
        return before != after or (value is None and name.kind == NAMESPACE and self._filled(codec, name.namespace))

    def _filled(self, codec: KeyCodec, namespace: str) -> bool:
        """Return whether the load put anything into a namespace. One ``get`` per node of it, twice."""
        for kind in (TABLE, VIEW):
            within = codec.range(kind, namespace)
            before, after = (chain.from_iterable(self._values(node, within)) for node in (self._before, self._node))
            if any(one != two for one, two in zip_longest(before, after)):
                return True
        return False

    def _values(self, node: Node, within: KeyRange) -> Iterator[list[str]]:
        return (values for _, values in scan(self._files.store, node, within))
