"""A load in several processes: what one makes of it. What may happen to helpers: test_workers."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest

from pipelines import load
from pipelines.engine import worker_pool
from pipelines.source import loading
from tests.support.lakes import filled, new_lake, reopened
from trinitylake_core import Lakehouse
from trinitylake_core.errors import AlreadyExists, InvalidInput

NEW = 60


class Watched(worker_pool.Helper):
    """A helper whose steps a test sees."""

    started: list[Watched]

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        Watched.started.append(self)
        self.pieces: list[str] = []

    def do(self, messages: Sequence[Any]) -> Sequence[Any]:
        """Note the pieces, and go on."""
        self.pieces += ["slices" if "share" in rows[0] else "block" for rows in messages]
        return super().do(messages)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Watched]]:
    """Help is called after the first piece, and this process waits for it before its second."""
    Watched.started = []
    monkeypatch.setattr(worker_pool, "START_SECONDS", 0.0)
    monkeypatch.setattr(worker_pool, "_MEASURED_SECONDS", 0.0)
    monkeypatch.setattr(worker_pool, "Helper", Watched)
    monkeypatch.setattr(worker_pool, "cores", lambda: 2)
    honest = worker_pool.SharedWork.next
    monkeypatch.setattr(worker_pool.SharedWork, "next", lambda self: _waited(self, honest))
    yield Watched.started
    assert not [each for each in Watched.started if psutil.pid_exists(each._process.pid)]


def _waited(work: worker_pool.SharedWork, honest: Any) -> int | None:
    for thread in threading.enumerate():
        if thread.name == "helper":
            thread.join(300)
    index: int | None = honest(work)
    return index


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A load of a few objects has several pieces."""
    monkeypatch.setattr(loading, "KEYS", 25)
    monkeypatch.setattr(loading, "BLOCK_BYTES_MIN", 1500)


@pytest.fixture
def source(tmp_path: Path) -> str:
    """New tables, and ten that are there."""
    columns = [{"name": "id", "type": "bigint"}]
    names = [f"new{number:02}" for number in range(NEW)]
    lines = [
        {"create_table": {"namespace": f"ns{n % 3}", "name": name, "schema": columns}} for n, name in enumerate(names)
    ]
    lines += [{"create_table": {"namespace": f"ns{n % 3}", "name": f"t{n:03}", "schema": columns}} for n in range(10)]
    path = tmp_path / "objects.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def _loaded(lake: Lakehouse, source: str, existing: str = "replace") -> load.Report:
    report = load.run(lake, source, load.Config(engine="local", existing=existing))
    cold = reopened(lake)
    assert [] == list(cold.check(definitions=True))
    assert (40 + NEW, 40 + NEW + 3) == (sum(each.kind == "table" for each in cold.objects()), cold.stats().objects)
    for number in range(10 if existing == "replace" else 0):
        assert ["id"] == [each.name for each in cold.table(f"ns{number % 3}", f"t{number:03}").schema.columns]
    return report


def test_two_processes_read_and_build_what_one_does(
    lake: Lakehouse, source: str, tmp_path: Path, watched: list[Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    two = _loaded(lake, source)
    assert {"block", "slices"} == {piece for helper in watched for piece in helper.pieces}
    monkeypatch.setattr(worker_pool, "cores", lambda: 1)
    (tmp_path / "alone").mkdir()
    one = _loaded(filled(new_lake(tmp_path / "alone"), tables=40), source)
    assert two.trees == one.trees > 2
    assert (two.nodes_written, two.added, two.replaced) == (one.nodes_written, one.added, one.replaced)


def _look() -> worker_pool.Answer:
    def answer(values: Sequence[str] | None) -> Any:
        return [pa.array(values).to_pylist(), "numpy" in sys.modules, "pandas" not in sys.modules]

    return answer


def test_a_helper_does_without_pandas() -> None:
    """Where it is installed pyarrow imports it for the first list, to see whether it is something of it."""
    helper = worker_pool.Helper(_look)
    assert [["a"], True, True] == helper.do(["a"])
    helper.end()


def test_what_a_helper_refuses_is_said_as_if_it_had_been_read_here(
    lake: Lakehouse, source: str, watched: list[Watched]
) -> None:
    """A wrong line, one that is given twice, and one that is there: named by file and line, nothing is written."""
    good = Path(source).read_text()
    Path(source).write_text(good + '{"create_table": {"namespace": "ns0", "name": 7}}\n')
    with pytest.raises(InvalidInput, match=f"line {NEW + 11}.*name must be text"):
        load.run(lake, source, load.Config(engine="local"))
    Path(source).write_text(good + good.splitlines(keepends=True)[0])
    with pytest.raises(InvalidInput, match=f"appears twice: .*, line 1 and .*, line {NEW + 11};"):
        load.run(lake, source, load.Config(engine="local"))
    Path(source).write_text(good)
    with pytest.raises(AlreadyExists, match=f"10 objects exist already: .*, line {NEW + 1}"):
        load.run(lake, source, load.Config(engine="local"))
    assert watched
    assert lake.version == reopened(lake).version
