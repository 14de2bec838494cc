"""A load on all cores of this machine. New objects wait in temporary files (``spooled``), old ones are streamed."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import compress
from operator import eq

import numpy as np

from pipelines.job import Progress
from pipelines.loading import parts
from pipelines.loading.model import REFUSE, SKIP, Built, Counts, Tally, Target, tally_of, wrong_in
from pipelines.loading.parts import Parts, Ranges, build_all, read_all
from pipelines.loading.refusals import SHOWN, refuse_homeless, refuse_there, refuse_twice, refuse_wrong
from pipelines.loading.spooled import LOOK_BYTES, NEW, Share, Spooled, block_bytes, looked_at_first, shares_in
from pipelines.source.lines import Place, blocks
from pipelines.trees.spool import mask_of
from trinitylake_core.errors import InvalidInput
from trinitylake_core.storage import Storage
from trinitylake_core.tree.proof import Witness
from trinitylake_core.tree.search import Batch, scan
from trinitylake_core.versions import Root


class LocalLoad:
    """The state of one load."""

    def __init__(self, source: Storage, target: Target, base: Root, progress: Progress) -> None:
        self._source = source
        self._target = target
        self._base = base.node
        self._progress = progress
        self._parts = Parts.of(source, target, base)
        self._spooled = Spooled()
        self._ranges = Ranges()
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
        some = [*blocks(files, block_bytes(files, parts.BLOCK_BYTES))]
        spooled, tell = self._spooled, partial(self._progress, "read bytes")
        if (shares := shares_in(files)) > 1:
            first, some = looked_at_first(some)
            read_all(
                self._parts,
                first,
                spooled,
                tell,
                few=len(first) * LOOK_BYTES >= sum(each.end - each.begin for each in first),
            )
            spooled.cut(shares)
        read_all(self._parts, some, spooled, tell)
        self._progress("read", spooled.count, spooled.count)
        return spooled.count

    def compare(self, existing: str) -> Counts:
        """Compare with what is there, proved, and decide what to load. One ``get`` per node.

        What is to be loaded waits in ranges then. Memory: a share of it.
        """
        old, found, low = _Old(self._proved()), _Found(), ""
        for number, stop in enumerate((*self._spooled.cuts, None)):
            self._compared(self._spooled.share(number), old, found, (low, stop), skip=existing == SKIP)
            low = stop or ""
        self._spooled.close()
        if found.missing:
            refuse_homeless(self._target.codec, found.missing)
        if found.there and existing == REFUSE:
            refuse_there(self._source, self._target.codec, found.first, found.there)
        new = sum(self._ranges.new)
        if existing == SKIP:
            self.unchanged = found.old
            return Counts(new, 0, found.there)
        self.unchanged = found.old - found.replaced
        return Counts(new - found.there, found.there, 0)

    def _refuse_twice(self, share: Share) -> None:
        keys = share.keys
        if (index := next((index for index, same in enumerate(map(eq, keys, keys[1:])) if same), None)) is not None:
            places = sorted(self._spooled.place(share, each) for each in (index, index + 1))
            refuse_twice(self._source, self._target.codec, keys[index], places)

    def _compared(self, share: Share, old: _Old, found: _Found, within: tuple[str, str | None], *, skip: bool) -> None:
        """Compare a share with what is there from its first key to before that of the next, and cut it into ranges."""
        self._refuse_twice(share)
        new, homes = {key: index for index, key in enumerate(share.keys)}, share.homes
        homes.difference_update(new)
        marks, there = list[str](), set[str]()
        for keys, values in old.until(within[1]):
            marks += keys[(-1 - found.old.count) % parts.KEYS :: parts.KEYS]
            found.old += tally_of(keys, values)
            homes.difference_update(keys)
            known = [(key, path) for key, path in zip(keys, values, strict=True) if key in new]
            if known:
                there.update(key for key, _ in known)
                found.replaced += tally_of(*zip(*known, strict=True))
                told = known[: SHOWN - len(found.first)]
                found.first += [(key, self._spooled.place(share, new[key])) for key, _ in told]
        found.there += len(there)
        found.missing += sorted(homes)[: SHOWN + 1 - len(found.missing)]
        keys, rows = share.keys, share.rows.select(NEW.names)
        if skip and there:
            fresh = [key not in there for key in keys]
            rows, keys = rows.filter(mask_of(np.array(fresh))), list(compress(keys, fresh))
        self._ranges.cut(*within, keys, rows, marks)

    def build(self) -> Sequence[Built]:
        """Write the definitions, and one tree per range of keys. One ``get`` per node there, one ``put`` per file."""
        old = self.unchanged.count // len(self._ranges) + 1
        weights = [old + new for new in self._ranges.new]
        return build_all(self._parts, self._ranges, weights, partial(self._progress, "build"))

    def _proved(self) -> Iterator[Batch]:
        """Yield what the base holds, and prove that its nodes mean it."""
        witness = Witness(self._parts.store())
        witness.begin(self._base)
        return witness.watched(scan(witness, self._base))

    def release(self) -> None:
        """Forget what was read."""
        self._spooled.close()
        self._ranges.close()


@dataclass
class _Found:
    """What a comparison has found so far."""

    old: Tally = field(default_factory=Tally)
    """What is there."""
    replaced: Tally = field(default_factory=Tally)
    """What of it is among the new objects."""
    there: int = 0
    """How many new objects are there already, and the first of them."""
    first: list[tuple[str, Place]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    """The first namespaces that are neither there nor new."""


class _Old:
    """What is there, in batches that end where a share does."""

    def __init__(self, batches: Iterator[Batch]) -> None:
        self._batches = batches
        self._left: Batch = ([], [])

    def until(self, stop: str | None) -> Iterator[Batch]:
        """Yield what comes before a key; all that is left without one."""
        while True:
            following = self._left if self._left[0] else next(self._batches, None)
            if following is None:
                return
            keys, values = following
            end = len(keys) if stop is None else bisect_left(keys, stop)
            self._left = keys[end:], values[end:]
            if end:
                yield keys[:end], values[:end]
            if self._left[0]:
                return
