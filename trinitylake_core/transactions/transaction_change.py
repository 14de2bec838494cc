"""A transaction as a change of the commit protocol: built on a root, rebased, recognised (format, section 6)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from trinitylake_core import spec
from trinitylake_core.catalog import codec_of, object_counts
from trinitylake_core.commits.commit import Draft, whoami
from trinitylake_core.commits.files import LakehouseStore
from trinitylake_core.commits.rolled_back import newest_base, refuse_lost
from trinitylake_core.definitions import commit_buffer_bytes, encode
from trinitylake_core.errors import (
    CommitConflict,
    Corrupt,
    FileMissing,
    SnapshotNotFound,
    TransactionExpired,
    VersionExpired,
)
from trinitylake_core.locations import definition_path
from trinitylake_core.tables import UNPROVED
from trinitylake_core.transactions.edits import CatalogEdits
from trinitylake_core.transactions.footprint import Conflicts
from trinitylake_core.tree.node import Messages, Node
from trinitylake_core.tree.nodestore import NodeWriter
from trinitylake_core.tree.rewrite import Rewriter
from trinitylake_core.tree.subtree import heaviest_children
from trinitylake_core.versions import Delta, ObjectCounts, Root

# -- the flush of a root by a commit ---------------------------------------------------------------


def flushed_for(writer: NodeWriter, base: Root, own: Messages, stamp: int, buffer_bytes: int) -> Node:
    """Return the node of ``base``, its older messages pushed down if with ``own`` the root would grow too large.

    That is: a write buffer of more than ``buffer_bytes``, which every commit writes again, or a node over its target.
    Then the heaviest children get their messages, until half of either is free; about one ``put`` per such child. So a
    flush is rare: all commits until the buffer is full again write nothing but the root.
    """
    node, target = base.node, writer.target_bytes
    size, buffered = own.nbytes(), node.buffer.nbytes()
    if not buffered or (buffered + size <= buffer_bytes and node.estimated_bytes() + size <= target):
        return node
    rewriter = Rewriter(writer, stamp)
    tree = rewriter.ref_of(node)
    top, below = rewriter.open(tree), max(target - size, target // 2)
    room = node.table_bytes() + buffer_bytes // 2
    of_root, of_others = heaviest_children(min(room, below)), heaviest_children(below)
    tree = rewriter.flush(tree, lambda work: (of_root if work is top else of_others)(work))
    rewriter.open(tree)
    return rewriter.node_of(tree)


SNAPSHOT: Final = "SNAPSHOT"
SERIALIZABLE: Final = "SERIALIZABLE"


class AlreadyCommitted(Exception):
    """The version that this transaction became in an earlier attempt."""

    def __init__(self, version: int) -> None:
        super().__init__(version)
        self.version = version


def appended(
    files: LakehouseStore,
    base: Root,
    own: Messages,
    gained: Callable[[], ObjectCounts],
    created_at_millis: int,
    writer: NodeWriter,
) -> tuple[Node, ObjectCounts | None]:
    """Return the node of ``base`` with messages at the end of its buffer, and the objects that it contains then."""
    buffer_bytes = commit_buffer_bytes(files.definition(base))
    node = flushed_for(writer, base, own, created_at_millis, buffer_bytes).with_messages(own)
    counts = base.counts
    if counts is None and base.node.is_leaf:  # the root is all there is: no request
        counts = object_counts(files.store, base.node, codec_of(files.definition(base), sdk=files.versions.sdk))
    return node, None if counts is None else gained().plus(counts)


def set_and_deleted(own: Messages) -> dict[str, int]:
    """Return the numbers of messages that set and that delete a key, for the summary of a version."""
    deleted = own.deletions()
    return {"set": len(own) - deleted, "deleted": deleted}


class TransactionChange(CatalogEdits):
    """Edits that can become a version: a change of the commit protocol.

    Attributes:
        isolation: SNAPSHOT or SERIALIZABLE; under the latter others must not have written what was read.
        began_at_millis: when it began, in epoch milliseconds.
        ttl_millis: for how long it may be committed.
    """

    began_at_millis: int
    ttl_millis: int

    def __init__(self, files: LakehouseStore, base: Root, transaction_id: str, isolation: str) -> None:
        codec = codec_of(files.definition(base), sdk=files.versions.sdk)
        super().__init__(transaction_id, base, files.store, codec)
        self.isolation = isolation
        self._files = files
        self._operation: str = spec.OP_COMMIT
        self._reason: str | None = None
        self._facts: dict[str, Any] = {}
        self._system: dict[str, str | None] = {}
        self._written: set[str] = set()
        self._saved_definitions: frozenset[str] = frozenset()
        self._proofs: list[Callable[[Root], None]] = []

    def require(self, proof: Callable[[Root], None]) -> None:
        """Have ``proof`` called with each root that this is about to be built on; what it raises ends the commit.

        It proves again, without requests as far as it can: it is called once for each lost race.
        """
        self._proofs.append(proof)

    def prove(self, base: Root) -> None:
        """Prove what is required of ``base``.

        Raises ``CommitConflict``; also where tables were cleaned and table metadata are named without any proof.
        """
        for proof in self._proofs:
            proof(base)
        if base.tables_void_before_millis and not self._proofs and (named := self.new_table_files()):
            raise CommitConflict(f"{min(named)}: {UNPROVED}", version=base.version)

    @property
    def base(self) -> Root:
        """The root that the changes stand on."""
        return self._base

    @property
    def reason(self) -> str | None:
        """Why, for the history."""
        return self._reason

    def _refuse_expired(self) -> None:
        try:
            refuse_lost(self._files, newest_base(self._files).root, self._base)
        except (VersionExpired, SnapshotNotFound) as error:
            raise TransactionExpired(f"the transaction cannot go on: {error}; begin a new one") from error

    def conflicts(self) -> Conflicts:
        """Return the keys that no other transaction may have changed for this to be committed."""
        return self._footprint.against(self._writes, serializable=self.isolation == SERIALIZABLE)

    def build(self, base: Root, created_at_millis: int, writer: NodeWriter) -> Draft:
        """Return the root on top of ``base``: its tree, its buffer, and this transaction's messages at the end."""
        self.prove(base)
        own = self.messages()
        summary = {"author": whoami(), **set_and_deleted(own), **self._facts}
        if self._reason:
            summary["reason"] = self._reason
        node, counts = appended(self._files, base, own, self.gained, created_at_millis, writer)
        return Draft(node, self._operation, self.id, summary, dict(self._system), counts=counts)

    def rebase(self, base: Root, newer: Sequence[Delta]) -> None:
        """Prove that nothing in ``newer`` conflicts with this transaction. Raises ``CommitConflict``."""
        conflicts = self.conflicts()
        for root in newer:
            if root.txn == self.id or self.id in root.system.get(spec.SUMMARY, ""):
                self._recognise(root)
            if root.operation in spec.QUIET_OPERATIONS:
                continue
            if root.operation not in spec.TRANSACTIONAL_OPERATIONS:
                raise CommitConflict(
                    f"version {root.version} ({root.operation or 'of another writer'}) replaced the whole tree; "
                    "read again and retry the transaction",
                    version=root.version,
                )
            touched = conflicts.touched(root.own_messages())
            if touched:
                raise CommitConflict(
                    f"version {root.version} changed {self._named(touched)}, which this transaction depends on; "
                    "read again and retry the transaction",
                    keys=touched,
                    version=root.version,
                )

    def renew(self, base: Root) -> None:
        """Write the definitions again under new names; a cleaning may be removing the old ones. One ``put`` each.

        Those that another process saved are read first, one ``get`` each. Raises ``TransactionExpired`` if they are
        gone already.
        """
        held = {path: encode(definition) for path, (_, definition) in self._definitions.items()}
        held |= self._read_saved(base)
        new = {
            old: definition_path(*self._keys.split(key))
            for key, old in self._writes.items()
            if old is not None and old in held
        }
        self._write_new({path: held[old] for old, path in new.items()})
        self._writes.update({key: new[path] for key, path in self._writes.items() if path in new})
        self._definitions = {new.get(path, path): each for path, each in self._definitions.items()}
        self._saved_definitions = frozenset(new.get(path, path) for path in self._saved_definitions)

    def _read_saved(self, base: Root) -> dict[str, bytes]:
        paths = [path for path in self._writes.values() if path in self._saved_definitions]
        found: dict[str, bytes] = {}
        for path, data in self._files.storage.read_many(paths):
            if isinstance(data, FileMissing):
                raise TransactionExpired(
                    f"what was saved of this transaction is gone since version {base.version}; begin a new one"
                )
            found[path] = data
        return found

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
            return self._read_definition(own) == self._files.storage.read(other)
        except (Corrupt, FileMissing, TransactionExpired):
            return False

    def _named(self, keys: Sequence[str]) -> str:
        shown = ", ".join(str(self._keys.decode(key)) for key in keys[:5])
        return shown + (f" and {len(keys) - 5} more" if len(keys) > 5 else "")

    def _write_new(self, files: Mapping[str, bytes]) -> None:
        self._written |= files.keys()
        self._files.storage.write_many(files.items())
