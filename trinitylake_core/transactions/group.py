"""Group commit: transactions that are committed at the same time and do not conflict become one version.

One thread at a time commits, for all that came while it waited for its turn. So a lakehouse takes as many commits a
second as fit into one version, and each of them costs a part of its requests. Nothing else changes: the root is the
lock, two processes with groups of their own race like all writers, and each transaction has its own outcome.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from trinitylake_core import spec
from trinitylake_core.commits.backend import LakehouseBackend
from trinitylake_core.commits.commit import Draft, commit, new_id, refuse_outlived, require_writable, whoami
from trinitylake_core.commits.fences import Fences
from trinitylake_core.errors import CommitConflict, OutcomeUnknown, TransactionExpired
from trinitylake_core.short_repr import first_of
from trinitylake_core.transactions.requests import Requests
from trinitylake_core.transactions.transaction import AlreadyCommitted, Transaction, appended, set_and_deleted
from trinitylake_core.tree.node import Messages
from trinitylake_core.tree.nodestore import NodeWriter
from trinitylake_core.versions import Delta, ObjectCounts, Root

LARGEST: Final = 128
"""So many transactions become one version; the summary of the version names each."""
_REMEMBERED: Final = 64
_AUTHORS: Final = 3


@dataclass(eq=False, slots=True)
class Entry:
    """A transaction that waits for its outcome: a version or an error."""

    txn: Transaction
    author: str
    version: int | None = None
    error: Exception | None = None
    called: threading.Lock = field(default_factory=threading.Lock)
    """Held until the outcome is known, or its thread is the one that commits."""

    def __post_init__(self) -> None:
        self.called.acquire()

    @property
    def is_over(self) -> bool:
        """Whether the outcome is known."""
        return self.version is not None or self.error is not None

    def outcome(self) -> int:
        """Return the version, or raise the error."""
        if self.error is not None:
            raise self.error
        return self.version or 0


class CommitGroup:
    """Commits the transactions of one process in groups. Thread-safe; a thread blocks until its own is decided."""

    def __init__(self, backend: LakehouseBackend) -> None:
        self._backend = backend
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._is_led = False
        self._waiting: list[Entry] = []
        self._recent: OrderedDict[int, Delta] = OrderedDict()
        self.requests = Requests(backend)

    def commit(self, txn: Transaction) -> int:
        """Commit a transaction whose definitions are written, and return its version.

        Raises what ``commits.commit`` raises, for this transaction alone.
        """
        txn.prove(txn.base)  # the requests of one member do not keep the others waiting
        entry = Entry(txn, whoami())
        with self._lock:
            self._waiting.append(entry)
            leads, self._is_led = not self._is_led, True
        if not leads:
            self._wait(entry)
        if not entry.is_over:
            self._lead(entry)
        return entry.outcome()

    def _lead(self, entry: Entry) -> None:
        """Commit for all that wait, until an own entry is decided; then the next one that waits does."""
        try:
            while not entry.is_over:
                with self._turn:
                    with self._lock:
                        batch, self._waiting = self._waiting[:LARGEST], self._waiting[LARGEST:]
                    try:
                        self.commit_together(batch)
                    finally:
                        for each in batch:
                            each.called.release()
        finally:
            with self._lock:
                self._hand_over()

    def _wait(self, entry: Entry) -> None:
        try:
            entry.called.acquire()
        except BaseException:  # the thread is ended: it must not keep the others waiting
            with self._lock:
                if entry in self._waiting:
                    self._waiting.remove(entry)
                    if entry.called.acquire(blocking=False):
                        self._hand_over()
            raise

    def _hand_over(self) -> None:
        self._is_led = bool(self._waiting)
        if self._is_led:
            self._waiting[0].called.release()

    def commit_together(self, batch: Sequence[Entry]) -> None:
        """Commit a batch, and note the outcome of each of its members."""
        change = _GroupChange(self._backend, self.remember)
        try:
            for entry in batch:
                change.add(entry)
            if not change.members:
                return
            # The version is recognised by the identity that it has now, even when members have left it.
            change.is_alone = len(change.members) == 1 and change.members[0].txn.request is None
            change.id = change.members[0].txn.id if change.is_alone else new_id()
            base, fences = self._stand(change)
            began = min(entry.txn.began_at_millis for entry in change.members)
            root = commit(self._backend, base, change, began_at_millis=began, fences=fences)
        except AlreadyCommitted as done:
            change.end(version=done.version)
        except Exception as error:  # noqa: BLE001 - each member raises it in its own thread
            change.end(error=error)
        except BaseException:
            change.end(error=OutcomeUnknown("the thread that committed the group was ended; look at the history"))
            raise
        else:
            self.remember([root.delta()])
            change.end(version=root.version)

    def remember(self, newer: Sequence[Delta]) -> None:
        """Keep what versions changed, for members that stand below them."""
        for delta in newer:
            self._recent[delta.version] = delta
            self.requests.note(delta)
        while len(self._recent) > _REMEMBERED:
            self._recent.popitem(last=False)

    def _stand(self, change: _GroupChange) -> tuple[Root, Fences]:
        """Return the root to build on, and the fences of what the members have written.

        Members that began before this process committed its last versions are rebased over them from memory. No
        request, unless a cleaning was among them. Where a version is not remembered, the commit reads it.
        """
        oldest = min((entry.txn.base for entry in change.members), key=lambda root: root.version)
        fences, tip = Fences(self._backend.storage, oldest), self._backend.newest_seen
        between = range(oldest.version + 1, tip.version + 1)
        if not between or any(version not in self._recent for version in between):
            return oldest, fences
        newer = [self._recent[version] for version in between]
        change.rebase(oldest, newer)
        require_writable(self._backend, tip)
        if fences.void(newer):
            change.renew(tip)
            fences = Fences(self._backend.storage, tip)
        return tip, fences


@dataclass(eq=False)
class _GroupChange:
    """Several transactions as one change of the commit protocol; those that conflict leave it.

    Attributes:
        members: those that are still in it.
        id: the transaction ID of the version: that of the only member, or one of the group's own.
        is_alone: whether there was one member from the beginning, and no other process can have its ID.
    """

    backend: LakehouseBackend
    seen: Callable[[Sequence[Delta]], None]
    members: list[Entry] = field(default_factory=list)
    id: str = ""
    is_alone: bool = False
    _taken: Messages = field(default_factory=Messages)

    def add(self, entry: Entry) -> None:
        """Take a transaction in, unless it conflicts with one that is in already: then that is its outcome."""
        txn = entry.txn
        touched = txn.conflicts().touched(self._taken)
        if touched or any(each.txn.id == txn.id for each in self.members):
            text = "a transaction of the same group changed what this one depends on; read again and retry it"
            entry.error = CommitConflict(text, keys=touched, version=self.backend.newest_seen.version)
            return
        try:
            refuse_outlived(txn.began_at_millis, txn.ttl_millis)
        except TransactionExpired as error:
            entry.error = error
            return
        self.members.append(entry)
        for message in txn.messages():
            self._taken.append(*message)

    def end(self, *, version: int | None = None, error: Exception | None = None) -> None:
        """Give every member that is left its outcome."""
        for entry in self.members:
            entry.version, entry.error = version, error

    def build(self, base: Root, created_at_millis: int, writer: NodeWriter) -> Draft:
        """Return the root on top of ``base`` with the messages of all members."""
        self._keep(lambda txn: txn.prove(base, created_at_millis))
        rows = sorted((key, value) for entry in self.members for key, value, _ in entry.txn.messages())
        own = Messages.of([(key, value, self.id) for key, value in rows])

        def gained() -> ObjectCounts:
            return ObjectCounts(*map(sum, zip(*(entry.txn.gained() for entry in self.members), strict=True)))

        node, counts = appended(self.backend, base, own, gained, created_at_millis, writer)
        authors = list(dict.fromkeys(entry.author for entry in self.members))
        reasons = [entry.txn.reason for entry in self.members if entry.txn.reason]
        summary: dict[str, Any] = {"author": first_of(authors, _AUTHORS), **set_and_deleted(own)}
        summary |= {"reason": first_of(reasons, _AUTHORS)} if reasons else {}
        if not self.is_alone:
            summary["members"] = [
                {"txn": entry.txn.id, "author": entry.author, **entry.txn.facts}
                | ({"reason": entry.txn.reason} if entry.txn.reason else {})
                for entry in self.members
            ]
        return Draft(node, spec.OP_COMMIT, self.id, summary, counts=counts)

    def rebase(self, base: Root, newer: Sequence[Delta]) -> None:
        """Prove each member against the versions that came after its base; those that conflict leave the group."""
        self.seen(newer)
        for root in newer:
            if root.txn == self.id:
                raise AlreadyCommitted(root.version)
        self._keep(lambda txn: txn.rebase(base, [root for root in newer if root.version > txn.base_version]))

    def renew(self, base: Root) -> None:
        """Write the definitions of all members again. Those that cannot leave the group."""
        self._keep(lambda txn: txn.renew(base))

    def _keep(self, prove: Callable[[Transaction], None]) -> None:
        kept = []
        for entry in self.members:
            try:
                prove(entry.txn)
            except AlreadyCommitted as done:  # by another process, to which the client sent the same request
                entry.version = done.version
            except Exception as error:  # noqa: BLE001 - also what its own proof raises concerns no other member
                entry.error = error
            else:
                kept.append(entry)
        self.members = kept
        if not kept:
            raise CommitConflict("every transaction of the group conflicts with a version that was committed since")
