"""What a transaction writes, in memory: keys with their new paths, and the definitions at these paths."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from trinitylake_core.definitions import ObjectDef
from trinitylake_core.transactions.gains import Existence
from trinitylake_core.tree.leafrun import Columns, in_order
from trinitylake_core.tree.node import Meaning, Messages
from trinitylake_core.tree.noderows import repeat_text


class Writes:
    """The keys that a transaction writes.

    Attributes:
        definitions: what it has made of each path, with the kind of the object. Not those of raw paths.
        existed: whether each written key exists in the base, where that is known.
    """

    def __init__(self) -> None:
        self.definitions: dict[str, tuple[str, ObjectDef]] = {}
        self.existed: dict[str, bool] = {}
        self._by_key: dict[str, str | None] = {}
        self._columns: list[tuple[Columns, bool | None]] = []
        """What :meth:`put_columns` took since :attr:`by_key` was asked for, and whether the keys existed."""
        self._joined: Messages | None = None
        """All of these as messages, once they were asked for."""

    def __bool__(self) -> bool:
        return bool(self._by_key or self._columns)

    @property
    def by_key(self) -> Mapping[str, str | None]:
        """Each changed key and its new path, ``None`` if it is deleted."""
        self._unpack_columns()
        return self._by_key

    def _unpack_columns(self) -> None:
        for rows, existed in self._columns:
            keys = rows.keys.to_pylist()
            if existed is not None:
                for key in keys:
                    self.existed.setdefault(key, existed)
            paths = rows.values.to_pylist()
            self._by_key.update(zip(keys, paths, strict=True))
        self._columns.clear()
        self._joined = None

    def existence(self) -> Existence:
        """Return whether the written keys exist in the base, as far as that is known."""
        alike = {existed for _, existed in self._columns}
        if self._by_key or len(alike) != 1:
            self._unpack_columns()
            return self.existed
        (existed,) = alike
        return existed

    def put(self, key: str, path: str | None, *, existed: bool | None) -> None:
        """Write a key with a path, or with ``None`` delete it. ``existed``: whether the base has it, if that is known.

        A definition that was made for the key before goes.
        """
        old_path = self.by_key.get(key)
        if old_path is not None:
            self.definitions.pop(old_path, None)
        if existed is not None:
            self.existed.setdefault(key, existed)
        self._by_key[key] = path

    def put_definition(
        self,
        key: str,
        path: str,
        kind: str,
        definition: ObjectDef,
        *,
        existed: bool | None,
    ) -> None:
        """Write a key with a definition that is to be stored at a path."""
        self.put(key, path, existed=existed)
        self.definitions[path] = (kind, definition)

    def put_columns(self, rows: Columns, *, existed: bool | None) -> None:
        """Write many keys. The columns stay what they are as long as nothing else is asked for than messages."""
        self._columns.append((rows, existed))
        self._joined = None

    def put_saved(self, keys: Iterable[str], paths: Iterable[str | None], existed: Mapping[str, bool]) -> None:
        """Write what a saved transaction has written."""
        self._by_key.update(zip(keys, paths, strict=True))
        self.existed.update(existed)

    def rename_files(self, new_by_old: Mapping[str, str]) -> None:
        """Give files other paths."""
        for key, path in self.by_key.items():
            if path is not None and path in new_by_old:
                self._by_key[key] = new_by_old[path]
        definitions = {}
        for path, definition in self.definitions.items():
            new_path = new_by_old.get(path, path)
            definitions[new_path] = definition
        self.definitions = definitions

    def messages(self, txn: str) -> Messages:
        """Return what is written as messages of a transaction, in key order; as columns where all of it came so."""
        if self._columns and not self._by_key:
            if self._joined is None:  # a commit asks twice: for its root, and to count objects
                rows = Columns.join([each for each, _ in self._columns])
                txns = repeat_text(txn, len(rows))
                self._joined = Messages.of_columns(rows.keys, rows.values, txns).newest()
            return self._joined
        by_key = self.by_key
        keys = sorted(by_key)
        paths = [by_key[key] for key in keys]
        return Messages(keys, paths, [txn] * len(keys))

    def entries(self) -> Sequence[Columns] | None:
        """Return what is written as the entries of a tree that had none of these keys, in key order.

        ``None`` unless all of it came as columns that set keys which may be new, and that ascend from one to the next.
        """
        if self._by_key or not self._columns:
            return None
        batches = []
        last = None
        for rows, existed in self._columns:
            if existed or rows.values.null_count or not in_order(rows.keys, last, None):
                return None
            batches.append(rows)
            last = rows.keys[-1].as_py()
        return batches

    def within(self, keys: Iterable[str]) -> Iterator[Meaning]:
        """Yield those of some keys that are written, with their paths."""
        by_key = self.by_key
        return ((key, by_key[key]) for key in keys if key in by_key)
