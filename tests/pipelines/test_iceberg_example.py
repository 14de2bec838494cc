"""The example of docs/iceberg.md does what its page says."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from examples import iceberg

PAGE = Path(__file__).parents[2] / "docs" / "iceberg.md"
VARIES = re.compile(r"snapshot \d+ of [0-9:]+|\d+ messages before|verified: \d+ versions")
PRINTED = """\
4 processes append 3 times to each of 3 tables
    sales.orders    12 rows by PyIceberg,  12 by DuckDB
    sales.items     12 rows by PyIceberg,  12 by DuckDB
    crm.customers   12 rows by PyIceberg,  12 by DuckDB
compaction: 41 messages before, 0 after
a bad job overwrites one table and drops another, in one version
    sales.orders     1 rows by PyIceberg,   1 by DuckDB
    sales.items     12 rows by PyIceberg,  12 by DuckDB
    crm.customers  is gone
plan: crm.customers goes back to snapshot 8261799010294240141 of 05:21:58
plan: sales.orders goes back to snapshot 231133866517319464 of 05:21:56
rolled back: the whole lakehouse is as it was
    sales.orders    12 rows by PyIceberg,  12 by DuckDB
    sales.items     12 rows by PyIceberg,  12 by DuckDB
    crm.customers   12 rows by PyIceberg,  12 by DuckDB
verified: 45 versions, 42 metadata files, 0 findings
the bad version can still be looked at: sales.orders has 1 row there"""


@pytest.mark.slow  # four processes that write: nine seconds of CPU, and what they prove the mayhem of tables does, too
def test_the_example_does_what_its_page_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Snapshot IDs, times, and how often a writer had to try again vary; what is read does not."""
    iceberg.run(tmp_path)
    assert VARIES.sub("…", PRINTED) == VARIES.sub("…", capsys.readouterr().out.rstrip())


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
