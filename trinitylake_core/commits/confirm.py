"""From a root that was created to a commit that is acknowledged (format, section 6).

Creating a root proves that no other writer has the version. It does not prove that the version was the next one: its
name may have been freed by expiration, or its root may be lost. So a writer that created a root proves it while it
writes the hint: no further round trip.

A writer deletes nothing that the root refers to. Its files are live if the root is a version after all, and what this
writer believes about that may be wrong: `clean` removes what no version reaches.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from trinitylake_core import spec
from trinitylake_core.errors import (
    MAYBE_THE_STORE,
    Corrupt,
    CorruptNode,
    FileMissing,
    NotALakehouse,
    OutcomeUnknown,
    StorageError,
    TransactionExpired,
    TrinityLakeError,
)
from trinitylake_core.storage import Storage
from trinitylake_core.versions import Root, Versions
from trinitylake_core.versions.boundary import boundary_by_roots
from trinitylake_core.versions.search import newest_listed

_LOG = logging.getLogger(__name__)


def confirm_commit(versions: Versions, root: Root) -> None:
    """Write the hint, and prove at the same time that the root which was just created is the next version.

    One ``put``, one ``get`` and one ``head``, at the same time. One ``get`` more if there is a version after it. Where
    this or another thread has found evidence that the store does not decide, it is proved again (``settle_doubt``), and
    from then on the root is read back: one ``get`` more.

    Raises:
        TransactionExpired: the version had expired before, and its name was free: the version after it names another
            predecessor. Nothing was committed.
        CorruptNode: the version after it was there before: a root was lost. Nothing was committed.
        OutcomeUnknown: nothing proves whether the root is a version. Its files stay.
    """
    kept_from, is_followed = _look_around(versions, root)
    built_on = _is_built_on(versions, root) if is_followed else None
    if kept_from > root.version:
        if built_on is None:
            raise _unknown_outcome(root, _below(versions, kept_from))
        if not built_on:
            raise expired_error(versions, root.version, kept_from)
    elif is_followed:
        if built_on is None:
            raise _unknown_outcome(root, f"version {root.version + 1} is there, and does not tell what it follows")
        if not built_on:
            raise _lost_error(versions, root)
    try:
        # What the store agreed to before it was found out may be another writer's by now.
        is_ours = not versions.storage.settle_doubt() or versions.storage.read(root.path) == root.data
    except (StorageError, FileMissing) as error:
        raise _unknown_outcome(root, f"another writer may have won, too: {error}") from error
    if not is_ours:
        raise _unknown_outcome(root, "another writer won, too, and its root is there")


def _look_around(versions: Versions, root: Root) -> tuple[int, bool]:
    """Return the boundary, and whether there is a version after a root; write the hint meanwhile.

    Raises ``OutcomeUnknown``: one of both cannot be told.
    """

    def boundary() -> int | TrinityLakeError:
        try:
            stored = versions.boundary_file()
            return boundary_by_roots(versions) if stored is None else stored
        except TrinityLakeError as error:
            return error

    def is_followed() -> bool | TrinityLakeError:
        try:
            return versions.root_exists(root.version + 1)
        except StorageError as error:
            return error

    def hint() -> bool:
        write_hint(versions.storage, root.version)
        return True

    actions: tuple[Callable[[], int | TrinityLakeError], ...] = (boundary, is_followed, hint)
    kept_from, followed, _ = versions.storage.map(actions, lambda action: action())
    if isinstance(kept_from, TrinityLakeError):
        raise _unknown_outcome(root, f"the boundary cannot be read: {kept_from}") from kept_from
    if isinstance(followed, TrinityLakeError):
        raise _unknown_outcome(root, f"whether version {root.version + 1} was there before: {followed}") from followed
    return kept_from, bool(followed)


def _lost_error(versions: Versions, root: Root) -> CorruptNode:
    """Return the error for a root that the version after it was not built on.

    Where the store decides, it stands in the place of a lost one, where it is no version; so it is removed. Where it
    does not, it replaced the one that was acknowledged. Then it is all that is left of this version, and stays.
    """
    versions.storage.doubt()
    text = f"the root {root.path!r} of version {root.version} was lost: it was not there, and later versions are. "
    try:
        versions.storage.settle_doubt()
    except StorageError as error:
        text = f"the root {root.path!r} took the place of that of another writer, and later versions build on that. "
        text += f"It was left there: {error}. "
    else:
        remove_quietly(versions.storage, [root.path])
    return CorruptNode(f"{text}Nothing was committed. {MAYBE_THE_STORE}", path=root.path, invariant="I14")


def _is_built_on(versions: Versions, root: Root) -> bool | None:
    """Whether the next version was committed on top of this root, ``None`` if nothing proves it. One ``get``."""
    try:
        following = versions.try_root(root.version + 1)
    except (StorageError, Corrupt) as error:
        _LOG.warning("whether the version after %s was committed on top of it could not be read: %s", root.path, error)
        return None
    if following is None:
        return None
    if spec.PREVIOUS_TXN in following.system:
        return following.follows(root)
    # The writer of another implementation, which does not name its predecessor: along a chain times only increase.
    return None if following.created_at_millis > root.created_at_millis else False


def expired_error(versions: Versions, version: int, boundary: int) -> TransactionExpired:
    """Return the error for a version below the boundary that was certainly not committed. One ``list``."""
    return TransactionExpired(f"version {version} was not committed: {_below(versions, boundary)}")


def _below(versions: Versions, boundary: int) -> str:
    """Return the reason for which a version below the boundary is none, and advice. One ``list``.

    Where no version is at the boundary yet, it is the claim of an export. That may be put back, so nothing is final.
    """
    try:
        claimed = newest_listed(versions)[0] < boundary
    except (StorageError, NotALakehouse):
        claimed = False
    if claimed:
        return (
            f"an export that begins with version {boundary} is under way to {versions.storage.root}, or was ended "
            "before it was complete. Repeat the export, or run `trinitylake expire` there, which gives the place back. "
            "Then refresh the handle, look at the history, and begin a new transaction if the changes are not there"
        )
    return (
        f"versions below {boundary} have expired. Refresh the handle, look at the history, and begin a new transaction "
        "if the changes are not there"
    )


def _unknown_outcome(root: Root, why: str) -> OutcomeUnknown:
    return OutcomeUnknown(f"{root.path} was created as version {root.version}, but whether it counts is unknown: {why}")


def write_hint(storage: Storage, version: int) -> None:
    """Write the latest hint, best effort: nothing ever trusts it. One ``put``."""
    try:
        storage.replace(spec.HINT_FILE, str(version).encode(), durable=False)
    except StorageError as error:
        _LOG.warning("the latest hint was not written, readers will search a little longer: %s", error)


def remove_quietly(storage: Storage, paths: Sequence[str]) -> None:
    """Remove files that no root which was ever tried refers to; what cannot be removed is an orphan for `clean`."""
    if not paths:
        return
    try:
        storage.delete_many(paths)
    except StorageError as error:
        _LOG.warning("%d files that nothing refers to are left as orphans: %s", len(paths), error)
