"""A canonical lakehouse frozen in November 2026: what could be read then is read for ever, and can be gone on from."""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import GOLDEN
from tests.support.lakes import FAST, compacted, content
from tests.support.surgery import Surgery
from trinitylake_core import Lakehouse
from trinitylake_core.check import check_version
from trinitylake_core.definitions import to_dict
from trinitylake_core.versions import from_millis

VERSIONS = range(22)
ORDER = 4


@pytest.fixture
def lake(tmp_path: Path) -> Lakehouse:
    """Open a fresh copy."""
    with tarfile.open(GOLDEN / "canonical-v1.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    return Lakehouse.open((tmp_path / "canonical-v1").as_uri(), storage_options=FAST)


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    """Return what was read when it was frozen."""
    found: dict[str, Any] = json.loads((GOLDEN / "canonical-v1.expected.json").read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="module")
def objects(golden: dict[str, Any]) -> list[dict[str, str]]:
    """Return key and path of every object, version by version."""
    found: list[dict[str, str]] = [{}]
    for version in golden["versions"]:
        now = found[-1] | version["changes"]
        found.append({key: path for key, path in now.items() if path is not None})
    return found[1:]


def test_the_frozen_files_were_not_made_again() -> None:
    """They are bytes of the past; a reader that fails on them is wrong, not they."""
    digest = hashlib.sha256((GOLDEN / "canonical-v1.tar.xz").read_bytes()).hexdigest()
    assert "ea2228ddc08ed8338231980e81ca74353163b1b6cb90063aac5d95ea883fa4f2" == digest


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_reads_as_it_did(
    lake: Lakehouse, golden: dict[str, Any], objects: list[dict[str, str]], version: int
) -> None:
    """System rows, objects, digest, shape, buffers, the messages of its own, every definition."""
    wanted = golden["versions"][version]
    handle = lake.at(version=version)
    info = handle.info()
    for name, found in {
        "root_file": info.path,
        "created_at_millis": info.created_at_millis,
        "previous_root": info.previous_root,
        "rollback_from_root": info.rollback_from_root,
        "operation": info.operation,
        "txn": info.txn,
        "summary": info.summary,
        "height": info.height,
        "digest": handle.digest(),
        "own_messages": [list(row) for row in handle.root_node.own_messages()],
    }.items():
        assert wanted[name] == found, name
    assert objects[version] == content(handle)
    tree = Surgery(lake.root, ORDER).tree(version)
    assert wanted["nodes"] == len(tree)
    assert wanted["buffered"] == [[node.height, len(node.buffer)] for _, node in tree if node.buffer.keys]
    for entry in handle.objects():
        known = golden["definitions"][entry.path]
        assert (known["kind"], known["namespace"], known["name"]) == (entry.kind, entry.namespace, entry.name)
        assert known["def"] == to_dict(handle.definition_of(entry))
    assert [] == list(check_version(lake.backend.versions, version, definitions=True))
    assert version == lake.at(timestamp=from_millis(wanted["created_at_millis"])).version


def test_its_definition_and_its_snapshot_read_as_they_did(
    lake: Lakehouse, golden: dict[str, Any], objects: list[dict[str, str]]
) -> None:
    assert golden["lakehouse_def"] == to_dict(lake.definition)
    for name, version in golden["snapshots"].items():
        assert objects[version] == content(lake.at(snapshot=name))


def test_its_versions_differ_as_they_did(lake: Lakehouse, objects: list[dict[str, str]]) -> None:
    for a, b in ((0, 21), (21, 0), (10, 11), (17, 20), (18, 19), (5, 17)):
        old, new = objects[a], objects[b]
        wanted = {key: (old.get(key), new.get(key)) for key in old.keys() | new.keys() if old.get(key) != new.get(key)}
        assert wanted == {change.key: (change.old_path, change.new_path) for change in lake.diff(a, b)}


def test_it_can_be_gone_on_from(lake: Lakehouse, objects: list[dict[str, str]]) -> None:
    """Written to, flushed and compacted by the release of today."""
    for number in range(40):
        with lake.transaction() as txn:
            txn.create_table("empty", f"new{number}")
    expected = content(lake.refresh())
    assert objects[-1].items() <= expected.items()
    compacted(lake)
    lake.refresh()
    assert expected == content(lake)
    assert [] == list(lake.check(definitions=True))
