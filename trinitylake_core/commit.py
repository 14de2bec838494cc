"""The commit protocol: the only creator of roots (format, section 6).

A *change* builds a root on top of a base. When somebody else won the version, the change is asked
whether it may be rebased onto what was committed meanwhile, and is built again on top of that.
"""

from __future__ import annotations

import getpass
import json
import logging
import os
import random
import socket
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol

from trinitylake_core import spec
from trinitylake_core.acknowledge import acknowledge, expired, remove_quietly, write_hint
from trinitylake_core.check import check_tree
from trinitylake_core.definitions import LakehouseDef
from trinitylake_core.errors import (
    AlreadyExists,
    CommitConflict,
    Corrupt,
    CorruptNode,
    FileMissing,
    ReadOnly,
    StorageError,
    TransactionExpired,
)
from trinitylake_core.node import Messages, Node
from trinitylake_core.nodefile import decode, encode
from trinitylake_core.nodestore import NodeStore, NodeWriter
from trinitylake_core.rewrite import Rewriter
from trinitylake_core.storage import Storage
from trinitylake_core.subtree import heaviest_children
from trinitylake_core.versions import Delta, Root, RootRows, Versions

_LOG = logging.getLogger(__name__)
MAX_ATTEMPTS = 100
"""How often a lost race is tried again before the commit gives up."""
_BACKOFF_SECONDS = 0.005
_BACKOFF_MAX_SECONDS = 0.5


@dataclass(slots=True)
class Draft:
    """What a new root will say. ``system`` adds to, or replaces, the rows that every commit carries forward."""

    node: Node
    operation: str
    txn: str
    summary: dict[str, Any] = field(default_factory=dict)
    system: dict[str, str | None] = field(default_factory=dict)
    disposable: bool = True
    """Whether the nodes written for this draft are of no use when the race is lost."""


class Change(Protocol):
    """Something that becomes a version."""

    def build(self, base: Root, created_at_millis: int, writer: NodeWriter) -> Draft:
        """Return the root on top of ``base``. Non-root nodes go to ``writer``."""

    def rebase(self, base: Root, newer: Sequence[Delta]) -> None:
        """Prepare for being built on top of the last of ``newer``. Raises ``CommitConflict``."""

    def renew(self, base: Root) -> None:
        """Write again, under new names, what was written before ``base`` was read: it may be void.

        Raises ``CommitConflict`` if that is more than a commit can do; then the whole job starts over.
        """


class Files:
    """Storage, nodes and versions of one lakehouse: what reading and committing need.

    ``tip`` is the newest root this process has seen; a transaction begins there.
    """

    def __init__(self, storage: Storage, versions: Versions, tip: Root, *, strict: bool = False) -> None:
        self.storage = storage
        self.versions = versions
        self.tip = tip
        self.strict = strict
        self._proven = False
        definition = versions.definition(tip)
        self.store = NodeStore(storage, definition.order, definition.node_file_max_size_bytes)

    def definition(self, root: RootRows) -> LakehouseDef:
        """Return the lakehouse definition of a version."""
        return self.versions.definition(root)

    def saw(self, root: Root) -> None:
        """Remember a root that may be the newest."""
        if root.version > self.tip.version:
            self.tip = root

    def newest(self) -> Root:
        """Return the newest root, from the tip on. Three ``get`` if there is none newer; the tip stays as it is."""
        return self.versions.latest(self.tip)

    def refuse_unsafe(self, base: Root) -> None:
        """Refuse a storage that ignores exclusive creation, before anything is written to it.

        Proved by creating again the lakehouse definition of ``base``: it is there, and never changes. A root
        would do, too, but if it has expired meanwhile the proof would bring it back.
        Raises ``UnsafeStorage``. One ``create`` the first time a process writes below a root.
        """
        if not self._proven:
            self.storage.prove_exclusive_create(base.definition_path, self.versions.definition_data(base))
            self._proven = True

    def refuse_no_compare_and_set(self, base: Root) -> None:
        """Refuse a storage that cannot compare and set, before the boundary depends on it. Raises ``UnsafeStorage``.

        Proved by replacing the lakehouse definition of ``base`` by itself, under a condition that does not hold. One
        ``put`` the first time in a process on an object store.
        """
        self.storage.prove_compare_and_set(base.definition_path, self.versions.definition_data(base))

    def refuse_broken(self, path: str, version: int, data: bytes | memoryview) -> None:
        """Prove the root that is about to be created, in strict mode; otherwise do nothing. Reads the whole tree.

        Raises:
            Corrupt: it breaks an invariant; nothing was committed.
        """
        if self.strict:
            root = Root(version, path, decode(data, path, self.store.order), data)
            for found in check_tree(self.versions, root):
                raise Corrupt(f"{found.file}: {found.message}; nothing was committed", invariant=found.invariant)

    def fork(self) -> Files:
        """Return the same files with a node store of its own, for one writer."""
        return Files(self.storage, self.versions, self.tip, strict=self.strict)


def commit(
    files: Files,
    base: Root,
    change: Change,
    *,
    began_at_millis: int | None = None,
    attempts: int = MAX_ATTEMPTS,
    before_commit: Callable[[], None] | None = None,
) -> Root:
    """Make a change the next version, rebasing over whoever comes first, and return its root.

    Costs what the change writes, 1 ``create``, and beside each other 1 ``put`` (the hint), 1 ``get`` (the boundary)
    and 1 ``head`` (the next version). For each lost race one ``get`` per version lost to, and two more. Everything the
    root refers to is durable before the root is visible.
    ``before_commit`` is called right before the root is created, each time it is tried; raising there gives the
    change up, and leaves what was written for it as orphans.

    REQUIRES: ``base`` was read before anything was written that the change refers to, and that ``base`` does not
    reach. By that :class:`_Fences` knows what a cleaning that came in between may have removed, whenever the process
    stood still, and however long.

    Raises:
        CommitConflict: the change does not go with what was committed meanwhile.
        TransactionExpired: more than ``txn_ttl_millis`` passed since ``began_at_millis``, or ``base`` has expired.
        Corrupt: a root is missing between others; nothing was committed.
        StorageError: the storage failed; the message says so if nobody knows whether the change was committed.
        ReadOnly, UnsafeStorage.
    """
    refuse_foreign(files, base)
    files.refuse_unsafe(base)
    now = now_millis()
    began = now if began_at_millis is None else began_at_millis
    lifetime = _Lifetime(began, files.definition(base).txn_ttl_millis)
    fences = _Fences(files.storage, base)
    for attempt in range(attempts):
        lifetime.refuse_expired()
        root = _attempt(files, base, change, lifetime, before_commit)
        if root is not None:
            files.saw(root)
            return root
        # Wait first: what is read after that is as new as can be when the next root is created.
        time.sleep(random.uniform(0, min(_BACKOFF_MAX_SECONDS, _BACKOFF_SECONDS * 2**attempt)))  # noqa: S311 - jitter
        newer, newest = files.versions.since(base)
        change.rebase(base, newer)
        base = newest
        refuse_foreign(files, base)
        files.saw(base)
        if fences.void(newer):
            change.renew(base)
            fences = _Fences(files.storage, base)
    raise CommitConflict(
        f"gave up after {attempts} lost races; try again when fewer writers commit", version=base.version
    )


@dataclass(frozen=True, slots=True)
class _Lifetime:
    """When a transaction began and how long it may live (the name-reuse fence of the format, section 6)."""

    began_at_millis: int
    ttl_millis: int

    def refuse_expired(self) -> None:
        """Raise ``TransactionExpired`` past the time to live."""
        if now_millis() >= self.began_at_millis + self.ttl_millis:
            raise TransactionExpired("the transaction is past its time to live (txn_ttl_millis); begin a new one")

    def fenced(self, base: Root) -> bool:
        """Whether the version after ``base`` may well have expired, so that a look before the creation saves one.

        A courtesy by the age of ``base``: safety rests on the look afterwards (``acknowledge``), which is always made.
        """
        return now_millis() >= min(self.began_at_millis, base.created_at_millis) + self.ttl_millis // 2


class _Fences:
    """What the fences of cleanings mean for files written since a root was read (format, section 6).

    A fence says that files written before its time are void unless a root up to it reaches them. A commit that wins
    without having lost needs no look: a fence that is older than the files was in the chain when ``began`` was read,
    and its time lies before that; a later one finds the new root in the chain and keeps what it reaches.

    What counts is when ``began`` was stored, by the storage's own clock. That is before any file of the change was,
    however many there are, in whichever order and however often they were sent. It may be much earlier, so a change on
    top of an old root is now and then renewed without need; once, for it then stands on the fence.
    """

    def __init__(self, storage: Storage, began: Root) -> None:
        self._storage = storage
        self._began = began
        self._seen = False

    def void(self, newer: Sequence[Delta]) -> bool:
        """Whether files written since ``began`` may be gone, now that ``newer`` came in between.

        No request without a fence among them; else one ``head``.
        """
        newest = newer[-1]
        fenced = any(root.operation == spec.OP_CLEAN for root in newer)
        self._seen = self._seen or fenced
        if not self._seen:
            return False
        if self._began.version < newest.oldest_version:
            return True  # it has expired: a file of its name would be another's
        return fenced and _stored_at(self._storage, self._began) < newest.void_before_millis


def may_be_void(files: Files, base: Root) -> bool:
    """Whether files that a version reaches, or that were written since it was read, may be gone.

    For a job that cannot read something: this tells damage from what `expire` and `clean` removed under its hands.
    Two ``get`` and one ``head``.
    """
    newest = files.newest()
    return base.version < newest.oldest_version or _stored_at(files.storage, base) < newest.void_before_millis


def _stored_at(storage: Storage, root: Root) -> int:
    """Return when a root was stored, by the storage's clock; 0 if it is gone. One ``head``."""
    try:
        return storage.info(root.path).modified_millis
    except FileMissing:
        return 0


def _attempt(
    files: Files, base: Root, change: Change, lifetime: _Lifetime, before_commit: Callable[[], None] | None
) -> Root | None:
    stamp = max(now_millis(), base.created_at_millis + 1)
    writer = NodeWriter(files.store)
    draft = change.build(base, stamp, writer)
    node = finished(base, draft, stamp)
    path = files.versions.path(base.version + 1)
    data = encode(node, writer.order, path)
    node.nbytes = len(data)
    writer.flush()
    if lifetime.fenced(base) and files.versions.boundary() > base.version + 1:
        remove_quietly(files.storage, writer.written)
        raise expired(base.version + 1)
    files.refuse_broken(path, base.version + 1, data)
    if before_commit is not None:
        before_commit()
    try:
        files.storage.create(path, data)
    except AlreadyExists:
        if draft.disposable:
            remove_quietly(files.storage, writer.written)
        return None
    root = Root(base.version + 1, path, node, data)
    acknowledge(files.versions, root, writer.written)
    return root


def finished(base: Root | None, draft: Draft, stamp: int) -> Node:
    """Return the root node of a draft with all its system rows set."""
    carried = base.node.system if base is not None else {}
    version = 0 if base is None else base.version + 1
    rows: dict[str, str | None] = {
        spec.LAKEHOUSE_DEF: carried.get(spec.LAKEHOUSE_DEF),
        spec.LAKEHOUSE_DEF_COPY: carried.get(spec.LAKEHOUSE_DEF_COPY),
        spec.PREVIOUS_ROOT: None if base is None else base.path,
        spec.PREVIOUS_TXN: None if base is None else base.txn,
        spec.VERSION: str(version),
        spec.CREATED_AT_MILLIS: str(stamp),
        spec.OLDEST_VERSION: carried.get(spec.OLDEST_VERSION, "0"),
        spec.VOID_BEFORE_MILLIS: carried.get(spec.VOID_BEFORE_MILLIS),
        spec.OPERATION: draft.operation,
        spec.TXN_ID: draft.txn,
        spec.SUMMARY: json.dumps(draft.summary, separators=(",", ":"), sort_keys=True),
    }
    rows |= draft.system
    draft.node.system = {name: value for name, value in rows.items() if value is not None}
    return draft.node


def is_foreign(files: Files, base: Root) -> bool:
    """Return whether another generation of the format wrote this version."""
    return files.versions.sdk or not base.node.canonical or spec.LAKEHOUSE_DEF not in base.node.system


def refuse_foreign(files: Files, base: Root) -> None:
    """Refuse to write a lakehouse that another generation of the format wrote, or whose order is not that of its root.

    A writer makes as many rows as the order says: one that was tampered with would make it fill the memory.

    Raises:
        ReadOnly: another generation of the format.
        CorruptNode: the key table of the root has not as many rows as the lakehouse definition says.
    """
    if is_foreign(files, base):
        raise ReadOnly(
            f"{files.storage.root} was written by another generation of the format and is read-only here; "
            f"`trinitylake upgrade {files.storage.root} <new root>` writes a canonical copy that can be changed"
        )
    rows, order = base.node.table_rows, files.definition(base).order
    if rows is not None and rows != order:
        raise CorruptNode(
            f"root {base.path!r} has a key table of {rows} rows, but the definition says {order}: one of them "
            "was tampered with, and nothing was written; restore it from an export",
            path=base.path,
            invariant="I2",
        )


def storage_time(files: Files) -> int:
    """Return the time by the storage's own clock, in epoch milliseconds; never later than it is.

    It is what the storage says of the hint, which is written for that: one ``put`` and one ``head``. Whoever else
    writes it meanwhile does no harm. Raises ``StorageError``.
    """
    write_hint(files.storage, files.tip.version)
    try:
        return files.storage.info(spec.HINT_FILE).modified_millis
    except FileMissing:
        raise StorageError(f"the clock of {files.storage.root} cannot be read: no hint can be written") from None


def flushed_for(writer: NodeWriter, base: Root, own: Messages, stamp: int, buffer_bytes: int) -> Node:
    """Return the node of ``base``, its older messages pushed down if with ``own`` the root would grow too large.

    That is: a write buffer of more than ``buffer_bytes``, which every commit writes again, or a node over its target.
    Then the heaviest children get their messages, until half of either is free; about one ``put`` per such child.
    """
    node, target = base.node, writer.target_bytes
    size, buffered = own.nbytes(), node.buffer.nbytes()
    if not buffered or (buffered + size <= buffer_bytes and node.estimated_bytes() + size <= target):
        return node
    rewriter = Rewriter(writer, stamp)
    tree = rewriter.ref_of(node)
    top, below = rewriter.open(tree), max(target - size, target // 2)
    room = node.table_bytes() + max(buffer_bytes - size, buffer_bytes // 2)
    of_root, of_others = heaviest_children(min(room, below)), heaviest_children(below)
    tree = rewriter.flush(tree, lambda work: (of_root if work is top else of_others)(work))
    rewriter.open(tree)
    return rewriter.node_of(tree)


def new_id() -> str:
    """Return a new transaction ID."""
    return str(uuid.uuid4())


def now_millis() -> int:
    """Return the time in epoch milliseconds."""
    return time.time_ns() // 1_000_000


@cache
def whoami() -> str:
    """Return who is running this process, for the summary of a version; ``TRINITYLAKE_AUTHOR`` overrides."""
    if author := os.environ.get("TRINITYLAKE_AUTHOR"):
        return author
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
