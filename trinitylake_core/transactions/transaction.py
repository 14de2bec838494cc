"""Transactions: begin, change, commit or save or abort (format, section 6)."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from types import TracebackType
from typing import Final, Protocol, Self

from trinitylake_core import clock, spec
from trinitylake_core.catalog import codec_of
from trinitylake_core.commits.backend import LakehouseBackend
from trinitylake_core.commits.commit import commit, new_id, refuse_outlived
from trinitylake_core.commits.frozen import refuse_frozen
from trinitylake_core.commits.rolled_back import refuse_lost
from trinitylake_core.definitions import TransactionDef
from trinitylake_core.errors import (
    CommitConflict,
    InvalidInput,
    LakehouseFrozen,
    SnapshotNotFound,
    StorageError,
    TransactionExpired,
    TransactionNotFound,
    VersionExpired,
)
from trinitylake_core.other_names import OF_TRANSACTIONS
from trinitylake_core.transactions import saved
from trinitylake_core.transactions.change import AlreadyCommitted, Proof, TransactionChange
from trinitylake_core.transactions.dependencies import Footprint
from trinitylake_core.transactions.edits import CatalogEdits
from trinitylake_core.transactions.requests import Repeated, RequestKey
from trinitylake_core.transactions.saved import SavedFile, abort_saved, decide_abort
from trinitylake_core.versions import Root

_LOG = logging.getLogger(__name__)
SNAPSHOT: Final = "SNAPSHOT"
SERIALIZABLE: Final = "SERIALIZABLE"


class CommitGroup(Protocol):
    """What commits transactions together (:class:`trinitylake_core.transactions.group.CommitCommitGroup`)."""

    def commit(self, change: TransactionChange, *, unknown: bool = False) -> int:
        """Commit a change whose definitions are written, and return its version."""


class Transaction(CatalogEdits):
    """Changes that become one version, or none. Not thread-safe.

    All reading methods see the transaction's own changes. As a context manager it commits on a normal exit and
    aborts on an exception; but a storage that fails does not abort what was saved before. Nothing is written to the
    storage before :meth:`commit`.

    Attributes:
        version: the version it became; ``None`` before the commit, the base version if nothing changed.
        isolation: SNAPSHOT or SERIALIZABLE; under the latter others must not have written what was read.
    """

    _other_names = OF_TRANSACTIONS

    def __init__(
        self,
        backend: LakehouseBackend,
        base: Root,
        *,
        isolation: str | None = None,
        reason: str | None = None,
        transaction_id: str | None = None,
        began_at_millis: int | None = None,
        group: CommitGroup | None = None,
        request: RequestKey | None = None,
    ) -> None:
        if isolation not in (None, SNAPSHOT, SERIALIZABLE):
            raise InvalidInput(f"isolation must be {SNAPSHOT} or {SERIALIZABLE}, not {isolation!r}")
        if request is not None:
            if group is None:
                raise InvalidInput("a request with a key is committed by a group: give it one (`Lakehouse.group`)")
            transaction_id = request.id
        definition = backend.definition(base)
        if isolation is None:
            if definition.txn_isolation_level:
                isolation = SERIALIZABLE
            else:
                isolation = SNAPSHOT
        change = TransactionChange(
            backend,
            base,
            transaction_id or new_id(),
            serializable=isolation == SERIALIZABLE,
            began_at_millis=clock.now_millis() if began_at_millis is None else began_at_millis,
            reason=reason,
            request=request,
        )
        codec = codec_of(definition, sdk=backend.versions.sdk)
        super().__init__(change, backend.nodes, codec)
        self.isolation = isolation
        self.version: int | None = None
        self._backend = backend
        self._group = group
        self._done = False
        self._committing = False
        self._uncertain = False
        self._file: SavedFile | None = None

    @property
    def reason(self) -> str | None:
        """Why, for the history."""
        return self.change.reason

    @property
    def began_at_millis(self) -> int:
        """When it began, in epoch milliseconds."""
        return self.change.began_at_millis

    def __repr__(self) -> str:
        if self._done:
            ended = "ended"
        else:
            ended = "open"
        if self.version is None:
            state = ended
        else:
            state = f"version={self.version}"
        return (
            f"Transaction({self.id!r}, {state}, base_version={self.base_version}, changes={len(self._writes.by_key)})"
        )

    @classmethod
    def resume(cls, backend: LakehouseBackend, transaction_id: str) -> Self:
        """Return a saved transaction in the state in which it was saved. Two ``get``.

        Raises:
            TransactionNotFound, TransactionExpired, Corrupt.
        """
        found = saved.load(backend, transaction_id)
        if found.definition.isolation_level:
            isolation = SERIALIZABLE
        else:
            isolation = SNAPSHOT
        began = found.definition.began_at_millis
        refuse_outlived(began, found.definition.expire_at_millis - began)
        if found.state:
            state = json.loads(found.state)
        else:
            state = {}
        txn = cls(
            backend,
            found.base,
            isolation=isolation,
            reason=state.get("reason"),
            transaction_id=transaction_id,
            began_at_millis=began,
        )
        keys = found.messages.keys
        paths = found.messages.values
        marks = state.get("before", "")
        existed = {key: mark == "1" for key, mark in zip(keys, marks, strict=False)}
        txn._writes.put_saved(keys, paths, existed)
        txn._footprint = txn.change.footprint = Footprint.from_json(state.get("footprint"))
        txn.change.is_shared = True
        txn.change.saved_paths = {path: path for path in paths if path is not None}
        txn._file = found.file
        return txn

    def _refuse_done(self) -> None:
        if self._done or self._committing:
            raise InvalidInput(f"transaction {self.id} has ended; begin a new one")

    def require(self, proof: Proof) -> None:
        """Call ``proof`` with each root before this is built on it; what the proof raises ends the commit.

        It proves again, without requests as far as it can: it is called once for each lost race.
        """
        self.change.require(proof)

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
            Repeated: its request was carried out already, in the version that is named, or another one with its key.
            OutcomeUnknown: nothing proves whether it was committed. Calling this again finds out, as long as the
                version it began at has not expired.
            LakehouseFrozen: the lakehouse takes no commits now. Calling this again tries again.
            TransactionExpired, LakehouseReplaced, ReadOnly, UnsafeStorage, StorageError.
        """
        self._committing = False  # after a failure of the storage, the same commit may be tried again
        self._refuse_done()
        self._committing = True
        if not (self._writes or allow_empty):
            self._done = True
            self.version = self.base_version
            return self.base_version
        self._backend.refuse_unsafe()
        try:
            version = self._become(before_commit)
        except AlreadyCommitted as done:
            version = done.version
        except CommitConflict:
            file = self._file  # that of a resumed transaction, unless another process has taken it, too
            if file is not None and not (file.over or file.was_superseded or file.taken_by_others):
                try:
                    file.mark_aborted()
                except StorageError as error:
                    _LOG.warning("transaction %s failed, and was not marked as aborted: %s", self.id, error)
            self._done = True
            raise
        except (TransactionExpired, TransactionNotFound, Repeated):
            self._done = True
            raise
        self._done = True
        self.version = version
        if self._file is not None:
            self._file.remove()
        return version

    def _become(self, before_commit: Callable[[], None] | None) -> int:
        """Write the definitions, and make the change a version; return its number."""
        if not self._uncertain and self.change.operation in spec.FROZEN_OPERATIONS:
            refuse_frozen(self._backend)
        if self._file is not None:  # so that a process that aborts it asks the roots
            self._take(self._file)
        if not self._uncertain:
            self.change.refuse_outlived()
        self.change.write_definitions()
        was_uncertain = self._uncertain
        self._uncertain = True
        try:
            if self._group is not None and before_commit is None:
                return self._group.commit(self.change, unknown=was_uncertain)
            root = commit(
                self._backend,
                self.change.base,
                self.change,
                began_at_millis=self.began_at_millis,
                before_commit=before_commit,
                unknown=was_uncertain,
            )
        except (AlreadyCommitted, Repeated, CommitConflict, LakehouseFrozen, TransactionExpired):
            self._uncertain = False
            raise
        return root.version

    def _take(self, file: SavedFile) -> None:
        """Record that this process begins to commit a saved transaction."""
        base = self.change.base
        self._backend.refuse_no_compare_and_set()
        try:
            file.take()
        except TransactionNotFound:
            if self._backend.newest().version > base.version:
                self.change.rebase(base, self._backend.since(base)[0])  # it may be one of these
            raise

    def save(self) -> str:
        """Store the transaction for another process to resume by its ID, and end it here.

        Costs one ``put`` per definition and two for the transaction, and a search for the newest version. If that
        version shows that a cleaning came in between, all of it is written once more. If it was resumed, one ``put``
        and one ``delete`` more: the earlier save is valid until it is known that nothing was cleaned.

        Raises:
            CommitConflict: it was resumed, and another process saved, took or aborted it since.
            TransactionExpired: it is past its time to live, or the version that it began at has expired.
            OutcomeUnknown: an answer was lost, and nothing proves whether it was saved.
            UnsafeStorage, StorageError.
        """
        self._refuse_done()
        since = self.change.base
        self._backend.refuse_unsafe()
        self._backend.refuse_no_compare_and_set()
        file = self._file or SavedFile(self._backend.storage, self.id)
        file.refuse_unsavable()
        self.change.prove(since)
        self.change.write_definitions()
        self.change.is_shared = True
        self._store_in(file)
        newest = self._backend.newest()
        while saved.is_fenced(self._backend.storage, since, newest):
            self.change.renew(newest)
            self._store_in(file)
            since = newest
            newest = self._backend.newest()
        self._refuse_unresumable(file, newest)
        self.change.prove(newest)  # a cleaning that comes later marks what this names
        file.confirm()
        self._done = True
        return self.id

    def _refuse_unresumable(self, file: SavedFile, newest: Root) -> None:
        """Refuse to report a save that nobody can resume. One ``put`` then, which marks it as aborted.

        Raises ``TransactionExpired``.
        """
        try:
            self.change.refuse_outlived()
            refuse_lost(self._backend, newest, self.change.base)
        except (TransactionExpired, VersionExpired, SnapshotNotFound) as error:
            if not file.resumed:  # what was saved before stays as it is
                file.mark_aborted()
            raise TransactionExpired(f"the transaction cannot be saved: {error}; begin a new one") from error

    def _store_in(self, file: SavedFile) -> None:
        definition = TransactionDef(
            id=self.id,
            isolation_level=self.isolation,
            began_at_millis=self.began_at_millis,
            expire_at_millis=self.began_at_millis + self.change.ttl_millis,
        )
        own = self.change.messages()
        existed = self.change.look_up_existing()
        before = "".join("1" if existed[key] else "0" for key in own.keys)
        facts = {
            "footprint": self._footprint.to_json(),
            "reason": self.reason,
            "before": before,
        }
        state = json.dumps(facts)
        saved.save(
            self._backend,
            self.change.base,
            definition,
            own,
            state,
            file,
        )
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
            abort_saved(self._backend, self.change.base, self._file, unknown=self._uncertain)
        elif self._uncertain:
            decide_abort(self._backend, self.change.base, self.id)
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
