"""The pages: every command of start here is run, in order; the reference has all that the code has."""

from __future__ import annotations

import re
import shlex
import textwrap
from pathlib import Path

import pytest
import yaml

import trinitylake_core
from dagster_project.config import settings
from pipelines import cli
from pipelines.cli.contents import ENTRIES
from pipelines.cli.program import load
from scripts import reference
from trinitylake_core.commits.commit import acting_as

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
CALL = re.compile(r"(?:^ {4,}(?:\$ )?(?:\S*/)?|`)trinitylake ([a-z]+)((?: [^`\n]*)?)", re.MULTILINE)
"""``trinitylake COMMAND ...`` in a block or between backticks."""

VARIES = re.compile(
    r"\d{4}-\d\d-\d\dT[\d:.]+Z|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|\d\.\d KiB(?: \(\d+\))?|0\.00\d\d"
)


def test_the_commands_of_start_here_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In an empty directory, with the files that the page shows; what it shows of their output is what they print."""
    text = (ROOT / "docs/start.md").read_text(encoding="utf-8")
    lists = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    for name, block in zip(("changes", "mistake", "lakehouses"), lists, strict=True):
        (tmp_path / f"{name}.yaml").write_text(block)
    for name in ("ROOT", "LAKEHOUSES", "STORAGE_OPTIONS", "SPARK_MASTER", "SPARK_REMOTE"):
        monkeypatch.delenv(f"TRINITYLAKE_{name}", raising=False)
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^    \$ trinitylake (.*)\n((?:(?:    (?!\$).*)?\n)*)", text, re.MULTILINE)
    for command, shown in commands:
        capsys.readouterr()
        with acting_as("ada@laptop"):
            assert 0 == cli.main(shlex.split(command)), command
        printed = capsys.readouterr().out.replace(tmp_path.as_uri(), "file:///home/ada")
        assert _stable(textwrap.dedent(shown)) == _stable(printed), command
    assert 15 == len(commands)


def _stable(printed: str) -> list[str]:
    """Return the lines of an output without what differs from run to run: times, an ID, sizes of files."""
    return VARIES.sub("…", printed.rstrip()).splitlines()


def test_the_first_example_of_the_readme_prints_what_it_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Word for word but for the directory: each ``print`` has its output beside it."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    block = next(each for each in re.findall(r"(?:^(?: {4}.*)?\n)+", text, re.MULTILINE) if "Lakehouse.create" in each)
    code = textwrap.dedent(block).replace("file:///tmp/lake", tmp_path.as_uri())
    exec(compile(code, "README.md", "exec"), {})
    said = [line.partition("  # ")[2].partition(":")[0] for line in code.splitlines() if line.startswith("print(")]
    assert len(said) > 3
    assert said == capsys.readouterr().out.splitlines()


def test_the_site_has_every_page_and_no_other() -> None:
    """Its navigation names each page of docs once."""
    named = re.findall(r"^ +- [^:]+: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")) == sorted(named)


def test_the_tests_that_pages_name_are_there() -> None:
    """A page that says how a promise is tested names tests or their files; iceberg.md names those of PyIceberg."""
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py")]
    tests = set(re.findall(r"^ *def (test_\w+)\(", "\n".join(sources), re.MULTILINE))
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES if page.name != "iceberg.md")
    named = set(re.findall(r"`(test_\w+)`", text))
    files = set(re.findall(r"`(tests/[\w./*]+)`", text))
    assert set() == named - tests
    assert [] == [file for file in files if not any(ROOT.glob(file))]
    assert len(named) > 10
    assert len(files) > 10


# -- the reference, which is made from the code ----------------------------------------------------------


def _built(name: str) -> str:
    """Return a reference page as the repository has it."""
    return reference.page_path(name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", reference.PAGES)
def test_the_reference_says_what_the_code_says(name: str) -> None:
    """After a change of the code, `.venv/bin/python scripts/reference.py` writes the pages again."""
    assert reference.make_page(name) == _built(name)


def test_the_reference_has_every_command_and_option() -> None:
    text = _built("commands")
    for name in ENTRIES:
        command = load(name)
        section = text.partition(f"\n### {name}\n")[2].partition("\n### ")[0]
        assert command.example in section, name
        named = section + "".join(" ".join(group) for title, group in reference.GROUPS.items() if title in section)
        assert [] == [each.opts for each in command.options if each.opts[-1] not in named], name
    assert "`--kind [namespace|table|view]`" in text
    assert "### Options" not in text.partition("`--json`")[2]


def test_the_reference_has_every_field_of_the_configuration() -> None:
    """Each with its type and default, also where models lie in models."""
    text = _built("configuration")
    rows = re.findall(r"^\* `(\w+)`: (.+?)(?: \((.+)\))?$", text, re.MULTILINE)
    models = (
        settings.LakehouseSettings,
        settings.Spark,
        settings.Backup,
        settings.SnapshotPolicy,
        settings.Notifications,
        settings.Compaction,
        settings.Tables,
        settings.TablePolicy,
        settings.TablesCompact,
        settings.CompactPolicy,
        settings.CompactBudget,
        settings.CompactEndpoint,
    )
    assert {field for model in models for field in model.model_fields} <= {name for name, _, _ in rows}
    assert ("poll", "duration", "`1m`") in rows
    assert ("engine", "`spark` or `local` or `auto`", "`spark`") in rows
    assert ("spark_from_objects", "number, at least 0", "`1000000`") in rows
    assert ("root", "text", "required") in rows
    assert text.count("\n## ") == 18


def test_the_reference_has_every_public_name() -> None:
    text = _built("library")
    found = set(re.findall(r"^(?:#+ |\s*\* `)(\w+)", text, re.MULTILINE))
    classes = {name for name in trinitylake_core.__all__ if isinstance(getattr(trinitylake_core, name), type)}
    assert set() == classes - found
    assert {"create_table", "rollback", "table_info", "refresh"} <= found
    assert "* `txn_ttl_millis: int`: " in text
    assert "``" not in text
    assert ":meth:" not in text


def test_the_reference_has_the_json_of_every_command() -> None:
    """The contract is the reference: the page refers to it. tests/pipelines/test_cli_json.py holds commands to it."""
    contract = (ROOT / "docs/reference/json.yaml").read_text(encoding="utf-8")
    assert [] == [name for name in ENTRIES if name not in yaml.safe_load(contract)]
    assert "[json.yaml](json.yaml)" in (ROOT / "docs/reference/json.md").read_text(encoding="utf-8")


def test_the_reference_has_every_job() -> None:
    text = _built("jobs")
    jobs = {path.stem for path in (ROOT / "pipelines").glob("*.py") if "\ndef run(" in path.read_text(encoding="utf-8")}
    assert set() == jobs - set(re.findall(r"^## pipelines\.(\w+)$", text, re.MULTILINE))
    assert "    compaction.Config(" in text


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
        words = (name, rest.split()[0]) if name in {"snapshot", "tables"} and rest.split() else (name,)
        if words not in helps:
            helps[words] = capsys.readouterr().out if 0 == cli.main([*words, "--help"]) else ""
        options = re.findall(r"(?<![\w-])--[a-z][a-z-]*", rest.partition(" #")[0])
        unknown += [(page, words, each) for each in options if not re.search(rf"{each}(?![\w-])", helps[words])]
        unknown += [(page, words)] if not helps[words] else []
    assert [] == unknown
    assert len(calls) > 80
