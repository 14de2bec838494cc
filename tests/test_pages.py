"""The pages for newcomers: every command in them is run, in order, and does what the page needs next."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from pipelines import cli

ROOT = Path(__file__).parent.parent


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
    outputs = {}
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
