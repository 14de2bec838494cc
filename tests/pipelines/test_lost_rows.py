"""An engine that loses one row of one intermediate result: nothing is deleted or copied, and the job says why."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from pipelines import clean, compaction, export, tables_clean, verify
from pipelines.engine.local import LocalEngine, LocalRows
from pipelines.engine.model import Engine, Table
from pipelines.integrity import checks
from pipelines.job import silent
from pipelines.reach.kept_roots import gc_roots
from pipelines.reach.walk import TreeSource, walk
from tests.simulation.engines import HOWS, How
from tests.support.damage import miscount
from tests.support.icebergs import rows, with_table
from tests.support.lakes import FAST
from tests.support.respelled import needed_by, respell_data
from tests.support.spoilt_engines import (
    KINDS,
    KINDS_AND_READS,
    Kind,
    RemakesRows,
    SpoiltGiven,
    SpoiltMaps,
    SpoiltQueries,
    SpoiltReads,
    SpoiltSpark,
    SpoiltTables,
    every_row,
    planned_files,
    spoil_one_by_one,
)
from tests.support.surgery import Surgery
from tests.support.zero_age import expire_all_but_the_newest
from trinitylake_core import Lakehouse, spec
from trinitylake_core.errors import StorageError, TrinityLakeError
from trinitylake_core.iceberg import TrinityLakeCatalog
from trinitylake_core.locations import root_path
from trinitylake_core.storage import Storage
from trinitylake_core.tables import DIRECTORY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_STRIDES: Final[dict[type, int]] = {SpoiltReads: 5}
"""After how many rows the next one is tried: all queries together read most rows several times."""
NO_ROW = -1
"""The number of an engine that spoils nothing."""


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


@every_row
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", HOWS)
def test_a_spoilt_row_deletes_no_file_that_is_needed(
    catalog: TrinityLakeCatalog, needed: set[str], monkeypatch: pytest.MonkeyPatch, kind: Kind, how: How, step: int
) -> None:
    """Whichever row of work, of a join or a sum it is: names are counted by a query of their own."""
    time.sleep(0.02)
    refused = 0
    for engine in spoil_one_by_one(kind, how, step):
        planned = None
        with monkeypatch.context() as patch:
            try:
                planned = planned_files(catalog, engine, patch)
            except StorageError as error:
                assert "the engine lost rows" in str(error)  # noqa: PT017 - not each of them is refused
                refused += 1
            else:
                assert not planned & needed, engine.spoilt
    assert planned is not None
    assert 6 == len(planned)
    assert refused * step > (10 if how == "swap" or kind is SpoiltQueries else 20)


@every_row
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", HOWS)
def test_a_spoilt_row_deletes_no_file_of_a_saved_transaction(
    catalog: TrinityLakeCatalog, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: Kind, how: How, step: int
) -> None:
    """Of no row that lists or reads it: the cleaning deletes here, and what it leaves is compared."""
    with_table(catalog, "sales.saved", 7)
    lake = catalog.lakehouse.refresh()
    txn = lake.transaction()
    txn.alter_table("sales", "saved", properties={"a": "b"})
    txn.save()
    catalog.drop_table("sales.saved")
    with_table(catalog, "sales.one", 1).transaction().append(rows(3))
    expire_all_but_the_newest(lake)
    time.sleep(0.02)
    root = Path(lake.root.removeprefix("file://"))
    shutil.copytree(root, tmp_path / "before")
    honest = set[str]()
    for engine in chain([kind(NO_ROW, how)], spoil_one_by_one(kind, how, step)):
        if honest:
            shutil.rmtree(root)
            shutil.copytree(tmp_path / "before", root)
        monkeypatch.setattr(clean, "choose_engine_for_all", lambda *_, made=engine: made)
        with suppress(StorageError):
            config = tables_clean.Config(older_than_seconds=0, allow_recent=True)
            tables_clean.run(Lakehouse.open(lake.root), config)
        left = {each for each in _names(root) if each.startswith(DIRECTORY)}
        assert honest <= left, (engine.fault.number, engine.spoilt)
        honest = honest or left
    assert any("saved" in each for each in honest)
    assert len(honest) < len({each for each in _names(tmp_path / "before") if each.startswith(DIRECTORY)})
    assert engine.fault.number > (80 if kind is SpoiltQueries else 20)


@pytest.mark.parametrize("kind", [SpoiltMaps, SpoiltGiven])
def test_a_walk_that_lost_a_row_is_refused(catalog: TrinityLakeCatalog, needed: set[str], kind: Kind) -> None:
    lake = catalog.lakehouse.refresh()
    starts, refused = gc_roots(lake.backend).starts(), 0
    trees = TreeSource(lake.storage, lake.definition.order)
    for engine in spoil_one_by_one(kind, "lose", step=1):
        try:
            walk(engine, trees, starts, silent)
        except StorageError:
            refused += 1
        finally:
            engine.close()
    assert engine.fault.number == refused  # each but the last, which lost none
    assert refused >= len(starts)


def test_a_lost_row_leaves_no_file_out_of_a_copy(
    catalog: TrinityLakeCatalog, needed: set[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whichever row of the walk it is; a listing that lacks one only costs a request."""
    lake = catalog.lakehouse.refresh()
    monkeypatch.setattr(export, "choose_engine", lambda *_, **__: SpoiltMaps(25, "lose"))
    with pytest.raises(StorageError, match="the engine lost rows"):
        export.run(lake, (tmp_path / "copy").as_uri(), export.Config(tables=True, history=True))
    assert not (tmp_path / "copy").exists() or not list((tmp_path / "copy").rglob("*.parquet"))


@every_row
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", HOWS)
def test_a_spoilt_row_leaves_no_file_out_of_a_copy(
    catalog: TrinityLakeCatalog, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: Kind, how: How, step: int
) -> None:
    """An export that reports success has copied every file; of one the name is spelled otherwise."""
    with_table(catalog, "sales.one", 1).append(rows(2))
    respell_data(with_table(catalog, "sales.two", 1), lambda uri: uri.replace("/data/", "/%64ata/"))
    lake = catalog.lakehouse.refresh()
    config = export.Config(tables=True, history=True)
    honest = export.run(lake, (tmp_path / "honest").as_uri(), config)
    refused = 0
    for engine in spoil_one_by_one(kind, how, step):
        done = None
        monkeypatch.setattr(export, "choose_engine", lambda *_, made=engine, **__: made)
        copy = tmp_path / f"{engine.fault.number}"
        try:
            done = export.run(lake, copy.as_uri(), config)
        except StorageError:
            refused += 1
        else:
            assert _names(tmp_path / "honest") == _names(copy), (engine.fault.number, engine.spoilt)
    assert done is not None
    assert honest.plan.bytes == done.plan.bytes
    assert refused * step > 10


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", HOWS)
def test_a_spoilt_row_calls_no_copy_whole_of_a_lakehouse_that_lacks_a_definition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind, how: How
) -> None:
    lake = Lakehouse.create((tmp_path / "lake").as_uri(), storage_options=FAST)
    with lake.transaction() as txn:
        txn.create_namespace("a")
        txn.create_table("a", "t")
    lake = lake.refresh()
    (_root_of(lake) / next(each.path for each in lake.objects(kind="table"))).unlink()
    for engine in spoil_one_by_one(kind, how, step=1):
        monkeypatch.setattr(export, "choose_engine", lambda *_, made=engine, **__: made)
        with pytest.raises(TrinityLakeError, match=r"is missing; nothing|definitions are missing|the engine lost rows"):
            export.run(lake, (tmp_path / f"{engine.fault.number}").as_uri())
    assert engine.fault.number > 3


def _names(copy: Path) -> set[str]:
    return {str(each.relative_to(copy)) for each in copy.rglob("*") if each.is_file()}


def _cut_a_leaf(lake: Lakehouse) -> None:
    node = lake.root_node.node
    while not node.is_leaf:
        path = node.children[len(node.children) // 2]
        node = lake.nodes.read(path)
    leaf = _root_of(lake) / path
    leaf.write_bytes(leaf.read_bytes()[:50])


def _spoil_a_definition(lake: Lakehouse) -> None:
    path = next(each.path for each in lake.objects(kind="table") if each.name == "t010")
    (_root_of(lake) / path).write_bytes(b"no definition")


def _lose_a_namespace(lake: Lakehouse) -> None:
    with lake.transaction() as txn:
        txn._delete(lake.codec.namespace("a"))
    expire_all_but_the_newest(lake)


def _miscount_in_the_root(lake: Lakehouse) -> None:
    break_count = miscount(spec.SUBTREE_KEYS, "root")
    break_count(Surgery(lake.root, lake.definition.order), lake.version)


def _root_of(lake: Lakehouse) -> Path:
    return Path(lake.root.removeprefix("file://"))


DAMAGES: Final[dict[str, Callable[[Lakehouse], None]]] = {
    "leaf": _cut_a_leaf,
    "definition": _spoil_a_definition,
    "namespace": _lose_a_namespace,
    "root": _miscount_in_the_root,
}


@pytest.fixture(params=DAMAGES)
def damaged(tmp_path: Path, request: pytest.FixtureRequest) -> Storage:
    """The storage of a lakehouse of one version, whose tree has three levels, and in which something is damaged."""
    lake = Lakehouse.create((tmp_path / "damaged").as_uri(), order=4, storage_options=FAST)
    with lake.transaction() as txn:
        txn.create_namespace("a")
        for number in range(20):
            txn.create_table("a", f"t{number:03}")
    expire_all_but_the_newest(lake)
    DAMAGES[request.param](lake.refresh())
    return lake.storage


def _says_it_is_sound(storage: Storage, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> bool | None:
    """Return whether a verification finds nothing; ``None`` where it says that the engine lost rows."""
    monkeypatch.setattr(verify, "choose_engine_for_all", lambda *_: engine)
    try:
        return verify.run(storage, verify.Config("all", engine="local", definitions=True)).ok
    except StorageError:
        return None


@every_row
@pytest.mark.parametrize("kind", KINDS_AND_READS)
@pytest.mark.parametrize("how", HOWS)
def test_a_spoilt_row_calls_no_damaged_lakehouse_sound(
    damaged: Storage, monkeypatch: pytest.MonkeyPatch, kind: Kind, how: How, step: int
) -> None:
    tried = refused = 0
    for engine in spoil_one_by_one(kind, how, step * _STRIDES.get(kind, 1)):
        found = _says_it_is_sound(damaged, engine, monkeypatch)
        assert found is not True, (engine.fault.number, engine.spoilt)
        tried += 1
        refused += found is None
    assert engine.fault.number > (10 if kind is SpoiltGiven else 20)  # maps are given less than they make
    if kind in {SpoiltMaps, SpoiltGiven} and how == "lose":
        assert refused > (tried - 1) // 2


@pytest.mark.parametrize("how", HOWS)
def test_a_spoilt_row_of_what_moves_to_another_engine_calls_no_damaged_lakehouse_sound(
    damaged: Storage, monkeypatch: pytest.MonkeyPatch, how: How
) -> None:
    """The top of the tree is read in this process, and then handed to Spark."""
    monkeypatch.setattr(checks, "_HERE", 2)
    for engine in spoil_one_by_one(SpoiltTables, how, step=1):
        assert _says_it_is_sound(damaged, engine, monkeypatch) is not True, engine.fault.number
    assert engine.fault.number > 5


class _SpoiltSums(SpoiltReads):
    """An engine of which the query that sums objects up reads a table that lacks, repeats or swaps a row."""

    def sql(self, query: str, **tables: Table) -> LocalRows:
        """Return the result of a query of tables, one of which is spoilt if the row is among them."""
        self.is_armed = " AS malformed" in query
        return super().sql(query, **tables)


@pytest.mark.parametrize("how", HOWS)
def test_a_spoilt_row_of_what_is_summed_up_calls_no_wrong_count_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: How
) -> None:
    """The root says that there is no namespace, and so do sums that lack the row of the only one."""
    lake = Lakehouse.create(tmp_path.as_uri(), order=4, storage_options=FAST)
    with lake.transaction() as txn:
        txn.create_namespace("a")
        for name in ("t1", "t2", "t3", "t4"):
            txn.create_table("a", name)
    expire_all_but_the_newest(lake)
    version = lake.refresh().version
    surgery = Surgery(lake.root, lake.definition.order)
    for each in (version - 1, version):
        surgery.system_row(root_path(each), spec.NAMESPACES, "0")
    refused = 0
    for engine in spoil_one_by_one(_SpoiltSums, how, step=1):
        found = _says_it_is_sound(lake.storage, engine, monkeypatch)
        assert found is not True, engine.fault.number
        refused += found is None
    assert refused > 5


class _SpoiltFindings(SpoiltQueries):
    """An engine that loses, repeats or swaps one of the findings that it returns."""

    def sql(self, query: str, **tables: Table) -> LocalRows:
        """Return the result of a query, spoilt if it is of findings and the row is among it."""
        self.is_armed = "invariant IS NOT NULL LIMIT" in query
        return super().sql(query, **tables)


@pytest.mark.parametrize("how", HOWS)
def test_a_spoilt_finding_does_not_stand_for_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: How) -> None:
    """Of two damaged definitions both are named, or the engine lost rows."""
    lake = Lakehouse.create(tmp_path.as_uri(), storage_options=FAST)
    with lake.transaction() as txn:
        txn.create_namespace("a")
        for name in ("t1", "t2", "t3"):
            txn.create_table("a", name)
    expire_all_but_the_newest(lake)
    for each in list(lake.refresh().objects(kind="table"))[:2]:
        (tmp_path / each.path).write_bytes(b"no definition")
    refused = 0
    for engine in spoil_one_by_one(_SpoiltFindings, how, step=1):
        monkeypatch.setattr(verify, "choose_engine_for_all", lambda *_, chosen=engine: chosen)
        try:
            found = verify.run(lake.storage, verify.Config("all", engine="local", definitions=True)).findings
        except StorageError:
            refused += 1
        else:
            assert len({each.file for each in found}) == 2, engine.fault.number
    assert refused > 0


def test_what_is_made_again_counts_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where an executor was lost, Spark makes what it kept a second time, and nothing is lost."""
    lake = Lakehouse.create((tmp_path / "lake").as_uri(), order=4, storage_options=FAST)
    for number in range(20):
        with lake.transaction() as txn:
            txn.create_namespace(f"a{number}")
            txn.create_table(f"a{number}", "t")
    compaction.run(lake, compaction.Config(engine="local", full=True))
    lake = lake.refresh()
    assert _says_it_is_sound(lake.storage, RemakesRows(), monkeypatch)
    monkeypatch.setattr(clean, "choose_engine_for_all", lambda *_: RemakesRows())
    monkeypatch.setattr(export, "choose_engine", lambda *_: RemakesRows())
    cleaned = clean.run(lake, clean.Config(engine="local", older_than_seconds=0, allow_recent=True))
    copy = (tmp_path / "copy").as_uri()
    export.run(lake, copy, export.Config(engine="local", history=True), storage_options=FAST)
    assert cleaned.deleted == 0
    assert _says_it_is_sound(lake.storage, LocalEngine(), monkeypatch)
    assert Lakehouse.open(copy).version == lake.version
    expire_all_but_the_newest(lake)
    assert _says_it_is_sound(lake.storage, RemakesRows(), monkeypatch)


# -- on Spark ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("first", range(4))
@pytest.mark.parametrize("how", HOWS)
def test_on_spark_a_spoilt_row_deletes_no_file_that_is_needed(
    catalog: TrinityLakeCatalog,
    needed: set[str],
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    how: How,
    first: int,
) -> None:
    """Every fifteenth row: Spark needs ten seconds for each."""
    time.sleep(0.02)
    for engine in spoil_one_by_one(partial(SpoiltSpark, spark), how, step=60, first=first * 15):
        planned = None
        with monkeypatch.context() as patch, suppress(StorageError):
            planned = planned_files(catalog, engine, patch)
            assert not planned & needed, engine.fault.number
    assert planned is not None
    assert engine.fault.number > 60


@pytest.mark.slow
@pytest.mark.parametrize("how", HOWS)
def test_on_spark_a_spoilt_row_calls_no_damaged_lakehouse_sound(
    damaged: Storage, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, how: How
) -> None:
    """Every fifth row."""
    for engine in spoil_one_by_one(partial(SpoiltSpark, spark), how, step=5):
        with monkeypatch.context() as patch:
            assert _says_it_is_sound(damaged, engine, patch) is not True, engine.fault.number
    assert engine.fault.number > 20
