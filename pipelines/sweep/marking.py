"""Marks the files that a lakehouse keeps, while other processes commit, save and expire (format, section 6)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, cast

from pipelines.files.gc_roots import GcRoots, SavedTransactions, gc_roots, gc_roots_at, live_transactions, paths_of
from pipelines.sweep.sweep import Sweep
from pipelines.trees.walk import Start
from trinitylake_core.commits.files import LakehouseStore
from trinitylake_core.errors import Corrupt, PlanOutdated
from trinitylake_core.versions import Root

_TRIES: Final = 20
"""How often saved transactions may come and go while they are marked."""


class RootsExpired(PlanOutdated):
    """Something that was kept when the marking began is kept no longer: start over."""


class Marking:
    """One marking of what is kept, in one sweep.

    Attributes:
        saved: the saved transactions that were marked last.
        retained: what is kept besides; ``None`` before anything was marked.
    """

    def __init__(self, files: LakehouseStore, sweep: Sweep, ttl_millis: int, now: int) -> None:
        self._files = files
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
            self.retained = found = gc_roots(self._files)
            check(found)
            self._files.versions.refuse_hole(found.newest.version)
            return saved.starts + found.starts()

        self.saved = self._mark(starts, afresh=True)
        return cast("GcRoots", self.retained)

    def mark_since(self, fence: Root, check: Callable[[GcRoots], object], *, list_again: bool) -> None:
        """Mark what is kept as of the fence and was not marked before it, and what was committed since.

        The fence itself reaches what the version below it does. What was committed since cannot reach an orphan, unless
        a program made it that knows no fences. Saved transactions are listed again: one that was saved since the first
        listing may have searched for fences before this one was there. (With an inventory no orphan is that old, and
        ``list_again`` is not needed.)

        REQUIRES: :meth:`mark` has returned.
        Raises:
            RootsExpired: what is kept as of the fence began to expire, so it need not be what was marked under its
                name. What a job took over from it before would be lost.
        """
        if list_again:
            self._sweep.list_transactions()
        before = cast("GcRoots", self.retained)
        known = paths_of(self.saved.starts) | {fence.path}

        def starts(saved: SavedTransactions) -> list[Start]:
            again = gc_roots(self._files)
            check(again)
            if again.boundary < before.boundary:
                raise PlanOutdated(f"the boundary fell from {before.boundary} to {again.boundary}; nothing was deleted")
            since = again.starts(since=before) + gc_roots_at(self._files, fence.version, fence).starts(since=before)
            return [each for each in dict.fromkeys(saved.starts + since) if each.path not in known]

        self._mark(starts)
        if self._files.newest().oldest_version > fence.oldest_version:
            raise RootsExpired(f"versions below {self._files.newest_seen.version} expired meanwhile")

    def roots_changed(self) -> bool:
        """Whether what could not be read may be something that is no longer kept."""
        if self.retained is None:
            return False
        again = gc_roots(self._files)
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
        return live_transactions(self._files.storage, self._sweep.transactions(), self._ttl_millis, self._now)
