"""The example of docs/iceberg.md does what its page says."""

from __future__ import annotations

import re
import textwrap
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


def test_the_code_of_the_page_prints_what_stands_beside_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every block of Python, in order; DuckDB loads the extension that PyPI has, without a network."""
    blocks = re.findall(r"(?:^(?: {4}.*)?\n)+", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    code_line = re.compile(r"^ {4}(?:import |.*print\()", re.MULTILINE)
    python = "\n".join(textwrap.dedent(each) for each in blocks if code_line.search(each))
    python = re.sub(r"^pip install .*$", "", python, flags=re.MULTILINE)
    code = python.replace("/tmp/lake", str(tmp_path / "lake"))
    code = code.replace("LOAD iceberg", f"LOAD '{iceberg.extension('avro')}'; LOAD '{iceberg.extension('iceberg')}'")
    capsys.readouterr()
    exec(compile(code, "docs/iceberg.md", "exec"), {})
    said = re.findall(r"^print\(.*  # (.*)$", python, re.MULTILINE)
    assert 4 == len(said)
    assert not re.search(r"duckdb\.sql|fetchone", python), "relations of DuckDB 2 have no fetchone()"
    assert said == capsys.readouterr().out.splitlines()
