"""Versions other than the newest: by time, back to the boundary, and those committed after one (format, section 6).

Versions are contiguous from the boundary up. A root that is missing below the boundary has expired, and that is the
end of history; one that is missing at or above it is damage (I14), and never passed over in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Final

from trinitylake_core.errors import CommitConflict, CorruptNode, TransactionExpired, VersionExpired, VersionNotFound
from trinitylake_core.versions.files import RootFiles
from trinitylake_core.versions.root import Delta, Root, RootRows, from_millis, to_millis, unreadable_root
from trinitylake_core.versions.search import missing_root

_BATCH: Final = 64


def at_timestamp(files: RootFiles, timestamp: datetime | str | int, newest: Root) -> Root:
    """Return the newest root created at or before a time. O(log versions) ``get``.

    Raises:
        VersionNotFound, VersionExpired: the time lies before the first version that is kept.
        CorruptNode: a root that must exist is missing.
    """
    millis = to_millis(timestamp)
    if newest.created_at_millis <= millis:
        return newest
    return _bisect(
        files, newest, lambda root: root.created_at_millis <= millis, f"at {from_millis(millis).isoformat()}"
    )


def _bisect(files: RootFiles, newest: Root, holds: Callable[[Root], bool], when: str) -> Root:
    low, high = newest.oldest_version, newest.version
    best: Root | None = None
    while low < high:
        middle = (low + high) // 2
        root = _readable(files, middle, low)
        if root is None:
            low = _expired_up_to(files, middle)
        elif root.unreadable is not None:
            low = middle + 1
        elif holds(root):
            best, low = root, middle + 1
        else:
            high = root.version
    if best is not None:
        return best
    if (boundary := files.boundary()) > 0:
        raise VersionExpired(f"no version {when} is kept; the oldest one kept is {boundary}")
    raise VersionNotFound(f"there was no version {when}; the lakehouse was created later")


def _readable(files: RootFiles, version: int, low: int) -> Root | None:
    """Return the root of a version, or of the first one down to ``low`` that can be read.

    If none can, what stands for the last of them; ``None`` if the root of the version itself is gone.
    """
    found: Root | None = None
    for each in range(version, low - 1, -1):
        root = next(files.readable_roots([each]))
        if root is None:
            break
        found = root
        if root.unreadable is None:
            break
    return found


def _expired_up_to(files: RootFiles, version: int) -> int:
    """Return the boundary, which lies above a version whose root is gone. One ``get``. Raises ``CorruptNode``."""
    boundary = files.boundary()
    if boundary <= version:
        raise missing_root(files, version, boundary)
    return boundary


def history(files: RootFiles, newest: Root, limit: int | None = None) -> Iterator[Root]:
    """Yield roots from ``newest`` back to the boundary. One ``get`` each, read ahead in parallel.

    For a root that cannot be read one stands that says so; its time is that of the version after it.

    Raises:
        CorruptNode: a root that must exist is missing.
    """
    after = newest.created_at_millis
    yield from [newest] if limit is None or limit > 0 else []
    version = newest.version - 1
    left = version + 1 if limit is None else min(limit - 1, version + 1)
    batch = 4
    while left > 0 and version >= newest.oldest_version:
        count = min(batch, left, version - newest.oldest_version + 1)
        wanted = range(version, version - count, -1)
        for each, root in zip(wanted, files.readable_roots(wanted), strict=True):
            if root is None:
                _expired_up_to(files, each)
                return
            if root.unreadable is not None:
                yield unreadable_root(each, root.path, root.unreadable, after)
                continue
            after = root.created_at_millis
            yield root
        version, left, batch = version - count, left - count, min(batch * 2, _BATCH)


def since(files: RootFiles, base: Root) -> tuple[list[Delta], Root]:
    """Return the deltas of all versions after ``base``, oldest first, and the newest root. REQUIRES that there is one.

    One ``get`` each, one that finds nothing, and one for the boundary. Of the roots only the newest is kept in memory,
    of all others a few hundred bytes and their messages.

    Raises:
        TransactionExpired: versions after ``base`` have expired already.
        CorruptNode: a root that must exist is missing or cannot be read, or is not the one that its successor was
            committed on.
        CommitConflict: one that cannot be read was left behind by others: what it changed is not known.
    """
    found: list[Delta] = []
    newest = base
    while True:
        for root in _following(files, newest.version):
            if root.unreadable is not None:
                raise _unknown_change(files, root)
            refuse_unlinked(newest, root)
            found.append(root.delta(found[-1] if found else None))
            newest = root
        boundary = files.boundary()
        if found and boundary <= newest.version:
            return found, newest
        # A root that was there is missing. Either it has expired since, or it was only just committed.
        following = files.try_root(newest.version + 1)
        if following is None and boundary <= newest.version + 1:
            raise missing_root(files, newest.version + 1, boundary)
        if following is None:
            raise TransactionExpired(f"the versions after {base.version} have expired; begin a new transaction")


def _unknown_change(files: RootFiles, root: Root) -> CommitConflict | CorruptNode:
    """Return the error for a commit that meets a root which cannot be read. One ``head``."""
    if files.root_exists(root.version + 1):
        return CommitConflict(
            f"version {root.version} cannot be read, and others went on without it; begin a new transaction",
            version=root.version,
        )
    return CorruptNode(f"the newest root {root.path!r} cannot be read: {root.unreadable}", path=root.path)


def refuse_unlinked(before: RootRows, root: RootRows) -> None:
    """Prove that ``root`` was committed on top of ``before``, as far as it says (format, section 3).

    Raises:
        CorruptNode: one of the two stands where another root was.
    """
    if not root.follows(before):
        raise CorruptNode(
            f"the root {root.path!r} was not committed on top of the root {before.path!r} that is there",
            path=root.path,
            invariant="I14",
        )


def _following(files: RootFiles, version: int) -> Iterator[Root]:
    """Yield the roots after a version, up to the first that does not exist."""
    count = 0
    while True:
        wanted = range(version + count + 1, version + count + 1 + min(max(1, count), _BATCH))
        for root in files.readable_roots(wanted):
            if root is None:
                return
            yield root
        count += len(wanted)
