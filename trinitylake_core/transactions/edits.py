"""The changes of a transaction, the catalog with these changes, and its dependencies (format, section 6)."""

from __future__ import annotations

import abc
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, Unpack

import pyarrow as pa

from trinitylake_core.catalog import CatalogView
from trinitylake_core.definitions import (
    AnySchema,
    NamespaceDef,
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
from trinitylake_core.errors import AlreadyExists, InvalidInput, NamespaceNotEmpty, ObjectNotFound
from trinitylake_core.keys import KINDS, NAMESPACE, TABLE, VIEW, KeyCodec, KeyRange, ObjectName, label, refuse_new_name
from trinitylake_core.locations import definition_path
from trinitylake_core.tables import named_in_area
from trinitylake_core.tree import search
from trinitylake_core.tree.leafrun import Columns
from trinitylake_core.tree.node import Messages, Node
from trinitylake_core.tree.noderows import repeat_text
from trinitylake_core.tree.nodestore import NodeStore
from trinitylake_core.versions import ObjectCounts, Root

_FEW: Final = 32
"""How many keys are looked up one by one, so that what is read for them stays cached for the next transaction."""
_Definition = NamespaceDef | TableDef | ViewDef
_T = TypeVar("_T", NamespaceDef, TableDef, ViewDef)


# -- dependencies ----------------------------------------------------------------------------------


@dataclass(slots=True)
class Footprint:
    """What a transaction depends on, for conflict detection.

    ``needs``: keys that must not be deleted by others; ``closed``: ranges in which others must set
    nothing; ``keys`` and ``ranges``: what was read, which counts under SERIALIZABLE only.
    """

    needs: set[str] = field(default_factory=set)
    closed: list[KeyRange] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)
    ranges: list[KeyRange] = field(default_factory=list)

    def against(self, writes: Mapping[str, object], *, serializable: bool) -> Conflicts:
        """Return a detector of conflicts with this footprint and with the writes of the transaction.

        Costs ranges times log ranges comparisons, once for all the versions that are compared.
        """
        return Conflicts(
            writes,
            frozenset(self.needs),
            MergedRanges(self.closed),
            frozenset(self.keys if serializable else ()),
            MergedRanges(self.ranges if serializable else ()),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the footprint as JSON data, for a saved transaction."""
        ranges = {"closed": self.closed, "ranges": self.ranges}
        return {"needs": sorted(self.needs), "keys": sorted(self.keys)} | {
            name: [[r.lo, r.hi] for r in each] for name, each in ranges.items()
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any] | None) -> Footprint:
        """Return the footprint in the data of :meth:`to_json`."""
        if found is None:
            return cls()
        closed, ranges = ([KeyRange(lo, hi) for lo, hi in found[name]] for name in ("closed", "ranges"))
        return cls(set(found["needs"]), closed, set(found["keys"]), ranges)


@dataclass(frozen=True, slots=True)
class Conflicts:
    """A footprint that is prepared for comparisons with many versions."""

    writes: Mapping[str, object]
    needs: frozenset[str]
    closed: MergedRanges
    keys: frozenset[str]
    ranges: MergedRanges

    def touched(self, messages: Messages) -> list[str]:
        """Return the keys of another transaction's messages that this one may not overlook.

        Costs log ranges comparisons for each message.
        """
        return [
            key
            for key, value in zip(messages.keys, messages.values, strict=True)
            if key in self.writes
            or (value is None and key in self.needs)
            or (value is not None and key in self.closed)
            or key in self.keys
            or key in self.ranges
        ]


class MergedRanges:
    """The union of ranges, both ends included: as disjoint ranges in order, so that a look-up bisects."""

    __slots__ = ("_ends", "_starts")

    def __init__(self, ranges: Iterable[KeyRange]) -> None:
        self._starts: list[str] = []
        self._ends: list[str] = []
        for lo, hi in sorted((r.lo, r.hi) for r in ranges):
            if self._ends and lo <= self._ends[-1]:
                self._ends[-1] = max(self._ends[-1], hi)
            elif lo <= hi:
                self._starts.append(lo)
                self._ends.append(hi)

    def __len__(self) -> int:
        return len(self._starts)

    def __contains__(self, key: str) -> bool:
        index = bisect_right(self._starts, key) - 1
        return index >= 0 and key <= self._ends[index]


# -- changes ---------------------------------------------------------------------------------------


class CatalogEdits(CatalogView):
    """Changes on top of a version, in memory: reading sees them. Nothing is written to the storage here."""

    def __init__(self, transaction_id: str, base: Root, store: NodeStore, keys: KeyCodec) -> None:
        self.id = transaction_id
        self._base = base
        self._nodes = store
        self._keys = keys
        self._writes_by_key: dict[str, str | None] = {}
        self._many: list[tuple[Columns, bool | None]] = []
        """What :meth:`put_many` took since ``_writes`` was asked for, and whether it replaces."""
        self._before: dict[str, bool] = {}
        """Whether each written key exists in the base. Keys that are missing here are looked up when counted."""
        self._definitions: dict[str, tuple[str, _Definition]] = {}
        self._last_read: tuple[str, bytes] = ("", b"")
        """The path and content of a definition: what is read is often changed next."""
        self._footprint = Footprint()
        self._known_files: set[str] = set()
        """Table metadata below ``tables/`` that definitions of the base name, as far as they were read."""

    @property
    def base_version(self) -> int:
        """The version that the changes stand on."""
        return self._base.version

    @abc.abstractmethod
    def _refuse_done(self) -> None:
        """Raise ``InvalidInput`` if nothing may be changed any more."""

    @property
    def _writes(self) -> dict[str, str | None]:
        """Each changed key and its new path."""
        for rows, replaces in self._many:
            keys = rows.keys.to_pylist()
            if replaces is not None:
                for key in keys:
                    self._before.setdefault(key, replaces)
            self._writes_by_key.update(zip(keys, rows.values.to_pylist(), strict=True))
        self._many.clear()
        return self._writes_by_key

    def messages(self) -> Messages:
        """Return the changes so far as messages, in key order; as columns where :meth:`put_many` made all of them."""
        if self._many and not self._writes_by_key:
            rows = Columns.join([each for each, _ in self._many])
            return Messages.of_columns(rows.keys, rows.values, repeat_text(self.id, len(rows))).newest()
        keys = sorted(self._writes)
        return Messages(keys, list(map(self._writes.__getitem__, keys)), [self.id] * len(keys))

    def gained(self) -> ObjectCounts:
        """Return the difference that these changes make to the number of objects, by kind. Mostly no request.

        No other commit can change this difference: a transaction that writes one of the same keys conflicts.
        """
        gained = dict.fromkeys(KINDS, 0)
        there = self._were_there()
        for key, path in self._writes.items():
            before = there[key]
            if before != (path is not None):
                gained[self._keys.split(key)[0]] += -1 if before else 1
        return ObjectCounts(gained[NAMESPACE], gained[TABLE], gained[VIEW])

    def _were_there(self) -> Mapping[str, bool]:
        """Return, for each key that is written, whether it exists in the base.

        Those of which it is not known are looked up: one ``get`` per level and key unless cached; of many keys one per
        node on their ways, however many they share, and ahead.
        """
        unknown = sorted(self._writes.keys() - self._before.keys())
        if len(unknown) <= _FEW:
            find = super()._find
            found: AbstractSet[str] = {key for key in unknown if find(key) is not None}
        else:
            with self._still_kept():
                found = search.lookup_many(self._nodes, self._root_node(), unknown).keys()
        self._before.update((key, key in found) for key in unknown)
        return self._before

    # -- reading -------------------------------------------------------------------------------

    def _root_node(self) -> Node:
        return self._base.node

    def _find(self, key: str) -> str | None:
        self._footprint.keys.add(key)
        return self._writes[key] if key in self._writes else super()._find(key)

    def _batches(self, within: KeyRange, own: Messages | None = None) -> Iterator[search.Batch]:
        self._footprint.ranges.append(within)
        own = Messages.of([(key, self._writes[key], self.id) for key in sorted(self._writes) if key in within])
        return super()._batches(within, own)

    def _read_definition(self, path: str) -> bytes:
        if path in self._definitions:
            return encode(self._definitions[path][1])
        if path != self._last_read[0]:
            self._last_read = path, super()._read_definition(path)
        return self._last_read[1]

    def _definition(self, kind: str, key: str, label: str, of: type[_T]) -> _T:
        definition = super()._definition(kind, key, label, of)
        if key not in self._writes and (named := named_in_area(self._nodes.storage.root, definition)) is not None:
            self._known_files.add(named)
        return definition

    def new_table_files(self) -> set[str]:
        """Return the table metadata below ``tables/`` that these changes name, and that were not read in the base."""
        return self.named_table_files() - self._known_files

    def named_table_files(self) -> set[str]:
        """Return the table metadata below ``tables/`` that these changes name."""
        root = self._nodes.storage.root
        named = (named_in_area(root, definition) for _, definition in self._definitions.values())
        return {each for each in named if each is not None}

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

    def create_table(
        self, namespace: str, name: str, schema: AnySchema | None = None, **definition: Unpack[TableOptions]
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
        self._create(TABLE, self._keys.table(namespace, name), table, namespace, name)
        return table

    def alter_table(self, namespace: str, name: str, **changes: Unpack[TableChanges]) -> TableDef:
        """Change a table's definition; takes what ``definitions.altered_table`` takes. Raises ``ObjectNotFound``."""
        table = altered_table(self.table(namespace, name), **changes)
        self._set(TABLE, self._keys.table(namespace, name), table, namespace, name)
        return table

    def drop_table(self, namespace: str, name: str) -> None:
        """Drop a table. Raises ``ObjectNotFound``."""
        self._delete(self._require(TABLE, namespace, name))

    def rename_table(self, namespace: str, name: str, to_namespace: str, to_name: str) -> TableDef:
        """Give a table another name, or another namespace. It keeps its ID and all else.

        Raises:
            InvalidName, ObjectNotFound (the table, or the new namespace), AlreadyExists.
        """
        table = self.table(namespace, name)
        self._create(TABLE, self._keys.table(to_namespace, to_name), table, to_namespace, to_name)
        self._delete(self._keys.table(namespace, name))
        return table

    # -- views ---------------------------------------------------------------------------------

    def create_view(
        self, namespace: str, name: str, sql: str | None = None, **definition: Unpack[ViewOptions]
    ) -> ViewDef:
        """Create a view; takes what ``definitions.view_def`` takes (dialect, schema, properties, ...).

        Raises:
            InvalidName, InvalidDefinition, ObjectNotFound (the namespace), AlreadyExists.
        """
        view = view_def(sql, **definition)
        self._create(VIEW, self._keys.view(namespace, name), view, namespace, name)
        return view

    def replace_view(
        self, namespace: str, name: str, sql: str | None = None, **changes: Unpack[ViewChanges]
    ) -> ViewDef:
        """Change a view's definition; takes what ``definitions.altered_view`` takes. Raises ``ObjectNotFound``."""
        view = altered_view(self.view(namespace, name), sql=sql, **changes)
        self._set(VIEW, self._keys.view(namespace, name), view, namespace, name)
        return view

    def rename_view(self, namespace: str, name: str, to_namespace: str, to_name: str) -> ViewDef:
        """Give a view another name, or another namespace. It keeps its ID and all else. Raises as for tables."""
        view = self.view(namespace, name)
        self._create(VIEW, self._keys.view(to_namespace, to_name), view, to_namespace, to_name)
        self._delete(self._keys.view(namespace, name))
        return view

    def drop_view(self, namespace: str, name: str) -> None:
        """Drop a view. Raises ``ObjectNotFound``."""
        self._delete(self._require(VIEW, namespace, name))

    # -- writes --------------------------------------------------------------------------------

    def put(self, key: str, path: str | None, *, replaces: bool | None = None) -> None:
        """Set (or with ``None`` delete) the raw definition path of a key; for restore and upgrade.

        ``replaces``: whether the key exists in the base. Without it, the key is looked up when objects are counted.
        """
        self._refuse_done()
        if replaces is not None:
            self._before.setdefault(key, replaces)
        self._writes[key] = path

    def put_many(self, changes: pa.Table | Iterable[pa.RecordBatch], *, replaces: bool | None = None) -> None:
        """Set or delete many keys at once: :meth:`put` for each row of the columns ``key`` and ``path``.

        A NULL path deletes. Of several rows for one key the last one counts. Rows in key order are the fastest.

        The columns go from here to the leaves; a transaction that is read, or changed in another way, too, makes
        Python objects of them. Where the version counts its objects, the commit looks keys up as for :meth:`put`.

        Raises:
            InvalidInput: a column is missing, holds no strings, or a key is NULL; nothing of the batch was taken.
        """
        self._refuse_done()
        for batch in changes.to_batches() if isinstance(changes, pa.Table) else changes:
            rows = Columns(*(_texts(batch, name) for name in ("key", "path")))
            if rows.keys.null_count:
                raise InvalidInput("a key is NULL: each row names the key that it sets, or deletes by a NULL path")
            if len(rows):
                self._many.append((rows, replaces))

    def need_namespace(self, namespace: str) -> None:
        """Declare a conflict with every concurrent transaction that drops this namespace."""
        self._footprint.needs.add(self._keys.namespace(namespace))

    def need_absent(self, kind: str, namespace: str, name: str) -> None:
        """Declare a conflict with every concurrent transaction that creates this table or view.

        Raises ``AlreadyExists`` if it is there.
        """
        key = self._keys.encode(ObjectName(kind, namespace, name))
        if self._find(key) is not None:
            raise AlreadyExists(f"{kind} {label(namespace, name)} already exists")
        self._footprint.closed.append(KeyRange(key, key))

    def close_namespace(self, namespace: str) -> None:
        """Declare a conflict with every concurrent transaction that adds or changes a table or view in a namespace."""
        self._footprint.closed += [self._keys.range(kind, namespace) for kind in (TABLE, VIEW)]

    def _require(self, kind: str, namespace: str, name: str | None = None) -> str:
        key = self._keys.encode(ObjectName(kind, namespace, name))
        if self._find(key) is None:
            raise ObjectNotFound(f"there is no {kind} {label(namespace, name)!r}")
        return key

    def _create(self, kind: str, key: str, definition: _Definition, namespace: str, name: str | None = None) -> None:
        refuse_new_name(kind, namespace if name is None else name)
        if name is not None:
            self._footprint.needs.add(self._require(NAMESPACE, namespace))
        if self._find(key) is not None:
            raise AlreadyExists(f"{kind} {label(namespace, name)!r} already exists")
        self._before.setdefault(key, False)
        self._set(kind, key, definition, namespace, name)

    def _set(self, kind: str, key: str, definition: _Definition, namespace: str, name: str | None = None) -> None:
        self._refuse_done()
        self._definitions.pop(self._writes.get(key) or "", None)
        path = definition_path(kind, namespace, name)
        self._definitions[path] = (kind, definition)
        self._before.setdefault(key, True)
        self._writes[key] = path

    def _delete(self, key: str) -> None:
        self._refuse_done()
        self._definitions.pop(self._writes.get(key) or "", None)
        self._before.setdefault(key, True)
        self._writes[key] = None


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
