"""Every job over a hostile table: it is named, the nine others are served, and of no table a needed file goes."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from pipelines import export, tables_clean, tables_expire, tables_health, verify
from pipelines.cli import main
from pipelines.job import dry_run
from tests.hostile.lakehouse import (
    HOSTILE,
    NAMESPACE,
    OF_DEFINITION,
    OF_METADATA,
    SOUND,
    metadata_file,
    new_lakehouse,
)
from tests.support.icebergs import ids, opened, rows
from trinitylake_core import Lakehouse
from trinitylake_core.iceberg import TrinityLakeCatalog

NAME: Final = f"{NAMESPACE}.{HOSTILE}"
SOUND_NAMES: Final = [f"{NAMESPACE}.{each}" for each in SOUND]
LONGEST_SECONDS: Final = 60
HERE: Final = {
    "no JSON", "deep", "many elements", "packed under a plain name", "a pipe", "a link out", "no location",
    "an unknown snapshot", "a missing file", "a file of this machine", "another host",
}  # fmt: skip
"""What `make test` runs all jobs over. That the catalog refuses the others, by which jobs read, is tried there, too."""


@dataclass(frozen=True)
class Kept:
    """A lakehouse that each test gets as it was made, at the same place: metadata of tables name absolute paths."""

    directory: Path
    copy: Path

    def again(self) -> TrinityLakeCatalog:
        """Return the catalog over the lakehouse as it was made."""
        shutil.rmtree(self.directory, ignore_errors=True)
        shutil.copytree(self.copy, self.directory)
        return opened((self.directory / "lake").as_uri())


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """Ten tables with two snapshots and an abandoned append each; nine are sound, and the tenth is not hostile yet."""
    directory = tmp_path_factory.mktemp("hostile")
    catalog = new_lakehouse(directory / "place")
    for name in (*SOUND, HOSTILE):
        catalog.load_table(f"{NAMESPACE}.{name}").append(rows(2))
        catalog.load_table(f"{NAMESPACE}.{name}").transaction().append(rows(3))
    shutil.copytree(directory / "place", directory / "copy")
    return Kept(directory / "place", directory / "copy")


@pytest.fixture
def catalog(kept: Kept) -> Iterator[TrinityLakeCatalog]:
    begin = time.monotonic()
    yield kept.again()
    assert time.monotonic() - begin < LONGEST_SECONDS


def _files(lake: Lakehouse, name: str) -> set[Path]:
    """Return the files of a table that has an own directory, but for pipes and the like."""
    root = Path(lake.root.removeprefix("file://"))
    return {each for each in root.glob(f"tables/{NAMESPACE}/{name}-*/*/*") if each.is_file()}


def _clean(lake: Lakehouse, **options: Any) -> tables_clean.Report:
    how = tables_clean.Config(engine="local", older_than_seconds=0, allow_recent=True, **options)
    return tables_clean.run(lake.refresh(), how)


def _run_every_job(catalog: TrinityLakeCatalog, copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lake = catalog.lakehouse.refresh()
    health = tables_health.run(lake)
    assert set(SOUND_NAMES) == {each.table for each in health.tables} - {NAME}
    assert {*health.failures} <= {NAME}

    planned = tables_expire.run(lake, tables_expire.Config(older_than_seconds=0), review=dry_run)
    expired = tables_expire.run(lake, tables_expire.Config(older_than_seconds=0))
    assert all(set(SOUND_NAMES) == {each.table for each in done.expired} - {NAME} for done in (planned, expired))
    assert {*expired.failures} <= {NAME}

    checked = verify.run(lake, verify.Config(engine="local", tables=1.0, deep=True))
    assert all(HOSTILE in each.message for each in checked.findings)

    exported = export.run(lake, copy.as_uri(), export.Config(engine="local", tables=True))
    assert all(HOSTILE in each for each in exported.plan.tables_lacking)
    there = TrinityLakeCatalog.over(Lakehouse.open(copy.as_uri()))
    assert [[1, 2]] * len(SOUND) == [ids(there.load_table(name)) for name in SOUND_NAMES]

    for words in (["ls", lake.root, NAMESPACE, "--long"], ["stats", lake.root, "--tables"]):
        assert 0 == main([*words, "--json"])
        assert json.loads(capsys.readouterr().out)

    before = {name: _files(lake, name) for name in (*SOUND, HOSTILE)}
    stopped = _clean(lake)
    assert all(HOSTILE in each.table for each in stopped.doubts)
    if any(each.stops_all for each in stopped.doubts):
        assert before == {name: _files(lake, name) for name in (*SOUND, HOSTILE)}
        lies_at = catalog.lakehouse.table(NAMESPACE, HOSTILE).format_properties["metadata_location"].rpartition("/")[0]
        _clean(lake, apart=(lies_at or lake.root,))
    assert all(before[name] > _files(lake, name) for name in SOUND)
    assert [[1, 2]] * len(SOUND) == [ids(catalog.load_table(name)) for name in SOUND_NAMES]


def _some(names: Iterable[str]) -> list[Any]:
    return [pytest.param(name, marks=[] if name in HERE else [pytest.mark.slow]) for name in names]


@pytest.mark.parametrize("name", _some(OF_METADATA))
def test_hostile_metadata_harm_no_other_table(
    name: str, catalog: TrinityLakeCatalog, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    OF_METADATA[name](metadata_file(catalog))
    _run_every_job(catalog, tmp_path / "copy", capsys)


@pytest.mark.parametrize("name", _some(OF_DEFINITION))
def test_a_hostile_definition_harms_no_other_table(
    name: str, catalog: TrinityLakeCatalog, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    OF_DEFINITION[name](catalog)
    _run_every_job(catalog, tmp_path / "copy", capsys)
