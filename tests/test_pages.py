"""The pages for newcomers: every command in them is run, in order, and does what the page needs next."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from pipelines import cli

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
CALL = re.compile(r"(?:^ {4,}(?:\$ )?(?:\S*/)?|`)trinitylake ([a-z]+)((?: [^`\n]*)?)", re.MULTILINE)
"""``trinitylake COMMAND ...`` in a block or between backticks."""


def test_the_commands_of_start_here_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In an empty directory, with the two lists of changes that the page shows."""
    text = (ROOT / "docs/start.md").read_text(encoding="utf-8")
    for name, block in zip(("changes", "mistake"), re.findall(r"```yaml\n(.*?)```", text, re.DOTALL), strict=True):
        (tmp_path / f"{name}.yaml").write_text(block)
    for name in ("ROOT", "LAKEHOUSES", "STORAGE_OPTIONS", "SPARK_MASTER", "SPARK_REMOTE"):
        monkeypatch.delenv(f"TRINITYLAKE_{name}", raising=False)
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^    \$ trinitylake (.*)$", text, re.MULTILINE)
    outputs: dict[str, list[str]] = {}
    for command in commands:
        capsys.readouterr()
        assert 0 == cli.main(shlex.split(command)), command
        outputs.setdefault(command, []).append(capsys.readouterr().out)
    assert len(commands) == 13
    first, last = outputs["ls ./lake"]
    assert "sales.orders" in first
    assert first == last


def test_every_page_of_the_site_is_there() -> None:
    pages = re.findall(r"^  - [^:]+: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert "start.md" in pages
    assert [] == [page for page in pages if not (ROOT / "docs" / page).is_file()]


def test_every_command_in_the_pages_has_the_options_that_it_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    """Of each `trinitylake ...` in a page: the command exists, and its help names each option."""
    helps: dict[tuple[str, ...], str] = {}
    calls = [
        (page.name, call)
        for page in PAGES
        for call in CALL.findall(page.read_text(encoding="utf-8").replace("\\\n", " "))
    ]
    unknown: list[tuple[object, ...]] = []
    for page, (name, rest) in calls:
        words = (name, rest.split()[0]) if name == "snapshot" and rest.split() else (name,)
        if words not in helps:
            helps[words] = capsys.readouterr().out if 0 == cli.main([*words, "--help"]) else ""
        options = re.findall(r"(?<![\w-])--[a-z][a-z-]*", rest.partition(" #")[0])
        unknown += [(page, words, each) for each in options if not re.search(rf"{each}(?![\w-])", helps[words])]
        unknown += [(page, words)] if not helps[words] else []
    assert [] == unknown
    assert len(calls) > 80
