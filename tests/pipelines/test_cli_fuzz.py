"""Odd command lines made from what click knows of the options: no traceback, no bug, documented codes, bounded."""

from __future__ import annotations

import io
import os
import random
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from pipelines import cli
from pipelines.cli.contents import ENTRIES
from pipelines.cli.program import load
from trinitylake_core import Lakehouse

CHECKOUT = Path(__file__).parents[2]
TABLE = (CHECKOUT / "docs/troubleshooting.md").read_text(encoding="utf-8").partition("## Exit codes")[2]
CODES = {int(each) for each in re.findall(r"^\| (\d+) \|", TABLE, re.MULTILINE)}
ALL = 400
IN_ONE_PROCESS = 60
SEED = 4711
SECONDS = 30.0
GIGABYTES = 3
WORDS = r"""
- -- 0 1 2 3 -1 007 1e9 nan inf true null = a=b a= =b { [] * ? \ . .. / ~
HEAD HEAD~1 HEAD~99 head snapshot: snapshot:good good 1d -1d 0s 99999w 2026-11-23 2999-01-01
sales sales.orders sales.* a\.b.c ../.. ~nobody ./lake lake copy ./new known nowhere.parquet
list.yaml bad.yaml lines.jsonl empty.jsonl lakehouses.yaml /dev/null file: file:///
s3:// s3:///x hdfs://x/y ftp://x http://x/y iceberg:none local spark auto SNAPSHOT table csv json
"""
VALUES = (
    *("", " ", "9" * 41, "x" * 300, '{"a": 1}', "ü", "\u200b", "\U0001f9ca", "\x1b[31m"),
    *WORDS.split(),
)
NEEDED = {
    "alter": ["--set", "a=b"],
    "freeze": ["--reason", "x"],
    "restore": ["--only", "sales.*", "--version", "0", "--reason", "x"],
    "rollback": ["--to-version", "HEAD", "--reason", "x"],
    "undo": ["--since", "1d", "--reason", "x"],
}
"""What some commands ask for, so that most lines get further than that."""
ENDLESS = "serve"
"""It answers requests until it is ended."""
NEVER = frozenset({"--master", "--remote", "--spark-conf", "--help", "-h", "--follow"})
"""Options that would start Spark, which takes seconds, print a text only, or wait for ever."""


def command_lines(count: int, seed: int = SEED) -> Iterator[list[str]]:
    """Yield command lines: a command of click's tree, some of its options with odd values, odd arguments."""
    chance = random.Random(seed)
    for _ in range(count):
        name = chance.choice([each for each in ENTRIES if each != ENDLESS])
        command = load(name)
        words = name.split()
        options = [each for each in command.params if isinstance(each, click.Option) and NEVER.isdisjoint(each.opts)]
        for option in chance.sample(options, min(len(options), chance.choice((0, 1, 1, 2, 3)))):
            words.append(option.opts[0])
            if not option.is_flag or chance.random() < 0.05:
                known = list(option.type.choices) if isinstance(option.type, click.Choice) else []
                words.append(chance.choice(known) if known and chance.random() < 0.7 else chance.choice(VALUES))
        required = sum(required for _, required in command.entry.arguments)
        given = max(0, required + chance.choice((0, 0, 0, 0, 1, -1)))
        arguments = ["lake" if chance.random() < 0.7 else chance.choice(VALUES) for _ in range(min(given, 1))]
        arguments += [
            chance.choice(("sales", "list.yaml", "HEAD", "./new", chance.choice(VALUES))) for _ in range(given - 1)
        ]
        words[len(name.split()) : len(name.split())] = arguments
        if name in NEEDED and chance.random() < 0.7:
            words += NEEDED[name]
        if any(each.opts[0] == "--engine" for each in options) and "--engine" not in words:
            words += ["--engine", "local"]
        yield [each.replace("\0", "") for each in words]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory with a lakehouse, its copy, lists, and a ``lakehouses.yaml``, which is the current one."""
    lake = Lakehouse.create(tmp_path / "lake")
    with lake.transaction() as txn:
        txn.create_namespace("sales")
        txn.create_table("sales", "orders")
    lake.refresh().create_snapshot("good")
    shutil.copytree(tmp_path / "lake", tmp_path / "copy")
    (tmp_path / "list.yaml").write_text("- create_namespace: a\n")
    (tmp_path / "bad.yaml").write_text("- {")
    (tmp_path / "lines.jsonl").write_text('{"create_namespace": {"namespace": "b"}}\n')
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "lakehouses.yaml").write_text(f"lakehouses:\n- {{name: known, root: '{lake.root}'}}\n")
    for name in ("ROOT", "STORAGE_OPTIONS", "LAKEHOUSES", "SPARK_MASTER", "SPARK_REMOTE", "DEBUG"):
        monkeypatch.delenv(f"TRINITYLAKE_{name}", raising=False)
    monkeypatch.setenv("JAVA_HOME", "/nowhere")  # Spark cannot start
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _judged(words: list[str], code: int, out: str, err: str) -> str:
    """Return what is wrong with an outcome; empty if nothing is."""
    wrong = [f"exit code {code}"] if code not in CODES else []
    wrong += [each for each in ("Traceback", "This is a bug", "<unicode string>") if each in out + err]
    wrong += ["no error, or several"] if code in {2, 4} and 1 != err.count("error: ") else []
    return f"{words}: {', '.join(wrong)}\n{err[-500:]}" if wrong else ""


def test_the_codes_are_documented_in_one_table() -> None:
    assert {0, 1, 2, 3, 4, 130, 141} == CODES


def test_odd_command_lines_end_well(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    wrong = []
    for words in command_lines(IN_ONE_PROCESS):
        capsys.readouterr()
        code = cli.main(words)
        wrong.append(_judged(words, code, *capsys.readouterr()))
    assert [] == [each for each in wrong if each]


@pytest.mark.slow
def test_all_odd_command_lines_end_well_with_bounded_memory_and_time(place: Path) -> None:
    """Each is a process of its own."""
    wrong = [each for words in command_lines(ALL) if (each := _alone(words, place))]
    assert [] == wrong


def _alone(words: list[str], place: Path) -> str:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (GIGABYTES * 2**30,) * 2)

    try:
        done = subprocess.run(
            [sys.executable, "-m", "pipelines.cli", *words],
            cwd=place, env={**os.environ, "PYTHONPATH": str(CHECKOUT)}, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, errors="replace", timeout=SECONDS, check=False, preexec_fn=limit,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"{words}: took longer than {SECONDS} s"
    return _judged(words, done.returncode, done.stdout, done.stderr)
