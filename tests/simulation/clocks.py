"""Processes whose clock, or whose storage's clock, is wrong for a moment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from pipelines import clean, expire, rollback, tables_clean
from tests.simulation.common import OUTDATED, Action, Kind, note_made
from tests.simulation.ground import TARGET
from tests.simulation.schedule import DURATIONS
from tests.simulation.scheduler import acting
from tests.simulation.store import SimStorage
from tests.simulation.world import World
from trinitylake_core import Lakehouse
from trinitylake_core.errors import ClocksDisagree

YEAR: Final = 12 * DURATIONS["month"]
AGED: Final = 3 * 86_400
"""The safety age of the cleanings here, in seconds."""
EXPIRY: Final = 90 * 86_400


def _misled(prepare: Callable[[World, Lakehouse], Action]) -> Callable[[World], Action]:
    """Return a function that prepares a process to which the storage's clock seems to be a year ahead, once."""

    def misled(world: World) -> Action:
        world.bring_rows()
        lake = world.handle_of_rows()
        lake.storage.ahead_once = YEAR  # type: ignore[attr-defined]
        return prepare(world, lake)

    return misled


def _hasty(prepare: Callable[[World, Lakehouse], Action]) -> Callable[[World], Action]:
    """Return a function that prepares a process whose own clock is a year ahead from its first request on."""

    def hasty(world: World) -> Action:
        world.bring_rows()
        action = prepare(world, world.handle_of_rows())

        def act() -> object:
            acting().ahead_millis = YEAR
            return action()

        return act

    return hasty


def _clean(world: World, lake: Lakehouse) -> Action:
    del world
    return lambda: clean.run(lake, clean.Config(engine="local", older_than_seconds=AGED)).deleted


def _clean_tables(world: World, lake: Lakehouse) -> Action:
    data = next(path for path in sorted(world.rows) if "/data/" in path)
    world.store.put("put", f"{data.rpartition('/')[0]}/left-over.parquet", b"by a writer that is not done")
    return lambda: tables_clean.run(lake, tables_clean.Config(engine="local", older_than_seconds=AGED)).deleted


def _expire(world: World, lake: Lakehouse) -> Action:
    config = expire.Config(engine="local", keep_last=1, older_than_seconds=EXPIRY)
    return lambda: note_made(world, expire.run(lake, config).version_after)


def _recover(world: World, lake: Lakehouse) -> Action:
    """Roll back over a newest root that cannot be read, which makes everything void that no version reaches."""
    world.damage(world.newest.number)
    world.rollback_target = TARGET
    lake = Lakehouse.open(lake.storage, damaged=True)
    assert isinstance(lake.storage, SimStorage)
    lake.storage.ahead_once = YEAR
    config = rollback.Config(version=TARGET, reason="simulated", engine="local", force=True)
    return lambda: note_made(world, rollback.run(lake, config).version_after)


_MAY_RAISE: Final = (*OUTDATED, ClocksDisagree)
CLOCKS: Final[Mapping[str, Kind]] = {
    "clean-misled": Kind(_misled(_clean), _MAY_RAISE),
    "tables-clean-misled": Kind(_misled(_clean_tables), _MAY_RAISE),
    "recover-misled": Kind(_misled(_recover), _MAY_RAISE),
    "clean-hasty": Kind(_hasty(_clean), _MAY_RAISE),
    "tables-clean-hasty": Kind(_hasty(_clean_tables), _MAY_RAISE),
    "expire-hasty": Kind(_hasty(_expire), _MAY_RAISE),
}
"""Kinds that a clock leads astray."""
AGES: Final = {"clean-aged": AGED, "expire-hasty": EXPIRY} | {kind: AGED for kind in CLOCKS if "clean" in kind}
"""How old what these kinds remove has to be, in seconds."""
