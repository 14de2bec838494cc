"""What jobs of tables cost: each distinct file is read once, and the memory does not grow with the manifests.

MANIFESTS=100000 .venv/bin/python -m pytest -m slow tests/pipelines/test_tables_costs.py -s
"""

from __future__ import annotations

import os
import resource
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pipelines import tables_clean, tables_health
from pipelines.job import dry_run
from tests.support.many_tables import fill_tables, many_tables
from tests.support.s3_servers import S3Server
from tests.support.writers import forking
from trinitylake_core import Lakehouse
from trinitylake_core.iceberg import TrinityLakeCatalog

MANIFESTS = int(os.environ.get("MANIFESTS", "100000"))
EACH = 100


def _marked(root: str) -> tuple[tables_clean.Report, int, str]:
    """Plan a cleaning; return its report, the most memory that this process ever had in KiB, and how long it took."""
    wall, cpu = time.monotonic(), time.process_time()
    config = tables_clean.Config(engine="local")
    report = tables_clean.run(Lakehouse.open(root), config, review=dry_run)
    took = f"{time.monotonic() - wall:.1f} s, {time.process_time() - cpu:.1f} s of CPU"
    return report, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, took


def _apart(root: str) -> tuple[tables_clean.Report, int, str]:
    with ProcessPoolExecutor(1, mp_context=forking()) as pool:
        return pool.submit(_marked, root).result()


def _each_once(report: tables_clean.Report, tables: int, manifests: int, versions: int) -> None:
    changed = 1 + (tables // versions or 1) * (versions - 1)  # the first version of the first table was empty
    read = dict(report.files_read)
    assert (tables + changed, tables, tables * manifests) == tuple(
        read[kind] for kind in ("metadata", "manifest list", "manifest")
    )
    assert ((), 0) == (report.doubts, report.orphan_files)
    once = sum(read.values()) + report.nodes_read
    assert once <= report.requests["get"] <= once + 12


def test_each_manifest_is_read_once_whichever_versions_share_it(tmp_path: Path) -> None:
    catalog = many_tables(tmp_path, tables=10, manifests=8, versions=5)
    report = tables_clean.run(catalog.lakehouse, tables_clean.Config(engine="local"), review=dry_run)
    _each_once(report, 10, 8, 5)


@pytest.mark.s3
def test_a_cleaning_lists_the_directories_of_tables_together(moto_server: S3Server) -> None:
    """One page for all, where their files fill no more, and one for definitions, where transactions may lie."""
    lake = Lakehouse.create(moto_server.new_root(), storage_options=moto_server.options)
    fill_tables(TrinityLakeCatalog.over(lake), 20, 1)
    report = tables_clean.run(lake.refresh(), tables_clean.Config(engine="local"), review=dry_run)
    assert (20 * 4 + 1, ()) == (report.listed.files, report.doubts), "the first table was empty once"
    assert 2 + 1 + 17 + 1 + 1 >= report.requests["list"], "area and namespace, page, levels, page, roots"


@pytest.mark.slow
def test_memory_is_flat(tmp_path: Path, record_property: Any) -> None:
    """A tenth of the manifests, and all of them, each in a process of its own; 50 versions."""
    most = []
    for manifests in (MANIFESTS // 10, MANIFESTS):
        (tmp_path / str(manifests)).mkdir()
        catalog = many_tables(tmp_path / str(manifests), manifests // EACH, EACH, 50)
        report, peak, took = _apart(catalog.lakehouse.root)
        _each_once(report, manifests // EACH, EACH, 50)
        most.append(peak)
        print(f"{manifests} manifests: {took}, {peak >> 10} MiB, {report.requests}")
    record_property("peaks", most)
    assert most[1] < most[0] + (64 << 10)


@pytest.mark.slow
def test_the_health_of_a_thousand_tables(tmp_path: Path) -> None:
    """One ``get`` for each distinct file of metadata."""
    catalog = many_tables(tmp_path, tables=1000, manifests=2, versions=2)
    wall, cpu = time.monotonic(), time.process_time()
    report = tables_health.run(catalog.lakehouse)
    print(f"{time.monotonic() - wall:.1f} s, {time.process_time() - cpu:.1f} s of CPU, {report.requests}")
    assert (1000, {}) == (len(report.tables), report.failures)
    once = 1000 * (1 + 1 + 1 + 2)
    assert once <= report.requests["get"] <= once + 100
