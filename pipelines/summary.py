"""The summary of a report: sentences in plain English, and tables.

A ``Report`` of a job has ``summary()``, its sentences; most have ``summary_tables()``. The command line prints both,
Dagster stores them. Neither escapes control characters; what prints them does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Protocol

from trinitylake_core.recovery.patterns import exactly

if TYPE_CHECKING:  # the help texts of the command line must not wait for Arrow
    from pipelines.integrity.findings import Finding
    from pipelines.tables.files import TableState
    from trinitylake_core import RecoveryPlan, VersionInfo

DRY_RUN: Final = "dry run, nothing was changed"
SHOWN: Final = 50
"""How many rows of a table people are shown; programs get all."""
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_HISTORY: Final = ("version", "created_at", "operation", "changes", "objects", "messages", "author", "reason")
_SINCE: Final = ("version", "created", "operation", "changes", "author", "reason")


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
        left = (len(self.rows) if self.total is None else self.total) - min(shown, len(self.rows))
        return f"... and {left} {self.rest}" if left > 0 else ""


class Summarised(Protocol):
    """A report with sentences on what was done."""

    def summary(self) -> Iterable[str]:
        """Return sentences: what was done, or would be, the most important one first."""


def tables_of(report: Summarised) -> Iterable[Table]:
    """Return the tables of a report; none if it has only sentences."""
    found: Iterable[Table] = getattr(report, "summary_tables", tuple)()
    return found


class Size(int):
    """A number of bytes: for people ``1.5 KiB``, for programs the number."""


# -- words ---------------------------------------------------------------------------------------------


def count(number: int | None, what: str) -> str:
    """Return a number with its noun: ``1 file``, ``2 files``, ``3 entries``."""
    plural = f"{what[:-1]}ies" if what.endswith("y") and what[-2] not in "aeiou" else f"{what}s"
    if number is None:
        return f"an unknown number of {plural}"
    return f"{number:,} {what if number == 1 else plural}"


def human_bytes(size: float) -> str:
    """Return a number of bytes with a binary unit: 1536 → ``1.5 KiB``."""
    value, unit = float(size), 0
    while abs(value) >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{size:.0f} B" if unit == 0 else f"{value:.1f} {_UNITS[unit]}"


def files_of(size: Any) -> str:
    """Return ``files`` and ``bytes`` of a size, for people."""
    return f"{count(size.files, 'file')}, {human_bytes(size.bytes)}"


def utc(time: datetime) -> str:
    """Return a time as ISO 8601 in UTC, to the millisecond; a time without zone is UTC already."""
    return aware(time).astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def aware(time: datetime) -> datetime:
    """Return a time with its zone; one without is in UTC."""
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def qualified(namespace: str, name: str | None) -> str:
    r"""Return the name of an object for people: where it holds dots, as ``restore --only`` takes it: ``a\.b.c``."""
    plain = namespace if name is None else f"{namespace}.{name}"
    return plain if name is None or plain.count(".") == 1 else exactly(namespace, name)


def deleted(report: Any, what: str, then: str) -> Iterator[str]:
    """Yield how many files an expiration or a cleaning deleted, and how many it could not delete."""
    if not report.attempted:
        return
    gone = f"; {report.already_gone:,} were gone already" if report.already_gone else ""
    yield f"{count(report.deleted, what)} deleted, {human_bytes(report.bytes)}{gone}{then}"
    if report.failed:
        yield f"{count(report.failed, 'file')} could not be deleted; the next run tries again:"
    for path, why in list(report.failures.items())[:5]:
        yield f"  {path}: {why}"


def unchanged(plan: str | None) -> str:
    """Return the sentence that nothing was changed, with the place of the plan."""
    return DRY_RUN if plan is None else f"plan written to {plan}, nothing was changed"


# -- tables that several reports have ----------------------------------------------------------------------


def versions_table(title: str, versions: Sequence[VersionInfo], caption: str = "", total: int | None = None) -> Table:
    """Return versions in their order."""
    rows = [
        [each.version, each.created_at, each.operation, each.changes, each.author, each.reason] for each in versions
    ]
    return Table(title, _SINCE, rows, caption, total, "older versions; `trinitylake history` lists them")


def history_table(versions: Sequence[VersionInfo]) -> Table:
    """Return versions in their order, with the numbers of objects and messages of each."""
    rows = [[getattr(each, name) for name in _HISTORY] for each in versions]
    return Table("history", _HISTORY, rows)


def changes_table(changes: Iterable[Any], total: int, caption: str = "") -> Table:
    """Return the first of so many objects that differ."""
    rows = [[each.change, each.kind, qualified(each.namespace, each.name)] for each in changes]
    return Table("changes", ("change", "kind", "name"), rows, caption, total)


def findings_table(findings: Sequence[Finding], more: int = 0) -> Table:
    """Return broken invariants, each with its remedy."""
    rows = [
        [each.invariant, each.file, "..".join(map(str, each.versions)) or "-", each.message, each.hint]
        for each in findings
    ]
    columns = ("invariant", "file", "versions", "what", "what to do")
    return Table("violations", columns, rows, total=len(findings) + more)


def failures_table(failures: Mapping[str, str]) -> Table:
    """Return the files that could not be deleted, with the reasons; the sentences name the first of them."""
    return Table("failures", ("path", "reason"), list(failures.items()), detail=True)


def recovery_tables(plan: RecoveryPlan, states: Sequence[TableState], unknown: int) -> Iterator[Table]:
    """Yield the changes of a rollback or a restore, the target snapshots of Iceberg tables, and the undone versions."""
    caption = "objects: " + ", ".join(f"{number} {what}" for what, number in plan.counts.items())
    yield changes_table(plan.changes, sum(plan.counts.values()), caption)
    known = [each for each in states if each.metadata_location is not None]
    lines = [f"the metadata files of {count(unknown, 'table')} cannot be looked for from here"] if unknown else []
    lines += ["Iceberg tables, and the snapshots they go back to:"] if known else []
    places = [
        [
            qualified(each.namespace, each.name),
            (each.snapshot_id or "none") if each.known else "unknown",
            each.snapshot_at,
        ]
        for each in known
    ]
    yield Table("Iceberg tables", ("table", "snapshot", "of"), places, "\n".join(lines))
    caption = "not compared, because the newest version cannot be read there; all of it will be as in the target:"
    holes = [
        [each.after or "the beginning", each.before or "the end", each.file, each.why] for each in plan.not_compared
    ]
    yield Table("not compared", ("after", "before", "file", "why"), holes, caption if holes else "")
    if plan.versions_undone:
        caption = f"versions undone: {plan.versions_undone}"
        yield versions_table("undone", plan.since, caption, plan.versions_undone)
