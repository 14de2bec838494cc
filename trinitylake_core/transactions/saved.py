"""Saved transactions: write, audit, publish or abort, each by another process (format, sections 5 and 6).

The ``txn-`` file contains the path of the running root and the state of the transaction: SAVED, COMMITTING (a process
has taken it), ABORTED. It is replaced by compare-and-set only. It never decides whether a transaction is committed.
The roots do.

A first save writes the file once. One that replaces a save announces the new running root beside the old one, checks
whether a cleaning may have removed what was written for it, and confirms it then.
"""

from __future__ import annotations

from typing import NamedTuple

from trinitylake_core import locations, spec
from trinitylake_core.commits.backend import LakehouseBackend
from trinitylake_core.commits.changes import Aborted, commit_summary
from trinitylake_core.commits.commit import MAX_ATTEMPTS, commit, new_id
from trinitylake_core.commits.confirm import remove_quietly
from trinitylake_core.commits.fences import stored_at, void_since
from trinitylake_core.definitions import TransactionDef, decode_transaction, encode
from trinitylake_core.errors import (
    CommitConflict,
    CorruptDefinition,
    CorruptNode,
    FileMissing,
    InvalidLocation,
    OutcomeUnknown,
    TransactionExpired,
    TransactionNotFound,
)
from trinitylake_core.locations import node_path, transaction_path, validate_path
from trinitylake_core.storage import Storage, Tagged
from trinitylake_core.tree import nodefile
from trinitylake_core.tree.node import Messages, Node
from trinitylake_core.versions import Root


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

        Raises ``CorruptDefinition``: it is garbage, or of another transaction.
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
            self._seen = done
            self.definition = definition
        return done is not None

    def _with_state(self, state: TransactionDef.State) -> TransactionDef:
        marked = TransactionDef()
        marked.CopyFrom(self.definition or TransactionDef())
        marked.state = state
        marked.ClearField("pending_running_root_node_file_path")
        return marked

    def resume(self, definition: TransactionDef) -> None:
        """Record that this process resumed the content of the file. REQUIRES: its running root was proved to be one."""
        self.running = definition.running_root_node_file_path
        self.resumed = True
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
        announced = self._with_state(TransactionDef.SAVED)
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
        confirmed = self._with_state(TransactionDef.SAVED)
        confirmed.running_root_node_file_path = pending
        try:
            if not self.replace(confirmed):
                raise saved_elsewhere(self.id)
        except OutcomeUnknown as error:
            found = self.read()
            if found is None or found.running_root_node_file_path not in {pending, self.running}:
                raise OutcomeUnknown(
                    f"whether transaction {self.id} was saved is unknown: an answer was lost, and other processes have "
                    "gone on since. Look at the history before you save it again"
                ) from error
            if found.running_root_node_file_path == self.running:
                raise saved_elsewhere(self.id) from None
        self.running = pending
        self._pending = None

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
            if self.definition is None:
                raise not_found(self.id)
            if self.definition.state == TransactionDef.ABORTED:
                raise TransactionNotFound(f"transaction {self.id} was aborted by another process")
            if self.definition.running_root_node_file_path != self.running:
                raise CommitConflict(f"transaction {self.id} was saved again since it was resumed; resume it again")
            taken = self._with_state(TransactionDef.COMMITTING)
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

    def _takers(self) -> set[str]:
        if self.definition is None:
            return set()
        return set(self.definition.taken_by)

    def refuse_unsavable(self) -> None:
        """Raise ``CommitConflict`` if what this process saw must not be saved over: a save, a commit, an abort."""
        if self.resumed and (self.definition is None or self.was_superseded):
            raise saved_elsewhere(self.id)
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
    def was_superseded(self) -> bool:
        """Whether another process has saved it again, or begun to, since this one resumed it."""
        return self.definition is not None and (
            self.definition.running_root_node_file_path != self.running
            or self.definition.pending_running_root_node_file_path not in self._known_pending
        )

    @property
    def taken_by_others(self) -> bool:
        """Whether another process has begun to commit it. That process may be suspended and may go on later."""
        return bool(self._takers() - {self._me})

    @property
    def is_taken(self) -> bool:
        """Whether any process has begun to commit it."""
        return bool(self._takers())

    def mark_aborted(self) -> bool:
        """Mark it as aborted; `clean` removes its files. Return whether it still was as it was seen. One ``put``.

        REQUIRES: no process can commit it once it is marked: no process has taken it, or the roots have decided.
        """
        return self.replace(self._with_state(TransactionDef.ABORTED))

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


def saved_elsewhere(transaction_id: str) -> CommitConflict:
    """Return the error for a save of a transaction that is not as it was resumed any more."""
    return CommitConflict(
        f"transaction {transaction_id} was saved, taken or aborted elsewhere since it was resumed; resume it again"
    )


# -- saving --------------------------------------------------------------------------------------------


def save(
    backend: LakehouseBackend,
    base: Root,
    transaction: TransactionDef,
    own: Messages,
    state: str,
    file: SavedFile,
) -> None:
    """Store a transaction under its ID: a running root, then the definition. Two ``put``.

    If it was resumed, that is an announcement: what was saved before counts until ``file.confirm()``. Raises
    ``CommitConflict``: it was saved, taken, aborted or removed since this process resumed it.
    """
    node = base.node.with_messages(own)
    rows = {spec.TXN_ID: transaction.id, spec.TXN_STATE: state, spec.OPERATION: spec.OP_COMMIT}
    node.system = base.node.system | rows
    node.system.pop(spec.FITS, None)  # that was said of the base: with the messages it may be larger
    path = node_path()
    content = nodefile.encode(node, backend.nodes.order, path)
    backend.storage.write_many([(path, content)])
    backend.storage.barrier()
    transaction.beginning_root_node_file_path = base.path
    if not (file.announce(path) if file.resumed else file.store(transaction, path)):
        raise saved_elsewhere(transaction.id)


def is_fenced(storage: Storage, since: Root, newest: Root) -> bool:
    """Whether files written since a root was read may be void by now (format, section 6).

    No request if no cleaning came in between that anybody knows of, else at most one ``head``: what was written is
    younger than ``since``.
    """
    if newest.version == since.version or not newest.void_before_millis:
        return False
    if newest.void_before_millis != since.void_before_millis:
        return void_since(storage, since, newest)
    # A fence that lies after the time of `since` hides a later one, whose own time is earlier: a clock was wrong once.
    return stored_at(storage, since) < since.void_before_millis


# -- resuming ------------------------------------------------------------------------------------------


class Saved(NamedTuple):
    """A saved transaction as read back: its base, its changes and its dependencies."""

    definition: TransactionDef
    base: Root
    messages: Messages
    state: str
    file: SavedFile


def load(backend: LakehouseBackend, transaction_id: str) -> Saved:
    """Return a saved transaction. Two ``get``.

    Raises:
        TransactionNotFound: committed, aborted, cleaned up, or never saved.
        CorruptNode, CorruptDefinition: what was saved cannot be read.
    """
    file = SavedFile(backend.storage, transaction_id)
    definition, running = _read_running(backend, file)
    own = running.buffer.of_transaction(definition.id)
    node = Node(
        running.keys, running.values, running.children, running.buffer.slice(0, len(running.buffer) - len(own)),
        dict(running.system), running.height, running.subtree_keys,
        None if running.subtree_messages is None else running.subtree_messages - len(own),
        running.child_keys, running.child_messages,
    )  # fmt: skip
    state = node.system.pop(spec.TXN_STATE, "")
    node.system.pop(spec.TXN_ID, None)  # that of the saved transaction; which one made the base is not stored
    file.resume(definition)
    # It began at the root of a version, or at the copy of one that a snapshot keeps.
    beginning = definition.beginning_root_node_file_path
    parsed = locations.parse(beginning)
    version = None
    if parsed is not None and parsed.kind in {"root", "node"}:
        if parsed.version is None:
            version = node.version
        else:
            version = parsed.version
    if version is None:
        raise CorruptDefinition(
            f"saved transaction {transaction_id!r} does not contain where it began", path=file.path, invariant="I10"
        )
    return Saved(
        definition=definition,
        base=Root(version, beginning, node),
        messages=own,
        state=state,
        file=file,
    )


def _read_running(backend: LakehouseBackend, file: SavedFile) -> tuple[TransactionDef, Node]:
    while True:
        definition = file.read()
        if definition is None or file.over:
            raise not_found(file.id)
        try:
            return definition, running_root(backend.storage, definition)
        except CorruptNode:
            again = file.read()
            if again is not None and again.running_root_node_file_path == definition.running_root_node_file_path:
                raise


def running_root(storage: Storage, definition: TransactionDef) -> Node:
    """Return the running root of a saved transaction, proved to be one: by kind of name, and by its own ``txn``.

    One ``get``. Raises ``CorruptNode``: it is missing or garbage, or the file is another one.
    """
    path = definition.running_root_node_file_path
    try:
        validate_path(path)
    except InvalidLocation as error:
        raise CorruptNode(str(error), path=path, invariant="I10") from None
    parsed = locations.parse(path)
    if parsed is None or parsed.kind != "node":
        raise CorruptNode(f"{path!r} is no running root of a saved transaction", path=path, invariant="I10")
    try:
        node = nodefile.decode(storage.read(path), path)
    except FileMissing:
        raise CorruptNode(f"running root {path!r} of a saved transaction is missing", path=path) from None
    if node.system.get(spec.TXN_ID) != definition.id:
        raise CorruptNode(f"node {path!r} is not the running root of transaction {definition.id}", path=path)
    return node


# -- aborting --------------------------------------------------------------------------------------


def abort_saved(
    backend: LakehouseBackend,
    base: Root,
    file: SavedFile,
    *,
    unknown: bool,
) -> None:
    """Abort a transaction that was resumed; its files stay for `clean`. One ``put`` if no other process touched it.

    A root decides if another process has taken it, if its file is gone, or if this process took it and does not know
    what came of it (``unknown``). That costs a commit, too.

    Raises:
        CommitConflict: it is committed, or was saved again by another process; nothing was aborted.
        OutcomeUnknown: it may be committed, and the versions that would prove it have expired; nothing was aborted.
        StorageError: it may or may not be aborted.
    """
    decided = False
    for _ in range(MAX_ATTEMPTS):
        if file.over:
            if file.definition is None and not decided:
                decide_abort(backend, base, file.id)
            return
        if file.was_superseded:
            raise CommitConflict(f"transaction {file.id} was saved again since it was resumed; resume it to abort it")
        if not decided and (file.taken_by_others or (unknown and file.is_taken)):
            decide_abort(backend, base, file.id)
            decided = True
        if file.mark_aborted():
            return
        file.read()
    raise CommitConflict(f"transaction {file.id} was changed again and again; try again")


def decide_abort(backend: LakehouseBackend, base: Root, transaction_id: str) -> None:
    """Commit a root that aborts a transaction. A process that took it, and commits late, meets that root.

    Raises:
        CommitConflict: the transaction is in the history.
        OutcomeUnknown: the versions after ``base``, of which one may be this transaction, have expired or cannot be
            read.
    """
    change = Aborted(transaction_id, commit_summary(aborted=transaction_id))
    try:
        commit(backend, base, change)
    except (TransactionExpired, OutcomeUnknown, CommitConflict) as error:
        if change.is_too_late:
            raise
        raise OutcomeUnknown(
            f"transaction {transaction_id} may be committed, and nothing proves that it is not: {error}. Its files "
            "stay until `clean` finds that no version reaches them"
        ) from error
