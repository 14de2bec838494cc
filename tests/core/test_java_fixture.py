"""What the published Java SDK wrote reads exactly as the SDK reads it, in every version, and is never written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import unpacked
from tests.support.surgery import listing
from trinitylake_core import Lakehouse, ReadOnly, VersionNotFound
from trinitylake_core.check import check_version
from trinitylake_core.commits import changes, commit
from trinitylake_core.definitions import to_dict
from trinitylake_core.storage.root_uris import local_path
from trinitylake_core.versions import from_millis

VERSIONS = range(14)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    """Open a copy that these tests only read."""
    return Lakehouse.open(unpacked(tmp_path_factory.mktemp("java")))


def test_the_newest_version_and_the_definition_are_found(lake: Lakehouse, expected: dict[str, Any]) -> None:
    assert expected["latest_version"] == lake.version
    assert expected["latest_root_file"] == lake.info().path
    assert expected["lakehouse_def"] == to_dict(lake.definition)
    assert lake.read_only


def test_every_version_holds_what_the_sdk_reads(lake: Lakehouse, expected: dict[str, Any]) -> None:
    """Root file, time, previous root, every key and path, all names."""
    for version in VERSIONS:
        wanted = expected["versions"][version]
        handle = lake.at(version=version)
        info = handle.info()
        assert wanted["root_file"] == info.path
        assert wanted["created_at_millis"] == info.created_at_millis
        assert wanted["previous_root"] == info.previous_root
        assert wanted["rollback_from_root"] == info.rollback_from_root
        assert wanted["lakehouse_def_file"] == handle.root_node.definition_path
        assert wanted["objects"] == {entry.key: entry.path for entry in handle.objects()}
        assert sorted(wanted["namespaces"]) == handle.namespaces()
        assert {ns: sorted(names) for ns, names in wanted["tables"].items()} == {
            ns: handle.tables(ns) for ns in wanted["tables"]
        }
        for namespace, names in wanted["views"].items():
            assert sorted(names) == handle.views(namespace)
        assert len(wanted["objects"]) == handle.stats().objects


def test_every_definition_reads_as_the_sdk_reads_it(lake: Lakehouse, expected: dict[str, Any]) -> None:
    """By its entry, and by its name."""
    for version in VERSIONS:
        handle = lake.at(version=version)
        for entry in handle.objects():
            wanted = expected["definitions"][entry.path]["def"]
            assert wanted == to_dict(handle.definition_of(entry))
            names = (entry.namespace,) if entry.name is None else (entry.namespace, entry.name)
            assert wanted == to_dict(getattr(handle, entry.kind)(*names))


def test_every_version_is_found_by_its_time(lake: Lakehouse, expected: dict[str, Any]) -> None:
    for version in VERSIONS:
        millis = expected["versions"][version]["created_at_millis"]
        assert version == lake.at(timestamp=from_millis(millis)).version
        if version:
            assert version - 1 == lake.at(timestamp=from_millis(millis - 1)).version
        else:
            with pytest.raises(VersionNotFound):
                lake.at(timestamp=from_millis(millis - 1))


def test_no_version_breaks_an_invariant_that_its_layout_knows(lake: Lakehouse) -> None:
    for version in VERSIONS:
        assert [] == list(check_version(lake.backend.versions, version, definitions=True))


def test_the_history_is_complete(lake: Lakehouse, expected: dict[str, Any]) -> None:
    found = [(info.version, info.created_at_millis) for info in lake.history()]
    wanted = [(v["version"], v["created_at_millis"]) for v in expected["versions"]]
    assert sorted(wanted, reverse=True) == found
    assert [] == list(lake.check())


def test_the_difference_of_any_two_versions_is_that_of_their_objects(lake: Lakehouse, expected: dict[str, Any]) -> None:
    for a in VERSIONS:
        for b in VERSIONS:
            old, new = (expected["versions"][each]["objects"] for each in (a, b))
            wanted = {
                key: (old.get(key), new.get(key)) for key in old.keys() | new.keys() if old.get(key) != new.get(key)
            }
            found = list(lake.diff(a, b))
            assert wanted == {change.key: (change.old_path, change.new_path) for change in found}
            assert sorted(change.key for change in found) == [change.key for change in found]


def test_digests_are_equal_exactly_where_the_objects_are(lake: Lakehouse, expected: dict[str, Any]) -> None:
    digests = {version: lake.at(version=version).digest() for version in VERSIONS}
    for a in VERSIONS:
        for b in VERSIONS:
            same = expected["versions"][a]["objects"] == expected["versions"][b]["objects"]
            assert same == (digests[a] == digests[b])


def test_every_write_is_refused_with_a_pointer_to_upgrade_and_changes_nothing(java_lakehouse: str) -> None:
    directory = Path(local_path(java_lakehouse))
    before = listing(directory)
    lake = Lakehouse.open(java_lakehouse)
    backend = lake.backend
    for write in (
        lake.transaction,
        lake.at(version=3).transaction,
        lambda: commit.commit(backend, backend.newest_seen, changes.SameContent("snapshot", {})),
    ):
        with pytest.raises(ReadOnly, match="upgrade"):
            write()
    assert before == listing(directory)


def test_a_hint_is_not_needed(java_lakehouse: str, expected: dict[str, Any]) -> None:
    """Stale, garbage or gone."""
    hint = Path(local_path(java_lakehouse)) / "_latest_hint.txt"
    for text in ("0", "5", "99", "garbage"):
        hint.write_text(text)
        assert expected["latest_version"] == Lakehouse.open(java_lakehouse).version
    hint.unlink()
    assert expected["latest_version"] == Lakehouse.open(java_lakehouse).version
