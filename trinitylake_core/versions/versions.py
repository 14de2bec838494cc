"""The versions of one lakehouse."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Final, Generic, TypeVar

from trinitylake_core import spec
from trinitylake_core.errors import VersionExpired, VersionNotFound
from trinitylake_core.storage import Storage
from trinitylake_core.tree.readahead import SingleFlight
from trinitylake_core.versions.boundary import is_claim, lowest_there
from trinitylake_core.versions.files import RootFiles
from trinitylake_core.versions.history import at_timestamp, history, since
from trinitylake_core.versions.root import Delta, Root, RootRows
from trinitylake_core.versions.search import find_newest, listed_versions, missing_root, newest_readable, refuse_hole


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
        data, said = self.data_and_boundary(version)
        boundary = said or 0
        if data is None and boundary <= version:  # it may have expired while both were read
            boundary = self.boundary()
        if version < boundary and any(each >= boundary for each in listed_versions(self)):
            raise VersionExpired(f"version {version} has expired; the oldest one kept is {boundary}")
        if data is not None:
            return self.decode(version, self.path(version), data)
        newest = self.latest().version
        if version < newest:
            raise missing_root(self, version, boundary)
        raise VersionNotFound(f"version {version} does not exist: version {newest} is the newest")

    def kept_from(self, newest: int) -> int:
        """Return the first version that is kept. One ``get``; a ``list`` where the boundary lies beyond the newest one.

        There it decides nothing: it is the claim of an export that is not complete, or a lie.
        """
        boundary = self.boundary()
        return boundary if boundary <= newest else lowest_there(self, newest, boundary)

    def claimed(self) -> bool:
        """Return whether an export to this place is not complete (format, section 6). One ``get``."""
        return is_claim(self.storage.read_tagged(spec.BOUNDARY_FILE).data)

    def latest(self, known: Root | None = None) -> Root:
        """Return the newest root, from one that is known or else the hint on.

        Four ``get`` with a fresh hint, the root itself among them, three with a known root; O(log) more with a
        stale one. The last two go out together. A known root that is still what is stored is not decoded again.

        Raises:
            NotALakehouse: there is no root at all.
            CorruptNode: the known root is gone, and has not expired.
        """
        return find_newest(self, known)

    def refuse_hole(self, newest: int, listed: Iterable[int] | None = None) -> None:
        """Prove that no root lies beyond a version that is missing above ``newest``, the one where a search has ended.

        Every job that lists the roots calls this: a search by probes does not see two lost roots that are neighbours,
        nor one if the hint is behind it. ``listed`` are the versions that were listed after the search. One ``list`` a
        page unless they are given, a ``head`` for each version that was committed since the search.

        Raises:
            CorruptNode: a root was lost (I14).
        """
        refuse_hole(self, newest, listed)

    def newest_readable(self) -> tuple[Root, list[Root]]:
        """Return the newest root that can be read, and what stands for those after it, newest first. A listing.

        Raises:
            NotALakehouse, Corrupt: there is none.
            StorageError: a file is not the same each time it is read.
        """
        return newest_readable(self)

    def at_timestamp(self, timestamp: datetime | str | int, newest: Root) -> Root:
        """Return the newest root created at or before a time. O(log versions) ``get``.

        Raises:
            VersionNotFound, VersionExpired: the time lies before the first version that is kept.
            CorruptNode: a root that must exist is missing.
        """
        return at_timestamp(self, timestamp, newest)

    def history(self, newest: Root, limit: int | None = None) -> Iterator[Root]:
        """Yield roots from ``newest`` back to the boundary. One ``get`` each, read ahead in parallel.

        Raises:
            CorruptNode: a root that must exist is missing.
        """
        return history(self, newest, limit)

    def since(self, base: Root) -> tuple[list[Delta], Root]:
        """Return the deltas of all versions after ``base``, oldest first, and the newest root.

        REQUIRES that there is a version after ``base``. One ``get`` each, one that finds nothing, one for the boundary.

        Raises:
            TransactionExpired: versions after ``base`` have expired already.
            CorruptNode: a root that must exist is missing.
        """
        return since(self, base)


# -- for a pass over many versions -----------------------------------------------------------------


T = TypeVar("T")

MOST_BYTES: Final = 8 << 20
"""File bytes of roots that are held, and as many of definitions; decoded, roots take about six times as much."""


class Recent(Generic[T]):
    """Immutable files that were read lately, bounded by their bytes; what several ask for is read once. Thread-safe."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most = most_bytes
        self._held: OrderedDict[str, tuple[T, int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()
        self._once: SingleFlight[T] = SingleFlight()

    def get(self, path: str, read: Callable[[], tuple[T, int]]) -> T:
        """Return the value that is held under a path, or the one that ``read`` returns, together with its bytes.

        ``None`` stands for a missing file, and is not held; neither is a file over which ``read`` fails: the next
        caller reads it again. Raises what ``read`` raises.
        """
        return self._once.get(path, lambda _: self._held_or_read(path, read))

    def _held_or_read(self, path: str, read: Callable[[], tuple[T, int]]) -> T:
        with self._lock:
            if path in self._held:
                self._held.move_to_end(path)
                return self._held[path][0]
        found, size = read()
        if found is not None:
            with self._lock:
                self._held[path] = found, size
                self._bytes += size
                while self._bytes > self._most and len(self._held) > 1:
                    self._bytes -= self._held.popitem(last=False)[1][1]
        return found


class VersionsReadOnce(Versions):
    """Versions as they were when each file was first read, for one pass over them; not for a handle that stays open.

    A root that expires during the pass may still be returned. Hint, boundary and missing files are read each time.
    """

    def __init__(self, storage: Storage, most_bytes: int = MOST_BYTES) -> None:
        super().__init__(storage)
        self._roots: Recent[RootRows | None] = Recent(most_bytes)
        self._files: Recent[bytes] = Recent(most_bytes)

    def try_root(self, version: int, known: Root | None = None, *, sdk: bool | None = None) -> Root | None:
        """Return the root of a version, or ``None`` if there is no such file. One ``get``, none if it is held."""

        def read() -> tuple[Root | None, int]:
            root = super(VersionsReadOnce, self).try_root(version, known, sdk=sdk)
            return root, 0 if root is None else len(root.data)

        found = self._roots.get(self.path(version, sdk=sdk), read)
        return found if found is None or isinstance(found, Root) else read()[0]

    def try_rows(self, version: int) -> RootRows | None:
        """Return the system rows of a version's root. One ``get``, none if it is held; see ``RootFiles``."""

        def read() -> tuple[RootRows | None, int]:
            rows = super(VersionsReadOnce, self).try_rows(version)
            return rows, len(rows.data) if isinstance(rows, Root) else 0

        return self._roots.get(self.path(version), read)

    def _read(self, path: str) -> bytes:
        def read() -> tuple[bytes, int]:
            data = super(VersionsReadOnce, self)._read(path)
            return data, len(data)

        return self._files.get(path, read)
