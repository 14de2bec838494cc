"""Registration of the tables of another Iceberg catalog, which lie beside the lakehouse and change there."""

from __future__ import annotations

from typing import Any, Final

from pyiceberg.catalog.sql import SqlCatalog

from pipelines import register
from tests.model.operations.base import (
    FAR,
    OUTDATED,
    REASON,
    Args,
    Draw,
    Operation,
    World,
    hooks,
    refuse_unless,
    timed,
)
from tests.support.icebergs import SCHEMA
from trinitylake_core.errors import AlreadyExists, LakehouseFrozen

NAMES: Final = ("t0", "t1", "t2")


def properties_of(world: World) -> dict[str, str]:
    """Return how PyIceberg opens the other catalog of a world."""
    place = world.directory / "far"
    place.mkdir(exist_ok=True)
    return {"type": "sql", "uri": f"sqlite:///{place}/catalog.db", "warehouse": f"file://{place}/tables"}


class Register(Operation):
    """One change of another catalog, or of what was registered; then the registration of that catalog."""

    weight = 3
    uses = ("register.run",)

    def draw(self, draw: Draw) -> Args | None:
        """A new table, another one of the same name, a changed one, or none."""
        if not draw.world.size.tables:
            return None
        args: Args = {
            "there": draw.pick({"make": 4, "replace": 1, "change": 4, "drop": 1, "nothing": 1}),
            "here": draw.pick({"nothing": 6, "drop": 1, "rename": 2, "create": 1}),
            "name": draw.chance.choice(NAMES),
            "to": draw.chance.choice(NAMES),
            "existing": draw.chance.choice(("refuse", "skip", "replace")),
        }
        return args | draw.between(prefer="register")

    def do(self, world: World, args: Args) -> str:
        """Change both, register, and compare what is there with what may be."""
        if not world.model.now.frozen:
            self._change_here(world, args)
        about = properties_of(world)
        with SqlCatalog("far", **{name: value for name, value in about.items() if name != "type"}) as source:
            self._change_there(source, args)
            wanted = {}
            for each in source.list_tables(FAR):
                table = source.load_table(each)
                wanted[world.key("table", *each)] = table.metadata_location
                world.uuids[table.metadata_location] = str(table.metadata.table_uuid)
        config = register.Config("far", about, existing=args["existing"], reason=REASON)
        between, hook = hooks(world, args)
        del hook["spark"]
        before, frozen = world.model.now.content, world.model.now.frozen
        taken = [key for key in wanted if key in before and not self._is_same(world, before[key], wanted[key])]
        must = frozen or (bool(taken) and args["existing"] == "refuse")
        try:
            with timed(world):
                report = register.run(world.lake, config, **hook)
        except (AlreadyExists, LakehouseFrozen, *OUTDATED) as error:
            refuse_unless(must or between.happened, f"a registration was refused: {type(error).__name__}: {error}")
            return "refused"
        after = report.registered.version_after
        if after is None:
            self._judge(world, args, wanted, before, {})
            return "nothing"
        refuse_unless(not must or between.happened, "a registration was done that has to be refused")
        found = world.content_of(after)
        now = world.model.now.content
        changes = {key: found.get(key) for key in wanted if found.get(key) != now.get(key)}
        self._judge(world, args, wanted, before, changes)
        if world.key("namespace", FAR) not in now:
            changes[world.key("namespace", FAR)] = ""
        world.model.commit(after, {"commit", "bulk"}, changes, touched=frozenset(changes))
        return "done"

    def _is_same(self, world: World, here: str, there: str) -> bool:
        """Whether a definition here and metadata there are one table."""
        return world.uuids.get(here) == world.uuids[there]

    def _judge(
        self, world: World, args: Args, wanted: dict[str, str], before: dict[str, str], changes: dict[str, str | None]
    ) -> None:
        """Compare each table of the other catalog with what it has to be here."""
        held = {world.uuids[mark]: key for key, mark in before.items() if mark in world.uuids}
        for key, location in wanted.items():
            was, now = before.get(key), changes.get(key, before.get(key))
            other = held.get(world.uuids[location], key) != key  # it is here by another name
            refuse_unless(now in {was, location}, f"{key} is {now}, was {was}, and is {location} there")
            if was is None or self._is_same(world, was, location):
                right = other or now == location
            else:
                right = (now == was) if args["existing"] != "replace" else (other or now == location)
            refuse_unless(right, f"{key} is {now}, was {was}, is {location} there, with {args['existing']}")
        after = {**before, **changes}
        marks = [world.uuids[mark] for mark in after.values() if mark in world.uuids]
        refuse_unless(len(marks) == len(set(marks)), "two tables here are one there")

    def _change_there(self, source: SqlCatalog, args: Args) -> None:
        name = (FAR, args["name"])
        source.create_namespace_if_not_exists(FAR)
        if args["there"] in {"drop", "replace"} and source.table_exists(name):
            source.drop_table(name)
        if args["there"] in {"make", "replace"} and not source.table_exists(name):
            source.create_table(name, SCHEMA)
        if args["there"] == "change" and source.table_exists(name):
            table: Any = source.load_table(name)
            with table.transaction() as change:
                change.set_properties(n=str(len(table.metadata.metadata_log)))

    def _change_here(self, world: World, args: Args) -> None:
        """Drop or rename what was registered, or make another table of the name."""
        what, now = args["here"], world.model.now.content
        key, to = (world.key("table", FAR, args[each]) for each in ("name", "to"))
        txn, name = world.lake.refresh().transaction(reason=REASON), args["name"]
        changes: dict[str, str | None] = {}
        if what == "drop" and key in now:
            txn.drop_table(FAR, name)
            changes = {key: None}
        elif what == "rename" and key in now and to not in now:
            txn.rename_table(FAR, name, FAR, args["to"])
            changes = {key: None, to: now[key]}
        elif what == "create" and key not in now and world.key("namespace", FAR) in now:
            mark = world.new_mark()
            txn.create_table(FAR, name, properties={"mark": mark})
            changes = {key: mark}
        if changes:
            txn.commit()
            world.model.commit(world.model.newest + 1, {"commit", "bulk"}, changes, touched=frozenset(changes))
            world.judge_new()
