"""Tables that share files, and commits that change one table twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from pyiceberg.table.update import SetPropertiesUpdate

from pipelines import compaction, expire, tables_clean
from tests.simulation.common import OUTDATED, TABLES, Action, Kind, catalog_with_rows, note_made, raise_ours
from tests.simulation.ground import ALSO, ROWS
from tests.simulation.schedule import DURATIONS
from tests.simulation.world import World
from tests.support.icebergs import rows
from trinitylake_core import Lakehouse


def _append_in_two_changes(world: World) -> Action:
    """A writer whose data file is written, and that commits a month later, with two changes of its table in one."""
    catalog = catalog_with_rows(world)
    table = catalog.load_table(ROWS)
    transaction = table.transaction()
    transaction.append(rows(3))
    requirements, updates = transaction._requirements, transaction._updates

    def act() -> str:
        time.sleep(DURATIONS["month"] / 1000)
        with catalog.transaction() as together:
            together.commit_table(together.load_table(ROWS), requirements, updates)
            owner = SetPropertiesUpdate(updates={"owner": "me"})
            together.commit_table(together.load_table(ROWS), (), (owner,))
        return "appended"

    return lambda: raise_ours(act)


def _copy_rows(world: World) -> Action:
    """A writer that a month ago read which files a table has, and adds them to another table now."""
    catalog = catalog_with_rows(world)
    file = _data_file(catalog.load_table(ROWS))

    def act() -> str:
        time.sleep(DURATIONS["month"] / 1000)
        catalog.load_table(ALSO).add_files([file], check_duplicate_files=False)
        return "copied"

    return lambda: raise_ours(act)


def _data_file(table: object) -> str:
    return str(table.inspect.files()["file_path"].to_pylist()[0])  # type: ignore[attr-defined]


def _let_expire(world: World, table: str) -> Callable[[], Lakehouse]:
    """Return an action that drops a table, and has every version that names it expire."""
    catalog, lake = catalog_with_rows(world), world.handle()

    def act() -> Lakehouse:
        raise_ours(lambda: catalog.drop_table(table))
        note_made(world, compaction.run(lake.refresh(), compaction.Config(engine="local")).version_after)
        time.sleep(DURATIONS["month"] / 1000)
        config = expire.Config(engine="local", keep_last=1)
        note_made(world, expire.run(lake.refresh(), config).version_after)
        return lake

    return act


def _clean_after_a_drop(world: World) -> Action:
    """Drop a table whose file another one names, too; when no version has it, clean tables."""
    drop = _let_expire(world, ROWS)
    config = tables_clean.Config(engine="local", older_than_seconds=0, allow_recent=True)
    return lambda: tables_clean.run(drop(), config).deleted


def _clean_in_doubt(world: World) -> Action:
    """The same where the other one's manifest list cannot be read: it may name any file."""
    act = _clean_after_a_drop(world)
    world.damage_manifest_list(ALSO)
    return act


SHARED_FILES: Final[Mapping[str, Kind]] = {
    "append-twice": Kind(_append_in_two_changes, (*TABLES, FileNotFoundError)),
    "add-file": Kind(_copy_rows, TABLES),
    "drop-clean": Kind(_clean_after_a_drop, (*TABLES, *OUTDATED)),
    "drop-clean-doubt": Kind(_clean_in_doubt, (*TABLES, *OUTDATED)),
}
"""Kinds that deal with files which several tables name, or several changes."""
