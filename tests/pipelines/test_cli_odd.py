"""Odd command lines: each gives its exit code and one clear line, and never a traceback or "this is a bug"."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from pipelines import cli
from pipelines.cli.contents import ENTRIES
from pipelines.cli.program import load
from pipelines.session import spark as spark_sessions
from trinitylake_core import Lakehouse

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
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("ROOT", "STORAGE_OPTIONS", "LAKEHOUSES", "SPARK_MASTER", "SPARK_REMOTE", "DEBUG"):
        monkeypatch.delenv(f"TRINITYLAKE_{name}", raising=False)
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


WRONG = [
    ["frobnicate"],
    [""],
    ["-"],
    ["--"],
    ["--frobnicate"],
    ["ls", "--"],
    ["ls", ROOT, "--limit"],
    ["ls", ROOT, "--version"],
    ["ls", ROOT, "--version=1", "--version=two=three"],
    ["ls", ROOT, "sales", "more", "and", "more"],
    ["ls", ROOT, "-x"],
    ["ls", ROOT, "-j"],
    ["ls", ROOT, "--js"],
    ["ls", ROOT, "--json=yes"],
    ["ls", ROOT, "--quiet=1"],
    ["show", ROOT, "sales.orders", "--kind", "Table"],
    ["show", ROOT, "."],
    ["show", ROOT, ".orders"],
    ["show", ROOT, "sales."],
    ["diff", ROOT],
    ["diff", ROOT, "1"],
    ["diff", ROOT, "HEAD~99", "HEAD"],
    ["history", ROOT, "--operation", "COMMIT"],
    ["history", ROOT, "--limit", "1.5"],
    ["snapshot"],
    ["snapshot", "make", ROOT],
    ["snapshot", "create", ROOT],
    ["snapshot", "drop", ROOT, "none"],
    ["snapshot", "create", ROOT, "with space"],
    ["snapshot", "create", ROOT, "x", "--expires-in", "tomorrow"],
    ["snapshot", "create", ROOT, "x", "--kind", "full"],
    ["rollback", ROOT],
    ["rollback", ROOT, "--to-version", "0"],
    ["rollback", ROOT, "--to-version", "0", "--to-snapshot", "x", "--reason", "r"],
    ["rollback", ROOT, "--to-version", "99", "--reason", "r"],
    ["restore", ROOT, "--version", "0", "--reason", "r"],
    ["restore", ROOT, "--only", "", "--version", "0", "--reason", "r"],
    ["restore", ROOT, "--only", "x\\", "--version", "0", "--reason", "r"],
    ["restore", ROOT, "--only", "typo.*", "--version", "1", "--reason", "r"],
    ["expire", ROOT, "--keep-last", "-1"],
    ["expire", ROOT, "--older-than", "3"],
    ["expire", ROOT, "--older-than", "999999999w"],
    ["expire", ROOT, "--plan", "/no/such/plan.parquet"],
    ["clean", ROOT, "--older-than", "1h"],
    ["clean", ROOT, "--inventory", "/no/such/file.csv"],
    ["compact", ROOT, "--engine", "Spark"],
    ["compact", ROOT, "--spark-conf", "novalue"],
    ["compact", ROOT, "--master", "local[1]", "--remote", "sc://x"],
    ["load", ROOT],
    ["load", ROOT, "/no/such/file.jsonl"],
    ["load", ROOT, "/no/such/directory"],
    ["apply", ROOT, "/no/such/file.yaml"],
    ["apply", ROOT, "/"],
    ["alter", ROOT],
    ["alter", ROOT, "--set", "=x"],
    ["export", ROOT, ROOT],
    ["export", ROOT, "s3://"],
    ["upgrade", ROOT, ROOT],
    ["create", ROOT],
    ["completion"],
    ["completion", "tcsh"],
    ["help", "frobnicate"],
    ["ls", "http://[::1"],
    ["ls", "file://host/lake"],
    ["ls", "s3://key:secret@bucket/x"],
    ["ls", "file:///no/such/lake"],
    ["ls", "nowhere"],
    ["ls", ROOT, "--storage-option", "x"],
    ["ls", ROOT, "--storage-option", "=x"],
    ["ls", ROOT, "--storage-option", "retries=many"],
    ["ls", ROOT, "--storage-option", "x=env:NO_SUCH_VARIABLE"],
]


@pytest.mark.parametrize("words", WRONG, ids=" ".join)
def test_a_wrong_command_line_is_told_in_one_line(
    capsys: pytest.CaptureFixture[str], root: str, words: list[str]
) -> None:
    _one_clear_line(capsys, [word.replace(ROOT, root) for word in words], {2, 3, 4})


@pytest.mark.parametrize("command", ["ls", "verify", "export", "rollback", "diff"])
def test_a_version_of_thousands_of_digits_is_no_bug(
    capsys: pytest.CaptureFixture[str], root: str, command: str
) -> None:
    words = {"export": [f"{root}copy"], "diff": ["0", "9" * 5000], "rollback": ["--reason", "r"]}.get(command, [])
    number = {"diff": [], "rollback": ["--to-version", "9" * 5000]}.get(command, ["--version", "9" * 5000])
    _one_clear_line(capsys, [command, root, *words, *number], {2})


@pytest.mark.parametrize("command", ["apply", "load"])
def test_input_that_is_nested_too_deeply_is_wrong_input(
    capsys: pytest.CaptureFixture[str], root: str, tmp_path: Path, command: str
) -> None:
    (tmp_path / "deep.jsonl").write_text('{"create_table":' * 5000)
    _one_clear_line(capsys, [command, root, str(tmp_path / "deep.jsonl"), "--dry-run"], {2})


def test_a_closed_standard_input_is_wrong_input(
    capsys: pytest.CaptureFixture[str], root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    _one_clear_line(capsys, ["apply", root, "-"], {2})


def test_a_version_that_does_not_exist_is_told_by_its_name(capsys: pytest.CaptureFixture[str], root: str) -> None:
    for text, said in (
        ("HEAD~9999", "HEAD~9999 does not exist: version 1 is the newest"),
        ("nosuch", "there is no snapshot 'nosuch'"),
    ):
        assert 2 == cli.main(["ls", root, "--version", text])
        assert said in capsys.readouterr().err


# -- exit codes ----------------------------------------------------------------------------------------


_POSITIONAL = {"OBJECT": "sales.orders", "PATTERN": "sales", "A": "0", "B": "1", "FILE": "list.yaml", "NAME": "x"}
_POSITIONAL |= {"SOURCE": "list.jsonl", "DST": "./there", "TARGET": "./there", "SHELL": "bash"}
_NEEDED = {"alter": ["--set", "a=b"], "restore": ["--only", "sales", "--version", "0", "--reason", "r"]}
_NEEDED |= {"rollback": ["--to-version", "0", "--reason", "r"], "undo": ["--author", "*", "--reason", "r"]}
_NEEDED |= {"freeze": ["--reason", "r"]}
_WITHOUT_ROOT = {"fleet", "completion"}
_MAKES_ONE = {"create": 0, "doctor": 0}
"""What a command does at a root without a lakehouse, where it is not wrong input."""


def _words(name: str, root: str) -> list[str]:
    arguments = (root if word in {"ROOT", "SRC"} else _POSITIONAL[word] for word, _ in ENTRIES[name].arguments)
    return [*name.split(), *arguments, *_NEEDED.get(name, [])]


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
