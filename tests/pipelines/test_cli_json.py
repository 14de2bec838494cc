"""The JSON of every command is what docs/reference/json.yaml declares: names, types, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from importlib.metadata import version as metadata_version
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipelines import cli, register, tables_health
from pipelines.cli.contents import ENTRIES
from pipelines.cli.program import JSON_VERSION
from pipelines.cli.report import to_json
from pipelines.export import Damage
from tests.support.clock import Clock
from tests.support.transcript import SCENARIO, prepare, roots_in
from trinitylake_core import Lakehouse
from trinitylake_core.iceberg.registration import Registered
from trinitylake_core.locations import root_path

PAGE = Path(__file__).parents[2] / "docs/reference/json.md"


# -- the contract --------------------------------------------------------------------------------------


DECLARED: dict[str, Any] = yaml.safe_load((PAGE.parent / "json.yaml").read_text(encoding="utf-8"))
PLAIN = {
    "text": lambda value: isinstance(value, str),
    "number": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "decimal": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "flag": lambda value: isinstance(value, bool),
    "time": lambda value: isinstance(value, str) and value.endswith("Z") and bool(datetime.fromisoformat(value)),
    "definition": lambda value: isinstance(value, dict) and "id" in value,
    "any": lambda value: value is not None,
}


def mismatches(declared: Any, value: Any, where: str, seen: set[str]) -> Iterator[str]:
    """Yield how a value differs from what is declared. ``seen`` collects the declared fields that it has."""
    if isinstance(declared, list):
        declared, value = declared[0], value if isinstance(value, list) else [value]
        for each in value:
            yield from mismatches(declared, each, f"{where}[]", seen)
    elif isinstance(declared, dict):
        yield from _fields(declared, value, where, seen)
    elif declared.startswith("list of ") and isinstance(value, list):
        for each in value:
            yield from mismatches(declared.removeprefix("list of "), each, f"{where}[]", seen)
    elif declared.startswith("mapping of ") and isinstance(value, dict):
        for each in value.values():
            yield from mismatches(declared.removeprefix("mapping of "), each, f"{where}{{}}", seen)
    elif declared.endswith(" or null"):
        if value is not None:
            yield from mismatches(declared.removesuffix(" or null"), value, where, seen)
    elif declared in DECLARED:
        yield from mismatches(DECLARED[declared], value, declared, seen)
    elif declared not in PLAIN or not PLAIN[declared](value):
        yield f"{where} is to be {declared}, not {value!r}"


def _fields(declared: Mapping[str, Any], value: Any, where: str, seen: set[str]) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{where} is to be an object, not {value!r}"
        return
    known = {name.rstrip("?"): kind for name, kind in declared.items()}
    millis = {f"{name}_millis" for name, kind in known.items() if str(kind).startswith("time") and value.get(name)}
    for name in value.keys() - known.keys() - millis:
        yield f"{where}.{name} is not declared"
    for name in sorted(millis):
        if not PLAIN["number"](value.get(name)):
            yield f"{where}.{name} is missing"
    for name, kind in declared.items():
        plain = name.rstrip("?")
        if plain in value:
            seen.add(f"{where}.{plain}")
            yield from mismatches(kind, value[plain], f"{where}.{plain}", seen)
        elif not name.endswith("?"):
            yield f"{where}.{plain} is missing"


def declared_fields(declared: Any, where: str) -> Iterator[str]:
    """Yield every field that is declared, as ``mismatches`` names it."""
    if isinstance(declared, list):
        yield from declared_fields(declared[0], f"{where}[]")
    elif isinstance(declared, dict):
        for name, kind in declared.items():
            yield f"{where}.{name.rstrip('?')}"
            yield from declared_fields(kind, f"{where}.{name.rstrip('?')}")


def _section(words: list[str]) -> str:
    if "full" in words:
        return "snapshot create --kind full"
    return " ".join(words[:2]) if words[0] in {"snapshot", "tables"} else words[0]


# -- the commands --------------------------------------------------------------------------------------


def test_every_command_prints_what_is_declared(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    no_environment: None,
    clock: Clock,
) -> None:
    """Each field, with its type; none more, none less; and every declared field was printed by one of them."""
    monkeypatch.chdir(tmp_path)
    roots = roots_in(tmp_path)
    prepare(tmp_path)
    seen: set[str] = set()
    wrong: list[str] = []

    def run(words: list[str], code: int = 0) -> None:
        capsys.readouterr()
        assert code == cli.main([*(word.format(**roots) for word in words), "--json", "--quiet"]), words
        name, document = _section(words), json.loads(capsys.readouterr().out)
        wrong.extend(f"{' '.join(words)}: {each}" for each in mismatches(DECLARED[name], document, name, seen))

    for line in SCENARIO.strip().splitlines():
        words = line.split()
        if words[0] == "expire":
            clock.forward(days=30)  # so that there is something to expire
        # Manifest lists of its table are missing, which is a doubt.
        run(words, code=4 if words[:2] == ["tables", "clean"] else 0)
    run(["mend", "{lake}", "--reason", "r"])
    newest = Lakehouse.open(roots["lake"]).version
    (tmp_path / "lake" / root_path(newest)).write_bytes(b"garbage")
    run(["verify", "{lake}", "--engine", "local"], code=1)
    run(["rollback", "{lake}", "--to-version", str(newest - 1), "--reason", "r", "--engine", "local"])
    run(["export", "{lake}", "{copy}-of-all", "--history", "--engine", "local"], code=1)
    assert [] == wrong
    assert set() == {field for name, each in DECLARED.items() for field in declared_fields(each, name)} - seen - RARE


def test_every_command_is_declared() -> None:
    assert set() == ENTRIES.keys() - DECLARED.keys()


def test_an_error_is_what_is_declared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert 2 == cli.main(["ls", (tmp_path / "none").as_uri(), "--json"])
    assert [] == list(mismatches(DECLARED["Errors"], json.loads(capsys.readouterr().out), "Errors", set()))


def test_what_another_catalog_registered_is_what_is_declared() -> None:
    """Its JSON, without the catalog."""
    done = register.Report("file:///x/", Registered("old", 1, 2), {"all": 0.1})
    name = "load iceberg:NAME"
    assert [] == list(mismatches(DECLARED[name], to_json(done), name, set()))


def test_the_health_of_tables_is_what_is_declared() -> None:
    done = tables_health.Report("file:///x/", 1, "local", (tables_health.TableHealth("a.b", "MANAGED"),))
    assert [] == list(mismatches(DECLARED["tables health"], to_json(done), "tables health", set()))


def test_what_an_export_cannot_copy_is_what_is_declared() -> None:
    for damage in (Damage("a", "garbage", 1, 2, None), Damage("a", "garbage", None, None, "early")):
        assert [] == list(mismatches(DECLARED["Damage"], to_json(damage), "Damage", set()))


def test_the_version_of_the_contract_is_that_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--version", "--json"], ["--json", "--version"]):
        assert 0 == cli.main(words)
        document = json.loads(capsys.readouterr().out)
        assert {"version": metadata_version("trinitylake-maintenance"), "json": JSON_VERSION} == document
    assert f"This is version {JSON_VERSION} of the contract" in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("declared", "value", "wrong"),
    [
        ({"a": "number"}, {"a": 1, "b": 2}, "x.b is not declared"),
        ({"a": "number"}, {}, "x.a is missing"),
        ({"a": "number"}, {"a": None}, "x.a is to be number, not None"),
        ({"a": "number"}, {"a": True}, "x.a is to be number, not True"),
        ({"a": "time"}, {"a": "2026-11-22T00:00:00.000Z"}, "x.a_millis is missing"),
        ({"a": "list of text"}, {"a": ["b", 1]}, "x.a[] is to be text, not 1"),
        ({"a": "mapping of Size"}, {"a": {"node": {"files": 1}}}, "Size.bytes is missing"),
    ],
)
def test_what_differs_is_found(declared: Any, value: Any, wrong: str) -> None:
    assert [wrong] == list(mismatches(declared, value, "x", set()))


_RARE = ("Damage", "Hole", "Errors", "load iceberg:NAME", "serve", "tables compact", "tables health", "try", "ui")
RARE = {field for name in _RARE for field in declared_fields(DECLARED[name], name)}
RARE |= {field for field in declared_fields(DECLARED["verify"], "verify") if field.startswith("verify.unseen[]")}
"""Declared, and printed only where something is wrong or damaged, by another catalog, or when a server ends."""
