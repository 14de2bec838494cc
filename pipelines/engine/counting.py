"""Whether an engine gave all rows: what must not be lost is counted where it is made, and again where it is kept.

A node, a manifest or a name that an engine lost on its way is a live file that nothing marks. So work whose result
decides what is deleted also yields how many rows it was given and how many it made, and both are compared. A row that
is another one's copy, in the place of a third, keeps both numbers. So each row that work makes has the checksum of its
values as its mark, and each that it is given has a key, of which it adds the checksum: the last row of work has what
brings the sum of all marks to the sum of these checksums. Marks follow from what rows say: where Spark makes rows a
second time, because an executor was lost, they are the same, in whatever order.
"""

from __future__ import annotations

import marshal
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple
from zlib import crc32

import pyarrow as pa

from pipelines.engine.model import LONG, READ_AHEAD, Engine, FoundRow, GroupWork, Kept, MadeRow, Row, Rows, Table, Work
from trinitylake_core.errors import StorageError
from trinitylake_core.storage import Storage

MARK: Final = "mark"
_GIVEN: Final = "given"
_MADE: Final = "made"
COUNTING: Final = (MARK, _GIVEN, _MADE)
"""The columns that :class:`CountedWork` adds: the mark of each row, and in the last row of work its counts."""
IS_NO_COUNT: Final = f"{_MADE} IS NULL"
"""The condition of rows that are not counts."""
_PLAIN: Final = 0
"""The version of marshal in which equal values are equal bytes: later ones note which of them are one object."""
_RUN_AGAIN: Final = (
    "Nothing was deleted, and no version was copied or committed; run it again, and if it happens again, with another "
    "engine (--engine local)"
)
_SUMS: Final = f"""coalesce(sum(r.{_GIVEN}), 0) AS given, coalesce(sum(r.{_MADE}), 0) AS made,
    coalesce(sum(CASE WHEN r.{IS_NO_COUNT} THEN 1 ELSE 0 END), 0) AS kept, coalesce(sum(r.{MARK}), 0) AS marks"""


class GivenRows(NamedTuple):
    """What there is to work on: how many rows, and the sum of the checksums of their keys, if they have one."""

    rows: int
    keys: int = 0


class Counts(NamedTuple):
    """What work was given, what it made of that, and what was kept of it: rows. ``marks`` is the sum of all marks."""

    given: int
    made: int
    kept: int
    marks: int = 0


def with_counts(schema: pa.Schema) -> pa.Schema:
    """Return the columns of what :class:`CountedWork` makes of work that makes rows of ``schema``."""
    for name in COUNTING:
        schema = schema.append(pa.field(name, LONG))
    return schema


class CountedWork:
    """Work that also yields a last row, of which all columns are empty but those of :data:`COUNTING`.

    Attributes:
        given: the rows that it was given so far, where it runs in this process.
    """

    def __init__(self, work: Work, schema: pa.Schema, key: str) -> None:
        """Count rows of ``schema``, which work makes of rows that the column ``key`` tells apart."""
        self._work = work
        self._nothing = (None,) * len(schema)
        self._key = key
        self._keys = 0
        self.given = 0

    def __call__(self, rows: Iterator[Row], *storages: Any) -> Iterable[MadeRow]:
        """Yield what the work makes of rows, each with its mark, and then the counts."""
        given_before = self.given
        keys_before = self._keys
        made = 0
        sum_of_marks = 0
        for row in self._work(self._count(rows), *storages):
            made += 1
            mark = _mark_of(row)
            sum_of_marks += mark
            yield (*row, mark, None, None)
        rest = self._keys - keys_before - sum_of_marks
        yield (*self._nothing, rest, self.given - given_before, made)

    def _count(self, rows: Iterator[Row]) -> Iterator[Row]:
        for row in rows:
            self.given += 1
            self._keys += _checksum(row[self._key])
            yield row


class CountedGroups:
    """Work on groups of rows that also yields a last row of counts for each group, as :class:`CountedWork` does."""

    def __init__(self, work: GroupWork, schema: pa.Schema, key: str) -> None:
        """Count rows of ``schema``, which work makes of rows that the column ``key`` tells apart."""
        self._work = work
        self._nothing = (None,) * len(schema)
        self._key = key

    def __call__(self, groups: Iterable[Sequence[Row]], *storages: Any) -> Iterator[list[MadeRow]]:
        """Yield what the work makes of each group, every row with its mark, and then the counts."""
        asked: deque[GivenRows] = deque()
        noted = self._note_groups(groups, asked)
        for made in self._work(noted, *storages):
            given, rest = asked.popleft()
            marked: list[MadeRow] = []
            for row in made:
                mark = _mark_of(row)
                rest -= mark
                marked.append((*row, mark, None, None))
            counts = (*self._nothing, rest, given, len(made))
            yield [*marked, counts]

    def _note_groups(self, groups: Iterable[Sequence[Row]], asked: deque[GivenRows]) -> Iterator[Sequence[Row]]:
        for group in groups:
            asked.append(ask_of_given(group, self._key))
            yield group


def _mark_of(row: MadeRow) -> int:
    """Return the checksum of the values of a row."""
    try:
        values = marshal.dumps(row, _PLAIN)
    except ValueError:  # of another type than those of Python itself
        values = repr(row).encode()
    return crc32(values)


def _checksum(key: object) -> int:
    """Return what ``crc32`` of a query does of a text. A number is its own."""
    if isinstance(key, int):
        return key
    return 0 if key is None else crc32(str(key).encode())


def ask_of_given(rows: Iterable[Row], key: str) -> GivenRows:
    """Return what rows of this process ask of the work that is given them."""
    keys = [_checksum(row[key]) for row in rows]
    return GivenRows(len(keys), sum(keys))


def ask_of_kept(engine: Engine, rows: Rows, key: str) -> GivenRows:
    """Return what rows ask of the work that is given them, told apart by a column of texts. One query."""
    query = f"SELECT count(*) AS every, coalesce(sum(crc32(r.{key})), 0) AS keys FROM rows r"
    found = engine.sql(query, rows=rows).one()
    rows.learn_count(found["every"])
    return GivenRows(found["every"], found["keys"])


def sum_counts(engine: Engine, rows: Rows, *more: str) -> tuple[Counts, FoundRow]:
    """Return the counts among rows that :class:`CountedWork` made, and ``more`` columns of the same query."""
    sums = engine.sql(f"SELECT {', '.join((_SUMS, *more))} FROM rows r", rows=rows).one()
    return Counts(*(sums.pop(name) for name in Counts._fields)), sums


def without_counts(what: str, asked: GivenRows, rows: Iterable[Row]) -> Iterator[Row]:
    """Yield what :class:`CountedWork` made, without the counts; raise :func:`refuse_lost`'s error behind the last row.

    REQUIRES: nothing that stays is done about the rows before all of them have come.
    """
    given = made = kept = marks = 0
    for row in rows:
        marks += row[MARK]
        if row[_MADE] is None:
            kept += 1
            yield row
        else:
            given += row[_GIVEN]
            made += row[_MADE]
    refuse_lost(what, asked, Counts(given, made, kept, marks))


def map_counted(
    engine: Engine,
    what: str,
    work: Work,
    rows: Sequence[Row],
    columns: pa.Schema,
    made: pa.Schema,
    *storages: Storage,
    each: int,
) -> Iterator[Row]:
    """Yield what work makes, few rows of ``made``, of rows of this process, which the first of ``columns`` tells apart.

    REQUIRES, and raises, what :func:`without_counts` does.
    """
    key = columns.names[0]
    given = engine.table(rows, columns)
    return stream_counted(engine, what, work, given, key, ask_of_given(rows, key), made, *storages, each=each)


def stream_counted(
    engine: Engine,
    what: str,
    work: Work,
    rows: Rows,
    key: str,
    asked: GivenRows,
    made: pa.Schema,
    *storages: Storage,
    each: int = READ_AHEAD,
) -> Iterator[Row]:
    """Yield as :func:`map_counted` does what work makes of a table, which asks so much of it by a column."""
    counted = CountedWork(work, made, key)
    found = engine.map(counted, rows, with_counts(made), *storages, each=each)
    return without_counts(what, asked, found.stream(few=True))


class Mapped(NamedTuple):
    """What work made of a table, kept, its counts, and the other columns of the query that counted it."""

    rows: Rows
    counts: Counts
    sums: FoundRow


def keep_mapped(
    engine: Engine,
    what: str,
    work: Work,
    rows: Rows,
    key: str,
    asked: GivenRows,
    made: pa.Schema,
    *storages: Storage,
    by: str = "",
    more: Sequence[str] = (),
    repeatable: bool = True,
    progress: Kept | None = None,
    each: int = READ_AHEAD,
) -> Mapped:
    """Keep, ``by`` some columns, what work makes of a table, which asks so much of it by a column; one query counts it.

    ``more`` are other columns of that query. ``progress`` is called with how many rows the work was given, as far as
    that is known in this process. Raises ``StorageError``: the engine lost rows.
    """
    counted = CountedWork(work, made, key)

    def report_given(_: int) -> None:
        if progress is not None:
            progress(counted.given)

    found = engine.map(counted, rows, with_counts(made), *storages, each=each)
    kept = found.keep(by, repeatable=repeatable, progress=report_given)
    counts, sums = sum_counts(engine, kept, *more)
    refuse_lost(what, asked, counts)
    return Mapped(kept, counts, sums)


def only_row(rows: Sequence[FoundRow]) -> FoundRow:
    """Return the only row of a result, a sum for example. Raises ``StorageError``: the engine lost or repeated it."""
    if len(rows) != 1:
        raise StorageError(
            f"the engine lost rows: where one row sums others up it returned {len(rows):,}. {_RUN_AGAIN}"
        )
    return rows[0]


def keep_given(engine: Engine, what: str, rows: Sequence[Row], schema: pa.Schema) -> Rows:
    """Keep rows of this process, told apart by their paths. Raises ``StorageError``: the engine lost rows."""
    kept = engine.table(rows, schema).keep("path", repeatable=True)
    refuse_other_sum(what, ask_of_given(rows, "path"), ask_of_kept(engine, kept, "path"))
    return kept


def keep_counted(engine: Engine, what: str, query: str, columns: str, **tables: Table) -> Rows:
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
    kept = kept.keep(_first_of(columns), repeatable=True)
    refuse_other_names(engine, what, kept, columns, query, **tables)
    return kept


def list_counted(engine: Engine, what: str, query: str, columns: str, **tables: Table) -> list[FoundRow]:
    """Return the distinct rows of a query, in no order, counted as :func:`keep_counted` counts them.

    Both are asked even where one says that there are none: most often what is asked for is what is wrong.
    """
    distinct = engine.sql(f"SELECT DISTINCT {columns} FROM ({query}) q", **tables)
    found = distinct.list()
    groups = f"SELECT {columns}, count(*) AS times FROM ({query}) q GROUP BY {columns}"
    counted = engine.sql(f"SELECT count(*) AS asked FROM ({groups}) g", **tables)
    asked = counted.one()["asked"]
    names = set()
    for row in found:
        names.add(tuple(row.values()))
    refuse_other_sum(what, (asked, asked), (len(names), len(found)))
    return found


def refuse_other_names(
    engine: Engine, what: str, kept: Rows, columns: str, asked_query: str, **tables: Table
) -> GivenRows:
    """Refuse kept rows that are not those that a query asks for, each once; return what they ask of work.

    One query, for each costs Spark a job; the rows need not be counted again. Rows are told apart by ``columns``, which
    have commas between them; the first of them, of texts, is the key of work.

    Raises ``StorageError``: the engine lost, repeated or swapped rows.
    """
    every = f"""SELECT {columns}, 1 AS asked, 0 AS kept FROM ({asked_query}) q
        UNION ALL SELECT {columns}, 0 AS asked, 1 AS kept FROM kept"""
    groups = f"SELECT {columns}, sum(asked) AS asked, sum(kept) AS kept FROM ({every}) e GROUP BY {columns}"
    query = f"""SELECT coalesce(sum(CASE WHEN g.asked > 0 THEN 1 END), 0) AS asked,
        coalesce(sum(CASE WHEN g.kept > 0 THEN 1 END), 0) AS names,
        coalesce(sum(g.kept), 0) AS every,
        coalesce(sum(CASE WHEN g.asked > 0 AND g.kept = 1 THEN 0 ELSE 1 END), 0) AS others,
        coalesce(sum(crc32(g.{_first_of(columns)})), 0) AS keys FROM ({groups}) g"""
    found = engine.sql(query, kept=kept, **tables).one()
    asked = found["asked"]
    refuse_other_sum(what, (asked, asked, 0), (found["names"], found["every"], found["others"]))
    kept.learn_count(asked)
    return GivenRows(asked, found["keys"])


def _first_of(columns: str) -> str:
    return columns.partition(",")[0]


def refuse_lost(what: str, asked: GivenRows, found: Counts) -> None:
    """Refuse a result that lacks rows, or has too many of them.

    Args:
        what: what the rows are of, for the message.
        asked: what there was to work on.
        found: the counts.

    Raises:
        StorageError: rows were lost, or others stand in their places.
    """
    if found.given != asked.rows or found.made != found.kept:
        raise StorageError(
            f"the engine lost rows: of {asked.rows:,} {what} it gave the work {found.given:,}, and of {found.made:,} "
            f"rows that the work made it kept {found.kept:,}. {_RUN_AGAIN}"
        )
    if found.marks != asked.keys:
        raise StorageError(
            f"the engine lost rows: {what} were read, and other rows stand where some of theirs were. {_RUN_AGAIN}"
        )


def refuse_other_sum(what: str, asked: object, found: object) -> None:
    """Refuse a result whose rows, marks or keys have another number, or sum, than those that there are.

    Raises:
        StorageError: rows were lost or came twice, or others stand in their places.
    """
    if found != asked:
        raise StorageError(
            f"the engine lost rows: of {what} some are lost, came twice, or stand for others. {_RUN_AGAIN}"
        )
