"""Saved transactions: write, audit, publish, each by another process (format, sections 5 and 6).

The ``txn-`` file is replaced by compare-and-set only. It says where the running root is, and what became of the
transaction: SAVED, COMMITTING (somebody has taken it), ABORTED. It is never the file that decides whether a
transaction is committed: the roots do.
"""

from __future__ import annotations

from dataclasses import dataclass

from trinitylake_core import locations, nodefile, spec
from trinitylake_core.acknowledge import remove_quietly
from trinitylake_core.commit import MAX_ATTEMPTS, new_id
from trinitylake_core.definitions import TransactionDef, decode_transaction, encode
from trinitylake_core.errors import (
    CommitConflict,
    CorruptDefinition,
    CorruptNode,
    FileMissing,
    InvalidLocation,
    TransactionExpired,
    TransactionNotFound,
)
from trinitylake_core.files import Files
from trinitylake_core.locations import node_path, transaction_path, validate_path
from trinitylake_core.node import Messages, Node
from trinitylake_core.storage import Storage, Tagged
from trinitylake_core.versions import Root


class SavedFile:
    """The file of one saved transaction, as this process last read or wrote it.

    Attributes:
        definition: what it says; ``None`` if there is none.
        running: path of the running root that this process resumed or saved, proved to be one; ``None`` before.
    """

    def __init__(self, storage: Storage, transaction_id: str) -> None:
        self.id = transaction_id
        self.path = transaction_path(transaction_id)
        self.definition: TransactionDef | None = None
        self.running: str | None = None
        self._storage = storage
        self._seen = Tagged(None)
        self._me = new_id()

    def read(self) -> TransactionDef | None:
        """Return what the file says by now, ``None`` if it is gone. One ``get``.

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
        return marked

    # -- taking ------------------------------------------------------------------------------------

    def take(self) -> None:
        """Say that this process begins to commit what it resumed. One ``put``; none if that is said already.

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
            if self.replace(taken):
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
        """Raise ``CommitConflict`` if what this process saw must not be saved over: somebody began to commit it."""
        if self.definition is not None and self.definition.state != TransactionDef.SAVED:
            raise CommitConflict(f"somebody has begun to commit transaction {self.id}; commit it too, or abort it")

    # -- aborting ----------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """Whether the file is gone, or says that the transaction was aborted."""
        return self.definition is None or self.definition.state == TransactionDef.ABORTED

    @property
    def superseded(self) -> bool:
        """Whether another process saved it again."""
        return self.definition is not None and self.definition.running_root_node_file_path != self.running

    @property
    def taken_by_others(self) -> bool:
        """Whether somebody else has begun to commit it, and may merely be asleep."""
        return bool(set(self._takers()) - {self._me})

    @property
    def taken(self) -> bool:
        """Whether anybody has begun to commit it."""
        return bool(self._takers())

    def mark_aborted(self) -> bool:
        """Say that it was aborted; `clean` removes its files. Return whether it still was as it was seen. One ``put``.

        REQUIRES: nobody can commit it any more once that is said: nobody has taken it, or the roots have decided.
        """
        return self.replace(self._marked(TransactionDef.ABORTED))

    def remove(self) -> None:
        """Remove the file and the running root of a transaction that is committed, best effort. Two ``delete``.

        The file first: whoever finds it finds the running root, too.
        """
        remove_quietly(self._storage, [self.path])
        if self.running is not None:
            remove_quietly(self._storage, [self.running])


def not_found(transaction_id: str) -> TransactionNotFound:
    """Return the error for a transaction that has no file."""
    return TransactionNotFound(
        f"there is no saved transaction {transaction_id!r}: it was committed, aborted, cleaned up, or never saved"
    )


# -- saving --------------------------------------------------------------------------------------------


def save(files: Files, base: Root, transaction: TransactionDef, own: Messages, state: str, file: SavedFile) -> None:
    """Store a transaction under its ID: a running root, then the definition. Two ``put``, one ``delete`` if again.

    Raises:
        CommitConflict: it was saved, taken, aborted or removed since this process resumed it.
    """
    node = base.node.with_messages(own)
    node.system = {
        **base.node.system,
        spec.TXN_ID: transaction.id,
        spec.TXN_STATE: state,
        spec.OPERATION: spec.OP_COMMIT,
    }
    path = node_path()
    files.storage.write_many([(path, nodefile.encode(node, files.store.order, path))])
    files.storage.barrier()
    transaction.beginning_root_node_file_path = base.path
    transaction.running_root_node_file_path = path
    if not file.replace(transaction):
        remove_quietly(files.storage, [path])
        raise CommitConflict(
            f"transaction {transaction.id} was saved, taken or aborted elsewhere since it was resumed; resume it again"
        )
    if file.running is not None:
        remove_quietly(files.storage, [file.running])
    file.running = path


def fenced(storage: Storage, since: Root, newest: Root) -> bool:
    """Return whether files written since a root was read may be void by now (format, section 6).

    No request if no cleaning came in between, else at most one ``head``: what was written is younger than ``since``.
    """
    if newest.void_before_millis <= since.void_before_millis:
        return False
    if since.version < newest.oldest_version:
        return True  # it has expired: a file of its name would be another's
    try:
        return storage.info(since.path).modified_millis < newest.void_before_millis
    except FileMissing:
        return True


def new_transaction_def(transaction_id: str, isolation: str, began_at_millis: int, ttl_millis: int) -> TransactionDef:
    """Return the definition of a transaction to be saved."""
    return TransactionDef(
        id=transaction_id,
        isolation_level=isolation,
        began_at_millis=began_at_millis,
        expire_at_millis=began_at_millis + ttl_millis,
    )


# -- resuming ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Saved:
    """A saved transaction as read back: where it began, what it changed, what it depends on."""

    definition: TransactionDef
    base: Root
    messages: Messages
    state: str
    file: SavedFile


def load(files: Files, transaction_id: str) -> Saved:
    """Return a saved transaction. Two ``get``.

    Raises:
        TransactionNotFound: committed, aborted, cleaned up, or never saved.
        CorruptNode, CorruptDefinition: what was saved cannot be read.
    """
    file = SavedFile(files.storage, transaction_id)
    while True:
        definition = file.read()
        if definition is None or file.over:
            raise not_found(transaction_id)
        try:
            return _resumed(files, file, definition)
        except CorruptNode:
            read = definition.running_root_node_file_path
            again = file.read()
            if again is not None and again.running_root_node_file_path == read:
                raise


def _resumed(files: Files, file: SavedFile, definition: TransactionDef) -> Saved:
    running = running_root(files.storage, definition, files.store.order)
    own = running.buffer.of_transaction(definition.id)
    node = Node(
        running.keys, running.values, running.children, running.buffer.slice(0, len(running.buffer) - len(own)),
        dict(running.system), running.height, running.subtree_keys,
        None if running.subtree_messages is None else running.subtree_messages - len(own),
        running.child_keys, running.child_messages,
    )  # fmt: skip
    state = node.system.pop(spec.TXN_STATE, "")
    node.system.pop(spec.TXN_ID, None)  # that of the saved transaction; which one made the base is not stored
    file.running = definition.running_root_node_file_path
    return Saved(definition, _beginning(definition, node, file.path), own, state, file)


def _beginning(definition: TransactionDef, node: Node, path: str) -> Root:
    """Return the root that a transaction began at: that of a version, or the copy of one that a snapshot keeps."""
    beginning = definition.beginning_root_node_file_path
    parsed = locations.parse(beginning)
    version = None
    if parsed is not None and parsed.kind in {"root", "node"}:
        version = node.version if parsed.version is None else parsed.version
    if version is None:
        raise CorruptDefinition(f"saved transaction {definition.id!r} began at no root", path=path, invariant="I10")
    return Root(version, beginning, node)


def running_root(storage: Storage, definition: TransactionDef, order: int) -> Node:
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
        node = nodefile.decode(storage.read(path), path, order)
    except FileMissing:
        raise CorruptNode(f"running root {path!r} of a saved transaction is missing", path=path) from None
    if node.system.get(spec.TXN_ID) != definition.id:
        raise CorruptNode(f"node {path!r} is not the running root of transaction {definition.id}", path=path)
    return node


def refuse_expired(definition: TransactionDef, now_millis: int) -> None:
    """Raise ``TransactionExpired`` if a saved transaction is past its time to live."""
    if now_millis >= definition.expire_at_millis:
        raise TransactionExpired(f"saved transaction {definition.id} is past its time to live; begin a new one")
