"""Tables with any history that share files and spell them in any way: cleaned at age zero, no needed file goes.

HISTORIES=500 .venv/bin/python -m pytest tests/pipelines/test_tables_any_history.py
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest
from pyiceberg.exceptions import NoSuchTableError

from pipelines import compaction, expire
from tests.support.icebergs import new_iceberg, rows, with_table
from tests.support.needed_files import find_needed
from tests.support.respelled import Spelling, needed_by, respell_all, respell_data, respell_manifests
from tests.support.zero_age import clean_tables
from trinitylake_core.iceberg import TrinityLakeCatalog

HISTORIES: Final = int(os.environ.get("HISTORIES", "8"))
NAMES: Final = tuple(f"sales.t{number}" for number in range(3))
STEPS: Final = ("append", "delete", "overwrite", "abandon", "borrow", "drop", "register elsewhere")


def _data_files(catalog: TrinityLakeCatalog, name: str) -> list[str]:
    return [str(each) for each in needed_by(catalog.load_table(name)) if each.suffix == ".parquet"]


def _change(chance: random.Random, catalog: TrinityLakeCatalog, other: TrinityLakeCatalog, number: int) -> None:
    """Change one of the tables."""
    name, step = chance.choice(NAMES), chance.choice(STEPS)
    table = catalog.load_table(name)
    if step == "append":
        table.append(rows(number))
    elif step == "delete":
        table.delete("id = 1")
    elif step == "overwrite":
        table.overwrite(rows(number))
    elif step == "abandon":
        table.transaction().append(rows(number))
    elif step == "borrow":
        table.add_files(_data_files(catalog, chance.choice(NAMES)), check_duplicate_files=False)
    elif step == "drop":
        catalog.drop_table(name)
    else:
        theirs = with_table(other, f"a.t{number}")
        theirs.add_files(_data_files(catalog, name))
        catalog.register_table(f"sales.theirs{number}", theirs.metadata_location)


def _spellings(directory: Path) -> list[Spelling]:
    """Return ways to name a file of the lakehouse in a directory; of those that nobody can read, only data files."""
    link, lake = directory / "link", f"{directory}/lake"
    link.symlink_to(directory)

    def of_data(spell: Spelling) -> Spelling:
        return lambda uri: spell(uri) if uri.endswith(".parquet") else uri

    return [
        lambda uri: uri.replace("/tables/", "//tables/"),
        lambda uri: uri.replace("file://", "file://localhost"),
        lambda uri: uri.replace(lake, f"{link}/lake"),
        lambda uri: uri.removeprefix("file://"),
        of_data(lambda uri: uri.replace("file://", "s3://bucket")),
        of_data(lambda uri: uri.replace("-", "%2D")),
        of_data(lambda uri: uri.replace(lake, "/mnt/lake")),
    ]


def _respell(chance: random.Random, catalog: TrinityLakeCatalog, directory: Path) -> None:
    """Let each table of the lakehouse name its files in one of the ways, some of them or all."""
    spellings = _spellings(directory)
    hows: list[Callable[..., None]] = [respell_data, respell_manifests, respell_all]
    for name in catalog.list_tables("sales"):
        table = catalog.load_table(name)
        if table.location().startswith(catalog.lakehouse.root):
            with suppress(FileNotFoundError):  # one that another table shares has been respelled before
                chance.choice(hows)(table, chance.choice(spellings))


@pytest.mark.filterwarnings("ignore:Delete operation did not match any records")
@pytest.mark.parametrize("seed", range(HISTORIES))
def test_no_file_that_a_retained_version_needs_goes(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    (tmp_path / "other").mkdir()
    catalog, other = new_iceberg(tmp_path), new_iceberg(tmp_path / "other")
    for name in NAMES:
        with_table(catalog, name, 1)
    for number in range(chance.randint(4, 10)):
        with suppress(NoSuchTableError, ValueError):  # it was dropped, or has no file to lend
            _change(chance, catalog, other, number)
    if chance.random() < 0.5:
        compaction.run(catalog.lakehouse, compaction.Config(engine="local"))
        later = int(time.time() * 1000) + 30 * 86_400_000
        how = expire.Config(engine="local", keep_last=chance.randint(1, 4), now_millis=later)
        expire.run(catalog.lakehouse.refresh(), how)
    needed = [each for each in map(Path, find_needed(tmp_path / "lake")) if each.exists()]
    metadata = [each for each in needed if each.suffix != ".parquet"]
    _respell(chance, catalog, tmp_path)
    broken = chance.choice(sorted(metadata)) if metadata and chance.random() < 0.3 else None
    content = b"" if broken is None else broken.read_bytes()
    if broken is not None:
        broken.write_bytes(b"")
    report = clean_tables(catalog.lakehouse)
    assert any(each.stops_all for each in report.doubts) == (broken is not None)
    if broken is not None:
        assert 0 == report.deleted
        broken.write_bytes(content)
    assert [] == [each for each in needed if not each.exists()]
