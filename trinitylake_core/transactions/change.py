"""The change of a transaction: what it writes, what it depends on, and how that becomes a version (format, section 6).

A ``Transaction`` is what a user sees. Its change is what the commit protocol sees, alone or as a member of a group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final

from trinitylake_core import spec
from trinitylake_core.catalog import codec_of
from trinitylake_core.commits.appended import append_messages, has_room_for_all, plant_tree
from trinitylake_core.commits.backend import LakehouseBackend
from trinitylake_core.commits.bulk import BulkDelta
from trinitylake_core.commits.changes import transactional
from trinitylake_core.commits.commit import Draft, refuse_outlived, whoami
from trinitylake_core.commits.rolled_back import newest_base, refuse_lost
from trinitylake_core.definitions import encode
from trinitylake_core.errors import (
    CommitConflict,
    Corrupt,
    FileMissing,
    OutcomeUnknown,
    SnapshotNotFound,
    TransactionExpired,
    VersionExpired,
)
from trinitylake_core.locations import definition_path
from trinitylake_core.short_repr import first_of
from trinitylake_core.tables import UNPROVED, named_in_area
from trinitylake_core.transactions.dependencies import Conflicts, Footprint
from trinitylake_core.transactions.gains import count_created, count_gain
from trinitylake_core.transactions.requests import Repeated, RequestKey
from trinitylake_core.transactions.writes import Writes
from trinitylake_core.tree import search
from trinitylake_core.tree.leafrun import Columns
from trinitylake_core.tree.node import Messages
from trinitylake_core.tree.nodestore import NodeWriter
from trinitylake_core.versions import CountBounds, Delta, Root, SystemRows

_AGAIN: Final = "read again and retry the transaction"
_FEW: Final = 32
"""How many keys are looked up one by one, so that what is read for them stays cached for the next transaction."""
_NAMED: Final = 5
Proof = Callable[[Root], None]


class AlreadyCommitted(Exception):
    """The version that this transaction became in an earlier attempt."""

    def __init__(self, version: int) -> None:
        super().__init__(version)
        self.version = version


class TransactionChange:
    """The change of one transaction, for the commit protocol (:class:`trinitylake_core.commits.commit.Change`).

    Attributes:
        id: the transaction ID.
        base: the root that the changes stand on.
        writes: the keys that it writes, and the definitions.
        footprint: what it depends on.
        serializable: whether others must not have written what was read.
        reason: why, for the history.
        request: the key of the request that it carries out, if it has one: then that is its ID.
        operation: what its version is called in the history.
        facts: what the summary of its version contains besides.
        system: rows that the root of its version has besides.
        began_at_millis: when it began, in epoch milliseconds; ``ttl_millis`` for how long it may be committed.
        known_files: table metadata below ``tables/`` that definitions of the base name, as far as they were read.
        is_shared: whether it was saved, so that other processes may commit under its ID.
        saved_paths: of a transaction that was resumed, where each definition lies that another process has saved, by
            the name that it has here: a later one, once it was written again.
    """

    def __init__(
        self,
        backend: LakehouseBackend,
        base: Root,
        transaction_id: str,
        *,
        serializable: bool,
        began_at_millis: int,
        reason: str | None = None,
        request: RequestKey | None = None,
    ) -> None:
        definition = backend.definition(base)
        self.id = transaction_id
        self.base = base
        self.writes = Writes()
        self.footprint = Footprint()
        self.serializable = serializable
        self.reason = reason
        self.operation = spec.OP_COMMIT
        self.request = request
        self.facts: dict[str, Any] = {}
        self.system: SystemRows = {}
        self.began_at_millis = began_at_millis
        self.ttl_millis = definition.txn_ttl_millis
        self.known_files: set[str] = set()
        self.is_shared = False
        self.saved_paths: dict[str, str] = {}
        self._backend = backend
        self._codec = codec_of(definition, sdk=backend.versions.sdk)
        self._proofs: list[Proof] = []
        self._sources: list[Root] = []
        self._written: set[str] = set()

    # -- what it is ----------------------------------------------------------------------------

    def messages(self) -> Messages:
        """Return the changes so far as messages, in key order; as columns where all of them came so. No request."""
        return self.writes.messages(self.id)

    def conflicts(self) -> Conflicts:
        """Return the keys that no other transaction may have changed for this to be committed. No request."""
        return self.footprint.against(self.writes.by_key, serializable=self.serializable)

    def count_gained(self) -> CountBounds:
        """Return the difference that these changes make to the number of objects, as far as it is known. No request.

        No other commit can change this difference: a transaction that writes one of the same keys conflicts.
        """
        own = self.messages()
        existed = self.writes.existence()
        return count_gain(own, existed, self.base.node, self._codec)

    def look_up_existing(self) -> Mapping[str, bool]:
        """Return, for each key that is written, whether it exists in the base.

        Those of which it is not known are looked up: one ``get`` per level and key unless cached; of many keys one per
        node on their ways, however many they share, and ahead.
        """
        existed = self.writes.existed
        unknown = sorted(self.writes.by_key.keys() - existed.keys())
        found = self._look_up(unknown)
        for key in unknown:
            existed[key] = key in found
        return existed

    def _look_up(self, keys: Sequence[str]) -> AbstractSet[str]:
        """Return those of some keys that the base has."""
        nodes = self._backend.nodes
        root = self.base.node
        try:
            if len(keys) > _FEW:
                return search.lookup_many(nodes, root, keys).keys()
            return {key for key in keys if search.lookup(nodes, root, key) is not None}
        except Corrupt:
            self.refuse_expired()
            raise

    def _find_unproved_files(self, base: Root) -> set[str]:
        """Return the table metadata that these changes name and that nothing proves to be there.

        Those that were read at the version this began at are there as long as it is kept. Where it has expired since,
        what other tables named then may be dropped by now, and cleaned: a copy of a definition must not name it.
        """
        named = self._find_table_files()
        is_kept = base.oldest_version <= self.base.version
        if is_kept or base.tables_void_before_millis == self.base.tables_void_before_millis:
            return named - self.known_files
        return named

    def _find_table_files(self) -> set[str]:
        """Return the table metadata below ``tables/`` that these changes name."""
        root = self._backend.storage.root
        found: set[str] = set()
        for _, definition in self.writes.definitions.values():
            named = named_in_area(root, definition)
            if named is not None:
                found.add(named)
        return found

    def refuse_expired(self) -> None:
        """Raise ``TransactionExpired`` if the base is no longer kept: what cannot be read was removed, and is whole."""
        try:
            refuse_lost(self._backend, newest_base(self._backend).root, self.base)
        except (VersionExpired, SnapshotNotFound) as error:
            raise TransactionExpired(f"the transaction cannot go on: {error}; begin a new one") from error

    # -- proofs --------------------------------------------------------------------------------

    def require(self, proof: Proof) -> None:
        """Call ``proof`` with each root before this is built on it; what the proof raises ends the commit.

        It proves again, without requests as far as it can: it is called once for each lost race.
        """
        self._proofs.append(proof)

    def require_kept(self, source: Root) -> None:
        """Have the commit stop when a version has expired that the changes take files from."""
        self._sources.append(source)

    def prove(self, base: Root, created_at_millis: int | None = None) -> None:
        """Prove what is required of ``base``, and of the time of a version on top of it.

        Raises ``CommitConflict``; also where tables were cleaned and table metadata are named without any proof.
        """
        if created_at_millis is not None and self.request is not None:
            self.request.refuse_earlier(created_at_millis, base)
        for proof in self._proofs:
            proof(base)
        if not base.tables_void_before_millis or self._proofs:
            return
        unproved = self._find_unproved_files(base)
        if unproved:
            raise CommitConflict(f"{min(unproved)}: {UNPROVED}", version=base.version)

    def refuse_outlived(self) -> None:
        """Raise ``TransactionExpired`` past the time to live of the transaction."""
        refuse_outlived(self.began_at_millis, self.ttl_millis)

    # -- becoming a version --------------------------------------------------------------------

    def build(self, base: Root, created_at_millis: int, writer: NodeWriter) -> Draft:
        """Return the root on top of ``base``: its tree, its buffer, and this transaction's messages at the end."""
        self.prove(base, created_at_millis)
        entries = self._entries_of_first_tree(base, writer.target_bytes)
        if entries is not None:
            new = plant_tree(
                self._backend,
                base,
                entries,
                lambda: count_created(entries, self._codec),
                created_at_millis,
                writer,
            )
            written = {"set": sum(map(len, entries)), "deleted": 0}
        else:
            own = self.messages()
            new = append_messages(
                self._backend,
                base,
                own,
                self.count_gained,
                created_at_millis,
                writer,
            )
            written = count_written(own)
        summary = {"author": whoami(), **written, **self.facts}
        if self.reason:
            summary["reason"] = self.reason
        return Draft(
            node=new.node,
            operation=self.operation,
            txn=self.id,
            summary=summary,
            system=dict(self.system),
            counts=new.counts,
            is_bulk=new.is_bulk,
        )

    def _entries_of_first_tree(self, base: Root, target_bytes: int) -> Sequence[Columns] | None:
        """Return the entries from which a tree is built at once, as many new objects come into an empty lakehouse.

        ``None``: it is not empty, something else is written, or the root may hold all of it as messages.
        """
        node = base.node
        is_empty = node.is_leaf and not node.keys and not len(node.buffer)
        if not is_empty:
            return None
        entries = self.writes.entries()
        if entries is None or has_room_for_all(node, entries, target_bytes):
            return None
        return entries

    def rebase(self, base: Root, newer: Sequence[Delta]) -> None:
        """Prove that nothing in ``newer`` conflicts with this transaction.

        Raises:
            AlreadyCommitted: one of them is what this transaction became in an earlier attempt.
            Repeated: one of them carried out the request of this one, or another one with its key, and is not known to
                be of this object.
            OutcomeUnknown: one of them has its ID, and whether with these changes cannot be read any more.
            CommitConflict: one of them changed what this depends on, or is the abort of this transaction.
            VersionExpired, SnapshotNotFound: a version is no longer kept that files are taken from.
        """
        for root in newer:
            if root.txn == self.id or root.contains(self.id):
                self._recognise(root)
        conflicts = self.conflicts()
        for root in transactional(newer, CommitConflict, _AGAIN):
            touched = conflicts.find_changed(root)
            if not touched:
                continue
            named = []
            for key in touched[:_NAMED]:
                named.append(str(self._codec.decode(key)))
            shown = first_of(named, _NAMED, len(touched))
            raise CommitConflict(
                f"version {root.version} changed {shown}, which this transaction depends on; {_AGAIN}",
                keys=touched,
                version=root.version,
            )
        for source in self._sources:
            refuse_lost(self._backend, newer[-1], source)

    def renew(self, base: Root) -> None:
        """Write the definitions again under new names; a cleaning may be removing the old ones. One ``put`` each.

        Those that another process saved are read first, one ``get`` each. Raises ``TransactionExpired`` if they are
        gone already.
        """
        held = self._encode_definitions()
        held |= self._read_saved(base)
        new_by_old: dict[str, str] = {}
        for key, path in self.writes.by_key.items():
            if path in held:
                new_by_old[path] = definition_path(*self._codec.split(key))
        contents = {}
        for old_path, new_path in new_by_old.items():
            contents[new_path] = held[old_path]
        self._write_new(contents)
        self.writes.rename_files(new_by_old)
        # A cleaning keeps what was saved, and not what was written since: another one may remove that.
        self.saved_paths = {new_by_old.get(path, path): saved for path, saved in self.saved_paths.items()}

    def _read_saved(self, base: Root) -> dict[str, bytes]:
        """Return the definitions that another process has saved and this one has not replaced."""
        by_saved = {}
        for path in self.writes.by_key.values():
            if path in self.saved_paths:
                by_saved[self.saved_paths[path]] = path
        found: dict[str, bytes] = {}
        for saved, data in self._backend.storage.read_many(list(by_saved)):
            if isinstance(data, FileMissing):
                raise TransactionExpired(
                    f"what was saved of this transaction is gone since version {base.version}; begin a new one"
                )
            found[by_saved[saved]] = data
        return found

    def _recognise(self, root: Delta) -> None:
        """Tell a commit of this object whose answer was lost from one that others made under the same ID."""
        if root.operation == spec.OP_ABORT:
            raise CommitConflict(
                f"this transaction was aborted by another process, in version {root.version}", version=root.version
            )
        if self.request is not None:
            self._recognise_request(root)
        if self.is_shared and not self._means_the_same(root):
            raise CommitConflict(
                f"this transaction was resumed elsewhere and committed there as version {root.version}",
                keys=sorted(self.writes.by_key),
                version=root.version,
            )
        raise AlreadyCommitted(root.version)

    def _recognise_request(self, root: Delta) -> None:
        """Raise ``Repeated`` unless a version contains files that this object wrote: a client may ask anybody."""
        if self._written.isdisjoint(self._read_paths(root)):
            own = next(member for member in root.members if member.txn == self.id)
            raise Repeated(root.version, own.request or "")

    def _read_paths(self, root: Delta) -> Iterable[str | None]:
        """Return the paths that a version has for what this writes, perhaps with others."""
        if isinstance(root, BulkDelta):
            keys = sorted(self.writes.by_key)
            return root.values_of(keys).values()
        return root.own_messages().values

    def _means_the_same(self, root: Delta) -> bool:
        """Whether a version with this ID is what this would become, whoever made it.

        Raises ``OutcomeUnknown``: a definition that would show that cannot be read.
        """
        left = dict(self.writes.by_key)
        for key, path in root.own_messages().meanings():
            if key in left:
                if not self._have_same_content(left.pop(key), path):
                    return False
            elif root.txn == self.id:  # else it is of another member of the group
                return False
        if not left or not isinstance(root, BulkDelta):
            return not left
        there = root.values_of(sorted(left))  # what changed nothing is no difference
        return all(self._have_same_content(path, there.get(key)) for key, path in left.items())

    def _have_same_content(self, own: str | None, other: str | None) -> bool:
        """Whether two definitions are the same, perhaps under two names: a cleaning made a writer write again."""
        if own is None or other is None or own == other:
            return own == other
        storage = self._backend.storage
        try:
            held = self.writes.definitions.get(own)
            if held is None:
                mine = storage.read(own)
            else:
                mine = encode(held[1])
            return mine == storage.read(other)
        except (Corrupt, FileMissing) as error:
            raise OutcomeUnknown(
                f"transaction {self.id} was committed, perhaps with other changes: that cannot be read any more "
                f"({error}). Look at the history"
            ) from error

    # -- files ---------------------------------------------------------------------------------

    def write_definitions(self) -> None:
        """Write the definitions; those of an earlier try again, for a cleaning that knows no fence may have come.

        One ``put`` each.
        """
        new: dict[str, bytes] = {}
        for path, data in self._encode_definitions().items():
            if path in self._written:
                self._backend.storage.replace(path, data)
            else:
                new[path] = data
        self._write_new(new)

    def _encode_definitions(self) -> dict[str, bytes]:
        """Return the definitions that are held here, as the content of their files."""
        found: dict[str, bytes] = {}
        for path, (_, definition) in self.writes.definitions.items():
            found[path] = encode(definition)
        return found

    def _write_new(self, files: Mapping[str, bytes]) -> None:
        self._written |= files.keys()
        self._backend.storage.write_many(files.items())


def count_written(own: Messages) -> dict[str, int]:
    """Return the numbers of messages that set and that delete a key, for the summary of a version."""
    deleted = own.deletions()
    return {"set": len(own) - deleted, "deleted": deleted}
