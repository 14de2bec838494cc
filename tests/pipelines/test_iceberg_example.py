"""The example of docs/iceberg.md does what its page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from examples import iceberg

PAGE = Path(__file__).parents[2] / "docs" / "iceberg.md"
VARIES = re.compile(r"snapshot \d+ of [0-9:]+|\d+ messages before|verified: \d+ versions")


def test_the_example_prints_what_its_page_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Snapshot IDs, times, and how often a writer had to try again vary; what is read does not."""
    iceberg.run(tmp_path)
    block = PAGE.read_text(encoding="utf-8").partition("    4 processes append")[2].partition("\n\n")[0]
    shown = re.sub(r"^    ", "", "    4 processes append" + block, flags=re.MULTILINE)
    assert VARIES.sub("…", shown) == VARIES.sub("…", capsys.readouterr().out.rstrip())
