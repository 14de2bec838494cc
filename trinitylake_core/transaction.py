"""Transactions: begin, change, detect conflicts, commit (format, section 6)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

from trinitylake_core import saved, spec, tree
from trinitylake_core.acknowledge import remove_quietly
from trinitylake_core.catalog import CatalogView, codec_of
from trinitylake_core.commit import Draft, Files, commit, flushed_for, new_id, now_millis, whoami
from trinitylake_core.definitions import (
    NamespaceDef,
    TableDef,
    ViewDef,
    altered_namespace,
    altered_table,
    altered_view,
    encode,
    namespace_def,
    table_def,
    view_def,
)
from trinitylake_core.errors import (
    AlreadyExists,
    CommitConflict,
    FileMissing,
    InvalidInput,
    NamespaceNotEmpty,
    ObjectNotFound,
    StorageError,
    TransactionExpired,
)
from trinitylake_core.footprint import Footprint
from trinitylake_core.keys import NAMESPACE, TABLE, VIEW, KeyRange
from trinitylake_core.locations import definition_path
from trinitylake_core.node import Messages, Node
from trinitylake_core.nodestore import NodeWriter
from trinitylake_core.versions import Delta, Root

SNAPSHOT: Final = "SNAPSHOT"
SERIALIZABLE: Final = "SERIALIZABLE"
_Definition = NamespaceDef | TableDef | ViewDef


class _AlreadyCommitted(Exception):
    """The version that this transaction became in an earlier attempt."""

    def __init__(self, version: int) -> None:
        super().__init__(version)
        self.version = version


class Transaction(CatalogView):
    """Changes that become one version, or none. Not thread-safe.

    All reading methods see the transaction's own changes. As a context manager it commits on a normal
    exit and aborts on an exception. Nothing is written to the storage before :meth:`commit`.

    Attributes:
        id: the transaction ID.
        version: the version it became; ``None`` before the commit, the base version if nothing changed.
    """

    def __init__(
        self,
        files: Files,
        base: Root,
        *,
        isolation: str | None = None,
        reason: str | None = None,
        operation: str = spec.OP_COMMIT,
        transaction_id: str | None = None,
        began_at_millis: int | None = None,
        facts: Mapping[str, Any] | None = None,
        system: Mapping[str, str | None] | None = None,
    ) -> None:
        definition = files.definition(base)
        default = SERIALIZABLE if definition.txn_isolation_level else SNAPSHOT
        if isolation not in (None, SNAPSHOT, SERIALIZABLE):
            raise InvalidInput(f"isolation must be {SNAPSHOT} or {SERIALIZABLE}, not {isolation!r}")
        self.id = transaction_id or new_id()
        self.isolation = isolation or default
        self.version: int | None = None
        self.began_at_millis = now_millis() if began_at_millis is None else began_at_millis
        self.ttl_millis = definition.txn_ttl_millis
        self._files = files
        self._base = base
        self._store = files.store
        self._keys = codec_of(definition, sdk=files.versions.sdk)
        self._writes: dict[str, str | None] = {}
        self._definitions: dict[str, tuple[str, _Definition]] = {}
        self._footprint = Footprint()
        self._reason = reason
        self._operation = operation
        self._facts = dict(facts or {})
        self._system = dict(system or {})
        self._done = False
        self._committing = False
        self._uncertain = False
        self._written: set[str] = set()
        self._saved_files: tuple[str, ...] = ()
        self._saved_definitions: frozenset[str] = frozenset()

    @classmethod
    def resume(cls, files: Files, transaction_id: str) -> Self:
        """Return a transaction that was saved, as it was. Two ``get``.

        Raises:
            TransactionNotFound, TransactionExpired, Corrupt.
        """
        found = saved.load(files, transaction_id)
        saved.refuse_expired(found.definition, now_millis())
        isolation = SERIALIZABLE if found.definition.isolation_level else SNAPSHOT
        began = found.definition.began_at_millis
        state = json.loads(found.state) if found.state else {}
        reason = state.get("reason")
        txn = cls(
            files, found.base, isolation=isolation, reason=reason, transaction_id=transaction_id, began_at_millis=began
        )
        txn._writes = dict(zip(found.messages.keys, found.messages.values, strict=True))
        txn._footprint = Footprint.from_json(state.get("footprint"))
        txn._saved_files = found.files
        txn._saved_definitions = frozenset(path for path in txn._writes.values() if path is not None)
        return txn

    # -- reading -------------------------------------------------------------------------------

    def _root_node(self) -> Node:
        return self._base.node

    def _find(self, key: str) -> str | None:
        self._footprint.keys.add(key)
        if key in self._writes:
            return self._writes[key]
        return super()._find(key)

    def _batches(self, within: KeyRange) -> Iterator[tree.Batch]:
        self._footprint.ranges.append(within)
        own = Messages.of([(key, self._writes[key], self.id) for key in sorted(self._writes) if key in within])
        return tree.scan(self._store, self._base.node, within, own)

    def _read_definition(self, path: str) -> bytes:
        return encode(self._definitions[path][1]) if path in self._definitions else super()._read_definition(path)

    # -- namespaces ----------------------------------------------------------------------------

    def create_namespace(self, namespace: str, properties: Mapping[str, str] | None = None) -> NamespaceDef:
        """Create a namespace. Raises ``InvalidName``, ``AlreadyExists``."""
        definition = namespace_def(properties)
        self._create(NAMESPACE, self._keys.namespace(namespace), definition, namespace)
        return definition

    def alter_namespace(self, namespace: str, properties: Mapping[str, str | None]) -> NamespaceDef:
        """Merge properties into a namespace; ``None`` removes one. Raises ``ObjectNotFound``."""
        definition = altered_namespace(self.namespace(namespace), properties)
        self._set(NAMESPACE, self._keys.namespace(namespace), definition, namespace)
        return definition

    def drop_namespace(self, namespace: str, *, cascade: bool = False) -> None:
        """Drop a namespace, with ``cascade`` everything in it too.

        Raises:
            ObjectNotFound: there is no such namespace.
            NamespaceNotEmpty: it holds tables or views, and ``cascade`` is not set.
        """
        key = self._require(NAMESPACE, namespace)
        inside: list[str] = []
        for kind in (TABLE, VIEW):
            within = self._keys.range(kind, namespace)
            self._footprint.closed.append(within)
            inside += [each for keys, _ in self._batches(within) for each in keys]
        if inside and not cascade:
            raise NamespaceNotEmpty(
                f"namespace {namespace!r} holds {len(inside)} tables and views; drop them first, or use cascade"
            )
        for each in (*inside, key):
            self._delete(each)

    # -- tables --------------------------------------------------------------------------------

    def create_table(self, namespace: str, name: str, schema: Any = None, **definition: Any) -> TableDef:
        """Create a table.

        Args:
            namespace: an existing namespace.
            name: the name of the new table.
            schema: a ``pyarrow.Schema`` or a ``Schema`` message.
            **definition: what ``definitions.table_def`` takes: table_format, table_type, primary_keys,
                distribution_keys, sort_keys, unique_columns, format_properties, properties.

        Raises:
            InvalidName, InvalidDefinition, ObjectNotFound (the namespace), AlreadyExists.
        """
        table = table_def(schema, **definition)
        self._create(TABLE, self._keys.table(namespace, name), table, namespace, name)
        return table

    def alter_table(self, namespace: str, name: str, **changes: Any) -> TableDef:
        """Change a table's definition; takes what ``definitions.altered_table`` takes. Raises ``ObjectNotFound``."""
        table = altered_table(self.table(namespace, name), **changes)
        self._set(TABLE, self._keys.table(namespace, name), table, namespace, name)
        return table

    def drop_table(self, namespace: str, name: str) -> None:
        """Drop a table. Raises ``ObjectNotFound``."""
        self._delete(self._require(TABLE, namespace, name))

    # -- views ---------------------------------------------------------------------------------

    def create_view(self, namespace: str, name: str, sql: str | None = None, **definition: Any) -> ViewDef:
        """Create a view; takes what ``definitions.view_def`` takes (dialect, schema, properties, ...).

        Raises:
            InvalidName, InvalidDefinition, ObjectNotFound (the namespace), AlreadyExists.
        """
        view = view_def(sql, **definition)
        self._create(VIEW, self._keys.view(namespace, name), view, namespace, name)
        return view

    def replace_view(self, namespace: str, name: str, sql: str | None = None, **changes: Any) -> ViewDef:
        """Change a view's definition; takes what ``definitions.altered_view`` takes. Raises ``ObjectNotFound``."""
        view = altered_view(self.view(namespace, name), sql=sql, **changes)
        self._set(VIEW, self._keys.view(namespace, name), view, namespace, name)
        return view

    def drop_view(self, namespace: str, name: str) -> None:
        """Drop a view. Raises ``ObjectNotFound``."""
        self._delete(self._require(VIEW, namespace, name))

    # -- writes --------------------------------------------------------------------------------

    def put(self, key: str, path: str | None) -> None:
        """Set (or with ``None`` delete) the raw definition path of a key; for restore and upgrade."""
        self._refuse_done()
        self._writes[key] = path

    def need_namespace(self, namespace: str) -> None:
        """Conflict with whoever drops this namespace meanwhile."""
        self._footprint.needs.add(self._keys.namespace(namespace))

    def close_namespace(self, namespace: str) -> None:
        """Conflict with whoever puts a table or a view into this namespace, or changes one, meanwhile."""
        self._footprint.closed += [self._keys.range(kind, namespace) for kind in (TABLE, VIEW)]

    def _require(self, kind: str, namespace: str, name: str | None = None) -> str:
        key = self._keys.namespace(namespace) if kind == NAMESPACE else getattr(self._keys, kind)(namespace, name)
        if self._find(key) is None:
            raise ObjectNotFound(f"there is no {kind} {namespace if name is None else f'{namespace}.{name}'!r}")
        return str(key)

    def _create(self, kind: str, key: str, definition: _Definition, namespace: str, name: str | None = None) -> None:
        if name is not None:
            self._footprint.needs.add(self._require(NAMESPACE, namespace))
        if self._find(key) is not None:
            raise AlreadyExists(f"{kind} {namespace if name is None else f'{namespace}.{name}'!r} already exists")
        self._set(kind, key, definition, namespace, name)

    def _set(self, kind: str, key: str, definition: _Definition, namespace: str, name: str | None = None) -> None:
        self._refuse_done()
        self._definitions.pop(self._writes.get(key) or "", None)
        path = definition_path(kind, namespace, name)
        self._definitions[path] = (kind, definition)
        self._writes[key] = path

    def _delete(self, key: str) -> None:
        self._refuse_done()
        self._definitions.pop(self._writes.get(key) or "", None)
        self._writes[key] = None

    def _refuse_done(self) -> None:
        if self._done or self._committing:
            raise InvalidInput(f"transaction {self.id} has ended; begin a new one")

    # -- ending --------------------------------------------------------------------------------

    def messages(self) -> Messages:
        """Return the changes so far as messages, in key order."""
        return Messages.of([(key, value, self.id) for key, value in sorted(self._writes.items())])

    def commit(self, *, allow_empty: bool = False, before_commit: Callable[[], None] | None = None) -> int:
        """Commit and return the version it became; without changes the version it began at, unless ``allow_empty``.

        Costs one ``put`` a definition, 1 ``create`` and 1 ``put`` for the hint. ``before_commit`` is called right
        before the root is created; raising there gives the commit up.

        Raises:
            CommitConflict: somebody else changed what this transaction wrote or depends on.
            TransactionExpired, ReadOnly, UnsafeStorage, StorageError.
        """
        self._committing = False  # after a failure of the storage, the same commit may be tried again
        self._refuse_done()
        self._committing = True
        if not self._writes and not allow_empty:
            self._done, self.version = True, self._base.version
            return self._base.version
        self._files.refuse_unsafe(self._base)
        self._write_definitions()
        try:
            root = commit(
                self._files, self._base, self, began_at_millis=self.began_at_millis, before_commit=before_commit
            )
            version = root.version
        except _AlreadyCommitted as done:
            version = done.version
        except (CommitConflict, TransactionExpired):
            self.abort()
            raise
        except StorageError:
            self._uncertain = True
            raise
        self._done, self.version = True, version
        remove_quietly(self._files.storage, self._saved_files)
        return version

    def _write_definitions(self) -> None:
        """Write the definitions; those of an earlier try again, for a cleaning that knows no fence may have come."""
        files = {path: encode(definition) for path, (_, definition) in self._definitions.items()}
        again = self._written & files.keys()
        for path in again:
            self._files.storage.replace(path, files[path])
        self._write_new({path: data for path, data in files.items() if path not in again})

    def _write_new(self, files: Mapping[str, bytes]) -> None:
        self._written |= files.keys()
        self._files.storage.write_many(files.items())

    def save(self) -> str:
        """Store the transaction for another process to resume by its ID, and end it here.

        Costs one ``put`` a definition and two for the transaction.

        Raises:
            UnsafeStorage, StorageError.
        """
        self._refuse_done()
        self._files.refuse_unsafe(self._base)
        self._write_definitions()
        definition = saved.new_transaction_def(self.id, self.isolation, self.began_at_millis, self.ttl_millis)
        state = json.dumps({"footprint": self._footprint.to_json(), "reason": self._reason})
        try:
            saved.save(self._files, self._base, definition, self.messages(), state, self._saved_files)
        except StorageError:
            self._uncertain = True  # it may have been stored, and would need its definitions
            raise
        self._done = True
        return self.id

    def abort(self) -> None:
        """Give the changes up: nothing becomes visible, and what was written for them is removed.

        What may be needed stays: after a commit whose outcome is not known everything, and the definitions
        that an earlier process saved, for another one may have resumed the same transaction.
        """
        if not self._done and not self._uncertain:
            remove_quietly(self._files.storage, [*self._saved_files, *self._written])
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
        else:
            self.abort()

    # -- the change, as the commit protocol sees it ----------------------------------------------

    def build(self, base: Root, created_at_millis: int, writer: NodeWriter) -> Draft:
        """Return the root on top of ``base``: its tree, its buffer, and this transaction's messages at the end."""
        own = self.messages()
        node = flushed_for(writer, base, own, created_at_millis).with_messages(own)
        deleted = own.values.count(None)
        facts = {"author": whoami(), "set": len(own) - deleted, "deleted": deleted, **self._facts}
        if self._reason:
            facts["reason"] = self._reason
        return Draft(node, self._operation, self.id, facts, dict(self._system))

    def rebase(self, base: Root, newer: Sequence[Delta]) -> None:
        """Prove that nothing in ``newer`` conflicts with this transaction. Raises ``CommitConflict``."""
        conflicts = self._footprint.against(self._writes, serializable=self.isolation == SERIALIZABLE)
        for root in newer:
            if root.operation in spec.QUIET_OPERATIONS:
                continue
            if root.txn == self.id:
                self._recognise(root)
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
        self._writes = {key: new.get(path or "", path) for key, path in self._writes.items()}
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
        own, found = self.messages(), root.own_messages()
        if (own.keys, own.values) == (found.keys, found.values):
            raise _AlreadyCommitted(root.version)
        raise CommitConflict(
            f"this transaction was resumed elsewhere and committed there as version {root.version}",
            keys=own.keys,
            version=root.version,
        )

    def _named(self, keys: Sequence[str]) -> str:
        shown = ", ".join(str(self._keys.decode(key)) for key in keys[:5])
        return shown + (f" and {len(keys) - 5} more" if len(keys) > 5 else "")
