"""``tables compact`` on the command line: plans, questions, bad input, exit codes, and its JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipelines import rollback
from pipelines.cli import main, output
from tests.pipelines.test_cli_json import DECLARED, declared_fields, mismatches
from tests.pipelines.test_tables_compact import data_files, small_files
from tests.support.icebergs import ids, new_iceberg
from trinitylake_core.iceberg import TrinityLakeCatalog

FILES = 6
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def catalog(tmp_path: Path) -> TrinityLakeCatalog:
    catalog = new_iceberg(tmp_path)
    small_files(catalog, files=FILES)
    return catalog


@pytest.fixture
def run(catalog: TrinityLakeCatalog, capsys: pytest.CaptureFixture[str]) -> Run:
    """Compact from the command line; return exit code, standard output and standard error."""

    def compact(*words: str) -> tuple[int, str, str]:
        code = main(["tables", "compact", catalog.lakehouse.root, *words])
        catalog.lakehouse.refresh()
        return code, *capsys.readouterr()

    return compact


def test_options_decide_what_is_rewritten(catalog: TrinityLakeCatalog, run: Run) -> None:
    small_files(catalog, "logs.small", 3)
    found = json.loads(run("sales.*", "--min-files", "2", "--dry-run", "--json")[1])
    assert [("sales.orders", "small files")] == [(each["table"], each["reason"]) for each in found["planned"]]
    found = json.loads(run("--settled", "1h", "--dry-run", "--json")[1])
    assert ([], 2) == (found["planned"], found["tables"])
    found = json.loads(run("--budget", "1KiB", "--dry-run", "--json")[1])
    assert ([], 1) == (found["planned"], found["over_budget"])
    found = json.loads(run("--prove", "hash", "--json")[1])
    assert {"hash"} == {each["proved"] for each in found["outcomes"]}


@pytest.mark.parametrize(("answer", "code", "files"), [("y", 0, 1), ("n", 3, FILES)])
def test_a_person_is_shown_the_plan_and_asked(
    catalog: TrinityLakeCatalog, run: Run, monkeypatch: pytest.MonkeyPatch, answer: str, code: int, files: int
) -> None:
    monkeypatch.setattr(output, "is_terminal", lambda stream: True)
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda prompt="": answer)
    found, out, _ = run()
    assert (code, files) == (found, data_files(catalog))
    assert "nearly all become one" in out


def test_a_plan_is_written_reviewed_and_carried_out(catalog: TrinityLakeCatalog, run: Run, tmp_path: Path) -> None:
    plan = (tmp_path / "plan.parquet").as_uri()
    version = catalog.lakehouse.version
    code, out, _ = run("--plan-to", plan)
    assert (0, version, FILES) == (code, catalog.lakehouse.version, data_files(catalog))
    assert "6 data files" in out
    code, out, _ = run("--plan", plan)
    assert (0, version + 1, 1) == (code, catalog.lakehouse.version, data_files(catalog))
    assert "6 data files of 1 table among 1 became 1" in out
    rollback.run(catalog.lakehouse, rollback.Config(version=version, reason="bring the old files back"))
    assert (FILES, list(range(FILES))) == (data_files(catalog), ids(catalog.load_table("sales.orders")))


def test_a_table_that_was_not_done_is_named_with_exit_code_4(catalog: TrinityLakeCatalog, run: Run) -> None:
    broken = small_files(catalog, "sales.broken", FILES)
    Path(next(iter(broken.scan().plan_files())).file.file_path.removeprefix("file://")).write_bytes(b"garbage")
    code, out, _ = run("--json")
    found = json.loads(out)
    assert (4, ["sales.broken"]) == (code, list(found["failures"]))
    assert 1 == data_files(catalog)
    code, out, err = run()
    assert 4 == code, err
    assert out.startswith("no table among 2 was compacted\nnot compacted, or a part of it: 1 table\n")
    table, reason = out.splitlines()[-1].split(maxsplit=1)
    assert ("sales.broken", True) == (table, reason.startswith("unreadable: "))


def test_what_needs_spark_is_named_where_it_is_not_there(catalog: TrinityLakeCatalog, run: Run) -> None:
    code, out, _ = run("--strategy", "zorder", "--engine", "local", "--json")
    assert (4, {"sales.orders": "sorting needs engine 'spark'"}) == (code, json.loads(out)["failures"])
    small_files(catalog, "sales.few", 4)  # so few that no rule rewrites them
    rare = ("sales.few", "--manifests", "4", "--engine", "local")
    code, out, _ = run(*rare, "--json")
    assert (4, {"sales.few": "merging manifests needs engine 'spark'"}) == (code, json.loads(out)["failures"])
    assert 2 == run(*rare, "--plan-to", "file:///tmp/plan.parquet")[0]


def test_its_json_is_what_is_declared(catalog: TrinityLakeCatalog, run: Run) -> None:
    current: Any = catalog.load_table("sales.orders").metadata.current_snapshot_id
    catalog.load_table("sales.orders").manage_snapshots().create_tag(current, "audit").commit()
    seen: set[str] = set()
    name = "tables compact"
    for words in (["--dry-run"], [], []):
        code, out, _ = run(*words, "--json", "--quiet")
        assert 0 == code
        assert [] == list(mismatches(DECLARED[name], json.loads(out), name, seen))
    assert set() == set(declared_fields(DECLARED[name], name)) - seen
