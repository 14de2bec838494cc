"""Engines that lose, repeat or swap one row of what they return: each row is tried, one after the other."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import pyarrow as pa
import pytest

from pipelines import clean, tables_clean
from pipelines.engine.local import LocalEngine, LocalRows
from pipelines.engine.model import READ_AHEAD, Engine, GroupWork, Kept, Row, Rows, Table, Work
from pipelines.engine.spark import SparkEngine, SparkRows
from pipelines.job import dry_run
from pipelines.reach.sweep import Sweep
from tests.simulation.engines import HOWS, How, RowFault
from trinitylake_core.iceberg import TrinityLakeCatalog
from trinitylake_core.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SpoiltEngine(LocalEngine):
    """An engine that has a fault to spoil a row with, as long as it is armed."""

    def __init__(self, number: int, how: How) -> None:
        super().__init__()
        self.fault = RowFault(how, number)
        self.spoilt = "a row of work"
        self.is_armed = True


class SpoiltQueries(SpoiltEngine):
    """An engine that loses, repeats or swaps one row of all that queries return; the result is kept as it is then."""

    def __init__(self, number: int, how: How) -> None:
        super().__init__(number, how)
        self.spoilt = ""

    def sql(self, query: str, **tables: Table) -> LocalRows:
        """Return the result of a query, spoilt if the row is among it."""
        found = super().sql(query, **tables)
        if not self.is_armed:
            return found
        rows = list(self.fault.spoil(found.tuples()))
        if not self.spoilt and self.fault.seen > self.fault.number:
            self.spoilt = query
        names = found.column_names()
        return LocalRows(self, names, lambda: rows).keep("path" if "path" in names else "")


class SpoiltMaps(SpoiltEngine):
    """An engine that loses, repeats or swaps one row of all that maps make."""

    def map(self, work: Work, rows: Rows, schema: pa.Schema, *storages: Storage, each: int = READ_AHEAD) -> LocalRows:
        """Return the result of work, spoilt if the row is among it."""
        found = super().map(work, rows, schema, *storages, each=each)
        if not self.is_armed:
            return found
        return LocalRows(self, found.column_names(), lambda: self.fault.spoil(found.tuples()))


class SpoiltGiven(SpoiltEngine):
    """An engine that loses, repeats or swaps one row of all that it gives to maps."""

    def map(self, work: Work, rows: Rows, schema: pa.Schema, *storages: Storage, each: int = READ_AHEAD) -> LocalRows:
        """Return the result of work on rows that are spoilt if the row is among them."""

        def work_on_spoilt(given: Iterator[Row], *opened: Storage) -> Iterator[tuple[Any, ...]]:
            if self.is_armed:
                given = self.fault.spoil(given)
            return iter(work(given, *opened))

        return super().map(work_on_spoilt, rows, schema, *storages, each=each)


class SpoiltReads(SpoiltEngine):
    """An engine of which one query reads a table that lacks, repeats or swaps a row; all others read it as it is."""

    def sql(self, query: str, **tables: Table) -> LocalRows:
        """Return the result of a query of tables, one of which is spoilt if the row is among them."""
        read = {name: self._spoil(table) for name, table in tables.items()} if self.is_armed else tables
        return super().sql(query, **read)

    def _spoil(self, table: Table) -> Table:
        if isinstance(table, Sequence):
            return [self._spoil_part(part) for part in table]
        return self._spoil_part(table)

    def _spoil_part(self, rows: Rows) -> Rows:
        if not isinstance(rows, LocalRows):
            raise TypeError("these rows are of another engine")
        first = self.fault.seen
        spoilt = list(self.fault.spoil(rows.tuples()))
        is_struck = first <= self.fault.number < self.fault.seen
        return LocalRows(self, rows.column_names(), lambda: spoilt).keep() if is_struck else rows


class TwoTasks(LocalEngine):
    """An engine that says that it has two tasks, as Spark has many: so jobs divide their work, and move it there."""

    def tasks(self, wanted: int | None = None) -> int:
        """Return 2."""
        del wanted
        return 2


class SpoiltTables(TwoTasks, SpoiltEngine):
    """An engine of two tasks that loses, repeats or swaps one row of all that it is given as tables."""

    def table(self, rows: Iterable[Row], schema: pa.Schema) -> LocalRows:
        """Return rows of this process as a table, spoilt if the row is among them."""
        return super().table(self.fault.spoil(iter(rows)), schema)


class SpoiltGroups(SpoiltEngine):
    """An engine that loses, repeats or swaps one row of what it gives to work on groups, or of what that makes."""

    def map_groups(self, work: GroupWork, rows: Rows, schema: pa.Schema, *storages: Storage, **more: Any) -> LocalRows:
        """Return the result of work on groups, spoilt if the row is among it, or of spoilt rows."""
        given = self._spoil(rows, more["by"])
        return self._spoil(super().map_groups(work, given, schema, *storages, **more), more.get("key", ""))

    def _spoil(self, rows: Rows, key: str) -> LocalRows:
        if not isinstance(rows, LocalRows):
            raise TypeError("these rows are of another engine")
        spoilt = list(self.fault.spoil(rows.tuples()))
        return LocalRows(self, rows.column_names(), lambda: spoilt).keep(key)


class _Remade(LocalRows):
    """Rows that are made again for each query, also where they are kept."""

    def keep(self, key: str = "", *, repeatable: bool = False, progress: Kept | None = None) -> LocalRows:
        """Return these rows where they may be made again, or keep them."""
        return self if repeatable else super().keep(key, progress=progress)


class RemakesRows(LocalEngine):
    """An engine that loses what it keeps after each query, and makes it again: so does Spark without its executors."""

    def map(self, work: Work, rows: Rows, schema: pa.Schema, *storages: Storage, each: int = READ_AHEAD) -> LocalRows:
        """Return the result of work, which is done for each query."""
        found = super().map(work, rows, schema, *storages, each=each)
        return _Remade(self, found.column_names(), found.tuples)

    def execute(self, statement: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        """Carry out a statement, but keep the tables that rows may have to be made from again."""
        if statement.startswith("DROP"):
            statement = "SELECT 1"
        return super().execute(statement, values)


Kind: TypeAlias = type[SpoiltEngine]
KINDS: Final[tuple[Kind, ...]] = (SpoiltQueries, SpoiltMaps, SpoiltGiven)
"""Engines that spoil a row of queries, of what maps make, and of what maps are given."""
KINDS_AND_READS: Final = (*KINDS, SpoiltReads)
"""Also one of what one query reads: a plan may be wrong then, which is marked again before something is deleted."""


class SpoiltSpark(SparkEngine):
    """Spark that loses, repeats or swaps one row of all that queries and maps return, and that maps are given."""

    def __init__(self, session: SparkSession, number: int, how: How) -> None:
        super().__init__(lambda: session)
        self.fault = RowFault(how, number)
        self.is_armed = True
        self._session = session

    def map(self, work: Work, rows: Rows, schema: pa.Schema, *storages: Storage, each: int = READ_AHEAD) -> SparkRows:
        """Return the result of work, spoilt if the row is among it, or of spoilt rows."""
        if isinstance(rows, SparkRows) and rows.given is None:
            rows = self._spoil(rows)
        return self._spoil(super().map(work, rows, schema, *storages, each=each))

    def sql(self, query: str, **tables: Table) -> SparkRows:
        """Return the result of a query, spoilt if the row is among it."""
        return self._spoil(super().sql(query, **tables))

    def _spoil(self, found: SparkRows) -> SparkRows:
        if not self.is_armed:
            return found
        names = found.frame.columns
        rows = [tuple(row) for row in found.frame.collect()]
        spoilt = list(self.fault.spoil(iter(rows)))
        frame = self._session.createDataFrame(spoilt, found.frame.schema)
        return SparkRows(frame.select(names), self._kept).keep()


Spoilt = TypeVar("Spoilt", SpoiltEngine, SpoiltSpark)
SOME_ROWS: Final = 24
"""A step between rows. Tests of all ways begin at rows of their own: three of twenty-four rows are spoilt in one."""
every_row: Final = pytest.mark.parametrize("step", [SOME_ROWS, pytest.param(1, marks=pytest.mark.slow)])
"""Some rows in one way, and in `make test-all` each row in all ways."""


def spoil_one_by_one(make: Callable[[int, How], Spoilt], how: How, step: int, first: int = 0) -> Iterator[Spoilt]:
    """Yield an engine for each row that is spoilt; the last one had fewer rows than that, and spoilt nothing."""
    number = first + HOWS.index(how) % step
    while True:
        engine = make(number, how)
        yield engine
        if engine.fault.seen <= number:
            return
        number += step


def planned_files(catalog: TrinityLakeCatalog, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return the paths of what a cleaning would delete with an engine."""
    monkeypatch.setattr(clean, "choose_engine_for_all", lambda *_: engine)
    planned: list[str] = []
    released = Sweep.release

    def noted(sweep: Sweep) -> None:
        if sweep._orphans is not None:
            planned.extend(each.path for each in sweep.orphans())
        released(sweep)

    monkeypatch.setattr(Sweep, "release", noted)
    how = tables_clean.Config(older_than_seconds=0, allow_recent=True)
    tables_clean.run(catalog.lakehouse.refresh(), how, review=dry_run)
    return {catalog.lakehouse.root.removeprefix("file://") + each for each in planned}


def arm_within(monkeypatch: pytest.MonkeyPatch, engine: SpoiltEngine | SpoiltSpark, where: object, name: str) -> None:
    """Let an engine spoil nothing but what it returns as long as a function runs."""
    engine.is_armed = False
    true_function = getattr(where, name)

    def armed(*args: object, **more: object) -> object:
        engine.is_armed = True
        try:
            return true_function(*args, **more)
        finally:
            engine.is_armed = False

    monkeypatch.setattr(where, name, armed)
