"""What can be read from one version of a lakehouse: names, definitions, objects, content digest."""

from __future__ import annotations

import abc
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Final, Never, TypeVar

import mmh3

from trinitylake_core import keys as names
from trinitylake_core.definitions import DECODERS, LakehouseDef, NamespaceDef, TableDef, ViewDef
from trinitylake_core.errors import (
    Corrupt,
    CorruptDefinition,
    FileMissing,
    InvalidInput,
    InvalidLocation,
    InvalidName,
    ObjectNotFound,
)
from trinitylake_core.keys import NAMESPACE, TABLE, VIEW, KeyCodec, KeyRange, ObjectName, label
from trinitylake_core.locations import validate_path
from trinitylake_core.object_info import NamespaceInfo, TableInfo, ViewInfo
from trinitylake_core.other_names import explain_missing
from trinitylake_core.tree import search
from trinitylake_core.tree.node import Messages, Node
from trinitylake_core.tree.nodestore import NodeStore
from trinitylake_core.versions import CountBounds, ObjectCounts

_DIGEST_MASK: Final = 2**128 - 1
_T = TypeVar("_T", NamespaceDef, TableDef, ViewDef)


@dataclass(frozen=True, slots=True)
class ObjectEntry:
    """One object of a version: what it is, its key, and the path of its definition."""

    kind: str
    namespace: str
    name: str | None
    key: str = field(repr=False)
    path: str


def codec_of(definition: LakehouseDef, *, sdk: bool = False) -> KeyCodec:
    """Return the key codec of a lakehouse; ``sdk`` = written by the published Java SDK."""
    return KeyCodec(
        definition.namespace_name_max_size_bytes,
        definition.table_name_max_size_bytes,
        definition.view_name_max_size_bytes,
        utf16=sdk,
    )


class CatalogView(abc.ABC):
    """Reading methods over one root node, shared by lakehouse handles and transactions."""

    _nodes: NodeStore
    _keys: KeyCodec
    _other_names: ClassVar[Mapping[str, str]] = {}

    if not TYPE_CHECKING:  # a type checker names what is not there

        def __getattr__(self, name: str) -> Never:
            raise AttributeError(explain_missing(type(self).__name__, name, self._other_names, dir(type(self))))

        def __len__(self) -> Never:
            raise TypeError(explain_missing(type(self).__name__, "__len__", self._other_names, ()))

        def __bool__(self) -> bool:
            return True

    @abc.abstractmethod
    def _root_node(self) -> Node: ...

    @abc.abstractmethod
    def _refuse_expired(self) -> None:
        """Raise if the version that is read is no longer kept: what cannot be read was removed, and not damaged."""

    @contextmanager
    def _still_kept(self) -> Iterator[None]:
        try:
            yield
        except Corrupt:
            self._refuse_expired()
            raise

    def _find(self, key: str) -> str | None:
        try:  # what `_still_kept` does, without its cost
            return search.lookup(self._nodes, self._root_node(), key)
        except Corrupt:
            self._refuse_expired()
            raise

    def look_ahead(self, objects: Collection[ObjectName]) -> None:
        """Read ahead all nodes that lookups of these objects and their namespaces need, in one round trip per level.

        For many lookups to come, such as those of a large transaction: by itself, each takes a round trip per level
        that is not cached. Does nothing where requests go out one after another. One ``get`` per node. Raises
        ``InvalidName``.
        """
        if self._nodes.storage.concurrency > 1:
            keys = {self._keys.encode(each) for each in objects}
            keys |= {self._keys.namespace(each.namespace) for each in objects}
            with self._still_kept():
                self._nodes.warm(self._root_node(), keys)

    def _batches(self, within: KeyRange, own: Messages | None = None) -> Iterator[search.Batch]:
        with self._still_kept():
            yield from search.scan(self._nodes, self._root_node(), within, own)

    # -- names ---------------------------------------------------------------------------------

    @property
    def codec(self) -> KeyCodec:
        """What turns names into keys here."""
        return self._keys

    @property
    def nodes(self) -> NodeStore:
        """Where the nodes come from."""
        return self._nodes

    def namespaces(self, prefix: str = "") -> list[str]:
        """Return the names of all namespaces, or of those with this prefix, sorted. Reads the nodes that hold them."""
        names = []
        for key, _ in self._rows(self._keys.beginning(prefix)):
            _, namespace, _ = self._keys.split(key)
            names.append(namespace)
        return names

    def tables(self, namespace: str | None = None) -> list[str]:
        """Return the tables in a namespace by name, sorted, or all as ``sales.orders``. Raises ``ObjectNotFound``."""
        return self._names(TABLE, namespace)

    def views(self, namespace: str | None = None) -> list[str]:
        """Return the views in a namespace by name, sorted, or all as ``sales.top``. Raises ``ObjectNotFound``."""
        return self._names(VIEW, namespace)

    def __contains__(self, name: object) -> bool:
        """Whether there is an object of this name, ``sales`` or ``sales.orders``: any dot may divide it."""
        if not isinstance(name, str):
            return False
        return any(self._keys_of(kind, name) for kind in names.KINDS)

    def _keys_of(self, kind: str, name: str) -> list[str]:
        """Return the keys of the objects that ``sales.orders`` may name: any dot may divide it."""
        found = []
        for reading in _readings(kind, name):
            try:
                key = self._keys.encode(reading)
            except InvalidName:
                continue
            if self._find(key) is not None:
                found.append(key)
        return found

    def _names(self, kind: str, namespace: str | None) -> list[str]:
        if namespace is None:
            return [f"{each.namespace}.{each.name}" for each in self.objects(kind=kind)]
        namespace_key = self._keys.namespace(namespace)
        found: list[str] = []
        for keys, _ in self._batches(self._keys.range(kind, namespace)):
            found += self._keys.names_in(keys)
        if not found and self._find(namespace_key) is None:
            raise _not_found(NAMESPACE, namespace)
        return found

    def _rows(self, within: KeyRange) -> Iterator[tuple[str, str]]:
        for keys, values in self._batches(within):
            yield from zip(keys, values, strict=True)

    def objects(self, namespace: str | None = None, kind: str | None = None) -> Iterator[ObjectEntry]:
        """Yield all objects in key order: namespaces, then tables, then views.

        Args:
            namespace: only this namespace and what is in it.
            kind: only ``namespace``, ``table`` or ``view``.

        Raises:
            InvalidInput: an unknown kind.
        """
        if kind is not None and kind not in names.KINDS:
            raise InvalidInput(f"kind must be one of {', '.join(names.KINDS)}, not {kind!r}")
        if kind is not None:
            ranges = [self._keys.range(kind, namespace)]
        elif namespace is not None:
            ranges = [self._keys.range(each, namespace) for each in names.KINDS]
        else:
            ranges = [names.EVERYTHING]
        for within in ranges:
            for key, path in self._rows(within):
                yield ObjectEntry(*self._keys.split(key), key, path)

    def digest(self) -> str:
        """Return a hash of the logical content as 32 hex digits: kinds, names and definition paths.

        Independent of the order, of the shape of the tree and of the name sizes. Reads every node.
        """
        total = 0
        for keys, values in self._batches(names.EVERYTHING):
            for key, path in zip(keys, values, strict=True):
                kind, namespace, name = self._keys.split(key)
                total += content_hash(kind, namespace, name, path)
        return format(total & _DIGEST_MASK, "032x")

    # -- definitions ---------------------------------------------------------------------------

    def namespace(self, namespace: str) -> NamespaceDef:
        """Return the definition of a namespace. Raises ``ObjectNotFound``, ``CorruptDefinition``."""
        return self._definition(NAMESPACE, self._keys.namespace(namespace), namespace, NamespaceDef)

    def table(self, namespace: str, name: str | None = None) -> TableDef:
        """Return the definition of a table: ``("sales", "orders")``, or ``("sales.orders")`` where that names one.

        One ``get`` per level below the root and one for the definition.

        Raises:
            ObjectNotFound: no such table.
            CorruptDefinition: its file is missing or garbage.
        """
        key = self._key(TABLE, namespace, name)
        return self._definition(TABLE, key, label(namespace, name), TableDef)

    def view(self, namespace: str, name: str | None = None) -> ViewDef:
        """Return the definition of a view, named as a table is. Raises ``ObjectNotFound``, ``CorruptDefinition``."""
        key = self._key(VIEW, namespace, name)
        return self._definition(VIEW, key, label(namespace, name), ViewDef)

    def _key(self, kind: str, namespace: str, name: str | None) -> str:
        if name is not None:
            return self._keys.encode(ObjectName(kind, namespace, name))
        found = self._keys_of(kind, namespace)
        if not found:
            raise _not_found(kind, namespace)
        if len(found) > 1:
            raise InvalidInput(f"{kind} {namespace!r} is ambiguous: pass its namespace and its name as two arguments")
        return found[0]

    def namespace_info(self, namespace: str) -> NamespaceInfo:
        """Return the result of :meth:`namespace` as Python values. Costs and raises the same."""
        return NamespaceInfo(namespace, self.namespace(namespace))

    def table_info(self, namespace: str, name: str | None = None) -> TableInfo:
        """Return the result of :meth:`table` as Python values: Arrow schema, keys by name, properties, location URI.

        Named as a table is: ``("sales", "orders")``, or ``("sales.orders")``.

        Costs and raises the same.
        """
        found = self._keys.decode(self._key(TABLE, namespace, name))
        table = found.name or ""
        definition = self.table(found.namespace, table)
        return TableInfo(found.namespace, table, self._nodes.storage.root, definition)

    def view_info(self, namespace: str, name: str | None = None) -> ViewInfo:
        """Return the result of :meth:`view` as Python values: queries by dialect, Arrow schema, properties.

        Costs and raises the same.
        """
        found = self._keys.decode(self._key(VIEW, namespace, name))
        view = found.name or ""
        return ViewInfo(found.namespace, view, self.view(found.namespace, view))

    def definition_of(self, entry: ObjectEntry) -> NamespaceDef | TableDef | ViewDef:
        """Return the definition that an entry of :meth:`objects` points to. One ``get``."""
        return DECODERS[entry.kind](self._read_definition(entry.path), entry.path)

    def _definition(self, kind: str, key: str, label: str, of: type[_T]) -> _T:
        path = self._find(key)
        if path is None:
            raise _not_found(kind, label)
        definition = DECODERS[kind](self._read_definition(path), path)
        if not isinstance(definition, of):
            raise TypeError(f"{kind} definitions are not {of.__name__}")
        return definition

    def _read_definition(self, path: str) -> bytes:
        try:
            return self._nodes.storage.read(validate_path(path))
        except FileMissing:
            self._refuse_expired()
            raise CorruptDefinition(f"definition file {path!r} is missing", path=path) from None
        except InvalidLocation as error:
            raise CorruptDefinition(str(error), path=path) from None


def entries(
    reader: search.NodeReader, node: Node, codec: KeyCodec, within: KeyRange = names.EVERYTHING
) -> Iterator[ObjectEntry]:
    """Yield the objects below a root node, in key order, or those in a range of keys."""
    for keys, values in search.scan(reader, node, within):
        for key, path in zip(keys, values, strict=True):
            yield ObjectEntry(*codec.split(key), key, path)


def object_counts(reader: search.NodeReader, node: Node, codec: KeyCodec) -> ObjectCounts | None:
    """Return the number of objects below a root for which no message waits, ``None`` where nodes do not count.

    Two reads per level below the root at the most.
    """
    return _count_keys(reader, node, codec) if node.subtree_messages == 0 else None


def settle_counts(
    reader: search.NodeReader, node: Node, codec: KeyCodec, bounds: CountBounds | None
) -> ObjectCounts | None:
    """Return the number of objects below a root for which no message waits, of which ``bounds`` were known before.

    No request if only one kind of objects is uncertain: it has the keys that the others do not have. Otherwise that of
    :func:`object_counts`.
    """
    if bounds is None or node.subtree_messages != 0 or node.subtree_keys is None:
        return object_counts(reader, node, codec)
    uncertain = [least != most for least, most in zip(bounds.least, bounds.most, strict=True)]
    if sum(uncertain) != 1:
        return object_counts(reader, node, codec)
    counts = list(bounds.least)
    kind = uncertain.index(True)
    counts[kind] += node.subtree_keys - bounds.least.total
    return ObjectCounts(*counts)


def look_up_counts(reader: search.NodeReader, node: Node, codec: KeyCodec) -> ObjectCounts | None:
    """Return the number of objects below a root, with the messages that wait; ``None`` where nodes do not count.

    Reads the nodes that these messages are for, as a compaction of them would, and two per level besides.
    """
    in_tables = _count_keys(reader, node, codec)
    if in_tables is None:
        return None
    gained: Counter[str] = Counter()
    for key, gain in search.waiting_gains(reader, node):
        gained[codec.split(key)[0]] += gain
    return in_tables.plus(ObjectCounts(gained[NAMESPACE], gained[TABLE], gained[VIEW]))


def _count_keys(reader: search.NodeReader, node: Node, codec: KeyCodec) -> ObjectCounts | None:
    """Return the number of keys in the key tables of a tree by kind, whatever messages wait for them."""
    if node.subtree_keys is None:
        return None
    # Keys of namespaces come first, then those of tables, then those of views.
    before_tables = search.keys_before(reader, node, codec.range(TABLE).lo)
    before_views = search.keys_before(reader, node, codec.range(VIEW).lo)
    if before_tables is None or before_views is None:
        return None
    return ObjectCounts(
        namespaces=before_tables,
        tables=before_views - before_tables,
        views=node.subtree_keys - before_views,
    )


def _readings(kind: str, name: str) -> Iterator[ObjectName]:
    """Yield the objects of a kind that a text may name: any dot may divide it."""
    if kind == NAMESPACE:
        yield ObjectName(kind, name)
        return
    for index, character in enumerate(name):
        if character == "." and 0 < index < len(name) - 1:
            yield ObjectName(kind, name[:index], name[index + 1 :])


def content_hash(kind: str, namespace: str, name: str | None, path: str) -> int:
    """Return the hash of one object in the content digest, a 128-bit number."""
    return mmh3.hash128(f"{kind}\0{namespace}\0{name or ''}\0{path}", signed=False)


def _not_found(kind: str, label: str) -> ObjectNotFound:
    return ObjectNotFound(f"there is no {kind} {label!r} in this version")
