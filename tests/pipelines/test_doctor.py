"""The doctor compares how long tables keep with how long the lakehouse does, and warns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipelines import expire, tables_clean
from pipelines.cli import main
from pipelines.doctor import advice, table_retention
from tests.support.icebergs import new_iceberg, rows, with_table
from tests.support.surgery import Surgery
from trinitylake_core.clock import now_millis
from trinitylake_core.definitions import encode
from trinitylake_core.iceberg import TrinityLakeCatalog
from trinitylake_core.tables import ELSEWHERE

DAY = 86_400_000
AGE = "history.expire.max-snapshot-age-ms"


@pytest.fixture
def catalog(tmp_path: Path) -> TrinityLakeCatalog:
    made = new_iceberg(tmp_path)
    with_table(made, "sales.default")
    with_table(made, "sales.long", properties={AGE: str(400 * DAY)})
    with_table(made, "sales.short", properties={AGE: str(DAY)})
    return made


@pytest.mark.parametrize(("days", "too_soon"), [(0, []), (2, ["sales.short"]), (9, ["sales.default", "sales.short"])])
def test_tables_that_expire_before_the_lakehouse_does_are_named(
    catalog: TrinityLakeCatalog, days: int, too_soon: list[str]
) -> None:
    found = table_retention(catalog.lakehouse, now=now_millis() + days * DAY)
    assert found is not None
    assert (too_soon, len(too_soon), 3, False) == (found.too_soon, found.too_soon_count, found.tables, found.more)
    warned = list(advice(found, f"{days}d"))
    assert [] == warned if not too_soon else all(name in warned[0] for name in too_soon)


def test_a_snapshot_of_the_lakehouse_counts_after_its_version_expired(catalog: TrinityLakeCatalog) -> None:
    """Versions are kept for a moment here, the snapshot for ever."""
    lake = catalog.lakehouse
    lake.create_snapshot("old", version=1)
    later = now_millis() + 30 * DAY
    expire.run(lake.refresh(), expire.Config(engine="local", keep_last=1, now_millis=later))
    lake.refresh()
    assert lake.stats().oldest_version > 1
    found, old = table_retention(lake, now=later), lake.at(snapshot="old").info().created_at_millis
    assert found is not None
    assert (later - old) / 1000 == found.kept_seconds


def test_tables_that_delete_their_metadata_are_named(catalog: TrinityLakeCatalog) -> None:
    with catalog.load_table("sales.long").transaction() as txn:
        txn.set_properties({"write.metadata.delete-after-commit.enabled": "true"})
    found = table_retention(catalog.lakehouse)
    assert found is not None
    assert ["sales.long"] == found.deleting
    assert "sales.long" in next(advice(found, "1h"))


@pytest.mark.parametrize("what", ["metadata", "manifest list"])
def test_what_something_else_deleted_is_named_and_tables_that_are_cleaned_here_may_expire_early(
    catalog: TrinityLakeCatalog, what: str
) -> None:
    for number in (1, 2):
        catalog.load_table("sales.default").append(rows(number))
    catalog.load_table("sales.default").transaction().append(rows(3))
    lake = catalog.lakehouse.refresh()
    tables_clean.run(lake, tables_clean.Config("local", older_than_seconds=0, allow_recent=True))
    expire.run(lake, expire.Config("local", keep_last=2, older_than_seconds=0, now_millis=now_millis() + 30 * DAY))
    found = table_retention(lake.refresh(), now=now_millis() + 9 * DAY)
    assert found is not None
    assert ([], []) == (found.too_soon, found.lost)
    before = lake.at(version=lake.stats().oldest_version).table_info("sales", "default")
    named = Path(lake.root.removeprefix("file://"), before.format_properties["metadata_location"])
    lists = named.parent.glob("snap-*.avro")
    gone = named if what == "metadata" else min(lists, key=lambda path: path.stat().st_mtime_ns)
    gone.unlink()
    found = table_retention(lake.refresh())
    assert found is not None
    assert ["sales.default"] == found.lost
    assert "Stop it" in next(advice(found, "9d"))


def test_a_table_of_0_1_0_whose_location_is_away_from_its_metadata_is_named(
    catalog: TrinityLakeCatalog, capsys: pytest.CaptureFixture[str]
) -> None:
    """No client of an endpoint is given it (403), and only the page on upgrading said so."""
    away = {"write.metadata.path": f"{catalog.lakehouse.root}elsewhere/away/metadata"}
    with_table(catalog, "sales.away", 1, properties=away)
    assert 0 == main(["doctor", catalog.lakehouse.root, "--json"])
    assert [] == json.loads(capsys.readouterr().out)["tables"]["foreign"]
    (path,) = [each.path for each in catalog.lakehouse.refresh().objects() if each.name == "away"]
    definition = catalog.lakehouse.table("sales", "away")
    assert definition.format_properties.pop(ELSEWHERE, "")
    Surgery(catalog.lakehouse.root, 4).write(path, encode(definition))
    assert 0 == main(["doctor", catalog.lakehouse.root])
    assert "register the file again (`register_table` with `overwrite`): sales.away" in capsys.readouterr().out


def test_the_command_line_warns_and_a_lakehouse_without_tables_needs_no_warning(
    catalog: TrinityLakeCatalog, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert 0 == main(["doctor", catalog.lakehouse.root, "--json"])
    assert 3 == json.loads(capsys.readouterr().out)["tables"]["tables"]
    assert table_retention(catalog.lakehouse.at(version=0)) is None
    assert 0 == main(["doctor", (tmp_path / "empty").as_uri(), "--json"])
    assert json.loads(capsys.readouterr().out)["tables"] is None
