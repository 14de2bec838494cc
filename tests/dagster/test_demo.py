"""``make demo``: what it promises, on a smaller catalog, and what the pages quote of it."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg
import pytest

from dagster_project.config.settings import LakehouseSettings
from dagster_project.resources import SparkResource
from examples import demo
from trinitylake_core import Lakehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
VARIES = re.compile(r"\d{4}-\d\d-\d\dT[0-9:.]+Z|\d[\d,.]*(?: [KM]iB| ms)?")


def mask(text: str) -> set[str]:
    """Return the lines of an output without what differs between runs, sizes and machines."""
    return {re.sub(r"\s+", " ", VARIES.sub("…", line)).strip() for line in text.splitlines()} - {""}


def test_the_demo_makes_what_is_counted_less_and_brings_the_rows_back(
    tmp_path: Path,
    instance: dg.DagsterInstance,
    spark: SparkSession,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The story of ``make demo`` ends well, all of it measured in the run; the page quotes lines that it prints."""
    directory = tmp_path / "demo"
    root = (directory / "lakehouse").as_uri()
    stanza = {"name": "demo", "root": root, "spark": {"master": "local[2]"}}
    sizes = demo.Sizes(tables=1_500, changes=800, rows=1_000)
    settings = LakehouseSettings.model_validate(stanza)
    assert demo.run(directory, settings, instance, sizes, SparkResource(keep_running=True)) == 0
    printed = capsys.readouterr().out
    lake = Lakehouse.open(root)
    operations = [each.operation for each in lake.history(limit=4)]
    assert ["rollback", "commit", "compact", "commit"] == operations
    assert (directory / "before-and-after.png").stat().st_size > 5_000
    assert 7 == printed.count("proved: ")
    quoted = (ROOT / "README.md").read_text(encoding="utf-8").partition("`make demo` ends with:\n\n")[2]
    block = quoted.partition("\n\n![")[0].replace("./lakehouse", str(directory / "lakehouse"))
    assert 8 < len(mask(block))
    assert set() == mask(block) - mask(printed)


def test_the_demo_does_not_judge_times(capsys: pytest.CaptureFixture[str]) -> None:
    """A busy machine makes a time longer, and is named; a root that grew fails the demo."""
    before = demo.Measured(1, waiting=9, root_bytes=900, open_seconds=0.1, lookup_seconds=0.1, commit_bytes=900)
    after = demo.Measured(2, waiting=0, root_bytes=90, open_seconds=0.2, lookup_seconds=0.2, commit_bytes=90)
    assert demo.show(before, after)
    assert "A time became longer" in capsys.readouterr().out
    assert not demo.show(before, dataclasses.replace(after, root_bytes=901))
