"""The changes that are not transactions: compaction, rollback, new definitions, a new boundary (format, section 6)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise, zip_longest
from typing import Any

from trinitylake_core import clock, spec
from trinitylake_core.catalog import codec_of, object_counts
from trinitylake_core.commits.appended import push_down
from trinitylake_core.commits.backend import LakehouseBackend
from trinitylake_core.commits.commit import Draft, Summary, finish_root, new_id, whoami
from trinitylake_core.commits.confirm import confirm_commit
from trinitylake_core.definitions import LakehouseDef, encode
from trinitylake_core.errors import CommitConflict
from trinitylake_core.keys import NAMESPACE, TABLE, VIEW, KeyCodec, KeyRange
from trinitylake_core.locations import lakehouse_def_path
from trinitylake_core.tree.node import Messages, Node
from trinitylake_core.tree.nodefile import encode as encode_node
from trinitylake_core.tree.nodestore import NodeWriter
from trinitylake_core.tree.search import lookup, scan
from trinitylake_core.versions import (
    MENDED,
    CountBounds,
    Delta,
    ObjectCounts,
    Root,
    RootRows,
    SystemRows,
    Versions,
    copy_of_definition,
)


class TreeReplaced(CommitConflict):
    """A rollback or a bulk load came in between: start over from the newest version."""


class FilesVoid(TreeReplaced):
    """Files that were written or taken over from the base may have been removed. The change must start over."""


def commit_summary(**more: Any) -> Summary:
    """Return a summary with its author, without values that are not known."""
    return {"author": whoami()} | {name: value for name, value in more.items() if value is not None}


def gained_by(root: RootRows, before: RootRows) -> CountBounds | None:
    """Return what a version gained over the one before; ``None`` where one of the two does not count."""
    counted = root.count_bounds
    return None if counted is None else counted.gained_since(before.count_bounds)


def definition_rows(path: str, data: bytes) -> SystemRows:
    """Return the system rows that point to a lakehouse definition."""
    return {spec.LAKEHOUSE_DEF: path, spec.LAKEHOUSE_DEF_COPY: copy_of_definition(data, path)}


def write_definition(backend: LakehouseBackend, definition: LakehouseDef) -> tuple[str, bytes]:
    """Write a new lakehouse definition; return path and content. One ``put``, and no ``get`` to read it later."""
    path, data = lakehouse_def_path(), encode(definition)
    backend.storage.write_many([(path, data)])
    backend.versions.knows_definition(path, data)
    return path, data


def transactional(newer: Iterable[Delta], error: type[CommitConflict], then: str) -> Iterator[Delta]:
    """Yield the versions that changed single objects, without those that changed none.

    Raises ``error``, with the advice ``then``, at one that replaced the whole tree.
    """
    for root in newer:
        if root.operation in spec.TRANSACTIONAL_OPERATIONS:
            yield root
        elif root.operation not in spec.QUIET_OPERATIONS:
            by = root.operation or "of another writer"
            raise error(f"version {root.version} ({by}) replaced the whole tree; {then}", version=root.version)


class SameContent:
    """A version with the content of its base: for a new definition or a new boundary. Conflicts with nothing."""

    def __init__(self, operation: str, summary: Summary, system: SystemRows | None = None) -> None:
        self._operation = operation
        self._summary = summary
        self._system = system or {}
        self._txn = new_id()

    def build(self, base: Root, created_at_millis: int, writer: NodeWriter) -> Draft:
        """Return the base's node under new system rows. Rewrites nothing."""
        node = base.node.with_messages(Messages())
        return Draft(node, self._operation, self._txn, self._summary, dict(self._system), counts=base.count_bounds)

    def rebase(self, base: Root, newer: Sequence[Delta]) -> None:
        """Accept every version that was committed since the base."""

    def renew(self, base: Root) -> None:
        """Do nothing: :meth:`build` writes the files that it refers to again for each base."""


class Fence(SameContent):
    """A version that fences off old files: those written before ``void_before_millis`` that no root reaches are void.

    They are those of the lakehouse itself, or with ``of_tables`` those of its Iceberg tables. Every later writer
    rebases over it, and so reads it (format, "Expiration and orphan removal").
    """

    def __init__(self, void_before_millis: int, summary: Summary, *, of_tables: bool = False) -> None:
        super().__init__(spec.OP_CLEAN, summary)
        self._void_before = void_before_millis
        self._of_tables = of_tables

    def build(self, base: Root, created_at_millis: int, writer: NodeWriter) -> Draft:
        """Return the base's node under the later of its own fence and this one. Writes nothing."""
        row = spec.TABLES_VOID_BEFORE_MILLIS if self._of_tables else spec.VOID_BEFORE_MILLIS
        so_far = base.tables_void_before_millis if self._of_tables else base.void_before_millis
        self._system = {row: str(max(so_far, self._void_before))}
        return super().build(base, created_at_millis, writer)


class MendedFences(SameContent):
    """A version with earlier fences in the place of those that lie in the future: a clock was wrong once.

    REQUIRES: ``void_before_millis`` is later than the time of every file that was there after the newest version was
    read. By that no file that a cleaning may delete has a later time: it listed its candidates before its fence.

    Attributes:
        void_before_millis: the time of the fences that are mended.
    """

    def __init__(self, future_millis: int, summary: Summary) -> None:
        super().__init__(spec.OP_CLEAN, summary)
        self._future = future_millis
        self._about = summary
        self.void_before_millis = 0

    def find_ahead(self, base: RootRows) -> dict[str, int]:
        """Return the fences of a version that lie in the future, by the names of their rows."""
        fences = {
            spec.VOID_BEFORE_MILLIS: base.void_before_millis,
            spec.TABLES_VOID_BEFORE_MILLIS: base.tables_void_before_millis,
        }
        return {name: time for name, time in fences.items() if time > self._future}

    def build(self, base: Root, created_at_millis: int, writer: NodeWriter) -> Draft:
        """Return the base's node under the mended fences. Writes nothing."""
        ahead = self.find_ahead(base)
        self._summary = self._about | {MENDED: ahead}
        self._system = dict.fromkeys(ahead, str(self.void_before_millis))
        return super().build(base, created_at_millis, writer)

    def rebase(self, base: Root, newer: Sequence[Delta]) -> None:
        """Stop where a cleaning came in between: it may have listed files that were not there before.

        Raises ``CommitConflict``.
        """
        for root in newer:
            if root.operation == spec.OP_CLEAN:
                raise CommitConflict(
                    f"a cleaning came in between, in version {root.version}; run it again", version=root.version
                )


class Aborted(SameContent):
    """A version that records the abort of a saved transaction. Conflicts with nothing but that transaction.

    A process that took the transaction before may commit late. If this root is first, that process finds it when it
    rebases. If the root of that process is first, this change finds that root.
    """

    def __init__(self, transaction_id: str, summary: Summary) -> None:
        super().__init__(spec.OP_ABORT, summary)
        self._txn = transaction_id
        self.is_too_late = False
        """Whether the transaction was found."""

    def rebase(self, base: Root, newer: Sequence[Delta]) -> None:
        """Search the versions since the base for the transaction, also among the members of groups.

        Raises ``CommitConflict`` if it is there.
        """
        for root in newer:
            if root.contains(self._txn):
                self.is_too_late = True
                raise CommitConflict(
                    f"transaction {self._txn} is committed, as version {root.version}",
                    version=root.version,
                )


class NewDefinition(SameContent):
    """A version with an edited lakehouse definition; after a lost race the edit is made again on the newest one."""

    def __init__(
        self,
        backend: LakehouseBackend,
        operation: str,
        summary: Summary,
        edit: Callable[[LakehouseDef, Root], LakehouseDef],
    ) -> None:
        super().__init__(operation, summary)
        self._backend = backend
        self._edit = edit
        self._made: LakehouseDef | None = None

    def build(self, base: Root, created_at_millis: int, writer: NodeWriter) -> Draft:
        """Write the edited definition, unless it is that of the base or what was written for the last base.

        Return the base's node with it. At most one ``put``.
        """
        before = self._backend.definition(base)
        definition = self._edit(before, base)
        if definition == before:
            self._made, self._system = None, {}
        elif definition != self._made:
            self._made, self._system = definition, definition_rows(*write_definition(self._backend, definition))
        return super().build(base, created_at_millis, writer)

    def renew(self, base: Root) -> None:
        """Write the definition again: a cleaning may be removing it."""
        self._made = None


class ExpirationChange(NewDefinition):
    """A version with a new boundary, and without the snapshots that have expired. Conflicts with nothing.

    ``edit`` returns the lakehouse definition to go on with and the facts about it, or raises; it is asked again
    after a lost race. The boundary is never lowered.
    """

    def __init__(
        self,
        backend: LakehouseBackend,
        oldest_version: int,
        summary: Summary,
        edit: Callable[[LakehouseDef], tuple[LakehouseDef, Summary]],
    ) -> None:
        def edit_definition(before: LakehouseDef, base: Root) -> LakehouseDef:
            del base
            definition, about = edit(before)
            self._summary = summary | about
            return definition

        super().__init__(backend, spec.OP_EXPIRE, summary, edit_definition)
        self._oldest = oldest_version

    def build(self, base: Root, created_at_millis: int, writer: NodeWriter) -> Draft:
        """Return the base's node under the new boundary. One ``put`` if the definition changes, else none."""
        draft = super().build(base, created_at_millis, writer)
        draft.system[spec.OLDEST_VERSION] = str(max(base.oldest_version, self._oldest))
        return draft


class CompactionChange:
    """A root whose messages were flushed. Messages that writers have committed since are appended to it again.

    ``node`` was made from version ``base``; its non-root nodes are written already. ``counts`` are the objects that it
    contains, where they were counted.
    """

    operation = spec.OP_COMPACT
    again = "compact again from the newest version"

    def __init__(self, node: Node, summary: Summary, counts: ObjectCounts | None = None) -> None:
        self._node = node
        self._counts = CountBounds.exactly(counts)
        self._gained: CountBounds | None = CountBounds()
        """What the versions gained that were committed since."""
        self._replayed = Messages()
        self._summary = summary
        self._txn = new_id()
        self.rebased_over = 0

    def build(self, base: Root, created_at_millis: int, writer: NodeWriter) -> Draft:
        """Return the compacted root, its buffer holding the messages committed since."""
        summary = {**self._summary, "rebased_over": self.rebased_over} if self.rebased_over else self._summary
        node = self._node.with_messages(self._replayed)
        if node.estimated_bytes() > writer.target_bytes:
            node = push_down(node, writer.target_bytes // 2, created_at_millis, writer)
        return Draft(node, self.operation, self._txn, summary, counts=self._count_objects(base))

    def _count_objects(self, base: Root) -> CountBounds | None:
        """Return the object counts, now that this is built on ``base``: a compaction settles them, and changes none."""
        counted = None if self._counts is None else self._counts.plus(self._gained)
        return counted or base.count_bounds

    def rebase(self, base: Root, newer: Sequence[Delta]) -> None:
        """Take over the messages of newer versions, oldest first. Raises ``TreeReplaced``.

        The compacted version may have expired. That is harmless as long as no cleaning removed what only it holds, and
        a cleaning leaves a fence, which is void for what began at an expired version: see ``renew``.
        """
        for root in transactional(newer, TreeReplaced, self.again):
            self._replayed.extend(root.own_messages())
            self.rebased_over += 1
        chain = [base, *newer]
        for before, after in pairwise(chain):
            if after.operation in spec.TRANSACTIONAL_OPERATIONS and self._gained is not None:
                self._gained = self._gained.plus(gained_by(after, before))

    def renew(self, base: Root) -> None:
        """Give up: there are too many files to write again. Raises ``FilesVoid``."""
        raise FilesVoid(
            f"version {base.version} (clean) removes files as old as those that were written for this; {self.again}",
            version=base.version,
        )


class LoadChange(CompactionChange):
    """A root of a new tree: the content of version ``base``, and what was loaded. Nothing is deleted by it.

    Commits of others stay, if they touch nothing that the load wrote, and drop no namespace that it filled.
    ``find_skipped`` returns those of some keys that the load left as they were because they were there: they must be.
    """

    operation = spec.OP_LOAD
    again = "load again"

    def __init__(
        self,
        backend: LakehouseBackend,
        base: Root,
        node: Node,
        summary: Summary,
        find_skipped: Callable[[Sequence[str]], Sequence[str]] | None = None,
    ) -> None:
        """Count what the tree of the load holds: two ``get`` per level at the most."""
        super().__init__(node, summary, object_counts(backend.nodes, node, codec_of(backend.definition(base))))
        self._backend = backend
        self._before = base.node
        self._find_skipped = find_skipped
        self._held_to_fence = bool(base.tables_void_before_millis)

    def _count_objects(self, base: Root) -> CountBounds | None:
        """Return the object counts: what the load counted, and what other commits have gained since."""
        return None if self._counts is None else self._counts.plus(self._gained)

    def rebase(self, base: Root, newer: Sequence[Delta]) -> None:
        """Take over the messages of newer versions. About one ``get`` per level and changed key, twice.

        Raises:
            CommitConflict: one of them touches what was loaded.
            FilesVoid: tables were cleaned for the first time, and what was loaded was not held to that.
            Corrupt: the version below the load has expired, and a cleaning removed its nodes; or they are damaged.
        """
        super().rebase(base, newer)
        if not self._held_to_fence and newer[-1].tables_void_before_millis:
            raise FilesVoid(f"tables were cleaned since version {base.version}; {self.again}", version=base.version)
        codec = codec_of(self._backend.definition(base))
        for root in newer:
            touched = self._find_touched(codec, root)
            if touched:
                named = ", ".join(str(codec.decode(key)) for key in touched[:5])
                raise CommitConflict(
                    f"version {root.version} changed {named}, which this load wrote or depends on; {self.again}",
                    keys=touched,
                    version=root.version,
                )

    def _find_touched(self, codec: KeyCodec, root: Delta) -> list[str]:
        """Return the keys that another version changed, and that this load wrote or depends on."""
        own = root.own_messages()
        found = []
        dropped = []
        for key, value in zip(own.keys, own.values, strict=True):
            if self._depends_on(codec, key, is_deleted=value is None):
                found.append(key)
            elif value is None:
                dropped.append(key)
        if dropped and self._find_skipped is not None:
            found += self._find_skipped(dropped)
        return found

    def _depends_on(self, codec: KeyCodec, key: str, *, is_deleted: bool) -> bool:
        """Whether the load wrote a key, or filled the namespace that it stands for and that is deleted."""
        nodes = self._backend.nodes
        if lookup(nodes, self._before, key) != lookup(nodes, self._node, key):
            return True
        name = codec.decode(key)
        return is_deleted and name.kind == NAMESPACE and self._fills(codec, name.namespace)

    def _fills(self, codec: KeyCodec, namespace: str) -> bool:
        """Whether the load put anything into a namespace. One ``get`` per node of it, twice."""
        for kind in (TABLE, VIEW):
            within = codec.range(kind, namespace)
            before = self._scan_values(self._before, within)
            after = self._scan_values(self._node, within)
            if any(one != two for one, two in zip_longest(before, after)):
                return True
        return False

    def _scan_values(self, node: Node, within: KeyRange) -> Iterator[str]:
        for _, values in scan(self._backend.nodes, node, within):
            yield from values


def create_first(versions: Versions, message: LakehouseDef, draft: Draft | None = None) -> Root:
    """Create version 0, from a draft whose non-root nodes are written already; by default without objects.

    One ``put``, one ``create``; then the hint, the boundary and the next version, as after every commit.

    Raises:
        AlreadyExists: there is a version 0, of another lakehouse.
        OutcomeUnknown: the boundary lies beyond version 0: another lakehouse was created and expired its first
            versions in the meantime, or an export to this place has begun.
        UnsafeStorage, StorageError.
    """
    if draft is None:
        empty = Node(subtree_keys=0, subtree_messages=0)
        draft = Draft(empty, spec.OP_CREATE, new_id(), commit_summary(), counts=CountBounds())
    storage = versions.storage
    storage.prove_exclusive_create()
    path, data = lakehouse_def_path(), encode(message)
    storage.write_many([(path, data)])
    draft.system = definition_rows(path, data) | draft.system
    node = finish_root(None, draft, clock.now_millis(), message.node_file_max_size_bytes)
    content = encode_node(node, message.order, versions.path(0))
    storage.create(versions.path(0), content)
    node.nbytes = len(content)
    root = Root(0, versions.path(0), node, content)
    confirm_commit(versions, root)
    return root
