"""Lines that create tables alike, against the parser of JSON, which decides what every line means."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipelines import loading
from pipelines.source import plain_lines
from pipelines.source.entries import WrittenChange
from pipelines.source.lines import Block
from pipelines.source.plain_lines import PlainLines
from trinitylake_core.catalog import codec_of
from trinitylake_core.definitions import decode_table, new_lakehouse_def
from trinitylake_core.errors import InvalidInput
from trinitylake_core.storage import open_storage

TARGET = loading.Target(codec=codec_of(new_lakehouse_def()), order=16, target_bytes=1 << 20, stamp=1, cleaned="")
SCHEMA = '"schema": [{"name": "id", "type": "bigint", "nullable": false}]'
OTHER_SCHEMA = '"schema": [{"name": "other", "type": "int"}]'
PLAIN = [
    f", {SCHEMA}}}}}",
    "}}",
    f' , {SCHEMA} , "properties": {{"a": "b", "é": "\\u00e9"}} }} }} ',
    f',{SCHEMA.replace(" ", "")},"table_type":"MANAGED"}}}}\r',
    f', "format_properties": {{"write.format.default": "orc"}}, {SCHEMA}}}}}',
    f', {SCHEMA}, "properties": null}}}}',
    f", {OTHER_SCHEMA}, {SCHEMA}}}}}",
]
"""Rests of lines that are taken the short way, the last one with a field twice, of which JSON takes the last."""
OTHERS = [
    f', {SCHEMA}, "name": "other"}}}}',
    f', {SCHEMA}, "name": "t1"}}}}',
    f', {SCHEMA}, "n\\u0061me": "t1"}}}}',
    f', {SCHEMA}, "namespace": "elsewhere"}}}}',
    f', {SCHEMA}}}, "create_table": {{"namespace": "n", "name": "t7"}}}}',
    f', {SCHEMA}}}, "create_view": {{"namespace": "n", "name": "t7"}}}}',
    f', {SCHEMA}, "_": 0}}}}',
    f', {SCHEMA}, "_": "_"}}}}',
    f', {SCHEMA}, "unknown": 1}}}}',
    f', {SCHEMA}, "primary_keys": ["id"]}}}}',
    f', {SCHEMA}, "primary_keys": ["x"]}}}}',
    f', {SCHEMA}, "table_type": "NONE"}}}}',
    f', {SCHEMA}, "properties": {{"a": 1}}}}}}',
    ', "schema": [{"name": "id", "type": "no type"}]}}',
    ', "schema": [{"name": "a", "type": "int"}, {"name": "a", "type": "int"}]}}',
    ', "schema": [{"name": "p", "type": {"struct": [{"name": "x", "type": "int"}]}}]}}',
    f", {SCHEMA}}}",
    f", {SCHEMA}}}}}}}",
    f", {SCHEMA}}}}} x",
    f"; {SCHEMA}}}}}",
    "",
    ", " + "[" * 100_000,
]
"""Rests that mean something else, or nothing: each is left to the parser."""


def lines_with(rest: str) -> list[str]:
    return [f'{{"create_table": {{"namespace": "n{number % 2}", "name": "t{number}"{rest}' for number in range(5)]


def objects_in(directory: Path, lines: list[str]) -> list[tuple[Any, ...]] | str:
    """Return the keys and definitions of the objects in lines, or what is wrong with one."""
    data = "\n".join(lines).encode()
    (directory / "objects.jsonl").write_bytes(data)
    block = Block("objects.jsonl", 0, len(data), len(data))
    found = []
    try:
        for each in loading.read_objects(open_storage(directory.as_uri()), block, TARGET):
            table = decode_table(each.data, "a path")
            assert table.id
            table.id = ""
            found.append((each.key, each.home, each.place, table.SerializeToString(deterministic=True)))
    except InvalidInput as error:
        return str(error)
    return found


@pytest.mark.parametrize("rest", PLAIN + OTHERS)
def test_lines_mean_what_the_parser_says(rest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = objects_in(tmp_path, lines_with(rest))
    monkeypatch.setattr(PlainLines, "parse", lambda *_: None)
    assert objects_in(tmp_path, lines_with(rest)) == short


@pytest.mark.parametrize("rest", PLAIN + OTHERS)
def test_the_second_line_of_a_kind_is_the_last_that_is_parsed(rest: str) -> None:
    plain = PlainLines(json.loads)
    short = [plain.parse(line.encode()) for line in lines_with(rest)]
    assert [False, *[rest in PLAIN] * 4] == [each is not None for each in short]
    assert len({each.data for each in short if each is not None}) in {0, 4}  # each has an ID of its own


@pytest.mark.parametrize(
    "line",
    [
        '{"create_table": {"name": "t", "namespace": "n"}}',
        '{"create_table": {"namespace": "n\\u0061", "name": "t"}}',
        '{"create_table": {"namespace": "né", "name": "t"}}',
        '{"create_table": {"namespace": "n", "name": ""}}',
        '{"create_table": {"namespace": "n", "name": "a b"}}',
        '{"create_view": {"namespace": "n", "name": "t"}}',
        '{"drop_table": {"namespace": "n", "name": "t"}}',
        '[{"create_table": {"namespace": "n", "name": "t"}}]',
    ],
)
def test_names_that_are_no_plain_text_are_left_to_the_parser(line: str) -> None:
    plain = PlainLines(json.loads)
    assert [None, None, None] == [plain.parse(line.encode()) for _ in range(3)]


def test_a_name_that_is_too_long_is_refused_in_any_line(tmp_path: Path) -> None:
    lines = [*lines_with("}}"), f'{{"create_table": {{"namespace": "n", "name": "{"t" * 1000}"}}}}']
    assert "this lakehouse allows" in objects_in(tmp_path, lines)


def test_where_tables_were_cleaned_each_definition_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at = []
    honest = WrittenChange.plain_table
    monkeypatch.setattr(WrittenChange, "plain_table", lambda change: looked_at.append(change) or honest(change))
    monkeypatch.setattr(f"{__name__}.TARGET", TARGET)
    for cleaned, expected in ((False, 1), (True, 5)):
        looked_at.clear()
        if cleaned:
            cleaned_target = loading.Target(TARGET.codec, 16, 1 << 20, 1, cleaned=tmp_path.as_uri())
            monkeypatch.setattr(f"{__name__}.TARGET", cleaned_target)
        objects_in(tmp_path, lines_with("}}"))
        assert expected == len(looked_at)


def test_only_so_many_kinds_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_lines, "_MOST", 3)
    plain = PlainLines(json.loads)
    rests = [f', "properties": {{"a": "{number}"}}}}}}' for number in range(5)]
    for _ in range(2):
        short = [plain.parse(lines_with(rest)[0].encode()) is not None for rest in rests]
    assert [True, True, True, False, False] == short
