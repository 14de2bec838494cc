"""The predicate by which Spark rewrites the partitions of a plan, and no others."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any, Final

import pytest

from pipelines.tables.compact.predicate import NoPredicate, partitions_predicate

_NESTED: Final = {"type": "struct", "fields": [{"id": 4, "name": "b`c", "type": "int", "required": False}]}
_KINDS: Final = ("float", "double", "timestamp", "timestamptz", "binary")
_DOCUMENT: Final[dict[str, Any]] = {
    "current-schema-id": 1,
    "schemas": [
        {"schema-id": 0, "fields": []},
        {
            "schema-id": 1,
            "fields": [
                {"id": 1, "name": "x", "type": "long"},
                {"id": 2, "name": "a name", "type": "string"},
                {"id": 3, "name": "s", "type": _NESTED},
                *({"id": 5 + number, "name": kind, "type": kind} for number, kind in enumerate(_KINDS)),
            ],
        },
    ],
    "partition-specs": [{"spec-id": 0, "fields": []}],
}


def _spec(*fields: tuple[int, str]) -> dict[str, Any]:
    made = [{"source-id": source, "name": f"f{n}", "transform": kind} for n, (source, kind) in enumerate(fields)]
    return _DOCUMENT | {"partition-specs": [{"spec-id": 0, "fields": []}, {"spec-id": 1, "fields": made}]}


@pytest.mark.parametrize(
    ("transform", "value", "predicate"),
    [
        ("identity", None, "`x` IS NULL"),
        ("identity", 7, "`x` = 7"),
        ("identity", True, "`x` = true"),
        ("identity", "o'\\x", "`x` = 'o\\'\\\\x'"),
        ("identity", Decimal("-1.50"), "`x` = -1.50BD"),
        ("identity", dt.date(2026, 11, 26), "`x` = DATE '2026-11-26'"),
        ("day", dt.date(2026, 11, 26), "`c`.system.days(`x`) = DATE '2026-11-26'"),
        ("hour", 5, "`c`.system.hours(`x`) = 5"),
        ("bucket[4]", 3, "`c`.system.bucket(4, `x`) = 3"),
        ("truncate[2]", "ab", "`c`.system.truncate(2, `x`) = 'ab'"),
    ],
)
def test_a_partition_is_named_by_its_transform_and_its_value(transform: str, value: Any, predicate: str) -> None:
    assert f"({predicate})" == partitions_predicate(_spec((1, transform)), "c", [(1, {"f0": value})])


@pytest.mark.parametrize(
    ("kind", "value", "literal"),
    [
        ("float", 0.5, "0.5F"),
        ("double", -1e-07, "-1e-07D"),
        (
            "timestamp",
            dt.datetime.fromisoformat("2026-03-29T02:30:00.000007"),
            "TIMESTAMP_NTZ '2026-03-29 02:30:00.000007'",
        ),
        ("timestamptz", dt.datetime(2026, 3, 29, 2, 30, tzinfo=dt.UTC), "TIMESTAMP '2026-03-29 02:30:00+00:00'"),
        ("binary", bytearray(b"a'"), "X'6127'"),
    ],
)
def test_values_are_written_by_the_type_of_their_column(kind: str, value: Any, literal: str) -> None:
    document = _spec((5 + _KINDS.index(kind), "identity"))
    assert f"(`{kind}` = {literal})" == partitions_predicate(document, "c", [(1, {"f0": value})])


def test_several_partitions_are_alternatives_and_a_spec_without_fields_is_all_of_the_table() -> None:
    document = _spec((1, "identity"), (2, "void"), (4, "identity"))
    found = partitions_predicate(document, "c", [(1, {"f0": 1, "f2": 2}), (1, {"f0": 1, "f2": None})])
    assert "(`x` = 1 AND `s`.`b``c` = 2) OR (`x` = 1 AND `s`.`b``c` IS NULL)" == found
    assert not partitions_predicate(document, "c", [(0, {})])


@pytest.mark.parametrize(
    ("field", "value"),
    [((99, "identity"), 1), ((1, "zorder[2]"), 1), ((1, "identity"), 1.5), ((6, "identity"), float("nan"))],
)
def test_what_sql_cannot_name_is_said(field: tuple[int, str], value: Any) -> None:
    with pytest.raises(NoPredicate):
        partitions_predicate(_spec(field), "c", [(1, {"f0": value})])
