"""The versions of one lakehouse: the newest, by time, back to the boundary, and those committed after one (section 6).

Versions are contiguous from the boundary up. A root that is missing below the boundary has expired, and that is the
end of history; one that is missing at or above it is damage (I14), and never passed over in silence.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from trinitylake_core import spec
from trinitylake_core.errors import (
    MAYBE_THE_STORE,
    CommitConflict,
    CorruptNode,
    TransactionExpired,
    VersionExpired,
    VersionNotFound,
)
from trinitylake_core.storage import Storage
from trinitylake_core.tree.readahead import Cache
from trinitylake_core.versions import search
from trinitylake_core.versions.boundary import is_claim, lowest_there
from trinitylake_core.versions.root import Delta, Root, RootRows, from_millis, to_millis, unreadable_root
from trinitylake_core.versions.root_files import BATCH, RootFiles


class Versions(RootFiles):
    """The roots of one lakehouse. Finding the newest costs O(log versions) requests, never a walk."""

    def root(self, version: int) -> Root:
        """Return the root of a version. Two ``get`` at the same time, a ``list`` or a search if it is not a version.

        A root below the boundary is none, though its file may still be there, or may be that of a late writer. A
        boundary that no listed root reaches decides nothing.

        Raises:
            VersionNotFound, VersionExpired: it never existed, or retention removed it.
            CorruptNode: the root file cannot be read, or is missing between others.
        """
        if not 0 <= version <= spec.MAX_VERSION:
            raise VersionNotFound(f"version {version} is not between 0 and {spec.MAX_VERSION}")
        data, stored = self.data_and_boundary(version)
        boundary = stored or 0
        if data is None and boundary <= version:  # it may have expired while both were read
            boundary = self.boundary()
        if version < boundary and any(each >= boundary for each in search.listed_versions(self)):
            raise VersionExpired(f"version {version} has expired; the oldest one kept is {boundary}")
        if data is not None:
            return self.decode(version, self.path(version), data)
        newest = self.latest().version
        if version < newest:
            raise search.missing_root(self, version, boundary)
        raise VersionNotFound(f"version {version} does not exist: version {newest} is the newest")

    def kept_from(self, newest: int) -> int:
        """Return the first version that is kept. One ``get``; a ``list`` where the boundary lies beyond the newest one.

        There it decides nothing: it is the claim of an export that is not complete, or a lie.
        """
        boundary = self.boundary()
        return boundary if boundary <= newest else lowest_there(self, newest, boundary)

    def is_claimed(self) -> bool:
        """Whether an export to this place is not complete (format, section 6). One ``get``."""
        return is_claim(self.storage.read_tagged(spec.BOUNDARY_FILE).data)

    latest = search.find_newest  # the functions of the search are methods here
    refuse_hole = search.refuse_hole
    newest_readable = search.newest_readable

    def at_timestamp(self, timestamp: datetime | str | int, newest: Root) -> Root:
        """Return the newest root created at or before a time. O(log versions) ``get``.

        Raises:
            VersionNotFound, VersionExpired: the time lies before the first version that is kept.
            CorruptNode: a root that must exist is missing.
        """
        millis = to_millis(timestamp)
        if newest.created_at_millis <= millis:
            return newest
        low, high = newest.oldest_version, newest.version
        best: Root | None = None
        while low < high:
            middle = (low + high) // 2
            root = _search_readable(self, middle, low)
            if root is None:
                low = _expired_up_to(self, middle)
            elif root.unreadable is not None:
                low = middle + 1
            elif root.created_at_millis <= millis:
                best, low = root, middle + 1
            else:
                high = root.version
        if best is not None:
            return best
        when = from_millis(millis).isoformat()
        if (boundary := self.boundary()) > 0:
            raise VersionExpired(f"no version at {when} is kept; the oldest one kept is {boundary}")
        raise VersionNotFound(f"there was no version at {when}; the lakehouse was created later")

    def history(self, newest: Root, limit: int | None = None) -> Iterator[Root]:
        """Yield roots from ``newest`` back to the boundary. One ``get`` each, read ahead in parallel.

        Instead of a root that cannot be read one stands that contains why; its time is that of the version after it.
        Raises ``CorruptNode``: a root that must exist is missing.
        """
        if limit is not None and limit <= 0:
            return
        yield newest
        after = newest.created_at_millis
        older = range(newest.version - 1, newest.oldest_version - 1, -1)
        if limit is not None:
            older = older[: limit - 1]
        for version, root in self.in_batches(older, 4):
            if root is None:
                _expired_up_to(self, version)
                return
            if root.unreadable is not None:
                yield unreadable_root(version, root.path, root.unreadable, after)
                continue
            after = root.created_at_millis
            yield root

    def since(self, base: Root) -> tuple[list[Delta], Root]:
        """Return the deltas of all versions after ``base``, oldest first, and the newest root.

        REQUIRES that there is a version after ``base``. One ``get`` each, one that finds nothing, and one for the
        boundary. Of the roots only the newest is kept in memory, of all others a few hundred bytes and their messages.

        Raises:
            TransactionExpired: versions after ``base`` have expired already.
            CorruptNode: a root that must exist is missing or cannot be read, or is not the one that its successor was
                committed on.
            CommitConflict: one that cannot be read was left behind by others: what it changed is not known.
        """
        found: list[Delta] = []
        newest = base
        while True:
            for root in _following(self, newest.version):
                if root.unreadable is not None:
                    raise _unknown_change(self, root)
                if not root.follows(newest):
                    self.storage.doubt(root.path)
                    raise CorruptNode(
                        f"the root {root.path!r} was not committed on top of the root {newest.path!r} that is there. "
                        f"{MAYBE_THE_STORE}",
                        path=root.path,
                        invariant="I14",
                    )
                found.append(root.delta(found[-1] if found else None))
                newest = root
            boundary = self.boundary()
            if found and boundary <= newest.version:
                return found, newest
            # A root that was there is missing. Either it has expired since, or it was only just committed.
            following = self.try_root(newest.version + 1)
            if following is None and boundary <= newest.version + 1:
                raise search.missing_root(self, newest.version + 1, boundary)
            if following is None:
                raise TransactionExpired(
                    f"the versions after {base.version} have expired: refresh the handle, then begin a new transaction"
                )


def _search_readable(roots: RootFiles, version: int, low: int) -> Root | None:
    """Return the root of a version; where it cannot be read, that of the next older one that can, down to ``low``.

    Where none of them can, a root that is marked as unreadable. ``None``: the version has no root any more.
    """
    found: Root | None = None
    for each in range(version, low - 1, -1):
        root = next(roots.read_roots([each]))
        if root is None:
            break
        found = root
        if root.unreadable is None:
            break
    return found


def _expired_up_to(roots: RootFiles, version: int) -> int:
    """Return the boundary, which lies above a version whose root is gone. One ``get``. Raises ``CorruptNode``."""
    boundary = roots.boundary()
    if boundary <= version:
        raise search.missing_root(roots, version, boundary)
    return boundary


def _unknown_change(roots: RootFiles, root: Root) -> CommitConflict | CorruptNode:
    """Return the error for a commit that meets a root which cannot be read. One ``head``."""
    if roots.root_exists(root.version + 1):
        return CommitConflict(
            f"version {root.version} cannot be read, and others went on without it; begin a new transaction",
            version=root.version,
        )
    return CorruptNode(f"the newest root {root.path!r} cannot be read: {root.unreadable}", path=root.path)


def _following(roots: RootFiles, version: int) -> Iterator[Root]:
    """Yield the roots after a version, up to the first that does not exist."""
    first = version + 1
    size = 1
    while True:
        batch = range(first, first + size)
        for root in roots.read_roots(batch):
            if root is None:
                return
            yield root
        first = batch.stop
        size = min(first - version - 1, BATCH)  # as many as were there so far


class VersionsReadOnce(Versions):
    """Versions as they were when each file was first read, for one pass over them; not for a handle that stays open.

    A root that expires during the pass may still be returned. Hint, boundary and missing files are read each time.
    ``most_bytes`` of roots are held, and as many of definitions; decoded, roots take about six times as much.
    """

    def __init__(self, storage: Storage, most_bytes: int = 8 << 20) -> None:
        super().__init__(storage)
        self._roots: Cache[RootRows | None] = Cache(most_bytes)
        self._files: Cache[bytes] = Cache(most_bytes)

    def try_root(self, version: int, *, sdk: bool | None = None) -> Root | None:
        """Return the root of a version, or ``None`` if there is no such file. One ``get``, none if it is held."""

        def read() -> tuple[Root | None, int]:
            root = super(VersionsReadOnce, self).try_root(version, sdk=sdk)
            return root, 0 if root is None else len(root.data)

        held = self._roots.get(self.path(version, sdk=sdk), read)
        if held is None or isinstance(held, Root):
            return held
        root, _ = read()  # only the rows are held
        return root

    def try_rows(self, version: int) -> RootRows | None:
        """Return the system rows of a version's root. One ``get``, none if it is held; see ``RootFiles``."""

        def read() -> tuple[RootRows | None, int]:
            rows = super(VersionsReadOnce, self).try_rows(version)
            size = len(rows.data) if isinstance(rows, Root) else 0
            return rows, size

        return self._roots.get(self.path(version), read)

    def _read(self, path: str) -> bytes:
        def read() -> tuple[bytes, int]:
            data = super(VersionsReadOnce, self)._read(path)
            return data, len(data)

        return self._files.get(path, read)
