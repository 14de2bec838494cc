"""The catalog with the changes of a transaction: what can be read, created, altered, renamed and dropped in it."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar, Unpack

import pyarrow as pa

from trinitylake_core.catalog import CatalogView
from trinitylake_core.definitions import (
    AnySchema,
    NamespaceDef,
    ObjectDef,
    TableChanges,
    TableDef,
    TableOptions,
    ViewChanges,
    ViewDef,
    ViewOptions,
    altered_namespace,
    altered_table,
    altered_view,
    encode,
    namespace_def,
    table_def,
    view_def,
)
from trinitylake_core.errors import AlreadyExists, InvalidInput, InvalidName, NamespaceNotEmpty, ObjectNotFound
from trinitylake_core.keys import NAMESPACE, TABLE, VIEW, KeyCodec, KeyRange, ObjectName, label, refuse_new_name
from trinitylake_core.locations import definition_path
from trinitylake_core.tables import named_in_area
from trinitylake_core.transactions.change import TransactionChange
from trinitylake_core.tree import search
from trinitylake_core.tree.leafrun import Columns
from trinitylake_core.tree.node import Messages, Node
from trinitylake_core.tree.nodestore import NodeStore

_T = TypeVar("_T", NamespaceDef, TableDef, ViewDef)
_D = TypeVar("_D", bound=ObjectDef)


class CatalogEdits(CatalogView):
    """Changes on top of a version, in memory: reading sees them. Nothing is written to the storage here.

    Attributes:
        change: what is changed, for those that commit it.
    """

    def __init__(self, change: TransactionChange, nodes: NodeStore, keys: KeyCodec) -> None:
        self.change = change
        self._nodes = nodes
        self._keys = keys
        self._writes = change.writes
        self._footprint = change.footprint
        self._last_read = ("", b"")
        """The path and content of a definition: what is read is often changed next."""

    @property
    def id(self) -> str:
        """The transaction ID."""
        return self.change.id

    @property
    def base_version(self) -> int:
        """The version that the changes stand on."""
        return self.change.base.version

    @abc.abstractmethod
    def _refuse_done(self) -> None:
        """Raise ``InvalidInput`` if nothing may be changed any more."""

    def _refuse_expired(self) -> None:
        self.change.refuse_expired()

    # -- reading -------------------------------------------------------------------------------

    def _root_node(self) -> Node:
        return self.change.base.node

    def _find(self, key: str) -> str | None:
        self._footprint.keys.add(key)
        written = self._writes.by_key
        if key in written:
            return written[key]
        return super()._find(key)

    def _batches(self, within: KeyRange, own: Messages | None = None) -> Iterator[search.Batch]:
        self._footprint.ranges.append(within)
        written = self._writes.by_key
        rows = []
        for key in sorted(written):
            if key in within:
                rows.append((key, written[key], self.id))
        return super()._batches(within, Messages.of(rows))

    def _read_definition(self, path: str) -> bytes:
        if path in self._writes.definitions:
            return encode(self._writes.definitions[path][1])
        if path != self._last_read[0]:
            self._last_read = path, super()._read_definition(path)
        return self._last_read[1]

    def _definition(self, kind: str, key: str, label: str, of: type[_T]) -> _T:
        definition = super()._definition(kind, key, label, of)
        if key not in self._writes.by_key:
            named = named_in_area(self._nodes.storage.root, definition)
            if named is not None:
                self.change.known_files.add(named)
        return definition

    # -- namespaces ----------------------------------------------------------------------------

    def create_namespace(self, namespace: str, properties: Mapping[str, str] | None = None) -> NamespaceDef:
        """Create a namespace. Raises ``InvalidName``, ``AlreadyExists``."""
        return self._create(namespace_def(properties), ObjectName(NAMESPACE, namespace))

    def alter_namespace(self, namespace: str, properties: Mapping[str, str | None]) -> NamespaceDef:
        """Merge properties into a namespace; ``None`` removes one. Raises ``ObjectNotFound``."""
        definition = altered_namespace(self.namespace(namespace), properties)
        return self._set(definition, ObjectName(NAMESPACE, namespace))

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
            for keys, _ in self._batches(within):
                inside += keys
        if inside and not cascade:
            raise NamespaceNotEmpty(
                f"namespace {namespace!r} holds {len(inside)} tables and views; drop them first, or use cascade"
            )
        for each in (*inside, key):
            self._delete(each)

    # -- tables --------------------------------------------------------------------------------

    def create_table(
        self,
        namespace: str,
        name: str,
        schema: AnySchema | None = None,
        **definition: Unpack[TableOptions],
    ) -> TableDef:
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
        return self._create(table, ObjectName(TABLE, namespace, name))

    def alter_table(self, namespace: str, name: str, **changes: Unpack[TableChanges]) -> TableDef:
        """Change a table's definition; ``TableChanges`` says what it takes. Raises ``ObjectNotFound``."""
        table = altered_table(self.table(namespace, name), **changes)
        return self._set(table, ObjectName(TABLE, namespace, name))

    def drop_table(self, namespace: str, name: str) -> None:
        """Drop a table. Raises ``ObjectNotFound``."""
        self._delete(self._require(TABLE, namespace, name))

    def rename_table(
        self,
        namespace: str,
        name: str,
        to_namespace: str,
        to_name: str,
    ) -> TableDef:
        """Give a table another name, or another namespace. It keeps its ID and all else.

        Raises:
            InvalidName, ObjectNotFound (the table, or the new namespace), AlreadyExists.
        """
        table = self.table(namespace, name)
        self._create(table, ObjectName(TABLE, to_namespace, to_name))
        self._delete(self._keys.table(namespace, name))
        return table

    # -- views ---------------------------------------------------------------------------------

    def create_view(
        self,
        namespace: str,
        name: str,
        sql: str | None = None,
        **definition: Unpack[ViewOptions],
    ) -> ViewDef:
        """Create a view; ``ViewOptions`` says what it takes beside names and query.

        Raises:
            InvalidName, InvalidDefinition, ObjectNotFound (the namespace), AlreadyExists.
        """
        view = view_def(sql, **definition)
        return self._create(view, ObjectName(VIEW, namespace, name))

    def replace_view(
        self,
        namespace: str,
        name: str,
        sql: str | None = None,
        **changes: Unpack[ViewChanges],
    ) -> ViewDef:
        """Change a view's definition; ``ViewChanges`` says what it takes. Raises ``ObjectNotFound``."""
        view = altered_view(self.view(namespace, name), sql=sql, **changes)
        return self._set(view, ObjectName(VIEW, namespace, name))

    def rename_view(
        self,
        namespace: str,
        name: str,
        to_namespace: str,
        to_name: str,
    ) -> ViewDef:
        """Give a view another name, or another namespace. It keeps its ID and all else. Raises as for tables."""
        view = self.view(namespace, name)
        self._create(view, ObjectName(VIEW, to_namespace, to_name))
        self._delete(self._keys.view(namespace, name))
        return view

    def drop_view(self, namespace: str, name: str) -> None:
        """Drop a view. Raises ``ObjectNotFound``."""
        self._delete(self._require(VIEW, namespace, name))

    # -- writes --------------------------------------------------------------------------------

    def put(self, key: str, path: str | None, *, replaces: bool | None = None) -> None:
        """Set (or with ``None`` delete) the raw definition path of a key; for restore and upgrade.

        ``replaces``: whether the key exists in the base. Without it the number of objects may be known between bounds
        only, until the next compaction.
        """
        self._refuse_done()
        self._writes.put(key, path, existed=replaces)

    def put_many(self, changes: pa.Table | Iterable[pa.RecordBatch], *, replaces: bool | None = None) -> None:
        """Set or delete many keys at once: :meth:`put` for each row of the columns ``key`` and ``path``.

        A NULL path deletes. Of several rows for one key the last one counts. Rows in key order are the fastest.

        The columns go from here to the leaves; a transaction that is read, or changed in another way, too, makes
        Python objects of them. No key is looked up; ``replaces`` is as for :meth:`put`.

        Raises:
            InvalidInput: a column is missing, holds no strings, or a key is NULL; nothing of the batch was taken.
        """
        self._refuse_done()
        batches = changes
        if isinstance(changes, pa.Table):
            batches = changes.to_batches()
        for batch in batches:
            rows = Columns(_texts(batch, "key"), _texts(batch, "path"))
            if rows.keys.null_count:
                raise InvalidInput("a key is NULL: each row names the key that it sets, or deletes by a NULL path")
            if len(rows):
                self._writes.put_columns(rows, existed=replaces)

    def need_namespace(self, namespace: str) -> None:
        """Declare a conflict with every concurrent transaction that drops this namespace."""
        self._footprint.needs.add(self._keys.namespace(namespace))

    def need_absent(self, kind: str, namespace: str, name: str) -> None:
        """Declare a conflict with every concurrent transaction that creates this table or view.

        A name that objects of this kind cannot have, such as one that is too long for them, is absent. Raises
        ``AlreadyExists`` if it is there.
        """
        try:
            key = self._keys.encode(ObjectName(kind, namespace, name))
        except InvalidName:
            return  # tables and views have sizes of their own: a view's size refuses no table
        if self._find(key) is not None:
            raise AlreadyExists(f"{kind} {label(namespace, name)} already exists")
        self._footprint.closed.append(KeyRange(key, key))

    def need_unchanged(self, kind: str, namespace: str, name: str) -> None:
        """Declare a conflict with every concurrent transaction that changes, creates or drops this table or view.

        For what is left as it is because of what it is now: that has to be true of the version that is made.
        """
        key = self._keys.encode(ObjectName(kind, namespace, name))
        self._footprint.needs.add(key)
        self._footprint.closed.append(KeyRange(key, key))

    def close_namespace(self, namespace: str) -> None:
        """Declare a conflict with every concurrent transaction that adds or changes a table or view in a namespace."""
        for kind in (TABLE, VIEW):
            inside = self._keys.range(kind, namespace)
            self._footprint.closed.append(inside)

    def _require(self, kind: str, namespace: str, name: str | None = None) -> str:
        key = self._keys.encode(ObjectName(kind, namespace, name))
        if self._find(key) is None:
            raise ObjectNotFound(f"there is no {kind} {label(namespace, name)!r}")
        return key

    def _create(self, definition: _D, name: ObjectName) -> _D:
        key = self._keys.encode(name)
        if name.name is None:
            refuse_new_name(name.kind, name.namespace)
        else:
            refuse_new_name(name.kind, name.name)
            self._footprint.needs.add(self._require(NAMESPACE, name.namespace))
        if self._find(key) is not None:
            raise AlreadyExists(f"{name.kind} {str(name)!r} already exists")
        return self._put(key, definition, name, existed=False)

    def _set(self, definition: _D, name: ObjectName) -> _D:
        return self._put(self._keys.encode(name), definition, name, existed=True)

    def _put(self, key: str, definition: _D, name: ObjectName, *, existed: bool) -> _D:
        self._refuse_done()
        path = definition_path(name.kind, name.namespace, name.name)
        in_base = self._in_base(key, existed=existed)
        self._writes.put_definition(key, path, name.kind, definition, existed=in_base)
        return definition

    def _delete(self, key: str) -> None:
        self._refuse_done()
        self._writes.put(key, None, existed=self._in_base(key, existed=True))

    def _in_base(self, key: str, *, existed: bool) -> bool | None:
        """Return whether a key exists in the base, if what was found of it says so: not what was written here."""
        return None if key in self._writes.by_key else existed


def _texts(batch: pa.RecordBatch, name: str) -> pa.Array:
    """Return a column of texts. Raises ``InvalidInput``."""
    if name not in batch.schema.names:
        raise InvalidInput(f"there is no column {name!r}: changes have the columns key and path")
    kind = batch.schema.field(name).type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_null(kind)):
        raise InvalidInput(f"the column {name!r} holds {kind}, and not strings")
    column = batch.column(name).cast(pa.string())
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        raise InvalidInput(f"the column {name!r} holds no text: {error}") from None
    return column
