"""A storage that hangs for the files of one table: the others go on, it is named, and nothing of it is deleted."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from pipelines import compaction, expire, tables_clean, tables_expire, tables_health
from pipelines.cli import main
from tests.support.icebergs import ids, rows, with_table
from tests.support.mayhem import DAY
from tests.support.misbehaving import Misbehaving
from tests.support.s3_servers import S3Server
from trinitylake_core import Lakehouse
from trinitylake_core.clock import now_millis
from trinitylake_core.errors import StorageError
from trinitylake_core.iceberg import TrinityLakeCatalog

pytestmark = pytest.mark.s3
HANGS = "sales.hangs"
_PATIENCE = {"request_timeout": 4, "connect_timeout": 4, "read_timeout": 4, "retries": 1}
_TICK_SECONDS = 1.1


@pytest.fixture
def proxy(moto_server: S3Server) -> Iterator[Misbehaving]:
    with Misbehaving(moto_server.endpoint) as server:
        server.delay = 12.0
        server.slow_for = b"never"
        yield server


@pytest.fixture
def behind(moto_server: S3Server, proxy: Misbehaving) -> tuple[str, dict[str, Any]]:
    """Two tables with three snapshots each, of which only the newest version is left; the way leads by the proxy."""
    root = moto_server.new_root()
    catalog = TrinityLakeCatalog.over(Lakehouse.create(root, storage_options=moto_server.options))
    for name in (HANGS, "sales.good"):
        table = with_table(catalog, name, 1)
        table.append(rows(2))
        table.append(rows(3))
        with_table(catalog, f"{name}_dropped", 4)
        catalog.drop_table(f"{name}_dropped")
    return root, {**moto_server.options, **_PATIENCE, "endpoint_url": proxy.endpoint}


@pytest.fixture
def lake(behind: tuple[str, dict[str, Any]]) -> Lakehouse:
    return Lakehouse.open(behind[0], storage_options=behind[1])


def everything_expires(lake: Lakehouse) -> None:
    compaction.run(lake, compaction.Config(engine="local"))
    config = expire.Config(engine="local", keep_last=1, now_millis=now_millis() + 30 * DAY)
    expire.run(lake, config)
    time.sleep(_TICK_SECONDS)


def below(lake: Lakehouse, name: str) -> set[str]:
    return {each.path for each in lake.storage.list(f"tables/sales/{name}-")}


def clean(lake: Lakehouse, apart: tuple[str, ...] = ()) -> tables_clean.Report:
    how = tables_clean.Config(engine="local", older_than_seconds=0, allow_recent=True, apart=apart)
    return tables_clean.run(lake.refresh(), how)


def test_the_health_of_the_others_is_shown(
    lake: Lakehouse, proxy: Misbehaving, behind: tuple[str, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    proxy.slow_for = b"/hangs-"
    report = tables_health.run(lake)
    assert (["sales.good"], [HANGS]) == ([each.table for each in report.tables], [*report.failures])
    options = [word for name, value in behind[1].items() for word in ("--storage-option", f"{name}={value}")]
    assert 4 == main(["tables", "health", behind[0], "--json", *options])
    assert [HANGS] == [*json.loads(capsys.readouterr().out)["failures"]]


def test_snapshots_of_the_others_expire(lake: Lakehouse, proxy: Misbehaving) -> None:
    proxy.slow_for = b"/hangs-"
    report = tables_expire.run(lake, tables_expire.Config(older_than_seconds=0))
    assert (["sales.good"], [HANGS], 1) == (
        [each.table for each in report.expired], [*report.failures], report.versions,
    )  # fmt: skip
    proxy.slow_for = b"never"
    assert [HANGS] == [
        each.table for each in tables_expire.run(lake, tables_expire.Config(older_than_seconds=0)).expired
    ]


def test_nothing_goes_but_what_the_others_do_not_need_where_its_owner_vouches_for_it(
    lake: Lakehouse, proxy: Misbehaving
) -> None:
    tables_expire.run(lake, tables_expire.Config(older_than_seconds=0))
    everything_expires(lake)
    before = below(lake, "hangs"), below(lake, "good")
    proxy.slow_for = b"/hangs-"
    assert 0 == clean(lake).attempted
    (directory,) = {path[: path.index("/", 13) + 1] for path in before[0]}
    report = clean(lake, apart=(directory,))
    (doubt,) = report.doubts
    assert (HANGS.replace(".", "-"), True) == (doubt.table, doubt.directory.startswith("tables/sales/hangs-"))
    assert "cannot be read now" in doubt.reason
    assert "try again when the storage answers" in doubt.reason
    assert any("left alone, because of a doubt (1 finding)" in line for line in report.summary())
    proxy.slow_for = b"never"
    assert before[0] == below(lake, "hangs")
    assert before[1] > below(lake, "good")
    assert set() == below(lake, "good_dropped") | below(lake, "hangs_dropped")
    assert 0 < clean(lake).deleted
    assert before[0] > below(lake, "hangs")
    catalog = TrinityLakeCatalog.over(lake)
    assert [[1, 2, 3]] * 2 == [ids(catalog.load_table(name)) for name in (HANGS, "sales.good")]


@pytest.mark.slow
@pytest.mark.parametrize("silent", [b"tables%2Fsales%2Fhangs-", b"-table-sales-hangs"])
def test_nothing_at_all_is_deleted_where_it_is_unknown_what_there_is(
    lake: Lakehouse, proxy: Misbehaving, silent: bytes
) -> None:
    """A listing of its directory, or its definition, which names what is needed."""
    everything_expires(lake)
    before = {each.path for each in lake.storage.list("tables/")}
    proxy.slow_for = silent
    with pytest.raises(StorageError):
        clean(lake)
    proxy.slow_for = b"never"
    assert before == {each.path for each in lake.storage.list("tables/")}


def test_a_storage_that_gives_no_table_ends_the_cleaning(lake: Lakehouse, proxy: Misbehaving) -> None:
    """It is not taken for seventeen doubts."""
    catalog = TrinityLakeCatalog.over(lake)
    for number in range(17):
        with_table(catalog, f"sales.t{number}")
    everything_expires(lake)
    proxy.slow_for = b".metadata.json"
    with pytest.raises(StorageError, match="the storage does not answer"):
        clean(lake)
