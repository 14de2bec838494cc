"""The defects of the second review: where each was found, and that nothing is found there any more.

``found`` is the schedule that went wrong on commit 61437fa. Repairs change which requests there are, so it is not
replayed: all schedules within the bounds that it was found in are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import pytest

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
    "9": Defect("a root below the boundary is read as a version", "at+expire", "1 14>0", _RACE),
    "9, diff": Defect("the same by a comparison", "diff+expire", "1 14>0", _RACE),
    "9, export": Defect("the same by an export", "export-old+expire", "1 14>0", _RACE),
    "10": Defect(
        "a late `txn-` file without its running root makes every cleaning refuse",
        "save-publish", "0 4!late", Bounds(0, 1, ("late",)),
    ),
}  # fmt: skip


_LONG: Final = {"1, PyIceberg", "2", "2, dead export"}
_PARAMETERS: Final = [
    pytest.param(defect, id=name, marks=[pytest.mark.slow] if name in _LONG else []) for name, defect in DEFECTS.items()
]


@pytest.mark.parametrize("defect", _PARAMETERS)
def test_nothing_is_found_any_more(defect: Defect, record_property: Callable[[str, object], None]) -> None:
    """Within the bounds in which the defect was found."""
    scenario = Scenario(tuple(defect.kinds.split("+")), courtesy=defect.courtesy)
    found = explore(scenario, defect.bounds)
    record_property("schedules", found.schedules)
    assert found.violation is None, told(scenario, found.violation)
