"""Versions for one pass: each root and each lakehouse definition is read once, and what is wrong is said each time."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.lakes import filled, new_lake
from tests.support.rounds import Rounds
from tests.support.surgery import Surgery
from trinitylake_core import Lakehouse, spec
from trinitylake_core.errors import CorruptDefinition, CorruptNode
from trinitylake_core.locations import root_path
from trinitylake_core.versions import Delta, VersionsReadOnce, copy_of_definition, root_files


@pytest.fixture
def lake(tmp_path: Path) -> Lakehouse:
    """Some versions that share a lakehouse definition."""
    return filled(new_lake(tmp_path), tables=40, changes=6).refresh()


def _reads(lake: Lakehouse, reader: VersionsReadOnce) -> Counter[str]:
    with Rounds(lake.storage) as rounds:
        for version in range(1, lake.version + 1):
            for each in (version, version - 1):
                root = reader.try_root(each)
                assert root is not None
                reader.definition_file(root)
    return Counter(path for _, _, path in rounds.log)


def test_each_file_is_read_once(lake: Lakehouse) -> None:
    found = _reads(lake, VersionsReadOnce(lake.storage))
    paths = {root_path(version) for version in range(lake.version + 1)} | {lake.root_node.definition_path}
    assert dict.fromkeys(paths, 1) == found


def test_what_many_threads_ask_for_is_read_once(lake: Lakehouse) -> None:
    reader, before = VersionsReadOnce(lake.storage), lake.storage.counts.get
    with ThreadPoolExecutor(8) as threads:
        roots = list(threads.map(lambda _: reader.try_root(3), range(200)))
    assert (1, 1) == (len(set(map(id, roots))), lake.storage.counts.get - before)


def test_what_does_not_fit_is_read_again(lake: Lakehouse) -> None:
    """One root at a time is held, however large it is, so that memory is bounded."""
    found = _reads(lake, VersionsReadOnce(lake.storage, most_bytes=1))
    assert {root_path(lake.version): 1, lake.root_node.definition_path: 1}.items() <= found.items()
    assert found[root_path(1)] > 1


def test_rows_of_a_large_root_come_without_its_messages(lake: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """They say the same as the root, are held like it, and are never taken for it."""
    monkeypatch.setattr(root_files, "LARGE_BYTES", 1)
    reader, before = VersionsReadOnce(lake.storage), lake.storage.counts.get
    rows, again = reader.try_rows(3), reader.try_rows(3)
    assert isinstance(rows, Delta)
    assert (rows, 1) == (again, lake.storage.counts.get - before)
    root = reader.try_root(3)
    assert root is not None
    assert (root.system, root.path, root.version) == (rows.system, rows.path, rows.version)
    assert (len(root.node.buffer) > 0, 0) == (True, len(rows.own_messages()))
    assert reader.try_rows(lake.version + 1) is None


def test_damage_is_told_to_everybody_who_asks(lake: Lakehouse) -> None:
    surgery, reader = Surgery(lake.root, 4), VersionsReadOnce(lake.storage)
    surgery.write(root_path(3), b"garbage")
    surgery.write(lake.root_node.definition_path, b"\xff\xff garbage")
    for _ in range(2):
        with pytest.raises(CorruptNode) as damaged:
            reader.try_root(3)
        assert root_path(3) == damaged.value.path
        with pytest.raises(CorruptDefinition):
            reader.definition_file(lake.root_node)


def test_a_copy_in_a_root_is_compared_with_its_file_for_each_root(lake: Lakehouse, tmp_path: Path) -> None:
    """The file is held, not the judgement: a root whose copy differs is found after others whose copies do not."""
    reader = VersionsReadOnce(lake.storage)
    root = reader.try_root(lake.version)
    assert root is not None
    reader.definition_file(root)
    stranger = new_lake(tmp_path / "stranger")
    other = Surgery(stranger.root, 4).read(stranger.root_node.definition_path)
    root.system[spec.LAKEHOUSE_DEF_COPY] = copy_of_definition(other, root.definition_path) or ""
    with pytest.raises(CorruptDefinition, match="differs"):
        reader.definition_file(root)
