"""A load whose objects wait in temporary files: the same result, the same refusals, and a driver that holds none."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pipelines import load
from pipelines.engine import local, worker_pool
from pipelines.source import loading as sharing
from pipelines.source.loading import Share
from tests.support.lakes import content, filled, new_lake, reopened
from trinitylake_core import Lakehouse
from trinitylake_core.errors import AlreadyExists, InvalidInput, ObjectNotFound, StorageError

Entry = dict[str, dict[str, Any]]


@pytest.fixture
def shares(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Blocks of a few lines, shares of a few objects, all of them in files; how many objects each share held."""
    held: list[int] = []
    honest = Share.findings

    def findings(self: Share) -> Any:
        held.append(sum(len(some.keys) for _, some in self.new))
        return honest(self)

    monkeypatch.setattr(Share, "findings", findings)
    monkeypatch.setattr(worker_pool, "cores", lambda: 1)
    monkeypatch.setattr(sharing, "KEYS", 15)
    monkeypatch.setattr(sharing, "BLOCK_BYTES_MIN", 900)
    monkeypatch.setattr(sharing, "LOOK_BYTES", 200)
    monkeypatch.setattr(sharing, "_EVERY_PACKED", 3)
    monkeypatch.setattr(sharing, "DIVIDED_AT_ONCE", 4)
    return held


def _table(namespace: str, name: str, **more: Any) -> Entry:
    return {"create_table": {"namespace": namespace, "name": name, "schema": [{"name": "id", "type": "int"}], **more}}


def _entries() -> list[Entry]:
    """Return tables beside those that are there and in namespaces of their own, not in order; ten are there already."""
    made = [_table(f"ns{number % 3}", f"n{number * 7 % 101:03}") for number in range(101)]
    made += [_table(f"ns{number % 3}", f"t{number:03}") for number in range(10)]
    made += [_table(f"own{number % 9}", f"o{number:03}") for number in range(60)]
    return [*made, *({"create_namespace": {"namespace": f"own{number}"}} for number in range(9))]


def _source(directory: Path, entries: Sequence[Entry]) -> str:
    path = directory / "objects.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in entries))
    return str(path)


def _run(lake: Lakehouse, source: str, existing: str = "refuse") -> load.Report:
    return load.run(lake, source, load.Config(engine="local", existing=existing))


@pytest.mark.parametrize("existing", ["skip", "replace"])
def test_many_shares_become_what_one_does(
    existing: str, shares: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut by a few keys that were looked at, with old objects between the new ones."""
    source = _source(tmp_path, _entries())
    first, second = tmp_path / "first", tmp_path / "second"
    for each in (first, second):
        each.mkdir()
    lake = filled(new_lake(first), tables=60)
    before = content(lake)
    report = _run(lake, source, existing)
    assert len(shares) > 8
    assert 180 == sum(shares) > 3 * max(shares)
    monkeypatch.undo()
    alone = filled(new_lake(second), tables=60)
    other = _run(alone, source, existing)
    assert (report.added, report.replaced, report.skipped) == (other.added, other.replaced, other.skipped)
    assert content(reopened(lake)).keys() == content(reopened(alone)).keys()
    assert [] == list(reopened(lake).check(definitions=True))
    kept = {key for key, path in before.items() if content(reopened(lake))[key] == path}
    assert (report.replaced, report.skipped) == ((0, 10) if existing == "skip" else (10, 0))
    assert len(before) - report.replaced == len(kept)


@pytest.mark.parametrize(
    ("last", "kind", "message"),
    [
        (_table("ns0", "n000"), InvalidInput, "'ns0.n000' appears twice: .*, line 1 and .*, line 172;"),
        (_table("no", "t"), ObjectNotFound, "there is no namespace 'no'; load it, too"),
        (_table("ns1", "x" * 99), InvalidInput, "line 172: .* bytes long"),
        ({"create_namespace": {"namespace": "own9"}}, AlreadyExists, "^10 objects exist already: .*line 102.*, ...;"),
    ],
)
def test_what_is_refused_in_many_shares(
    last: Entry, kind: type[Exception], message: str, shares: list[int], tmp_path: Path
) -> None:
    """However far apart the lines are; nothing is written."""
    lake = filled(new_lake(tmp_path), tables=60)
    before = {each.path for each in lake.storage.list("")}
    entries = _entries()
    entries.insert(171, last)
    with pytest.raises(kind, match=message):
        _run(lake, _source(tmp_path, entries))
    assert (kind is InvalidInput and "bytes" in message) == (not shares)
    assert before == {each.path for each in lake.storage.list("")}


def test_no_room_for_temporary_files_changes_nothing(
    shares: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says what to do."""
    lake = filled(new_lake(tmp_path), tables=60)
    before, source = {each.path for each in lake.storage.list("")}, _source(tmp_path, _entries())
    monkeypatch.setattr(local, "_PRAGMAS", (*local._PRAGMAS, "max_page_count = 5"))
    with pytest.raises(StorageError, match="set TMPDIR"):
        _run(lake, source, "skip")
    assert not shares
    assert before == {each.path for each in lake.storage.list("")}


def test_a_compressed_file_is_cut_by_the_objects_in_it(shares: list[int], tmp_path: Path) -> None:
    """Its size says little: a few kilobytes may be a million objects."""
    path = tmp_path / "objects.jsonl.gz"
    path.write_bytes(gzip.compress("".join(json.dumps(each) + "\n" for each in _entries()).encode()))
    assert path.stat().st_size < 5000
    lake = filled(new_lake(tmp_path), tables=60)
    assert 170 == _run(lake, str(path), "skip").added
    assert max(shares) < 45


@pytest.mark.parametrize("packed", [False, True])
def test_files_of_any_kind_become_shares(packed: bool, shares: list[int], tmp_path: Path) -> None:
    """Small ones, an empty one, compressed ones, one after another and not sorted."""
    directory, entries = tmp_path / "source", _entries()
    directory.mkdir()
    for number, some in enumerate([*(entries[number::7] for number in range(7)), []]):
        text = "".join(json.dumps(each) + "\n" for each in some).encode()
        name = f"{number}.jsonl"
        (directory / (f"{name}.gz" if packed else name)).write_bytes(gzip.compress(text) if packed else text)
    lake = filled(new_lake(tmp_path), tables=60)
    report = _run(lake, str(directory), "replace")
    assert len(entries) == report.added + report.replaced == sum(shares)
    assert len(shares) > 3
    assert [] == list(reopened(lake).check(definitions=True))


def test_the_driver_holds_no_object(shares: list[int], tmp_path: Path) -> None:
    """What is in memory while trees are built does not grow with the objects: each took half a kilobyte before."""

    def held(count: int) -> int:
        directory = tmp_path / str(count)
        directory.mkdir()
        entries = [{"create_namespace": {"namespace": "a"}}, *(_table("a", f"t{n:05}") for n in range(count - 1))]
        lake, source = new_lake(directory, namespace_name_max_size_bytes=100), _source(directory, entries)
        found: list[int] = []

        def tell(phase: str, *_: object) -> None:
            if phase == "build" and not found:
                found.append(tracemalloc.get_traced_memory()[0])

        tracemalloc.start()
        load.run(lake, source, load.Config(engine="local"), progress=tell)
        tracemalloc.stop()
        return found[0]

    held(50)
    few, many = held(100), held(500)
    assert (many - few) / 400 < 200
    assert len(shares) > 20
