"""From a root that was created to a commit that is acknowledged (format, section 6).

Creating a root proves that no other writer has the version. It does not prove that the version was the next one: its
name may have been freed by expiration, or its root may be lost. Whoever created a root therefore looks, together with
writing the hint, so that it costs no further round trip.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from trinitylake_core import spec
from trinitylake_core.errors import (
    Corrupt,
    CorruptNode,
    FileMissing,
    NotALakehouse,
    StorageError,
    TransactionExpired,
    TrinityLakeError,
)
from trinitylake_core.storage import Storage
from trinitylake_core.versions import Root, Versions
from trinitylake_core.versions.boundary import boundary_by_roots
from trinitylake_core.versions.search import newest_listed

_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class _Look:
    """What was seen after a root was created. ``error`` is set if the boundary could not be seen."""

    boundary: int | None = None
    followed: bool = False
    error: TrinityLakeError | None = None


def acknowledge(versions: Versions, root: Root, written: Sequence[str]) -> None:
    """Write the hint, and prove at the same time that the root which was just created is the next version.

    ``written`` are the files that only this root refers to. They are removed with it where it is sure that it counts
    for nothing. One ``put``, one ``get`` and one ``head``, at the same time.

    Raises:
        TransactionExpired: the version had expired before, and its name was free; nothing is left of the commit.
        CorruptNode: the version after it was there before: a root was lost. Nothing is left of the commit.
        StorageError: it cannot be known whether the commit counts; the message says so.
    """
    look = _Look()

    def see() -> None:
        try:
            look.boundary = versions.boundary_file()
            look.boundary = boundary_by_roots(versions) if look.boundary is None else look.boundary
        except TrinityLakeError as error:
            look.error = error

    def see_next() -> None:
        try:
            look.followed = versions.root_exists(root.version + 1)
        except StorageError as error:  # it tells damage of long ago, and must not make an outcome unknown that is known
            _LOG.warning("whether a later version was there before %s could not be seen: %s", root.path, error)

    def hint() -> None:
        write_hint(versions.storage, root.version)

    for _ in versions.storage.map((see, see_next, hint), lambda action: action()):
        pass
    if look.error is not None:
        raise _unknown(root, f"the boundary cannot be read: {look.error}") from look.error
    if look.boundary is not None and look.boundary > root.version:
        raise _expired(versions, root, look.boundary, written)
    if look.followed and not _is_followed(versions, root):
        remove_quietly(versions.storage, [root.path, *written])
        raise CorruptNode(
            f"the root {root.path!r} of version {root.version} was lost: it was not there, and later versions are. "
            "Nothing was committed",
            path=root.path,
            invariant="I14",
        )


def _is_followed(versions: Versions, root: Root) -> bool:
    """Whether the next version was committed on top of this root, and not on another of its name. One ``get``."""
    try:
        following = versions.try_root(root.version + 1)
    except (StorageError, Corrupt) as error:
        _LOG.warning(
            "whether version %d was committed on top of %s could not be read: %s", root.version + 1, root.path, error
        )
        return True
    if following is None:  # it expired since; this one was at or above the boundary after it was created
        return True
    if spec.PREVIOUS_TXN in following.system:
        return following.follows(root)
    return following.created_at_millis > root.created_at_millis  # another writer, which does not say


def _expired(versions: Versions, root: Root, boundary: int, written: Sequence[str]) -> TrinityLakeError:
    """Return the error for a root that lies below the boundary, and remove it: there it counts for nothing.

    If the boundary was last written before the root was, by the storage's own clock, the name had been freed. If not,
    the version may have been committed, followed by others and expired, all before this look; then its files live on
    in later versions. Two ``head``.
    """
    storage = versions.storage
    try:
        freed = storage.info(spec.BOUNDARY_FILE).modified_millis < storage.info(root.path).modified_millis
    except (StorageError, FileMissing):
        freed = False
    remove_quietly(storage, [root.path, *written] if freed else [root.path])
    if freed:
        return expired(versions, root.version, boundary)
    return _unknown(
        root,
        f"it lies below the boundary {boundary} by now. Either it had expired before it was reached, or it was "
        "committed and expired since; begin a new transaction, and look first whether the changes are there",
    )


def expired(versions: Versions, version: int, boundary: int) -> TransactionExpired:
    """Return the error for a version below the boundary, whose commit is certain to count for nothing. One ``list``.

    Where no version is at the boundary yet, a copy that is put there is not complete, and the error says so.
    """
    try:
        claimed = newest_listed(versions)[0] < boundary
    except (StorageError, NotALakehouse):
        claimed = False
    if claimed:
        return TransactionExpired(
            f"version {version} was not committed: an export that begins with version {boundary} is under way to "
            f"{versions.storage.root}, or was ended before it was complete. Repeat the export; or, if nobody will, "
            "run `trinitylake expire` there, which gives the place back, and begin a new transaction"
        )
    return TransactionExpired(f"version {version} had expired before this commit reached it; begin a new transaction")


def _unknown(root: Root, why: str) -> StorageError:
    return StorageError(f"{root.path} was created as version {root.version}, but whether it counts is unknown: {why}")


def write_hint(storage: Storage, version: int) -> None:
    """Write the latest hint, best effort: nothing ever trusts it. One ``put``."""
    try:
        storage.replace(spec.HINT_FILE, str(version).encode(), durable=False)
    except StorageError as error:
        _LOG.warning("the latest hint was not written, readers will search a little longer: %s", error)


def remove_quietly(storage: Storage, paths: Sequence[str]) -> None:
    """Remove files that nothing refers to; what cannot be removed is an orphan for `clean`."""
    if not paths:
        return
    try:
        storage.delete_many(paths)
    except StorageError as error:
        _LOG.warning("%d files of a commit that failed are left as orphans: %s", len(paths), error)
