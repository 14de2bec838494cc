"""The engine ``spark``, the one way into Spark tasks and back: rows are spread, mapped with open storages, collected.

Code that works in tasks calls :func:`map_batches` or :func:`map_rows`, and code that waits for tasks calls
:func:`collect`, :func:`collect_one`, :func:`stream`, :func:`count` or :func:`checkpointed`. So every task opens a
storage once, finds these packages, and hands its rows on in pieces of bounded weight, and an error of this library
that a task raised arrives at the driver as itself. Only the DataFrame API is used: all of it works over Spark Connect.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, cached_property, partial
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO, TypeAlias, TypeVar
from uuid import uuid4

import pyarrow as pa

from pipelines.engine.model import (
    BINARY,
    BOOL,
    INT,
    LONG,
    READ_AHEAD,
    TEXT,
    GroupWork,
    Kept,
    PieceWork,
    Row,
    Rows,
    Work,
    placed,
)
from pipelines.session import compat, on_one_machine, session_parallelism, ship_packages
from trinitylake_core import errors
from trinitylake_core.errors import InvalidInput
from trinitylake_core.storage import Storage, open_storage

if TYPE_CHECKING:  # the command line must not wait for pyspark where no Spark runs
    from pyspark.sql import DataFrame, SparkSession

Batches: TypeAlias = Iterator[pa.RecordBatch]
_PER_CORE: Final = 3
"""Tasks per core: some are slower than others, and a core that is done takes the next one."""
_SQL: Final = {TEXT: "string", BINARY: "binary", INT: "int", LONG: "bigint", BOOL: "boolean"}
_WEIGHT: Final = 8_192
_GROUP_ROWS: Final = 64
"""Rows of what became of a group that are handed on at once: they hold many objects each."""
_PIECE: Final = pa.field("piece", INT)
_RAISED: Final = re.compile(r"^(?:trinitylake_core\.errors\.)(\w+): (.*)$", re.MULTILINE)
_MISSING: Final = re.compile(r"No module named '([\w.]+)'|\[PACKAGE_NOT_INSTALLED\] (\w+)")
T = TypeVar("T")


# -- schemas ---------------------------------------------------------------------------------------------


def ddl(schema: pa.Schema) -> str:
    """Return an Arrow schema in the words of Spark SQL. Raises ``KeyError`` for a type that no job uses."""
    return ", ".join(f"{each.name} {_sql(each.type)}" for each in schema)


def _sql(kind: pa.DataType) -> str:
    if pa.types.is_map(kind):
        return f"map<{_sql(kind.key_type)}, {_sql(kind.item_type)}>"
    if pa.types.is_list(kind):
        return f"array<{_sql(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{each.name}: {_sql(each.type)}' for each in kind)}>"
    return _SQL[kind]


# -- to the tasks ----------------------------------------------------------------------------------------


def slots(spark: SparkSession, per_core: int = _PER_CORE) -> int:
    """Return the number of tasks that keep the session busy; at least one."""
    return per_core * session_parallelism(spark)


def tasks_for(spark: SparkSession, items: int, each: int = READ_AHEAD) -> int:
    """Return the number of tasks for so many items when one task does well with ``each``; at least one."""
    return max(1, min(slots(spark), -(-items // each)))


def table(spark: SparkSession, rows: Sequence[Row], schema: pa.Schema) -> DataFrame:
    """Return rows of the driver as a frame."""
    return compat.frame_of(spark, pa.Table.from_pylist(list(rows), schema=schema), ddl(schema))


def spread(
    spark: SparkSession, rows: Sequence[Row], schema: pa.Schema, tasks: int, number: Callable[[int], int] | None = None
) -> DataFrame:
    """Return rows of the driver as a frame of so many tasks: dealt out one by one, or to task ``number(index)``."""
    number = number or (lambda index: index % tasks)
    labels = {task: compat.task_label(task, tasks) for task in {number(index) for index in range(len(rows))}}
    labelled = [{**row, "task": labels[number(index)]} for index, row in enumerate(rows)]
    return compat.by_task(table(spark, labelled, schema.append(pa.field("task", INT))), tasks, "task")


def consecutive(count: int, tasks: int) -> Callable[[int], int]:
    """Return a numbering for :func:`spread` that gives each task consecutive ones of ``count`` rows."""
    return lambda index: index * tasks // max(1, count)


def assigned(weights: Sequence[int], tasks: int) -> list[int]:
    """Return a task for each weight, so that tasks are about as heavy as one another: heaviest first."""
    load = [0] * tasks
    task_of = [0] * len(weights)
    for index in sorted(range(len(weights)), key=lambda i: -weights[i]):
        task = load.index(min(load))
        load[task] += weights[index] + 1
        task_of[index] = task
    return task_of


def map_batches(frame: DataFrame, work: Callable[..., Batches], schema: pa.Schema, *storages: Storage) -> DataFrame:
    """Return a frame of all that ``work(batches, *storages)`` yields in the tasks; each opens the storages once.

    Options of a storage may be secrets: they travel in the function, never in rows or query plans. For the same
    reason, and because it is sent to the tasks, ``work`` itself must hold neither a storage nor a session.
    """
    ship_packages(frame.sparkSession)
    specs = [storage.spec() for storage in storages]

    def task(batches: Iterable[Any]) -> Batches:
        with _silent_afterwards():
            yield from work(iter(batches), *(open_storage(*spec) for spec in specs))

    return frame.mapInArrow(task, ddl(schema))


@contextmanager
def _silent_afterwards() -> Iterator[None]:
    """Let the process of a task print nothing between two tasks.

    All that it has to say then is that Java closed its connection, as a traceback: each time that Spark stops, if the
    process notices before it is killed. What fails in a task goes to the driver by that connection.
    """
    sys.stderr = sys.__stderr__
    try:
        yield
    finally:
        sys.stderr = _nowhere()


@cache
def _nowhere() -> TextIO:
    """Return the null device, opened once a process: a worker carries out thousands of tasks."""
    return Path(os.devnull).open("w", encoding="utf-8")


def covered(spark: SparkSession, storage: Storage) -> Storage:
    """Return a storage for tasks that write: one without barriers where the next one of this process covers theirs."""
    return storage.covered() if on_one_machine(spark) else storage


def map_rows(
    frame: DataFrame,
    work: Callable[..., Iterable[Row]],
    schema: pa.Schema,
    *storages: Storage,
    weight: Callable[[Any], int] | None = None,
) -> DataFrame:
    """Return the rows that ``work(rows, *storages)`` yields in every task; see :func:`map_batches`.

    A row weighs one, or the result of ``weight``; about 8,192 together are handed on at once.
    """
    return map_batches(frame, partial(_rows_as_batches, work, schema, weight or _weighs_one), schema, *storages)


def _rows_as_batches(
    work: Callable[..., Iterable[Row]],
    schema: pa.Schema,
    weight: Callable[[Any], int],
    batches: Batches,
    *storages: Storage,
) -> Batches:
    for piece in by_weight(work(rows_of(batches), *storages), weight):
        yield pa.RecordBatch.from_pylist(piece, schema=schema)


def _weighs_one(row: object) -> int:
    del row
    return 1


def rows_of(batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    """Yield the rows of batches, a few as Python objects at a time."""
    for batch in batches:
        for start in range(0, batch.num_rows, READ_AHEAD):
            yield from batch.slice(start, READ_AHEAD).to_pylist()


def by_weight(rows: Iterable[T], weight: Callable[[T], int], most: int = _WEIGHT) -> Iterator[list[T]]:
    """Yield rows in lists that weigh about ``most`` at the most; a row heavier than that comes alone or last."""
    piece, heavy = [], 0
    for row in rows:
        piece.append(row)
        heavy += weight(row)
        if heavy >= most:
            yield piece
            piece, heavy = [], 0
    if piece:
        yield piece


# -- what waits between tasks ----------------------------------------------------------------------------


def on_disk(frame: DataFrame) -> DataFrame:
    """Keep a frame on the disks of the executors once it is computed; ``unpersist`` lets it go.

    Spark would keep it on the heap until that is full, so that a job of ten times the versions looked like one
    that leaks.
    """
    from pyspark import StorageLevel

    return frame.persist(StorageLevel.DISK_ONLY)


def checkpointed(frame: DataFrame) -> DataFrame:
    """Compute a frame now and keep it on disk: it is never computed a second time, a lost block fails the job."""
    with own_errors():
        return compat.checkpointed_on_disk(frame)


# -- the engine ------------------------------------------------------------------------------------------


class SparkRows:
    """Rows in a DataFrame; see :class:`pipelines.engine.model.Rows`."""

    def __init__(self, frame: DataFrame, given: Sequence[Row] | None = None, schema: pa.Schema | None = None) -> None:
        """Stand for a frame; ``given`` are its rows, of ``schema``, if they came from the driver."""
        self.frame = frame
        self._given = given
        self._schema = schema
        self._count = None if given is None else len(given)

    def stream(self) -> Iterator[dict[str, Any]]:
        """Yield all rows, one partition in memory at a time."""
        return stream(self.frame)

    def list(self) -> list[dict[str, Any]]:
        """Return all rows."""
        return collect(self.frame)

    def one(self) -> dict[str, Any]:
        """Return the only row."""
        return collect_one(self.frame)

    def count(self) -> int:
        """Return the number of rows; they are counted once."""
        if self._count is None:
            self._count = count(self.frame)
        return self._count

    def keep(self, key: str = "", *, repeatable: bool = False, progress: Kept | None = None) -> SparkRows:
        """Return the rows as kept on the disks of the executors: now, or ``repeatable`` ones when they are computed."""
        del key, progress
        return SparkRows(on_disk(self.frame) if repeatable else checkpointed(self.frame))

    def drop(self) -> None:
        """Let go of the rows."""
        self.frame.unpersist()

    def dealt(self, spark: SparkSession, each: int) -> DataFrame:
        """Return the rows in as many tasks as they are worth, where one does well with ``each``."""
        tasks = tasks_for(spark, self.count(), each)
        if self._given is None or self._schema is None:
            return self.frame.repartition(tasks)
        number = consecutive(len(self._given), tasks)  # what neighbours read, the next one often needs
        return spread(spark, self._given, self._schema, tasks, number).select(self._schema.names)


class SparkEngine:
    """Tables are DataFrames, and work is done in tasks; see :class:`pipelines.engine.model.Engine`."""

    name = "spark"

    def __init__(self, start: Callable[[], SparkSession]) -> None:
        self._start = start
        self._views: list[str] = []

    @cached_property
    def _spark(self) -> SparkSession:
        return self._start()

    def not_counted(self, requests: int) -> int:
        """Return all: tasks have storages of their own."""
        return requests

    def map(self, work: Work, rows: Rows, schema: pa.Schema, *storages: Storage, each: int = READ_AHEAD) -> SparkRows:
        """Return the result of ``work`` on rows in tasks; a table that comes from a query is counted first."""
        frame = _spark_rows(rows).dealt(self._spark, each)
        return SparkRows(map_batches(frame, partial(_tuples_as_batches, work, schema), schema, *storages))

    def tasks(self, wanted: int | None = None) -> int:
        """Return so many as are ``wanted``, or else as many as keep the session busy."""
        return wanted or slots(self._spark)

    def share(
        self,
        work: PieceWork,
        pieces: Sequence[Row],
        weights: Sequence[int],
        schemas: tuple[pa.Schema, pa.Schema],
        storage: Storage,
        *,
        tasks: int,
        tell: Callable[[int], None],
    ) -> list[Row]:
        """Return the result of each piece, in tasks that are about as heavy as one another."""
        given, made = (schema.append(_PIECE) for schema in schemas)
        tasks = min(len(pieces), tasks)
        tell(0)
        rows = [{**piece, _PIECE.name: index} for index, piece in enumerate(pieces)]
        frame = spread(self._spark, rows, given, tasks, assigned(weights, tasks).__getitem__)
        done = collect(map_rows(frame, partial(durable_rows, work), made, covered(self._spark, storage)))
        tell(len(done))
        return sorted(done, key=itemgetter(_PIECE.name))

    def map_groups(
        self,
        work: GroupWork,
        rows: Rows,
        schema: pa.Schema,
        *storages: Storage,
        by: str,
        weight: str,
        key: str = "",
        tell: Callable[[int, int | None], None],
    ) -> SparkRows:
        """Return the result of each group, made in a task of its own."""
        del weight, key
        tell(0, None)
        groups = self.sql(f"SELECT coalesce(max({by}), 0) AS last FROM rows", rows=rows).one()["last"] + 1
        frame = compat.by_group(_spark_rows(rows).frame, groups, by)
        to = [covered(self._spark, storage) for storage in storages]
        return SparkRows(checkpointed(map_batches(frame, partial(_group_as_batches, work, schema), schema, *to)))

    def table(self, rows: Iterable[Row], schema: pa.Schema) -> SparkRows:
        """Return rows of the driver as a table."""
        given = list(rows)
        return SparkRows(table(self._spark, given, schema), given, schema)

    def sql(self, query: str, **tables: Rows) -> SparkRows:
        """Return the result of a query of tables."""
        return SparkRows(self._spark.sql(placed(query, {name: self._view(rows) for name, rows in tables.items()})))

    def _view(self, rows: Rows) -> str:
        name = f"rows_{uuid4().hex}"
        _spark_rows(rows).frame.createOrReplaceTempView(name)
        self._views.append(name)
        return name

    def close(self) -> None:
        """Forget the views; kept rows go with their frames."""
        for name in self._views:
            self._spark.catalog.dropTempView(name)
        self._views = []


def durable_rows(work: PieceWork, rows: Iterable[Row], storage: Storage) -> Iterator[Row]:
    """Yield the result of each piece in a task, with its number, when what the work wrote is durable."""
    some = list(rows)
    done = [{**made, _PIECE.name: row[_PIECE.name]} for row, made in zip(some, work(some, storage), strict=True)]
    storage.barrier()
    yield from done


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


def _tuples_as_batches(work: Work, schema: pa.Schema, batches: Batches, *storages: Storage) -> Batches:
    return _as_batches(iter(work(rows_of(batches), *storages)), schema, _WEIGHT)


def _as_batches(remaining: Iterator[tuple[Any, ...]], schema: pa.Schema, each: int) -> Batches:
    while some := list(islice(remaining, each)):
        columns = zip(*some, strict=True)
        arrays = [pa.array(column, each.type) for column, each in zip(columns, schema, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


# -- back from the tasks ---------------------------------------------------------------------------------


def collect(frame: DataFrame) -> list[dict[str, Any]]:
    """Return all rows. Raises what a task raised, if it is an error of this library."""
    with own_errors():
        return compat.rows_of(frame)


def collect_one(frame: DataFrame) -> dict[str, Any]:
    """Return the row of a frame that has exactly one, such as sums without groups. Raises as :func:`collect`."""
    (row,) = collect(frame)
    return row


def count(frame: DataFrame) -> int:
    """Return the number of rows. Raises as :func:`collect`."""
    with own_errors():
        return frame.count()


def stream(frame: DataFrame) -> Iterator[dict[str, Any]]:
    """Yield all rows, one partition in memory at a time. Raises as :func:`collect`."""
    with own_errors():
        for row in frame.toLocalIterator():
            yield row.asDict(recursive=True)


def refuse_missing_module(text: str) -> None:
    """Raise ``InvalidInput`` if Spark failed because a module is missing where its tasks run."""
    missing = _MISSING.search(text)
    if missing is not None:
        module = missing[1] or missing[2].lower()
        raise InvalidInput(
            f"the Python that runs the tasks of Spark has no module {module!r}: executors need the packages that this "
            "program needs, as an image, an archive, or a Python that has them (spark.pyspark.python); "
            "see docs/clusters.md"
        )


@contextmanager
def own_errors() -> Iterator[None]:
    """Raise the error that a task raised, if it is one of this library: it names the next command for the user."""
    try:
        yield
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in {"pyspark", "py4j"}:
            raise
        refuse_missing_module(str(error))
        found = _RAISED.search(str(error))
        kind = getattr(errors, found[1], None) if found is not None else None
        if found is None or not (isinstance(kind, type) and issubclass(kind, errors.TrinityLakeError)):
            raise
        raise kind(found[2]) from error
