"""Jobs over tables of format version 3, whose deletes are deletion vectors: parts of Puffin files."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pipelines import export, tables_expire, tables_health, verify
from tests.support.engines import connected
from tests.support.icebergs import opened
from tests.support.lakes import FAST
from tests.support.zero_age import clean_tables, expire_all_but_the_newest
from trinitylake_core import Lakehouse
from trinitylake_core.iceberg import TrinityLakeCatalog
from trinitylake_core.rest import endpoint
from trinitylake_core.storage import open_storage


@pytest.fixture
def lake(lake: Lakehouse) -> Lakehouse:
    """Return a lakehouse with a table of 30 rows in two files, from which DuckDB deleted 0, then 1 and 21, then 2."""
    with endpoint(lake) as at, connected(at) as connection:
        run = connection.execute
        run("CREATE SCHEMA l.a")
        run("CREATE TABLE l.a.t (id BIGINT) WITH ('format-version' = 3)")
        run("INSERT INTO l.a.t SELECT * FROM range(20)")
        run("INSERT INTO l.a.t SELECT * FROM range(20, 30)")
        run("DELETE FROM l.a.t WHERE id = 0")
        run("DELETE FROM l.a.t WHERE id IN (1, 21)")
        run("DELETE FROM l.a.t WHERE id = 2")
    return lake.refresh()


_LIVE = [each for each in range(3, 30) if each != 21]


def _directory(lake: Lakehouse) -> Path:
    location = TrinityLakeCatalog.over(lake).load_table("a.t").location()
    return Path(location.removeprefix("file://"))


def _rows(lake: Lakehouse) -> list[int]:
    with endpoint(lake) as at, connected(at) as connection:
        return [x for (x,) in connection.execute("SELECT id FROM l.a.t ORDER BY id").fetchall()]


def _verify(root: str) -> verify.Report:
    config = verify.Config("all", engine="local", tables=1.0, deep=True)
    return verify.run(open_storage(root, FAST), config)


def test_health_counts_each_vector_and_the_bytes_of_its_file_once(lake: Lakehouse) -> None:
    [found] = tables_health.run(lake).tables
    table = TrinityLakeCatalog.over(lake).load_table("a.t")
    live = {task.file.file_path for task in table.scan().plan_files()}
    live |= {each.file_path for task in table.scan().plan_files() for each in task.delete_files}
    sizes = [Path(each.removeprefix("file://")).stat().st_size for each in live]
    assert (2, 2, 4) == (found.data_files, found.delete_files, len(sizes))
    assert sum(sizes) == found.bytes


def test_a_vector_that_is_gone_or_cut_is_found(lake: Lakehouse) -> None:
    assert [] == list(_verify(lake.root).findings)
    first, second, *_ = sorted(_directory(lake).rglob("*.puffin"))
    first.unlink()
    second.write_bytes(second.read_bytes()[:-1])
    found = _verify(lake.root).findings
    assert {first.name, second.name} == {Path(each.message.partition("its file ")[2].split()[0]).name for each in found}
    assert {"I20"} == {each.invariant for each in found}


def test_expired_and_cleaned_with_age_zero_the_rows_stay_and_replaced_vectors_go(lake: Lakehouse) -> None:
    directory = _directory(lake)
    puffins = set(directory.rglob("*.puffin"))
    how = tables_expire.Config(older_than_seconds=0, keep_last=1)
    assert 4 == tables_expire.run(lake, how).snapshots
    expire_all_but_the_newest(lake)
    done = clean_tables(lake)
    left = set(directory.rglob("*.puffin"))
    assert done.deleted > 0
    assert left < puffins
    assert 2 == len(left), "one vector for each data file"
    assert _LIVE == _rows(lake.refresh())
    assert [] == list(_verify(lake.root).findings)


def test_a_copy_with_the_data_has_the_vectors_and_is_read_where_it_lies(lake: Lakehouse, tmp_path: Path) -> None:
    copy = (tmp_path / "copy").as_uri()
    config = export.Config(engine="local", tables=True, history=True)
    export.run(lake, copy, config, storage_options=FAST)
    shutil.rmtree(lake.root.removeprefix("file://"))
    assert [] == list(_verify(copy).findings)
    found = opened(copy).load_table("a.t").scan().to_arrow()
    assert _LIVE == sorted(found["id"].to_pylist())
