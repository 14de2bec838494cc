"""The engine ``spark``, the one way into Spark tasks and back: rows are spread, mapped with open storages, collected.

Work enters tasks by :func:`map_batches`, and what waits for tasks is a method of :class:`SparkRows`. So every task
opens a storage once, finds these packages, and hands its rows on in pieces of bounded size, and an error of this
library that a task raised arrives at the driver as itself. Only the DataFrame API is used: all of it works over
Spark Connect.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, cached_property, partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO, TypeAlias, TypeVar
from uuid import uuid4
from zipimport import zipimporter

import pyarrow as pa

from pipelines.engine.counting import only_row
from pipelines.engine.model import (
    BINARY,
    BOOL,
    INT,
    LONG,
    READ_AHEAD,
    TEXT,
    FoundRow,
    GroupWork,
    Kept,
    MadeRow,
    Row,
    Rows,
    Table,
    Work,
    name_table,
    named_tables,
    place_names,
)
from pipelines.session import compat, is_connect, on_one_machine, session_parallelism, ship_packages
from trinitylake_core import errors
from trinitylake_core.errors import InvalidInput, StorageDenied, StorageError
from trinitylake_core.storage import Storage, open_storage
from trinitylake_core.storage.store_errors import WITHOUT_KEYS

if TYPE_CHECKING:  # the command line must not wait for pyspark where no Spark runs
    from pyspark.sql import DataFrame, SparkSession

_LOG = logging.getLogger(__name__)
Batches: TypeAlias = Iterator[pa.RecordBatch]
_PER_CORE: Final = 3
"""Tasks per core: some are slower than others, and a core that is done takes the next one."""
_MOST_PER_CORE: Final = 8
_MUCH: Final = 8
"""So many times what keeps one task busy is much: a task itself costs a tenth of a second of CPU, or two."""
_SQL: Final = {TEXT: "string", BINARY: "binary", INT: "int", LONG: "bigint", BOOL: "boolean"}
_WEIGHT: Final = 8_192
_GROUP_ROWS: Final = 64
"""Rows of what became of a group that are handed on at once: they hold many objects each."""
_MOST_QUERIES: Final = 12
"""How many queries the plan of a kept frame may contain."""
_COPIES: Final = 2
"""On so many machines of a cluster rows are kept that cannot be made again: a machine may be lost at any time."""
_TEXTS: Final = 3
"""About so often the text of a plan contains that of a kept one, before and after Spark has adapted it."""
_RAISED: Final = re.compile(r"^(?:trinitylake_core\.errors\.)(\w+): (.*)$", re.MULTILINE)
_MISSING: Final = re.compile(r"No module named '([\w.]+)'|\[PACKAGE_NOT_INSTALLED\] (\w+)")
_SPARKS: Final = frozenset({"pyspark", "py4j", "grpc"})
_RUN_AGAIN: Final = "What was committed before is proved, and stays; run it again"
_LOST: Final = {
    re.compile(r"CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND|Checkpoint block rdd_\w+ not found"): (
        "machines of the cluster were lost, and with them rows that cannot be made a second time"
    ),
    re.compile(r"No space left on device"): "the disk of a machine of the cluster is full",
    re.compile(  # the second is what a stage says that waits for rows of lost executors
        r"([\w.:-]+) executor \w+\): ExecutorLostFailure|has failed the maximum allowable number of times"
    ): "machines of the cluster were lost again and again",
    re.compile(
        r"Master removed our application|All masters are unresponsive|SparkContext was shut down|stopped SparkContext"
        r"|NO_ACTIVE_SESSION|SESSION_CHANGED|StatusCode.UNAVAILABLE"
    ): "the cluster, or the session there, has ended",
    re.compile(
        r"Py4JNetworkError|^Connection\w*Error|^EOFError|Answer from Java side is empty|does not exist in the JVM"
    ): ("the Java process of Spark has ended: it was killed, or had no memory left"),
}
"""What Spark says where it lost something, and what that means. A group is the machine."""
T = TypeVar("T")


# -- schemas ---------------------------------------------------------------------------------------------


def ddl(schema: pa.Schema) -> str:
    """Return an Arrow schema in the words of Spark SQL. Raises ``KeyError`` for a type that no job uses."""
    return ", ".join(f"`{each.name}` {_sql(each.type)}" for each in schema)  # it may be a word of SQL, as "table" is


def _sql(kind: pa.DataType) -> str:
    if pa.types.is_map(kind):
        return f"map<{_sql(kind.key_type)}, {_sql(kind.item_type)}>"
    if pa.types.is_list(kind):
        return f"array<{_sql(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'`{each.name}`: {_sql(each.type)}' for each in kind)}>"
    return _SQL[kind]


# -- to the tasks ----------------------------------------------------------------------------------------


def count_tasks(rows: int, each: int, cores: int) -> int:
    """Return how many tasks rows are worth, where one does well with ``each``: smaller ones where there are many rows.

    The smaller the last task is the less the others wait for it, and for the first one of an executor: that begins
    when Python has started there.
    """
    few = min(_PER_CORE * cores, -(-rows // each))
    many = min(_MOST_PER_CORE * cores, rows // (_MUCH * each))
    return max(1, few, many)


def map_batches(frame: DataFrame, work: Callable[..., Batches], schema: pa.Schema, *storages: Storage) -> DataFrame:
    """Return a frame of all that ``work(batches, *storages)`` yields in the tasks; each opens the storages once.

    Options of a storage may be secrets: they travel in the function, never in rows or query plans. For the same
    reason, and because it is sent to the tasks, ``work`` itself must hold neither a storage nor a session.
    """
    ship_packages(frame.sparkSession)
    specs = [storage.spec() for storage in storages]

    def task(batches: Iterable[Any]) -> Batches:
        with _idle_afterwards():
            yield from work(iter(batches), *(open_storage(*spec) for spec in specs))

    return frame.mapInArrow(task, ddl(schema))


@contextmanager
def _idle_afterwards() -> Iterator[None]:
    """Let the process of a task print nothing between two tasks, and read no archive again before the next one.

    All that it prints then is that Java closed its connection, as a traceback: each time that Spark stops, if the
    process notices before it is killed. What fails in a task goes to the driver by that connection.
    """
    sys.stderr = sys.__stderr__
    try:
        yield
    finally:
        sys.stderr = _nowhere()
        _forget_finders()


def _forget_finders() -> None:
    """Let Python make the finders of archives again where it needs them, from the contents that it knows.

    Spark asks all of them before each task whether anything is new, and each one of dozens reads its archive then.
    """
    for place, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter):
            del sys.path_importer_cache[place]


@cache
def _nowhere() -> TextIO:
    """Return the null device, opened once a process: a worker carries out thousands of tasks."""
    return Path(os.devnull).open("w", encoding="utf-8")


def storage_of_tasks(spark: SparkSession, storage: Storage) -> Storage:
    """Return a storage for tasks that write: one without barriers where the next one of this process covers theirs."""
    return storage.without_barriers() if on_one_machine(spark) else storage


def rows_of(batches: Iterable[pa.RecordBatch]) -> Iterator[FoundRow]:
    """Yield the rows of batches, a few as Python objects at a time."""
    for batch in batches:
        for start in range(0, batch.num_rows, READ_AHEAD):
            yield from batch.slice(start, READ_AHEAD).to_pylist()


# -- back from the tasks ---------------------------------------------------------------------------------


def refuse_missing_module(text: str) -> None:
    """Raise ``InvalidInput`` if Spark failed because a module is missing where its tasks run."""
    missing = _MISSING.search(text)
    if missing is not None:
        module = missing[1] or missing[2].lower()
        raise InvalidInput(
            f"the Python that runs the tasks of Spark has no module {module!r}: executors need the packages that this "
            "program needs, as an image, an archive, or a Python that has them (spark.pyspark.python); "
            "see docs/production.md"
        )


def is_of_spark(error: Exception) -> bool:
    """Whether an error is one of Spark, or of the connection to its Java process, on which no request travels."""
    return isinstance(error, ConnectionError | EOFError) or type(error).__module__.partition(".")[0] in _SPARKS


@contextmanager
def raise_own_errors() -> Iterator[None]:
    """Raise the error that a task raised, if it is one of this library: it names the next command for the user.

    Raises ``StorageError`` where Spark lost what it worked with: a machine, its disk, or its own process.
    """
    try:
        yield
    except Exception as error:
        if not is_of_spark(error):
            raise
        text = f"{type(error).__name__}:\n{error}"
        refuse_missing_module(text)
        _raise_own(text, error)
        for kind, cause in _LOST.items():
            found = kind.search(text)
            if found is not None:
                where = ", ".join(found.groups(""))
                raise StorageError(f"{cause}{where and f' ({where})'}. {_RUN_AGAIN}") from error
        raise


def _raise_own(text: str, error: Exception) -> None:
    """Raise the error of this library in the message of one of Spark, if there is one."""
    found = _RAISED.search(text)
    kind = getattr(errors, found[1], None) if found is not None else None
    if found is None or not (isinstance(kind, type) and issubclass(kind, errors.TrinityLakeError)):
        return
    message = found[2]
    if kind is StorageDenied and WITHOUT_KEYS in message:
        message = (
            f"{message.removesuffix(WITHOUT_KEYS)}A task of Spark said this: its executor lacks the credentials "
            "that this process has. Pass key and secret as storage options, which travel to the tasks, or give each "
            "executor a role, a profile or the environment variables; see docs/production.md"
        )
    raise kind(message) from error


# -- the engine ------------------------------------------------------------------------------------------


class SparkRows:
    """Rows in a DataFrame; see :class:`pipelines.engine.model.Rows`. Each method raises what a task raised."""

    def __init__(
        self,
        frame: DataFrame,
        kept: list[DataFrame] | None = None,
        given: Sequence[Row] | None = None,
        schema: pa.Schema | None = None,
        *,
        held: DataFrame | None = None,
        is_computed: bool = False,
        queries: int = 0,
    ) -> None:
        """Stand for a frame; ``given`` are its rows, of ``schema``, if they came from the driver.

        ``kept`` are the frames that the engine drops when it is closed, ``held`` is the one of them that has the rows
        of this one, and ``is_computed`` says that it was computed when it was made. ``queries`` is how many queries the
        plan of the frame contains.
        """
        self.frame = frame
        self.queries = queries
        self.is_computed = is_computed
        self._held = held
        self._kept = [] if kept is None else kept
        self.given = given
        self._schema = schema
        self._count = None if given is None else len(given)

    def stream(self, *, few: bool = False) -> Iterator[FoundRow]:
        """Yield all rows, one partition in memory at a time; before the first one comes all tasks are done.

        Spark's iterator runs a job for each partition, one after the other: rows that were not computed before would
        be made by one task at a time, whatever the cluster has. A ``few`` rows cost one job.
        """
        if few:
            yield from self.list()
            return
        kept = self if self._held is not None else self.keep(repeatable=True)
        if not kept.is_computed:
            kept.count()
        with raise_own_errors():
            for row in kept.frame.toLocalIterator():
                yield row.asDict(recursive=True)
        if kept is not self:
            kept.drop()

    def list(self) -> list[FoundRow]:
        """Return all rows."""
        with raise_own_errors():
            return compat.rows_of(self.frame)

    def one(self) -> FoundRow:
        """Return the only row."""
        return only_row(self.list())

    def count(self) -> int:
        """Return the number of rows; they are counted once."""
        if self._count is None:
            with raise_own_errors():
                self._count = self.frame.count()
        return self._count

    def learn_count(self, count: int) -> None:
        """Take note of the number of rows."""
        self._count = count

    def keep(self, key: str = "", *, repeatable: bool = False, progress: Kept | None = None) -> SparkRows:
        """Return the rows as kept on the disks of the executors: now, or ``repeatable`` ones when they are computed.

        Spark would keep them on the heap until that is full, so that a job of ten times the versions looked like one
        that leaks. Rows that are kept now are never computed a second time: so two machines have each of them. Where
        the plan of repeatable rows has become long it is cut off; over Spark Connect, which cannot, they are kept now.
        """
        if repeatable and self.given is not None:
            return self
        has_long_plan = self.queries > _MOST_QUERIES
        session = self.frame.sparkSession
        may_be_repeated = repeatable and not (has_long_plan and is_connect(session))
        with raise_own_errors():
            if may_be_repeated:
                held = compat.held_until_lost(self.frame)
            else:
                held = compat.computed_once(self.frame, copies=1 if on_one_machine(session) else _COPIES)
            self._kept.append(held)
            if not may_be_repeated:
                return SparkRows(held, self._kept, held=held, is_computed=True)
            if has_long_plan:
                return SparkRows(compat.without_plan(held), self._kept, held=held)
        return SparkRows(held, self._kept, held=held, queries=_TEXTS * (self.queries + 1))

    def drop(self) -> None:
        """Let go of the rows."""
        if self._held is not None:
            self._held.unpersist()

    def dealt(self, spark: SparkSession, each: int) -> DataFrame:
        """Return the rows in as many tasks as they are worth, where one does well with ``each``; at least one."""
        tasks = count_tasks(self.count(), each, session_parallelism(spark))
        if self.given is None or self._schema is None:
            return self.frame.repartition(tasks)
        numbered = []
        for index, row in enumerate(self.given):  # what neighbours read, the next one often needs
            task = index * tasks // len(self.given)
            numbered.append({**row, "task": task})
        frame = _frame(spark, numbered, self._schema.append(pa.field("task", INT)))
        return compat.by_group(frame, tasks, "task").select(self._schema.names)


class SparkEngine:
    """Tables are DataFrames, and work is done in tasks; see :class:`pipelines.engine.model.Engine`."""

    name = "spark"

    def __init__(self, start: Callable[[], SparkSession]) -> None:
        self._start = start
        self._views: list[str] = []
        self._kept: list[DataFrame] = []

    @cached_property
    def _spark(self) -> SparkSession:
        spark = self._start()
        session_parallelism(spark)  # by it a query has its number of partitions: Spark's own is 200
        return spark

    def not_counted(self, requests: int) -> int:
        """Return all: tasks have storages of their own."""
        return requests

    @raise_own_errors()
    def map(self, work: Work, rows: Rows, schema: pa.Schema, *storages: Storage, each: int = READ_AHEAD) -> SparkRows:
        """Return the result of ``work`` on rows in tasks; a table that comes from a query is counted first."""
        source = _spark_rows(rows)
        frame = source.dealt(self._spark, each)
        made = map_batches(frame, partial(_work_as_batches, work, schema), schema, *storages)
        return SparkRows(made, self._kept, queries=source.queries)

    def tasks(self, wanted: int | None = None) -> int:
        """Return so many as are ``wanted``, or else as many as keep the session busy."""
        return wanted or _PER_CORE * session_parallelism(self._spark)

    @raise_own_errors()
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
    ) -> SparkRows:
        """Return the result of each group, made in a task of its own."""
        progress(0, None)
        found = _spark_rows(rows)
        if found.given is None:
            groups = self.sql(f"SELECT coalesce(max({by}), 0) + 1 AS groups FROM rows", rows=rows).one()["groups"]
        else:
            groups = max((row[by] for row in found.given), default=0) + 1
        frame = compat.by_group(found.frame, groups, by)
        to = [storage_of_tasks(self._spark, storage) for storage in storages]
        return SparkRows(map_batches(frame, partial(_group_as_batches, work, schema), schema, *to), self._kept).keep()

    @raise_own_errors()
    def table(self, rows: Iterable[Row], schema: pa.Schema) -> SparkRows:
        """Return rows of the driver as a table."""
        given = list(rows)
        return SparkRows(_frame(self._spark, given, schema), self._kept, given, schema)

    @raise_own_errors()
    def sql(self, query: str, **tables: Table) -> SparkRows:
        """Return the result of a query of tables."""
        placed_in = {name: name_table(table, self._view) for name, table in tables.items()}
        queries = 1
        for name in named_tables(query):
            table = tables[name]
            parts = table if isinstance(table, Sequence) else [table]
            queries += sum(_spark_rows(part).queries for part in parts)
        return SparkRows(self._spark.sql(place_names(query, placed_in)), self._kept, queries=queries)

    def _view(self, rows: Rows) -> str:
        name = f"rows_{uuid4().hex}"
        _spark_rows(rows).frame.createOrReplaceTempView(name)
        self._views.append(name)
        return name

    def close(self) -> None:
        """Let go of the rows that were kept, and then forget the views, which frames of Spark Connect name.

        Where the session has ended nothing is kept any more; an error that ended it must not be hidden by another one.
        """
        try:
            for frame in self._kept:
                frame.unpersist()
            for name in self._views:
                self._spark.catalog.dropTempView(name)
        except Exception as error:
            if not is_of_spark(error):
                raise
            _LOG.warning("Spark could not let go of what a job kept: %s", str(error).partition("\n")[0])
        self._views.clear()
        self._kept.clear()


def _frame(spark: SparkSession, rows: Sequence[Row], schema: pa.Schema) -> DataFrame:
    return compat.frame_of(spark, pa.Table.from_pylist(list(rows), schema=schema), ddl(schema))


def _spark_rows(rows: Rows) -> SparkRows:
    if not isinstance(rows, SparkRows):
        raise TypeError("these rows are of another engine")
    return rows


def _group_as_batches(work: GroupWork, schema: pa.Schema, batches: Batches, *storages: Storage) -> Batches:
    """Yield the result of the group of a task, if it has one. The task ends when what the work wrote is durable."""
    rows = list(rows_of(batches))
    for made in work([rows] if rows else [], *storages):
        yield from _as_batches(iter(made), schema, _GROUP_ROWS)
    for storage in storages:
        storage.barrier()


def _work_as_batches(work: Work, schema: pa.Schema, batches: Batches, *storages: Storage) -> Batches:
    return _as_batches(iter(work(rows_of(batches), *storages)), schema, _WEIGHT)


def _as_batches(remaining: Iterator[MadeRow], schema: pa.Schema, each: int) -> Batches:
    while some := list(islice(remaining, each)):
        columns = zip(*some, strict=True)
        arrays = [pa.array(column, each.type) for column, each in zip(columns, schema, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
