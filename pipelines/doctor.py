"""Compares the retention of tables with the retention of their lakehouse (``docs/iceberg.md``).

A version can be read only as long as the files of its tables are there. Iceberg's own maintenance removes them by the
properties of each table, and knows nothing of versions; ``tables clean`` keeps what a version needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from pipelines.reach.table_files import TableFiles, iceberg_tables
from pipelines.reports.summary import count
from trinitylake_core import Lakehouse, clock
from trinitylake_core.catalog import ObjectEntry
from trinitylake_core.definitions import TableDef
from trinitylake_core.errors import Corrupt
from trinitylake_core.keys import TABLE

LOOKED_AT: Final = 200
_NAMED: Final = 20
_MAX_AGE: Final = "history.expire.max-snapshot-age-ms"
_MAX_AGE_DEFAULT_MILLIS: Final = 5 * 86_400_000
DELETES_METADATA: Final = "write.metadata.delete-after-commit.enabled"


@dataclass(slots=True)
class TableRetention:
    """What was compared.

    Attributes:
        kept_seconds: the age of the oldest version or snapshot that is kept.
        tables: Iceberg tables that were examined, at most 200.
        more: whether there are more.
        too_soon: of them, those that engines may expire snapshots of which the lakehouse still keeps, by name; the
            first 20. None where ``tables clean`` has run: there engines need not expire anything.
        too_soon_count: how many there are.
        deleting: those that let engines delete old metadata files at each commit, the same way.
        deleting_count: how many there are.
        lost: those of the oldest kept version of which files are gone, the same way.
        lost_count: how many there are.
        foreign: those whose metadata name a place that the definition does not have, as release 0.1.0 left it: no
            client is given them. The same way, if that is asked for.
        foreign_count: how many there are.
    """

    kept_seconds: float
    tables: int = 0
    more: bool = False
    too_soon: list[str] = field(default_factory=list)
    too_soon_count: int = 0
    deleting: list[str] = field(default_factory=list)
    deleting_count: int = 0
    lost: list[str] = field(default_factory=list)
    lost_count: int = 0
    foreign: list[str] = field(default_factory=list)
    foreign_count: int = 0

    def look(self, name: str, table: TableDef, *, cleaned: bool) -> None:
        """Compare one table; ``cleaned``: this pipeline cleans the tables of the lakehouse."""
        self.tables += 1
        age = table.properties.get(_MAX_AGE, "")
        if age.isdigit():
            millis = int(age)
        else:
            millis = _MAX_AGE_DEFAULT_MILLIS
        if millis < self.kept_seconds * 1000 and not cleaned:
            self.too_soon_count += 1
            if len(self.too_soon) < _NAMED:
                self.too_soon.append(name)
        if table.properties.get(DELETES_METADATA, "").lower() == "true":
            self.deleting_count += 1
            if len(self.deleting) < _NAMED:
                self.deleting.append(name)


def table_retention(
    lake: Lakehouse, *, most: int = LOOKED_AT, now: int | None = None, places: bool = False
) -> TableRetention | None:
    """Compare the retention of tables and lakehouse; ``None`` without an Iceberg table that has metadata.

    Reads the first ``most`` tables, of the newest version and of the oldest. Costs the nodes that contain them, one
    ``get`` for each definition, a ``get`` and a ``head`` for each table of the oldest version, and at most two more for
    the age of the oldest version that is kept, and one for each damaged snapshot. With ``places`` also a ``get`` for
    each table of the newest version.
    """
    first = lake.at(version=lake.stats().oldest_version)
    if now is None:
        now = clock.now_millis()
    kept_millis = now - _kept_since(lake, first)
    found = TableRetention(max(0.0, kept_millis / 1000))
    cleaned = lake.root_node.tables_void_before_millis > 0
    entries = list(islice(lake.objects(kind=TABLE), most + 1))
    found.more = len(entries) > most
    newest = list(_tables(lake, entries[:most]))
    for name, table in newest:
        found.look(name, table, cleaned=cleaned)
    if places:
        foreign = _choose(lake, newest, TableFiles(lake.storage).find_foreign_place)
        found.foreign = foreign[:_NAMED]
        found.foreign_count = len(foreign)
    oldest_entries = islice(first.objects(kind=TABLE), most)
    oldest = list(_tables(first, oldest_entries))
    lost = _choose(lake, oldest, TableFiles(lake.storage).has_lost_files)
    found.lost = lost[:_NAMED]
    found.lost_count = len(lost)
    if not found.tables and not oldest:
        return None
    return found


def _kept_since(lake: Lakehouse, first: Lakehouse) -> int:
    """Return when the oldest content was made that a version or a snapshot keeps, and that can be read.

    One ``get``, and one for each older snapshot that is damaged.
    """
    since = first.info().created_at_millis
    for snapshot in sorted(lake.snapshots(), key=lambda each: each.version):
        if snapshot.target_uri or snapshot.expired:
            continue
        with suppress(Corrupt):  # `verify` names it; to know an age is worth no failure
            content = lake.at(snapshot=snapshot.name)
            return min(since, content.info().created_at_millis)
    return since


def _choose(lake: Lakehouse, tables: Sequence[tuple[str, TableDef]], look: Callable[[TableDef], object]) -> list[str]:
    """Return the names of the tables of which a look, side by side with the others, finds something."""

    def ask(named: tuple[str, TableDef]) -> tuple[str, object]:
        name, table = named
        return name, look(table)

    chosen = []
    for name, found in lake.storage.map(tables, ask):
        if found:
            chosen.append(name)
    return chosen


def _tables(lake: Lakehouse, entries: Iterable[ObjectEntry]) -> Iterator[tuple[str, TableDef]]:
    """Yield those that are Iceberg tables with metadata; none of a definition that cannot be read: ``verify`` does."""
    for entry, table in iceberg_tables(lake.storage, entries, {}):
        yield f"{entry.namespace}.{entry.name}", table


def advice(found: TableRetention, age: str) -> Iterator[str]:
    """Yield warnings in words; ``age``, in words, is that of the oldest version or snapshot."""
    if found.lost_count:
        yield (
            f"warning: of {count(found.lost_count, 'Iceberg table')} files that the oldest version names are gone: "
            "something else deletes them: expire_snapshots or remove_orphan_files of an engine, or a lifecycle rule "
            f"of the bucket. Stop it, and see the runbook, 'Somebody expired the data': {', '.join(found.lost)}"
        )
    if found.too_soon_count:
        yield (
            f"warning: an engine that expires snapshots would delete what the lakehouse still keeps of "
            f"{found.too_soon_count} of {found.tables} Iceberg tables: it keeps {age}. Leave it to `tables expire` and "
            f"`tables clean`, or raise {_MAX_AGE} beyond that (default 5 days): {', '.join(found.too_soon)}"
        )
    if found.deleting_count:
        yield (
            f"warning: {found.deleting_count} of {found.tables} Iceberg tables delete old metadata at each commit, "
            f"and older versions cannot be read then; remove {DELETES_METADATA}: {', '.join(found.deleting)}"
        )
    if found.foreign_count:
        yield (
            f"warning: no client of an endpoint is given {found.foreign_count} of {found.tables} Iceberg tables (403): "
            "their metadata name a place that their definitions lack, as release 0.1.0 left them. If the place is the "
            f"table's, register the file again (`register_table` with `overwrite`): {', '.join(found.foreign)}"
        )
