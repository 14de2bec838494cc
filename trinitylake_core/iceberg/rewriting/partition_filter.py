"""Predicates over the partitions of a table: which of them lie wholly within a condition."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

from pyiceberg.expressions import Not, parser
from pyiceberg.expressions.visitors import expression_evaluator, inclusive_projection
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata

from trinitylake_core.iceberg.border import in_our_words, schema_of_spec
from trinitylake_core.iceberg.rewriting.rewritten import DataFile

_TODAY: Final = re.compile(r"current_date\s*(?:\(\s*\))?(?:\s*-\s*(\d{1,5}))?", re.IGNORECASE)


def partition_filter(metadata: TableMetadata, where: str, now_millis: int) -> Callable[[DataFile], bool]:
    """Return what tells whether all rows of a file's partition fulfil a condition, by its partition alone.

    ``where`` is a condition as PyIceberg parses it (``day < '2026-01-01' and region = 'eu'``), with ``current_date()``
    and ``current_date() - 7`` (days, UTC) in it. Raises ``ValidationError``: it does not parse, or names a column that
    the table has not.
    """

    def day(found: re.Match[str]) -> str:
        days_before = int(found[1] or 0)
        return f"'{_day(now_millis, days_before)}'"

    text = _TODAY.sub(day, where)
    known: dict[int, Callable[[DataFile], bool]] = {}
    with in_our_words("the condition 'where'"):
        condition = Not(parser.parse(text))
        for spec_id in metadata.specs():
            known[spec_id] = _of_spec(metadata, spec_id, condition)

    def is_within(file: DataFile) -> bool:
        return known[file.entry.spec_id](file)

    return is_within


def _of_spec(metadata: TableMetadata, spec_id: int, condition: Not) -> Callable[[DataFile], bool]:
    """Return the test of partitions by one spec: no row of them may be outside."""
    spec = metadata.specs()[spec_id]
    schema = schema_of_spec(metadata, spec)
    may_be_outside = inclusive_projection(schema, spec)(condition)
    partition = Schema(*spec.partition_type(schema).fields)
    evaluate = expression_evaluator(partition, may_be_outside, case_sensitive=True)
    return lambda file: not evaluate(file.entry.partition)


def _day(now_millis: int, days_before: int) -> str:
    """Return the day so many days before a time, in UTC."""
    today = datetime.fromtimestamp(now_millis / 1000, UTC).date()
    return (today - timedelta(days=days_before)).isoformat()
