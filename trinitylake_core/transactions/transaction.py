"""Transactions: begin, change, detect conflicts, become a version (format, section 6)."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

from trinitylake_core import spec
from trinitylake_core.catalog import codec_of, object_counts
from trinitylake_core.commits.backend import LakehouseBackend
from trinitylake_core.commits.changes import transactional
from trinitylake_core.commits.commit import Draft, commit, new_id, now_millis, refuse_outlived, whoami
from trinitylake_core.commits.frozen import refuse_frozen
from trinitylake_core.commits.rolled_back import newest_base, refuse_lost
from trinitylake_core.definitions import TransactionDef, commit_buffer_bytes, encode
from trinitylake_core.errors import (
    CommitConflict,
    Corrupt,
    FileMissing,
    InvalidInput,
    LakehouseFrozen,
    SnapshotNotFound,
    StorageError,
    TransactionExpired,
    TransactionNotFound,
    VersionExpired,
)
from trinitylake_core.locations import definition_path
from trinitylake_core.short_repr import first_of
from trinitylake_core.tables import UNPROVED
from trinitylake_core.transactions import saved
from trinitylake_core.transactions.edits import CatalogEdits, Conflicts, Footprint
from trinitylake_core.transactions.requests import RequestKey
from trinitylake_core.transactions.saved import SavedFile, abort_saved, decide_abort
from trinitylake_core.tree.node import Messages, Node
from trinitylake_core.tree.nodestore import NodeWriter
from trinitylake_core.tree.rewrite import Rewriter
from trinitylake_core.tree.subtree import heaviest_children
from trinitylake_core.versions import Delta, ObjectCounts, Root

_LOG = logging.getLogger(__name__)
SNAPSHOT: Final = "SNAPSHOT"
SERIALIZABLE: Final = "SERIALIZABLE"
_AGAIN: Final = "read again and retry the transaction"


class AlreadyCommitted(Exception):
    """The version that this transaction became in an earlier attempt."""

    def __init__(self, version: int) -> None:
        super().__init__(version)
        self.version = version


def appended(
    backend: LakehouseBackend,
    base: Root,
    own: Messages,
    gained: Callable[[], ObjectCounts],
    created_at_millis: int,
    writer: NodeWriter,
) -> tuple[Node, ObjectCounts | None]:
    """Return the node of ``base`` with messages at the end of its buffer, and the objects that it contains then.

    Older messages are pushed down if with ``own`` the root would grow too large: a write buffer of more than
    ``commit.buffer.max-bytes``, which every commit writes again, or a node over its target. Then the heaviest children
    get theirs, until half of either is free; about one ``put`` per such child. So a flush is rare: all commits until
    the buffer is full again write nothing but the root.
    """
    definition, node, target = backend.definition(base), base.node, writer.target_bytes
    size, buffered, most = own.nbytes(), node.buffer.nbytes(), commit_buffer_bytes(definition)
    if buffered and (buffered + size > most or node.estimated_bytes() + size > target):
        rewriter = Rewriter(writer, created_at_millis)
        tree = rewriter.ref_of(node)
        top, below = rewriter.open(tree), max(target - size, target // 2)
        of_root = heaviest_children(min(node.table_bytes() + most // 2, below))
        of_others = heaviest_children(below)
        tree = rewriter.flush(tree, lambda work: (of_root if work is top else of_others)(work))
        rewriter.open(tree)
        node = rewriter.node_of(tree)
    counts = base.counts
    if counts is None and base.node.is_leaf:  # the root is all there is: no request
        counts = object_counts(backend.nodes, base.node, codec_of(definition, sdk=backend.versions.sdk))
    return node.with_messages(own), None if counts is None else gained().plus(counts)


def set_and_deleted(own: Messages) -> dict[str, int]:
    """Return the numbers of messages that set and that delete a key, for the summary of a version."""
    deleted = own.deletions()
    return {"set": len(own) - deleted, "deleted": deleted}


class Transaction(CatalogEdits):
    """Changes that become one version, or none. Not thread-safe.

    All reading methods see the transaction's own changes. As a context manager it commits on a normal exit and
    aborts on an exception; but a storage that fails does not abort what was saved before. Nothing is written to the
    storage before :meth:`commit`.

    Attributes:
        id: the transaction ID.
        version: the version it became; ``None`` before the commit, the base version if nothing changed.
        isolation: SNAPSHOT or SERIALIZABLE; under the latter others must not have written what was read.
        reason: why, for the history.
        began_at_millis: when it began, in epoch milliseconds.
        ttl_millis: for how long it may be committed.
        facts: what the summary of its version contains besides.
        request: the key of the request that it carries out, if it has one: its ID.
    """

    def __init__(
        self,
        backend: LakehouseBackend,
        base: Root,
        *,
        isolation: str | None = None,
        reason: str | None = None,
        operation: str = spec.OP_COMMIT,
        transaction_id: str | None = None,
        began_at_millis: int | None = None,
        facts: Mapping[str, Any] | None = None,
        system: Mapping[str, str | None] | None = None,
        group: Callable[[Transaction], int] | None = None,
        request: RequestKey | None = None,
    ) -> None:
        definition = backend.definition(base)
        default = SERIALIZABLE if definition.txn_isolation_level else SNAPSHOT
        if isolation not in (None, SNAPSHOT, SERIALIZABLE):
            raise InvalidInput(f"isolation must be {SNAPSHOT} or {SERIALIZABLE}, not {isolation!r}")
        codec = codec_of(definition, sdk=backend.versions.sdk)
        super().__init__(request.id if request else transaction_id or new_id(), base, backend.nodes, codec)
        self.isolation = isolation or default
        self.reason = reason
        self.version: int | None = None
        self.began_at_millis = now_millis() if began_at_millis is None else began_at_millis
        self.ttl_millis = definition.txn_ttl_millis
        self._backend = backend
        self._operation = operation
        self.request = request
        self.facts = {**(facts or {}), **(request.facts() if request else {})}
        self._system = dict(system or {})
        self._written: set[str] = set()
        self._saved_definitions: frozenset[str] = frozenset()
        self._proofs: list[Callable[[Root], None]] = []
        self._done = False
        self._committing = False
        self._uncertain = False
        self._file: SavedFile | None = None
        self._group = group

    def __repr__(self) -> str:
        ended = "ended" if self._done else "open"
        state = ended if self.version is None else f"version={self.version}"
        return f"Transaction({self.id!r}, {state}, base_version={self.base_version}, changes={len(self._writes)})"

    @classmethod
    def resume(cls, backend: LakehouseBackend, transaction_id: str) -> Self:
        """Return a saved transaction in the state in which it was saved. Two ``get``.

        Raises:
            TransactionNotFound, TransactionExpired, Corrupt.
        """
        found = saved.load(backend, transaction_id)
        isolation = SERIALIZABLE if found.definition.isolation_level else SNAPSHOT
        began = found.definition.began_at_millis
        refuse_outlived(began, found.definition.expire_at_millis - began)
        state = json.loads(found.state) if found.state else {}
        reason = state.get("reason")
        txn = cls(
            backend,
            found.base,
            isolation=isolation,
            reason=reason,
            transaction_id=transaction_id,
            began_at_millis=began,
        )
        txn._writes.update(zip(found.messages.keys, found.messages.values, strict=True))
        txn._footprint = Footprint.from_json(state.get("footprint"))
        txn._before = {
            key: there == "1" for key, there in zip(found.messages.keys, state.get("before", ""), strict=False)
        }
        txn._file = found.file
        txn._saved_definitions = frozenset(path for path in txn._writes.values() if path is not None)
        return txn

    def _refuse_done(self) -> None:
        if self._done or self._committing:
            raise InvalidInput(f"transaction {self.id} has ended; begin a new one")

    # -- becoming a version -------------------------------------------------------------------

    def require(self, proof: Callable[[Root], None]) -> None:
        """Have ``proof`` called with each root that this is about to be built on; what it raises ends the commit.

        It proves again, without requests as far as it can: it is called once for each lost race.
        """
        self._proofs.append(proof)

    def prove(self, base: Root, created_at_millis: int | None = None) -> None:
        """Prove what is required of ``base``, and of the time of a version on top of it.

        Raises ``CommitConflict``; also where tables were cleaned and table metadata are named without any proof.
        """
        if created_at_millis is not None and self.request and created_at_millis < self.request.not_before_millis:
            raise CommitConflict("the clock of this machine went back; try again", version=base.version)
        for proof in self._proofs:
            proof(base)
        if base.tables_void_before_millis and not self._proofs:
            unproved = self.new_table_files() | self._files_of_expired_base(base)
            if unproved:
                raise CommitConflict(f"{min(unproved)}: {UNPROVED}", version=base.version)

    def _files_of_expired_base(self, base: Root) -> set[str]:
        """Return the table metadata that only the version this began at proves, where that has expired since.

        What other tables named then may be dropped by now, and cleaned: a copy of a definition must not name it.
        """
        is_kept = base.oldest_version <= self.base_version
        if is_kept or base.tables_void_before_millis == self._base.tables_void_before_millis:
            return set()
        return self.named_table_files()

    @property
    def base(self) -> Root:
        """The root that the changes stand on."""
        return self._base

    def _refuse_expired(self) -> None:
        try:
            refuse_lost(self._backend, newest_base(self._backend).root, self._base)
        except (VersionExpired, SnapshotNotFound) as error:
            raise TransactionExpired(f"the transaction cannot go on: {error}; begin a new one") from error

    def conflicts(self) -> Conflicts:
        """Return the keys that no other transaction may have changed for this to be committed."""
        return self._footprint.against(self._writes, serializable=self.isolation == SERIALIZABLE)

    def build(self, base: Root, created_at_millis: int, writer: NodeWriter) -> Draft:
        """Return the root on top of ``base``: its tree, its buffer, and this transaction's messages at the end."""
        self.prove(base, created_at_millis)
        own = self.messages()
        summary = {"author": whoami(), **set_and_deleted(own), **self.facts}
        if self.reason:
            summary["reason"] = self.reason
        node, counts = appended(self._backend, base, own, self.gained, created_at_millis, writer)
        return Draft(node, self._operation, self.id, summary, dict(self._system), counts=counts)

    def rebase(self, base: Root, newer: Sequence[Delta]) -> None:
        """Prove that nothing in ``newer`` conflicts with this transaction. Raises ``CommitConflict``."""
        conflicts = self.conflicts()
        for root in newer:
            if root.txn == self.id or self.id in root.system.get(spec.SUMMARY, ""):
                self._recognise(root)
        for root in transactional(newer, CommitConflict, _AGAIN):
            touched = conflicts.touched(root.own_messages())
            if touched:
                shown = first_of([str(self._keys.decode(key)) for key in touched[:5]], 5, len(touched))
                raise CommitConflict(
                    f"version {root.version} changed {shown}, which this transaction depends on; {_AGAIN}",
                    keys=touched,
                    version=root.version,
                )

    def renew(self, base: Root) -> None:
        """Write the definitions again under new names; a cleaning may be removing the old ones. One ``put`` each.

        Those that another process saved are read first, one ``get`` each. Raises ``TransactionExpired`` if they are
        gone already.
        """
        held = {path: encode(definition) for path, (_, definition) in self._definitions.items()}
        saved_paths = [path for path in self._writes.values() if path in self._saved_definitions]
        for path, data in self._backend.storage.read_many(saved_paths):
            if isinstance(data, FileMissing):
                raise TransactionExpired(
                    f"what was saved of this transaction is gone since version {base.version}; begin a new one"
                )
            held[path] = data
        new = {
            old: definition_path(*self._keys.split(key))
            for key, old in self._writes.items()
            if old is not None and old in held
        }
        self._write_new({path: held[old] for old, path in new.items()})
        self._writes.update({key: new[path] for key, path in self._writes.items() if path in new})
        self._definitions = {new.get(path, path): each for path, each in self._definitions.items()}
        self._saved_definitions = frozenset(new.get(path, path) for path in self._saved_definitions)

    def _recognise(self, root: Delta) -> None:
        """Tell a commit whose answer was lost from one that another process made of the same saved transaction."""
        if root.operation == spec.OP_ABORT:
            raise CommitConflict(
                f"this transaction was aborted by another process, in version {root.version}", version=root.version
            )
        own, found = self.messages(), root.own_messages()
        if root.txn != self.id:  # it is a member of the group that became this version
            found = Messages.of([each for each in found if each[0] in self._writes])
        same = zip(own.values, found.values, strict=True) if own.keys == found.keys else None
        if same is not None and all(one == other or self._same_content(one, other) for one, other in same):
            raise AlreadyCommitted(root.version)
        raise CommitConflict(
            f"this transaction was resumed elsewhere and committed there as version {root.version}",
            keys=own.keys,
            version=root.version,
        )

    def _same_content(self, own: str | None, other: str | None) -> bool:
        """Whether two definitions have equal content under two names, because a cleaning made a writer write again."""
        if own is None or other is None:
            return False
        try:
            return self._read_definition(own) == self._backend.storage.read(other)
        except (Corrupt, FileMissing, TransactionExpired):
            return False

    def _write_new(self, files: Mapping[str, bytes]) -> None:
        self._written |= files.keys()
        self._backend.storage.write_many(files.items())

    # -- ending --------------------------------------------------------------------------------

    def commit(self, *, allow_empty: bool = False, before_commit: Callable[[], None] | None = None) -> int:
        """Commit and return the new version.

        A transaction without changes commits nothing and returns the version it began at, unless ``allow_empty``.
        Costs one ``put`` per definition, 1 ``create`` and 1 ``put`` for the hint; of a resumed transaction one ``put``
        and two ``delete`` more.

        Args:
            allow_empty: commit a version even without changes.
            before_commit: called right before the root is created; raising there gives the commit up.

        Raises:
            CommitConflict: another writer changed what this transaction wrote or depends on, or saved it again.
            TransactionNotFound: it was resumed, and another process aborted it.
            OutcomeUnknown: nothing proves whether it was committed. Calling this again finds out, as long as the
                version it began at has not expired.
            LakehouseFrozen: the lakehouse takes no commits now. Calling this again tries again.
            TransactionExpired, LakehouseReplaced, ReadOnly, UnsafeStorage, StorageError.
        """
        self._committing = False  # after a failure of the storage, the same commit may be tried again
        self._refuse_done()
        self._committing = True
        if not (self._writes_by_key or self._many or allow_empty):
            self._done, self.version = True, self._base.version
            return self._base.version
        self._backend.refuse_unsafe()
        try:
            version = self._become(before_commit)
        except AlreadyCommitted as done:
            version = done.version
        except CommitConflict:
            file = self._file  # that of a resumed transaction, unless another process has taken it, too
            if file is not None and not (file.over or file.superseded or file.taken_by_others):
                try:
                    file.mark_aborted()
                except StorageError as error:
                    _LOG.warning("transaction %s failed, and was not marked as aborted: %s", self.id, error)
            self._done = True
            raise
        except (TransactionExpired, TransactionNotFound):
            self._done = True
            raise
        self._done, self.version = True, version
        if self._file is not None:
            self._file.remove()
        return version

    def _become(self, before_commit: Callable[[], None] | None) -> int:
        if not self._uncertain and self._operation in spec.FROZEN_OPERATIONS:
            refuse_frozen(self._backend)
        if self._file is not None:  # so that a process that aborts it asks the roots
            self._backend.refuse_no_compare_and_set()
            try:
                self._file.take()
            except TransactionNotFound:
                if self._backend.newest().version > self._base.version:
                    self.rebase(self._base, self._backend.versions.since(self._base)[0])  # it may be one of these
                raise
        if not self._uncertain:
            refuse_outlived(self.began_at_millis, self.ttl_millis)
        self._write_definitions()
        unknown, self._uncertain = self._uncertain, True
        try:
            if self._group is not None and not unknown and before_commit is None:
                return self._group(self)
            began = self.began_at_millis
            root = commit(
                self._backend, self._base, self, began_at_millis=began, before_commit=before_commit, unknown=unknown
            )
        except (AlreadyCommitted, CommitConflict, LakehouseFrozen, TransactionExpired):
            self._uncertain = False
            raise
        return root.version

    def _write_definitions(self) -> None:
        """Write the definitions; those of an earlier try again, for a cleaning that knows no fence may have come."""
        files = {path: encode(definition) for path, (_, definition) in self._definitions.items()}
        again = self._written & files.keys()
        for path in again:
            self._backend.storage.replace(path, files[path])
        self._write_new({path: data for path, data in files.items() if path not in again})

    def save(self) -> str:
        """Store the transaction for another process to resume by its ID, and end it here.

        Costs one ``put`` per definition and two for the transaction, and a search for the newest version. If that
        version shows that a cleaning came in between, all of it is written once more. If it was resumed, one ``put``
        and one ``delete`` more: the earlier save is valid until it is known that nothing was cleaned.

        Raises:
            CommitConflict: it was resumed, and another process saved, took or aborted it since.
            OutcomeUnknown: an answer was lost, and nothing proves whether it was saved.
            UnsafeStorage, StorageError.
        """
        self._refuse_done()
        self._backend.refuse_unsafe()
        self._backend.refuse_no_compare_and_set()
        file = self._file or SavedFile(self._backend.storage, self.id)
        file.refuse_unsavable()
        self.prove(self._base)
        self._write_definitions()
        since = self._base
        self._store_in(file)
        while saved.fenced(self._backend.storage, since, newest := self._backend.newest()):
            self.renew(newest)
            self._store_in(file)
            since = newest
        self.prove(newest)  # a cleaning that comes later marks what this names
        file.confirm()
        self._done = True
        return self.id

    def _store_in(self, file: SavedFile) -> None:
        definition = TransactionDef(
            id=self.id,
            isolation_level=self.isolation,
            began_at_millis=self.began_at_millis,
            expire_at_millis=self.began_at_millis + self.ttl_millis,
        )
        own, there = self.messages(), self._were_there()
        before = "".join("01"[there[key]] for key in own.keys)
        state = json.dumps({"footprint": self._footprint.to_json(), "reason": self.reason, "before": before})
        saved.save(self._backend, self._base, definition, own, state, file)
        self._file = file

    def abort(self) -> None:
        """Discard the changes. Nothing becomes visible.

        A resumed transaction is marked as aborted, for every process. Files that were written stay until `clean`
        proves that no version reaches them. After a commit whose outcome is unknown the roots decide, which costs as
        much as a commit.

        Raises:
            CommitConflict: it is committed, or it was resumed and another process has saved it again.
            OutcomeUnknown: it may be committed, and the versions that would prove it have expired.
            StorageError: the storage failed; it may or may not be aborted.
        """
        if self._done:
            return
        if self._file is not None:
            abort_saved(self._backend, self._base, self._file, unknown=self._uncertain)
        elif self._uncertain:
            decide_abort(self._backend, self._base, self.id)
        self._done = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._done:
            return
        if kind is None:
            self.commit()
            return
        if self._file is not None and isinstance(error, StorageError):
            self._done = True  # a failing storage is not a reason to take back what was saved before
            return
        try:
            self.abort()
        except (CommitConflict, StorageError) as failed:  # what ended the block is what the caller has to know
            _LOG.warning("transaction %s was given up, but not aborted: %s", self.id, failed)
