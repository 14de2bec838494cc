"""The summary of a report: sentences in plain English, and tables.

A ``Report`` of a job has ``summary()``, its sentences; most have ``summary_tables()``. The command line prints both,
Dagster stores them. Neither escapes control characters; what prints them does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Protocol

from trinitylake_core.recovery.patterns import exactly

if TYPE_CHECKING:  # the help texts of the command line must not wait for Arrow
    from trinitylake_core import VersionInfo

DRY_RUN: Final = "dry run, nothing was changed"
SHOWN: Final = 50
"""How many rows of a table people are shown; programs get all."""
_UNITS: Final = ("KiB", "MiB", "GiB", "TiB", "PiB")
_FAILURES_NAMED: Final = 5
_HISTORY: Final = ("version", "created_at", "operation", "changes", "objects", "messages", "author", "reason")
_SINCE: Final = {
    "version": "version",
    "created": "created_at",
    "operation": "operation",
    "changes": "changes",
    "author": "author",
    "reason": "reason",
}
"""Columns, and the attributes that they show."""


@dataclass(frozen=True, slots=True)
class Table:
    """Some rows of a report.

    Attributes:
        title: what the rows are, in one or two words.
        columns: the names of the columns.
        rows: at most a thousand; each has a value for every column.
        caption: a sentence above the table, for people.
        total: how many rows there are, if the report does not hold them all.
        rest: what the rows are called that are left out.
        detail: only shown to people who ask for every figure.
    """

    title: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[Any]]
    caption: str = ""
    total: int | None = None
    rest: str = "more"
    detail: bool = False

    def left_out(self, shown: int) -> str:
        """Return a line about the rows that are not shown; empty if there are none."""
        if self.total is None:
            total = len(self.rows)
        else:
            total = self.total
        left = total - min(shown, len(self.rows))
        if left <= 0:
            return ""
        return f"... and {left} {self.rest}"


class Summarised(Protocol):
    """A report with sentences on what was done."""

    def summary(self) -> Iterable[str]:
        """Return sentences: what was done, or would be, the most important one first."""


def tables_of(report: Summarised) -> Iterable[Table]:
    """Return the tables of a report; none if it has only sentences."""
    if not hasattr(report, "summary_tables"):
        return ()
    found: Iterable[Table] = report.summary_tables()
    return found


def items_of(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass, or the items of a mapping, by name."""
    if not is_dataclass(value):
        return {str(name): each for name, each in value.items()}
    return {each.name: getattr(value, each.name) for each in fields(value)}


class ByteCount(int):
    """A number of bytes: for people ``1.5 KiB``, for programs the number."""


# -- words ---------------------------------------------------------------------------------------------


def count(number: int | None, what: str) -> str:
    """Return a number with its noun: ``1 file``, ``2 files``, ``3 entries``."""
    if number == 1:
        return f"1 {what}"
    if what.endswith("y") and what[-2] not in "aeiou":
        plural = f"{what[:-1]}ies"
    else:
        plural = f"{what}s"
    if number is None:
        return f"an unknown number of {plural}"
    return f"{number:,} {plural}"


def at_most(number: int | None, uncertain: int | None) -> int | str | None:
    """Return a number of objects, or that it is the most: messages wait of which it is not known what they create."""
    if uncertain and number is not None:
        return f"at most {number:,}"
    return number


def human_bytes(size: float) -> str:
    """Return a number of bytes with a binary unit: 1536 → ``1.5 KiB``."""
    if abs(size) < 1024:
        return f"{size:.0f} B"
    value = size / 1024
    larger_units = iter(_UNITS)
    unit = next(larger_units)
    for larger in larger_units:
        if abs(value) < 1024:
            break
        value /= 1024
        unit = larger
    return f"{value:.1f} {unit}"


def files_of(size: Any) -> str:
    """Return ``files`` and ``bytes`` of a size, for people."""
    return f"{count(size.files, 'file')}, {human_bytes(size.bytes)}"


def utc(time: datetime) -> str:
    """Return a time as ISO 8601 in UTC, to the millisecond; a time without zone is UTC already."""
    return aware(time).astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def aware(time: datetime) -> datetime:
    """Return a time with its zone; one without is in UTC."""
    if time.tzinfo is None:
        return time.replace(tzinfo=UTC)
    return time


def qualify_name(namespace: str, name: str | None) -> str:
    r"""Return the name of an object for people: where it holds dots, as ``restore --only`` takes it: ``a\.b.c``."""
    if name is None:
        return namespace
    if "." in namespace or "." in name:
        return exactly(namespace, name)
    return f"{namespace}.{name}"


def describe_deletion(report: Any, what: str, then: str) -> Iterator[str]:
    """Yield how many files an expiration or a cleaning deleted, and how many it could not delete."""
    if not report.attempted:
        return
    gone = ""
    if report.already_gone:
        gone = f"; {report.already_gone:,} were gone already"
    deleted = count(report.deleted, what)
    yield f"{deleted} deleted, {human_bytes(report.bytes)}{gone}{then}"
    if report.versions_kept:
        yield (
            f"the bucket keeps versions: {count(report.versions_kept, 'deleted file')} take space there until a "
            "lifecycle rule of the bucket for noncurrent versions removes them"
        )
    if report.failed:
        yield f"{count(report.failed, 'file')} could not be deleted; the next run tries again:"
    for path, why in islice(report.failures.items(), _FAILURES_NAMED):
        yield f"  {path}: {why}"


def describe_no_change(plan: str | None) -> str:
    """Return the sentence that nothing was changed, with the place of the plan."""
    if plan is None:
        return DRY_RUN
    return f"plan written to {plan}, nothing was changed"


# -- tables that several reports have ----------------------------------------------------------------------


def versions_table(
    title: str,
    versions: Sequence[VersionInfo],
    caption: str,
    total: int | None = None,
) -> Table:
    """Return versions in their order."""
    rows = [[getattr(each, name) for name in _SINCE.values()] for each in versions]
    return Table(
        title=title,
        columns=tuple(_SINCE),
        rows=rows,
        caption=caption,
        total=total,
        rest="older versions; `trinitylake history` lists them",
    )


def history_table(versions: Sequence[VersionInfo]) -> Table:
    """Return versions in their order, with the numbers of objects and messages of each."""
    rows = [_history_row(each) for each in versions]
    return Table("history", _HISTORY, rows)


def _history_row(version: VersionInfo) -> list[Any]:
    cells = {name: getattr(version, name) for name in _HISTORY}
    cells["objects"] = at_most(version.objects, version.uncertain)
    return list(cells.values())


def changes_table(changes: Iterable[Any], total: int, caption: str = "") -> Table:
    """Return the first of so many objects that differ."""
    rows = []
    for each in changes:
        name = qualify_name(each.namespace, each.name)
        rows.append([each.change, each.kind, name])
    return Table(
        title="changes",
        columns=("change", "kind", "name"),
        rows=rows,
        caption=caption,
        total=total,
    )


def failures_table(failures: Mapping[str, str]) -> Table:
    """Return the files that could not be deleted, with the reasons; the sentences name the first of them."""
    return Table("failures", ("path", "reason"), list(failures.items()), detail=True)
