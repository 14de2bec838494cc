"""Saved transactions: write, audit, publish or abort, each by another process (format, sections 5 and 6).

A first save writes the ``txn-`` file once. One that replaces a save announces the new running root beside the old one,
checks whether a cleaning may have removed what was written for it, and confirms it then.
"""

from __future__ import annotations

from dataclasses import dataclass

from trinitylake_core import locations, spec
from trinitylake_core.commits.changes import Aborted, commit_summary
from trinitylake_core.commits.commit import MAX_ATTEMPTS, commit
from trinitylake_core.commits.fences import void_since
from trinitylake_core.commits.files import LakehouseStore
from trinitylake_core.definitions import TransactionDef
from trinitylake_core.errors import (
    CommitConflict,
    CorruptDefinition,
    CorruptNode,
    FileMissing,
    InvalidLocation,
    OutcomeUnknown,
    TransactionExpired,
)
from trinitylake_core.locations import node_path, validate_path
from trinitylake_core.storage import Storage
from trinitylake_core.transactions.savedfile import SavedFile, changed, not_found
from trinitylake_core.tree import nodefile
from trinitylake_core.tree.node import Messages, Node
from trinitylake_core.versions import Root

# -- saving --------------------------------------------------------------------------------------------


def save(
    files: LakehouseStore, base: Root, transaction: TransactionDef, own: Messages, state: str, file: SavedFile
) -> None:
    """Store a transaction under its ID: a running root, then the definition. Two ``put``.

    If it was resumed, that is an announcement: what was saved before counts until ``file.confirm()``.

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
    if not (file.announce(path) if file.resumed else file.store(transaction, path)):
        raise changed(transaction.id)


def fenced(storage: Storage, since: Root, newest: Root) -> bool:
    """Whether files written since a root was read may be void by now (format, section 6).

    No request if no cleaning came in between, else at most one ``head``: what was written is younger than ``since``.
    """
    return newest.void_before_millis > since.void_before_millis and void_since(storage, since, newest)


# -- resuming ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Saved:
    """A saved transaction as read back: its base, its changes and its dependencies."""

    definition: TransactionDef
    base: Root
    messages: Messages
    state: str
    file: SavedFile


def load(files: LakehouseStore, transaction_id: str) -> Saved:
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


def _resumed(files: LakehouseStore, file: SavedFile, definition: TransactionDef) -> Saved:
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
    file.resume(definition)
    return Saved(definition, _beginning(definition, node, file.path), own, state, file)


def _beginning(definition: TransactionDef, node: Node, path: str) -> Root:
    """Return the root that a transaction began at: that of a version, or the copy of one that a snapshot keeps."""
    beginning = definition.beginning_root_node_file_path
    parsed = locations.parse(beginning)
    version = None
    if parsed is not None and parsed.kind in {"root", "node"}:
        version = node.version if parsed.version is None else parsed.version
    if version is None:
        raise CorruptDefinition(
            f"saved transaction {definition.id!r} does not contain where it began", path=path, invariant="I10"
        )
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


# -- aborting --------------------------------------------------------------------------------------


def abort_saved(files: LakehouseStore, base: Root, file: SavedFile, *, unknown: bool = False) -> None:
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
                decide_abort(files, base, file.id)
            return
        if file.superseded:
            raise CommitConflict(f"transaction {file.id} was saved again since it was resumed; resume it to abort it")
        if not decided and (file.taken_by_others or (unknown and file.taken)):
            decide_abort(files, base, file.id)
            decided = True
        if file.mark_aborted():
            return
        file.read()
    raise CommitConflict(f"transaction {file.id} was changed again and again; try again")


def decide_abort(files: LakehouseStore, base: Root, transaction_id: str) -> None:
    """Commit a root that aborts a transaction. A process that took it, and commits late, meets that root.

    Raises:
        CommitConflict: the transaction is in the history.
        OutcomeUnknown: the versions after ``base``, of which one may be this transaction, have expired.
    """
    try:
        commit(files, base, Aborted(transaction_id, commit_summary(aborted=transaction_id)))
    except (TransactionExpired, OutcomeUnknown) as error:
        raise OutcomeUnknown(
            f"transaction {transaction_id} may be committed, and nothing proves that it is not: {error}. Its files "
            "stay until `clean` finds that no version reaches them"
        ) from error
