"""A load in this process: new objects are held in memory, existing ones are streamed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import merge

from pipelines.job import Progress
from pipelines.loading.model import (
    REFUSE,
    SKIP,
    Built,
    Counts,
    New,
    Row,
    Tally,
    Target,
    objects_in,
    packed,
    tally_of,
    wrong_in,
)
from pipelines.loading.refusals import refuse_homeless, refuse_there, refuse_twice, refuse_wrong
from pipelines.source.lines import Place, blocks
from trinitylake_core.errors import InvalidInput
from trinitylake_core.storage import Storage
from trinitylake_core.tree.node import Node
from trinitylake_core.tree.nodestore import NodeStore
from trinitylake_core.tree.proof import Witness
from trinitylake_core.tree.search import Batch, scan


class LocalLoad:
    """The state of one load."""

    def __init__(self, source: Storage, target: Target, base: Node, progress: Progress) -> None:
        self._source = source
        self._target = target
        self._base = base
        self._progress = progress
        self._new: dict[str, New] = {}
        self.unchanged = Tally()
        """What the new tree must keep of the old one, once they were compared."""

    def read(self, files: Sequence[tuple[str, int]]) -> int:
        """Read all objects in files, given by name and size; return how many there are."""
        try:
            return self._read(files)
        except InvalidInput:
            found = [wrong_in(self._source, block, self._target.codec) for block in blocks(files)]
            refuse_wrong(self._source, sum(count for count, _ in found), [each for _, some in found for each in some])
            raise

    def _read(self, files: Sequence[tuple[str, int]]) -> int:
        for done, block in enumerate(blocks(files)):
            self._progress("read", done, None)
            for each in objects_in(self._source, block, self._target.codec):
                known = self._new.setdefault(each.key, each)
                if known is not each:
                    refuse_twice(self._source, self._target.codec, each.key, (known.place, each.place))
        return len(self._new)

    def compare(self, existing: str) -> Counts:
        """Compare with what is there, proved, and decide what to load. One ``get`` per node."""
        homes = {each.home for each in self._new.values() if each.home is not None} - self._new.keys()
        there: list[tuple[str, Place]] = []
        old = replaced = Tally()
        for keys, values in self._proved():
            old += tally_of(keys, values)
            homes.difference_update(keys)
            known = [(key, path) for key, path in zip(keys, values, strict=True) if key in self._new]
            there += [(key, self._new[key].place) for key, _ in known]
            replaced += tally_of(*zip(*known, strict=True)) if known else Tally()
        if homes:
            refuse_homeless(self._target.codec, sorted(homes))
        if there and existing == REFUSE:
            refuse_there(self._source, self._target.codec, there, len(there))
        if existing == SKIP:
            for key, _ in there:
                del self._new[key]
            self.unchanged = old
            return Counts(len(self._new), 0, len(there))
        self.unchanged = old - replaced
        return Counts(len(self._new) - len(there), len(there), 0)

    def build(self) -> Sequence[Built]:
        """Write the definitions and one tree. One ``get`` per node that is there, one ``put`` per file."""
        new = (Row(key, None, self._new[key].data) for key in sorted(self._new))
        old = (Row(key, path, None) for key, path in self._old() if key not in self._new)
        self._progress("build", 0, None)
        built = packed(self._target, merge(new, old, key=lambda row: row.key))
        return [] if built is None else [built]

    def _old(self) -> Iterator[tuple[str, str]]:
        store = NodeStore(self._target.storage, self._target.order, self._target.target_bytes)
        for keys, values in scan(store, self._base):
            yield from zip(keys, values, strict=True)

    def _proved(self) -> Iterator[Batch]:
        """Yield what the base holds, and prove that its nodes mean it."""
        witness = Witness(NodeStore(self._target.storage, self._target.order, self._target.target_bytes))
        witness.begin(self._base)
        return witness.watched(scan(witness, self._base))

    def release(self) -> None:
        """Forget what was read."""
        self._new.clear()
