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
from operator import attrgetter
from typing import Final

from trinitylake_core import spec
from trinitylake_core.commits.appended import append_messages
from trinitylake_core.commits.backend import LakehouseBackend
from trinitylake_core.commits.commit import Draft, Summary, commit, new_id, whoami
from trinitylake_core.commits.fences import Fences
from trinitylake_core.errors import CommitConflict, OutcomeUnknown
from trinitylake_core.short_repr import first_of
from trinitylake_core.transactions.change import AlreadyCommitted, TransactionChange, count_written
from trinitylake_core.transactions.requests import Requests
from trinitylake_core.tree.node import Messages
from trinitylake_core.tree.nodestore import NodeWriter
from trinitylake_core.versions import CountBounds, Delta, Root, SystemRows, sum_bounds

LARGEST: Final = 128
"""So many transactions become one version; the summary of the version names each."""
_REMEMBERED: Final = 64
_REMEMBERED_BYTES: Final = 8 << 20
"""As their messages and summaries take in a file; in memory it is a few times as much."""
_AUTHORS: Final = 3


@dataclass(eq=False, slots=True)
class Entry:
    """A transaction that waits for its outcome: a version or an error."""

    change: TransactionChange
    author: str
    version: int | None = None
    error: Exception | None = None
    is_over: bool = False
    """Whether there is an outcome."""
    called: threading.Lock = field(default_factory=threading.Lock)
    """Held until the outcome is known, or its thread is the one that commits."""

    def __post_init__(self) -> None:
        self.called.acquire()

    def outcome(self) -> int:
        """Return the version, or raise the error."""
        if self.error is not None:
            raise self.error
        if self.version is None:
            raise OutcomeUnknown("the thread that committed the group was ended; look at the history")
        return self.version

    def end(self, *, version: int | None = None, error: Exception | None = None) -> None:
        """Take note of the outcome, unless there is one already; without a version and an error it is unknown."""
        if not self.is_over:
            self.version = version
            self.error = error
            self.is_over = True

    def facts(self) -> Summary:
        """Return what the summary of a version says of this member."""
        change = self.change
        facts: Summary = {"txn": change.id, "author": self.author, **change.facts}
        if change.request is not None:
            facts |= change.request.facts()
        if change.reason:
            facts["reason"] = change.reason
        return facts


class CommitGroup:
    """Commits the transactions of one process in groups. Thread-safe; a thread blocks until its own is decided."""

    def __init__(self, backend: LakehouseBackend) -> None:
        self._backend = backend
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._is_led = False
        self._waiting: list[Entry] = []
        self._recent: OrderedDict[int, Delta] = OrderedDict()
        self._held_bytes = 0
        self.requests = Requests(backend)

    def commit(self, change: TransactionChange, *, unknown: bool = False) -> int:
        """Commit the change of a transaction whose definitions are written, and return its version.

        Raises what ``commits.commit`` raises, for this transaction alone. ``unknown`` means that an earlier call for
        it ended with ``OutcomeUnknown``: then it waits for no other one, and looks for itself in the history first.
        """
        entry = Entry(change, whoami())
        if unknown:
            self.commit_together([entry], unknown=True)
            return entry.outcome()
        change.prove(change.base)  # the requests of one member do not keep the others waiting
        with self._lock:
            self._waiting.append(entry)
            leads = not self._is_led
            self._is_led = True
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
                    self._commit_waiting()
        finally:
            with self._lock:
                self._hand_over()

    def _commit_waiting(self) -> None:
        """Commit those that wait, and let each of them go on, whatever happens here."""
        batch: list[Entry] = []
        try:
            with self._lock:
                batch = self._waiting[:LARGEST]
                del self._waiting[:LARGEST]
            self.commit_together(batch)
        finally:
            for each in batch:
                each.end()
                each.called.release()

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

    def commit_together(self, batch: Sequence[Entry], *, unknown: bool = False) -> None:
        """Commit a batch. Every one of its members has an outcome afterwards, whatever another one raises."""
        version: int | None = None
        error: Exception | None = None
        try:
            change = _GroupChange(self._backend, self.remember, is_in_doubt=unknown)
            version = self._commit_members(change, batch)
        except Exception as raised:  # noqa: BLE001 - each member raises it in its own thread
            error = raised
        finally:
            for entry in batch:
                entry.end(version=version, error=error)

    def _commit_members(self, change: _GroupChange, batch: Sequence[Entry]) -> int | None:
        """Commit those of a batch that can be committed together, and return their version; ``None`` if none can."""
        for entry in batch:
            change.add(entry)
        if not change.members:
            return None
        first = change.members[0].change
        change.is_alone = len(change.members) == 1 and first.request is None
        if change.is_alone:
            change.id = first.id
        else:
            change.id = new_id()
        base, fences = self._stand(change)
        root = commit(
            self._backend,
            base,
            change,
            fences=fences,
            unknown=change.is_in_doubt,
        )
        self.remember([root.delta()])
        return root.version

    def remember(self, newer: Sequence[Delta]) -> None:
        """Keep what versions changed, for members that stand below them: ``_REMEMBERED_BYTES`` at the most."""
        for delta in newer:
            self.requests.note(delta)
            if delta.is_bulk:  # what such a one changed is not in its root: who stands below it looks that up
                continue
            self._held_bytes -= _size_of(self._recent.get(delta.version))
            self._recent[delta.version] = delta
            self._held_bytes += _size_of(delta)
        while len(self._recent) > _REMEMBERED or self._held_bytes > _REMEMBERED_BYTES:
            _, oldest = self._recent.popitem(last=False)
            self._held_bytes -= _size_of(oldest)

    def _stand(self, change: _GroupChange) -> tuple[Root, Fences]:
        """Return the root to build on, and the fences of what the members have written.

        Members that began before this process committed its last versions are rebased over them from memory. No
        request, unless a cleaning was among them. Where a version is not remembered, the commit reads it.
        """
        bases = [entry.change.base for entry in change.members]
        oldest = min(bases, key=attrgetter("version"))
        fences = Fences(self._backend.storage, oldest)
        tip = self._backend.newest_seen
        between = range(oldest.version + 1, tip.version + 1)
        if not between or any(version not in self._recent for version in between):
            return oldest, fences
        newer = [self._recent[version] for version in between]
        change.rebase(oldest, newer)
        if fences.void(newer):
            change.renew(tip)
            fences = Fences(self._backend.storage, tip)
        return tip, fences


def _size_of(delta: Delta | None) -> int:
    if delta is None:
        return 0
    summary = delta.rows.get(spec.SUMMARY, "")
    return delta.messages.nbytes() + len(summary)


@dataclass(eq=False)
class _GroupChange:
    """Several transactions as one change of the commit protocol; those that conflict leave it.

    Attributes:
        members: those that are still in it.
        id: the transaction ID of the version: that of the only member, or one of the group's own.
        is_alone: whether there was one member from the beginning, and no other process can have its ID.
        is_in_doubt: whether an earlier try of the only member had an unknown outcome. Then nothing that it raises is
            its outcome before the commit protocol has seen it: what denies the commit may be wrong.
    """

    backend: LakehouseBackend
    remember: Callable[[Sequence[Delta]], None]
    is_in_doubt: bool = False
    members: list[Entry] = field(default_factory=list)
    id: str = ""
    is_alone: bool = False
    _taken: Messages = field(default_factory=Messages)

    def add(self, entry: Entry) -> None:
        """Take a transaction in, unless it conflicts with one that is in already.

        That, or whatever else it raises, is its outcome.
        """
        try:
            self._refuse_conflicting(entry.change)
            own = list(entry.change.messages())
        except Exception as error:  # noqa: BLE001 - it concerns no other member
            entry.end(error=error)
            return
        self.members.append(entry)
        for message in own:
            self._taken.append(*message)

    def _refuse_conflicting(self, change: TransactionChange) -> None:
        """Raise ``CommitConflict`` if a transaction depends on what a member writes, or is the same as one."""
        touched = change.conflicts().find_touched(self._taken)
        if touched or any(each.change.id == change.id for each in self.members):
            raise CommitConflict(
                "a transaction of the same group changed what this one depends on; read again and retry it",
                keys=touched,
                version=self.backend.newest_seen.version,
            )

    def build(self, base: Root, created_at_millis: int, writer: NodeWriter) -> Draft:
        """Return the root on top of ``base`` with the messages of all members."""
        gained: dict[str, CountBounds] = {}

        def prepare(change: TransactionChange) -> None:
            change.refuse_outlived()
            change.prove(base, created_at_millis)
            gained[change.id] = change.count_gained()

        self._keep(prepare)
        own = self._messages()

        def count_gained() -> CountBounds:
            return sum_bounds(gained[entry.change.id] for entry in self.members)

        new = append_messages(
            self.backend,
            base,
            own,
            count_gained,
            created_at_millis,
            writer,
        )
        rows = self._row_of_requests(base)
        return Draft(
            node=new.node,
            operation=spec.OP_COMMIT,
            txn=self.id,
            summary=self._summary(own),
            system=rows,
            counts=new.counts,
            is_bulk=new.is_bulk,
        )

    def _messages(self) -> Messages:
        """Return the messages of all members, as those of one transaction."""
        rows = []
        for entry in self.members:
            for key, value, _ in entry.change.messages():
                rows.append((key, value))
        rows.sort()  # no two members write one key
        return Messages.of([(key, value, self.id) for key, value in rows])

    def _summary(self, own: Messages) -> Summary:
        """Return the facts about the version: who made it and why, and of a group each member."""
        authors = list(dict.fromkeys(entry.author for entry in self.members))
        reasons = []
        for entry in self.members:
            if entry.change.reason:
                reasons.append(entry.change.reason)
        summary: Summary = {"author": first_of(authors, _AUTHORS), **count_written(own)}
        if reasons:
            summary["reason"] = first_of(reasons, _AUTHORS)
        if not self.is_alone:
            summary["members"] = [entry.facts() for entry in self.members]
        return summary

    def _row_of_requests(self, base: Root) -> SystemRows:
        """Return the system row that says which keys of requests the versions up to this one can contain."""
        keys = []
        for entry in self.members:
            if entry.change.request is not None:
                keys.append(entry.change.request)
        if not keys:
            return {}
        newest = max(key.millis for key in keys)
        return {spec.REQUESTS_UNTIL_MILLIS: str(max(base.requests_until_millis, newest))}

    def rebase(self, base: Root, newer: Sequence[Delta]) -> None:
        """Prove each member against the versions that came after its base; those that conflict leave the group.

        So does a member that finds itself in one of them, of an earlier try: that version is its outcome.
        """
        self.remember(newer)
        self._keep(lambda change: change.rebase(base, [root for root in newer if root.version > change.base.version]))

    def renew(self, base: Root) -> None:
        """Write the definitions of all members again. Those that cannot leave the group."""
        self._keep(lambda change: change.renew(base))

    def _keep(self, prove: Callable[[TransactionChange], None]) -> None:
        """Keep those members for which something can be done; what they raise is their outcome, and of no other one.

        Raises ``CommitConflict``: none is left.
        """
        if self.is_in_doubt:
            for entry in self.members:
                prove(entry.change)
            return
        kept: list[Entry] = []
        for entry in self.members:
            try:
                prove(entry.change)
            except AlreadyCommitted as done:  # by another process, to which the client sent the same request
                entry.end(version=done.version)
            except Exception as error:  # noqa: BLE001 - also what its own proof raises concerns no other member
                entry.end(error=error)
            else:
                kept.append(entry)
        self.members = kept
        if not kept:
            raise CommitConflict("every transaction of the group conflicts with a version that was committed since")
