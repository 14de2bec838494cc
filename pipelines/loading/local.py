"""A load on all cores of this machine: new objects are held in memory, existing ones are streamed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from pipelines.job import Progress
from pipelines.loading import parts
from pipelines.loading.model import REFUSE, SKIP, Built, Counts, Tally, Target, tally_of, wrong_in
from pipelines.loading.parts import Parts, build_all, ranges_of, read_all
from pipelines.loading.refusals import refuse_homeless, refuse_there, refuse_twice, refuse_wrong
from pipelines.source.lines import Place, blocks
from trinitylake_core.errors import InvalidInput
from trinitylake_core.storage import Storage
from trinitylake_core.tree.proof import Witness
from trinitylake_core.tree.search import Batch, scan
from trinitylake_core.versions import Root

_Given = tuple[bytes, str, int]
"""A definition, and where it is written: file and offset."""


class LocalLoad:
    """The state of one load."""

    def __init__(self, source: Storage, target: Target, base: Root, progress: Progress) -> None:
        self._source = source
        self._target = target
        self._base = base.node
        self._progress = progress
        self._parts = Parts.of(source, target, base)
        self._new: dict[str, _Given] = {}
        self._homes: set[str] = set()
        self._marks: list[str] = []
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
        new, some = self._new, [*blocks(files, parts.BLOCK_BYTES)]
        for lines in read_all(self._parts, some, partial(self._progress, "read", 0, None)):
            self._homes |= lines.homes
            for key, data, offset in zip(lines.keys, lines.data, lines.offsets, strict=True):
                each = (data, lines.file, offset)
                known = new.setdefault(key, each)
                if known is not each:
                    refuse_twice(self._source, self._target.codec, key, (_place(known), _place(each)))
        self._progress("read", len(new), len(new))
        return len(new)

    def compare(self, existing: str) -> Counts:
        """Compare with what is there, proved, and decide what to load. One ``get`` per node."""
        new = self._new
        homes = self._homes - new.keys()
        there: list[tuple[str, Place]] = []
        old = replaced = Tally()
        for keys, values in self._proved():
            self._marks += keys[(-1 - old.count) % parts.KEYS :: parts.KEYS]
            old += tally_of(keys, values)
            homes.difference_update(keys)
            known = [(key, path) for key, path in zip(keys, values, strict=True) if key in new]
            there += [(key, _place(new[key])) for key, _ in known]
            replaced += tally_of(*zip(*known, strict=True)) if known else Tally()
        if homes:
            refuse_homeless(self._target.codec, sorted(homes))
        if there and existing == REFUSE:
            refuse_there(self._source, self._target.codec, there, len(there))
        if existing == SKIP:
            for key, _ in there:
                del new[key]
            self.unchanged = old
            return Counts(len(new), 0, len(there))
        self.unchanged = old - replaced
        return Counts(len(new) - len(there), len(there), 0)

    def build(self) -> Sequence[Built]:
        """Write the definitions, and one tree per range of keys. One ``get`` per node there, one ``put`` per file."""
        ranges = ranges_of([(key, self._new[key][0]) for key in sorted(self._new)], self._marks)
        old = self.unchanged.count // len(ranges) + 1
        weights = [old + len(each.new) for each in ranges]
        return build_all(self._parts, ranges, weights, partial(self._progress, "build", 0, None))

    def _proved(self) -> Iterator[Batch]:
        """Yield what the base holds, and prove that its nodes mean it."""
        witness = Witness(self._parts.store())
        witness.begin(self._base)
        return witness.watched(scan(witness, self._base))

    def release(self) -> None:
        """Forget what was read."""
        self._new.clear()


def _place(given: _Given) -> Place:
    return Place(given[1], given[2])
