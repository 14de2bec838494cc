"""Transactions: begin, change, detect conflicts, commit (format, section 6)."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from trinitylake_core import spec
from trinitylake_core.commits.commit import commit, new_id, now_millis, refuse_outlived
from trinitylake_core.commits.files import LakehouseStore
from trinitylake_core.commits.frozen import refuse_frozen
from trinitylake_core.definitions import TransactionDef, encode
from trinitylake_core.errors import (
    CommitConflict,
    InvalidInput,
    LakehouseFrozen,
    StorageError,
    TransactionExpired,
    TransactionNotFound,
)
from trinitylake_core.transactions import saved
from trinitylake_core.transactions.footprint import Footprint
from trinitylake_core.transactions.group import CommitGroup
from trinitylake_core.transactions.saved import abort_saved, decide_abort
from trinitylake_core.transactions.savedfile import SavedFile
from trinitylake_core.transactions.transaction_change import SERIALIZABLE, SNAPSHOT, AlreadyCommitted, TransactionChange
from trinitylake_core.versions import Root

__all__ = ["SERIALIZABLE", "SNAPSHOT", "Transaction"]
_LOG = logging.getLogger(__name__)


class Transaction(TransactionChange):
    """Changes that become one version, or none. Not thread-safe.

    All reading methods see the transaction's own changes. As a context manager it commits on a normal exit and
    aborts on an exception; but a storage that fails does not abort what was saved before. Nothing is written to the
    storage before :meth:`commit`.

    Attributes:
        id: the transaction ID.
        version: the version it became; ``None`` before the commit, the base version if nothing changed.
    """

    def __init__(
        self,
        files: LakehouseStore,
        base: Root,
        *,
        isolation: str | None = None,
        reason: str | None = None,
        operation: str = spec.OP_COMMIT,
        transaction_id: str | None = None,
        began_at_millis: int | None = None,
        facts: Mapping[str, Any] | None = None,
        system: Mapping[str, str | None] | None = None,
        group: CommitGroup | None = None,
    ) -> None:
        definition = files.definition(base)
        default = SERIALIZABLE if definition.txn_isolation_level else SNAPSHOT
        if isolation not in (None, SNAPSHOT, SERIALIZABLE):
            raise InvalidInput(f"isolation must be {SNAPSHOT} or {SERIALIZABLE}, not {isolation!r}")
        super().__init__(files, base, transaction_id or new_id(), isolation or default)
        self.version: int | None = None
        self.began_at_millis = now_millis() if began_at_millis is None else began_at_millis
        self.ttl_millis = definition.txn_ttl_millis
        self._reason = reason
        self._operation = operation
        self._facts = dict(facts or {})
        self._system = dict(system or {})
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
    def resume(cls, files: LakehouseStore, transaction_id: str) -> Self:
        """Return a saved transaction in the state in which it was saved. Two ``get``.

        Raises:
            TransactionNotFound, TransactionExpired, Corrupt.
        """
        found = saved.load(files, transaction_id)
        isolation = SERIALIZABLE if found.definition.isolation_level else SNAPSHOT
        began = found.definition.began_at_millis
        refuse_outlived(began, found.definition.expire_at_millis - began)
        state = json.loads(found.state) if found.state else {}
        reason = state.get("reason")
        txn = cls(
            files, found.base, isolation=isolation, reason=reason, transaction_id=transaction_id, began_at_millis=began
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
        if self._is_empty() and not allow_empty:
            self._done, self.version = True, self._base.version
            return self._base.version
        self._files.refuse_unsafe(self._base)
        try:
            version = self._become(before_commit)
        except AlreadyCommitted as done:
            version = done.version
        except CommitConflict:
            self._mark_aborted()
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
            refuse_frozen(self._files)
        self._take()
        if not self._uncertain:
            refuse_outlived(self.began_at_millis, self.ttl_millis)
        self._write_definitions()
        unknown, self._uncertain = self._uncertain, True
        try:
            if self._group is not None and not unknown and before_commit is None:
                return self._group.commit(self)
            root = commit(
                self._files,
                self._base,
                self,
                began_at_millis=self.began_at_millis,
                before_commit=before_commit,
                unknown=unknown,
            )
        except (AlreadyCommitted, CommitConflict, LakehouseFrozen, TransactionExpired):
            self._uncertain = False
            raise
        return root.version

    def _take(self) -> None:
        """Take a resumed transaction, so that a process that aborts it asks the roots. One ``put``."""
        if self._file is None:
            return
        self._files.refuse_no_compare_and_set(self._base)
        try:
            self._file.take()
        except TransactionNotFound:
            if self._files.newest().version > self._base.version:
                self.rebase(self._base, self._files.versions.since(self._base)[0])  # it may be one of these
            raise

    def _write_definitions(self) -> None:
        """Write the definitions; those of an earlier try again, for a cleaning that knows no fence may have come."""
        files = {path: encode(definition) for path, (_, definition) in self._definitions.items()}
        again = self._written & files.keys()
        for path in again:
            self._files.storage.replace(path, files[path])
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
        self._files.refuse_unsafe(self._base)
        self._files.refuse_no_compare_and_set(self._base)
        file = self._file or SavedFile(self._files.storage, self.id)
        file.refuse_unsavable()
        self.prove(self._base)
        self._write_definitions()
        since = self._base
        self._store_in(file)
        while saved.fenced(self._files.storage, since, newest := self._files.newest()):
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
        own = self.messages()
        there = self._were_there()
        before = "".join("01"[there[key]] for key in own.keys)
        state = json.dumps({"footprint": self._footprint.to_json(), "reason": self._reason, "before": before})
        saved.save(self._files, self._base, definition, own, state, file)
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
            abort_saved(self._files, self._base, self._file, unknown=self._uncertain)
        elif self._uncertain:
            decide_abort(self._files, self._base, self.id)
        self._done = True

    def _mark_aborted(self) -> None:
        """Mark a resumed transaction as aborted after a conflict, unless another process has taken it, too."""
        file = self._file
        if file is not None and not (file.over or file.superseded or file.taken_by_others):
            try:
                file.mark_aborted()
            except StorageError as error:
                _LOG.warning("transaction %s failed, and was not marked as aborted: %s", self.id, error)

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
