"""The commit protocol: the only creator of roots (format, section 6).

A *change* builds a root on top of a base. When another writer won the version, :meth:`VersionChange.rebase` decides
whether the change may be built again, on top of the newest version.
"""

from __future__ import annotations

import getpass
import json
import os
import random
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol, TypeAlias

from trinitylake_core import clock, spec
from trinitylake_core.commits.backend import LakehouseBackend
from trinitylake_core.commits.bulk import ChangesUnreadable
from trinitylake_core.commits.confirm import confirm_commit, expired_error
from trinitylake_core.commits.fences import Fences
from trinitylake_core.commits.frozen import freeze_in_force, refuse_frozen
from trinitylake_core.errors import (
    AlreadyExists,
    CommitConflict,
    Corrupt,
    CorruptNode,
    LakehouseFrozen,
    OutcomeUnknown,
    ReadOnly,
    TransactionExpired,
)
from trinitylake_core.tree.node import Node
from trinitylake_core.tree.nodefile import encode
from trinitylake_core.tree.nodestore import NodeWriter
from trinitylake_core.versions import CountBounds, Delta, Root, SystemRows

MAX_ATTEMPTS = 100
"""How often a lost race is tried again before the commit gives up."""
_BACKOFF_SECONDS = 0.005
_BACKOFF_MAX_SECONDS = 0.5


Summary: TypeAlias = dict[str, Any]
"""What a version says of itself: who made it, why, and what it changed."""


@dataclass(slots=True)
class Draft:
    """The content of a new root. ``system`` adds to, or replaces, the rows that every commit carries forward."""

    node: Node
    operation: str
    txn: str
    summary: Summary = field(default_factory=dict)
    system: SystemRows = field(default_factory=dict)
    counts: CountBounds | None = None
    """How many objects the version holds at least and at most; ``None`` = unknown."""
    is_bulk: bool = False
    """Whether messages of the transaction are further down than in the buffer of the root."""


class VersionChange(Protocol):
    """Something that becomes a version."""

    def build(self, base: Root, created_at_millis: int, writer: NodeWriter) -> Draft:
        """Return the root on top of ``base``. Non-root nodes go to ``writer``."""

    def rebase(self, base: Root, newer: Sequence[Delta]) -> None:
        """Prepare for being built on top of the last of ``newer``. Raises ``CommitConflict``."""

    def renew(self, base: Root) -> None:
        """Write again, under new names, what was written before ``base`` was read: it may be void.

        Raises ``CommitConflict`` if that is more than a commit can do; then the whole job starts over.
        """


def commit(
    backend: LakehouseBackend,
    base: Root,
    change: VersionChange,
    *,
    began_at_millis: int | None = None,
    attempts: int = MAX_ATTEMPTS,
    before_commit: Callable[[], None] | None = None,
    unknown: bool = False,
    urgent: bool = False,
    fences: Fences | None = None,
) -> Root:
    """Commit a change as the next version, rebasing it over versions that other writers commit first; return its root.

    Costs what the change writes, 1 ``create``, and beside each other 1 ``put`` (the hint), 1 ``get`` (the boundary)
    and 1 ``head`` (the next version). For each lost race one ``get`` per version lost to, and two more. Everything the
    root refers to is durable before the root is visible.
    ``before_commit`` is called right before the root is created, each time it is tried; raising there gives the
    change up, and leaves what was written for it as orphans. ``unknown`` means that an earlier call for the same change
    ended with ``OutcomeUnknown``; the change finds itself among what was committed since
    (:meth:`VersionChange.rebase`). ``urgent`` tries again without waiting after a lost race, before all writers that
    wait.
    ``fences`` are given where files were written since an older root than ``base`` was read.

    Nothing that was written is removed here after any outcome: a request whose answer was lost may be carried out
    later, and a root whose creation seemed to fail may be a version. `clean` removes what no version reaches.

    REQUIRES: ``base`` was read before anything was written that the change refers to, and that ``base`` does not
    reach. By that ``fences`` know what a cleaning that came in between may have removed, whenever the process
    stood still, and however long.

    Raises:
        CommitConflict: the change conflicts with a version that was committed since ``base``.
        TransactionExpired: more than ``txn_ttl_millis`` passed since ``began_at_millis``, or ``base`` has expired.
        LakehouseFrozen: the newest version is frozen, and this is an ordinary commit.
        Corrupt: a root is missing between others; nothing was committed.
        OutcomeUnknown: nothing proves whether the change was committed.
        StorageError: the storage failed, and nothing was committed.
        LakehouseReplaced, ReadOnly, UnsafeStorage.
    """
    require_writable(backend, base)
    backend.refuse_unsafe()
    began = clock.now_millis() if began_at_millis is None else began_at_millis
    ttl = backend.definition(base).txn_ttl_millis
    fences = fences or Fences(backend.storage, base)
    doubt = _Doubt(unknown)
    for attempt in range(attempts):
        try:
            refuse_outlived(began, ttl)
            # Where the next version is known to be there, its creation fails, or fills the place of a lost root.
            if backend.newest_seen.version <= base.version:
                root = _attempt(backend, base, change, began, ttl, doubt, before_commit)
                if root is not None:
                    backend.note_newest(root)
                    return root
            # Wait first: what is read after that is as new as can be when the next root is created.
            if not urgent:
                time.sleep(random.uniform(0, min(_BACKOFF_MAX_SECONDS, _BACKOFF_SECONDS * 2**attempt)))  # noqa: S311 - jitter
            newer, newest = backend.since(base)
        except (TransactionExpired, CommitConflict, LakehouseFrozen, Corrupt) as error:
            doubt.refuse_to_deny(error)
            raise
        doubt.read_up_to(newest.version)
        try:
            change.rebase(base, newer)
        except ChangesUnreadable as error:  # an earlier call may have read them, and have gone on
            doubt.refuse_to_deny(error)
            raise
        base = newest
        require_writable(backend, base)
        backend.note_newest(base)
        if fences.void(newer):
            change.renew(base)
            fences = Fences(backend.storage, base)
    raise CommitConflict(
        f"gave up after {attempts} lost races; try again when fewer writers commit", version=base.version
    )


@dataclass(slots=True)
class _Doubt:
    """Whether a try of this change whose answer was lost may be a version, or become one by a request that is late.

    ``version`` is the one that the try was to be; 0 if it is that of an earlier call, which may have been any up to the
    next one.
    """

    is_left: bool
    version: int = 0

    def note_lost_answer(self, version: int) -> None:
        """Note that the answer to the creation of a version was lost, and that another root has the name by now."""
        self.is_left, self.version = True, version

    def read_up_to(self, newest: int) -> None:
        """Note that every root from the base to the newest was read, and none of them is this change.

        A late request cannot create a root whose name is taken. Only one for the next version is still to be feared.
        """
        self.is_left = self.is_left and not 0 < self.version <= newest
        self.version = self.version or newest + 1

    def refuse_to_deny(self, error: TransactionExpired | CommitConflict | LakehouseFrozen | Corrupt) -> None:
        """Raise ``OutcomeUnknown`` in the place of an error that denies the commit, if that is in doubt."""
        if self.is_left:
            raise OutcomeUnknown(
                "an answer of the storage was lost, and this may have been committed all the same. Look at the history "
                f"before you do it again. What came next: {error}"
            ) from error


def refuse_outlived(began_at_millis: int, ttl_millis: int) -> None:
    """Raise ``TransactionExpired`` past the time to live."""
    if clock.now_millis() >= began_at_millis + ttl_millis:
        raise TransactionExpired("the transaction is past its time to live (txn_ttl_millis); begin a new one")


def _is_late(base: Root, began_at_millis: int, ttl_millis: int) -> bool:
    """Whether the version after ``base`` may well have expired, so that a check before the creation saves one.

    A courtesy by the age of ``base``: safety rests on the check afterwards (``confirm_commit``).
    """
    return clock.now_millis() >= min(began_at_millis, base.created_at_millis) + ttl_millis // 2


def _attempt(
    backend: LakehouseBackend,
    base: Root,
    change: VersionChange,
    began_at_millis: int,
    ttl_millis: int,
    doubt: _Doubt,
    before_commit: Callable[[], None] | None,
) -> Root | None:
    """Make a change the version after ``base`` and return its root, ``None`` if another writer has that version.

    ``None`` also if ``base`` is frozen, and a version after it is not; and if ``base`` cannot be read any more, and is
    not the newest version.
    """
    stamp = max(clock.now_millis(), base.created_at_millis + 1)
    writer = NodeWriter(backend.nodes)
    try:
        draft = change.build(base, stamp, writer)
    except Corrupt:  # what only ``base`` reaches is removed once it has expired
        if backend.newest().version == base.version:
            raise
        return None
    if draft.operation in spec.FROZEN_OPERATIONS and freeze_in_force(backend, backend.definition(base)) is not None:
        refuse_frozen(backend)
        return None
    node = finish_root(base, draft, stamp, writer.target_bytes)
    path = backend.versions.path(base.version + 1)
    data = encode(node, writer.order, path)
    node.nbytes = len(data)
    writer.flush()
    if _is_late(base, began_at_millis, ttl_millis) and (boundary := backend.versions.boundary()) > base.version + 1:
        raise expired_error(backend.versions, base.version + 1, boundary)
    if before_commit is not None:
        before_commit()
    try:
        backend.storage.create(path, data)
    except AlreadyExists as taken:
        if taken.after_lost_answer:
            doubt.note_lost_answer(base.version + 1)
        return None
    root = Root(base.version + 1, path, node, data)
    confirm_commit(backend.versions, root)
    return root


def finish_root(base: Root | None, draft: Draft, stamp: int, target_bytes: int) -> Node:
    """Return the root node of a draft with all its system rows set. A node may have ``target_bytes``."""
    carried = base.node.system if base is not None else {}
    is_counted = draft.counts is not None and draft.counts.exact is not None
    is_settled = is_counted and draft.node.subtree_messages == 0
    fits = draft.node.estimated_bytes() <= target_bytes
    rows: SystemRows = {
        spec.LAKEHOUSE_DEF: carried.get(spec.LAKEHOUSE_DEF),
        spec.LAKEHOUSE_DEF_COPY: carried.get(spec.LAKEHOUSE_DEF_COPY),
        spec.PREVIOUS_ROOT: None if base is None else base.path,
        spec.PREVIOUS_TXN: None if base is None else base.txn,
        spec.VERSION: str(0 if base is None else base.version + 1),
        spec.CREATED_AT_MILLIS: str(stamp),
        spec.OLDEST_VERSION: carried.get(spec.OLDEST_VERSION, "0"),
        spec.VOID_BEFORE_MILLIS: carried.get(spec.VOID_BEFORE_MILLIS),
        spec.TABLES_VOID_BEFORE_MILLIS: carried.get(spec.TABLES_VOID_BEFORE_MILLIS),
        spec.REQUESTS_UNTIL_MILLIS: str(0 if base is None else base.requests_until_millis),
        spec.OPERATION: spec.OP_BULK if draft.is_bulk else draft.operation,
        spec.BULK_OPERATION: draft.operation if draft.is_bulk else None,
        spec.SETTLED_AT_MILLIS: str(stamp) if is_settled else carried.get(spec.SETTLED_AT_MILLIS),
        spec.FITS: str(target_bytes) if fits else None,
        spec.TXN_ID: draft.txn,
        spec.SUMMARY: json.dumps(draft.summary, separators=(",", ":"), sort_keys=True),
    }
    if draft.counts is not None:
        rows |= draft.counts.rows()
    rows |= draft.system
    draft.node.system = {name: value for name, value in rows.items() if value is not None}
    return draft.node


def is_other_generation(backend: LakehouseBackend, base: Root) -> bool:
    """Whether another generation of the format wrote this version."""
    return backend.versions.sdk or not base.node.canonical or spec.LAKEHOUSE_DEF not in base.node.system


def require_writable(backend: LakehouseBackend, base: Root) -> None:
    """Refuse to write a lakehouse that another generation of the format wrote, or whose order is not that of its root.

    A writer makes as many rows as the order is: one that was tampered with would make it fill the memory.

    Raises:
        LakehouseReplaced: ``base`` is of another lakehouse than the one that was opened.
        ReadOnly: another generation of the format.
        CorruptNode: the key table of the root has not as many rows as the order in the lakehouse definition.
    """
    if is_other_generation(backend, base):
        raise ReadOnly(
            f"{backend.storage.root} was written by another generation of the format and is read-only here; "
            f"`trinitylake upgrade {backend.storage.root} <new root>` writes a canonical copy that can be changed"
        )
    backend.refuse_replaced(base)
    rows, order = base.node.table_rows, backend.definition(base).order
    if rows is not None and rows != order:
        raise CorruptNode(
            f"root {base.path!r} has a key table of {rows} rows, but the order is {order}: one of them "
            "was tampered with, and nothing was written; restore it from an export",
            path=base.path,
            invariant="I2",
        )


def new_id() -> str:
    """Return a new transaction ID."""
    return str(uuid.uuid4())


_AUTHOR: ContextVar[str | None] = ContextVar("author", default=None)


@contextmanager
def acting_as(author: str | None) -> Iterator[None]:
    """Commit in the name of a person who launched this work from elsewhere; ``None``: of this process."""
    token = _AUTHOR.set(author)
    try:
        yield
    finally:
        _AUTHOR.reset(token)


def whoami() -> str:
    """Return the author of what is committed now, for the summary of a version."""
    return _AUTHOR.get() or _of_process()


@cache
def _of_process() -> str:
    """Return the author of commits of this process; ``TRINITYLAKE_AUTHOR`` overrides."""
    if author := os.environ.get("TRINITYLAKE_AUTHOR"):
        return author
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
