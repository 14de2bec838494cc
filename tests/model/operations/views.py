"""Views of the Iceberg catalog, and commits of several tables at once, as requests to the endpoint."""

from __future__ import annotations

from typing import Any, Final, NamedTuple
from urllib.parse import quote

import requests

from tests.model.operations.base import Args, Draw, Finding, Operation, World, refuse_unless, timed
from tests.model.operations.iceberg import NAMES, SPACE, is_table, is_taken, note, same, state_of, tables_of

SPACES: Final = ("n0", "n1", SPACE)
NAMES_OF_VIEWS: Final = ("v0", "v1", "t0")
"""Of which one is a name that tables have, too."""
FROZEN: Final = 503


class Answer(NamedTuple):
    """What the endpoint answered."""

    status: int
    body: Any


def ask(world: World, method: str, path: str, body: Any = None) -> Answer:
    """Send one request; one whose outcome is unknown is sent again, as ``Tables.ask`` says."""
    tables = tables_of(world)
    uri, headers = f"{tables.served.uri}/v1/lake/{path}", {"Authorization": f"Bearer {tables.served.token}"}

    def send() -> Answer:
        got = requests.request(method, uri, json=body, headers=headers, timeout=60)
        answer = Answer(got.status_code, got.json() if got.content else None)
        if answer.status >= 500 and answer.status != FROZEN:
            raise Finding(f"{method} {path} is answered with {answer.status}: {got.text[:500]}")
        return answer

    with timed(world):
        return tables.ask(send)


def new_view(name: str, space: str, mark: str) -> Args:
    """Return the body of a request that creates a view."""
    query = {"type": "sql", "sql": f"SELECT 1 AS id -- {mark}", "dialect": "spark"}
    version = {
        "version-id": 1, "schema-id": 0, "timestamp-ms": 1_700_000_000_000, "summary": {},
        "representations": [query], "default-namespace": [space],
    }  # fmt: skip
    fields = [{"id": 1, "name": "id", "type": "int", "required": False}]
    schema = {"type": "struct", "schema-id": 0, "fields": fields}
    return {"name": name, "schema": schema, "view-version": version, "properties": {"mark": mark}}


def fits_a_path(name: str) -> bool:
    """Whether the endpoint takes a name: it refuses slashes and what nobody sees."""
    return "/" not in name and name.isprintable()


def route_of(space: str, name: str) -> str:
    """Return the path of a view in requests."""
    return f"namespaces/{space}/views/{quote(name, safe='')}"


class View(Operation):
    """One request about a view."""

    weight = 3
    uses = (
        "GET /v1/{prefix}/namespaces/{namespace}/views",
        "POST /v1/{prefix}/namespaces/{namespace}/views",
        "GET /v1/{prefix}/namespaces/{namespace}/views/{view}",
        "HEAD /v1/{prefix}/namespaces/{namespace}/views/{view}",
        "POST /v1/{prefix}/namespaces/{namespace}/views/{view}",
        "DELETE /v1/{prefix}/namespaces/{namespace}/views/{view}",
        "POST /v1/{prefix}/namespaces/{namespace}/register-view",
        "POST /v1/{prefix}/views/rename",
    )

    def draw(self, draw: Draw) -> Args | None:
        """Of one of a few names, whether it is there or not."""
        if not draw.world.size.tables:
            return None
        what = draw.pick({"create": 4, "replace": 3, "drop": 2, "rename": 2, "load": 2, "list": 1, "register": 1})
        named = [draw.world.name_of(key) for key in sorted(draw.world.model.now.content) if key[0] == "D"]
        there = [[space, name] for _, space, name in named if space in SPACES and fits_a_path(f"{name}")]
        place, to = ([draw.chance.choice(SPACES), draw.chance.choice(NAMES_OF_VIEWS)] for _ in range(2))
        if there and what != "create" and draw.share(0.7):
            place = draw.chance.choice(there)
        return {"what": what, "at": place, "to": to}

    def do(self, world: World, args: Args) -> str:
        """Send it, and compare the answer with the model."""
        what, (space, name) = args["what"], args["at"]
        reads = what in {"load", "list"}
        answer, right, changes = getattr(self, f"_{what}")(world, space, name, args["to"])
        if world.model.now.frozen and not reads:
            refuse_unless(answer.status >= 400, f"{what} of a view was done in a frozen lakehouse")
            return "frozen"
        about = f"{what} of view {space}.{name} is answered with {answer.status} and not {right}: {answer.body}"
        refuse_unless(answer.status == right, about)
        if right >= 400:
            return "refused"
        if changes:
            world.model.commit(world.model.newest + 1, {"commit", "bulk"}, changes, touched=frozenset(changes))
        return str(what)

    # Each returns the answer, the status that is right, and what is changed if that is done.

    def _create(self, world: World, space: str, name: str, to: list[str]) -> Any:
        mark, key = world.new_mark(), world.key("view", space, name)
        answer = ask(world, "POST", f"namespaces/{space}/views", new_view(name, space, mark))
        return answer, 200 if self._is_free(world, space, name) else self._refusal(world, space), {key: mark}

    def _is_free(self, world: World, space: str, name: str) -> bool:
        """Whether a namespace is there, and neither a view nor a table of the name."""
        return world.key("namespace", space) in world.model.now.content and not is_taken(world, name, space)

    def _refusal(self, world: World, space: str) -> int:
        return 409 if world.key("namespace", space) in world.model.now.content else 404

    def _replace(self, world: World, space: str, name: str, to: list[str]) -> Any:
        mark, key = world.new_mark(), world.key("view", space, name)
        there = key in world.model.now.content
        query = new_view(name, space, mark)
        version = {**query["view-version"], "version-id": 2, "timestamp-ms": 1_700_000_000_000 + world.model.newest}
        updates: list[Args] = [{"action": "set-properties", "updates": {"mark": mark}}]
        if mark[-1] in "02468":
            updates += [
                {"action": "add-view-version", "view-version": version},
                {"action": "set-current-view-version", "view-version-id": -1},
            ]
        answer = ask(world, "POST", route_of(space, name), {"requirements": [], "updates": updates})
        return answer, 200 if there else 404, {key: mark}

    def _drop(self, world: World, space: str, name: str, to: list[str]) -> Any:
        key = world.key("view", space, name)
        there = key in world.model.now.content
        answer = ask(world, "DELETE", route_of(space, name))
        return answer, 204 if there else 404, {key: None}

    def _rename(self, world: World, space: str, name: str, to: list[str]) -> Any:
        key, target, now = world.key("view", space, name), world.key("view", *to), world.model.now.content
        source, destination = ({"namespace": [at[0]], "name": at[1]} for at in ((space, name), to))
        answer = ask(world, "POST", "views/rename", {"source": source, "destination": destination})
        if key not in now:
            return answer, 404, {}
        right = 204 if self._is_free(world, *to) else self._refusal(world, to[0])
        return answer, right, {target: now[key], key: None}

    def _load(self, world: World, space: str, name: str, to: list[str]) -> Any:
        mark = world.model.now.content.get(world.key("view", space, name))
        path = route_of(space, name)
        there = ask(world, "HEAD", path).status
        refuse_unless(there == (404 if mark is None else 204), f"HEAD of view {space}.{name} is {there}")
        answer = ask(world, "GET", path)
        if answer.status == 200:
            read = answer.body["metadata"]["properties"].get("mark")
            refuse_unless(read == mark, f"view {space}.{name} has the mark {read}, not {mark}")
        return answer, 404 if mark is None else 200, {}

    def _list(self, world: World, space: str, name: str, to: list[str]) -> Any:
        answer = ask(world, "GET", f"namespaces/{space}/views")
        there = world.key("namespace", space) in world.model.now.content
        if answer.status == 200:
            start = world.key("view", space)
            right = sorted(str(world.name_of(key)[2]) for key in world.model.now.content if key.startswith(start))
            listed = sorted(each["name"] for each in answer.body["identifiers"])
            refuse_unless(listed == right, f"views of {space} are listed as {listed}, and are {right}")
        return answer, 200 if there else 404, {}

    def _register(self, world: World, space: str, name: str, to: list[str]) -> Any:
        """Register the metadata of a view that is there: no two have one file."""
        loaded = ask(world, "GET", route_of(*to))
        location = loaded.body["metadata-location"] if loaded.status == 200 else f"{world.root}/views/none.json"
        answer = ask(world, "POST", f"namespaces/{space}/register-view", {"name": name, "metadata-location": location})
        refuse_unless(answer.status >= 400, f"view {space}.{name} was registered from {location}")
        return answer, answer.status, {}


class CommitTables(Operation):
    """One commit of two tables: both are changed, or none."""

    weight = 1
    uses = ("POST /v1/{prefix}/transactions/commit",)

    def draw(self, draw: Draw) -> Args | None:
        """Two that are there; sometimes one requires what is not so."""
        there = [each for each in NAMES if is_table(draw.world, each)] if draw.world.size.tables else []
        if len(there) < 2:
            return None
        return {"names": draw.chance.sample(there, 2), "wrong": draw.share(0.3), "value": str(draw.chance.random())}

    def do(self, world: World, args: Args) -> str:
        """Send it, and look at both."""
        if not all(is_table(world, name) for name in args["names"]):
            return "none"
        changes = []
        for at, name in enumerate(args["names"]):
            uuid = "00000000-0000-4000-8000-000000000000" if args["wrong"] and at else state_of(world, name).uuid
            changes.append(
                {
                    "identifier": {"namespace": [SPACE], "name": name},
                    "requirements": [{"type": "assert-table-uuid", "uuid": uuid}],
                    "updates": [{"action": "set-properties", "updates": {"judge": args["value"]}}],
                }
            )
        answer = ask(world, "POST", "transactions/commit", {"table-changes": changes})
        if args["wrong"] or world.model.now.frozen:
            refuse_unless(answer.status >= 400, "a commit of two tables was done, and it had to be refused")
            return "refused"
        refuse_unless(answer.status == 204, f"a commit of two tables: {answer.status} {answer.body}")
        note(world, {"commit", "bulk"}, {name: same(world)[name] for name in args["names"]})
        return "done"
