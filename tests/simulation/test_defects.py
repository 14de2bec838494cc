"""The defects of two reviews: where each was found, and that nothing is found there any more.

``found`` is the schedule that went wrong on commit 61437fa, for those in words on commit f818d16. Repairs change which
requests there are, so it is not replayed: all schedules within the bounds that it was found in are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import pytest
from _pytest.mark import ParameterSet

from tests.simulation.explore import Bounds, explore
from tests.simulation.replay import told
from tests.simulation.scenarios import Scenario


@dataclass(frozen=True, slots=True)
class Defect:
    """A scenario, the bounds of its schedules, and the first schedule that went wrong."""

    what: str
    kinds: str
    found: str
    bounds: Bounds
    courtesy: bool = True


_ALONE: Final = Bounds(0)
_RACE: Final = Bounds(1)
DEFECTS: Final[dict[str, Defect]] = {
    "1": Defect(
        "a lost answer, then others commit and expire: committed definitions are deleted",
        "write+later", "0 3!lose 4>1", Bounds(1, 1, ("lose",)),
    ),
    "1, PyIceberg": Defect(
        "the same through the catalog of PyIceberg",
        "iceberg+later", "0 21!lose 22>1", Bounds(1, 1, ("lose",)),
    ),
    "2": Defect(
        "an export puts its claim back, and a writer that saw it deletes a root that others built on",
        "export-rest+write-copy-other+write-copy", "0 59>2 65>0", Bounds(2), courtesy=False,
    ),
    "2, dead export": Defect(
        "the same where `expire` puts the claim of a dead export back",
        "export-rest+write-copy+expire-copy+write-copy-other", "0 59!die 65>2", Bounds(1, 1, ("die",)),
        courtesy=False,
    ),
    "3": Defect(
        "version 0 is created below the boundary, and acknowledged", "create+expire", "1", _ALONE
    ),
    "3, copy": Defect(
        "the same at the place of an export", "create-copy+export", "0 6>1", _RACE
    ),
    "4": Defect(
        "a version is written on top of another lakehouse", "recreate-copy+refresh-copy", "0", _ALONE
    ),
    "deleted target": Defect(
        "an export reports success, and its target was deleted and made again meanwhile",
        "export-history-again+recreate-copy", "0 54>1", _RACE,
    ),
    "5": Defect(
        "a save whose confirmation lost its answer deletes definitions that were committed",
        "save-again+publish-later", "0 12!lose 13>1", Bounds(1, 1, ("lose",)),
    ),
    "5, abort": Defect(
        "the abort of a transaction is acknowledged that was committed", "abort+publish+later", "0 2>1", _RACE
    ),
    "6": Defect(
        "a purge deletes the files of a live table that was renamed", "purge+rename", "0 4>1", _RACE
    ),
    "7": Defect(
        "a commit that is repeated after an unknown outcome is refused, and was made",
        "write-retry+later", "0 5>1", Bounds(1, 1, ("cut",)),
    ),
    "8": Defect("an expiration commits into a hole of two lost roots, and deletes", "expire-holes", "0", _ALONE),
    "8, cleaning": Defect("a cleaning deletes what versions beyond the hole need", "clean-holes", "0", _ALONE),
    "8, export": Defect("the version before a lost root is exported as the newest one", "export-hole", "0", _ALONE),
    "8, history": Defect("the same with the history", "export-history-hole", "0", _ALONE),
    "8, commit": Defect(
        "a commit into a hole is acknowledged where the root after it cannot be read", "write-hole-short", "0", _ALONE
    ),
    "8, marked": Defect("the same where that version is marked as lost", "write-hole-lost", "0", _ALONE),
    "9": Defect("a root below the boundary is read as a version", "at+expire", "1 14>0", _RACE),
    "9, diff": Defect("the same by a comparison", "diff+expire", "1 14>0", _RACE),
    "9, export": Defect("the same by an export", "export-old+expire", "1 14>0", _RACE),
    "10": Defect(
        "a late `txn-` file without its running root makes every cleaning refuse",
        "save-publish", "0 4!late", Bounds(0, 1, ("late",)),
    ),
    "removal": Defect(
        "a removal is acknowledged and not made: the endpoint has not seen the property", "unset", "0", _ALONE
    ),
    "removal, table": Defect("the same with a property of a table", "unset-table", "0", _ALONE),
    "reference": Defect("a reference is said to be set that another endpoint removed", "set-ref", "0", _ALONE),
    "one of two": Defect("there is nothing to do for one of two tables, and then there is", "unset-one", "0", _ALONE),
    "idle": Defect("an endpoint that was idle for months refuses for what it saw last", "idle", "0", _ALONE),
    "outcome": Defect("an exception of one member leaves others without an outcome", "group-broken", "0", _ALONE),
    "abort": Defect(
        "the abort of a member that is committed is acknowledged",
        "group-abort", "0 7!cut", Bounds(0, 1, ("lose", "cut", "late", "outage")),
    ),
    "key": Defect(
        "a key is carried out twice: a retry loses it",
        "request-again", "0 10!outage", Bounds(0, 1, ("lose", "cut", "late", "outage")),
    ),
    "clock": Defect("the storage's clock is a year ahead once, and that becomes a fence", "clean-misled", "0", _ALONE),
    "clock, tables": Defect(
        "the same for tables: files of seconds ago go", "tables-clean-misled", "0", _ALONE
    ),
    "clock, rollback": Defect("a rollback over a damaged root makes one, too", "recover-misled", "0", _ALONE),
    "clock, expiration": Defect("a process whose clock is ahead expires everything", "expire-hasty", "0", _ALONE),
    "two changes": Defect(
        "of two changes of one table in one commit the first vouches for the second",
        "append-twice+tables-clean", "1 178>0", _RACE,
    ),
}  # fmt: skip


_LONG: Final = {"1, PyIceberg", "2", "2, dead export"}
"""Explored by `make test-all` only."""
_SAMPLE: Final = 4
"""Of schedules with two decisions `make test` runs every fourth."""


def _explorations() -> Iterator[ParameterSet]:
    """Yield each defect with the number of parts of which one is explored."""
    for name, defect in DEFECTS.items():
        has_two = defect.bounds.preemptions + defect.bounds.faults > 1
        if has_two and name not in _LONG:
            yield pytest.param(defect, _SAMPLE, id=name)
        yield pytest.param(defect, 1, id=f"{name}, whole" if has_two else name, marks=[pytest.mark.slow] * has_two)


@pytest.mark.parametrize(("defect", "parts"), [*_explorations()])
def test_nothing_is_found_any_more(defect: Defect, parts: int, record_property: Callable[[str, object], None]) -> None:
    """Within the bounds in which the defect was found."""
    scenario = Scenario(tuple(defect.kinds.split("+")), courtesy=defect.courtesy)
    found = explore(scenario, replace(defect.bounds, parts=parts))
    record_property("schedules", found.schedules)
    assert found.violation is None, told(scenario, found.violation)
