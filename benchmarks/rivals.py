"""The same catalog in what people would use instead, each behind the same few calls.

A catalog is a table of keys and paths, sorted by key. All are durable as far as they can be: SQLite with
``synchronous=FULL``, LMDB as it comes, ours as it comes; deltalake and Lance do not wait for the disk. ``BareArrow`` is
no catalog: it writes and reads the files that ours writes and reads, by pyarrow alone, without checksums or proofs.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from pipelines import compaction
from trinitylake_core import Lakehouse
from trinitylake_core.locations import node_path
from trinitylake_core.storage.durability import sync_filesystem, sync_path
from trinitylake_core.tree.search import lookup, scan

Change = tuple[str, str | None]
"""A key, and its new path; ``None`` deletes it."""


@dataclass(frozen=True)
class Changes:
    """Changes in key order, as each rival takes them: made before the clock starts."""

    rows: Sequence[Change]
    table: pa.Table
    """Columns ``key`` and ``path``."""

    @classmethod
    def of(cls, rows: Sequence[Change]) -> Changes:
        """Return changes in both forms."""
        keys, paths = zip(*rows, strict=True)
        return cls(rows, pa.table({"key": pa.array(keys, pa.string()), "path": pa.array(paths, pa.string())}))


class Rival(Protocol):
    """A catalog below a folder of its own."""

    def create(self, rows: pa.Table) -> None:
        """Store all rows."""

    def commit(self, key: str, path: str) -> None:
        """Add one row, durably."""

    def merge(self, changes: Changes) -> None:
        """Set and delete many rows at once, and leave them as fast to read as before."""

    def cold(self, key: str) -> str | None:
        """Look one key up by a handle that is opened for it."""

    def warm(self, key: str) -> str | None:
        """Look one key up by the handle that there is."""

    def scan(self) -> int:
        """Read all rows into memory; return how many."""


class Ours:
    """A lakehouse; a merge is a commit and a compaction in this process."""

    def __init__(self, folder: Path) -> None:
        self._root = f"file://{folder}/ours"
        self._lake: Lakehouse | None = None

    @property
    def lake(self) -> Lakehouse:
        """The handle."""
        self._lake = self._lake or Lakehouse.open(self._root)
        return self._lake

    def create(self, rows: pa.Table) -> None:
        """Commit all rows by one transaction."""
        with Lakehouse.create(self._root).transaction() as txn:
            txn.put_many(rows)

    def commit(self, key: str, path: str) -> None:
        """Commit a transaction."""
        with self.lake.transaction() as txn:
            txn.put(key, path)

    def merge(self, changes: Changes) -> None:
        """Commit and compact."""
        with self.lake.transaction() as txn:
            txn.put_many(changes.table)
        compaction.run(self.lake.refresh(), compaction.Config(engine="local"))

    def cold(self, key: str) -> str | None:
        """Open and search."""
        lake = Lakehouse.open(self._root)
        return lookup(lake.nodes, lake.root_node.node, key)

    def warm(self, key: str) -> str | None:
        """Search."""
        return lookup(self.lake.nodes, self.lake.root_node.node, key)

    def scan(self) -> int:
        """Read every node."""
        lake = Lakehouse.open(self._root)
        return sum(len(keys) for keys, _ in scan(lake.nodes, lake.root_node.node))


class Delta:
    """A Delta table."""

    def __init__(self, folder: Path) -> None:
        self._place = str(folder / "delta")

    def create(self, rows: pa.Table) -> None:
        """Write one table."""
        from deltalake import write_deltalake

        write_deltalake(self._place, rows)

    def commit(self, key: str, path: str) -> None:
        """Append."""
        from deltalake import write_deltalake

        write_deltalake(self._place, pa.table({"key": [key], "path": [path]}), mode="append")

    def merge(self, changes: Changes) -> None:
        """Merge."""
        from deltalake import DeltaTable

        merger = DeltaTable(self._place).merge(changes.table, "t.key = s.key", source_alias="s", target_alias="t")
        gone = "s.path is null"
        (
            merger.when_matched_delete(gone)
            .when_matched_update({"path": "s.path"}, predicate=f"not ({gone})")
            .when_not_matched_insert({"key": "s.key", "path": "s.path"}, predicate=f"not ({gone})")
            .execute()
        )

    def cold(self, key: str) -> str | None:
        """Open, and filter a scan."""
        return self.warm(key)

    def warm(self, key: str) -> str | None:
        """Do the same: no handle is faster."""
        from deltalake import DeltaTable

        return _first(DeltaTable(self._place).to_pyarrow_dataset().to_table(filter=ds.field("key") == key))

    def scan(self) -> int:
        """Read the table."""
        from deltalake import DeltaTable

        return int(DeltaTable(self._place).to_pyarrow_table().num_rows)


class Lance:
    """A Lance dataset, with an index on the key."""

    def __init__(self, folder: Path) -> None:
        self._place = str(folder / "lance")
        self._handle: Any = None

    def create(self, rows: pa.Table) -> None:
        """Write a dataset."""
        import lance

        self._handle = lance.write_dataset(rows, self._place)

    def index(self) -> None:
        """Index the key, which no load is charged for."""
        self._handle.create_scalar_index("key", "BTREE")

    def commit(self, key: str, path: str) -> None:
        """Append."""
        import lance

        lance.write_dataset(pa.table({"key": [key], "path": [path]}), self._place, mode="append")

    def merge(self, changes: Changes) -> None:
        """Merge what is set, delete what is deleted."""
        import lance

        dataset = lance.dataset(self._place)
        table = changes.table
        sets = table.filter(pc.is_valid(table.column("path")))
        dataset.merge_insert("key").when_matched_update_all().when_not_matched_insert_all().execute(sets)
        gone = table.filter(pc.is_null(table.column("path"))).select(["key"])
        dataset.merge_insert("key").when_matched_delete().execute(gone)

    def cold(self, key: str) -> str | None:
        """Open, and filter a scan."""
        import lance

        return _first(lance.dataset(self._place).to_table(filter=f"key = '{key}'"))

    def warm(self, key: str) -> str | None:
        """Filter a scan."""
        return _first(self._handle.to_table(filter=f"key = '{key}'"))

    def scan(self) -> int:
        """Read the dataset."""
        import lance

        return int(lance.dataset(self._place).to_table().num_rows)


def ducklake(folder: Path) -> tuple[Any, str]:
    """Return a DuckDB with a new DuckLake attached as ``lake``, and the statement that attaches it again."""
    import duckdb
    import duckdb_extension_ducklake

    attach = f"attach 'ducklake:{folder}/catalog.ducklake' as lake (data_path '{folder}/ducklake')"
    handle = duckdb.connect(config={"allow_unsigned_extensions": True})
    file = next(Path(next(iter(duckdb_extension_ducklake.__path__))).rglob("*.duckdb_extension"))
    handle.execute(f"load '{file}'")
    handle.execute(attach)
    return handle, attach


class DuckLake:
    """A table of a DuckLake, whose catalog is a DuckDB file."""

    def __init__(self, folder: Path) -> None:
        self._handle, self._attach = ducklake(folder)

    def create(self, rows: pa.Table) -> None:
        """Create a table of all rows."""
        self._handle.register("rows", rows)
        self._handle.execute("create table lake.catalog as select key, path from rows")

    def commit(self, key: str, path: str) -> None:
        """Insert."""
        self._handle.execute("insert into lake.catalog values (?, ?)", [key, path])

    def merge(self, changes: Changes) -> None:
        """Delete, then merge what is set, in one transaction: a merge of its own does one of both."""
        self._handle.register("changes", changes.table)
        self._handle.execute("begin")
        self._handle.execute("delete from lake.catalog where key in (select key from changes where path is null)")
        self._handle.execute(
            "merge into lake.catalog t using (select * from changes where path is not null) s on t.key = s.key "
            "when matched then update set path = s.path "
            "when not matched then insert (key, path) values (s.key, s.path)"
        )
        self._handle.execute("commit")

    def cold(self, key: str) -> str | None:
        """Attach the catalog again, and select."""
        self._handle.execute("detach lake")
        self._handle.execute(self._attach)
        return self.warm(key)

    def warm(self, key: str) -> str | None:
        """Select."""
        found = self._handle.execute("select path from lake.catalog where key = ?", [key]).fetchone()
        return None if found is None else str(found[0])

    def scan(self) -> int:
        """Select all, in key order."""
        return int(self._handle.execute("select key, path from lake.catalog order by key").to_arrow_table().num_rows)


class SQLite:
    """A table with a primary key."""

    def __init__(self, folder: Path) -> None:
        self._place = folder / "sqlite.db"
        self._handle = self._open()

    def _open(self) -> sqlite3.Connection:
        database = sqlite3.connect(self._place, isolation_level=None)
        database.execute("pragma journal_mode=wal")
        database.execute("pragma synchronous=full")
        return database

    def create(self, rows: pa.Table) -> None:
        """Insert all rows in one transaction."""
        self._handle.execute("create table catalog (key text primary key, path text) without rowid")
        self._handle.execute("begin")
        pairs = zip(*(column.to_pylist() for column in rows.columns), strict=True)
        self._handle.executemany("insert into catalog values (?, ?)", pairs)
        self._handle.execute("commit")

    def commit(self, key: str, path: str) -> None:
        """Insert."""
        self._handle.execute("insert or replace into catalog values (?, ?)", (key, path))

    def merge(self, changes: Changes) -> None:
        """Replace and delete, in one transaction."""
        self._handle.execute("begin")
        sets = [change for change in changes.rows if change[1] is not None]
        self._handle.executemany("insert or replace into catalog values (?, ?)", sets)
        gone = [(key,) for key, path in changes.rows if path is None]
        self._handle.executemany("delete from catalog where key = ?", gone)
        self._handle.execute("commit")

    def cold(self, key: str) -> str | None:
        """Connect and select."""
        database = sqlite3.connect(self._place)
        try:
            return _value(database, key)
        finally:
            database.close()

    def warm(self, key: str) -> str | None:
        """Select."""
        return _value(self._handle, key)

    def scan(self) -> int:
        """Select all."""
        return len(self._handle.execute("select key, path from catalog order by key").fetchall())


class LMDB:
    """A memory map, opened once: a process cannot open it twice."""

    def __init__(self, folder: Path) -> None:
        import lmdb

        self._handle = lmdb.open(str(folder / "lmdb"), map_size=16 << 30)

    def create(self, rows: pa.Table) -> None:
        """Put all rows, which are sorted, in one transaction."""
        pairs = zip(*(column.cast(pa.binary()).to_pylist() for column in rows.columns), strict=True)
        with self._handle.begin(write=True) as txn:
            txn.cursor().putmulti(pairs, append=True)

    def commit(self, key: str, path: str) -> None:
        """Put."""
        with self._handle.begin(write=True) as txn:
            txn.put(key.encode(), path.encode())

    def merge(self, changes: Changes) -> None:
        """Put and delete, in one transaction."""
        with self._handle.begin(write=True) as txn:
            for key, path in changes.rows:
                if path is None:
                    txn.delete(key.encode())
                else:
                    txn.put(key.encode(), path.encode())

    def cold(self, key: str) -> str | None:
        """Do as :meth:`warm`."""
        return self.warm(key)

    def warm(self, key: str) -> str | None:
        """Get."""
        with self._handle.begin() as txn:
            found = txn.get(key.encode())
            return None if found is None else bytes(found).decode()

    def scan(self) -> int:
        """Read all pairs."""
        with self._handle.begin() as txn:
            return len(list(txn.cursor()))


class BareArrow:
    """The floor: files like those of ours, as many, as large and in as many folders, by pyarrow alone."""

    _LEAF: Final = 114
    _LEVELS: Final = 3

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "bare"
        self._paths: list[Path] = []
        self._made: set[Path] = set()

    def create(self, rows: pa.Table) -> None:
        """Write slices."""
        batch = rows.combine_chunks().to_batches()[0]
        self._paths = [self._write(batch.slice(at, self._LEAF)) for at in range(0, len(batch), self._LEAF)]
        sync_filesystem(str(self._folder))

    def _write(self, rows: pa.RecordBatch) -> Path:
        path = self._folder / node_path()
        if path.parent not in self._made:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._made.add(path.parent)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
            writer.write_batch(rows)
        path.write_bytes(memoryview(sink.getvalue()))
        return path

    def _read(self, path: Path) -> pa.RecordBatch:
        return pa.ipc.open_file(pa.py_buffer(path.read_bytes())).get_batch(0)

    def commit(self, key: str, path: str) -> None:
        """Write a file of a row and give it its name, durably: what the root of a commit costs."""
        written = self._write(pa.record_batch({"key": [key], "path": [path]}))
        sync_path(str(written))
        name = self._folder / f"_root-{key.strip()[-12:]}"
        os.link(written, name)
        sync_path(str(self._folder))

    def merge(self, changes: Changes) -> None:
        """Read every leaf and write as many; what changes is not looked at."""
        del changes
        self._paths = [self._write(self._read(path)) for path in self._paths]
        sync_filesystem(str(self._folder))

    def cold(self, key: str) -> str | None:
        """Read as many files as a lookup does."""
        batch = None
        for level in range(self._LEVELS):
            batch = self._read(self._paths[(hash(key) + level) % len(self._paths)])
        return None if batch is None else str(batch.column(1)[0])

    def warm(self, key: str) -> str | None:
        """Do as :meth:`cold`."""
        return self.cold(key)

    def scan(self) -> int:
        """Read every leaf."""
        return sum(self._read(path).num_rows for path in self._paths)


def _first(found: pa.Table) -> str | None:
    return str(found.column("path")[0]) if found.num_rows else None


def _value(database: sqlite3.Connection, key: str) -> str | None:
    row = database.execute("select path from catalog where key = ?", (key,)).fetchone()
    return None if row is None else str(row[0])
