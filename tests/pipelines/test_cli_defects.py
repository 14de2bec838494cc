"""What newcomers and people on call stumbled over: each defect with the command line, or the call, that showed it."""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

import trinitylake_core
from dagster_project import factory
from dagster_project.config.settings import LakehouseSettings
from pipelines.apply import parse
from pipelines.cli import app
from pipelines.cli.app import INTERRUPTED, READER_GONE
from pipelines.source import lakehouses
from pipelines.source.columns import schema_of
from tests.pipelines.conftest import CHECKOUT, Run, as_program
from trinitylake_core import Lakehouse, SnapshotNotFound, VersionNotFound, launch
from trinitylake_core.definitions import SnapshotDef
from trinitylake_core.errors import InvalidInput
from trinitylake_core.iceberg import TrinityLakeCatalog


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, no_environment: None) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def lake(tmp_path: Path) -> Lakehouse:
    """Return a lakehouse at ./lake with three versions."""
    made = Lakehouse.create(tmp_path / "lake")
    with made.transaction() as txn:
        txn.create_namespace("sales")
        txn.create_table("sales", "orders")
    with made.transaction() as txn:
        txn.create_table("sales", "refunds")
    return made.refresh()


# -- 1: lakehouses.yaml ----------------------------------------------------------------------------------


def test_two_stanzas_of_one_name_and_a_field_given_twice_are_refused_by_every_command(
    lake: Lakehouse, run: Run
) -> None:
    stanza = f"- name: a\n  root: {lake.root}\n"
    Path("lakehouses.yaml").write_text(f"lakehouses:\n{stanza}{stanza}")
    for words in (["ls", "a"], ["fleet"], ["rollback", "a", "--to-version", "0", "--reason", "x"]):
        assert (2, "") == (got := run(*words))[:2]
        assert got[2].endswith("lakehouses.yaml, line 4: there is a lakehouse 'a' already, at line 2\n")
    Path("lakehouses.yaml").write_text(f"lakehouses:\n{stanza}  root: file:///elsewhere\n")
    for words in (["ls", "a"], ["export", "./lake", "a"], ["fleet"]):
        assert run(*words)[2].endswith("lakehouses.yaml, line 4: 'root' appears twice\n")


def test_a_misspelt_field_is_named_by_every_command(lake: Lakehouse, run: Run) -> None:
    Path("lakehouses.yaml").write_text(f"lakehouses:\n- name: a\n  rot: {lake.root}\n")
    assert run("ls", "a")[2].endswith("lakehouse 'a': rot: unknown field; did you mean 'root'?\n")
    assert "lakehouse 'a': rot: unknown field; did you mean 'root'?" in run("fleet")[1]
    Path("lakehouses.yaml").write_text("lakehouses:\n- name: a\n  root: lake\n")  # of which directory?
    assert "root URI 'lake' has no scheme" in run("ls", "a")[2]
    Path("lakehouses.yaml").write_text(f"lakehouses:\n- nam: a\n  root: {lake.root}\n")
    assert run("ls", "a")[2].endswith("lakehouse number 1: nam: unknown field; did you mean 'name'?\n")


def test_the_one_reader_knows_the_fields_of_dagster() -> None:
    assert tuple(LakehouseSettings.model_fields) == lakehouses.FIELDS


def test_a_key_of_a_merged_mapping_may_be_given_again() -> None:
    text = "- create_namespace: &a {namespace: m, properties: {x: y}}\n- create_namespace: {<<: *a, namespace: n}"
    assert ["m", "n"] == [each.arguments["namespace"] for each in parse(text)]
    with pytest.raises(InvalidInput, match="line 1: 'namespace' appears twice"):
        parse("- create_namespace: {namespace: a, namespace: b}")
    with pytest.raises(InvalidInput, match="line 1: 'namespace' appears twice"):
        parse('[{"create_namespace": {"namespace": "a", "namespace": "b"}}]')


# -- 2 and 3: what is too large, too deep, or cannot be --------------------------------------------------


def _bomb() -> str:
    lines = ["    - {name: c0, type: struct, fields: &s0 [{name: f, type: bigint}]}"]
    for level in range(1, 9):
        fields = ", ".join(f"{{name: g{each}, type: struct, fields: *s{level - 1}}}" for each in range(9))
        lines.append(f"    - {{name: c{level}, type: struct, fields: &s{level} [{fields}]}}")
    return "- create_table:\n    namespace: sales\n    name: bomb\n    schema:\n" + "\n".join(lines)


def test_a_bomb_of_aliases_is_refused_before_it_is_built(lake: Lakehouse) -> None:
    Path("bomb.yaml").write_text(_bomb())
    done = as_program("apply", "lake", "bomb.yaml", gigabytes=2.5)
    assert (2, "") == (done.returncode, done.stdout)
    assert "error: bomb.yaml, line 11: its aliases stand for more than 1,000,000 values\n" == done.stderr


def test_what_is_nested_too_deeply_is_named_with_file_and_line(lake: Lakehouse, run: Run) -> None:
    brackets = "[" * 50_000 + "]" * 50_000
    Path("deep.yaml").write_text(f"- create_table: {{namespace: a, name: b, schema: {brackets}}}")
    Path("deep.json").write_text(f'[{{"create_table": {{"namespace": "a", "name": "b", "schema": {brackets}}}}}]')
    for file in ("deep.yaml", "deep.json"):
        assert (2, f"error: {file}, line 1: nested too deeply, more than 200 levels\n") == run("apply", "lake", file)[
            ::2
        ]
    Path("deep.jsonl").write_text('{"create_namespace": {"namespace": "a"}}\n{"create_table": ' + brackets + "}\n")
    code, _, told = run("load", "lake", "deep.jsonl", "--engine", "local")
    assert (2, "error: deep.jsonl, line 2: nested too deeply; nothing was loaded\n") == (code, told)
    Path("lakehouses.yaml").write_text(f"lakehouses: {brackets}")  # libyaml's recursion would end the process
    code, _, told = run("ls", "a")
    assert 2 == code
    assert told.endswith("lakehouses.yaml, line 1: nested too deeply, more than 200 levels\n")


def test_columns_are_counted_and_long_input_is_not_repeated(lake: Lakehouse, run: Run) -> None:
    with pytest.raises(InvalidInput, match="schema has 100,001 columns, and 100,000 is the most"):
        schema_of([{"name": "c", "type": "bigint"}] * 100_001)
    kind = "array<" * 5000 + "bigint" + ">" * 5000
    Path("c.yaml").write_text(f"- create_table: {{namespace: sales, name: b, schema: [{{name: c, type: '{kind}'}}]}}")
    assert 4000 > len(run("apply", "lake", "c.yaml")[2])


def test_a_locale_without_the_letters_of_a_path_reads_and_writes_it(tmp_path: Path) -> None:
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    assert 0 == (done := as_program("create", "./läke", **ascii_only)).returncode, done.stderr
    assert (tmp_path / "läke").is_dir()
    assert [] == Lakehouse.open("läke").namespaces()


# -- 5, 11, 12: which version is meant -------------------------------------------------------------------


@pytest.mark.parametrize("name", ["HEAD", "HEAD~1", "3", "2h", "-2h", "2026-11-23", "20261123", "snapshot:x"])
def test_a_snapshot_is_not_called_like_a_version(lake: Lakehouse, name: str) -> None:
    with pytest.raises(InvalidInput, match="a snapshot must not be called"):
        lake.create_snapshot(name)


def test_a_name_that_an_older_release_accepted_is_readable_and_ambiguous(
    lake: Lakehouse, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        older.setattr("trinitylake_core.snapshots.refuse_bad_name", lambda name: None)
        lake.at(0).create_snapshot("1")
        lake.at(0).create_snapshot("HEAD")
    code, _, told = run("rollback", "lake", "--to-version", "1", "--reason", "x")
    assert (2, True) == (code, told.startswith("error: version '1' is ambiguous")), told
    assert told.endswith("write snapshot:1 for the snapshot, or else HEAD~3\n")
    assert run("ls", "lake", "--version", "HEAD")[2].endswith("write snapshot:HEAD for the snapshot, or else 4\n")
    assert "no objects\n" == run("ls", "lake", "--version", "snapshot:1")[1]
    assert [] == lake.refresh().at("snapshot:1").namespaces()
    assert isinstance(lake.definition.snapshots["1"], SnapshotDef)


def test_the_library_reads_versions_as_the_command_line_does(lake: Lakehouse) -> None:
    lake.create_snapshot("good")
    lake.refresh()
    assert [1, 2, 3, 3] == [lake.at(each).version for each in (1, "HEAD~1", "HEAD", "3")]
    assert 2 == lake.at("good").version
    with pytest.raises(InvalidInput, match=r"version must be a number, .* not 1\.5"):
        lake.at(1.5)  # type: ignore[arg-type]
    with pytest.raises(VersionNotFound):
        lake.at("HEAD~4")
    with pytest.raises(SnapshotNotFound):
        lake.at("snapshot:bad")


def test_a_time_without_a_zone_and_one_in_the_future_are_refused(lake: Lakehouse, run: Run) -> None:
    now = datetime.now(UTC)
    assert 2 == lake.at(timestamp=now + timedelta(seconds=30)).version
    for when in (datetime.now(), now.replace(tzinfo=None)):  # noqa: DTZ005 - what is refused
        with pytest.raises(InvalidInput, match="has no time zone"):
            lake.at(timestamp=when)
        with pytest.raises(InvalidInput, match="has no time zone"):
            lake.rollback(timestamp=when, reason="x")
    with pytest.raises(InvalidInput, match="lies in the future"):
        lake.at(timestamp=now + timedelta(days=1))
    assert "error: timestamp 2999-01-01 lies in the future\n" == run("ls", "lake", "--timestamp", "2999-01-01")[2]


# -- 7, 12: places ---------------------------------------------------------------------------------------


def test_every_place_is_a_uri_a_path_or_a_name(lake: Lakehouse, run: Run, tmp_path: Path) -> None:
    assert 0 == run("export", "lake", "copy")[0]
    Path("lakehouses.yaml").write_text(f"lakehouses:\n- name: kept\n  root: {(tmp_path / 'copy').as_uri()}\n")
    restore = ["restore", "lake", "--only", "sales.*", "--reason", "x", "--dry-run", "--json"]
    for source in ("copy", "./copy", str(tmp_path / "copy"), "kept"):
        code, out, told = run(*restore, "--from", source)
        assert 0 == code, told
        assert f"{(tmp_path / 'copy').as_uri()}/" in out
    assert 0 == run("clean", "lake", "--plan-to", "plan.parquet", "--engine", "local")[0]
    assert (tmp_path / "plan.parquet").is_file()
    assert 0 == run("clean", "lake", "--plan", "plan.parquet", "--engine", "local")[0]


def test_the_library_and_pyiceberg_take_paths(lake: Lakehouse, tmp_path: Path) -> None:
    for root in (tmp_path / "lake", "./lake", "lake", str(tmp_path / "lake")):
        assert lake.root == Lakehouse.open(root).root
        assert lake.root == TrinityLakeCatalog("x", uri=root).lakehouse.root  # type: ignore[arg-type]
    assert 1 == TrinityLakeCatalog("x", uri="lake", version="HEAD~1").lakehouse.version
    assert 2 == TrinityLakeCatalog("x", uri="lake", timestamp="0s").lakehouse.version


def test_a_file_as_root_is_called_one(run: Run) -> None:
    Path("file").write_text(json.dumps({}))
    assert run("ls", "./file")[2].endswith("it is a file, and a lakehouse is a directory\n")


# -- 4, 9: what was committed, and exit codes -----------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ["alter", "lake", "--set", "a=b", "--json"],
        ["freeze", "lake", "--reason", "x"],
        ["rollback", "lake", "--to-version", "0", "--reason", "r"],
    ],
)
def test_a_commit_that_cannot_be_printed_is_named(lake: Lakehouse, words: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "pipelines.cli", *words],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(CHECKOUT)},
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert 4 == done.returncode
    assert done.stderr.endswith("No space left on device; version 3 was committed\n")


# -- 12, 13, 14: riddles and silence ---------------------------------------------------------------------


def test_two_tables_with_dots_have_two_names_that_are_taken_back(lake: Lakehouse, run: Run) -> None:
    with lake.transaction() as txn:
        txn.create_namespace("a")
        txn.create_namespace("a.b")
        txn.create_table("a", "b.c")
        txn.create_table("a.b", "c")
    names = [line.split()[1] for line in run("ls", "lake", "--kind", "table")[1].splitlines()[1:]]
    assert ["a.b\\.c", "a\\.b.c", "sales.orders", "sales.refunds"] == sorted(names)
    for name, namespace in (("a.b\\.c", "a"), ("a\\.b.c", "a.b")):
        assert namespace == json.loads(run("show", "lake", name, "--json")[1])["namespace"]


def test_a_load_lists_the_actions_that_it_takes(lake: Lakehouse, run: Run) -> None:
    Path("x.jsonl").write_text('{"frobnicate": {"namespace": "a"}}')
    told = run("load", "lake", "x.jsonl", "--engine", "local")[2]
    assert "known are: create_namespace, create_table, create_view;" in told.replace("'", "") + ";", told


@pytest.mark.parametrize("name", ["z\u200b", "\ufeffz", "e\u0301"])
def test_a_new_name_that_looks_like_another_is_refused(lake: Lakehouse, run: Run, name: str) -> None:
    txn = lake.transaction()
    txn.create_namespace("z")
    for create in (lambda: txn.create_table("sales", name), lambda: txn.create_namespace(name)):
        with pytest.raises(InvalidInput, match=r"invisible character|form NFC"):
            create()
    with pytest.raises(InvalidInput, match=r"invisible character|form NFC"):
        txn.rename_table("sales", "orders", "sales", name)
    Path("x.jsonl").write_text(json.dumps({"create_namespace": {"namespace": name}}))
    assert 2 == run("load", "lake", "x.jsonl", "--engine", "local")[0]


def test_a_property_that_no_job_obeys_is_refused(lake: Lakehouse, run: Run) -> None:
    code, _, told = run("alter", "lake", "--set", "maintenance.delete.enable=false")
    assert (2, True) == (code, "no job obeys the property 'maintenance.delete.enable'" in told)
    assert 0 == run("alter", "lake", "--set", "maintenance.delete.enabled=false")[0]
    assert 0 == run("alter", "lake", "--unset", "maintenance.delete.enable")[0]


def test_the_directory_of_iceberg_tables_is_called_by_its_name(lake: Lakehouse, run: Run) -> None:
    Path("lake/tables/sales").mkdir(parents=True)
    Path("lake/tables/sales/data.parquet").write_bytes(b"PAR1")
    out = run("clean", "lake", "--dry-run", "--engine", "local")[1]
    assert "left alone: tables/, the files of this lakehouse's Iceberg tables; `tables clean` cleans them" in out
    assert "not of this lakehouse" not in out


# -- 17: what users of Python guess ----------------------------------------------------------------------


def test_natural_guesses_work(lake: Lakehouse) -> None:
    with Lakehouse.open("lake") as same:
        assert same == lake
        assert hash(same) == hash(lake)
        assert lake != lake.at(1)
    assert ["sales.orders", "sales.refunds"] == lake.tables()
    assert [] == lake.views()
    assert [True, True, False, False] == [each in lake for each in ("sales", "sales.orders", "orders", "a.b.c")]
    assert lake.table("sales", "orders") == lake.table("sales.orders")
    assert trinitylake_core.__version__


def test_other_guesses_name_the_right_call(lake: Lakehouse) -> None:
    with pytest.raises(AttributeError, match=r"history\(\)"):
        lake.versions  # type: ignore[attr-defined] # noqa: B018
    with pytest.raises(TypeError, match=r"Lakehouse\.open\(root"):
        pickle.dumps(lake)
    with pytest.raises(InvalidInput, match="columns as `apply` takes them"):
        lake.transaction().create_table("sales", "x", [{"name": "a", "type": "bigint"}])  # type: ignore[arg-type]


# -- 9: one table of exit codes --------------------------------------------------------------------------


def _documented() -> dict[int, str]:
    text = (CHECKOUT / "docs/runbook.md").read_text(encoding="utf-8").partition("## Exit codes")[2]
    return {int(code): meaning for code, meaning in re.findall(r"^\| (\d+) \| ([^|:]+)", text, re.MULTILINE)}


def test_the_table_of_exit_codes_is_that_of_the_program(run: Run) -> None:
    documented = _documented()
    assert {0, 1, INTERRUPTED, READER_GONE, *app._EXIT_CODES} == set(documented)
    shown = run("--help")[1].partition("exit codes:")[2]
    assert set(documented) == {int(each) for each in re.findall(r"(?<!\S)(\d+) [a-z]", shown)}


# -- to build besides ------------------------------------------------------------------------------------


def test_long_lists_show_what_definitions_say_of_iceberg_tables(lake: Lakehouse, run: Run) -> None:
    catalog = TrinityLakeCatalog("x", uri="lake")
    rows = pa.table({"id": [1, 2, 3]})
    table = catalog.create_table("sales.items", rows.schema)
    table.append(rows)
    snapshot = table.current_snapshot()
    found = {each["name"]: each for each in json.loads(run("ls", "lake", "--long", "--json")[1])["objects"]}
    assert (3, snapshot.snapshot_id) == (found["items"]["rows"], found["items"]["snapshot"])
    assert int(snapshot.summary["total-files-size"]) == found["items"]["bytes"] > 0
    assert (None, None, None) == tuple(found["orders"][each] for each in ("rows", "bytes", "snapshot"))
    line = next(each for each in run("ls", "lake", "--long")[1].splitlines() if "sales.items" in each)
    assert ["table", "sales.items", "3"] == line.split()[:3]
    assert run("ls", "lake", "--long", "--format", "csv")[1].startswith("kind,namespace,name,rows,bytes,snapshot\n")
    weights = json.loads(run("stats", "lake", "--tables", "--json")[1])["weights"]
    heaviest = {"table": "sales.items", "rows": found["items"]["rows"], "bytes": found["items"]["bytes"]}
    assert heaviest == weights["heaviest"][0]
    table.overwrite(rows)
    assert "overwrite sales.items" in (Lakehouse.open("lake").info().summary.get("reason") or "")


def test_an_interruption_while_the_program_is_loaded_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(launch, "import_module", interrupted)
    assert 130 == launch.main()
    assert "error: interrupted\n" == capsys.readouterr().err


def test_next_to_nothing_is_loaded_before_an_interruption_is_caught() -> None:
    """What is loaded earlier is a traceback for an early Ctrl-C."""
    program = f"import sys; sys.path.insert(0, {str(CHECKOUT)!r}); import trinitylake_core.launch; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-ISc", program], capture_output=True, text=True, check=True)
    assert set() == {"typing", "datetime", "json", "pathlib", "trinitylake_core.errors"} & set(done.stdout.split())


def test_many_lakehouses_with_assets_of_their_own_are_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(factory, "MANY", 1)
    stanzas = tuple(LakehouseSettings(name=name, root=f"file:///{name}") for name in ("a", "b"))
    factory.define_lakehouses(stanzas[:1])
    assert [] == caplog.messages
    factory.define_lakehouses(stanzas)
    assert caplog.messages[0].startswith("2 lakehouses with assets of their own are slow to load, and polled seldom")
