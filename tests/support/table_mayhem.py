"""Engines write tables, drop and purge them beside every job of maintenance: which row was where in which version.

Each row has a number of its own. Before a change a process notes the newest version and the rows that it adds and
deletes; after it, how it ended and the newest version then. So it is known of every version which rows it must hold
and which it may hold. Readers note what they find; :func:`judge` compares the two.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from duckdb import DuckDBPyConnection
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.table import Table
from requests.exceptions import ConnectionError as NotReached

from pipelines import clean as clean_job
from pipelines import compaction, tables_clean, tables_compact, tables_expire
from pipelines import expire as expire_job
from tests.support.engines import connected, sparked
from tests.support.icebergs import SCHEMA
from tests.support.mayhem import DAY, Log, chance_of, keep_errors
from trinitylake_core import Lakehouse
from trinitylake_core.clock import now_millis
from trinitylake_core.errors import TransactionExpired, TransactionNotFound, TrinityLakeError
from trinitylake_core.iceberg import TrinityLakeCatalog
from trinitylake_core.locations import parse
from trinitylake_core.rest import Served
from trinitylake_core.tables import area_path

NAMESPACE: Final = "race"
SHARED: Final = tuple(f"{NAMESPACE}.shared{number}" for number in range(3))
KEPT: Final = 4
"""Versions that an expiration leaves."""
ROOM: Final = 1_000_000
_ROWS: Final = 40
"""So many rows of one process in one table; beyond it deletes."""
_OWN: Final = 4
_PATIENT: Final = {"commit.retry.num-retries": "2", "commit.retry.min-wait-ms": "5", "commit.retry.max-wait-ms": "20"}
_KINDS: Final[tuple[dict[str, str], ...]] = (
    {},
    {"format-version": "1"},
    {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "2"},
    {"write.metadata.compression-codec": "gzip"},
)
"""Properties of tables in turn: old and merged manifests, metadata that are packed."""


@dataclass(frozen=True)
class Plan:
    """Where it takes place: the lakehouse, its storage options, its endpoints, what DuckDB and Spark are told."""

    root: str
    options: dict[str, Any]
    uris: list[str]
    attached: str = ""
    secret: str = ""
    spark: dict[str, str] = field(default_factory=dict)
    kept: int = KEPT

    def open(self) -> Lakehouse:
        """Open the lakehouse."""
        return Lakehouse.open(self.root, storage_options=self.options)

    def served(self, number: int) -> Served:
        """Return one of the endpoints."""
        return Served(self.uris[number % len(self.uris)], "none", "lake")


@dataclass
class Change:
    """What one commit does: rows that it adds, by table, rows that it deletes; tables that it makes or drops."""

    insert: dict[str, list[int]] = field(default_factory=dict)
    delete: list[int] = field(default_factory=list)
    create: str = ""
    drop: str = ""


def rows(numbers: Iterable[int], name: str = "name") -> pa.Table:
    """Return rows with these numbers, each with the text that belongs to it."""
    numbers = list(numbers)
    schema = pa.schema([SCHEMA.field("id"), SCHEMA.field("name").with_name(name)])
    return pa.table({"id": numbers, name: [f"n{number}" for number in numbers]}, schema)


# -- writers -------------------------------------------------------------------------------------------


class Refused(Exception):
    """The commit did not happen."""


@dataclass
class Writer:
    """A process that changes tables: those that all share, and some of its own."""

    plan: Plan
    seed: int
    log: Log
    chance: random.Random = field(init=False)
    next: int = field(init=False)
    held: dict[str, list[int]] = field(default_factory=dict)
    shared: tuple[str, ...] = SHARED

    def __post_init__(self) -> None:
        self.chance = chance_of(self.seed)
        self.next = self.seed * ROOM
        self.lake = self.plan.open()

    def numbers(self) -> list[int]:
        """Return new row numbers."""
        count = self.chance.randrange(1, 5)
        self.next += count
        return list(range(self.next - count, self.next))

    def some(self, table: str) -> list[int]:
        """Return rows of this process in a table."""
        mine = self.held.get(table, [])
        return self.chance.sample(mine, min(len(mine), self.chance.randrange(1, 4)))

    def own(self) -> list[str]:
        """Return the tables that only this process writes."""
        return [name for name in self.held if name not in self.shared]

    def begin(self, change: Change) -> dict[str, Any]:
        """Note a change before anything is done for it."""
        self.next += 1
        about = {"op": self.next, "from": self.lake.refresh().version, **vars(change)}
        self.log.note("intent", **about)
        return about

    def end(self, about: dict[str, Any], how: str, error: Exception | None = None) -> None:
        """Note how it ended."""
        version = self.lake.refresh().version if how == "done" else None
        told = {} if error is None else {"error": f"{type(error).__name__}: {error}"[:900]}
        self.log.note(how, op=about["op"], to=version, **told)
        if how != "refused":  # of rows with an unknown outcome this process touches nothing again
            gone = set(about["delete"])
            self.held = {name: [n for n in mine if n not in gone] for name, mine in self.held.items()}
        if how == "done":
            for name, numbers in about["insert"].items():
                self.held.setdefault(name, []).extend(numbers)
            if about["create"]:
                self.held.setdefault(about["create"], [])
        if about["drop"] and how != "refused":
            self.held.pop(about["drop"], None)

    def act(self, change: Change, commit: Callable[[], Any]) -> None:
        """Commit a change between two notes."""
        self.finish(self.begin(change), commit)

    def finish(self, about: dict[str, Any], commit: Callable[[], Any]) -> None:
        """Commit a change that was noted, and note how it ended."""
        try:
            commit()
        except (CommitFailedException, Refused) as error:
            self.end(about, "refused", error)
        except Exception as error:  # noqa: BLE001 - an endpoint that is killed shows itself in many ways
            self.end(about, "unknown", error)
            time.sleep(0.2)
        else:
            self.end(about, "done")

    def step(self) -> None:
        """Make one change."""
        own = self.own()
        table = self.chance.choice([*self.shared, *own])
        draw = self.chance.random()
        if len(own) < _OWN and draw < 0.2:
            self.create(f"{NAMESPACE}.t{self.seed}n{self.next}")
        elif own and draw < 0.3:
            self.drop(self.chance.choice(own))
        elif draw < 0.4:
            self.evolve(table)
        elif self.held.get(table) and (draw < 0.7 or len(self.held[table]) > _ROWS):
            self.rewrite(table, self.some(table))
        else:
            self.append(table, self.numbers())

    def create(self, name: str) -> None:
        """Create a table."""
        raise NotImplementedError

    def drop(self, name: str) -> None:
        """Drop or purge a table."""
        raise NotImplementedError

    def evolve(self, name: str) -> None:
        """Change the schema of a table."""
        raise NotImplementedError

    def append(self, name: str, numbers: list[int]) -> None:
        """Add rows."""
        raise NotImplementedError

    def rewrite(self, name: str, numbers: list[int]) -> None:
        """Delete rows, or put others in their place."""
        raise NotImplementedError


class ByPyIceberg(Writer):
    """PyIceberg, in this process or through an endpoint; now and then it lets a commit wait that it has written."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.waiting: list[tuple[dict[str, Any], Callable[[], Any]]] = []

    @cached_property
    def catalog(self) -> Catalog:
        """The catalog, over the lakehouse itself."""
        grouped = {"group-commits": "true"} if self.seed % 2 else {}
        return TrinityLakeCatalog.over(self.plan.open(), **grouped)

    def step(self) -> None:
        """Make one change, and commit one that waits now and then."""
        super().step()
        if self.waiting and self.chance.random() < 0.3:
            self.finish(*self.waiting.pop(0))

    def create(self, name: str) -> None:
        """Create a table, with rows or without."""
        properties = {**_PATIENT, **self.chance.choice(_KINDS)}
        if self.chance.random() < 0.5:
            change = Change(create=name)
            self.act(change, lambda: self.catalog.create_table(name, SCHEMA, properties=properties))
            return
        numbers = self.numbers()

        def staged() -> None:
            with self.catalog.create_table_transaction(name, SCHEMA, properties=properties) as transaction:
                transaction.append(rows(numbers))

        self.act(Change(insert={name: numbers}, create=name), staged)

    def drop(self, name: str) -> None:
        """Drop or purge a table."""
        act = self.chance.choice((self.catalog.drop_table, self.catalog.purge_table))
        self.act(Change(drop=name), lambda: act(name))

    def evolve(self, name: str) -> None:
        """Add a column; of a table of its own rename one, too."""

        def evolved() -> None:
            table = self.catalog.load_table(name)
            with table.update_schema() as update:
                if name not in self.shared and self.chance.random() < 0.5:
                    update.rename_column(table.schema().find_field(2).name, f"name{self.next}")
                elif len(table.schema().fields) < 12:
                    update.add_column(f"more{self.next}", table.schema().find_field(1).field_type)

        self.act(Change(), evolved)

    def append(self, name: str, numbers: list[int]) -> None:
        """Add rows to a table, or to two as one version; or write them now and commit them later."""
        draw = self.chance.random()
        if draw < 0.2 and isinstance(self.catalog, TrinityLakeCatalog):
            self._to_two(self.catalog, name, numbers)
        elif draw < 0.5:
            self._later(name, numbers)
        else:
            self.act(Change({name: numbers}), lambda: self._append(self.catalog.load_table(name), numbers))

    def rows_for(self, table: Table, numbers: list[int]) -> pa.Table:
        """Return rows with these numbers, as PyIceberg adds them to a table."""
        return rows(numbers, table.schema().find_field(2).name)

    def _append(self, table: Table, numbers: list[int]) -> None:
        table.append(self.rows_for(table, numbers))

    def _to_two(self, catalog: TrinityLakeCatalog, name: str, numbers: list[int]) -> None:
        other = self.chance.choice([each for each in self.shared if each != name])
        inserted = {name: numbers, other: self.numbers()}

        def both() -> None:
            with catalog.transaction() as txn:
                for each, added in inserted.items():
                    self._append(txn.load_table(each), added)

        self.act(Change(inserted), both)

    def _later(self, name: str, numbers: list[int]) -> None:
        about = self.begin(Change({name: numbers}))
        try:
            table = self.catalog.load_table(name)
            transaction = table.transaction()
            transaction.append(self.rows_for(table, numbers))
        except Exception as error:  # noqa: BLE001 - as above; nothing was committed
            self.end(about, "refused", error)
        else:
            self.waiting.append((about, transaction.commit_transaction))

    def rewrite(self, name: str, numbers: list[int]) -> None:
        """Delete rows, or overwrite them with others."""
        gone = f"id in ({', '.join(map(str, numbers))})"
        if self.chance.random() < 0.5:
            self.act(Change(delete=numbers), lambda: self.catalog.load_table(name).delete(gone))
            return
        new = self.numbers()

        def overwrite() -> None:
            table = self.catalog.load_table(name)
            table.overwrite(self.rows_for(table, new), overwrite_filter=gone)

        self.act(Change({name: new}, numbers), overwrite)


class ByRest(ByPyIceberg):
    """PyIceberg through an endpoint."""

    @cached_property
    def catalog(self) -> Catalog:
        """The catalog of an endpoint."""
        options = self.plan.options
        s3 = {"s3.access-key-id": options.get("key", ""), "s3.secret-access-key": options.get("secret", "")}
        while True:
            with suppress(NotReached):  # the endpoint was killed, and is not back yet
                return load_catalog("lake", type="rest", **self.plan.served(self.seed).properties(), **s3)
            time.sleep(0.1)


class BySql(Writer):
    """An engine that speaks SQL through an endpoint, and sees none of the columns that others add to a table."""

    text = ""
    """What it calls a column of text."""

    def served(self) -> Served:
        """Return the endpoint."""
        return self.plan.served(self.seed)

    def _run(self, change: Change, *statements: str) -> None:
        raise NotImplementedError

    def create(self, name: str) -> None:
        """Create a table."""
        self._run(Change(create=name), f"CREATE TABLE l.{name} (id BIGINT, name {self.text}){self.how()}")

    def how(self) -> str:
        """Return what else is said of a new table."""
        return ""

    def drop(self, name: str) -> None:
        """Drop a table. DuckDB asks for its files to be purged; Spark with PURGE would delete them by itself."""
        self._run(Change(drop=name), f"DROP TABLE l.{name}")

    def evolve(self, name: str) -> None:
        """Add a column to a table of its own: through SQL it cannot be seen how many there are."""
        if name not in self.shared:
            self._run(Change(), f"ALTER TABLE l.{name} ADD COLUMN more{self.next} BIGINT")

    def rewrite(self, name: str, numbers: list[int]) -> None:
        """Delete rows, or write them anew as they are."""
        those = f"WHERE id IN ({', '.join(map(str, numbers))})"
        if self.chance.random() < 0.5:
            self._run(Change(delete=numbers), f"DELETE FROM l.{name} {those}")
        else:
            self._run(Change(), f"UPDATE l.{name} SET name = concat('n', id) {those}")


class ByDuckDB(BySql):
    """DuckDB through an endpoint; it deletes by position, and commits what it wrote some time ago.

    Not to a table of format version 1: its manifest lists say of all older manifests there that they hold no files,
    and the next append of PyIceberg leaves these out.
    """

    text = "VARCHAR"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.shared = SHARED[1:]

    def _run(self, change: Change, *statements: str) -> None:
        def run() -> None:
            with connected(self.served(), more=self.plan.attached) as connection:
                if self.plan.secret:
                    connection.execute(self.plan.secret)
                _in_one(connection, statements, self.chance.random() * 2 * (self.chance.random() < 0.3))

        self.act(change, run)

    def append(self, name: str, numbers: list[int]) -> None:
        """Add rows by two statements of one transaction."""
        values = [f"INSERT INTO l.{name} (id, name) VALUES ({number}, 'n{number}')" for number in numbers]
        self._run(Change({name: numbers}), *values[:2], *values[2:])


class BySpark(BySql):
    """Spark through an endpoint: copy on write and merge on read in turn. Its first breath takes long."""

    text = "STRING"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._running = ExitStack()
        self.run = self._running.enter_context(sparked(self.served(), **self.plan.spark))

    def _run(self, change: Change, *statements: str) -> None:
        def run() -> None:
            try:
                for each in statements:
                    self.run(each)
            except RuntimeError as error:
                unknown = "CommitStateUnknown" in str(error)
                if not unknown and ("CommitFailedException" in str(error) or "ValidationException" in str(error)):
                    raise Refused(str(error)) from error
                raise

        self.act(change, run)

    def how(self) -> str:
        """Rewrite whole files, or write files of deletes."""
        how = self.chance.choice(("copy-on-write", "merge-on-read"))
        properties = ", ".join(f"'write.{each}.mode'='{how}'" for each in ("delete", "update", "merge"))
        return f" USING iceberg TBLPROPERTIES ({properties})"

    def append(self, name: str, numbers: list[int]) -> None:
        """Add rows, by their names: others add columns."""
        values = ", ".join(f"({number}, 'n{number}')" for number in numbers)
        self._run(Change({name: numbers}), f"INSERT INTO l.{name} (id, name) VALUES {values}")


def _in_one(connection: DuckDBPyConnection, statements: Iterable[str], wait: float) -> None:
    connection.execute("BEGIN")
    for each in statements:
        connection.execute(each)
    time.sleep(wait)
    try:
        connection.execute("COMMIT")
    except Exception as error:
        if "409" in str(error) or "Conflict" in str(error):
            raise Refused(str(error)) from error
        raise


# -- maintenance ---------------------------------------------------------------------------------------


def keep(plan: Plan, chance: random.Random) -> None:
    """Do one job of maintenance, of those that delete with an age of zero."""
    lake, later = plan.open(), now_millis() + 30 * DAY

    def snapshot() -> None:
        lake.create_snapshot(f"s{time.monotonic_ns():x}")
        for old in lake.refresh().snapshots()[: -(KEPT // 2)]:
            lake.refresh().drop_snapshot(old.name)

    def clean() -> None:
        tables_clean.run(lake, tables_clean.Config(engine="local", older_than_seconds=0, allow_recent=True))

    def expire() -> None:
        expire_job.run(lake, expire_job.Config(engine="local", keep_last=plan.kept, now_millis=later))

    def merge() -> None:
        """Merge small files, with the rows proved one by one; what writers come before is left for the next time."""
        settings = tables_compact.Settings(prove="hash")
        tables_compact.run(lake, tables_compact.Config(engine="local", settings=settings))

    jobs: tuple[Callable[[], object], ...] = (
        lambda: compaction.run(lake, compaction.Config(engine="local")),
        merge,
        merge,
        snapshot,
        expire,
        expire,
        clean,
        clean,
        clean,
        lambda: tables_expire.run(lake, tables_expire.Config(older_than_seconds=0, keep_last=2)),
        lambda: clean_job.run(lake, clean_job.Config(engine="local", older_than_seconds=0, allow_recent=True)),
    )
    chance.choice(jobs)()


# -- reading -------------------------------------------------------------------------------------------


def places(lake: Lakehouse) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield every version that is retained, and how to open it."""
    for version in range(lake.root_node.oldest_version, lake.version + 1):
        yield version, {"version": str(version)}
    for each in lake.snapshots():
        yield each.version, {"snapshot": each.name}


def contents(lake: Lakehouse, **at: str) -> Iterator[tuple[str, list[int]]]:
    """Yield the rows of each table in a version; all its older snapshots are read, too."""
    catalog = TrinityLakeCatalog.over(lake, **at)
    for identifier in _identifiers(catalog):
        table = catalog.load_table(identifier)
        yield ".".join(identifier), _numbers(table, None)
        for snapshot in table.metadata.snapshots[:-1]:
            _numbers(table, snapshot.snapshot_id)


def _identifiers(catalog: Catalog) -> list[tuple[str, ...]]:
    return catalog.list_tables(NAMESPACE) if catalog.namespace_exists(NAMESPACE) else []


def _numbers(table: Table, snapshot: int | None) -> list[int]:
    found = table.scan(snapshot_id=snapshot).to_arrow()
    numbers: list[int] = found[0].to_pylist()
    if [f"n{number}" for number in numbers] != found[1].to_pylist():
        raise AssertionError(f"the columns of {table.name()} do not fit together")
    return sorted(numbers)


def read(plan: Plan, chance: random.Random, log: Log) -> None:
    """Read a retained version as a whole, and note it; what fails although it is retained still, too."""
    lake = plan.open()
    version, at = chance.choice([*places(lake)])
    try:
        log.note("read", version=version, tables=dict(contents(lake, **at)))
    except Exception as error:  # noqa: BLE001 - whatever it is, the version must be gone
        if at in [there for _, there in places(plan.open())]:
            log.note("wrong", version=version, at=at, error=f"{type(error).__name__}: {error}")
        else:
            log.note("expired", version=version)


# -- judging -------------------------------------------------------------------------------------------


@dataclass
class Judged:
    """What the logs say, and what is wrong with it."""

    ended: dict[str, int] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    reads: int = 0
    rows: int = 0
    wrong: list[str] = field(default_factory=list)


class History:
    """What every version must hold, and may hold, by the notes of the writers."""

    def __init__(self, lines: list[dict[str, Any]], shared: Sequence[str] = SHARED) -> None:
        self.judged = Judged()
        self._shared = shared
        self._ops = {line["op"]: {**line, "how": "unknown", "to": None} for line in lines if line["what"] == "intent"}
        self._table: dict[int, str] = {}
        self._numbers: dict[str, set[int]] = {}
        self._made: dict[object, dict[str, Any]] = {}
        self._unmade: dict[object, list[dict[str, Any]]] = {}
        for line in lines:
            if line["what"] in {"done", "refused", "unknown"} and line.get("op") in self._ops:
                self._ops[line["op"]] |= {"how": line["what"], "to": line["to"]}
                if "error" in line:
                    _count(self.judged.errors, f"{line['what']}: {line['error'][:60]}")
        for op in self._ops.values():
            _count(self.judged.ended, op["how"])
            self._note(op)

    def _note(self, op: dict[str, Any]) -> None:
        for table, numbers in op["insert"].items():
            self._table |= dict.fromkeys(numbers, table)
            self._numbers.setdefault(table, set()).update(numbers)
            self._made |= dict.fromkeys(numbers, op)
        if op["create"]:
            self._made[op["create"]] = op
        for what in (*op["delete"], op["drop"]):
            self._unmade.setdefault(what, []).append(op)

    def _must(self, what: object, version: int) -> bool:
        unmade = all(op["how"] == "refused" or version <= op["from"] for op in self._unmade.get(what, ()))
        return unmade and _surely(self._made[what], version)

    def _may(self, what: object, version: int) -> bool:
        op = self._made.get(what)
        if op is None or op["how"] == "refused" or version <= op["from"]:
            return False
        return not any(_surely(each, version) for each in self._unmade.get(what, ()))

    def compare(self, version: int, tables: dict[str, list[int]]) -> None:
        """Compare what a version holds with what was told."""
        self.judged.reads += 1
        mine = [each for each in tables if each not in self._shared]
        wrong = [f"{each} may not be there" for each in mine if not self._may(each, version)]
        created = {each for each in self._made if isinstance(each, str)}
        wrong += [f"{each} is missing" for each in created - {*mine} if self._must(each, version)]
        for table, numbers in tables.items():
            self.judged.rows += len(numbers)
            found = set(numbers)
            if len(found) < len(numbers):
                wrong.append(f"rows of {table} are there twice")
            strange = [n for n in found if self._table.get(n) != table or not self._may(n, version)]
            known = self._numbers.get(table, set())
            lost = [n for n in known - found if self._must(n, version)]
            wrong += [f"{table} may not hold {n}: {self._made.get(n)}" for n in strange]
            wrong += [f"{table} lost {n}: {self._made[n]}, {self._unmade.get(n)}" for n in lost]
            wrong += self._halves(table, known, found, version)
        self.judged.wrong += [f"version {version}: {each}" for each in wrong]

    def _halves(self, table: str, numbers: set[int], found: set[int], version: int) -> Iterator[str]:
        """Yield commits of which a version holds only a part of the rows that nothing deleted."""
        for op in {op["op"]: op for number in numbers if (op := self._made[number])}.values():
            left = {n for n in op["insert"][table] if n not in self._unmade}
            if 0 < len(left & found) < len(left):
                yield f"{table} holds only {left & found} of {left}"


def _surely(op: dict[str, Any], version: int) -> bool:
    return op["how"] == "done" and version >= int(op["to"])


def _count(counts: dict[str, int], name: str) -> None:
    counts[name] = counts.get(name, 0) + 1


def lines_of(logs: Iterable[Path]) -> list[dict[str, Any]]:
    """Return what all processes noted; of the last line of one that was killed, nothing if it is not whole."""
    found = []
    for log in logs:
        for text in log.read_text(encoding="utf-8").splitlines():
            with suppress(ValueError):
                found.append(json.loads(text))
    return found


def reachable(lake: Lakehouse) -> set[str]:
    """Return the files of the area that the metadata of retained versions refer to, as PyIceberg reads them."""
    found: set[str] = set()
    for _, at in places(lake):
        catalog = TrinityLakeCatalog.over(lake, **at)
        for identifier in _identifiers(catalog):
            table = catalog.load_table(identifier)
            found.add(table.metadata_location)
            for snapshot in table.metadata.snapshots:
                found.add(snapshot.manifest_list)
                for manifest in snapshot.manifests(table.io):
                    found.add(manifest.manifest_path)
                    found |= {each.data_file.file_path for each in manifest.fetch_manifest_entry(table.io)}
    return {path for uri in found if (path := area_path(lake.root, uri)) is not None}


def end_holds(lake: Lakehouse) -> None:
    """End what compactions of tables that were killed hold: it keeps each file that is younger, for a day.

    Which of them have ended by themselves, and are only listed until `clean` removes them, is a question of speed.
    """
    for info in lake.storage.list():
        found = parse(info.path)
        if found is not None and found.kind == "transaction" and found.id is not None:
            with suppress(TransactionNotFound, TransactionExpired):
                lake.resume_transaction(found.id).abort()


# -- a process -----------------------------------------------------------------------------------------

WRITERS: Final[dict[str, type[Writer]]] = {"direct": ByPyIceberg, "rest": ByRest, "duckdb": ByDuckDB, "spark": BySpark}


def serve(plan: Plan, number: int, log: Path) -> None:
    """Serve the lakehouse until this process is killed."""
    from pipelines.cli.app import main
    from trinitylake_core.transactions import requests

    vars(requests)["_AHEAD_MILLIS"] = 0  # one clock here, and versions expire that were made a moment ago
    keep_errors(log)
    options = [word for name, value in plan.options.items() for word in ("--storage-option", f"{name}={value}")]
    main(["serve", plan.root, "--name", "lake", "--port", plan.uris[number].split(":")[-1], *options])


def live(plan: Plan, role: str, seed: int, path: Path) -> None:
    """Act until this process is killed. Refusals are noted; an error that is none of ours ends it."""
    keep_errors(path)
    log, chance = Log(path), chance_of(seed)
    writer = WRITERS[role](plan, seed, log) if role in WRITERS else None
    while True:
        try:
            if writer is not None:
                writer.step()
            elif role == "reader":
                read(plan, chance, log)
            else:
                keep(plan, chance)
        except (TrinityLakeError, CommitStateUnknownException) as error:
            log.note("failed", role=role, error=f"{type(error).__name__}: {error}"[:300])
