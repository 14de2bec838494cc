"""List, mark, minus and act in this process: columns in memory, and beyond a limit in temporary files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from heapq import nsmallest
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from pipelines.files.deletion import Deleted, delete
from pipelines.files.listing import (
    BATCH,
    TRANSACTION,
    Listed,
    Wanted,
    everything,
    inventory_files,
    list_shards,
    maybe_transaction,
    read_inventory,
    shards,
)
from pipelines.job import Progress
from pipelines.sweep import columns
from pipelines.sweep.columns import FILES, Marked, Marks
from pipelines.sweep.model import SHOWN, Alone, Size, Sizes, Totals, UnknownFiles
from pipelines.trees.spool import HASH, Spool, mask_of, numbers, parts
from pipelines.trees.walk import Start, TreeSource, walk_local
from trinitylake_core.storage import Storage


class LocalSweep:
    """The state of one sweep: what is listed, what is live, and what is neither.

    Memory does not grow with the lakehouse, but for the names of nodes and of saved transactions.
    """

    def __init__(self, storage: Storage, order: int, progress: Progress) -> None:
        self._storage = storage
        self._trees = TreeSource(storage, order, figures=False)
        self._progress = progress
        self._files = Spool(FILES)
        self._transactions: dict[str, Listed] = {}
        self._marks = Marks()
        self._nodes: set[str] = set()
        self._orphans = Spool(FILES)
        self.unknown = UnknownFiles()
        self.nodes_read = 0

    # -- list ----------------------------------------------------------------------------------------

    def list_files(self, inventory: str | None, options: Mapping[str, Any]) -> Size:
        """List everything, or read an inventory; return how much there is."""
        files = self._inventory(inventory, options) if inventory is not None else self._listing()
        self._files = self._spooled(files, "list")
        total, unknown, some = Size(), Size(), list[str]()
        for (part,) in parts(self._files):
            total.add(columns.size_of(part))
            foreign = part.filter(mask_of(columns.is_unknown(part)))
            unknown.add(columns.size_of(foreign))
            some = nsmallest(SHOWN, [*some, *foreign.column("path").to_pylist()])
            saved = part.filter(mask_of(columns.is_kind(part, TRANSACTION)))
            self._transactions.update((file.path, file) for file in columns.listed_in(saved))
        self.unknown = UnknownFiles(unknown.files, unknown.bytes, self.unknown.directories, tuple(some))
        return total

    def _spooled(self, files: Iterator[Listed], phase: str | None = None) -> Spool:
        """Return files as columns, each once."""
        found = Spool(FILES)
        while batch := list(islice(files, BATCH)):
            found.add(columns.batch_of(batch))
            if phase is not None and len(batch) == BATCH:
                self._progress(phase, found.rows, None)
        if all(columns.once(part) is part for (part,) in parts(found)):
            return found
        again = Spool(FILES)
        for (part,) in parts(found):
            again.add(*columns.once(part).to_batches())
        found.close()
        return again

    def _listing(self, wanted: Wanted = everything) -> Iterator[Listed]:
        found = shards(self._storage)
        self.unknown.directories = tuple(sorted(found.unknown)[:SHOWN])
        yield from found.files
        yield from list_shards(self._storage, found.prefixes, wanted)

    def _inventory(self, uri: str, options: Mapping[str, Any]) -> Iterator[Listed]:
        for each in inventory_files(uri, options):
            yield from read_inventory(each, options, self._storage.root)

    def list_transactions(self) -> None:
        """List everything again, and take from it the saved transactions there are now."""
        some = self._listing(maybe_transaction)
        self._transactions = {file.path: file for file in some if file.kind == TRANSACTION}

    def transactions(self) -> list[tuple[str, int]]:
        """Return the saved transactions that were listed last, with their age."""
        return [(each.path, each.modified_millis or 0) for each in self._transactions.values()]

    # -- mark ----------------------------------------------------------------------------------------

    def mark(self, starts: Sequence[Start], paths: AbstractSet[str], *, afresh: bool = False) -> None:
        """Mark what roots reach, and ``paths``; what is marked already is not read again, unless ``afresh``.

        A node counts as read when everything below it was read, too: a walk that failed begins again at its roots.
        """
        if afresh:
            self._marks.close()
            self._marks, self._nodes = Marks(), set()
        read: list[str] = []
        try:
            self._marks.add(list(paths), -1, -1)
            for row in walk_local(self._trees, starts, self._nodes):
                self.nodes_read += 1
                self._progress("mark", self.nodes_read, None)
                read.append(row["path"])
                self._marks.add([row["path"], *row["files"]], row["first"], row["last"])
        finally:
            self._marks.flush()
        self._nodes.update(read)

    # -- minus ---------------------------------------------------------------------------------------

    def _beside_marks(self, files: Spool) -> Iterator[tuple[pa.Table, Marked]]:
        """Yield files part by part, and what is marked in each part."""
        for part, marks in parts(files, self._marks.spool):
            yield part, columns.marked(marks)

    def subtract(self, boundary: int, cutoff_millis: int) -> Totals:
        """Keep as orphans what is listed, old enough, of a name that may go, and not live; return their totals."""
        young, unknown = Size(), Size()
        orphans = Spool(FILES)
        for part, marks in self._beside_marks(self._files):
            unreached = part.filter(mask_of(columns.may_go(part, boundary) & ~marks.has(part)))
            ages = numbers(unreached, "modified_millis")
            aged, old = ages != columns.NO_AGE, ages < cutoff_millis
            unknown.add(columns.size_of(unreached, ~aged))
            young.add(columns.size_of(unreached, aged & ~old))
            orphans.add(*unreached.filter(mask_of(aged & old)).to_batches())
        return Totals(self._take(orphans), young, unknown)

    def _take(self, orphans: Spool) -> dict[str, Size]:
        """Take other orphans in the place of those there were; return their number and bytes by kind."""
        self._orphans.close()
        self._orphans = orphans
        found: dict[str, Size] = {}
        for (part,) in parts(orphans):
            for kind, size in columns.by_kind(part).items():
                found.setdefault(kind, Size()).add(size)
        return dict(sorted(found.items()))

    def subtract_again(self) -> Totals:
        """Take what has been marked since off the orphans."""
        left = Spool(FILES)
        for part, marks in self._beside_marks(self._orphans):
            left.add(*part.filter(mask_of(~marks.has(part))).to_batches())
        return Totals(self._take(left))

    def orphans(self) -> Iterator[Listed]:
        """Yield the orphans."""
        for (part,) in parts(self._orphans):
            yield from columns.listed_in(part)

    # -- plans ---------------------------------------------------------------------------------------

    def load(self, files: Iterable[Listed]) -> None:
        """Take the orphans of a plan."""
        self._take(self._spooled(iter(files)))

    def reached(self) -> list[str]:
        """Return some orphans that are live."""
        found: list[str] = []
        for part, marks in self._beside_marks(self._orphans):
            found += part.filter(mask_of(marks.has(part))).column("path").slice(0, SHOWN).to_pylist()
        return found[:SHOWN]

    def agree(self, cutoff_millis: int) -> tuple[Totals, int]:
        """Keep of the plan what is still listed and old enough; return its totals, and how many files are gone."""
        left, gone = Spool(FILES), 0
        for planned, files, rows in parts(self._orphans, self._files, self._marks.spool):
            wanted = planned.filter(mask_of(~columns.marked(rows).has(planned)))
            there = mask_of(np.isin(numbers(files, HASH), numbers(wanted, HASH)))
            known = {file.path: file for file in columns.listed_in(files.filter(there))}
            found = [known[path] for path in wanted.column("path").to_pylist() if path in known]
            gone += len(wanted) - len(found)
            left.add(columns.batch_of([file for file in found if (file.modified_millis or 0) < cutoff_millis]))
        return Totals(self._take(left)), gone

    # -- act -----------------------------------------------------------------------------------------

    def act(self) -> Deleted:
        """Delete the orphans."""
        done, total = Deleted(), self._orphans.rows
        for part in delete(self._storage, ((file.path, file.bytes) for file in self.orphans())):
            done.add(part)
            self._progress("delete", done.attempted, total)
        return done

    # -- what other jobs ask -----------------------------------------------------------------------

    def alone(self, below: int) -> Alone:
        """Return what only versions below one reach, and of it what a single version holds."""
        total, files, sizes = Size(), Counter[int](), Counter[int]()
        for part, marks in self._beside_marks(self._files):
            known, at = marks.find(numbers(part, HASH))
            nbytes = np.zeros(len(marks.hashes), np.int64)
            nbytes[at] = np.where(columns.is_unknown(part), 0, numbers(part, "bytes"))[known]
            only = (marks.last >= 0) & (marks.last < below)
            total.add(Size(int(only.sum()), int(nbytes[only].sum())))
            single = only & (marks.first == marks.last)
            versions, which, count = np.unique(marks.last[single], return_inverse=True, return_counts=True)
            of_each = np.zeros(len(versions), np.int64)
            np.add.at(of_each, which, nbytes[single])
            files.update(dict(zip(versions.tolist(), count.tolist(), strict=True)))
            sizes.update(dict(zip(versions.tolist(), of_each.tolist(), strict=True)))
        return Alone(total, {version: Size(files[version], sizes[version]) for version in sorted(files)})

    def sizes(self, newest: int, boundary: int) -> Sizes:
        """Return what the newest version reaches, what only the rest of history does, and what nothing does."""
        found = Sizes()
        for part, marks in self._beside_marks(self._files):
            known, at = marks.find(numbers(part, HASH))
            live, mine = known & ~columns.is_unknown(part), np.zeros(len(part), np.bool_)
            mine[known] = marks.last[at] == newest
            found.newest.add(columns.size_of(part, live & mine))
            found.history.add(columns.size_of(part, live & ~mine))
            found.nothing.add(columns.size_of(part, columns.may_go(part, boundary) & ~known))
        return found

    def release(self) -> None:
        """Give back the temporary files."""
        for each in (self._files, self._orphans, self._marks):
            each.close()
