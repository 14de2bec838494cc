"""What versions mean, proved: every table and view has its namespace (I12), every definition parses (I15).

One version is scanned as a whole, in pieces by key range. Every later one is compared with the one before it:
what did not change was proved there. So the cost of many versions is that of one and of what changed since.
A version that cannot be compared, because nodes are damaged, is scanned itself; what cannot be read is skipped,
its damage is told elsewhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from pipelines.integrity.findings import DEFINITIONS, DEFINITIONS_PROVED, counted
from trinitylake_core import diff, tree
from trinitylake_core.catalog import codec_of
from trinitylake_core.check import Violation, check_definitions, violation
from trinitylake_core.errors import Corrupt, InvalidLocation, InvalidName
from trinitylake_core.keys import NAMESPACE, TABLE, VIEW, KeyCodec, KeyRange
from trinitylake_core.locations import validate_path
from trinitylake_core.nodestore import NodeStore
from trinitylake_core.storage import Storage
from trinitylake_core.versions import Root, Versions

_TOGETHER: Final = 256
_LAST: Final = "\U0010ffff"


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the work: a version compared with the one ``before``, or a range of keys of it scanned."""

    version: int
    before: int | None = None
    lo: str = ""
    hi: str = _LAST


def pieces(versions: Sequence[int], oldest: Root | None) -> list[Piece]:
    """Return the work for consecutive versions; the oldest is cut at the pivots of its root."""
    if not versions:
        return []
    cuts = ["", *(oldest.node.keys if oldest is not None else ()), _LAST]
    first = [Piece(versions[0], None, lo, hi) for lo, hi in pairwise(cuts)]
    return first + [Piece(two, one) for one, two in pairwise(versions)]


class Contents:
    """Proves pieces, reading nodes through one cache."""

    def __init__(self, storage: Storage, order: int, target_bytes: int, *, definitions: bool, namespaces: bool) -> None:
        self._storage = storage
        self._versions = Versions(storage)
        self._store = NodeStore(storage, order, target_bytes)
        self._definitions = definitions
        self._namespaces = namespaces
        self._sums: Counter[str] = Counter()

    def prove(self, piece: Piece) -> Iterator[Violation]:
        """Yield what is wrong, and how many definitions were read and proved by a checksum of their own.

        Reads the nodes of the range, or those that differ, and definitions if wanted.
        """
        self._sums.clear()
        yield from self._proved(piece)
        for what, number in self._sums.items():
            yield counted(what, number)

    def _proved(self, piece: Piece) -> Iterator[Violation]:
        try:
            found = list(self._compared(piece) if piece.before is not None else self._scanned(piece))
        except (Corrupt, InvalidName):
            if piece.before is None:
                return
            self._sums.clear()
            try:
                found = list(self._scanned(Piece(piece.version)))
            except (Corrupt, InvalidName):
                return
        yield from found

    def _root(self, version: int) -> tuple[Root, KeyCodec] | None:
        root = self._versions.try_root(version)
        return None if root is None else (root, codec_of(self._versions.definition(root)))

    def _scanned(self, piece: Piece) -> Iterator[Violation]:
        found = self._root(piece.version)
        if found is None:
            return
        root, codec = found
        homes: dict[str, bool] = {}
        for keys, values in tree.scan(self._store, root.node, KeyRange(piece.lo, piece.hi)):
            inside = [(key, value) for key, value in zip(keys, values, strict=True) if key < piece.hi]
            for key, _ in inside:
                kind, namespace, name = codec.split(key)
                if kind != NAMESPACE and namespace not in homes:
                    homes[namespace] = tree.search(self._store, root.node, codec.namespace(namespace)) is not None
                if kind != NAMESPACE and not homes[namespace]:
                    yield from self._homeless(root, kind, f"{namespace}.{name}")
            yield from self._parsed(codec, inside)

    def _compared(self, piece: Piece) -> Iterator[Violation]:
        old, new = self._root(piece.before or 0), self._root(piece.version)
        if new is None:
            return
        if old is None or old[1] != new[1]:
            yield from self._scanned(Piece(piece.version))
            return
        root, codec = new
        changed: list[tuple[str, str]] = []
        for key, _, value in diff.diff_nodes(self._store, old[0].node, self._store, root.node):
            kind, namespace, name = codec.split(key)
            if value is None and kind == NAMESPACE:
                yield from self._left_behind(root, codec, namespace)
            if value is not None:
                changed.append((key, value))
                gone = kind != NAMESPACE and tree.search(self._store, root.node, codec.namespace(namespace)) is None
                yield from self._homeless(root, kind, f"{namespace}.{name}") if gone else ()
        yield from self._parsed(codec, changed)

    def _left_behind(self, root: Root, codec: KeyCodec, namespace: str) -> Iterator[Violation]:
        for kind in (TABLE, VIEW):
            for keys, _ in tree.scan(self._store, root.node, codec.range(kind, namespace)):
                for key in keys:
                    yield from self._homeless(root, kind, f"{namespace}.{codec.split(key)[2]}")

    def _homeless(self, root: Root, kind: str, name: str) -> Iterator[Violation]:
        if self._namespaces:
            yield violation("I12", root.path, f"{kind} {name!r} lies in a namespace that does not exist")

    def _parsed(self, codec: KeyCodec, rows: Sequence[tuple[str, str]]) -> Iterator[Violation]:
        """Yield what is wrong with the definitions of objects. One ``get`` each, in parallel."""
        for start in range(0, len(rows) if self._definitions else 0, _TOGETHER):
            named = []
            for key, path in rows[start : start + _TOGETHER]:
                kind, namespace, name = codec.split(key)
                try:
                    named.append((kind, namespace if name is None else f"{namespace}.{name}", validate_path(path)))
                except InvalidLocation:  # I11, told by the walk
                    continue
            yield from check_definitions(self._storage, named, self._proved_by_checksum)
            self._sums[DEFINITIONS] += len(named)

    def _proved_by_checksum(self, _: str) -> None:
        self._sums[DEFINITIONS_PROVED] += 1
