"""The engine ``local``: work in this process, and tables in SQLite, which spills to a temporary file by itself.

The file has no name: it is gone with its process, however that ends. Memory is :data:`MEMORY_BYTES` however many rows
there are, and as much again while they are sorted.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, count, islice
from typing import Any, Final, Literal, TypeAlias
from zlib import crc32

import pyarrow as pa

from pipelines.engine import worker_pool
from pipelines.engine.counting import only_row
from pipelines.engine.model import (
    READ_AHEAD,
    FoundRow,
    GroupWork,
    Kept,
    MadeRow,
    Row,
    Rows,
    Table,
    Work,
    name_table,
    place_names,
)
from trinitylake_core.errors import StorageError, StorageFull
from trinitylake_core.storage import Storage
from trinitylake_core.storage.disk_files import FULL

MEMORY_BYTES: Final = 16 << 20
"""What the tables of an engine hold in memory: 150,000 names of files."""
_AT_ONCE: Final = 1_000
_TOGETHER: Final = 16
"""Rows of one statement: a third less CPU than one by one, and more make it no cheaper."""
_PRAGMAS: Final = ("temp_store = file", "journal_mode = off", "synchronous = off", "locking_mode = exclusive")
_NO_ROOM: Final = frozenset({"CANTOPEN", "CORRUPT", "FULL", "IOERR", "NOTADB"})
"""Kinds of errors of SQLite: the disk takes nothing more, or what it took before is not whole."""
Tuples: TypeAlias = Iterable[MadeRow]


class LocalRows:
    """Rows that a function of this process makes each time they are asked for, or a table or a query of SQLite."""

    def __init__(self, engine: LocalEngine, names: Sequence[str], make: Callable[[], Tuples] = tuple) -> None:
        self.engine = engine
        self._names = tuple(names)
        self._make = make

    def column_names(self) -> tuple[str, ...]:
        """Return the names of the columns."""
        return self._names

    def tuples(self) -> Iterator[MadeRow]:
        """Yield all rows in the order of their columns."""
        return iter(self._make())

    def table_name(self) -> str:
        """Return the name of a table or a view of these rows."""
        return self.keep().table_name()

    def stream(self, *, few: bool = False) -> Iterator[FoundRow]:
        """Yield all rows as they are made."""
        for row in self.tuples():
            yield dict(zip(self._names, row, strict=True))

    def list(self) -> list[FoundRow]:
        """Return all rows."""
        return list(self.stream())

    def one(self) -> FoundRow:
        """Return the only row."""
        return only_row(self.list())

    def count(self) -> int:
        """Return the number of rows."""
        return sum(1 for _ in self.tuples())

    def learn_count(self, count: int) -> None:
        """Count again where it is asked for: that is cheap here, and costs no job."""

    def keep(self, key: str = "", *, repeatable: bool = False, progress: Kept | None = None) -> LocalRows:
        """Write the rows into a table, and return it."""
        return self.engine.keep(self._names, self.tuples(), key, progress)

    def drop(self) -> None:
        """Nothing is kept."""


class _Stored(LocalRows):
    """A table of SQLite, or a query, which becomes a view where another query names it: most are read once."""

    def __init__(self, engine: LocalEngine, kind: Literal["TABLE", "VIEW"], source: str) -> None:
        """Take the name of a table, or a query in parentheses."""
        super().__init__(engine, ())
        self._kind = kind
        self._source = source
        self._name = source if kind == "TABLE" else ""

    def column_names(self) -> tuple[str, ...]:
        with _room_errors():
            return _names_of(self.engine.execute(f"SELECT * FROM {self._source} LIMIT 0"))

    def table_name(self) -> str:
        if not self._name:
            self._name = self.engine.create_view(self._source)
        return self._name

    def tuples(self) -> Iterator[MadeRow]:
        with _room_errors():
            yield from _fetch(self._read())

    def stream(self, *, few: bool = False) -> Iterator[FoundRow]:
        with _room_errors():
            cursor = self._read()
            names = _names_of(cursor)
            for row in _fetch(cursor):
                yield dict(zip(names, row, strict=True))

    def _read(self) -> sqlite3.Cursor:
        return self.engine.execute(f"SELECT * FROM {self._source}")

    def keep(self, key: str = "", *, repeatable: bool = False, progress: Kept | None = None) -> LocalRows:
        """Copy the rows into a table, and return it."""
        kept = self.engine.copy(self.column_names(), self._source, key)
        if progress is not None:
            progress(kept.count())
        return kept

    def count(self) -> int:
        with _room_errors():
            ((found,),) = self.engine.execute(f"SELECT count(*) FROM {self._source}").fetchall()
        return int(found)

    def drop(self) -> None:
        if not self._name:
            return
        with suppress(sqlite3.DatabaseError):  # still read from after a failure, or cut short: it goes with the engine
            self.engine.execute(f"DROP {self._kind} IF EXISTS {self._name}")


class LocalEngine:
    """Tables in SQLite, and work in this process; see :class:`pipelines.engine.model.Engine`."""

    name = "local"

    def __init__(self, memory_bytes: int | None = None) -> None:
        self._memory_bytes = MEMORY_BYTES if memory_bytes is None else memory_bytes
        self._opened: sqlite3.Connection | None = None
        self._numbers = count()

    def map(self, work: Work, rows: Rows, schema: pa.Schema, *storages: Storage, each: int = READ_AHEAD) -> LocalRows:
        """Return the result of ``work`` on rows in this process; the work is done when the rows are read."""
        return LocalRows(self, schema.names, lambda: work(rows.stream(), *storages))

    def not_counted(self, requests: int) -> int:
        """Return 0: work is given the storages of this process."""
        return 0

    def tasks(self, wanted: int | None = None) -> int:
        """Return 1: each process takes the next group when it is done with one, so that none waits for a slow one."""
        return 1

    def map_groups(
        self,
        work: GroupWork,
        rows: Rows,
        schema: pa.Schema,
        *storages: Storage,
        by: str,
        weight: str,
        key: str = "",
        ahead: int = 1,
        progress: Callable[[int, int | None], None],
    ) -> LocalRows:
        """Return the result of each group, made in this process and, where that pays, in one more per core."""
        groups = _Groups(self, _local(rows), by)
        weights = groups.weights(weight)
        total = sum(weights)
        with self._new_table(schema.names, key) as kept:
            made = _GroupRows(self, kept.table_name(), len(schema))
            shared = worker_pool.SharedWork(work, groups, weights, made, *storages, at_once=ahead)
            worker_pool.run_in_workers(shared, worker_pool.cores(), lambda: progress(shared.done_weight, total))
        return kept

    def table(self, rows: Iterable[Row], schema: pa.Schema) -> LocalRows:
        """Return rows of this process as a table."""
        names = schema.names
        held = [tuple(row[name] for name in names) for row in rows]
        return LocalRows(self, names, lambda: held)

    def sql(self, query: str, **tables: Table) -> LocalRows:
        """Return the result of a query of tables, which is carried out where it is read."""
        stored = {each: name_table(table, lambda rows: _local(rows).table_name()) for each, table in tables.items()}
        return _Stored(self, "VIEW", f"({place_names(query, stored)})")

    def create_view(self, query: str) -> str:
        """Give a query a name, and return it."""
        name = f"v{next(self._numbers)}"
        with _room_errors():
            self.execute(f"CREATE VIEW {name} AS SELECT * FROM {query}")
        return name

    def keep(self, names: Sequence[str], rows: Tuples, key: str, progress: Kept | None) -> LocalRows:
        """Write rows into a table. Raises ``StorageError`` if there is no room for them."""
        with self._new_table(names, key) as kept:
            place = f"({', '.join('?' * len(names))})"
            inserts = [
                f"INSERT INTO {kept.table_name()} VALUES {', '.join([place] * many)}" for many in range(_TOGETHER + 1)
            ]
            remaining, done = iter(rows), 0
            while some := list(islice(remaining, _TOGETHER)):
                self._connection().execute(inserts[len(some)], list(chain.from_iterable(some)))
                done += len(some)
                if progress is not None and done % _AT_ONCE < _TOGETHER:
                    progress(done)
            if progress is not None:
                progress(done)
        return kept

    def copy(self, names: Sequence[str], source: str, key: str) -> LocalRows:
        """Copy a table or a query into a table. Raises ``StorageError`` if there is no room for it."""
        with self._new_table(names, key) as kept:
            self.execute(f"INSERT INTO {kept.table_name()} SELECT * FROM {source}")
        return kept

    @contextmanager
    def _new_table(self, names: Sequence[str], key: str) -> Iterator[LocalRows]:
        """Make a table to be filled, and then its index: sorted once, that is much faster than row by row."""
        name = f"t{next(self._numbers)}"
        with _room_errors():
            self.execute(f"CREATE TABLE {name} ({', '.join(names)})")
            yield _Stored(self, "TABLE", name)
            if key:
                self.execute(f"CREATE INDEX {name}_key ON {name} ({key})")

    def execute(self, statement: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        """Carry out a statement."""
        return self._connection().execute(statement, values)

    def _connection(self) -> sqlite3.Connection:
        if self._opened is None:
            self._opened = sqlite3.connect("", isolation_level=None, check_same_thread=False)
            for pragma in (f"cache_size = -{self._memory_bytes >> 10}", *_PRAGMAS):
                self._opened.execute(f"PRAGMA {pragma}")
            self._opened.create_function("crc32", 1, _crc32, deterministic=True)
            self._opened.execute("BEGIN")  # for good: or each row would be a transaction
        return self._opened

    def close(self) -> None:
        """Let go of all tables."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None


class _Groups:
    """The rows of a table by the number of their group; threads may ask for them."""

    def __init__(self, engine: LocalEngine, rows: LocalRows, by: str) -> None:
        self._engine = engine
        self._names = rows.column_names()
        self._from = f"FROM {rows.table_name()}"
        self._by = by
        self._numbers: list[int] = []

    def weights(self, weight: str) -> list[int]:
        """Return the weights of the groups; they are numbered in this order."""
        with _room_errors():
            sums = f"SELECT {self._by}, sum({weight}) {self._from} GROUP BY {self._by}"
            found = self._engine.execute(sums).fetchall()
        self._numbers = [number for number, _ in found]
        return [heavy for _, heavy in found]

    def __getitem__(self, index: int, /) -> list[Row]:
        with _room_errors():
            rows = self._engine.execute(f"SELECT * {self._from} WHERE {self._by} = ?", [self._numbers[index]])
            return [dict(zip(self._names, row, strict=True)) for row in rows]


class _GroupRows:
    """Keeps what became of groups as rows of a table; of each group only their numbers are held in memory."""

    def __init__(self, engine: LocalEngine, table: str, columns: int) -> None:
        self._engine = engine
        self._table = table
        self._numbers: dict[int, tuple[int, int]] = {}
        self._insert = f"INSERT INTO {table} VALUES ({', '.join('?' * columns)})"

    def keep(self, index: int, result: Sequence[MadeRow]) -> None:
        """Write the rows of a group into the table."""
        last = 0
        with _room_errors():
            for row in result:
                last = self._engine.execute(self._insert, row).lastrowid or 0
        self._numbers[index] = (last - len(result), last)

    def forget(self, index: int) -> None:
        """Delete the rows of a group that is made again."""
        if index in self._numbers:
            numbers = self._numbers.pop(index)
            self._engine.execute(f"DELETE FROM {self._table} WHERE rowid > ? AND rowid <= ?", numbers)


def _names_of(cursor: sqlite3.Cursor) -> tuple[str, ...]:
    return tuple(column[0] for column in cursor.description)


def _fetch(cursor: sqlite3.Cursor) -> Iterator[MadeRow]:
    while some := cursor.fetchmany(_AT_ONCE):
        yield from some


def _crc32(text: str | None) -> int | None:
    return None if text is None else crc32(text.encode())


def _local(rows: Rows) -> LocalRows:
    if not isinstance(rows, LocalRows):
        raise TypeError("these rows are of another engine")
    return rows


@contextmanager
def _room_errors() -> Iterator[None]:
    try:
        yield
    except sqlite3.DatabaseError as error:
        name = getattr(error, "sqlite_errorname", "")  # a mistake in a call has none
        kind = name.removeprefix("SQLITE_").partition("_")[0]
        if kind not in _NO_ROOM:
            raise
        # After the disk was full the file is cut short, which SQLite calls malformed: nothing is wrong with it.
        is_full = kind in {"CORRUPT", "FULL", "NOTADB"}
        raised = StorageFull if is_full else StorageError
        why = "the disk is full" if is_full else str(error)
        raise raised(_describe_no_room(why)) from error


def find_full_disk(error: OSError) -> StorageFull | None:
    """Return the error that names the directory of temporary files, if its disk is full; no storage raises that.

    Where the disks of all directories that Python knows are full, it finds none that it can use.
    """
    if error.errno in FULL or str(error).startswith("[Errno 2] No usable temporary directory"):
        return StorageFull(_describe_no_room("the disk is full"))
    return None


def _describe_no_room(why: str) -> str:
    where = os.environ.get("SQLITE_TMPDIR") or os.environ.get("TMPDIR") or tempfile.tempdir or "/var/tmp"  # noqa: S108
    return f"temporary files cannot be used: {why}; make room in {where}, or set TMPDIR to a directory that has more"
