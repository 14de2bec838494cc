"""A root by a link and by its target is one lakehouse: tables are written and cleaned by either, plans count."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pyarrow as pa
import pytest

from pipelines import clean, tables_clean, tables_expire, verify
from trinitylake_core import Lakehouse
from trinitylake_core.iceberg import TrinityLakeCatalog
from trinitylake_core.storage import open_storage
from trinitylake_core.tables import path_below

ROWS = pa.table({"id": [1, 2, 3]})
NOW = {"older_than_seconds": 0.0, "allow_recent": True, "engine": "local"}


@pytest.fixture
def roots(tmp_path: Path) -> tuple[str, str]:
    """The URIs of one lakehouse: that of its directory, and that of a link to the directory above it."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    target, link = ((tmp_path / name / "lake").as_uri() + "/" for name in ("disk", "link"))
    Lakehouse.create(target)
    return target, link


def test_tables_are_written_by_either_name_and_every_file_is_kept(roots: tuple[str, str]) -> None:
    """Each table is made by one name, written by both, and cleaned by both, with orphans that go."""
    for made_by, other in (roots, roots[::-1]):
        mine, theirs = TrinityLakeCatalog("a", uri=made_by), TrinityLakeCatalog("b", uri=other)
        name = f"s.by_{'link' if made_by == roots[1] else 'target'}"
        mine.create_namespace_if_not_exists("s")
        mine.create_table(name, ROWS.schema).append(ROWS)
        theirs.load_table(name).append(ROWS)
        mine.create_table("s.gone", ROWS.schema).append(ROWS)
        mine.drop_table("s.gone")
    for root in roots:
        lake = Lakehouse.open(root)
        done = tables_clean.run(lake, tables_clean.Config(**NOW))
        assert [] == list(done.doubts)
        assert {} == tables_expire.run(lake.refresh(), tables_expire.Config()).failures
        checked = verify.run(open_storage(root), verify.Config(versions="all", tables=1.0, deep=True, engine="local"))
        assert checked.ok
        catalog = TrinityLakeCatalog("a", uri=root)
        for name in ("s.by_target", "s.by_link"):
            assert 6 == catalog.load_table(name).scan().to_arrow().num_rows


def test_a_plan_that_was_made_by_one_name_is_carried_out_by_the_other(roots: tuple[str, str], tmp_path: Path) -> None:
    target, link = roots
    lake = Lakehouse.open(target)
    orphan = tmp_path / f"disk/lake/_lakehouse_def_{uuid.uuid4()}.binpb"
    orphan.write_bytes(b"orphan")
    os.utime(orphan, (1_700_000_000, 1_700_000_000))
    plan = (tmp_path / "plan.parquet").as_uri()
    clean.run(lake, clean.Config(**NOW, plan_to=plan))
    assert 1 == clean.run(Lakehouse.open(link), clean.Config(**NOW, plan=plan)).deleted
    assert not orphan.exists()


def test_a_table_below_another_root_is_not_below_this_one(roots: tuple[str, str], tmp_path: Path) -> None:
    target, link = roots
    for root in roots:
        assert "tables/t/x" == path_below(root, f"{target}tables/t/x") == path_below(root, f"{link}tables/t/x")
        for other in ("elsewhere/lake/tables/t/x", "disk/tables/t/x", "link/lakes/tables/t/x"):
            assert path_below(root, (tmp_path / other).as_uri()) is None
