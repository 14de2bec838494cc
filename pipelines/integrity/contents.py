"""What changes from one version to the next means: it is proved as the oldest version is (see ``meaning``).

What did not change was proved in the version before, so the cost of many versions is that of one and of what changed
since. A version that cannot be compared, because nodes are damaged, is scanned itself; what cannot be read is skipped:
its damage is a finding of the walk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Final

from pipelines.integrity.findings import counted
from pipelines.integrity.version_content import GatheredContent, proved_definitions
from trinitylake_core.catalog import codec_of
from trinitylake_core.check import (
    Named,
    Violation,
    miscounted,
    objects_without_namespace,
    without_namespace,
)
from trinitylake_core.diff import diff_nodes
from trinitylake_core.errors import Corrupt, InvalidLocation, InvalidName
from trinitylake_core.keys import KINDS, NAMESPACE, KeyCodec, label
from trinitylake_core.locations import validate_path
from trinitylake_core.tree import search
from trinitylake_core.tree.nodestore import NodeStore
from trinitylake_core.versions import ObjectCounts, Root, Versions

_TOGETHER: Final = 4096
"""Rows that are held before their definitions are read."""


class Contents:
    """Proves versions against the ones before, reading nodes through one cache. Thread-safe."""

    def __init__(
        self, versions: Versions, order: int, target_bytes: int, *, definitions: bool, tables: float | None = None
    ) -> None:
        self._storage = versions.storage
        self._versions = versions
        self._store = NodeStore(versions.storage, order, target_bytes)
        self._definitions = definitions
        self._tables = tables

    def prove(self, before: int, version: int) -> Iterator[Violation]:
        """Yield what is wrong with what changed, and how many definitions were read and proved by a checksum.

        Reads the nodes that differ, and definitions if wanted.
        """
        for attempt in (self._compared, self._scanned):
            counts: Counter[str] = Counter()
            try:
                found = list(attempt(before, version, counts))
            except (Corrupt, InvalidName):
                continue
            yield from found
            yield from (counted(what, number) for what, number in counts.items())
            return

    def _root(self, version: int) -> tuple[Root, KeyCodec] | None:
        root = self._versions.try_root(version)
        return None if root is None else (root, codec_of(self._versions.definition(root)))

    def _scanned(self, _: int, version: int, counts: Counter[str]) -> Iterator[Violation]:
        found = self._root(version)
        if found is not None:
            root, codec = found
            rows = (row for batch in search.scan(self._store, root.node) for row in zip(*batch, strict=True))
            meaning = GatheredContent(
                codec,
                version=version,
                read_definitions=self._definitions,
                root=root,
                tables=self._tables,
                counts=counts,
            )
            yield from meaning.prove(self._storage, rows)
            yield from meaning.wrong(self._storage, self._store)

    def _compared(self, before: int, version: int, counts: Counter[str]) -> Iterator[Violation]:
        old, new = self._root(before), self._root(version)
        if new is None:
            return
        if old is None or old[1] != new[1]:
            yield from self._scanned(before, version, counts)
            return
        root, codec = new
        if old[0].counts is None and root.counts is not None:  # only a count of everything can prove it
            yield from self._scanned(before, version, counts)
            return
        changed: list[tuple[str, str]] = []
        gained: Counter[str] = Counter()
        for key, gone, value in diff_nodes(self._store, old[0].node, self._store, root.node):
            gained[codec.split(key)[0]] += (value is not None) - (gone is not None)
            if value is not None:
                changed.append((key, value))
            elif codec.split(key)[0] == NAMESPACE:
                yield from objects_without_namespace(self._store, root, codec, codec.split(key)[1])
        now = ObjectCounts(*(gained[kind] for kind in KINDS)).plus(old[0].counts)
        yield from () if now is None else miscounted(root, now)
        yield from self._proved(root, codec, changed, counts)

    def _proved(
        self, root: Root, codec: KeyCodec, rows: Iterable[tuple[str, str]], counts: Counter[str]
    ) -> Iterator[Violation]:
        """Yield objects without a namespace, and what is wrong with definitions."""
        homes: dict[str, bool] = {}
        remaining = iter(rows)
        while part := list(islice(remaining, _TOGETHER)):
            for key, _ in part:
                kind, namespace, _ = codec.split(key)
                if kind != NAMESPACE and namespace not in homes:
                    homes[namespace] = search.lookup(self._store, root.node, codec.namespace(namespace)) is not None
                if kind != NAMESPACE and not homes[namespace]:
                    yield without_namespace(root.path, codec, key)
            if self._definitions:
                yield from proved_definitions(self._storage, _named(codec, part), counts, self._tables)


def _named(codec: KeyCodec, rows: Iterable[tuple[str, str]]) -> Iterator[Named]:
    for key, path in rows:
        kind, namespace, name = codec.split(key)
        with suppress(InvalidLocation):  # I11, a finding of the walk
            yield kind, label(namespace, name), validate_path(path)
