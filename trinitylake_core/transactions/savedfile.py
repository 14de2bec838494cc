"""The file of a saved transaction with its state, replaced by compare-and-set only (format, sections 5 and 6).

The ``txn-`` file contains the path of the running root and the state of the transaction: SAVED, COMMITTING (a process
has taken it), ABORTED. While it is saved again it also contains the path of the next running root, which is pending
until it is confirmed. This file never decides whether a transaction is committed. The roots do.
"""

from __future__ import annotations

from trinitylake_core.commits.commit import MAX_ATTEMPTS, new_id
from trinitylake_core.commits.confirm import remove_quietly
from trinitylake_core.definitions import TransactionDef, decode_transaction, encode
from trinitylake_core.errors import CommitConflict, CorruptDefinition, OutcomeUnknown, TransactionNotFound
from trinitylake_core.locations import transaction_path
from trinitylake_core.storage import Storage, Tagged


class SavedFile:
    """The file of one saved transaction, as this process last read or wrote it.

    Attributes:
        definition: its content; ``None`` if there is none.
        running: path of the running root that this process resumed or saved, proved to be one; ``None`` before.
        resumed: whether this process resumed it, so that there is a save to be kept until the next one is confirmed.
    """

    def __init__(self, storage: Storage, transaction_id: str) -> None:
        self.id = transaction_id
        self.path = transaction_path(transaction_id)
        self.definition: TransactionDef | None = None
        self.running: str | None = None
        self.resumed = False
        self._pending: str | None = None
        self._known_pending = {""}
        self._storage = storage
        self._seen = Tagged(None)
        self._me = new_id()

    def read(self) -> TransactionDef | None:
        """Return the current content of the file, ``None`` if it is gone. One ``get``.

        Raises:
            CorruptDefinition: it is garbage, or of another transaction.
        """
        self._seen = self._storage.read_tagged(self.path)
        self.definition = None
        if self._seen.data is not None:
            definition = decode_transaction(self._seen.data, self.path)
            if definition.id != self.id:
                raise CorruptDefinition(f"{self.path} is of transaction {definition.id}", path=self.path)
            self.definition = definition
        return self.definition

    def replace(self, definition: TransactionDef) -> bool:
        """Replace the file if it still is as it was seen; return whether it was. One ``put``."""
        done = self._storage.compare_and_set(self.path, encode(definition), self._seen)
        if done is not None:
            self._seen, self.definition = done, definition
        return done is not None

    def _marked(self, state: TransactionDef.State) -> TransactionDef:
        marked = TransactionDef()
        marked.CopyFrom(self.definition or TransactionDef())
        marked.state = state
        marked.ClearField("pending_running_root_node_file_path")
        return marked

    def resume(self, definition: TransactionDef) -> None:
        """Record that this process resumed the content of the file. REQUIRES: its running root was proved to be one."""
        self.running, self.resumed = definition.running_root_node_file_path, True
        self._known_pending.add(definition.pending_running_root_node_file_path)

    # -- saving ------------------------------------------------------------------------------------

    def store(self, transaction: TransactionDef, running: str) -> bool:
        """Write where a running root is, for the first time; return whether the file was as it was seen.

        One ``put``.
        """
        transaction.running_root_node_file_path = running
        if not self.replace(transaction):
            return False
        self.running = running
        return True

    def announce(self, running: str) -> bool:
        """Name the next running root beside the one that was resumed; return whether the file was as it was seen.

        From now on `clean` keeps both, and a process that resumes the transaction gets the old one. One ``put``.
        """
        announced = self._marked(TransactionDef.SAVED)
        announced.pending_running_root_node_file_path = running
        self._known_pending.add(running)
        if not self.replace(announced):
            return False
        self._pending = running
        return True

    def confirm(self) -> None:
        """Put the running root that was announced in place of the old one, if one was announced. One ``put``.

        REQUIRES: no cleaning can have removed what was written for it.

        Raises:
            CommitConflict: another process took, aborted or saved the transaction since it was announced.
            OutcomeUnknown: an answer was lost, and other processes have gone on since, perhaps from this save.
        """
        pending = self._pending
        if pending is None:
            return
        confirmed = self._marked(TransactionDef.SAVED)
        confirmed.running_root_node_file_path = pending
        try:
            if not self.replace(confirmed):
                raise changed(self.id)
        except OutcomeUnknown as error:
            found = self.read()
            if found is None or found.running_root_node_file_path not in {pending, self.running}:
                raise OutcomeUnknown(
                    f"whether transaction {self.id} was saved is unknown: an answer was lost, and other processes have "
                    "gone on since. Look at the history before you save it again"
                ) from error
            if found.running_root_node_file_path == self.running:
                raise changed(self.id) from None
        self.running, self._pending = pending, None

    # -- taking ------------------------------------------------------------------------------------

    def take(self) -> None:
        """Record that this process begins to commit what it resumed. One ``put``; none if that is recorded already.

        Others may have taken it before and after: which of them commits is decided by the roots.

        Raises:
            TransactionNotFound: it was aborted, or the file is gone.
            CommitConflict: it was saved again since it was resumed.
        """
        for _ in range(MAX_ATTEMPTS):
            if self._me in self._takers():
                return
            self._refuse_other()
            taken = self._marked(TransactionDef.COMMITTING)
            taken.taken_by.append(self._me)
            try:
                if self.replace(taken):
                    return
            except OutcomeUnknown:
                self.read()
                if self._me not in self._takers():
                    raise
                return
            self.read()
        raise CommitConflict(f"transaction {self.id} was changed again and again; try again")

    def _takers(self) -> list[str]:
        return [] if self.definition is None else list(self.definition.taken_by)

    def _refuse_other(self) -> None:
        if self.definition is None:
            raise not_found(self.id)
        if self.definition.state == TransactionDef.ABORTED:
            raise TransactionNotFound(f"transaction {self.id} was aborted by another process")
        if self.definition.running_root_node_file_path != self.running:
            raise CommitConflict(f"transaction {self.id} was saved again since it was resumed; resume it again")

    def refuse_unsavable(self) -> None:
        """Raise ``CommitConflict`` if what this process saw must not be saved over: a save, a commit, an abort."""
        if self.resumed and (self.definition is None or self.superseded):
            raise changed(self.id)
        if self.definition is not None and self.definition.state != TransactionDef.SAVED:
            raise CommitConflict(
                f"another process has begun to commit transaction {self.id}; commit it too, or abort it"
            )

    # -- aborting ----------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """Whether the file is gone, or marks the transaction as aborted."""
        return self.definition is None or self.definition.state == TransactionDef.ABORTED

    @property
    def superseded(self) -> bool:
        """Whether another process has saved it again, or begun to, since this one resumed it."""
        return self.definition is not None and (
            self.definition.running_root_node_file_path != self.running
            or self.definition.pending_running_root_node_file_path not in self._known_pending
        )

    @property
    def taken_by_others(self) -> bool:
        """Whether another process has begun to commit it. That process may be suspended and may go on later."""
        return bool(set(self._takers()) - {self._me})

    @property
    def taken(self) -> bool:
        """Whether any process has begun to commit it."""
        return bool(self._takers())

    def mark_aborted(self) -> bool:
        """Mark it as aborted; `clean` removes its files. Return whether it still was as it was seen. One ``put``.

        REQUIRES: no process can commit it once it is marked: no process has taken it, or the roots have decided.
        """
        return self.replace(self._marked(TransactionDef.ABORTED))

    def remove(self) -> None:
        """Remove the file and the running root of a transaction that is committed, best effort. Two ``delete``.

        The file is removed first: a process that finds it finds the running root, too.
        """
        remove_quietly(self._storage, [self.path])
        if self.running is not None:
            remove_quietly(self._storage, [self.running])


def not_found(transaction_id: str) -> TransactionNotFound:
    """Return the error for a transaction that has no file."""
    return TransactionNotFound(
        f"there is no saved transaction {transaction_id!r}: it was committed, aborted, cleaned up, or never saved"
    )


def changed(transaction_id: str) -> CommitConflict:
    """Return the error for a save of a transaction that is not as it was resumed any more."""
    return CommitConflict(
        f"transaction {transaction_id} was saved, taken or aborted elsewhere since it was resumed; resume it again"
    )
