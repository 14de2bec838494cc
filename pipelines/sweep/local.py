"""List, mark, minus and act in this process: sets in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from pipelines.files.deletion import Deleted, delete
from pipelines.files.listing import (
    TRANSACTION,
    UNKNOWN,
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
from pipelines.sweep.model import SHOWN, Alone, Size, Sizes, Totals, UnknownFiles
from pipelines.trees.walk import Start, TreeSource, walk_local
from trinitylake_core.storage import Storage


class LocalSweep:
    """The state of one sweep: what is listed, what is live, and what is neither."""

    def __init__(self, storage: Storage, order: int, progress: Progress) -> None:
        self._storage = storage
        self._trees = TreeSource(storage, order, figures=False)
        self._progress = progress
        self._files: dict[str, Listed] = {}
        self._live: dict[str, tuple[int, int]] = {}
        self._orphans: dict[str, Listed] = {}
        self.unknown = UnknownFiles()
        self.nodes_read = 0

    def list_files(self, inventory: str | None, options: Mapping[str, Any]) -> Size:
        """List everything, or read an inventory; return how much there is."""
        for file in self._inventory(inventory, options) if inventory is not None else self._listing():
            known = self._files.get(file.path)
            self._files[file.path] = file if known is None else _younger(known, file)
            if len(self._files) % 10_000 == 0:
                self._progress("list", len(self._files), None)
        total = Size()
        for file in self._files.values():
            total.count(file.bytes)
        self._set_unknown_aside()
        return total

    def _set_unknown_aside(self) -> None:
        unknown = sorted(path for path, file in self._files.items() if file.kind == UNKNOWN)
        size = sum(self._files.pop(path).bytes for path in unknown)
        self.unknown = UnknownFiles(len(unknown), size, self.unknown.directories, tuple(unknown[:SHOWN]))

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
        self._files = {path: file for path, file in self._files.items() if file.kind != TRANSACTION}
        some = self._listing(maybe_transaction)
        self._files.update((file.path, file) for file in some if file.kind == TRANSACTION)

    def transactions(self) -> list[tuple[str, int]]:
        """Return the saved transactions that were listed, with their age."""
        return [(each.path, each.modified_millis or 0) for each in self._files.values() if each.kind == TRANSACTION]

    def mark(self, starts: Sequence[Start], paths: AbstractSet[str], *, afresh: bool = False) -> None:
        """Mark what roots reach, and ``paths``; what is marked already is not read again, unless ``afresh``."""
        if afresh:
            self._live = {}
        self._live.update(dict.fromkeys(paths, (-1, -1)))
        live = self._live
        for row in walk_local(self._trees, starts, live):
            self.nodes_read += 1
            self._progress("mark", self.nodes_read, None)
            _reach(live, [row["path"], *row["files"]], (row["first"], row["last"]))

    def subtract(self, boundary: int, cutoff_millis: int) -> Totals:
        """Keep as orphans what is listed, old enough, of a name that may go, and not live; return their totals."""
        young, unknown = Size(), Size()
        for file in self._files.values():
            if file.path in self._live or not file.may_go(boundary):
                continue
            if file.modified_millis is None:
                unknown.count(file.bytes)
            elif file.modified_millis < cutoff_millis:
                self._orphans[file.path] = file
            else:
                young.count(file.bytes)
        return Totals(self._by_kind(), young, unknown)

    def subtract_again(self) -> Totals:
        """Take what has been marked since off the orphans."""
        self._orphans = {path: file for path, file in self._orphans.items() if path not in self._live}
        return Totals(self._by_kind())

    def _by_kind(self) -> dict[str, Size]:
        found: dict[str, Size] = {}
        for file in self._orphans.values():
            found.setdefault(file.kind, Size()).count(file.bytes)
        return dict(sorted(found.items()))

    def orphans(self) -> Iterator[Listed]:
        """Yield the orphans."""
        return iter(self._orphans.values())

    def load(self, files: Iterable[Listed]) -> None:
        """Take the orphans of a plan."""
        self._orphans = {file.path: file for file in files}

    def reached(self) -> list[str]:
        """Return some orphans that are live."""
        return [path for path in self._orphans if path in self._live][:SHOWN]

    def agree(self, cutoff_millis: int) -> tuple[Totals, int]:
        """Keep of the plan what is still listed and old enough; return its totals, and how many files are gone."""
        listed = [(path, self._files.get(path)) for path in self._orphans if path not in self._live]
        old = {path: file for path, file in listed if file is not None and (file.modified_millis or 0) < cutoff_millis}
        self._orphans = old
        return Totals(self._by_kind()), sum(file is None for _, file in listed)

    def act(self) -> Deleted:
        """Delete the orphans."""
        done, total = Deleted(), len(self._orphans)
        for part in delete(self._storage, ((file.path, file.bytes) for file in self._orphans.values())):
            done.add(part)
            self._progress("delete", done.attempted, total)
        return done

    # -- what other jobs ask -----------------------------------------------------------------------

    def alone(self, below: int) -> Alone:
        """Return what only versions below one reach, and of it what a single version holds."""
        total, files, sizes = Size(), Counter[int](), Counter[int]()
        for path, (first, last) in self._live.items():
            if 0 <= last < below:
                size = self._files[path].bytes if path in self._files else 0
                total.count(size)
                if first == last:
                    files[last] += 1
                    sizes[last] += size
        return Alone(total, {version: Size(files[version], sizes[version]) for version in sorted(files)})

    def sizes(self, newest: int, boundary: int) -> Sizes:
        """Return what the newest version reaches, what only the rest of history does, and what nothing does."""
        found = Sizes()
        for file in self._files.values():
            tags = self._live.get(file.path)
            if tags is not None:
                (found.newest if tags[1] == newest else found.history).count(file.bytes)
            elif file.may_go(boundary):
                found.nothing.count(file.bytes)
        return found

    def release(self) -> None:
        """Nothing to give back."""


def _reach(live: dict[str, tuple[int, int]], paths: Iterable[str], now: tuple[int, int]) -> None:
    """Mark the files of one node. A path is looked for once: that is what marking costs, where all of them are many."""
    for path in paths:
        was = live.setdefault(path, now)
        if was is not now:
            live[path] = min(now[0], was[0]), max(now[1], was[1])


def _younger(one: Listed, two: Listed) -> Listed:
    """Return the entry that says the file is younger: an inventory may list a file twice."""
    ages = [each.modified_millis for each in (one, two) if each.modified_millis is not None]
    return one._replace(bytes=max(one.bytes, two.bytes), modified_millis=max(ages) if len(ages) == 2 else None)
