"""List, mark, minus and act over the files of a lakehouse: what is listed, what is live, and what is neither.

This is the place that decides which files may be deleted: :meth:`Sweep.subtract` for a cleaning,
:meth:`Sweep.confirm_plan` for a plan, both by :attr:`Sweep.candidates` and by what is live.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import islice
from operator import itemgetter
from typing import Any, Final, cast

import pyarrow as pa

from pipelines.engine.counting import keep_given, map_counted
from pipelines.engine.model import LONG, TEXT, Engine, MadeRow, Row, Rows, not_among
from pipelines.job import Progress
from pipelines.reach.kept_roots import GcRoots, SavedTransactions, gc_roots, gc_roots_at, live_transactions
from pipelines.reach.listing import (
    CANDIDATES,
    FIXED,
    ROOT,
    SCHEMA,
    TRANSACTION,
    UNKNOWN,
    Listed,
    Shards,
    Wanted,
    inventory_files,
    list_shards,
    maybe_transaction,
    read_inventory,
    shards,
)
from pipelines.reach.walk import Start, TreeSource, walk
from trinitylake_core.commits.backend import LakehouseBackend
from trinitylake_core.errors import Corrupt, PlanOutdated, StorageError
from trinitylake_core.storage import Options, Storage
from trinitylake_core.versions import Root

BATCH: Final = 1000
_TRIES: Final = 20
"""How often saved transactions may come and go while they are marked."""
_REASONS: Final = 20
SHOWN: Final = 20
"""How many names a report shows."""
_SUMS: Final = "count(*) AS files, sum(f.bytes) AS bytes"
_YOUNG: Final = "young"
_NO_AGE: Final = "no age"
_LOADED: Final = 100_000
_SHARDS: Final = 8
"""Directories of one task, which lists them at the same time: a lakehouse has 256, however small it is."""
_TEXT: Final = pa.schema({"text": TEXT})
_REACHED: Final = pa.schema({"path": TEXT, "first": LONG, "last": LONG})
DELETED: Final = pa.schema(
    {
        "attempted": LONG, "deleted": LONG, "versions_kept": LONG, "already_gone": LONG, "failed": LONG, "bytes": LONG,
        "requests": LONG,
        "failures": pa.map_(TEXT, TEXT),
    }
)  # fmt: skip
"""The columns of :func:`delete_rows`."""


@dataclass(slots=True)
class Deleted:
    """What became of files that were to be deleted.

    An object store does not distinguish a deleted file from one that was gone already. ``versions_kept`` are the
    deleted files whose content the store keeps as an older version. ``bytes`` are those of the deleted files;
    ``failures`` names some of the failed ones, with the reason.
    """

    attempted: int = 0
    deleted: int = 0
    versions_kept: int = 0
    already_gone: int = 0
    failed: int = 0
    bytes: int = 0
    requests: int = 0
    failures: dict[str, str] = field(default_factory=dict)

    def counts(self) -> dict[str, Any]:
        """Return the fields that reports of jobs have, too."""
        return {name: each for name, each in asdict(self).items() if name != "requests"}

    def add(self, part: Deleted) -> None:
        """Add what became of other files."""
        for name in DELETED.names[:-1]:
            setattr(self, name, getattr(self, name) + getattr(part, name))
        for path, reason in islice(part.failures.items(), max(0, _REASONS - len(self.failures))):
            self.failures[path] = reason


def delete(storage: Storage, files: Iterable[tuple[str, int]]) -> Iterator[Deleted]:
    """Delete files, given as path and size, and yield what became of each batch. One ``delete`` per batch."""
    remaining = iter(files)
    while sizes := dict(islice(remaining, BATCH)):
        before = storage.counts.delete
        try:
            result = storage.delete_many(list(sizes))
        except StorageError as error:
            done = Deleted(failed=len(sizes), failures={path: str(error) for path in islice(sizes, _REASONS)})
        else:
            done = Deleted(
                deleted=len(result.deleted),
                versions_kept=result.versions_kept,
                already_gone=len(result.missing),
                failed=len(result.failed),
                bytes=sum(sizes[path] for path in result.deleted),
                failures=dict(islice(result.failed.items(), _REASONS)),
            )
        done.attempted, done.requests = len(sizes), storage.counts.delete - before
        yield done


def delete_rows(rows: Iterator[Row], storage: Storage) -> Iterator[MadeRow]:
    """Delete files (path, bytes), and yield a row of :data:`DELETED` for the outcome of each batch."""
    for part in delete(storage, ((row["path"], row["bytes"]) for row in rows)):
        yield (*(getattr(part, name) for name in DELETED.names[:-1]), list(part.failures.items()))


@dataclass(slots=True)
class Size:
    """A number of files and their bytes."""

    files: int = 0
    bytes: int = 0


@dataclass(slots=True)
class UnknownFiles:
    """Files whose names the format does not define, and directories of other names, which are never looked into."""

    files: int = 0
    bytes: int = 0
    directories: tuple[str, ...] = ()
    some: tuple[str, ...] = ()


@dataclass(slots=True)
class Totals:
    """Orphans by kind; ``young`` are unreachable and stay until they are old enough, as do those of unknown age."""

    kinds: dict[str, Size] = field(default_factory=dict)
    young: Size = field(default_factory=Size)
    unknown_age: Size = field(default_factory=Size)

    @property
    def files(self) -> int:
        """The number of orphans."""
        return sum(each.files for each in self.kinds.values())

    @property
    def bytes(self) -> int:
        """Their size."""
        return sum(each.bytes for each in self.kinds.values())


class Sweep:
    """The state of one sweep, in tables of an engine.

    Attributes:
        unknown: files that belong to other programs, by their names.
        nodes_read: nodes read to mark, each once.
        scratch: directories that killed proofs of the storage left, as far as they were listed.
        transactions: the saved transactions that were listed last, with their age.
        candidates: the kinds of files that may ever be deleted; of roots besides those below the boundary.
    """

    candidates = CANDIDATES

    def __init__(self, engine: Engine, storage: Storage, order: int, progress: Progress) -> None:
        self.engine = engine
        self.unknown = UnknownFiles()
        self.nodes_read = 0
        self.scratch: tuple[str, ...] = ()
        self._storage = storage
        self._trees = TreeSource(storage, order, figures=False)
        self._progress = progress
        self._files: Rows | None = None
        self._live: list[Rows] = []
        self._orphans: Rows | None = None
        self.transactions: list[tuple[str, int]] = []

    # -- list ----------------------------------------------------------------------------------------

    def list_files(self, inventory: str | None, options: Options) -> Size:
        """List everything, or read an inventory, before anything is marked; return how much there is."""
        if inventory is None:
            self._files = self._first_listing()
        else:
            self._files = self._inventory(inventory, options).keep()
        kinds = self._by_kind(self._files)
        self._note_transactions(kinds)
        self._note_unknown(kinds)
        files = sum(each.files for each in kinds.values())
        size = sum(each.bytes for each in kinds.values())
        self._progress("list", files, None)
        return Size(files, size)

    def _note_unknown(self, kinds: Mapping[str, Size]) -> None:
        """Note the files that the format does not define, and name some of them."""
        size = kinds.get(UNKNOWN)
        if size is None:
            return
        query = f"SELECT path FROM files WHERE kind = {UNKNOWN!r} ORDER BY path LIMIT {SHOWN}"
        rows = self.engine.sql(query, files=self._all_files).list()
        some = tuple(row["path"] for row in rows)
        self.unknown = UnknownFiles(size.files, size.bytes, self.unknown.directories, some)

    def _first_listing(self) -> Rows:
        top = shards(self._storage)
        self.scratch = tuple(top.scratch)
        return self._in_shards(top)

    def _note_transactions(self, kinds: Mapping[str, Size]) -> None:
        """Take the saved transactions from the first listing."""
        if TRANSACTION not in kinds:
            self.transactions = []
            return
        query = f"SELECT path, kind, modified_millis FROM files WHERE kind = {TRANSACTION!r}"
        self.transactions = _transactions_among(self.engine.sql(query, files=self._all_files).list())

    def _in_shards(self, top: Shards) -> Rows:
        self.unknown.directories = tuple(sorted(top.unknown)[:SHOWN])
        prefixes = self.engine.table([{"text": prefix} for prefix in top.prefixes], _TEXT)
        below = self.engine.map(partial(_list_each, wanted=None), prefixes, SCHEMA, self._storage, each=_SHARDS)
        kept = below.keep(progress=lambda rows: self._progress("list", rows, None))
        return self.engine.sql("SELECT * FROM listed", listed=[self._table(top.files), kept])

    def _inventory(self, uri: str, options: Options) -> Rows:
        """Return each file of an inventory once: of two entries the younger one counts."""
        texts = self.engine.table([{"text": each} for each in inventory_files(uri, options)], _TEXT)
        entries = self.engine.map(partial(_read_each, options=dict(options)), texts, SCHEMA, self._storage, each=1)
        return self.engine.sql(
            """SELECT path, max(bytes) AS bytes,
            CASE WHEN count(*) = count(modified_millis) THEN max(modified_millis) END AS modified_millis, kind, version
            FROM entries GROUP BY path, kind, version""",
            entries=entries,
        )

    def _table(self, files: Iterable[Listed]) -> Rows:
        return self.engine.table((file._asdict() for file in files), SCHEMA)

    def list_transactions(self) -> None:
        """List everything again, and take from it the saved transactions there are now.

        Raises ``StorageError``: the engine lost rows. The first listing may have been an inventory, which has none.
        """
        top = shards(self._storage)
        prefixes = [{"text": prefix} for prefix in top.prefixes]
        work = partial(_list_each, wanted=maybe_transaction)
        rows: list[Row] = [file._asdict() for file in top.files]
        rows += map_counted(self.engine, "directories", work, prefixes, _TEXT, SCHEMA, self._storage, each=_SHARDS)
        self.transactions = _transactions_among(rows)

    # -- mark ----------------------------------------------------------------------------------------

    def mark(self, starts: Sequence[Start], paths: AbstractSet[str], *, afresh: bool = False) -> None:
        """Mark what roots reach, and ``paths``; what is marked already is not read again, unless ``afresh``.

        A node counts as read when everything below it was read, too: a walk that failed begins again at its roots.

        Raises:
            Corrupt: a node cannot be read, so the files that it reaches are unknown.
        """
        if afresh:
            self._forget_marks()
        walked = walk(self.engine, self._trees, starts, self._mark_progress, self._live)
        self.nodes_read += walked.nodes_read
        self._live += walked.levels
        if paths:
            named = [{"path": path, "first": -1, "last": -1} for path in sorted(paths)]
            self._live.append(keep_given(self.engine, "files of saved transactions", named, _REACHED))

    def _mark_progress(self, phase: str, done: int, total: int | None) -> None:
        self._progress("mark", self.nodes_read + done, total)

    def _forget_marks(self) -> None:
        for live in self._live:
            live.drop()
        self._live = []

    # -- minus ---------------------------------------------------------------------------------------

    def subtract(self, boundary: int, cutoff_millis: int) -> Totals:
        """Keep as orphans what is listed, old enough, of a name that may go, and not live; return their totals."""
        names = f"SELECT f.* FROM files f WHERE {self._where_may_go(boundary)}"
        unreached = self._without_live(names, files=self._all_files).keep(repeatable=True)
        old = f"SELECT f.* FROM files f WHERE modified_millis < {cutoff_millis}"
        self._orphans = self.engine.sql(old, files=unreached)
        return self._sum_ages(unreached, cutoff_millis)

    def _sum_ages(self, unreached: Rows, cutoff_millis: int) -> Totals:
        """Return the totals of files that nothing reaches, by one query."""
        age = f"""CASE WHEN f.modified_millis IS NULL THEN {_NO_AGE!r}
            WHEN f.modified_millis >= {cutoff_millis} THEN {_YOUNG!r} ELSE f.kind END"""
        query = f"SELECT {age} AS kind, {_SUMS} FROM files f GROUP BY {age}"
        sizes = self._sizes_by_kind(query, unreached)
        young = sizes.pop(_YOUNG, Size())
        unknown = sizes.pop(_NO_AGE, Size())
        return Totals(sizes, young, unknown)

    def _where_may_go(self, boundary: int) -> str:
        kinds = ", ".join(map(repr, sorted(self.candidates)))
        return f"(f.kind IN ({kinds}) OR f.kind = {ROOT!r} AND f.version < {boundary})"

    def may_go(self, file: Listed, boundary: int) -> bool:
        """Whether a file of this name may ever be deleted."""
        return file.kind in self.candidates or (file.kind == ROOT and (file.version or 0) < boundary)

    def remove_live(self) -> Totals:
        """Take what has been marked since off the orphans; return the totals of what is left."""
        return self._keep_orphans(self._unmarked_orphans())

    def _unmarked_orphans(self) -> Rows:
        return self._without_live("SELECT f.* FROM files f WHERE 1 = 1", files=self._orphan_rows)

    def _keep_orphans(self, orphans: Rows) -> Totals:
        self._orphans = orphans.keep(repeatable=True)
        totals = Totals(self._by_kind(self._orphans))
        self._orphans.learn_count(totals.files)
        return totals

    def _without_live(self, query: str, **tables: Rows) -> Rows:
        """Return the rows ``f`` of a query that nothing kept reaches."""
        dead, live = not_among("f.path", "live", self._live)
        return self.engine.sql(f"{query} AND {dead}", **tables, **live)

    @property
    def _all_files(self) -> Rows:
        if self._files is None:
            raise RuntimeError("nothing was listed yet")
        return self._files

    @property
    def _orphan_rows(self) -> Rows:
        if self._orphans is None:
            raise RuntimeError("nothing was subtracted yet")
        return self._orphans

    def orphans(self) -> Iterator[Listed]:
        """Yield the orphans."""
        for row in self._orphan_rows.stream():
            yield Listed(**row)

    # -- plans ---------------------------------------------------------------------------------------

    def load(self, files: Iterable[Listed]) -> None:
        """Take the orphans of a plan."""
        remaining, parts = iter(files), [self._table(())]
        while piece := list(islice(remaining, _LOADED)):
            parts.append(self._table(piece).keep())
        self._orphans = self.engine.sql("SELECT * FROM planned", planned=parts).keep("path", repeatable=True)

    def live_orphans(self) -> list[str]:
        """Return some orphans that are live."""
        found: list[str] = []
        for live in self._live:
            query = f"SELECT l.path FROM live l JOIN orphans o ON o.path = l.path LIMIT {SHOWN}"
            found += [row["path"] for row in self.engine.sql(query, live=live, orphans=self._orphan_rows).list()]
        return found[:SHOWN]

    def confirm_plan(self, cutoff_millis: int) -> tuple[Totals, int]:
        """Keep of a plan what is still listed and old enough; return its totals, and how many files are gone."""
        there = "EXISTS (SELECT 1 FROM planned p WHERE p.path = f.path)"
        tables = {"files": self._all_files, "planned": self._orphan_rows}
        planned = self.engine.sql("SELECT count(DISTINCT path) AS files FROM planned", planned=self._orphan_rows).one()
        known = self.engine.sql(f"SELECT {_SUMS} FROM files f WHERE {there}", **tables).one()
        old = f"SELECT f.* FROM files f WHERE modified_millis < {cutoff_millis} AND {there}"
        return self._keep_orphans(self._without_live(old, **tables)), planned["files"] - known["files"]

    # -- act -----------------------------------------------------------------------------------------

    def act(self) -> Deleted:
        """Delete the orphans."""
        total, done = self._orphan_rows.count(), Deleted()
        if total:
            files = self.engine.sql("SELECT path, coalesce(bytes, 0) AS bytes FROM files", files=self._orphan_rows)
            files.learn_count(total)
            for row in self.engine.map(delete_rows, files, DELETED, self._storage, each=BATCH).stream(few=True):
                done.add(Deleted(**{**row, "failures": dict(row["failures"])}))
                self._progress("delete", done.attempted, total)
        return done

    # -- what other jobs ask -------------------------------------------------------------------------

    def exclusive_sizes(self, below: int) -> tuple[Size, dict[int, Size]]:
        """Return the files that only versions below one reach, and by version what no other version reaches."""
        reach = self._tags(f"WHERE last >= 0 AND last < {below}").keep("path", repeatable=True)
        ours = f"SELECT r.* , f.bytes FROM files f JOIN reach r ON r.path = f.path WHERE f.kind <> {UNKNOWN!r}"
        sized = self.engine.sql(ours, files=self._all_files, reach=reach).keep(repeatable=True)
        query = """SELECT last, sum(files) AS files, sum(bytes) AS bytes FROM (
            SELECT last, 1 AS files, 0 AS bytes FROM reach WHERE first = last
            UNION ALL SELECT last, 0 AS files, bytes FROM sized WHERE first = last) e GROUP BY last"""
        rows = self.engine.sql(query, reach=reach, sized=sized).list()
        rows.sort(key=itemgetter("last"))
        of_versions = {row["last"]: _size(row) for row in rows}
        sums = self.engine.sql(f"SELECT {_SUMS} FROM sized f", sized=sized).one()
        return Size(reach.count(), _size(sums).bytes), of_versions

    def sizes(self, newest: int, boundary: int) -> dict[str, Size]:
        """Return how many files the ``newest`` version reaches, only ``history`` does, and ``nothing`` does."""
        query = f"""SELECT
            CASE WHEN t.last IS NULL THEN 'nothing' WHEN t.last = {newest} THEN 'newest' ELSE 'history' END
            AS reach, {_SUMS} FROM files f LEFT JOIN tags t ON t.path = f.path
            WHERE t.last IS NULL AND {self._where_may_go(boundary)}
            OR t.last IS NOT NULL AND f.kind NOT IN ({FIXED!r}, {UNKNOWN!r}) GROUP BY reach"""
        found = self.engine.sql(query, files=self._all_files, tags=self._tags().keep("path", repeatable=True)).list()
        nothing = {each: Size() for each in ("newest", "history", "nothing")}
        return nothing | {row["reach"]: _size(row) for row in found}

    def _tags(self, where: str = "") -> Rows:
        """Return every file that is live: path, and the first and the last version that reaches it."""
        query = "SELECT path, min(first) AS first, max(last) AS last FROM live GROUP BY path"
        live = [self.engine.sql("SELECT path, first, last FROM live", live=each) for each in self._live]
        return self.engine.sql(f"SELECT * FROM ({query}) tags {where}", live=live)

    def _by_kind(self, files: Rows) -> dict[str, Size]:
        return self._sizes_by_kind(f"SELECT kind, {_SUMS} FROM files f GROUP BY kind", files)

    def _sizes_by_kind(self, query: str, files: Rows) -> dict[str, Size]:
        rows = self.engine.sql(query, files=files).list()
        return {row["kind"]: _size(row) for row in sorted(rows, key=lambda row: str(row["kind"]))}

    def release(self) -> None:
        """Release the disk and memory of the tables."""
        self.engine.close()


def _size(row: Row) -> Size:
    return Size(row["files"], row["bytes"] or 0)


def _transactions_among(files: Iterable[Row]) -> list[tuple[str, int]]:
    """Return the saved transactions among files, each with its time; 0 where it has none."""
    found = []
    for file in files:
        if file["kind"] == TRANSACTION:
            found.append((file["path"], file["modified_millis"] or 0))
    return found


def _list_each(rows: Iterator[Row], storage: Storage, *, wanted: Wanted | None) -> Iterator[Listed]:
    return list_shards(storage, (row["text"] for row in rows), wanted)


def _read_each(rows: Iterator[Row], storage: Storage, *, options: Options) -> Iterator[Listed]:
    for row in rows:
        yield from read_inventory(row["text"], options, storage.root)


class RootsExpired(PlanOutdated):
    """Something that was kept when the marking began is kept no longer: start over."""


class Marking:
    """One marking of what is kept, in one sweep.

    Attributes:
        saved: the saved transactions that were marked last.
        retained: what is kept besides; ``None`` before anything was marked.
    """

    def __init__(self, backend: LakehouseBackend, sweep: Sweep, ttl_millis: int, now: int) -> None:
        self._backend = backend
        self._sweep = sweep
        self._ttl_millis = ttl_millis
        self._now = now
        self.saved = SavedTransactions()
        self.retained: GcRoots | None = None

    def mark(self, check: Callable[[GcRoots], object]) -> GcRoots:
        """Mark everything that is kept, and return it; ``check`` may raise before any node of it is read.

        Transactions come first: one that is committed after that is a version when versions are listed.

        REQUIRES: the sweep has listed the files.
        Raises:
            Corrupt: something that is kept cannot be read.
            RootsExpired: saved transactions changed again and again.
        """

        def starts(saved: SavedTransactions) -> list[Start]:
            self.retained = found = gc_roots(self._backend)
            check(found)
            self._backend.versions.refuse_hole(found.newest.version)
            return saved.starts + found.starts()

        self.saved = self._mark(starts, afresh=True)
        return cast("GcRoots", self.retained)

    def mark_since(self, fence: Root, check: Callable[[GcRoots], object]) -> None:
        """Mark what is kept as of the fence and was not marked before it, and what was committed since.

        The fence itself reaches what the version below it does. What was committed since cannot reach an orphan, unless
        a program made it that knows no fences. Saved transactions are listed again: one that was saved since the first
        listing may have searched for fences before this one was there. With an inventory for a listing, what it wrote
        is younger than every orphan; but what it began with may be a version that has expired since.

        REQUIRES: :meth:`mark` has returned.
        Raises:
            RootsExpired: what is kept as of the fence began to expire, so it need not be what was marked under its
                name. What a job took over from it before would be lost.
        """
        self._sweep.list_transactions()
        before = cast("GcRoots", self.retained)
        known = {each.path for each in self.saved.starts} | {fence.path}

        def starts(saved: SavedTransactions) -> list[Start]:
            again = gc_roots(self._backend)
            check(again)
            if again.boundary < before.boundary:
                raise PlanOutdated(f"the boundary fell from {before.boundary} to {again.boundary}; nothing was deleted")
            at_fence = gc_roots_at(self._backend, fence.version, fence)
            since = again.starts(since=before) + at_fence.starts(since=before)
            unique = dict.fromkeys(saved.starts + since)
            return [each for each in unique if each.path not in known]

        self.saved = self._mark(starts)
        if self._backend.newest().oldest_version > fence.oldest_version:
            raise RootsExpired(f"versions below {self._backend.newest_seen.version} expired meanwhile")

    def roots_changed(self) -> bool:
        """Whether what could not be read may be something that is no longer kept."""
        if self.retained is None:
            return False
        again = gc_roots(self._backend)
        same = (again.boundary, again.snapshots) == (self.retained.boundary, self.retained.snapshots)
        return not same or again.newest.oldest_version != self.retained.newest.oldest_version

    def _mark(self, starts: Callable[[SavedTransactions], list[Start]], *, afresh: bool = False) -> SavedTransactions:
        """Mark saved transactions that are alive, and what else there is to start from; return the transactions.

        One that is committed, aborted or saved again in between loses its running root: then what is alive is read
        again. That must come before what is kept is, for what was committed is a version by then.
        """
        for _ in range(_TRIES):
            saved = self._live()
            try:
                self._sweep.mark(starts(saved), saved.paths, afresh=afresh)
            except Corrupt:
                if self._live().starts == saved.starts:
                    raise
            else:
                return saved
        raise RootsExpired("saved transactions changed again and again while they were marked; try again later")

    def _live(self) -> SavedTransactions:
        return live_transactions(self._backend.storage, self._sweep.transactions, self._ttl_millis, self._now)
