"""Saved transactions: write, audit, publish, each by another process (format, sections 5 and 6)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trinitylake_core import locations, nodefile, spec
from trinitylake_core.acknowledge import remove_quietly
from trinitylake_core.commit import Files
from trinitylake_core.definitions import TransactionDef, decode_transaction, encode
from trinitylake_core.errors import CorruptNode, FileMissing, TransactionExpired, TransactionNotFound
from trinitylake_core.locations import node_path, transaction_path, validate_path
from trinitylake_core.node import Messages, Node
from trinitylake_core.storage import Storage
from trinitylake_core.versions import Root


@dataclass(frozen=True, slots=True)
class Saved:
    """A saved transaction as read back: where it began, what it changed, what it depends on."""

    definition: TransactionDef
    base: Root
    messages: Messages
    state: str
    files: tuple[str, ...]
    """The files that exist for the sake of this transaction alone, its definitions aside."""


def save(
    files: Files, base: Root, transaction: TransactionDef, own: Messages, state: str, replaced: tuple[str, ...]
) -> None:
    """Store a transaction under its ID: a running root, then the definition. Two ``put``.

    ``replaced`` are the running roots of earlier saves, removed afterwards.
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
    files.storage.replace(transaction_path(transaction.id), encode(transaction))
    remove_quietly(files.storage, [old for old in replaced if old != transaction_path(transaction.id)])


def load(files: Files, transaction_id: str) -> Saved:
    """Return a saved transaction. Two ``get``.

    Raises:
        TransactionNotFound: committed, aborted, cleaned up, or never saved.
        CorruptNode, CorruptDefinition: what was saved cannot be read.
    """
    path = transaction_path(transaction_id)
    try:
        definition = decode_transaction(files.storage.read(path), path)
    except FileMissing:
        raise TransactionNotFound(
            f"there is no saved transaction {transaction_id!r}: it was committed, aborted, cleaned up, or never saved"
        ) from None
    running = running_root(files.storage, definition, files.store.order)
    own = running.buffer.of_transaction(definition.id)
    count = len(running.buffer) - len(own)
    parsed = locations.parse(definition.beginning_root_node_file_path)
    if parsed is None or parsed.version is None:
        raise CorruptNode(f"saved transaction {transaction_id!r} began at no root", path=path, invariant="I10")
    node = Node(
        running.keys, running.values, running.children, running.buffer.slice(0, count), dict(running.system),
        running.height, running.subtree_keys,
        None if running.subtree_messages is None else running.subtree_messages - len(own),
        running.child_keys, running.child_messages,
    )  # fmt: skip
    state = node.system.pop(spec.TXN_STATE, "")
    node.system.pop(spec.TXN_ID, None)  # that of the saved transaction; which one made the base is not stored
    base = Root(parsed.version, definition.beginning_root_node_file_path, node)
    return Saved(definition, base, own, state, (path, definition.running_root_node_file_path))


def running_root(storage: Storage, definition: TransactionDef, order: int) -> Node:
    """Return the running root of a saved transaction. One ``get``. Raises ``CorruptNode``."""
    path = validate_path(definition.running_root_node_file_path)
    try:
        return nodefile.decode(storage.read(path), path, order)
    except FileMissing:
        raise CorruptNode(f"running root {path!r} of a saved transaction is missing", path=path) from None


def new_transaction_def(transaction_id: str, isolation: str, began_at_millis: int, ttl_millis: int) -> TransactionDef:
    """Return the definition of a transaction to be saved."""
    return TransactionDef(
        id=transaction_id,
        isolation_level=isolation,
        began_at_millis=began_at_millis,
        expire_at_millis=began_at_millis + ttl_millis,
    )


def saved_transactions(storage: Storage, paths: Iterator[str]) -> Iterator[tuple[str, TransactionDef]]:
    """Yield the saved transactions among listed paths. One ``get`` each; those that vanish meanwhile are left out."""
    found = [path for path in paths if (parsed := locations.parse(path)) is not None and parsed.kind == "transaction"]
    for path, data in storage.read_many(found):
        if not isinstance(data, FileMissing):
            yield path, decode_transaction(data, path)


def refuse_expired(definition: TransactionDef, now_millis: int) -> None:
    """Raise ``TransactionExpired`` if a saved transaction is past its time to live."""
    if now_millis >= definition.expire_at_millis:
        raise TransactionExpired(f"saved transaction {definition.id} is past its time to live; begin a new one")
