"""The product against itself: what it says of a version by one way and by another."""

from __future__ import annotations

from typing import Any

import mmh3

from pipelines import backup, diff, history, stats, verify
from tests.model.operations.base import Args, Draw, Operation, World, command, refuse_unless, timed
from trinitylake_core import Lakehouse, ObjectNotFound
from trinitylake_core.errors import VersionNotFound


class Look(Operation):
    """Lookups, listings and counts of a version, each beside the model."""

    weight = 6
    uses = (
        "Lakehouse.at", "Lakehouse.objects", "Lakehouse.tables", "Lakehouse.views", "Lakehouse.namespaces",
        "Lakehouse.table", "Lakehouse.view", "Lakehouse.namespace", "Lakehouse.table_info", "Lakehouse.view_info",
        "Lakehouse.namespace_info", "Lakehouse.count_objects", "Lakehouse.stats", "Lakehouse.digest", "Lakehouse.info",
        "Lakehouse.definition_of", "trinitylake ls", "trinitylake stats", "trinitylake show",
    )  # fmt: skip

    def draw(self, draw: Draw) -> Args:
        """Any version, and some objects."""
        return {"back": draw.back(), "objects": [draw.object() for _ in range(3)], "whole": draw.share(0.2),
                "command": draw.share(0.1)}  # fmt: skip

    def do(self, world: World, args: Args) -> str:
        """Look."""
        model = world.model
        number = max(model.boundary, model.newest - args["back"])
        content = model.versions[number].content
        with timed(world):
            lake = world.lake.refresh()
            lake = lake.at(version=number) if number != model.newest else lake
            for kind, namespace, name in args["objects"]:
                self._look_up(world, lake, content, kind, namespace, name)
            counts = lake.count_objects()
            said = lake.stats()
        held = tuple(sum(key[0] == kind for key in content) for kind in "BCD")
        counted = (counts.namespaces, counts.tables, counts.views)
        refuse_unless(counted == held, f"count_objects of version {number} is {counted}, and it holds {held}")
        if said.uncertain == 0 or said.uncertain is None:
            refuse_unless(
                said.tables in {None, held[1]}, f"stats of version {number}: {said.tables} tables, not {held[1]}"
            )
        else:
            refuse_unless(
                (said.tables or 0) >= held[1], f"stats: at most {said.tables} tables, and there are {held[1]}"
            )
        if args["whole"]:
            with timed(world):
                entries, digest = list(lake.objects()), lake.digest()
            keys = [entry.key for entry in entries]
            refuse_unless(
                keys == sorted(content), f"objects() of version {number}: {sorted(set(keys) ^ set(content))[:5]}"
            )
            parts = [f"{each.kind}\0{each.namespace}\0{each.name or ''}\0{each.path}" for each in entries]
            total = sum(mmh3.hash128(each, signed=False) for each in parts) % 2**128
            refuse_unless(digest == f"{total:032x}", f"digest() of version {number}: {digest}")
        if args["command"] and number == model.newest:
            self._by_command(world, content)
        return "whole" if args["whole"] else "done"

    def _look_up(
        self, world: World, lake: Lakehouse, content: dict[str, str], kind: str, namespace: str, name: str | None
    ) -> None:
        arguments = (namespace,) if name is None else (namespace, name)
        expected = content.get(world.key(kind, namespace, name))
        try:
            found = getattr(lake, kind)(*arguments).properties.get("mark")
        except ObjectNotFound:
            found = None
        refuse_unless(found == expected, f"{kind} {arguments} of version {lake.version}: {found}, not {expected}")
        if expected is not None:
            info: Any = getattr(lake, f"{kind}_info")(*arguments)
            refuse_unless(info.properties.get("mark") == expected, f"{kind}_info {arguments}: {info.properties}")
        if world.key("namespace", namespace) in content and kind != "namespace":
            start = world.key(kind, namespace)
            inside = sorted(str(world.name_of(key)[2]) for key in content if key.startswith(start))
            listed = lake.tables(namespace) if kind == "table" else lake.views(namespace)
            refuse_unless(
                listed == inside, f"{kind}s of {namespace} in version {lake.version}: {set(listed) ^ set(inside)}"
            )

    def _by_command(self, world: World, content: dict[str, str]) -> None:
        code, document = command(world, "stats", world.root, "--exact")
        refuse_unless(
            code == 0 and document["objects"] == len(content), f"stats --exact: {document}, not {len(content)}"
        )
        code, listed = command(world, "ls", world.root, "--kind", "table")
        names = sum(key[0] == "C" for key in content)
        rows = listed if isinstance(listed, list) else listed["objects"]
        refuse_unless(code == 0 and len(rows) == names, f"ls lists {len(rows)} tables, and there are {names}")


class Compare(Operation):
    """The difference of two versions."""

    weight = 3
    uses = ("Lakehouse.diff", "diff.run", "trinitylake diff")

    def draw(self, draw: Draw) -> Args:
        """Any two."""
        return {"back": draw.back(), "to": draw.back(), "by": draw.pick({"library": 6, "job": 1, "command": 1})}

    def do(self, world: World, args: Args) -> str:
        """Compare."""
        model = world.model
        a, b = (max(model.boundary, model.newest - args[name]) for name in ("back", "to"))
        lake = world.lake.refresh()
        if args["by"] == "command":
            code, document = command(world, "diff", world.root, str(a), str(b), "--engine", "local")
            refuse_unless(code == 0, f"diff ended with {code}: {document}")
            listed = [each["change"] for each in document["changes"]]
            found = {name: listed.count(name) for name in ("added", "removed")}
            old, new = model.versions[a].content, model.versions[b].content
            expected = {"added": len(new.keys() - old.keys()), "removed": len(old.keys() - new.keys())}
            refuse_unless(found == expected, f"diff {a} {b}: {found}, the model says {expected}")
            return "counted"
        with timed(world):
            if args["by"] == "job":
                config = diff.Config(engine=world.size.engine)
                changes = [*diff.run(lake.at(version=a), lake.at(version=b), config, world.spark)]
            else:
                changes = [*lake.diff(a, b)]
        old, new = model.versions[a].content, model.versions[b].content
        said = {each.key: each.change for each in changes}
        for key in old.keys() | new.keys():
            if key not in old or key not in new:
                right = {"added" if key in new else "removed"}
            else:
                right = {"changed"} if old[key] != new[key] else {"changed", None}
            refuse_unless(said.get(key) in right, f"diff {a} {b}: {key.rstrip()!r} is {said.get(key)}, not {right}")
        extra = said.keys() - old.keys() - new.keys()
        refuse_unless(not extra, f"diff {a} {b}: {sorted(extra)[:3]} are in neither")
        return "done"


class History(Operation):
    """The history, and versions that are not kept."""

    weight = 2
    uses = ("Lakehouse.history", "history.run", "trinitylake history")

    def do(self, world: World, args: Args) -> str:
        """List it."""
        model = world.model
        with timed(world):
            lake = world.lake.refresh()
            listed = [info.version for info in lake.history()]
            report = history.run(lake, history.Config(limit=5))
        kept = [*range(model.newest, model.boundary - 1, -1)]
        refuse_unless(listed == kept, f"history lists {listed[:3]}..{listed[-1:]}, kept are {kept[:1]}..{kept[-1:]}")
        refuse_unless([each.version for each in report.versions] == kept[:5], "the job lists other versions")
        for missing in (model.newest + 1, model.boundary - 1):
            if missing >= 0:
                world.try_to(lambda missing=missing: lake.at(version=missing), [VersionNotFound], must=False)  # type: ignore[misc]
        return "done"


class Verify(Operation):
    """The product's own verification finds nothing."""

    weight = 1
    uses = ("Lakehouse.check", "verify.run", "trinitylake verify", "stats.deep", "backup.run")

    def draw(self, draw: Draw) -> Args:
        """One version or all."""
        return {"what": draw.pick({"check": 3, "all": 3, "command": 1, "deep": 1, "backup": 1})}

    def do(self, world: World, args: Args) -> str:
        """Verify."""
        what, lake = args["what"], world.lake.refresh()
        if what == "check":
            with timed(world):
                found: list[Any] = [*lake.check(definitions=True)]
        elif what == "all":
            with timed(world):
                config = verify.Config(versions="all", definitions=True, engine=world.size.engine)
                found = verify.run(lake, config, world.spark).findings
        elif what == "deep":
            with timed(world):
                deep = stats.deep(lake)
            keys = sum(level.keys for level in deep.levels)
            refuse_unless(keys == world.tree.all_keys, f"stats --deep: {keys} keys, not {world.tree.all_keys}")
            found = []
        elif what == "backup":
            target = world.directory / "copy-history"
            if not target.exists():
                return "none"
            with timed(world):
                of = backup.Config(engine=world.size.engine)
                report = backup.run(lake, target.as_uri(), of, world.spark, storage_options=world.options)
            found = [] if report.ok else [each for each in report.problems if "version" not in each]
        else:
            code, document = command(world, "verify", world.root, "--definitions", "--engine", "local")
            found = [] if code == 0 else [document]
        refuse_unless(not found, f"the product finds {len(found)}: {found[:2]}")
        return what
