"""alter and rename: one thing at a time, with a plan first, and nothing changed by what is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.pipelines.conftest import Run
from trinitylake_core import Lakehouse


@pytest.fixture
def lake(tmp_path: Path) -> Lakehouse:
    return _small(tmp_path)


def _small(directory: Path) -> Lakehouse:
    lake = Lakehouse.create((directory / "lake").as_uri())
    with lake.transaction() as txn:
        for namespace in ("sales", "a", "a.b"):
            txn.create_namespace(namespace, {"owner": "emea"})
        txn.create_table("sales", "orders", properties={"owner": "emea"})
        txn.create_table("sales", "iceberg", format_properties={"metadata_location": "tables/x/metadata/1.json"})
        txn.create_view("sales", "top", sql="SELECT 1")
    return lake.refresh()


def _document(run: Run, *words: str) -> dict[str, Any]:
    code, out, err = run(*words, "--json")
    assert 0 == code, err
    return dict(json.loads(out))


@pytest.mark.parametrize(
    ("name", "kind", "of"),
    [
        ("sales", "namespace", lambda lake: lake.namespace("sales")),
        ("sales.orders", "table", lambda lake: lake.table("sales", "orders")),
        ("sales.top", "view", lambda lake: lake.view("sales", "top")),
    ],
)
def test_properties_of_every_kind_of_object_are_set_and_removed(
    run: Run, lake: Lakehouse, name: str, kind: str, of: Callable[[Lakehouse], Any]
) -> None:
    """A dry run first; all else of the definition stays; no version where nothing changes."""
    before = of(lake)
    words = ["alter", lake.root, name, "--set", "a=1", "--unset", "owner", "--comment", "of 2026", "--reason", "r"]
    planned = _document(run, *words, "--dry-run")
    assert (1, None, kind) == (planned["version"], planned["version_after"], planned["kind"])
    assert {"a": [None, "1"], "comment": [None, "of 2026"]}.items() <= planned["changes"].items()
    assert 1 == lake.refresh().version
    done = _document(run, *words)
    assert {**planned, "version_after": 2, "dry_run": False} == done
    after = of(lake.refresh())
    assert {"a": "1", "comment": "of 2026"} == dict(after.properties) == done["properties"]
    after.properties.clear()
    before.properties.clear()
    before.checksum, after.checksum = b"", b""
    assert before == after
    assert "nothing to change" in run(*words)[1]
    assert "version 3 committed" in run("alter", lake.root, name, "--comment", "")[1]
    assert {"a": "1"} == dict(of(lake.refresh()).properties)
    assert [("commit", "r")] == [(each.operation, each.reason) for each in lake.history() if each.version == 2]
    assert [] == list(lake.refresh().check())


def test_the_delete_guard_of_a_lakehouse_is_set_and_removed(run: Run, lake: Lakehouse) -> None:
    """A dry run first; what stays as it is changes nothing."""
    guard = "maintenance.delete.enabled"
    words = ["alter", lake.root, "--set", f"{guard}=false", "--unset", "owner", "--reason", "audit"]
    planned = run(*words, "--dry-run")[1]
    assert (True, True) == ("dry run, nothing changed" in planned, guard in planned)
    done = _document(run, *words)
    assert (1, 2, False) == (done["version"], done["version_after"], done["dry_run"])
    assert ({guard: [None, "false"]}, {guard: "false"}, "audit") == (
        done["changes"], done["properties"], done["reason"],
    )  # fmt: skip
    refused = run("clean", lake.root, "--engine", "local")
    assert (3, True) == (refused[0], guard in refused[2])
    assert "nothing to change" in run("alter", lake.root, "--unset", "owner")[1]
    for wrong in ([], ["--set", "a"], ["--set", "a=b", "--unset", "a"]):
        assert 2 == run("alter", lake.root, *wrong)[0]


@pytest.mark.parametrize(
    ("old", "new", "to"),
    [
        ("sales.orders", "orders2", ("table", "sales", "orders2")),
        ("sales.orders", "a.orders", ("table", "a", "orders")),
        ("sales.iceberg", "sales.moved", ("table", "sales", "moved")),
        ("sales.top", "a.b.top --to-namespace a", ("view", "a", "a.b.top")),
        ("sales.top", "sales.best", ("view", "sales", "best")),
    ],
)
def test_a_rename_is_one_version_and_keeps_the_definition(
    run: Run, lake: Lakehouse, old: str, new: str, to: tuple[str, str, str]
) -> None:
    kind, namespace, name = to
    before = {(each.kind, each.namespace, each.name): lake.definition_of(each) for each in lake.objects()}
    words = ["rename", lake.root, old, *new.split(), "--reason", "r"]
    planned = _document(run, *words, "--dry-run")
    assert (1, None, True) == (planned["version_before"], planned["version_after"], planned["dry_run"])
    assert "dry run, nothing was changed" in run(*words, "--dry-run")[1]
    assert 1 == lake.refresh().version
    done = _document(run, *words)
    assert {**planned, "version_after": 2, "dry_run": False} == done
    assert {"namespace": namespace, "name": name} == done["to"]
    newest = lake.refresh()
    after = {(each.kind, each.namespace, each.name): newest.definition_of(each) for each in newest.objects()}
    was = (kind, *old.split("."))
    assert before.pop(was) == after.pop(to)  # type: ignore[call-overload]
    assert before == after
    assert 2 == len(list(newest.diff(1, 2)))
    assert [] == list(newest.check())
