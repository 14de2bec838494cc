"""What a page shows of a stored plan."""

from __future__ import annotations

from pathlib import Path

from dagster_project.metadata.reports import of_plan, table
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


def test_an_id_is_text_in_every_table_and_a_number_stays_one() -> None:
    """A browser's numbers end at 2**53: it showed 5004221322908447064 as another snapshot."""
    shown = table(
        [
            {"snapshot": 7, "files": 3, "of": None, "size": 5},
            {"snapshot": 5004221322908447064, "files": 2**53 + 1, "of": 1, "size": 6},
        ],
        ("snapshot", "files", "of", "size"),
    )
    assert [("7", "3", None, 5), ("5004221322908447064", str(2**53 + 1), 1, 6)] == [
        tuple(row.data.values()) for row in shown.records
    ]
    assert ["string", "string", "int", "int"] == [each.type for each in shown.schema.columns]
