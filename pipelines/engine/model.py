"""What an engine does: work in tasks or in this process, and tables that outgrow memory, questioned in SQL.

A job is written once, against :class:`Engine`. Its rows are dictionaries on their way in and tuples, in the order of a
schema, on their way out: so nothing is made of a million names that is not needed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias

import pyarrow as pa

from trinitylake_core.storage import Storage

Row: TypeAlias = Mapping[str, Any]
MadeRow: TypeAlias = tuple[Any, ...]
"""A row that work makes, in the order of a schema."""
FoundRow: TypeAlias = dict[str, Any]
"""A row of a result."""
Work: TypeAlias = Callable[..., Iterable[MadeRow]]
"""Makes rows, as tuples in the order of a schema, of an iterator of rows and the storages it is called with."""
GroupWork: TypeAlias = Callable[..., Iterable[Sequence[MadeRow]]]
"""Makes the rows of each of some groups of rows, in their order, with the storages it is called with."""
Kept: TypeAlias = Callable[[int], None]
"""Called with how many rows are kept so far, where that is known; it may raise to end the work."""
TEXT: Final = pa.string()
BINARY: Final = pa.binary()
INT: Final = pa.int32()
LONG: Final = pa.int64()
BOOL: Final = pa.bool_()
READ_AHEAD: Final = 256
"""Files that are read at once."""
_TABLE: Final = re.compile(r"\b(FROM|JOIN)\s+(\w+)")


def place_names(query: str, names: Mapping[str, str]) -> str:
    """Return a query in which each table has the name that the engine knows it by.

    They are not named by ``WITH``: the tables of queries are queries themselves, and Spark 4.1.1 confuses nested ones.
    Raises ``KeyError`` for a table without a name.
    """
    return _TABLE.sub(lambda found: f"{found[1]} {names[found[2]]}", query)


def named_tables(query: str) -> list[str]:
    """Return the names of the tables in a query, each as often as the query reads it."""
    return [found[2] for found in _TABLE.finditer(query)]


def name_table(table: Table, name: Callable[[Rows], str]) -> str:
    """Return what stands in a query for a table: the name of its rows, or a query of all its parts."""
    if not isinstance(table, Sequence):
        return name(table)
    every = " UNION ALL ".join(f"SELECT * FROM {name(part)}" for part in table)
    return f"({every})"


class Rows(Protocol):
    """A table of an engine. It is computed when it is asked for, each time, unless it is kept."""

    def stream(self, *, few: bool = False) -> Iterator[FoundRow]:
        """Yield all rows, some of them in memory. Raises what the work raised, if it is an error of this library.

        Where there are tasks the work is done by all of them before the first row comes; in this process each row comes
        when it is made.

        Args:
            few: whether all rows may be in memory: sums, one for each portion of work. That costs tasks one job less.
        """

    def list(self) -> list[FoundRow]:
        """Return all rows. Raises as :meth:`stream`."""

    def one(self) -> FoundRow:
        """Return the row of a table that has exactly one, such as sums without groups. Raises as :meth:`stream`."""

    def count(self) -> int:
        """Return the number of rows. Raises as :meth:`stream`."""

    def learn_count(self, count: int) -> None:
        """Take note of the number of rows, which another query has found: they are not counted once more."""

    def keep(self, key: str = "", *, repeatable: bool = False, progress: Kept | None = None) -> Rows:
        """Compute the rows and return them as a table on disk, until it is dropped or the engine closed.

        Args:
            key: the columns by which a query looks rows of this table up, with commas: names that are asked for
                once for each role, for example, are then found without a sort.
            repeatable: whether rows that a machine lost may be computed a second time; otherwise that fails the job.
            progress: called as rows come in.
        """

    def drop(self) -> None:
        """Give back what kept rows take."""


Table: TypeAlias = Rows | Sequence[Rows]
"""What a query knows by one name: a table, or the parts that it comes in."""


class Engine(Protocol):
    """Where a job does its work.

    Attributes:
        name: ``local`` or ``spark``, for the report.
    """

    name: str

    def map(self, work: Work, rows: Rows, schema: pa.Schema, *storages: Storage, each: int = READ_AHEAD) -> Rows:
        """Return the rows that ``work(rows, *storages)`` yields, as tuples in the order of ``schema``.

        ``work`` may be sent to another machine: it is a function of a module, or a ``partial`` of one, and holds
        neither a storage nor a session. ``each`` is how many rows keep one task busy.
        """

    def not_counted(self, requests: int) -> int:
        """Return the requests (or bytes) of :meth:`map` that the storages of this process did not count."""

    def tasks(self, wanted: int | None = None) -> int:
        """Return the number of tasks that work is dealt to, those ``wanted`` if any are; 1 where processes take it."""

    def map_groups(
        self,
        work: GroupWork,
        rows: Rows,
        schema: pa.Schema,
        *storages: Storage,
        by: str,
        weight: str,
        key: str = "",
        ahead: int = 1,
        progress: Callable[[int, int | None], None],
    ) -> Rows:
        """Return, kept, what ``work(groups, *storages)`` makes of each group: tuples in the order of ``schema``.

        A group is the rows with the same number in a column, in one task or worker process. What work wrote is durable
        after the next barrier of this process. Memory: one group per task or process, and what becomes of it.

        Args:
            work: takes an iterator of lists of rows, and yields one list for each; sent as that of :meth:`map`.
            rows: what is grouped, kept with the key ``by``.
            schema: of the result.
            storages: what work reads and writes.
            by: the column with the number of the group, from 0 on.
            weight: the column whose sum is the weight of a group.
            key: the column by which a query looks rows of the result up.
            ahead: how many groups a worker process is given at once: while one is worked on, it reads the others.
            progress: called with the weight that is done, and the whole if known; if it raises, the work is given up.
        """

    def table(self, rows: Iterable[Row], schema: pa.Schema) -> Rows:
        """Return rows of this process as a table."""

    def sql(self, query: str, **tables: Table) -> Rows:
        """Return the result of a query of tables, by these names.

        A table may come in several parts with the same columns. The query reads the parts themselves: a view of them
        would be one more result of which the engine may lose a row, and a query that counts would lack that row, too.

        The query uses the SQL that SQLite and Spark have in common: joins, ``EXISTS``, ``GROUP BY``, ``UNION ALL``,
        ``ORDER BY``, ``LIMIT``, and ``crc32`` of a text. A table stands after an upper-case ``FROM`` or ``JOIN`` and
        nowhere else: columns are qualified by aliases. The inner table of a join or an ``EXISTS`` is kept with its key.
        """

    def close(self) -> None:
        """Release the disk and memory of all tables."""


def not_among(column: str, table: str, parts: Sequence[Rows]) -> tuple[str, dict[str, Rows]]:
    """Return the condition that no row of ``parts`` has the path in a column, and the parts by their names in it."""
    named = {f"{table}{number}": rows for number, rows in enumerate(parts)}
    conditions = [f"NOT EXISTS (SELECT 1 FROM {name} k WHERE k.path = {column})" for name in named]
    return " AND ".join(["1 = 1", *conditions]), named
