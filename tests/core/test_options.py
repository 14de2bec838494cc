"""The keywords of the front door are typed: a type checker sees a wrong name or a wrong type."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from trinitylake_core.definitions import TableDef, altered_table, new_lakehouse_def, table_def, view_def

ROOT = Path(__file__).parents[2]
WRONG = """
from trinitylake_core import Lakehouse, Transaction

lake = Lakehouse.create("file:///x", ordr=3)  # wrong
lake = Lakehouse.create("file:///x", order="3")  # wrong
def change(txn: Transaction) -> None:
    txn.create_table("n", "t", primary_key=["id"])  # wrong
    txn.create_table("n", "t", properties={"a": 1})  # wrong
    txn.create_table("n", "t", properties={"a": None})  # wrong
    txn.alter_table("n", "t", shema=None)  # wrong
    txn.create_view("n", "v", sq="SELECT 1")  # wrong
    txn.replace_view("n", "v", dialekt="spark")  # wrong
    txn.alter_namespace("n", {"a": 1})  # wrong
    txn.create_snapshot("s")  # wrong
    txn.table_info("n", "t").propertys  # wrong
    lake.alter({"a": "b"}, dryrun=True)  # wrong
"""
RIGHT = """
import pyarrow as pa
from trinitylake_core import Lakehouse, TableInfo, Transaction

lake: Lakehouse = Lakehouse.create("file:///x", order=3, properties={"a": "b"}, storage_options={"durable": False})
def change(txn: Transaction) -> TableInfo:
    txn.create_namespace("n", {"a": "b"})
    txn.create_table("n", "t", pa.schema([]), primary_keys=["id", 1], format_properties={"a": "b"})
    txn.alter_table("n", "t", schema=pa.schema([]), properties={"a": None}, sort_keys=[])
    txn.create_view("n", "v", sql="SELECT 1", dialect="spark")
    txn.replace_view("n", "v", "SELECT 2", schema_binding=None)
    txn.alter_namespace("n", {"a": None})
    return txn.table_info("n", "t")
"""


@pytest.mark.parametrize("call", [new_lakehouse_def, table_def, view_def, partial(altered_table, TableDef())])
def test_a_keyword_that_no_definition_has_is_refused(call: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'ordr'"):
        call(ordr=3)


@pytest.mark.slow
def test_mypy_sees_every_typo_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text(WRONG)
    (tmp_path / "right.py").write_text(RIGHT)
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--cache-dir", str(tmp_path / "c")]
    run = subprocess.run(
        [*command, str(tmp_path / "wrong.py"), str(tmp_path / "right.py")],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    wrong = {int(line.split(":")[1]) for line in run.stdout.splitlines() if "wrong.py:" in line and " error: " in line}
    expected = {number for number, line in enumerate(WRONG.splitlines(), 1) if line.endswith("# wrong")}
    assert expected == wrong, run.stdout
    assert "right.py" not in run.stdout
