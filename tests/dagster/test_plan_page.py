"""What a page shows of a stored plan."""

from __future__ import annotations

from pathlib import Path

from dagster_project.metadata.reports import of_plan
from pipelines import tables_clean
from tests.support.icebergs import new_iceberg, rows, with_table


def test_a_plan_shows_files_and_not_the_tables_that_it_is_for(tmp_path: Path) -> None:
    catalog = new_iceberg(tmp_path)
    with_table(catalog, "sales.orders", 1).transaction().append(rows(2))
    plan = tmp_path / "plan.parquet"
    how = tables_clean.Config(engine="local", older_than_seconds=0, allow_recent=True, plan_to=str(plan))
    assert 3 == tables_clean.run(catalog.lakehouse.refresh(), how).orphan_files
    shown = of_plan(plan)
    assert 3 == shown["plan_files"]
    assert "plan_files_shown" not in shown
    assert ["data", "manifest", "manifest"] == sorted(row.data["kind"] for row in shown["plan"].records)
