"""Columns as people write them: a schema that was read before is what reading it again gives."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.source.columns import as_bytes, new_schema_of, schema_of
from pipelines.source.entries import parse_change
from trinitylake_core.definitions import encode, table_def
from trinitylake_core.definitions.schema import COLUMNS_MAX
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
def test_a_schema_that_is_kept_is_the_one_that_is_read_and_has_the_same_errors(columns: list[dict[str, Any]]) -> None:
    for _ in range(2):
        assert outcome(schema_of, columns) == outcome(new_schema_of, columns)


@pytest.mark.parametrize("value", [None, "id", [1], [{}], [{"name": "id"}], [{"name": "id", "type": 3}]])
def test_what_is_no_list_of_columns_is_refused_either_way(value: Any) -> None:
    assert isinstance(outcome(schema_of, value), str)
    assert outcome(schema_of, value) == outcome(new_schema_of, value)


def test_columns_are_read_in_their_order_unless_they_are_too_many() -> None:
    columns = [{"name": name, "type": "bigint"} for name in ("b", "a")]
    assert ["b", "a"] == [each.name for each in schema_of(columns)]
    with pytest.raises(InvalidInput, match="is the most"):
        schema_of(columns * COLUMNS_MAX)


def test_a_schema_that_was_seen_before_is_checked_by_its_types_too() -> None:
    """To Python one and true are the same, and so are their hashes."""
    column = {"name": "id", "type": "bigint", "nullable": True}
    for columns in ([column], [column | {"nullable": 1}], [column, column]):
        assert outcome(schema_of, columns) == outcome(new_schema_of, columns)
    assert as_bytes([column]) != as_bytes([column | {"nullable": 1}])


def test_what_is_nested_deeply_is_not_kept() -> None:
    deep: list[Any] = []
    deep.append(deep)
    assert as_bytes(deep) is None
    assert outcome(schema_of, deep) == outcome(new_schema_of, deep)


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
def test_a_table_like_one_before_is_the_file_of_one_that_is_made_anew(
    columns: list[dict[str, Any]] | None, rest: dict[str, Any]
) -> None:
    """Byte for byte but for the ID, which is its own; and what is wrong is refused by the same words."""
    arguments = {"namespace": "sales", "name": "orders"} | rest
    if columns is not None:
        arguments |= {"schema": columns}
    entry = parse_change("an entry", {"create_table": arguments})
    try:
        expected = table_def(**entry.definition())
    except InvalidInput as error:
        with pytest.raises(InvalidInput, match=f"^{re.escape(str(error))}$"):
            entry.make_definition()
        return
    one, two = entry.make_definition(), entry.make_definition()
    assert 3 == len({expected.id, one.id, two.id})
    expected.id = two.id
    assert encode(expected) == encode(two)
