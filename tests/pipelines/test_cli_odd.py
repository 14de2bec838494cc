"""Odd command lines: each gives its exit code and one clear line, and never a traceback or "this is a bug"."""

from __future__ import annotations

import io
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import click
import pytest

from pipelines import cli
from pipelines.cli.contents import ENTRIES
from pipelines.cli.program import load
from pipelines.session import spark as spark_sessions
from tests.pipelines.conftest import CHECKOUT, as_program
from trinitylake_core import Lakehouse

TABLE = (CHECKOUT / "docs/runbook.md").read_text(encoding="utf-8").partition("## Exit codes")[2]
CODES = {int(each) for each in re.findall(r"^\| (\d+) \|", TABLE, re.MULTILINE)}
ALL = 400
IN_ONE_PROCESS = 60
SEED = 4711
SECONDS = 300.0
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
ENDLESS = frozenset({"serve", "ui"})
"""They answer requests until they are ended."""
NEVER = frozenset({"--master", "--remote", "--spark-conf", "--help", "-h", "--follow"})
"""Options that would start Spark, which takes seconds, print a text only, or wait for ever."""
ROOT = "{root}"
NONSENSE = ("", " ", "nonsense", "-1", "1e9", "ü", "\x1b[31m", "a=b", "{", "../..", "x" * 300, "9" * 41, "\udcff")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a small lakehouse, which these commands are not to change."""
    lake = Lakehouse.create((tmp_path_factory.mktemp("odd") / "lake").as_uri())
    with lake.transaction() as txn:
        txn.create_namespace("sales")
        txn.create_table("sales", "orders")
    return lake.root


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, no_environment: None) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")  # whatever starts Spark says so, in one line,
    monkeypatch.setattr(spark_sessions, "active_session", lambda: None)  # and takes none that runs already
    monkeypatch.chdir(tmp_path)


def _one_clear_line(capsys: pytest.CaptureFixture[str], words: list[str], codes: set[int]) -> None:
    capsys.readouterr()
    code = cli.main(words)
    out, err = capsys.readouterr()
    assert code in codes, (words, code, err)
    assert "Traceback" not in err + out, words
    assert "This is a bug" not in err, (words, err)
    if code:
        errors = [line for line in err.splitlines() if line.startswith("error: ")]
        assert 1 == len(errors), (words, err)
        assert errors[0].isprintable(), (words, err)


@pytest.mark.parametrize("command", ["ls", "verify", "export", "rollback", "diff"])
def test_a_version_of_thousands_of_digits_is_no_bug(
    capsys: pytest.CaptureFixture[str], root: str, command: str
) -> None:
    words = {"export": [f"{root}copy"], "diff": ["0", "9" * 5000], "rollback": ["--reason", "r"]}.get(command, [])
    number = {"diff": [], "rollback": ["--to-version", "9" * 5000]}.get(command, ["--version", "9" * 5000])
    _one_clear_line(capsys, [command, root, *words, *number], {2})


def test_a_closed_standard_input_is_wrong_input(
    capsys: pytest.CaptureFixture[str], root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    _one_clear_line(capsys, ["apply", root, "-"], {2})


# -- exit codes ----------------------------------------------------------------------------------------


_POSITIONAL = {"OBJECT": "sales.orders", "PATTERN": "sales", "A": "0", "B": "1", "FILE": "list.yaml", "NAME": "x"}
_POSITIONAL |= {
    "SOURCE": "list.jsonl",
    "DST": "./there",
    "TARGET": "./there",
    "SHELL": "bash",
    "VERSION": "0",
    "DIR": "./there",
}
_WITHOUT_ROOT = {"fleet", "completion", "try", "ui"}
_MAKES_ONE = {"create": 0, "doctor": 0}
"""What a command does at a root without a lakehouse, where it is not wrong input."""


def _words(name: str, root: str) -> list[str]:
    arguments = (root if word in {"ROOT", "SRC"} else _POSITIONAL[word] for word, _ in ENTRIES[name].arguments)
    return [*name.split(), *arguments, *NEEDED.get(name, [])]


@pytest.mark.parametrize("name", sorted(ENTRIES))
def test_the_exit_codes_of_every_command(capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str) -> None:
    """0 for help, 2 for wrong usage, for a root without a lakehouse, and for a kind of storage that nothing reads."""
    (tmp_path / "list.yaml").write_text("- create_namespace: {namespace: new}")
    (tmp_path / "list.jsonl").write_text('{"create_namespace": {"namespace": "new"}}')
    (tmp_path / "file").write_text("in the way")
    _one_clear_line(capsys, [*name.split(), "--help"], {0})
    _one_clear_line(capsys, [*_words(name, "file:///x"), "--frobnicate"], {2})
    if name not in _WITHOUT_ROOT:
        _one_clear_line(capsys, _words(name, (tmp_path / "none").as_uri()), {_MAKES_ONE.get(name, 2)})
        _one_clear_line(capsys, _words(name, "ftp://host/lake"), {2})


def test_no_dagster_is_started_for_a_file_that_names_no_lakehouses(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "list.yaml").write_text("- create_namespace: {namespace: new}")
    _one_clear_line(capsys, ["ui", "list.yaml"], {2})
    (tmp_path / "broken.yaml").write_text("lakehouses: [")
    _one_clear_line(capsys, ["ui", "broken.yaml"], {2})
    _one_clear_line(capsys, ["ui", "none.yaml"], {2})


def _valued(name: str) -> list[str]:
    return [each.opts[0] for each in load(name).options if not each.is_flag]


_REQUIRED = {
    "diff": ["0", "1"],
    "snapshot create": ["s"],
    "snapshot drop": ["s"],
    "apply": ["/no/such/file"],
    "load": ["/no/such/file.jsonl"],
    "export": ["./copy"],
    "rollback": ["--reason", "r", "--dry-run"],
    "restore": ["--reason", "r", "--dry-run"],
    "expire": ["--dry-run"],
    "clean": ["--dry-run"],
    "compact": ["--dry-run"],
    "alter": ["--dry-run"],
    "upgrade": ["./copy"],
}
"""What a command needs besides ROOT to get as far as its options; nothing that changes a lakehouse."""
_READING = sorted({"ls", "show", "history", "diff", "stats", "tree", "verify", *_REQUIRED} & ENTRIES.keys())


@pytest.mark.parametrize("name", _READING)
def test_every_option_with_nonsense_ends_well(capsys: pytest.CaptureFixture[str], root: str, name: str) -> None:
    before = Lakehouse.open(root).version
    for option, value in product(_valued(name), NONSENSE):
        words = [*name.split(), root, *_REQUIRED.get(name, []), option, value, "--quiet"]
        if name == "snapshot create":
            words += ["--target", "./copy"]  # refused for every kind but full
        if (name, option) in {("snapshot create", "--target"), ("export", "--target"), ("alter", "--reason")}:
            continue
        _one_clear_line(capsys, words, {0, 1, 2, 3, 4})
    assert before == Lakehouse.open(root).version


@pytest.mark.parametrize("text", NONSENSE)
def test_a_nonsense_root_is_told(capsys: pytest.CaptureFixture[str], text: str) -> None:
    _one_clear_line(capsys, ["ls", f"file:///no/such/{text}"], {2, 4})
    _one_clear_line(capsys, ["ls", text], {2, 4})


# -- by chance: command lines made from what click knows of the options -----------------------------------


def command_lines(count: int, seed: int = SEED) -> Iterator[list[str]]:
    """Yield command lines: a command of click's tree, some of its options with odd values, odd arguments."""
    chance = random.Random(seed)
    for _ in range(count):
        name = chance.choice([each for each in ENTRIES if each not in ENDLESS])
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
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def _judged(words: list[str], code: int, out: str, err: str) -> str:
    """Return what is wrong with an outcome; empty if nothing is."""
    wrong = [f"exit code {code}"] if code not in CODES else []
    wrong += [each for each in ("Traceback", "This is a bug", "<unicode string>") if each in out + err]
    wrong += ["no error, or several"] if code in {2, 4} and 1 != err.count("error: ") else []
    return f"{words}: {', '.join(wrong)}\n{err[-500:]}" if wrong else ""


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
def test_all_odd_command_lines_end_well_with_bounded_memory_and_time(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is a process of its own."""
    monkeypatch.chdir(place)
    wrong = [each for words in command_lines(ALL) if (each := _alone(words))]
    assert [] == wrong


def _alone(words: list[str]) -> str:
    try:
        done = as_program(*words, gigabytes=GIGABYTES, seconds=SECONDS)
    except subprocess.TimeoutExpired:
        return f"{words}: took longer than {SECONDS} s"
    return _judged(words, done.returncode, done.stdout, done.stderr)
