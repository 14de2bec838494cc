"""Maintenance, recovery, loads and copies: by the library, by the jobs, and by the command line."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml

from pipelines import apply, clean, compaction, expire, export, load, mend, restore, rollback, snapshot, undo, upgrade
from pipelines.source.entries import parse_change
from tests.model import tree
from tests.model.model import Content, Version
from tests.model.operations.base import (
    OUTDATED,
    REASON,
    Args,
    Between,
    Draw,
    Operation,
    World,
    command,
    hooks,
    refuse_unless,
    timed,
    version_of,
)
from tests.model.operations.changes import draw_edits, refuse_homeless
from trinitylake_core import AlreadyExists, CommitConflict, InvalidInput, NamespaceNotEmpty, ObjectNotFound
from trinitylake_core.clock import now_millis
from trinitylake_core.errors import LakehouseFrozen, Refused, SnapshotNotFound

MONTH = 30 * 24 * 3600 * 1000
LOCAL = ("--engine", "local")


class Compact(Operation):
    """Compaction: the content stays; a full one leaves no message, and exact counts."""

    weight = 8
    uses = ("compaction.run", "trinitylake compact")

    def draw(self, draw: Draw) -> Args:
        """Full or not, by the job or the command."""
        args: Args = {"full": draw.share(0.4), "by": draw.pick({"job": 4, "command": 1})}
        return args if args["by"] == "command" else args | draw.between()

    def do(self, world: World, args: Args) -> str:
        """Compact."""
        full = args["full"]
        if args["by"] == "command":
            words = ["compact", world.root, *LOCAL, "--reason", REASON, *(["--full"] if full else [])]
            code, document = command(world, *words)
            refuse_unless(code == 0, f"compact ended with {code}: {document}")
            after, quiet = document["version_after"], True
        else:
            between, hook = hooks(world, args)
            with timed(world):
                report = compaction.run(
                    world.lake, compaction.Config(engine=world.size.engine, full=full, reason=REASON), **hook
                )
            after, quiet = report.version_after, not between.happened
        if after is None:
            messages, bounds = world.tree.all_messages, world.tree.system.get("count_bounds")
            wrong = full and quiet and (messages or "tables" not in world.tree.system)
            refuse_unless(not wrong, f"nothing to do, and {messages} messages wait, counts {bounds}")
            return "nothing"
        world.model.commit(after, {"compact"}, {}, settled=full and quiet)
        return "done"


class Expire(Operation):
    """Expiration: a prefix of the versions goes, and nothing that is kept."""

    weight = 2
    uses = ("expire.run", "trinitylake expire")

    def draw(self, draw: Draw) -> Args:
        """Keep some of the newest; by the command nothing is old enough."""
        by = draw.pick({"job": 9, "command": 1})
        args: Args = {"keep": draw.chance.choice((1, 2, 5, 20)), "by": by}
        return args if by == "command" else args | draw.between("clean", "expire", often=0.1)

    def do(self, world: World, args: Args) -> str:
        """Judge what is about to go once more, and expire."""
        model, keep = world.model, args["keep"]
        for number in range(model.boundary, max(model.boundary, model.newest - keep + 1)):
            world.judge_again(number)
        if args["by"] == "command":
            code, document = command(world, "expire", world.root, "--keep-last", str(keep), *LOCAL, "--yes")
            refuse_unless(code == 0, f"expire ended with {code}: {document}")
            refuse_unless(document["boundary_after"] == model.boundary, "versions expired within their time to live")
            return "nothing"
        before = model.newest
        between, hook = hooks(world, args)
        config = expire.Config(engine=world.size.engine, keep_last=keep, now_millis=now_millis() + MONTH)
        with timed(world):
            report = expire.run(world.lake.refresh(), config, **hook)
        after = report.boundary_after
        refuse_unless(model.boundary <= after <= max(model.boundary, before - keep + 1), f"the boundary became {after}")
        if report.version_after is not None:
            kept = dict(model.now.snapshots)
            model.commit(report.version_after, {"expire"}, {}, snapshots=kept)
        model.advance(after)
        gone = [each for each in range(after) if world.files.exists(tree.root_path(each))]
        refuse_unless(not gone or between.happened, f"roots {gone} are left below the boundary {after}")
        return "done" if report.versions_expired else "nothing"


class Clean(Operation):
    """Removal of orphans at age zero: what is needed stays, and nothing else."""

    weight = 4
    uses = ("clean.run", "trinitylake clean")

    def draw(self, draw: Draw) -> Args | None:
        """At age zero, and oftener while something was written that no version names, and that may become one."""
        if draw.in_doubt() is not None and draw.share(0.8):
            return {"by": "job", **draw.between("expire", "clean", often=0.8, prefer="go_on")}
        if draw.share(0.5):
            return None
        by = draw.pick({"job": 4, "command": 1})
        return {"by": by} if by == "command" else {"by": by, **draw.between("expire", "clean", often=0.1)}

    def do(self, world: World, args: Args) -> str:
        """Clean, and look at the files."""
        quiet = True
        if args["by"] == "command":
            words = ("clean", world.root, "--older-than", "0s", "--allow-recent", *LOCAL, "--yes")
            code, document = command(world, *words)
            refuse_unless(code == 0, f"clean ended with {code}: {document}")
            after, young, failed = document["version_after"], document["young"]["files"], document["failed"]
        else:
            between, hook = hooks(world, args)
            config = clean.Config(engine=world.size.engine, older_than_seconds=0, allow_recent=True)
            with timed(world):
                report = clean.run(world.lake.refresh(), config, **hook)
            after, young, failed, quiet = report.version_after, report.young.files, report.failed, not between.happened
        refuse_unless(failed == 0, "files could not be deleted")
        if after is not None:
            world.model.commit(after, {"clean"}, {})
        world.judge_new()
        world.judge_files(young, cleaned=quiet)
        return "nothing" if after is None else "done"


def target_of(world: World, args: Args) -> tuple[dict[str, Any], int | None, Version | None]:
    """Return how a version is named, its number, and what it says; of a snapshot perhaps none that is retained."""
    model = world.model
    if args.get("snapshot") is not None and model.now.snapshots:
        names = [*model.now.snapshots]
        name = names[args["snapshot"] % len(names)]
        return {"snapshot": name}, None, model.snapshot_content[name]
    number = version_of(world, args)
    if args.get("timestamp"):
        rows = tree.parse("", world.files.read(tree.root_path(number))).system
        moment = world.lake.refresh().at(version=number).info().created_at
        refuse_unless(round(moment.timestamp() * 1000) == int(rows["created_at_millis"]), "a version has another time")
        return {"timestamp": moment.isoformat()}, number, model.versions[number]
    return {"version": number}, number, model.versions[number]


def draw_target(draw: Draw) -> Args:
    """Return a version by number, by time or by snapshot."""
    how = draw.pick({"version": 6, "timestamp": 1, "snapshot": 2})
    args: Args = {"back": draw.back()}
    if how == "snapshot":
        args["snapshot"] = draw.chance.randrange(9)
    elif how == "timestamp":
        args["timestamp"] = True
    return args


class Rollback(Operation):
    """Rollback: the newest version says what an older one says."""

    weight = 2
    uses = ("Lakehouse.rollback", "rollback.run", "trinitylake rollback", "Lakehouse.at")

    def draw(self, draw: Draw) -> Args:
        """To a version, a time or a snapshot."""
        by = draw.pick({"library": 1, "job": 2, "command": 1})
        args = draw_target(draw) | {"by": by, "force": draw.share(0.3)}
        return args | draw.between("expire", "clean") if by == "job" else args

    def do(self, world: World, args: Args) -> str:
        """Roll back."""
        named, number, said = target_of(world, args)
        model, base = world.model, world.model.newest
        assert said is not None
        force = args["force"]
        try:
            if args["by"] == "command":
                words = [f"--to-{name}={value}" for name, value in named.items()]
                words += ["--force"] if force else []
                code, document = command(world, "rollback", world.root, *words, "--reason", REASON, "--yes", *LOCAL)
                refuse_unless(code == 0 or (code == 2 and number == base), f"rollback ended with {code}: {document}")
                if code:
                    return "refused"
                after = document["version_after"]
            elif args["by"] == "library":
                with timed(world):
                    after = world.lake.refresh().rollback(**named, reason=REASON, force=force).version_after
            else:
                _, hook = hooks(world, args)
                config = rollback.Config(**named, reason=REASON, force=force, engine=world.size.engine)
                with timed(world):
                    after = rollback.run(world.lake.refresh(), config, **hook).version_after
        except InvalidInput:
            refuse_unless(number == base, f"a rollback to {named} was refused as wrong input")
            return "refused"
        except (*OUTDATED, AlreadyExists) as error:
            changed = any(each.touched is None or each.touched for each in model.since(base))
            lost = named.get("snapshot") is not None and named["snapshot"] not in model.now.snapshots
            refuse_unless((changed and not force) or lost, f"a rollback to {named} was refused: {error}")
            return "refused"
        roll_back(world, after, said)
        return "done"


def roll_back(world: World, after: int, said: Version) -> None:
    """Note a version with the content of another one: the snapshots and the freeze stay."""
    before = world.model.now
    changes: dict[str, str | None] = dict.fromkeys(before.content.keys() - said.content.keys())
    changes |= {key: mark for key, mark in said.content.items() if before.content.get(key) != mark}
    world.model.commit(after, {"rollback"}, changes, touched=None, properties=said.properties)


class Undo(Operation):
    """Undo of the newest version that changed objects."""

    weight = 1
    uses = ("undo.run", "trinitylake undo")

    def draw(self, draw: Draw) -> Args:
        """By the job or the command."""
        return {"by": draw.pick({"job": 1, "command": 1})}

    def do(self, world: World, args: Args) -> str:
        """Undo."""
        model = world.model
        quiet = {"compact", "snapshot", "expire", "clean", "abort", "alter"}
        changing = (n for n in range(model.newest, model.boundary, -1) if not quiet >= model.versions[n].operations)
        last = next(changing, None)
        if last is None or last - 1 not in model.versions:
            return "none"
        if args["by"] == "command":
            code, document = command(world, "undo", world.root, "--last", "--reason", REASON, "--yes", *LOCAL)
            refuse_unless(code == 0, f"undo of version {last} ended with {code}: {document}")
            after = document["rollback"]["version_after"] if "rollback" in document else document["version_after"]
        else:
            with timed(world):
                config = undo.Config(last=True, reason=REASON, engine=world.size.engine)
                after = undo.run(world.lake.refresh(), config, world.spark).rollback.version_after
        roll_back(world, after, model.versions[last - 1])
        return "done"


def restored(now: Content, then: Content, world: World, patterns: list[str], *, exact: bool) -> Any:
    """Return what a restore leaves, or the error that it gets."""

    def matches(key: str) -> bool:
        _, namespace, name = world.name_of(key)
        label = namespace if name is None else f"{namespace}.{name}"
        return any(fnmatchcase(label, each) for each in patterns)

    for pattern in patterns:
        if not any(fnmatchcase(_label(world, key), pattern) for key in (*now, *then)):
            return ObjectNotFound
    found = now | {key: mark for key, mark in then.items() if matches(key)}
    if exact:
        found = {key: mark for key, mark in found.items() if key in then or not matches(key)}
    for key in list(found):
        space = world.key("namespace", world.name_of(key)[1])
        if space not in found:
            if key not in then or not matches(key):
                return NamespaceNotEmpty
            found[space] = then[space]
    return found


def shared_identities(world: World, content: Any) -> set[str]:
    """Return the UUIDs that two tables of a version have; none where no version comes of it."""
    if world.tables is None or isinstance(content, type):
        return set()
    states = world.tables.judge.states
    uuids = Counter(states[mark].uuid for mark in content.values() if mark in states)
    return {uuid for uuid, count in uuids.items() if count > 1}


def _label(world: World, key: str) -> str:
    _, namespace, name = world.name_of(key)
    return namespace if name is None else f"{namespace}.{name}"


class Restore(Operation):
    """Restore of some objects: they are as they were, and all else stays."""

    weight = 2
    uses = ("Lakehouse.restore", "restore.run", "trinitylake restore")

    def draw(self, draw: Draw) -> Args:
        """By patterns with and without wildcards."""
        key = draw.pivot() or draw.existing() or draw.fresh()
        _, namespace, name = draw.world.name_of(key)
        name = name or "t1"
        pattern = draw.chance.choice(
            (f"{namespace}.*", namespace, f"{namespace}.{name}", f"{namespace}.{name[:1]}*", f"{namespace}.{name}?")
        )
        by = draw.pick({"library": 1, "job": 2, "command": 1})
        args = draw_target(draw) | {"only": [pattern], "exact": draw.share(0.4), "by": by}
        return args | draw.between("expire", "clean") if by == "job" else args

    def do(self, world: World, args: Args) -> str:
        """Restore."""
        named, _, said = target_of(world, args)
        model, base, only, exact = world.model, world.model.newest, args["only"], args["exact"]
        assert said is not None
        before = model.now
        expected = restored(before.content, said.content, world, only, exact=exact)
        is_job = args["by"] != "library"  # the library brings back what it is told
        if is_job and shared_identities(world, expected) - shared_identities(world, before.content):
            expected = Refused
        wrong = isinstance(expected, type)
        happened = False
        try:
            if args["by"] == "command":
                words = [f"--{name}={value}" for name, value in named.items()] + [f"--only={each}" for each in only]
                words += ["--exact"] if exact else []
                code, document = command(world, "restore", world.root, *words, "--reason", REASON, "--yes", *LOCAL)
                refuse_unless((code != 0) == wrong, f"restore ended with {code}: {document}, expected {expected}")
                if code:
                    return "refused"
                after = document["version_after"]
            elif args["by"] == "library":
                with timed(world):
                    plan = world.lake.refresh().restore(only, **named, reason=REASON, exact=exact)
                after = plan.version_after
            else:
                between, hook = hooks(world, args)
                config = restore.Config(only=only, **named, reason=REASON, exact=exact, engine=world.size.engine)
                with timed(world):
                    after = restore.run(world.lake.refresh(), config, **hook).version_after
                happened = between.happened
        except (ObjectNotFound, NamespaceNotEmpty, Refused, *OUTDATED) as error:
            changed = any(each.touched is None or each.touched for each in model.since(base))
            lost = named.get("snapshot") is not None and named["snapshot"] not in model.now.snapshots
            outdated = isinstance(error, OUTDATED) and (changed or lost)
            refuse_unless(wrong or outdated, f"a restore of {only} from {named} was refused: {error}")
            return "refused"
        refuse_unless(not wrong, f"a restore of {only} from {named} was done, expected {expected}")
        changes: dict[str, str | None] = dict.fromkeys(before.content.keys() - expected.keys())
        changes |= {key: mark for key, mark in expected.items() if before.content.get(key) != mark}
        if after is None:
            refuse_unless(not changes or happened, f"nothing to restore, and {len(changes)} objects differ")
            return "nothing"
        refuse_homeless(world, changes)
        touched = {
            key for key in (*before.content, *said.content) if any(fnmatchcase(_label(world, key), p) for p in only)
        }
        model.commit(after, {"restore", "bulk"}, changes, touched=frozenset(touched | changes.keys()))
        return "done"


class Snapshot(Operation):
    """A name for a version; or one less."""

    weight = 2
    uses = ("Lakehouse.create_snapshot", "Lakehouse.drop_snapshot", "trinitylake snapshot create",
            "trinitylake snapshot drop", "trinitylake snapshot list", "Lakehouse.snapshots")  # fmt: skip

    def draw(self, draw: Draw) -> Args:
        """Of any version that is kept."""
        drop = draw.share(0.3)
        kind = draw.chance.choice(("minimal", "partial"))
        return {"drop": drop, "name": f"s{draw.chance.randrange(6)}", "back": draw.back(), "kind": kind,
                "by": draw.pick({"library": 3, "command": 1})}  # fmt: skip

    def do(self, world: World, args: Args) -> str:
        """Create it, or drop it."""
        model, name = world.model, args["name"]
        there = dict(model.now.snapshots)
        by_command = args["by"] == "command"
        lake = world.lake.refresh()
        if args["drop"]:
            must = name in there
            if by_command:
                code, document = command(world, "snapshot", "drop", world.root, name, "--reason", REASON)
                refuse_unless((code == 0) == must, f"snapshot drop {name} ended with {code}: {document}")
                done = code == 0
            else:
                done, _ = world.try_to(lambda: lake.drop_snapshot(name, reason=REASON), [SnapshotNotFound], must=must)
            there.pop(name, None)
        else:
            number = version_of(world, args)
            must = name not in there
            if by_command:
                words = (
                    "snapshot",
                    "create",
                    world.root,
                    name,
                    f"--version={number}",
                    f"--kind={args['kind']}",
                    *LOCAL,
                )
                code, document = command(world, *words)
                refuse_unless((code == 0) == must, f"snapshot create {name} ended with {code}: {document}")
                done = code == 0
            else:
                done, _ = world.try_to(
                    lambda: lake.create_snapshot(name, version=number, kind=args["kind"], reason=REASON),
                    [AlreadyExists],
                    must=must,
                )
            if done:
                there[name] = number
                model.snapshot_content[name] = model.versions[number]
        if not done:
            return "refused"
        model.commit(model.newest + 1, {"snapshot"}, {}, snapshots=there)
        world.judge_new()
        names = [each.name for each in world.lake.refresh().snapshots()]
        refuse_unless(sorted(names) == sorted(there), f"snapshots {names}, the model says {sorted(there)}")
        return "dropped" if args["drop"] else "done"


class SnapshotPolicies(Operation):
    """The snapshots that policies ask for at some hour: one for each period, of which the newest stay."""

    weight = 2
    uses = ("snapshot.run",)

    def draw(self, draw: Draw) -> Args:
        """Hours go on and back; some periods have no policy."""
        keep = {each: draw.chance.choice((1, 2, 3)) for each in ("hourly", "daily", "weekly", "monthly", "yearly")}
        for each in draw.chance.sample(sorted(keep), 3):
            del keep[each]
        return {
            "keep": keep,
            "hour": draw.chance.choice((1, 20, 1000, 20_000)) * draw.chance.randrange(9),
        } | draw.between()

    def do(self, world: World, args: Args) -> str:
        """Ask for them, and compare what is there."""
        model, now = world.model, datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=args["hour"])
        there, base = dict(model.now.snapshots), model.newest
        create, drop = [], []
        for period, keep in args["keep"].items():
            name = f"{period}-{name_period(period, now)}"
            held = {each for each in there if each.startswith(f"{period}-") and each <= name}
            kept = sorted(held | {name})[-keep:]
            create += [name] if name not in held else []
            drop += sorted(held - {*kept})
        between, hook = hooks(world, args)
        del hook["spark"]
        with timed(world):
            report = snapshot.run(world.lake, args["keep"], now, reason=REASON, **hook)
        refuse_unless([*report.due.create] == create, f"snapshots due are {report.due.create}, and not {create}")
        refuse_unless(
            [*report.due.drop] == sorted(drop), f"to be dropped are {report.due.drop}, and not {sorted(drop)}"
        )
        self._note(world, base, [*report.created], [*report.dropped])
        if not between.happened:
            refuse_unless((report.created, report.dropped) == (report.due.create, report.due.drop), f"done: {report}")
        if not (create or drop):
            return "nothing"
        refuse_unless(report.version_after == model.newest, f"the newest is {model.newest}, not {report.version_after}")
        return "done"

    def _note(self, world: World, base: int, created: list[str], dropped: list[str]) -> None:
        """Note a version for each name."""
        model = world.model
        for name in created:
            model.snapshot_content[name] = model.versions[base]
            model.commit(model.newest + 1, {"snapshot"}, {}, snapshots={**model.now.snapshots, name: base})
        for name in dropped:
            left = {each: number for each, number in model.now.snapshots.items() if each != name}
            model.commit(model.newest + 1, {"snapshot"}, {}, snapshots=left)


def name_period(period: str, now: datetime) -> str:
    """Return what a period is called, after its kind."""
    year, week, _ = now.isocalendar()
    names = {"weekly": f"{year}-W{week:02}", "yearly": f"{now.year:04}", "monthly": f"{now:%Y-%m}"}
    return names.get(period) or f"{now.date()}" + (f"T{now.hour:02}" if period == "hourly" else "")


class Freeze(Operation):
    """Freeze and thaw: ordinary commits are refused in between."""

    weight = 4
    uses = ("Lakehouse.freeze", "Lakehouse.thaw", "trinitylake freeze", "trinitylake thaw", "Lakehouse.frozen")

    def draw(self, draw: Draw) -> Args | None:
        """Thaw soon where it is frozen; freeze rarely, but for the moment in which another one commits."""
        frozen = draw.world.model.now.frozen
        if not frozen and not draw.nested and draw.share(0.8):
            return None
        return {"thaw": draw.share(0.95 if frozen else 0.1), "by": draw.pick({"library": 3, "command": 1})}

    def do(self, world: World, args: Args) -> str:
        """Freeze, or thaw."""
        model, thaw, lake = world.model, args["thaw"], world.lake.refresh()
        nothing = thaw and not model.now.frozen
        if args["by"] == "command":
            code, document = command(world, "thaw" if thaw else "freeze", world.root, "--reason", REASON)
            refuse_unless(code == 0, f"freeze or thaw ended with {code}: {document}")
        elif thaw:
            with timed(world):
                lake.thaw(reason=REASON)
        else:
            with timed(world):
                lake.freeze(reason=REASON)
        if nothing:
            return "nothing"
        model.commit(model.newest + 1, {"alter"}, {}, frozen=not thaw)
        refuse_unless((world.lake.refresh().frozen is not None) != thaw, "frozen, and the model says thawed")
        return "thawed" if thaw else "frozen"


class Alter(Operation):
    """Properties of the lakehouse, and a mending of fences that need none."""

    weight = 2
    uses = ("Lakehouse.alter", "trinitylake alter", "mend.run", "trinitylake mend")

    def draw(self, draw: Draw) -> Args:
        """Set, remove or mend."""
        what = draw.pick({"set": 5, "unset": 2, "mend": 1})
        by = draw.pick({"library": 3, "command": 1})
        args: Args = {"what": what, "name": f"p{draw.chance.randrange(3)}", "by": by}
        return args | draw.between(prefer="alter") if what in {"set", "unset"} and by == "library" else args

    def do(self, world: World, args: Args) -> str:
        """Alter."""
        model, what, by_command, lake = world.model, args["what"], args["by"] == "command", world.lake.refresh()
        if what == "mend":
            done, report = world.try_to(
                lambda: mend.run(lake, mend.Config(reason=REASON)), [Refused, InvalidInput], must=None
            )
            refuse_unless(not done or report.version_after is None, "a fence was mended that is not in the future")
            return "nothing"
        value, happened = (world.new_mark() if what == "set" else None), False
        if by_command:
            words = [f"--set={args['name']}={value}"] if value else [f"--unset={args['name']}"]
            code, document = command(world, "alter", world.root, *words, "--reason", REASON)
            refuse_unless(code == 0, f"alter ended with {code}: {document}")
        else:
            between = Between(world, args.get("between"))
            with timed(world):
                lake.alter({args["name"]: value}, reason=REASON, before_commit=between.check)
            happened = between.happened
        properties = {name: each for name, each in model.now.properties.items() if name != args["name"]}
        if value is not None:
            properties[args["name"]] = value
        if properties == model.now.properties and not happened:  # else another one did the same a moment before
            return "nothing"
        model.commit(model.newest + 1, {"alter"}, {}, properties=properties)
        return "done"


class Load(Operation):
    """A bulk load: what is there is refused, skipped or replaced."""

    weight = 3
    uses = ("load.run", "trinitylake load")

    def draw(self, draw: Draw) -> Args:
        """Some objects by name, or many neighbours."""
        objects = []
        for _ in range(draw.chance.choice((1, 2, 5))):
            objects.append(draw.object())
        args: Args = {"existing": draw.pick({"refuse": 1, "skip": 2, "replace": 2}), "objects": objects,
                      "by": draw.pick({"job": 4, "command": 1})}  # fmt: skip
        if draw.share(0.3):
            count = draw.chance.choice((10, 100, max(30, draw.world.size.objects // 2)))
            args["many"] = [draw.namespace(), draw.chance.random(), count]
        return args if args["by"] == "command" else args | draw.between("clean", "expire", often=0.35)

    def do(self, world: World, args: Args) -> str:
        """Write the source, and load it."""
        model, existing = world.model, args["existing"]
        base = model.newest
        items, lines = self._source(world, args)
        source = world.directory / "source.jsonl"
        source.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        before, happened = model.now.content, False
        homes = {world.key("namespace", world.name_of(key)[1]) for key in items}
        there = items.keys() & before.keys()
        wrong = model.now.frozen or not all(each in items or each in before for each in homes)
        wrong = wrong or (existing == "refuse" and bool(there))
        try:
            if args["by"] == "command":
                words = ("load", world.root, str(source), "--existing", existing, "--reason", REASON, *LOCAL)
                code, document = command(world, *words)
                refuse_unless((code != 0) == wrong, f"load ended with {code}: {document}")
                if code:
                    return "refused"
                after, added, replaced, skipped = (
                    document[n] for n in ("version_after", "added", "replaced", "skipped")
                )
            else:
                between, hook = hooks(world, args)
                config = load.Config(existing=existing, engine=world.size.engine, reason=REASON)
                with timed(world):
                    report = load.run(world.lake, source.as_uri(), config, **hook)
                after, happened = report.version_after, between.happened
                added, replaced, skipped = report.added, report.replaced, report.skipped
        except (AlreadyExists, ObjectNotFound, LakehouseFrozen, CommitConflict) as error:
            refuse_unless(wrong or model.newest > base, f"a load was refused: {error}")
            return "refused"
        refuse_unless(not wrong or happened, "a load was done that has to be refused")
        if after is None:
            refuse_unless(existing == "skip" and there == items.keys(), "nothing was loaded")
            return "nothing"
        now = model.now.content
        there = items.keys() & now.keys()
        counted = (len(items) - len(there), len(there) * (existing == "replace"), len(there) * (existing == "skip"))
        said = (added, replaced, skipped)
        refuse_unless(said == counted, f"added, replaced, skipped are {said} by the report of version {after}, "
                      f"and {counted} by the version before it")  # fmt: skip
        changes: dict[str, str | None] = {
            key: mark for key, mark in items.items() if existing != "skip" or key not in there
        }
        model.commit(after, {"load"}, changes, touched=None)
        refuse_homeless(world, changes)
        return existing

    def _source(self, world: World, args: Args) -> tuple[dict[str, str], list[Any]]:
        names = [tuple(each) for each in args["objects"]]
        if "many" in args:
            namespace, start, count = args["many"]
            first = int(start * 3 * world.size.objects)
            names += [("table", namespace, f"t{first + number}") for number in range(count)]
        items: dict[str, str] = {}
        lines = []
        for kind, namespace, name in dict.fromkeys(names):
            mark = world.new_mark()
            items[world.key(kind, namespace, name)] = mark
            about = {"namespace": namespace, "properties": {"mark": mark}} | ({} if name is None else {"name": name})
            if kind == "view":
                about["sql"] = "SELECT 1"
            lines.append({f"create_{kind}": about})
        return items, lines


class Apply(Operation):
    """A list of changes in a file, all or none."""

    weight = 2
    uses = ("apply.run", "trinitylake apply", "trinitylake rename")

    def draw(self, draw: Draw) -> Args:
        """Creations, changes and drops, which may be wrong."""
        edits = [
            each for each in draw_edits(draw, draw.chance.choice((1, 2, 4))) if each[0] in {"create", "alter", "drop"}
        ]
        return {"edits": edits, "by": draw.pick({"job": 2, "command": 1})} if edits else {"edits": [], "by": "rename",
                "object": draw.object(), "to": draw.object()}  # fmt: skip

    def do(self, world: World, args: Args) -> str:
        """Apply."""
        if args["by"] == "rename":
            return self._rename(world, args["object"], args["to"])
        model = world.model
        view, touched, entries, wrong = dict(model.now.content), set[str](), [], False
        for edit in args["edits"]:
            entry, error = self._entry(world, view, touched, edit)
            entries.append(entry)
            wrong = wrong or error
        wrong = wrong or model.now.frozen
        refusals = (AlreadyExists, ObjectNotFound, NamespaceNotEmpty, LakehouseFrozen, InvalidInput)
        if args["by"] == "command":
            file = world.directory / "changes.yaml"
            file.write_text(yaml.safe_dump(entries, allow_unicode=True), encoding="utf-8")
            code, document = command(world, "apply", world.root, str(file), "--reason", REASON)
            refuse_unless((code != 0) == wrong, f"apply ended with {code}: {document}")
            done, after = code == 0, document.get("version_after")
        else:
            changes = [parse_change(f"entry {number}", entry) for number, entry in enumerate(entries)]
            lake = world.lake.refresh()
            done, report = world.try_to(lambda: apply.run(lake, changes, reason=REASON), refusals, must=not wrong)
            after = report.version_after if done else None
        if not done:
            return "refused"
        if not touched:
            refuse_unless(after in {None, model.newest}, f"nothing was changed, and version {after} committed")
            return "nothing"
        model.commit(after, {"commit", "bulk"}, {key: view.get(key) for key in touched}, touched=frozenset(touched))
        return "done"

    def _entry(self, world: World, view: Content, touched: set[str], edit: list[Any]) -> tuple[Any, bool]:
        """Return one entry, and whether it is wrong; change what the transaction sees."""
        what, kind, namespace, name = edit[:4]
        key, space = world.key(kind, namespace, name), world.key("namespace", namespace)
        about = {"namespace": namespace} | ({} if name is None else {"name": name})
        inside = [each for each in view if name is None and each != key and world.name_of(each)[1] == namespace]
        if what == "drop":
            cascade = len(edit) > 4
            if cascade:
                about["cascade"] = True
            wrong = key not in view or (bool(inside) and not cascade)
            gone = [] if wrong else [*inside, key]
            for each in gone:
                del view[each]
            touched.update(gone)
            return {f"drop_{kind}": about}, wrong
        mark = world.new_mark()
        about["properties"] = {"mark": mark}
        if what == "create":
            wrong = key in view or (name is not None and space not in view)
            if kind == "view":
                about["sql"] = "SELECT 1"
        else:
            wrong = key not in view
        if not wrong:
            view[key] = mark
            touched.add(key)
        verb = "replace" if (what, kind) == ("alter", "view") else what
        return {f"{verb}_{kind}": about}, wrong

    def _rename(self, world: World, old: list[Any], new: list[Any]) -> str:
        kind, namespace, name = old
        if kind == "namespace" or not new[2]:
            return "none"
        model, now = world.model, world.model.now.content
        old_key, new_key = world.key(kind, namespace, name), world.key(kind, new[1], new[2])
        wrong = old_key not in now or new_key in now or world.key("namespace", new[1]) not in now or model.now.frozen
        other = {"table": "view", "view": "table"}[kind]
        wrong = (
            wrong or world.key(other, new[1], new[2]) in now
        )  # the command refuses a name that a client may not tell apart
        words = ("--kind", kind, "--namespace", namespace, "--to-namespace", new[1], "--reason", REASON)
        code, document = command(world, "rename", world.root, name, new[2], *words)
        refuse_unless((code != 0) == wrong, f"rename ended with {code}: {document}")
        if code:
            return "refused"
        changes = {new_key: now[old_key], old_key: None}
        model.commit(document["version_after"], {"commit", "bulk"}, changes, touched=frozenset(changes))
        return "renamed"


class Export(Operation):
    """Copies: one version, or the history, again and again; opened elsewhere."""

    weight = 1
    uses = ("export.run", "trinitylake export", "upgrade.run", "trinitylake upgrade")

    def draw(self, draw: Draw) -> Args:
        """The history to one place, or one version to a new one."""
        what = draw.pick({"history": 2, "version": 2, "upgrade": 1})
        return {"what": what, "back": draw.back(), "by": draw.pick({"job": 3, "command": 1})}

    def do(self, world: World, args: Args) -> str:
        """Copy, and judge the copy."""
        model, what = world.model, args["what"]
        number = version_of(world, args) if what == "version" else model.newest
        target = world.directory / f"copy-{what}"
        if what != "history":
            shutil.rmtree(target, ignore_errors=True)
        if what == "upgrade":
            return self._upgrade(world, target)
        history = what == "history"
        if history and world.copies.get("history", model.newest) < model.boundary:
            shutil.rmtree(target, ignore_errors=True)  # nothing proves any more that it is a copy: the product refuses
        if args["by"] == "command":
            words = ["--history"] if history else [f"--version={number}"]
            options = ("--target-storage-option", "durable=false")
            code, document = command(world, "export", world.root, str(target), *words, *options, *LOCAL)
            refuse_unless(code == 0, f"export ended with {code}: {document}")
        else:
            config = export.Config(version=None if history else number, history=history, engine=world.size.engine)
            with timed(world):
                export.run(world.lake.refresh(), target.as_uri(), config, world.spark, storage_options=world.options)
        if history:
            world.copies["history"] = model.newest
        for each in range(model.boundary, model.newest + 1) if history else (number,):
            if each in {number, model.boundary}:
                world.judge_copy(target, each, model.versions[each].content)
        return what

    def _upgrade(self, world: World, target: Path) -> str:
        with timed(world):
            report = upgrade.run(world.lake.refresh(), target.as_uri(), upgrade.Config(engine=world.size.engine),
                                 world.spark, storage_options=world.options)  # fmt: skip
        assert report.version is not None
        world.judge_copy(target, report.version, world.model.now.content)
        return "upgraded"
