"""The command line: what each command prints, exit codes, JSON and nothing else, clear errors."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pipelines.cli.command import Result
from pipelines.cli.contents import ENTRIES
from pipelines.cli.program import load
from pipelines.cli.progress import PrintedProgress
from pipelines.session import spark as spark_sessions
from tests.pipelines.conftest import Run, as_program
from tests.support.clock import Clock
from tests.support.lakes import filled, new_lake, reopened
from trinitylake_core import CommitConflict, Lakehouse, StorageError, UnsafeStorage

ROOT = Path(__file__).parents[2]
CHANGES = """
- create_namespace: {namespace: sales, properties: {owner: emea}}
- create_namespace: größe-表
- create_table:
    namespace: sales
    name: orders
    schema:
      - {name: id, type: bigint, nullable: false}
      - {name: price, type: "decimal(10, 2)"}
      - {name: code, type: char(3)}
      - {name: tags, type: list, element: varchar}
      - {name: seen, type: map, key: varchar, value: {type: timestamptz, nullable: false}}
      - {name: place, type: struct, fields: [{name: lat, type: double}]}
    primary_keys: [id]
- create_view: {namespace: sales, name: top, sql: "SELECT 1", dialect: spark}
"""


pytestmark = pytest.mark.usefixtures("no_environment")


@pytest.fixture
def root(tmp_path: Path) -> str:
    """Return the URI of an empty lakehouse."""
    uri = (tmp_path / "lake").as_uri() + "/"
    Lakehouse.create(uri, order=5)
    return uri


@pytest.fixture
def changes(tmp_path: Path) -> str:
    """Return the name of a file with a list of changes."""
    file = tmp_path / "changes.yaml"
    file.write_text(CHANGES, encoding="utf-8")
    return str(file)


@pytest.fixture
def sales(root: str, changes: str, run: Run) -> str:
    """Return the URI of a lakehouse with a few objects, made by ``apply``."""
    assert 0 == run("apply", root, changes, "--reason", "first").code
    return root


# -- usage ---------------------------------------------------------------------------------------------


def test_without_a_word_the_overview_is_an_error(run: Run) -> None:
    ran = run()
    assert (2, "") == (ran.code, ran.out)
    assert "usage: trinitylake <command> ROOT" in ran.err


@pytest.mark.parametrize("name", sorted(ENTRIES))
def test_every_command_has_a_help_text_with_an_example_of_itself(run: Run, name: str) -> None:
    ran = run(*name.split(), "--help")
    assert (0, "") == (ran.code, ran.err)
    assert f"usage: trinitylake {ENTRIES[name].synopsis} [options]" in ran.out
    assert f"example:\n  trinitylake {name} " in ran.out
    assert "--json" in ran.out


def test_version(run: Run) -> None:
    assert run("--version").out.startswith("trinitylake ")


def test_the_root_comes_from_the_environment(run: Run, sales: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRINITYLAKE_ROOT", sales)
    for words in (["ls"], ["ls", "sales"], ["show"], ["show", "sales.orders"], ["diff", "0", "1"], ["stats"]):
        without, full = run(*words), run(words[0], sales, *words[1:])
        assert (0, without) == (without.code, full)
    assert "must hold a list of changes" in run("apply", os.devnull, "--dry-run").err
    assert "there is no lakehouse at file:///no/such/lake/" in run("ls", "/no/such/lake").err
    assert "there is no namespace 'data/lake'" in run("ls", "data/lake").err
    assert "DST is missing" in run("upgrade", "file:///x").err


def test_an_explicit_root_wins_over_the_environment(run: Run, sales: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRINITYLAKE_ROOT", "file:///nowhere")
    assert 0 == run("ls", sales).code
    assert 0 == run("ls", sales, "sales").code
    assert 2 == run("ls").code


# -- commands ------------------------------------------------------------------------------------------


def test_create_takes_every_field_of_the_definition(run: Run, tmp_path: Path) -> None:
    root = (tmp_path / "new").as_uri()
    ran = run(
        "create", root, "--order", "7", "--namespace-name-max-size-bytes", "20", "--table-name-max-size-bytes", "30",
        "--view-name-max-size-bytes", "40", "--node-file-max-size-bytes", "50000", "--txn-ttl-millis", "60000",
        "--txn-isolation-level", "SERIALIZABLE", "--property", "owner=a=b", "--properties", '{"x": "y"}', "--json",
    )  # fmt: skip
    assert (0, "") == (ran.code, ran.err)
    assert {"root", "version", "definition"} == set(ran.json)
    definition = ran.json["definition"]
    assert (7, 20, 30, 40) == tuple(
        definition[name]
        for name in (
            "order",
            "namespace_name_max_size_bytes",
            "table_name_max_size_bytes",
            "view_name_max_size_bytes",
        )
    )
    assert ("50000", "60000", "SERIALIZABLE") == (
        definition["node_file_max_size_bytes"],
        definition["txn_ttl_millis"],
        definition["txn_isolation_level"],
    )
    assert {"owner": "a=b", "x": "y"} == definition["properties"]
    assert definition == run("show", root, "--json").json["definition"]


def test_create_refuses_a_root_that_is_taken_or_has_no_scheme(run: Run, root: str) -> None:
    taken = run("create", root, "--json")
    assert (2, "AlreadyExists") == (taken.code, taken.json["error"]["type"])
    assert "already holds a lakehouse, at version 0" in taken.err
    assert "already holds a lakehouse" in run("create", root.removeprefix("file://")).err
    assert "for a new one write './1:x'" in run("create", "1:x").err


def test_a_storage_that_is_not_fit_is_told(run: Run, tmp_path: Path) -> None:
    assert 0 == run("doctor", (tmp_path / "anywhere").as_uri()).code
    assert not (tmp_path / "anywhere").exists()
    (tmp_path / "file").write_text("in the way")
    failed = run("doctor", (tmp_path / "file" / "below").as_uri(), "--json")
    assert (1, False) == (failed.code, failed.json["ok"])


def test_an_empty_lakehouse_can_be_shown_in_every_way(run: Run, root: str) -> None:
    for words in (["ls"], ["show"], ["stats"], ["tree"], ["history"], ["verify"], ["verify", "--all"]):
        ran = run(words[0], root, *words[1:])
        assert (0, "") == (ran.code, ran.err), words
    assert "no objects\n" == run("ls", root).out
    assert [] == run("ls", root, "--json").json["objects"]
    assert "no differences\n" == run("diff", root, "0", "0").out
    assert None is run("compact", root, "--json").json["version_after"]


def test_show_resolves_names_that_hold_dots(run: Run, root: str) -> None:
    with Lakehouse.open(root).transaction() as txn:
        for namespace in ("a", "a.b", "a.b.c"):
            txn.create_namespace(namespace)
        txn.create_table("a.b", "x.y")
        txn.create_table("a", "b.c.d")
        txn.create_table("a.b", "c.d")
        txn.create_view("a", "b", sql="SELECT 1")
    found = run("show", root, "a.b.x.y", "--json").json
    assert ("a.b", "x.y") == (found["namespace"], found["name"])
    several = run("show", root, "a.b.c.d")
    assert 2 == several.code
    assert "table 'b.c.d' in 'a', table 'c.d' in 'a.b'; choose one with --kind or --namespace" in several.err
    assert "a.b" == run("show", root, "c.d", "--namespace", "a.b", "--json").json["namespace"]
    assert "view" == run("show", root, "a.b", "--kind", "view", "--json").json["kind"]
    assert "namespace" == run("show", root, "a.b", "--kind", "namespace", "--json").json["kind"]
    assert "is ambiguous: namespace '' in 'a.b', view 'b' in 'a'" in run("show", root, "a.b").err


def test_the_history_of_one_object(run: Run, sales: str) -> None:
    with Lakehouse.open(sales).transaction() as txn:
        txn.drop_table("sales", "orders")

    def versions(*options: str) -> list[int]:
        return [each["version"] for each in run("history", sales, *options, "--json").json["versions"]]

    assert [2, 1] == versions("--object", "sales.orders")
    assert [2] == versions("--object", "sales.orders", "--limit", "1", "--since", "2001-01-01")
    assert [1] == versions("--object", "sales.top")
    assert [] == versions("--object", "sales.top", "--operation", "load")
    assert [0] == versions("--operation", "compact", "--operation", "create")
    never = run("history", sales, "--object", "sales.never", "--json")
    assert (2, "ObjectNotFound") == (never.code, never.json["error"]["type"])


def test_diff_of_two_versions(run: Run, sales: str) -> None:
    with Lakehouse.open(sales).transaction() as txn:
        txn.alter_namespace("sales", {"owner": "apac", "new": "1"})
        txn.drop_view("sales", "top")
        txn.create_namespace("more")
    assert ["added    namespace  more", "changed  namespace  sales", "removed  view       sales.top"] == (
        run("diff", sales, "1", "2").out.splitlines()[1:]
    )
    document = run("diff", sales, "1", "2", "--json").json
    assert (1, 2) == (document["a"], document["b"])
    assert ["added", "changed", "removed"] == [each["change"] for each in document["changes"]]
    text = run("diff", sales, "1", "2", "--definitions").out
    assert "    changed property owner: emea -> apac" in text.splitlines()
    assert "    added property new: 1" in text.splitlines()
    details = run("diff", sales, "1", "2", "--definitions", "--json").json["changes"]
    assert {"definition"} == set(details[0]) - set(document["changes"][0])
    assert "owner" == details[1]["differences"][1]["name"]


def test_diff_of_two_lakehouses(run: Run, java_lakehouse: str, tmp_path: Path) -> None:
    target = (tmp_path / "up").as_uri()
    assert 0 == run("upgrade", java_lakehouse, target, "--engine", "local", "--order", "4").code
    assert [] == run("diff", java_lakehouse, "13", "0", "--other", target, "--json").json["changes"]
    assert "no differences\n" == run("diff", java_lakehouse, "13", "0", "--other", target, "--definitions").out


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("REMOTE", "host:15002", "mode 'connect' needs remote"),
        ("MASTER", "local[many]", "master of mode 'local' must be"),
    ],
)
def test_a_spark_that_cannot_be_is_refused_where_one_may_be_needed(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str
) -> None:
    lake = filled(new_lake(tmp_path))
    monkeypatch.setenv(f"TRINITYLAKE_SPARK_{name}", value)
    monkeypatch.setattr(spark_sessions, "active_session", lambda: None)  # one that runs would do, whatever is asked for
    for engine in ("spark", "auto"):
        refused = run("compact", lake.root, "--engine", engine)
        assert (2, 1) == (refused.code, refused.err.count(message))
    assert lake.version == reopened(lake).version
    assert 0 == run("compact", lake.root, "--engine", "local").code


def test_an_engine_that_cannot_be_is_refused_however_small_the_lakehouse(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = filled(new_lake(tmp_path))
    for more in (["--master", "local[2]"], ["--remote", "sc://host:1"]):
        refused = run("compact", lake.root, "--engine", "local", *more)
        assert (2, True) == (refused.code, f"leave out --engine or {more[0]}" in refused.err)
    monkeypatch.setattr(spark_sessions, "find_spec", lambda _: None)
    for more in (["--engine", "spark"], ["--master", "spark://host:7077"]):
        refused = run("compact", lake.root, *more)
        assert (2, True) == (refused.code, "pip install 'trinitylake-maintenance[spark]" in refused.err)
    assert lake.version == reopened(lake).version


def test_auto_says_why_on_request_only(run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lake = filled(new_lake(tmp_path))
    why = "engine local: no Spark on other machines is configured"
    for more, expected in (["--verbose"], [why]), ([], []):
        run("clean", lake.root, "--dry-run", *more)
        assert expected == caplog.messages
        caplog.clear()


# -- apply ---------------------------------------------------------------------------------------------


def test_apply_takes_every_action(run: Run, sales: str, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = run("show", sales, "sales.orders", "--json").json["definition"]["schema"]
    schema["columns"][0]["name"] = "order_id"
    changes = [
        {"alter_namespace": {"namespace": "sales", "properties": {"owner": None, "team": "x"}}},
        {"alter_table": {"namespace": "sales", "name": "orders", "schema": schema, "sort_keys": ["order_id"]}},
        {"replace_view": {"namespace": "sales", "name": "top", "sql": "SELECT 2"}},
        {"create_table": {"namespace": "größe-表", "name": "t", "format_properties": None}},
        {"drop_namespace": {"namespace": "größe-表", "cascade": True}},
        {
            "create_view": {
                "namespace": "sales",
                "name": "v",
                "sql": "x",
                "referenced_object_full_names": [["a", "b.c"]],
            }
        },
        {"drop_view": {"namespace": "sales", "name": "v"}},
        {"create_table": {"namespace": "sales", "name": "gone"}},
        {"drop_table": {"namespace": "sales", "name": "gone"}},
    ]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(json.dumps(changes).encode())))
    done = run("apply", sales, "-", "--json")
    assert 0 == done.code, done.err
    assert [
        ("removed", "namespace", "größe-表", None),
        ("changed", "namespace", "sales", None),
        ("changed", "table", "sales", "orders"),
        ("changed", "view", "sales", "top"),
    ] == [tuple(each.values()) for each in done.json["changes"]]
    definition = run("show", sales, "sales.orders", "--json").json["definition"]
    assert ("order_id", 1, [1]) == (
        definition["schema"]["columns"][0]["name"],
        definition["schema"]["columns"][0]["id"],
        definition["sort_keys"],
    )
    assert {"team": "x"} == run("show", sales, "sales", "--json").json["definition"]["properties"]


def test_apply_needs_a_file_that_can_be_read(run: Run, root: str, tmp_path: Path) -> None:
    assert "cannot read " in run("apply", root, str(tmp_path / "none.yaml")).err
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    ran = run("apply", root, str(tmp_path / "binary"))
    assert (2, True) == (ran.code, "is not UTF-8 text" in ran.err)


# -- what can go wrong ---------------------------------------------------------------------------------


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Return a function that makes the command ``ls`` raise an error."""

    def make(error: BaseException) -> None:
        def fail(_: object) -> Result:
            print("noise")
            raise error

        monkeypatch.setattr(load("ls"), "run", fail)

    return make


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (CommitConflict("somebody else won"), 3, "somebody else won"),
        (StorageError("the disk is full"), 4, "the disk is full"),
        (UnsafeStorage("ignores it"), 4, "ignores it"),
        (OSError(errno.ENOSPC, "writing"), 4, "temporary files cannot be used: the disk is full; make room in /"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (ValueError("what\nsecond line"), 4, "unexpected ValueError: what. This is a bug in trinitylake"),
    ],
)
def test_every_error_has_its_exit_code_and_no_traceback(
    run: Run, failing: Callable[[BaseException], None], error: BaseException, code: int, text: str
) -> None:
    failing(error)
    ran = run("ls", "file:///x", "--json")
    assert code == ran.code
    assert {"type": type(error).__name__, "message": ran.json["error"]["message"]} == ran.json["error"]
    assert text in ran.json["error"]["message"]
    assert ran.err.startswith("noise\nerror: " + text)
    assert "Traceback" not in ran.err


def test_a_traceback_is_shown_on_request_and_without_secrets(
    run: Run, failing: Callable[[BaseException], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRINITYLAKE_DEBUG", "1")
    monkeypatch.setenv("THE_SECRET", "hunter2hunter2")
    failing(ValueError("key hunter2hunter2 is wrong"))
    ran = run("ls", "s3://bucket/x", "--storage-option", "secret=env:THE_SECRET", "--json")
    assert "Traceback" in ran.err
    assert "hunter2" not in ran.err + ran.out
    assert "key *** is wrong" in ran.json["error"]["message"]


def test_storage_options_reach_the_storage(run: Run, root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 == run("ls", root, "--storage-option", "durable=false").code
    unknown = run("ls", root, "--storage-option", "nonsense=1")
    assert (2, True) == (unknown.code, "unknown storage option" in unknown.err)
    assert "no environment variable 'NOT_SET'" in run("ls", root, "--storage-option", "durable=env:NOT_SET").err
    monkeypatch.setenv("TRINITYLAKE_STORAGE_OPTIONS", '{"nonsense": "1"}')
    assert "unknown storage option" in run("ls", root).err
    monkeypatch.setenv("TRINITYLAKE_STORAGE_OPTIONS", "secretvalue")
    assert "must hold a JSON object\n" == run("ls", root).err.partition("TRINITYLAKE_STORAGE_OPTIONS ")[2]


def test_progress_prints_a_line_every_two_seconds() -> None:
    clock, stream = iter([0.0, 1.0, 2.1, 2.2, 4.2]), io.StringIO()
    progress = PrintedProgress(stream, clock=lambda: next(clock))
    for done in (1, 2, 3, 4):
        progress("nodes", done, None if done == 4 else 10)
    progress.close()
    assert "nodes: 2 of 10\nnodes: 4\n" == stream.getvalue()


# -- as a program --------------------------------------------------------------------------------------


def test_as_a_program(root: str) -> None:
    done = as_program("apply", "-", stdin=CHANGES, TRINITYLAKE_ROOT=root)
    assert (0, "") == (done.returncode, done.stderr)
    listed = as_program("ls", root)
    assert "namespace  größe-表" in listed.stdout.splitlines()
    ascii_only = as_program("ls", root, "--json", PYTHONIOENCODING="ascii")
    assert "größe-表" == json.loads(ascii_only.stdout)["objects"][0]["namespace"]
    assert ascii_only.stdout.isascii()
    table = as_program("ls", root, "--format", "csv", PYTHONIOENCODING="ascii")
    assert "größe-表" in table.stdout
    missing = as_program("ls", root + "none", "--json")
    assert (2, "NotALakehouse") == (missing.returncode, json.loads(missing.stdout)["error"]["type"])


def test_a_reader_that_goes_away_is_no_error_message(root: str) -> None:
    with Lakehouse.open(root).transaction() as txn:
        for number in range(1000):  # more than a pipe holds
            txn.create_namespace(f"{'long' * 23}-{number}")
    shell = f"'{sys.executable}' -m pipelines.cli ls '{root}' | head -n 2"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", shell], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (141, "", 2) == (done.returncode, done.stderr, len(done.stdout.splitlines()))


@pytest.mark.parametrize(
    ("words", "where", "says"),
    [
        ("ls --json", ">/dev/full", "No space left on device"),
        ("history", ">/dev/full", "No space left on device"),
        ("ls", ">&-", "nothing was done"),
    ],
)
def test_an_output_that_takes_nothing_is_told_in_one_line(sales: str, words: str, where: str, says: str) -> None:
    line = f'"{sys.executable}" -m pipelines.cli {words} "{sales}" {where}'
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
    assert 4 == done.returncode
    assert says in done.stderr
    assert 1 == len(done.stderr.splitlines()), done.stderr


def test_ctrl_c_ends_with_130_and_one_line(root: str) -> None:
    program = (
        "import sys; from types import SimpleNamespace; from pipelines.cli import main; given = sys.stdin.buffer\n"
        "def read(): print('up', file=sys.stderr, flush=True); return given.read()\n"
        "sys.stdin = SimpleNamespace(buffer=SimpleNamespace(read=read))\n"
        f"sys.exit(main(['apply', '{root}', '-', '--json']))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert "up\n" == process.stderr.readline()
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)  # it waits for standard input
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=300)
    finally:
        process.kill()
    assert (130, "error: interrupted\n") == (process.returncode, err)
    assert "KeyboardInterrupt" == json.loads(out)["error"]["type"]


def test_options_of_an_object_store_in_the_environment_do_not_hinder_local_lakehouses(
    run: Run, sales: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRINITYLAKE_STORAGE_OPTIONS", '{"key": "a", "secret": "b", "endpoint_url": "http://x"}')
    assert 0 == run("ls", sales).code


def test_a_list_without_versions_says_why(run: Run, sales: str) -> None:
    unknown = run("history", sales, "--object", "typo.x")
    assert (2, "") == (unknown.code, unknown.out)
    assert "error: version 1 has no object 'typo.x', and no retained version changed it\n" == unknown.err
    Lakehouse.open(sales).transaction().commit()
    assert "no retained version that matches changed it: sales.orders\n" == (
        run("history", sales, "--object", "sales.orders", "--since", "2099-01-01").out
    )
    assert "no version matches\n" == run("history", sales, "--operation", "load").out


def test_load_takes_a_relative_path_and_names_the_file(
    run: Run, root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "w").mkdir()
    (tmp_path / "here").mkdir()
    (tmp_path / "w" / "catalog.jsonl").write_text('{"create_namespace": {"namespace": "a"}}\n')
    monkeypatch.chdir(tmp_path / "here")
    done = run("load", root, "../w/catalog.jsonl", "--engine", "local", "--json")
    assert (0, (tmp_path / "w" / "catalog.jsonl").as_uri()) == (done.code, done.json["source"])
    (tmp_path / "w" / "catalog.jsonl").write_text("\n")
    assert "catalog.jsonl: 1 file, no lines" in run("load", root, "../w/catalog.jsonl", "--engine", "local").err


SHORTER = "- alter_table: {namespace: sales, name: orders, schema: [{name: id, type: bigint}]}"


def test_a_schema_that_loses_columns_or_keys_needs_a_flag(run: Run, sales: str, tmp_path: Path) -> None:
    """A dry run tells what would be lost; without the flag nothing is changed."""
    (tmp_path / "list.yaml").write_text(SHORTER)
    planned = run("apply", sales, str(tmp_path / "list.yaml"), "--dry-run")
    assert 0 == planned.code
    for words in ("column 'price' is dropped", "the primary key 'id' becomes nullable", "--allow-loss is needed"):
        assert words in planned.out
    refused = run("apply", sales, str(tmp_path / "list.yaml"), "--json")
    assert (3, "Refused") == (refused.code, refused.json["error"]["type"])
    for words in ("column 'price' is dropped", "the primary key 'id' becomes nullable", "--allow-loss"):
        assert words in refused.err
    assert 1 == run("stats", sales, "--json").json["version"]
    done = run("apply", sales, str(tmp_path / "list.yaml"), "--allow-loss", "--json").json
    assert (2, True) == (done["version_after"], any("price" in each for each in done["losses"]))
    (tmp_path / "more.yaml").write_text(SHORTER.replace("bigint}", "bigint}, {name: new, type: int}"))
    assert 0 == run("apply", sales, str(tmp_path / "more.yaml")).code  # nothing is lost


def test_a_clock_that_ran_ahead_is_told(run: Run, root: str, clock: Clock) -> None:
    for words in (["verify"], ["doctor"], ["expire", "--dry-run", "--engine", "local"]):
        assert "is dated" not in run(words[0], root, *words[1:]).err
    with clock.another():
        clock.set(4102444800000)
        with Lakehouse.open(root).transaction() as txn:
            txn.create_namespace("later")
    for words in (["verify"], ["doctor"], ["expire", "--dry-run", "--engine", "local"]):
        ran = run(words[0], root, *words[1:])
        assert "warning: the newest version is dated 2100-01-01 00:00 UTC" in ran.err, words
        assert 0 == ran.code
