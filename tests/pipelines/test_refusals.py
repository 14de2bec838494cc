"""Command lines that are refused, and the one line that each is told: refusals.txt, which people read.

REFUSALS=write .venv/bin/python -m pytest -n0 tests/pipelines/test_refusals.py
"""

from __future__ import annotations

import io
import json
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from pipelines import cli
from pipelines.cli.program import ENTRIES
from pipelines.session import spark as spark_sessions
from pipelines.source.columns import schema_of
from tests.support.icebergs import new_iceberg, rows, with_table
from tests.support.lakes import FAST
from trinitylake_core import Lakehouse

FILE: Final = Path(__file__).with_name("refusals.txt")
SPLIT: Final = "    "


class Refusal(NamedTuple):
    """A command line, what it reads from standard input, and what it is told."""

    line: str
    given: list[str]
    told: str

    @classmethod
    def all_of(cls, text: str) -> Iterator[Refusal]:
        """Yield what a text holds: a line each, input below it behind ``<``, and the answer."""
        for part in text.split("\n$ ")[1:]:
            line, *below = part.rstrip().split("\n")
            given = [each.removeprefix(f"{SPLIT}< ") for each in below if each.startswith(f"{SPLIT}<")]
            (told,) = (each.removeprefix(SPLIT) for each in below if not each.startswith(f"{SPLIT}<"))
            yield cls(line, given, told)

    def text(self) -> str:
        """Return it as it stands in the file."""
        return "\n".join([f"$ {self.line}", *(f"{SPLIT}< {each}" for each in self.given), f"{SPLIT}{self.told}"])


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_environment: None) -> Path:
    """A directory with a lakehouse of one version, and one with an Iceberg table of six files; Spark cannot start."""
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    monkeypatch.setattr(spark_sessions, "active_session", lambda: None)
    monkeypatch.chdir(tmp_path)
    lake = Lakehouse.create((tmp_path / "lake").as_uri(), order=5, storage_options=FAST)
    with lake.transaction() as txn:
        for namespace in ("sales", "a", "a.b"):
            txn.create_namespace(namespace, {"owner": "emea"})
        txn.create_table("sales", "orders", schema=schema_of([{"name": "id", "type": "bigint"}]))
        txn.create_table("sales", "iceberg", format_properties={"metadata_location": "tables/x/metadata/1.json"})
        txn.create_view("sales", "top", sql="SELECT 1")
    (tmp_path / "of-others").write_text("not ours\n")
    (tmp_path / "tables").mkdir()
    table = with_table(new_iceberg(tmp_path / "tables"), "sales.orders")
    for number in range(6):
        table.append(rows(number))
    return tmp_path


def answer(refusal: Refusal, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the exit code and the line that a command line is told; as JSON it is told the same."""
    line = refusal.line
    for name, place in (("ROOT", "lake"), ("TABLES", "tables/lake"), ("NEW", "new")):
        line = line.replace(name, (here / place).as_uri())
    words = shlex.split(line)
    command = next((each for each in (words[:2], words[:1]) if " ".join(each) in ENTRIES), [])
    told = []
    asks_for_json = bool(command) and not re.search("--format|--js|--follow", line)
    for given in (words, [*command, "--json", *words[len(command) :]])[: 1 + asks_for_json]:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("\n".join(refusal.given).encode())))
        capsys.readouterr()
        code = cli.main(given)
        out, err = capsys.readouterr()
        assert 1 == err.count("\n"), err
        assert err.rstrip("\n").isprintable()
        assert err.startswith("error: ")
        kind = "error"
        if out:
            said = json.loads(out)["error"]
            kind = said["type"]
            assert err == f"error: {said['message']}\n"
        told.append(f"{code} {kind}: {err.removeprefix('error: ').rstrip()}")
    assert 1 == len({each.partition(": ")[2] for each in told}), told
    text = told[-1]
    for name, place in (("TABLES", "tables/lake"), ("ROOT", "lake"), ("NEW", "new")):
        text = text.replace((here / place).as_uri(), name)
    return text.replace(str(here), "HERE")


def test_whatever_is_refused_is_told_in_one_line_and_changes_nothing(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is wrong, and what would be right."""
    written = FILE.read_text(encoding="utf-8")
    before = {each: each.read_bytes() for each in here.rglob("*") if each.is_file()}
    found = [
        each._replace(told=answer(each, here, monkeypatch, capsys)).text() for each in Refusal.all_of(f"\n{written}")
    ]
    text = "\n".join(found) + "\n"
    if os.environ.get("REFUSALS") == "write":
        FILE.write_text(text, encoding="utf-8")
    assert written == text
    assert before == {each: each.read_bytes() for each in here.rglob("*") if each.is_file()}
