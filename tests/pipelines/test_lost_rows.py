"""An engine that loses one row of one intermediate result: nothing is deleted or copied, and the job says why."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from pipelines import clean, compaction, export, tables_clean, verify
from pipelines.engine.local import LocalEngine, LocalRows
from pipelines.engine.model import READ_AHEAD, Engine, Row, Rows, Work
from pipelines.engine.spark import SparkEngine, SparkRows
from pipelines.job import dry_run, silent
from pipelines.sweep.sweep import Sweep
from pipelines.trees.walk import TreeSource, walk
from tests.simulation.engines import HOWS, How, RowFault
from tests.support.icebergs import rows, with_table
from tests.support.lakes import FAST
from tests.support.respelled import needed_by, respell_data
from trinitylake_core import Lakehouse
from trinitylake_core.errors import StorageError
from trinitylake_core.iceberg import TrinityLakeCatalog
from trinitylake_core.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class LosingEngine(LocalEngine):
    """An engine that loses one row of all that maps make, or of all that they are given."""

    def __init__(self, number: int, *, inputs: bool) -> None:
        super().__init__()
        self.left = number
        self._inputs = inputs

    def map(self, work: Work, rows: Rows, schema: pa.Schema, *storages: Storage, each: int = READ_AHEAD) -> LocalRows:
        """Return the result of work, but for the row that is lost."""

        def losing(given: Iterator[Row], *opened: Storage) -> Iterator[tuple[Any, ...]]:
            if self._inputs:
                return iter(work(self._without_one(given), *opened))
            return self._without_one(iter(work(given, *opened)))

        return super().map(losing, rows, schema, *storages, each=each)

    def _without_one(self, made: Iterator[Any]) -> Iterator[Any]:
        for row in made:
            self.left -= 1
            if self.left != -1:
                yield row


class SpoiltQueries(LocalEngine):
    """An engine that loses, repeats or swaps one row of all that queries return; the result is kept as it is then."""

    def __init__(self, number: int, how: How) -> None:
        super().__init__()
        self.fault = RowFault(how, number)
        self.spoilt = ""

    def sql(self, query: str, **tables: Rows) -> LocalRows:
        """Return the result of a query, spoilt if the row is among it."""
        found = super().sql(query, **tables)
        rows = list(self.fault.spoil(found.tuples()))
        if not self.spoilt and self.fault.seen > self.fault.number:
            self.spoilt = query
        return LocalRows(self, found.names, lambda: rows).keep("path" if "path" in found.names else "")


class SpoiltUnions(SpoiltQueries):
    """An engine that loses, repeats or swaps one row of a union: what a counted query reads is kept, and no view."""

    def sql(self, query: str, **tables: Rows) -> LocalRows:
        """Return the result of a query; only that of a union may be spoilt."""
        if "UNION ALL" in query:
            return super().sql(query, **tables)
        return LocalEngine.sql(self, query, **tables)


class SpoiltMaps(LocalEngine):
    """An engine that loses, repeats or swaps one row of all that maps make."""

    def __init__(self, number: int, how: How) -> None:
        super().__init__()
        self.fault = RowFault(how, number)
        self.spoilt = "a row that work made"

    def map(self, work: Work, rows: Rows, schema: pa.Schema, *storages: Storage, each: int = READ_AHEAD) -> LocalRows:
        """Return the result of work, spoilt if the row is among it."""
        found = super().map(work, rows, schema, *storages, each=each)
        return LocalRows(self, found.names, lambda: self.fault.spoil(found.tuples()))


@pytest.fixture
def needed(catalog: TrinityLakeCatalog) -> set[str]:
    """The files that two tables need, one of which spells them otherwise, beside abandoned ones."""
    found: set[Path] = set()
    for name in ("sales.one", "sales.two"):
        table = with_table(catalog, name, 1)
        table.append(rows(2))
        table.transaction().append(rows(3))
        found |= needed_by(catalog.load_table(name))
    respell_data(catalog.load_table("sales.two"), lambda uri: uri.replace("/data/", "/%64ata/"))
    return {str(each) for each in found}


def _plan(catalog: TrinityLakeCatalog, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> set[str]:
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


@pytest.mark.parametrize("inputs", [False, True])
def test_a_lost_row_deletes_no_file_that_is_needed(
    catalog: TrinityLakeCatalog, needed: set[str], monkeypatch: pytest.MonkeyPatch, inputs: bool
) -> None:
    time.sleep(0.02)
    refused, number = 0, 0
    while True:
        engine = LosingEngine(number, inputs=inputs)
        with monkeypatch.context() as patch:
            try:
                planned = _plan(catalog, engine, patch)
            except StorageError as error:
                assert "the engine lost rows" in str(error)  # noqa: PT017 - not each of them is refused
                refused += 1
            else:
                assert not planned & needed
                if engine.left >= 0:
                    break
        number += 1
    assert 6 == len(planned)
    assert 20 < refused < number


@pytest.mark.parametrize("step", [17, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("how", HOWS)
def test_a_spoilt_row_of_a_query_deletes_no_file_that_is_needed(
    catalog: TrinityLakeCatalog, needed: set[str], monkeypatch: pytest.MonkeyPatch, how: How, step: int
) -> None:
    """Whichever row of a join, a union or a sum it is: names are counted by a query of their own."""
    time.sleep(0.02)
    refused, number = 0, 0
    while True:
        engine = SpoiltQueries(number, how)
        with monkeypatch.context() as patch:
            try:
                planned = _plan(catalog, engine, patch)
            except StorageError as error:
                assert "the engine lost rows" in str(error)  # noqa: PT017 - not each of them is refused
                refused += 1
            else:
                assert not planned & needed, engine.spoilt
                if engine.fault.seen <= number:
                    break
        number += step
    assert 6 == len(planned)
    assert refused


def _spoil_each_row(
    kind: type[SpoiltUnions | SpoiltMaps],
    how: How,
    catalog: TrinityLakeCatalog,
    needed: set[str],
    monkeypatch: pytest.MonkeyPatch,
) -> int:
    """Clean with an engine for each row that is spoilt: none plans what is needed. Return how many rows there are."""
    time.sleep(0.02)
    number = 0
    while True:
        engine = kind(number, how)
        with monkeypatch.context() as patch, suppress(StorageError):
            assert not _plan(catalog, engine, patch) & needed, (number, engine.spoilt)
        if engine.fault.seen <= number:
            return number
        number += 1


@pytest.mark.parametrize("how", HOWS)
def test_a_spoilt_row_of_a_union_deletes_no_file_that_is_needed(
    catalog: TrinityLakeCatalog, needed: set[str], monkeypatch: pytest.MonkeyPatch, how: How
) -> None:
    """Aliases of files were once asked of a view: what it lost was missing where they were counted, too."""
    assert _spoil_each_row(SpoiltUnions, how, catalog, needed, monkeypatch) > 20


@pytest.mark.parametrize("how", HOWS)
def test_a_spoilt_row_of_a_map_deletes_no_file_that_is_needed(
    catalog: TrinityLakeCatalog, needed: set[str], monkeypatch: pytest.MonkeyPatch, how: How
) -> None:
    assert _spoil_each_row(SpoiltMaps, how, catalog, needed, monkeypatch) > 100


@pytest.mark.parametrize("inputs", [False, True])
def test_a_walk_that_lost_a_row_is_refused(catalog: TrinityLakeCatalog, needed: set[str], inputs: bool) -> None:
    lake = catalog.lakehouse.refresh()
    from pipelines.sweep.kept_roots import gc_roots

    starts, number = gc_roots(lake.backend).starts(), 0
    trees = TreeSource(lake.storage, lake.definition.order)
    while True:
        engine = LosingEngine(number, inputs=inputs)
        try:
            walk(engine, trees, starts, silent)
        except StorageError:
            number += 1
        else:
            break
        finally:
            engine.close()
    assert engine.left >= 0
    assert number >= len(starts)


def test_a_lost_row_leaves_no_file_out_of_a_copy(
    catalog: TrinityLakeCatalog, needed: set[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whichever row of the walk it is; a listing that lacks one only costs a request."""
    lake = catalog.lakehouse.refresh()
    monkeypatch.setattr(export, "choose_engine", lambda *_, **__: LosingEngine(25, inputs=False))
    with pytest.raises(StorageError, match="the engine lost rows"):
        export.run(lake, (tmp_path / "copy").as_uri(), export.Config(tables=True, history=True))
    assert not (tmp_path / "copy").exists() or not list((tmp_path / "copy").rglob("*.parquet"))


def _copy_with_faults(
    catalog: TrinityLakeCatalog,
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    spoil: Callable[[int], SpoiltQueries | SpoiltMaps],
    step: int,
) -> None:
    """Export once for each number of a row; an export that reports success has copied every file."""
    with_table(catalog, "sales.one", 1).append(rows(2))
    lake = catalog.lakehouse.refresh()
    config = export.Config(tables=True, history=True)
    honest = export.run(lake, (folder / "honest").as_uri(), config)
    refused, number = 0, 0
    while True:
        engine = spoil(number)
        monkeypatch.setattr(export, "choose_engine", lambda *_, made=engine, **__: made)
        copy = folder / f"{number}"
        try:
            done = export.run(lake, copy.as_uri(), config)
        except StorageError:
            refused += 1
        else:
            assert _names(folder / "honest") == _names(copy), (number, engine.spoilt)
            if engine.fault.seen <= number:
                break
        number += step
    assert honest.plan.bytes == done.plan.bytes
    assert refused


@pytest.mark.parametrize("step", [41, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("how", HOWS)
def test_a_spoilt_row_of_a_query_leaves_no_file_out_of_a_copy(
    catalog: TrinityLakeCatalog, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, how: How, step: int
) -> None:
    _copy_with_faults(catalog, monkeypatch, tmp_path, lambda number: SpoiltQueries(number, how), step)


@pytest.mark.parametrize("how", HOWS)
def test_a_spoilt_row_of_a_map_leaves_no_file_out_of_a_copy(
    catalog: TrinityLakeCatalog, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, how: How
) -> None:
    _copy_with_faults(catalog, monkeypatch, tmp_path, lambda number: SpoiltMaps(number, how), 1)


def _names(copy: Path) -> set[str]:
    return {str(each.relative_to(copy)) for each in copy.rglob("*") if each.is_file()}


@pytest.fixture
def damaged(tmp_path: Path) -> Storage:
    """The storage of a lakehouse whose tree has three levels, and a leaf that is cut short."""
    lake = Lakehouse.create((tmp_path / "damaged").as_uri(), order=4, storage_options=FAST)
    with lake.transaction() as txn:
        txn.create_namespace("a")
        for number in range(20):
            txn.create_table("a", f"t{number:03}")
    compaction.run(lake.refresh(), compaction.Config(engine="local"))
    node = lake.refresh().root_node.node
    while not node.is_leaf:
        path = node.children[len(node.children) // 2]
        node = lake.nodes.read(path)
    leaf = tmp_path / "damaged" / path
    leaf.write_bytes(leaf.read_bytes()[:50])
    return lake.storage


def _says_it_is_sound(storage: Storage, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> bool | None:
    """Return whether a verification finds nothing; ``None`` where it says that the engine lost rows."""
    monkeypatch.setattr(verify, "choose_engine_for_all", lambda *_: engine)
    try:
        return verify.run(storage, verify.Config("all", engine="local", definitions=True)).ok
    except StorageError:
        return None


@pytest.mark.parametrize("inputs", [False, True])
def test_a_lost_row_calls_no_damaged_lakehouse_sound(
    damaged: Storage, monkeypatch: pytest.MonkeyPatch, inputs: bool
) -> None:
    number = refused = 0
    while True:
        engine = LosingEngine(number, inputs=inputs)
        found = _says_it_is_sound(damaged, engine, monkeypatch)
        assert found is not True
        refused += found is None
        if engine.left >= 0:
            break
        number += 1
    assert refused > number // 2


@pytest.mark.parametrize("how", HOWS)
def test_a_spoilt_row_of_a_map_calls_no_damaged_lakehouse_sound(
    damaged: Storage, monkeypatch: pytest.MonkeyPatch, how: How
) -> None:
    number = 0
    while True:
        engine = SpoiltMaps(number, how)
        assert _says_it_is_sound(damaged, engine, monkeypatch) is not True, number
        if engine.fault.seen <= number:
            break
        number += 1
    assert number > 20


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("how", HOWS)
def test_a_spoilt_row_of_a_query_calls_no_damaged_lakehouse_sound(
    damaged: Storage, monkeypatch: pytest.MonkeyPatch, how: How, step: int
) -> None:
    number = 0
    while True:
        engine = SpoiltQueries(number, how)
        assert _says_it_is_sound(damaged, engine, monkeypatch) is not True, engine.spoilt
        if engine.fault.seen <= number:
            break
        number += step
    assert number > 100


# -- on Spark ----------------------------------------------------------------------------------------------------------


class SpoiltSpark(SparkEngine):
    """Spark that loses, repeats or swaps one row of all that queries and maps return."""

    def __init__(self, session: SparkSession, number: int, how: How) -> None:
        super().__init__(lambda: session)
        self.fault = RowFault(how, number)
        self._session = session

    def map(self, work: Work, rows: Rows, schema: pa.Schema, *storages: Storage, each: int = READ_AHEAD) -> SparkRows:
        """Return the result of work, spoilt if the row is among it."""
        return self._spoil(super().map(work, rows, schema, *storages, each=each))

    def sql(self, query: str, **tables: Rows) -> SparkRows:
        """Return the result of a query, spoilt if the row is among it."""
        return self._spoil(super().sql(query, **tables))

    def _spoil(self, found: SparkRows) -> SparkRows:
        names = found.frame.columns
        rows = [tuple(row) for row in found.frame.collect()]
        spoilt = list(self.fault.spoil(iter(rows)))
        frame = self._session.createDataFrame(spoilt, found.frame.schema)
        return SparkRows(frame.select(names), self._kept).keep()


@pytest.mark.slow
@pytest.mark.parametrize("first", range(4))
@pytest.mark.parametrize("how", HOWS)
def test_on_spark_a_spoilt_row_deletes_no_file_that_is_needed_and_calls_no_damage_sound(
    catalog: TrinityLakeCatalog,
    needed: set[str],
    damaged: Storage,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    how: How,
    first: int,
) -> None:
    time.sleep(0.02)
    for number in range(first * 3, 300, 60):
        engine = SpoiltSpark(spark, number, how)
        with monkeypatch.context() as patch, suppress(StorageError):
            assert not _plan(catalog, engine, patch) & needed, number
    for number in range(first * 2, 120, 30):
        with monkeypatch.context() as patch:
            assert _says_it_is_sound(damaged, SpoiltSpark(spark, number, how), patch) is not True, number
