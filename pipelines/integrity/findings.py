"""Findings: broken invariants, each once, with the versions they were seen in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from pipelines.engine.model import LONG, TEXT, MadeRow
from pipelines.reach.walk import FOREVER, IN_SNAPSHOT, OF_NO_VERSION
from pipelines.reports.summary import Table
from trinitylake_core.check import HINT_OF_SNAPSHOT, Violation

FINDINGS_MAX: Final = 10_000
"""So many findings are kept; the others are counted."""
VIOLATION: Final = ("invariant", "file", "message", "hint")
COUNTED: Final = "counted"
"""Takes the place of the invariant in a row that is not a finding but a number of files that a task counted."""
NODES_NAMED: Final = "nodes named"
DEFINITIONS: Final = "definitions"
DEFINITIONS_PROVED: Final = "definitions proved"
FOUND: Final = pa.schema({**dict.fromkeys(VIOLATION, TEXT), "first": LONG, "last": LONG})
"""A finding as a row."""


@dataclass(frozen=True, slots=True)
class Finding(Violation):
    """One broken invariant, where it was found, and in which versions; ``None``: in the lakehouse as a whole.

    The versions are the first and the last that are known to reach the file. A snapshot counts as none: it is named
    where the file is known to belong to a snapshot only.
    """

    first_version: int | None
    last_version: int | None
    snapshot: str | None = None

    @property
    def versions(self) -> list[int]:
        """The first and the last version that are known to reach the file, once if they are one."""
        known = []
        for version in (self.first_version, self.last_version):
            if version is not None and version not in known:
                known.append(version)
        return known


def findings_table(findings: Sequence[Finding], more: int = 0) -> Table:
    """Return broken invariants, each with its remedy."""
    rows = []
    for each in findings:
        versions = "..".join(map(str, each.versions)) or "-"
        if each.snapshot is not None:
            versions = f"snapshot {each.snapshot}"
        rows.append([each.invariant, each.file, versions, each.message, each.hint])
    columns = ("invariant", "file", "versions", "what", "what to do")
    return Table("violations", columns, rows, total=len(findings) + more)


def count_finding(what: str, number: int) -> Violation:
    """Return a number of files, on the way of findings."""
    return Violation(COUNTED, "", what, str(number))


class Found:
    """Findings so far, each once, and in ``counts`` what was counted beside them.

    At most ``most`` findings are kept.
    """

    def __init__(self, most: int = FINDINGS_MAX) -> None:
        self.most = most
        self._found: dict[Violation, tuple[int, int]] = {}
        self._more = 0
        self.counts: Counter[str] = Counter()

    def room(self) -> int:
        """Return the number of further findings that would be kept."""
        return max(0, self.most - len(self._found))

    def count_more(self, count: int) -> None:
        """Count findings that are not kept."""
        self._more += count

    def violations(self) -> list[Violation]:
        """Return the findings, in the order of finding."""
        return list(self._found)

    def add(self, what: Violation, first: int | None, last: int | None = None) -> None:
        """Add a finding in a version, or in several; or what was counted."""
        if what.invariant == COUNTED:
            self.counts[what.message] += int(what.hint)
            return
        low = FOREVER
        high = OF_NO_VERSION
        if first is not None:
            low = high = first
        if last is not None:
            high = last
        known = self._found.get(what)
        if known is not None:
            known_low, known_high = known
            self._found[what] = (min(low, known_low), max(high, known_high))
        elif self.room():
            self._found[what] = (low, high)
        else:
            self._more += 1

    def rows(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add findings as rows."""
        for row in rows:
            columns = (row[name] for name in VIOLATION)
            self.add(Violation(*columns), row["first"], row["last"])

    def forget_below(self, boundary: int) -> None:
        """Forget what concerns only versions below the boundary."""
        found = self._found.items()
        self._found = {what: (low, high) for what, (low, high) in found if not 0 <= high < boundary}

    def findings(self, snapshots: Sequence[str] = ()) -> tuple[list[Finding], int]:
        """Return the findings in a fixed order, and how many more there were.

        ``snapshots``: the names of those whose first version was given as the number ``IN_SNAPSHOT`` and its place.
        """
        found = []
        for what, (low, high) in self._found.items():
            if low >= FOREVER:
                first = None
            else:
                first = low
            snapshot, hint = None, what.hint
            if low >= IN_SNAPSHOT:
                snapshot, hint = snapshots[low - IN_SNAPSHOT], HINT_OF_SNAPSHOT  # no rollback leaves a snapshot behind
            last = None
            if 0 <= high < FOREVER:
                last = high
            found.append(
                Finding(
                    what.invariant,
                    what.file,
                    what.message,
                    hint,
                    first_version=first,
                    last_version=last,
                    snapshot=snapshot,
                )
            )
        return sorted(found, key=_order_of), self._more


def _order_of(finding: Finding) -> tuple[int, str, str]:
    number = int(finding.invariant[1:] or 0)
    return number, finding.file, finding.message


def columns_of(what: Violation) -> tuple[str, str, str, str]:
    """Return a finding as the columns :data:`VIOLATION`."""
    return what.invariant, what.file, what.message, what.hint


def found_row(what: Violation, version: int) -> MadeRow:
    """Return a finding in a version as a row of :data:`FOUND`."""
    return (*columns_of(what), version, version)
