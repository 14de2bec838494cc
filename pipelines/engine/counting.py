"""Whether an engine gave all rows: what must not be lost is counted where it is made, and again where it is kept.

A node, a manifest or a name that an engine lost on its way is a live file that nothing marks. So work whose result
decides what is deleted also yields how many rows it was given and how many it made, and both are compared. A row that
is another one's copy, in the place of a third, keeps both numbers: so each row has a random number as its mark, and
the counts have what brings the sum of all marks to 0.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa

from pipelines.engine.model import LONG, Engine, Row, Rows, Work
from trinitylake_core.errors import StorageError

MARK: Final = "mark"
"""The column of marks."""
_MARK_BITS: Final = 32
GIVEN: Final = "given"
MADE: Final = "made"
"""Of what a count is, where a text says that."""


class Counts(NamedTuple):
    """What work was given, what it made of that, and what was kept of it: rows. ``marks`` is the sum of all marks."""

    given: int
    made: int
    kept: int
    marks: int = 0


def with_marks(schema: pa.Schema) -> pa.Schema:
    """Return the columns of what :class:`CountedWork` makes of work that makes rows of ``schema``."""
    return schema.append(pa.field(MARK, LONG))


class CountedWork:
    """Work that also yields, at its end, how many rows it was given, and how many it made of them.

    Attributes:
        given: the rows that it was given so far, where it runs in this process.
    """

    def __init__(self, work: Work, as_rows: Callable[[int, int], Iterable[tuple[Any, ...]]]) -> None:
        """``as_rows`` makes the last rows of both numbers."""
        self._work = work
        self._as_rows = as_rows
        self.given = 0

    def __call__(self, rows: Iterator[Row], *storages: Any) -> Iterable[tuple[Any, ...]]:
        """Yield what the work makes of rows, each with its mark, and then the counts."""
        before = self.given
        made = 0
        marks = random.Random()  # noqa: S311 - no secret; each task has a seed of its own
        sum_of_marks = 0
        for row in self._work(self._count(rows), *storages):
            made += 1
            mark = marks.getrandbits(_MARK_BITS)
            sum_of_marks += mark
            yield (*row, mark)
        rest = -sum_of_marks
        for row in self._as_rows(self.given - before, made):
            yield (*row, rest)
            rest = 0

    def _count(self, rows: Iterator[Row]) -> Iterator[Row]:
        for row in rows:
            self.given += 1
            yield row


def sums_of_counts(counting: str, given: str, made: str) -> str:
    """Return the columns of a query that sums up rows of :class:`CountedWork`, as :class:`Counts` names them.

    Args:
        counting: the condition that rows of counts meet, and no others.
        given: what such a row says of how many were given; ``NULL`` where it says nothing.
        made: the same of how many were made.
    """
    return f"""coalesce(sum(CASE WHEN {counting} THEN {given} END), 0) AS given,
        coalesce(sum(CASE WHEN {counting} THEN {made} END), 0) AS made,
        coalesce(sum(CASE WHEN {counting} THEN 0 ELSE 1 END), 0) AS kept,
        coalesce(sum({MARK}), 0) AS marks"""


def sum_labelled(engine: Engine, rows: Rows, counting: str, which: str, *more: str) -> dict[str, Any]:
    """Return the sums of the counts among rows, as :class:`Counts` names them, and ``more`` columns.

    Counts are the rows that meet ``counting``. Each has a number in ``size``; the column ``which`` says of what it is,
    :data:`GIVEN` or :data:`MADE`.
    """
    given = f"CASE WHEN {which} = {GIVEN!r} THEN size END"
    made = f"CASE WHEN {which} = {MADE!r} THEN size END"
    columns = ", ".join((sums_of_counts(counting, given, made), *more))
    return engine.sql(f"SELECT {columns} FROM rows", rows=rows).one()


def only_row(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the only row of a result, a sum for example. Raises ``StorageError``: the engine lost or repeated it."""
    if len(rows) != 1:
        raise StorageError(
            f"the engine lost rows: where one row sums others up it returned {len(rows):,}. Nothing was deleted or "
            "copied; run it again, and if it happens again, with another engine (--engine local)"
        )
    return rows[0]


def keep_counted(engine: Engine, what: str, query: str, columns: str, **tables: Rows) -> Rows:
    """Keep the distinct rows of a query, found by the first of its ``columns``, and count them by a query of their own.

    Args:
        engine: that of the tables.
        what: what the rows are, for the message of an error.
        query: the query.
        columns: the names of all that it returns, with commas between them.
        tables: kept ones; what a view of them lost, both queries would lack.

    Raises:
        StorageError: the engine lost, repeated or swapped rows.
    """
    # Spark answers a query, or a part of one, by what it keeps of an equal one: so no part of what counts may be equal.
    kept = engine.sql(f"SELECT DISTINCT {columns} FROM ({query}) q", **tables)
    kept = kept.keep(columns.partition(",")[0], repeatable=True)
    refuse_other_names(engine, what, kept, columns, query, **tables)
    return kept


def list_counted(engine: Engine, what: str, query: str, columns: str, **tables: Rows) -> list[dict[str, Any]]:
    """Return the distinct rows of a query, in no order, counted as :func:`keep_counted` counts them."""
    found = engine.sql(f"SELECT DISTINCT {columns} FROM ({query}) q", **tables).list()
    counted = engine.sql(f"SELECT count(*) AS asked FROM ({_groups(query, columns)}) g", **tables).one()
    names = len({tuple(row.values()) for row in found})
    refuse_lost(what, counted["asked"], Counts(names, counted["asked"], len(found)))
    return found


def refuse_other_names(engine: Engine, what: str, kept: Rows, columns: str, asked_query: str, **tables: Rows) -> int:
    """Refuse kept rows that are not those that a query asks for, each once; return how many there are.

    One query, for each costs Spark a job; the rows need not be counted again. Rows are told apart by ``columns``, which
    have commas between them.

    Raises ``StorageError``: the engine lost, repeated or swapped rows.
    """
    asked_groups = _groups(asked_query, columns)
    kept_groups = _groups("SELECT * FROM kept", columns)
    query = f"""SELECT (SELECT count(*) FROM ({asked_groups}) a) AS asked, coalesce(sum(g.times), 0) AS every,
        count(*) AS names FROM ({kept_groups}) g"""
    found = engine.sql(query, kept=kept, **tables).one()
    asked = int(found["asked"])
    refuse_lost(what, asked, Counts(found["names"], asked, found["every"]))
    kept.learn_count(asked)
    return asked


def _groups(query: str, columns: str) -> str:
    """Return a query of the distinct rows of a query that is not equal to ``SELECT DISTINCT``, with their numbers."""
    return f"SELECT {columns}, count(*) AS times FROM ({query}) q GROUP BY {columns}"


def refuse_other_number(engine: Engine, what: str, asked: int, kept: Rows, key: str) -> None:
    """Refuse rows that are not as many as there were to be, each once by its ``key``. Raises ``StorageError``."""
    query = f"SELECT count(*) AS every, count(DISTINCT k.{key}) AS names FROM kept k"
    found = engine.sql(query, kept=kept).one()
    refuse_lost(what, asked, Counts(found["names"], asked, found["every"]))


def refuse_lost(what: str, asked: int, found: Counts) -> None:
    """Refuse a result that lacks rows, or has too many of them.

    Args:
        what: what the rows are of, for the message.
        asked: how many rows there were to work on.
        found: the counts.

    Raises:
        StorageError: rows were lost, or others stand in their places.
    """
    if found.marks:
        raise StorageError(
            f"the engine lost rows: {what} were read, and other rows stand where some of theirs were. Nothing was "
            "deleted or copied; run it again, and if it happens again, with another engine (--engine local)"
        )
    if found.given != asked or found.made != found.kept:
        raise StorageError(
            f"the engine lost rows: of {asked:,} {what} it gave the work {found.given:,}, and of {found.made:,} rows "
            f"that the work made it kept {found.kept:,}. Nothing was deleted or copied; run it again, and if it "
            "happens again, with another engine (--engine local)"
        )
