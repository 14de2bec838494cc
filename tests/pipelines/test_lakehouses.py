"""One reader of ``lakehouses.yaml``: whoever reads it, a mistake is told alike, with its place."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from dagster_project import config
from pipelines.cli.resolve_root import VARIABLE, environment_options, names, root_of, storage_options
from pipelines.fleet import members_of
from pipelines.source.lakehouses import ConfigError, look_up
from trinitylake_core.errors import InvalidInput


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "lakehouses.yaml"
        path.write_bytes(text.encode("latin-1"))
        monkeypatch.setenv("TRINITYLAKE_LAKEHOUSES", str(path))
        return path

    return write


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("lakehouses:\n  - {", "{path}, line 2: not YAML: "),
        ("- a", "{path}: must be a mapping with the field 'lakehouses'"),
        ("lakehouses: 3", "{path}: lakehouses: "),
        ("lakehouses: [\xff]", "cannot read {path}: it is not UTF-8 text, at byte 13"),
    ],
)
def test_a_file_that_cannot_be_used_is_told_alike_by_all(written: Callable[[str], Path], text: str, told: str) -> None:
    path = written(text)
    for read in (lambda: config.load(path), lambda: list(members_of(path, lambda _: {})), lambda: root_of("a")):
        with pytest.raises(ConfigError) as error:
            read()
        assert str(error.value).startswith(told.format(path=path))


def test_a_missing_file_is_told_alike_by_all(written: Callable[[str], Path]) -> None:
    path = written("")
    path.unlink()
    for read in (config.load, lambda: list(members_of(path, lambda _: {})), lambda: root_of("a")):
        with pytest.raises(ConfigError, match="set TRINITYLAKE_LAKEHOUSES to another file"):
            read()


_OF_OTHERS: Final = [(-1, 0o646, "can be changed by every user of this machine")]
if os.getuid() == 0:  # only root gives files away
    _OF_OTHERS.append((12_345, 0o644, "belongs to another user"))


@pytest.mark.parametrize(("owner", "mode", "why"), _OF_OTHERS)
def test_a_file_of_somebody_else_is_read_only_if_it_is_named(
    owner: int, mode: int, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may send a variable of the environment to a store of its writer."""
    path = tmp_path / "lakehouses.yaml"
    path.write_text("lakehouses: [{name: a, root: 's3://bucket/x'}]")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRINITYLAKE_LAKEHOUSES", raising=False)
    assert ("s3://bucket/x", {}) == root_of("a")
    path.chmod(mode)
    os.chown(path, owner, -1)
    for read in (config.load, lambda: list(members_of(path, lambda _: {})), lambda: root_of("a")):
        with pytest.raises(ConfigError, match=f"{path} was not read, because it {why}; set TRINITYLAKE_LAKEHOUSES"):
            read()
    assert [] == names()
    monkeypatch.setenv("TRINITYLAKE_LAKEHOUSES", str(path))
    assert ("s3://bucket/x", {}) == root_of("a")


@pytest.mark.parametrize(
    ("stanza", "told"),
    [
        ("{name: a}", "lakehouse 'a': root: required, but missing"),
        ("{root: 's3://b/x'}", "lakehouse number 1: name: required, but missing"),
        (
            "{name: a, root: 's3://b/x', backup: {}, compaction: {messages: many}}",
            "lakehouse 'a': compaction.messages: ",
        ),
        ("{name: a, root: 's3://b/x', backup: {every: 1d}}", "lakehouse 'a': backup.target: required, but missing"),
    ],
)
def test_a_mistake_in_a_stanza_names_its_field(written: Callable[[str], Path], stanza: str, told: str) -> None:
    """In the settings of Dagster, and in a survey, where that lakehouse alone cannot be opened."""
    path = written(f"lakehouses:\n  - {stanza}\n  - {{name: good, root: 'file://{{here}}/good'}}\n")
    with pytest.raises(ConfigError) as error:
        config.load(path)
    assert f"{path}: {told}" in str(error.value)
    bad, good = members_of(path, lambda _: {})
    with pytest.raises(InvalidInput) as refused:
        bad.options()
    assert f"{path}: {told}" in str(refused.value)
    assert (path.parent / "good").as_uri() + "/" == good.root


def test_a_variable_that_is_not_set_and_a_secret_in_the_file_are_told_with_their_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TL_NOT_SET", raising=False)
    with pytest.raises(InvalidInput, match=r"^here\.a\.b: the environment variable TL_NOT_SET is not set$"):
        look_up({"a": {"b": {"env": "TL_NOT_SET"}}}, "here")
    with pytest.raises(InvalidInput, match=r"^here\.key: looks like a secret, .*; write \{file: PATH\} or "):
        look_up({"key": "{env:TL_KEY}"}, "here")
    monkeypatch.setenv("TL_NOT_SET", "now")
    assert {"a": {"b": "now"}, "c": 1} == look_up({"a": {"b": {"env": "TL_NOT_SET"}}, "c": 1})


def test_a_secret_is_read_from_a_file_without_the_end_of_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its path, or by the name that systemd gives it; in lakehouses.yaml, on a command line, in the environment."""
    (tmp_path / "key").write_bytes(b" s p\xc3\xa4ce \r\n\n")
    absolute = str(tmp_path / "key")
    assert {"a": {"key": " s p\u00e4ce "}} == look_up({"a": {"key": {"file": absolute}}})
    assert {"key": " s p\u00e4ce "} == storage_options([f"key=file:{absolute}"])
    assert {"ca": "file:///x"} == storage_options(["ca=file:///x"])
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    with pytest.raises(InvalidInput, match=r"^here\.key: 'key' is no absolute path, and .* no CREDENTIALS_DIRECTORY$"):
        look_up({"key": {"file": "key"}}, "here")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    given = {VARIABLE: '{"key": {"file": "key"}, "anon": false}'}
    assert {"key": " s p\u00e4ce ", "anon": False} == environment_options(given)
    (tmp_path / "large").write_bytes(b"x" * 70_000)
    (tmp_path / "empty").write_bytes(b"\n")
    (tmp_path / "bytes").write_bytes(b"s3cret\xff")
    (tmp_path / "nul").write_bytes(b"s3\0cret")
    (tmp_path / "marked").write_bytes(b"\xef\xbb\xbfs3cret\n")
    assert {"key": "s3cret"} == look_up({"key": {"file": "marked"}}), "an editor's mark is no part of a secret"
    os.mkfifo(tmp_path / "pipe")
    for name, problem in {
        "none": "cannot be read: No such file",
        "x" * 300: "cannot be read: File name too long",
        ".": "is a directory, a pipe or a device",
        "pipe": "is a directory, a pipe or a device",
        "nul": "is no text$",
        "large": "is empty, or longer than",
        "empty": "is empty, or longer than",
        "bytes": "is no text$",
    }.items():
        with pytest.raises(InvalidInput, match=rf"^here\.key: the file '{name}' {problem}"):
            look_up({"key": {"file": name}}, "here")
