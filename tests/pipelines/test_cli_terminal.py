"""The command line on a terminal and off it: help, completion, tables that fit, bars, the pager, quick starts."""

from __future__ import annotations

import io
import json
import logging
import os
import pty
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from pipelines import cli
from pipelines.cli import report, terminal
from pipelines.cli.progress import Bar, PrintedProgress, make_progress
from tests.support.lakes import FAST
from trinitylake_core import Lakehouse

ROOT = Path(__file__).parents[2]
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Whether it is one."""
        return True


@pytest.fixture
def root(tmp_path: Path) -> str:
    uri = (tmp_path / "lake").as_uri() + "/"
    with Lakehouse.create(uri, order=5).transaction(reason="the first tables of a long story, told in one line") as txn:
        txn.create_namespace("sales")
        txn.create_table("sales", "orders")
    return uri


# -- what a start imports ------------------------------------------------------------------------------


_HEAVY = ("pyarrow", "numpy", "google", "rich", "trinitylake_core.lakehouse", "pipelines.job")


_OF_SPARK = ("pyspark", "py4j", "pandas", "s3fs", "yaml")


@pytest.mark.parametrize(
    ("words", "absent"),
    [
        (["--help"], _HEAVY),
        (["--version"], _HEAVY),
        (
            ["ls", "{root}"],
            ("rich", "asyncio", "pandas", "pipelines.job", "trinitylake_core.storage.s3", "yaml"),
        ),
        (["history", "{root}"], ("rich", "asyncio", "pandas", "pyarrow.compute", "trinitylake_core.storage.s3")),
        (["compact", "{root}"], _OF_SPARK),
        (["verify", "{root}"], _OF_SPARK),
        (["clean", "{root}"], _OF_SPARK),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_command_imports_only_what_it_uses(root: str, words: list[str], absent: tuple[str, ...]) -> None:
    """What a start costs is what it imports: these are a tenth of a second each, or more."""
    given = [word.format(root=root) for word in words]
    program = (
        "import sys; from pipelines.cli import main;"
        f"code = main({given!r});"
        "loaded = set(sys.modules);"
        f"print([name for name in {absent!r} if name in loaded], file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (0, "[]\n") == (done.returncode, done.stderr)


def test_the_library_hands_out_every_public_name_when_asked() -> None:
    """``import trinitylake_core`` loads nothing of Arrow; each name is there all the same, and no other."""
    program = (
        "import sys, trinitylake_core as core; assert 'pyarrow' not in sys.modules;"
        "assert sorted(core.__all__) == sorted(dir(core));"
        "assert [] == [name for name in core.__all__ if getattr(core, name) is None];"
        "assert not hasattr(core, 'nonsense'); from trinitylake_core import *"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (0, "") == (done.returncode, done.stderr)


# -- help, aliases, completion -------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["snapshot", "--help"], ["help", "snapshot"], ["snapshot", "-h"]])
def test_every_group_shows_its_commands_and_an_example(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert 0 == cli.main(words)
    out = capsys.readouterr().out
    assert "usage: trinitylake snapshot <command> ROOT [options]" == out.splitlines()[0]
    assert [f"snapshot {word}" in out for word in ("create ROOT NAME", "list ROOT", "drop ROOT NAME")] == [True] * 3
    assert "example:\n  trinitylake snapshot create " in out


def _completed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str) -> list[str]:
    monkeypatch.setenv("COMP_LINE", line)
    monkeypatch.setenv("_TRINITYLAKE_COMPLETE", "bash_complete")
    monkeypatch.setattr(sys, "argv", ["trinitylake"])
    disabled = logging.root.manager.disable
    assert 0 == cli.main()
    logging.disable(disabled)
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("sn", "snapshot"),
        ("snapshot ", "create list drop"),
        ("ls --ki", "--kind"),
        ("ls --kind v", "view"),
        ("compact file:///x --engine ", "spark local auto"),
        ("ls kn", "known dir,"),
        ("export known --target-storage-option a=b ", "known dir,"),
        ("apply known ", "file,"),
        ("show known sa", "sales sales."),
        ("show {root} sales.", "sales.items sales.orders"),
        ("restore known --only sales.o", "sales.orders"),
        ("diff known ", "HEAD HEAD~1 good"),
        ("snapshot drop known ", "good"),
        ("rollback known --to-snapshot ", "good"),
        ("show file:///nowhere s", ""),
        ("ls --reason ", "known dir,"),
    ],
)
def test_a_shell_completes_commands_options_and_names(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, line: str, found: str
) -> None:
    named = with_names(tmp_path)
    monkeypatch.chdir(tmp_path)
    told = _completed(monkeypatch, capsys, f"trinitylake {line.format(root=named.root)}")
    assert found.split() == [each.removeprefix("plain,") for each in told if each]


def with_names(directory: Path) -> Lakehouse:
    """Return a lakehouse with two tables and a snapshot, which ``lakehouses.yaml`` calls ``known``."""
    lake = Lakehouse.create(directory / "lake", storage_options=FAST)
    with lake.transaction() as txn:
        txn.create_namespace("sales")
        txn.create_table("sales", "orders")
        txn.create_table("sales", "items")
    lake.refresh().create_snapshot("good")
    (directory / "lakehouses.yaml").write_text(f"lakehouses:\n- {{name: known, root: '{lake.root}'}}\n")
    return lake


def test_bash_completes_names_and_files_also_behind_a_colon(tmp_path: Path) -> None:
    """In Bash itself, which splits ``file:///`` at its colon; a TAB on a root imports no command."""
    lake = with_names(tmp_path)
    program = tmp_path / "trinitylake"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        "from pipelines.cli import completion\ncompletion._SECONDS = 60.0\n"  # this machine may be busy
        "from trinitylake_core.launch import main\ncode = main()\n"
        "print(*(each for each in ('pyarrow', 'yaml') if each in sys.modules), file=sys.stderr)\nsys.exit(code)\n"
    )
    program.chmod(0o755)
    ask = 'COMP_LINE=$1; COMP_POINT=${#1}; COMPREPLY=(); _trinitylake_completion ./trinitylake "${1##*[ :]}" x'
    script = f'eval "$(./trinitylake completion bash)"; ask() {{ {ask}; echo "${{COMPREPLY[*]}}"; }}\n'
    lines = ["trinitylake ls k", f"trinitylake ls {lake.root[:-2]}", f"trinitylake show {lake.root} sales.o"]
    script += "".join(f"ask {shlex.quote(line)}\n" for line in lines)
    done = subprocess.run(["bash", "--norc", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ["known", lake.root.removeprefix("file:").rstrip("/"), "sales.orders"] == done.stdout.splitlines()
    assert ["yaml", "yaml", "pyarrow"] == done.stderr.splitlines()[-3:]


@pytest.mark.parametrize("name", ["$(touch${IFS}run)", "`touch${IFS}run`", "x;touch${IFS}run", "it's", "a\\b", "é*"])
def test_a_name_that_is_completed_is_one_word_of_the_line_and_no_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str
) -> None:
    """Others choose the names of objects; what Bash inserts is run when the person presses Enter."""
    with with_names(tmp_path).transaction() as txn:
        txn.create_table("sales", name)
    monkeypatch.chdir(tmp_path)
    told = _completed(monkeypatch, capsys, "trinitylake show known sales.")
    candidates = {each.removeprefix("plain,") for each in told} - {"sales.items", "sales.orders"}
    line = f"printf %s {candidates.pop()}"
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert f"sales.{name}" == done.stdout.replace("\\\\", "\\")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_its_script(capsys: pytest.CaptureFixture[str], shell: str) -> None:
    assert 0 == cli.main(["completion", shell])
    script = capsys.readouterr().out
    assert f"_TRINITYLAKE_COMPLETE={shell}_complete" in script
    assert 0 == cli.main(["completion", shell, "--json"])
    assert script.strip() == json.loads(capsys.readouterr().out)["script"].strip()
    assert 2 == cli.main(["completion", f"{shell}h"])


# -- tables --------------------------------------------------------------------------------------------


def _table() -> report.TextTable:
    header = ["version", "operation", "objects", "root", "reason"]
    rows = [[number, "commit", 10**number, "1.5 KiB", "größer-" * number] for number in range(12)]
    return report.table(header, rows, spare=("root", "objects"))


def _plain(table: report.TextTable, width: int) -> list[str]:
    return [_ESCAPES.sub("", line) for line in terminal.lines([table], width)]


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_a_table_on_a_terminal_fits_it_and_loses_no_text(width: int) -> None:
    lines = _plain(_table(), width)
    assert width >= max(map(report.width_of, lines))
    assert {"version", "operation", "reason"} <= set(lines[0].split())
    assert ("root" in lines[0]) == (width >= 60)
    assert sum(range(12)) * "größer-".count("ß") == "".join(lines).count("ß")


def test_on_a_wide_terminal_a_table_says_what_a_pipe_gets() -> None:
    wide, piped = ([re.split(r"\s{2,}", line.strip()) for line in lines] for lines in (_plain(_table(), 200), _table()))
    assert piped == wide


def test_a_table_of_any_length_is_not_held_in_memory() -> None:
    asked = 0

    def rows() -> Iterator[list[int]]:
        nonlocal asked
        for number in range(10**6):
            asked = number
            yield [number]

    lines = terminal.lines([report.table(["n"], rows())], 80)
    assert ["n", "0", "1"] == [_ESCAPES.sub("", str(next(lines))).strip() for _ in range(3)]
    assert asked < 1000


def test_no_color_means_none(monkeypatch: pytest.MonkeyPatch) -> None:
    row = [["added", "x"]]
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[32madded" in "".join(terminal.lines([report.table(["change", "name"], row)], 80))
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[3" not in "".join(terminal.lines([report.table(["change", "name"], row)], 80))


def test_control_characters_reach_no_terminal() -> None:
    lines = "".join(terminal.lines([report.table(["name"], [["a\x1b[31mb\n[red]c"]])], 80))
    assert r"a\x1b[31mb\n[red]c" in lines


def test_no_json_is_a_command_of_a_terminal() -> None:
    """In names, in values and in lists, which are written as they come; programs read the same text as before."""
    odd = "a\x1b\x7f\x85\x9b31m\u061c\u200e\u202eb\u2028\u2066\u00e4\U0001f600"
    written: list[str] = []
    value = {odd: odd, "rows": iter([{odd: [odd]}]), "rest": [odd]}
    report.write_json(value, written.append)
    text = "".join(written)
    assert {odd: odd, "rows": [{odd: [odd]}], "rest": [odd]} == json.loads(text)
    assert [] == [each for each in text if each != "\n" and not each.isprintable()]
    assert "\u00e4\U0001f600" in text


# -- progress ------------------------------------------------------------------------------------------


def test_a_bar_shows_what_is_done_the_rate_and_the_time_that_remains() -> None:
    seconds = [0.0]
    stream = Terminal()
    bar = Bar(stream, clock=lambda: seconds[0])
    bar("nodes", 0, 1000)
    assert not stream.getvalue()  # what is quick stays quiet
    for number in range(1, 6):
        seconds[0] = float(number)
        bar("nodes", number * 100, 1000)
    text = _ESCAPES.sub("", stream.getvalue())
    assert "500/1,000 100/s" in text
    assert "00:05" in text
    seconds[0] = 9.0
    bar("definitions", 7)
    assert "definitions" in stream.getvalue()
    bar.close()
    bar.mute()
    drawn = stream.getvalue()
    seconds[0] = 20.0
    bar("definitions", 8)
    assert drawn == stream.getvalue()


def test_bars_are_for_terminals_and_lines_for_the_rest() -> None:
    assert [Bar, PrintedProgress] == [type(make_progress(Terminal())), type(make_progress(io.StringIO()))]


# -- a real terminal -----------------------------------------------------------------------------------


def _without_size() -> dict[str, str]:
    """Return the environment without the size that it may claim: the terminal is to say that."""
    return {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES"}}


def _on_a_terminal(words: list[str], columns: int, **environment: str) -> str:
    """Return what a command writes to a pseudo terminal, without escape sequences."""
    import fcntl
    import struct
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "pipelines.cli", *words],
        cwd=ROOT,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**_without_size(), "TERM": "xterm", **environment},
    )
    os.close(theirs)
    parts = []
    try:
        while part := os.read(ours, 65536):
            parts.append(part)
    except OSError:  # so a terminal ends on Linux
        pass
    os.close(ours)
    assert 0 == process.wait(300)
    return _ESCAPES.sub("", b"".join(parts).decode()).replace("\r", "")


def test_a_terminal_gets_a_table_that_fits_through_the_pager(root: str, tmp_path: Path) -> None:
    pager = tmp_path / "pager"
    pager.write_text("#!/bin/sh\necho paged\ncat\n")
    pager.chmod(0o755)
    lines = _on_a_terminal(["history", root, "--quiet"], 60, PAGER=str(pager)).splitlines()
    assert "paged" == lines[0]
    assert ["version", "created", "operation"] == lines[1].split()[:3]
    assert max(map(len, lines)) <= 60
    assert "toldinoneline" in "".join(lines).replace(" ", "")


# -- somebody else's folder of the same name ----------------------------------------------------------


def test_a_foreign_package_named_pipelines_is_told_in_one_sentence(tmp_path: Path) -> None:
    """It is found before anything of it is imported; a folder without ``__init__`` hides nothing."""
    foreign = tmp_path / "pipelines"
    foreign.mkdir()
    program = (
        "import sys; sys.argv[1:] = ['--version', '--json']; from trinitylake_core.launch import main; sys.exit(main())"
    )

    def started() -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join([str(tmp_path), str(ROOT)])
        environment = {**os.environ, "PYTHONPATH": path}
        return subprocess.run(
            [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )

    assert (0, "") == (started().returncode, started().stderr)
    (foreign / "__init__.py").write_text("raise SystemExit('imported')")
    done = started()
    assert (2, 1) == (done.returncode, done.stderr.count("\n"))
    assert f"'pipelines' means {foreign} here" in done.stderr
    assert "InvalidInput" == json.loads(done.stdout)["error"]["type"]
    program = "import dagster_project"
    done = started()
    assert f"'pipelines' means {foreign} here" in done.stderr


def test_a_foreign_core_is_told_in_one_sentence(tmp_path: Path) -> None:
    """By the installed program, of which nothing but the entry point is imported; and by Dagster's code location."""
    foreign = tmp_path / "trinitylake_core"
    foreign.mkdir()
    (foreign / "__init__.py").write_text("raise SystemExit('imported')")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    (entry_point,) = entry_points(group="console_scripts", name="trinitylake")
    started = f"import sys; from {entry_point.module} import {entry_point.attr} as main; sys.exit(main())"
    for words, code in (([started, "ls", "x", "--json"], 2), (["import dagster_project"], 1)):
        done = subprocess.run(
            [sys.executable, "-c", *words], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert code == done.returncode
        assert f"'trinitylake_core' means {foreign} here" in done.stderr
        assert "imported" not in done.stderr
        if code == 2:
            assert 1 == done.stderr.count("\n")
            assert "InvalidInput" == json.loads(done.stdout)["error"]["type"]
