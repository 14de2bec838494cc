"""Namespaces and listings as clients of the Iceberg catalog see them: by the library, and by the endpoint."""

from __future__ import annotations

from typing import Any

from pyiceberg.exceptions import NamespaceAlreadyExistsError, NamespaceNotEmptyError, NoSuchNamespaceError

from tests.model.operations.base import Args, Draw, Operation, World, refuse_unless, timed
from tests.model.operations.iceberg import tables_of

REFUSALS = (NamespaceAlreadyExistsError, NamespaceNotEmptyError, NoSuchNamespaceError)


class Namespaces(Operation):
    """One request about a namespace."""

    weight = 2
    uses = (
        "GET /v1/{prefix}/namespaces",
        "POST /v1/{prefix}/namespaces",
        "GET /v1/{prefix}/namespaces/{namespace}",
        "HEAD /v1/{prefix}/namespaces/{namespace}",
        "DELETE /v1/{prefix}/namespaces/{namespace}",
        "POST /v1/{prefix}/namespaces/{namespace}/properties",
        "GET /v1/{prefix}/namespaces/{namespace}/views",
    )

    def draw(self, draw: Draw) -> Args | None:
        """Of one of a few names, whether it is there or not."""
        if not draw.world.size.tables:
            return None
        what = draw.pick({"create": 2, "drop": 1, "update": 2, "load": 1, "list": 1})
        return {"what": what, "name": f"n{draw.chance.randrange(8)}", "by": draw.pick({"library": 1, "endpoint": 2})}

    def do(self, world: World, args: Args) -> str:
        """Send it, and compare what is answered, or what became of it."""
        what, name, now = args["what"], args["name"], world.model.now.content
        if world.model.now.frozen and what in {"create", "drop", "update"}:
            return "frozen"
        key, mark = world.key("namespace", name), world.new_mark()
        with timed(world):
            tables = tables_of(world)
            catalog = tables.catalog(args)
            if what == "list":
                return self._list(world, catalog)
            try:
                found = tables.ask(lambda: getattr(self, f"_{what}")(catalog, name, mark))
            except REFUSALS as error:
                inside = [each for each in now if each != key and world.name_of(each)[1] == name]
                right = {"create": key in now, "drop": key not in now or inside}.get(what, key not in now)
                refuse_unless(right, f"{what} of namespace {name} was refused: {error}")
                return "refused"
        refuse_unless((key not in now) == (what == "create"), f"{what} of namespace {name} was done")
        if what == "load":
            refuse_unless(found == now[key], f"namespace {name} has the mark {found}, not {now[key]}")
            return "loaded"
        changes = {key: None if what == "drop" else mark}
        world.model.commit(world.model.newest + 1, {"commit", "bulk"}, changes, touched=frozenset(changes))
        return str(what)

    def _create(self, catalog: Any, name: str, mark: str) -> None:
        catalog.create_namespace(name, {"mark": mark})

    def _drop(self, catalog: Any, name: str, mark: str) -> None:
        catalog.drop_namespace(name)

    def _update(self, catalog: Any, name: str, mark: str) -> None:
        catalog.update_namespace_properties(name, updates={"mark": mark})

    def _load(self, catalog: Any, name: str, mark: str) -> Any:
        catalog.namespace_exists(name)
        return catalog.load_namespace_properties(name).get("mark", "")

    def _list(self, world: World, catalog: Any) -> str:
        now = world.model.now.content
        names = sorted(world.name_of(key)[1] for key in now if key[0] == "B")
        listed = sorted(each[0] for each in catalog.list_namespaces())
        refuse_unless(listed == names, f"the catalog lists {listed}, the model says {names}")
        for name in names[:2]:
            start = world.key("view", name)
            views = sorted(str(world.name_of(key)[2]) for key in now if key.startswith(start))
            found = sorted(each[-1] for each in catalog.list_views(name))
            refuse_unless(set(found) <= set(views), f"views of {name} are listed as {found}, and are {views}")
        return "listed"
