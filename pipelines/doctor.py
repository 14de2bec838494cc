"""Compares the retention of tables with the retention of their lakehouse (``docs/iceberg.md``).

A version can be read only as long as the files of its tables are there. Iceberg's own maintenance removes them by the
properties of each table; nothing here does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from trinitylake_core import Lakehouse
from trinitylake_core.commits.commit import now_millis
from trinitylake_core.definitions import TableDef, decode_table
from trinitylake_core.errors import Corrupt, FileMissing
from trinitylake_core.keys import TABLE
from trinitylake_core.tables import ICEBERG, METADATA_LOCATION

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
        too_soon: of them, those that may expire snapshots which the lakehouse still keeps, by name; the first 20.
        too_soon_count: how many there are.
        deleting: those that delete old metadata files at each commit, the same way.
        deleting_count: how many there are.
    """

    kept_seconds: float
    tables: int = 0
    more: bool = False
    too_soon: list[str] = field(default_factory=list)
    too_soon_count: int = 0
    deleting: list[str] = field(default_factory=list)
    deleting_count: int = 0

    def look(self, name: str, table: TableDef) -> None:
        """Compare one table."""
        self.tables += 1
        age = table.properties.get(_MAX_AGE, "")
        millis = int(age) if age.isdigit() else _MAX_AGE_DEFAULT_MILLIS
        if millis < self.kept_seconds * 1000:
            self.too_soon_count += 1
            self.too_soon += [name] if len(self.too_soon) < _NAMED else []
        if table.properties.get(DELETES_METADATA, "").lower() == "true":
            self.deleting_count += 1
            self.deleting += [name] if len(self.deleting) < _NAMED else []


def table_retention(lake: Lakehouse, *, most: int = LOOKED_AT, now: int | None = None) -> TableRetention | None:
    """Compare the retention of tables and lakehouse; ``None`` without an Iceberg table that has metadata.

    Reads the first ``most`` tables. Costs the nodes that contain them, one ``get`` for each definition, and at most two
    more for the age of the oldest version that is kept.
    """
    entries = list(islice(lake.objects(kind=TABLE), most + 1))
    found = TableRetention(max(0.0, ((now_millis() if now is None else now) - _oldest_millis(lake)) / 1000))
    found.more = len(entries) > most
    contents = lake.storage.read_many([entry.path for entry in entries[:most]])
    for entry, (path, data) in zip(entries, contents, strict=False):
        if isinstance(data, FileMissing):  # `verify` reports it
            continue
        try:
            table = decode_table(data, path)
        except Corrupt:
            continue
        if table.table_format == ICEBERG and table.format_properties.get(METADATA_LOCATION):
            found.look(f"{entry.namespace}.{entry.name}", table)
    return found if found.tables else None


def _oldest_millis(lake: Lakehouse) -> int:
    """Return when the oldest version, or snapshot in this lakehouse, that is kept was committed."""
    oldest = lake.at(version=lake.stats().oldest_version).info().created_at_millis
    snapshots = [each for each in lake.snapshots() if not each.target_uri and not each.expired]
    if not snapshots:
        return oldest
    first = min(snapshots, key=lambda each: each.version)
    return min(oldest, lake.at(snapshot=first.name).info().created_at_millis)


def advice(found: TableRetention, age: str) -> Iterator[str]:
    """Yield warnings in words; ``age``, in words, is that of the oldest version or snapshot."""
    if found.too_soon_count:
        yield (
            f"warning: {found.too_soon_count} of {found.tables} Iceberg tables may expire snapshots that the lakehouse "
            f"still keeps: it keeps {age}; raise {_MAX_AGE} beyond that (default 5 days), or expire versions earlier: "
            f"{', '.join(found.too_soon)}"
        )
    if found.deleting_count:
        yield (
            f"warning: {found.deleting_count} of {found.tables} Iceberg tables delete old metadata at each commit, "
            f"and older versions cannot be read then; remove {DELETES_METADATA}: {', '.join(found.deleting)}"
        )
