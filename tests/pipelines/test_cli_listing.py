"""Listing on the command line: patterns, limits that bound the work, CSV for programs."""

from __future__ import annotations

import csv
import io
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines import cli
from tests.pipelines.conftest import Run
from trinitylake_core import Lakehouse
from trinitylake_core.errors import InvalidInput, InvalidName
from trinitylake_core.keys import KINDS, NAMESPACE, KeyCodec, ObjectName
from trinitylake_core.recovery.patterns import Pattern
from trinitylake_core.storage.base import BaseStorage


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    """Return 25 namespaces of 20 tables in a tree of many small nodes, nothing buffered but one commit."""
    lake = Lakehouse.create((tmp_path_factory.mktemp("listing") / "lake").as_uri(), order=5)
    with lake.transaction() as txn:
        for namespace in (f"n{number:02}" for number in range(25)):
            txn.create_namespace(namespace)
            for number in range(20):
                txn.create_table(namespace, f"t{number:02}")
    assert 0 == cli.main(["compact", lake.root, "--engine", "local", "--quiet"])
    with lake.refresh().transaction() as txn:
        txn.create_view("n07", "v.late", sql="SELECT 1")
        txn.drop_table("n07", "t03")
    return lake.refresh()


def _objects(run: Run, lake: Lakehouse, *words: str) -> list[str]:
    code, out, err = run("ls", lake.root, *words, "--json")
    assert 0 == code, err
    return [f"{each['kind']} {each['namespace']}.{each['name']}" for each in json.loads(out)["objects"]]


_PATTERNS = ["n07.*", "*.t19", "n0?.t01", "n1*", "n24", "n07.v.late", r"n07.v\.late", "*late", r"n\07.*"]


@pytest.mark.parametrize("text", _PATTERNS)
def test_a_pattern_lists_what_it_matches_in_key_order(run: Run, large: Lakehouse, text: str) -> None:
    """Against a scan of everything. A plain name of a namespace lists what is in it."""
    pattern = Pattern("n24.*" if text == "n24" else text)
    everything = list(large.objects())
    expected = [each for each in everything if pattern.matches(each.namespace, each.name)]
    assert expected
    shown = [f"{each.kind} {each.namespace}.{each.name}" for each in expected]
    assert shown == _objects(run, large, text)
    assert shown[:3] == _objects(run, large, text, "--limit", "3")
    tables = [each for each in shown if each.startswith("table")]
    if tables:
        assert tables == _objects(run, large, text, "--kind", "table")


def _nodes_read(monkeypatch: pytest.MonkeyPatch, run: Run, *words: str) -> int:
    """Return how many node files a command gets, with one request at a time."""
    read: list[str] = []
    whole = BaseStorage.read

    def counted(self: Any, path: str) -> bytes:
        read.append(path)
        return whole(self, path)

    with monkeypatch.context() as patched:
        patched.setattr(BaseStorage, "read", counted)
        assert 0 == run(*words, "--storage-option", "max_concurrency=1")[0]
    return len([path for path in read if "node" in path])


def test_a_limit_bounds_what_is_read(monkeypatch: pytest.MonkeyPatch, run: Run, large: Lakehouse) -> None:
    """Not only what is printed; and of a pattern with a beginning only the nodes that hold such names are read."""
    everything = _nodes_read(monkeypatch, run, "ls", large.root)
    height = large.stats().height
    assert everything > 100
    for words in (["--limit", "3"], ["*", "--limit", "3"], ["n20.*", "--limit", "1"], ["n20.t1*", "--limit", "2"]):
        assert _nodes_read(monkeypatch, run, "ls", large.root, *words) <= 4 * (height + 2), words
    assert _nodes_read(monkeypatch, run, "ls", large.root, "n20.*") < everything / 5
    rows = _nodes_read(monkeypatch, run, "ls", large.root, "n20.*", "--format", "csv", "--limit", "2")
    assert rows <= 4 * (height + 2)


_NAMES = st.text("ab.*ü", min_size=1, max_size=4)
_OBJECTS = st.lists(st.tuples(st.sampled_from(KINDS), _NAMES, _NAMES), max_size=30)


@given(text=st.text("ab. *?\\ü", min_size=1, max_size=7), names=_OBJECTS, size=st.integers(2, 9))
def test_the_ranges_of_a_pattern_hold_all_that_it_matches_once(
    text: str, names: list[tuple[str, str, str]], size: int
) -> None:
    """Whatever sizes names may have; in key order."""
    codec = KeyCodec(size, size, size)
    try:
        pattern = Pattern(text)
    except InvalidInput:
        return
    keys: dict[str, ObjectName] = {}
    for kind, namespace, name in names:
        each = ObjectName(kind, namespace, None if kind == NAMESPACE else name)
        with suppress(InvalidName):
            keys[codec.encode(each)] = each
    expected = sorted(key for key, each in keys.items() if pattern.matches(each.namespace, each.name))
    ranges = list(pattern.ranges(codec))
    assert expected == [key for within in ranges for key in sorted(keys) if key in within and key in expected]


# -- formats -------------------------------------------------------------------------------------------


def _rows(run: Run, *words: str) -> list[dict[str, str]]:
    code, out, err = run(*words, "--format", "csv")
    assert 0 == code, err
    return list(csv.DictReader(io.StringIO(out)))


def test_csv_holds_what_json_holds(run: Run, large: Lakehouse) -> None:
    objects = json.loads(run("ls", large.root, "n07", "--json")[1])["objects"]
    assert [(each["kind"], each["namespace"], each["name"]) for each in objects] == [
        tuple(row.values()) for row in _rows(run, "ls", large.root, "n07")
    ]
    versions = json.loads(run("history", large.root, "--json")[1])["versions"]
    names = {"version": "version", "created": "created_at", "objects": "objects", "root": "root_bytes"}
    rows = _rows(run, "history", large.root)
    assert [[str(each[name]) for name in names.values()] for each in versions] == [
        [row[name] for name in names] for row in rows
    ]
    changes = json.loads(run("diff", large.root, "HEAD~1", "HEAD", "--json")[1])["changes"]
    assert 2 == len(changes)
    assert [[each[name] for name in ("change", "kind", "namespace", "name")] for each in changes] == [
        list(row.values()) for row in _rows(run, "diff", large.root, "HEAD~1", "HEAD")
    ]
    levels = json.loads(run("tree", large.root, "--json")[1])["levels"]
    assert [{name: str(value) for name, value in each.items()} for each in levels] == _rows(run, "tree", large.root)
    assert levels[:1] == json.loads(run("tree", large.root, "--depth", "0", "--json")[1])["levels"]


def test_no_cell_of_csv_is_a_formula_of_a_spreadsheet(run: Run, tmp_path: Path) -> None:
    lake = Lakehouse.create((tmp_path / "lake").as_uri())
    with lake.transaction() as txn:
        for name in ("=1+1", "+1", "-x", "@SUM(A1)", "-5", "plain"):
            txn.create_namespace(name)
    names = [row["namespace"] for row in _rows(run, "ls", lake.root)]
    assert sorted(["'=1+1", "'+1", "'-x", "'@SUM(A1)", "-5", "plain"]) == sorted(names)


def test_csv_of_nothing_is_a_header(run: Run, tmp_path: Path) -> None:
    root = Lakehouse.create((tmp_path / "lake").as_uri()).root
    assert "kind,namespace,name\n" == run("ls", root, "--format", "csv")[1]
    assert "change,kind,namespace,name\n" == run("diff", root, "0", "0", "--format", "csv")[1]
    assert "name,version,kind,created,expires,copy\n" == run("snapshot", "list", root, "--format", "csv")[1]


def test_a_text_in_csv_is_one_line_and_no_command_for_a_terminal(run: Run, tmp_path: Path) -> None:
    lake = Lakehouse.create((tmp_path / "lake").as_uri())
    with lake.transaction(reason='two\nlines, "quoted" \x1b[31m') as txn:
        txn.create_namespace("a")
    code, out, _ = run("history", lake.root, "--format", "csv")
    assert (0, 3) == (code, len(out.splitlines()))
    assert ['two\\nlines, "quoted" \\x1b[31m', ""] == [row["reason"] for row in csv.DictReader(io.StringIO(out))]


def test_format_json_is_json(run: Run, large: Lakehouse) -> None:
    for words in (["ls", large.root, "n07"], ["history", large.root], ["snapshot", "list", large.root]):
        assert run(*words, "--json") == run(*words, "--format", "json")
    for words in (["--format", "json"], ["--format=json"]):
        code, out, _ = run("ls", large.root, "none", *words)
        assert (2, "ObjectNotFound") == (code, json.loads(out)["error"]["type"])
