"""What a person who waits is told: a storage without an answer, an endpoint that listens, a port that is taken."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipelines import cli
from pipelines.cli import output, patience
from pipelines.cli.commands import serving
from tests.support.lakes import new_lake
from trinitylake_core import Lakehouse, rest
from trinitylake_core.storage.base import list_silent
from trinitylake_core.storage.local import LocalStorage
from trinitylake_core.storage.silence import Silence


@pytest.fixture
def lake(tmp_path: Path) -> Lakehouse:
    return new_lake(tmp_path)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is said on standard error, by any thread."""
    lines: list[str] = []
    monkeypatch.setattr(output, "say", lines.append)
    return lines


def test_a_storage_that_hangs_is_named_while_the_command_waits(
    lake: Lakehouse, said: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command goes on, and succeeds as soon as the storage answers."""
    assert 5.0 == patience.FIRST_SECONDS
    monkeypatch.setattr(patience, "FIRST_SECONDS", 1e-6)  # storages that nobody waits for have been silent for 0 s
    monkeypatch.setattr(patience, "_LOOK_SECONDS", 0.01)
    is_said = threading.Event()

    def say(text: str) -> None:
        said.append(text)
        is_said.set()

    def hang(kind: str, path: str, action: Callable[[], Any]) -> Any:
        assert is_said.wait(60)
        return action()

    monkeypatch.setattr(output, "say", say)
    monkeypatch.setattr(LocalStorage, "interceptor", staticmethod(hang))
    assert 0 == cli.main(["ls", lake.root, "--json"])
    assert any(f"no answer yet from {lake.root} after " in each for each in said)
    assert "no answer" not in capsys.readouterr().out


def test_a_storage_that_nobody_waits_for_is_not_silent(lake: Lakehouse) -> None:
    silence = Silence()
    assert 0.0 == silence.seconds()
    with silence:
        assert 0.0 < silence.seconds()
        with silence:
            pass
        assert 0.0 < silence.seconds()
    assert 0.0 == silence.seconds()
    lake.refresh()
    assert lake.root not in dict(list_silent(0.001))


@pytest.fixture
def refusing() -> Iterator[int]:
    """A port that nobody listens at."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def test_doctor_ends_after_the_first_refusal_of_a_dead_address(
    refusing: int, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [f"endpoint_url=http://127.0.0.1:{refusing}", "region=us-east-1", "key=k", "secret=s"]
    words = [word for each in options for word in ("--storage-option", each)]
    assert 1 == cli.main(["doctor", "s3://bucket/lake", *words])
    rows = capsys.readouterr().out.splitlines()
    assert 2 == len(rows), "one check besides the heading"
    assert "answer" in rows[1]
    assert "FAILED" in rows[1]


def test_a_port_in_use_is_a_sentence(lake: Lakehouse, said: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert 2 == cli.main(["serve", lake.root, "--port", str(port)])
    (sentence,) = said
    assert f"error: another program uses port {port} of 127.0.0.1: stop it, or choose another port" in sentence


def test_the_endpoint_says_that_it_serves_when_clients_can_connect(
    lake: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    connected: list[str] = []
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def say(text: str) -> None:
        with socket.create_connection(("127.0.0.1", port), timeout=10):
            connected.append(text)

    monkeypatch.setattr(serving, "say", say)
    monkeypatch.setattr(rest.serving._Server, "run", lambda _, sockets: None)
    monkeypatch.setattr(serving.threading.Timer, "start", lambda _: None)  # it would end this process
    assert 0 == cli.main(["serve", lake.root, "--port", str(port), "--quiet"])
    assert [f"serving {lake.root.rstrip('/').rpartition('/')[2]} at 127.0.0.1:{port}; Ctrl-C stops it"] == connected


@pytest.mark.parametrize("file", ["vn/latest", f"vn/{'0' * 64}"])
def test_a_root_of_the_successor_project_is_named_and_nothing_is_written_into_it(
    tmp_path: Path, file: str, said: list[str], no_environment: None
) -> None:
    """By whatever would make a lakehouse there, or look for one."""
    source = new_lake(tmp_path / "lake").root
    root = tmp_path / "olympia"
    (root / file).parent.mkdir(parents=True)
    (root / file).write_bytes(b"0")
    before = sorted(root.rglob("*"))
    for words in (["create"], ["ls"], ["doctor"], ["export", source], ["upgrade", source]):
        assert 2 == cli.main([*words, root.as_uri()]), words
        assert f"there is a catalog of Olympia at {root.as_uri()}/ ({file})" in said.pop()
    assert before == sorted(root.rglob("*"))


def test_a_directory_named_vn_is_not_the_successor_project(tmp_path: Path, no_environment: None) -> None:
    (tmp_path / "vn").mkdir()
    (tmp_path / "vn/01").write_bytes(b"0")
    assert 0 == cli.main(["create", str(tmp_path)])
