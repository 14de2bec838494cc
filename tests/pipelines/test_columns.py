"""Columns as people write them: the short way for plain ones says what the long way says."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.source.columns import new_schema_of, plain_schema, schema_of
from pipelines.source.entries import parse_change
from trinitylake_core.definitions import Schema, decode_table, encode, table_def
from trinitylake_core.errors import InvalidDefinition, InvalidInput

TYPES = st.sampled_from(
    ["boolean", "int4", "BIGINT", "text", "varchar", "varchar(10)", "char", "char(3)", "decimal(10,2)", "decimal",
     "decimal(2,10)", "fixed(16)", "fixed", "date", "timestamptz", "timetz9", "nonsense", "list", "struct<a>"]
)  # fmt: skip
MORE = {"nullable": st.booleans() | st.just("no"), "id": st.integers(0, 4), "properties": st.just({"k": "v"})}
NAMES = st.sampled_from(["id", "a b", "ä", "", "\n", "\ud800", "id2", "日本"])
COLUMNS = st.lists(
    st.fixed_dictionaries(
        {"name": NAMES, "type": TYPES},
        optional={
            "nullable": st.booleans() | st.just("no"),
            "id": st.integers(0, 4),
            "properties": st.just({"k": "v"}),
        },
    ),
    max_size=5,
)


def outcome(schema: Any, value: Any) -> object:
    try:
        table = table_def(schema(value))
    except (InvalidInput, InvalidDefinition) as error:
        return str(error)
    return table.schema


@given(COLUMNS)
def test_the_short_way_makes_the_schema_of_the_long_way_and_the_same_errors(columns: list[dict[str, Any]]) -> None:
    assert outcome(schema_of, columns) == outcome(new_schema_of, columns)


@pytest.mark.parametrize("value", [None, "id", [1], [{}], [{"name": "id"}], [{"name": "id", "type": 3}]])
def test_what_is_no_list_of_columns_is_refused_either_way(value: Any) -> None:
    assert isinstance(outcome(schema_of, value), str)
    assert outcome(schema_of, value) == outcome(new_schema_of, value)


def test_plain_columns_do_not_go_by_way_of_arrow() -> None:
    assert isinstance(new_schema_of([{"name": "id", "type": "bigint"}]), Schema)
    assert not isinstance(new_schema_of([{"name": "id", "type": "bigint", "id": 7}]), Schema)


def test_a_schema_that_was_seen_before_is_checked_by_its_types_too() -> None:
    """To Python one and true are the same, and so are their hashes."""
    column = {"name": "id", "type": "bigint", "nullable": True}
    for _ in range(2):
        assert plain_schema([column]) is not None
        assert plain_schema([column | {"nullable": 1}]) is None
        assert plain_schema([column, column]) is None
        assert plain_schema([column]) == plain_schema([dict(reversed(column.items()))])
    deep: list[Any] = []
    deep.append(deep)
    assert plain_schema(deep) is None


REST = st.fixed_dictionaries(
    {},
    optional={
        "properties": st.dictionaries(st.sampled_from(["a", "b", ""]), st.sampled_from(["", "x", 1, True]), max_size=2),
        "table_type": st.sampled_from(["MANAGED", "EXTERNAL", "other"]),
        "format_properties": st.sampled_from([{}, {"location": "s3://b/t"}, {"location": "../t"}, {"x": "\ud800"}]),
        "primary_keys": st.sampled_from([[], ["id"], ["nobody"]]),
    },
)


@given(st.none() | COLUMNS, REST)
def test_a_table_made_of_what_was_encoded_before_is_the_file_of_the_long_way(
    columns: list[dict[str, Any]] | None, rest: dict[str, Any]
) -> None:
    """Byte for byte but for the ID; and what the long way refuses has no short way."""
    arguments = {"namespace": "sales", "name": "orders"} | rest
    if columns is not None:
        arguments |= {"schema": columns}
    entry = parse_change("an entry", {"create_table": arguments})
    short = entry.plain_table()
    try:
        table = table_def(**entry.definition())
    except InvalidInput:
        assert short is None
        return
    if short is not None:
        table.id = decode_table(short, "a path").id
        assert encode(table) == short


def test_two_tables_of_the_same_columns_have_ids_of_their_own() -> None:
    entry = parse_change(
        "an entry", {"create_table": {"namespace": "a", "name": "b", "schema": [{"name": "id", "type": "int"}]}}
    )
    one, two = (decode_table(entry.plain_table() or b"", "a path") for _ in range(2))
    assert one.id != two.id
    assert one.schema == two.schema == table_def(**entry.definition()).schema


def test_many_columns_need_longer_numbers() -> None:
    """IDs and lengths of more than 127 take two bytes."""
    columns = [{"name": f"c{number}" * 50, "type": "varchar(10)"} for number in range(300)]
    entry = parse_change("an entry", {"create_table": {"namespace": "a", "name": "b", "schema": columns}})
    short = entry.plain_table() or b""
    table = table_def(**entry.definition())
    table.id = decode_table(short, "a path").id
    assert encode(table) == short
