"""Iceberg tables: written by PyIceberg and by DuckDB, through the library and the endpoint; and the jobs of tables."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

import duckdb
import pyarrow as pa
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.types import StringType

from pipelines import register, tables_clean, tables_compact, tables_expire, tables_health
from pipelines.tables.compact.decision import GroupRules
from pipelines.tables.compact.model import Settings
from tests.model import tree
from tests.model.equality import delete_by_equality
from tests.model.operations.base import (
    REASON,
    Args,
    Draw,
    Finding,
    Operation,
    World,
    command,
    hooks,
    refuse_unless,
    timed,
)
from tests.model.tables import ROW_ID, UPDATED, Rows, State, TableJudge, describe
from tests.support.engines import connected
from tests.support.icebergs import SCHEMA, opened
from trinitylake_core import AlreadyExists
from trinitylake_core.errors import CommitConflict, InvalidInput, LakehouseFrozen
from trinitylake_core.rest import endpoint

T = TypeVar("T")
SPACE = "ice"
NAMES = ("t0", "t1", "t2", "t3")
NEEDS_SPARK = "needs engine 'spark'"
WITH_LINEAGE: Final = 3
"""The format version whose rows have IDs; its data are written by DuckDB, for PyIceberg writes none."""
assert register


class Tables:
    """The catalogs of a world, started by the first operation that needs them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.stack = ExitStack()
        self.judge = TableJudge(world.directory / "lake")
        self.library = opened(world.root)
        self._endpoint: Any = None
        self._duck: Any = None
        self.dropped: list[str] = []
        self.cleaned = False

    @property
    def served(self) -> Any:
        """The endpoint, in threads of this process."""
        if self._endpoint is None:
            self._endpoint = self.stack.enter_context(endpoint(self.library.lakehouse))
        return self._endpoint

    @property
    def client(self) -> Any:
        """PyIceberg's client of the endpoint."""
        return load_catalog("rest", **{"type": "rest", "warehouse": "lake", **self.served.properties()})

    @property
    def duck(self) -> Any:
        """DuckDB as a client of the endpoint."""
        if self._duck is None:
            self._duck = self.stack.enter_context(connected(self.served))
        return self._duck

    def catalog(self, args: Args) -> Any:
        """Return the catalog that an operation uses."""
        return self.client if args.get("by") == "endpoint" else self.library

    def ask(self, act: Callable[[], T]) -> T:
        """Ask a catalog for a change that may begin at the version which it saw last; ask again where that expired.

        A catalog that is as old as an expiration asks for the boundary before it creates a root. Here jobs expire
        versions of a moment ago, so the catalog may take the free name of one, and then says that nothing is known.
        """
        seen = self.library.lakehouse.version
        try:
            return act()
        except Exception as error:
            is_unknown = "CommitStateUnknown" in f"{type(error).__name__} {error}"
            if not is_unknown or seen >= self.world.model.boundary:
                raise
        refuse_unless(
            not self.world.files.exists(tree.root_path(self.world.model.newest + 1)), "an unknown outcome is a version"
        )
        return act()


def tables_of(world: World) -> Tables:
    """Return the catalogs of a world."""
    if world.tables is None:
        world.tables = Tables(world)
        world.closing.append(world.tables.stack.close)
    found: Tables = world.tables
    return found


def key_of(world: World, name: str) -> str:
    """Return the key of a table."""
    return world.key("table", SPACE, name)


def is_taken(world: World, name: str, space: str = SPACE) -> bool:
    """Whether a table or a view of a namespace has a name."""
    return any(world.key(kind, space, name) in world.model.now.content for kind in ("table", "view"))


def is_table(world: World, name: str) -> bool:
    """Whether a name is an Iceberg table in the newest version."""
    return "/" in world.model.now.content.get(key_of(world, name), "")


def state_of(world: World, name: str) -> State:
    """Return what the model says of a table in the newest version."""
    return tables_of(world).judge.states[world.model.now.content[key_of(world, name)]]


def note(world: World, operations: set[str], expected: dict[str, State | None], number: int | None = None) -> None:
    """Note a version that changed tables: read where they are now, and compare their rows with what is expected."""
    model = world.model
    number = model.newest + 1 if number is None else number
    path = tree.root_path(number)
    refuse_unless(world.files.exists(path), f"a table was changed, and there is no version {number}")
    content = world.judge.judge(path).content()
    prefix = world.key("table", SPACE)
    found = {key: world.mark_of(key, at) for key, at in content.items() if key.startswith(prefix)}
    before = {key: mark for key, mark in model.now.content.items() if key.startswith(prefix)}
    changes: dict[str, str | None] = {}
    for key in found.keys() | before.keys():
        if found.get(key) == before.get(key):
            continue
        name = str(world.name_of(key)[2])
        if name not in expected:
            raise Finding(f"version {number} changed table {name}, and nothing asked for it")
        changes[key] = found.get(key)
        judge_table(world, name, changes[key], expected[name])
    space = world.key("namespace", SPACE)
    if space not in model.now.content:
        changes[space] = ""
    model.commit(number, operations, changes, touched=frozenset(changes))


def judge_table(world: World, name: str, location: str | None, expected: State | None) -> None:
    """Compare the rows of a table, of its branches and tags, with the model; remember them."""
    judge = tables_of(world).judge
    if location is None or expected is None:
        if location is not None or expected is not None:
            raise Finding(f"table {name} is at {location}, the model says {expected}")
        return
    read = judge.read(location)
    known = judge.states.get(location)
    if known is not None and known.current != read.current:
        raise Finding(f"{location} says something else now")
    for what, rows, right in [("", read.current, expected.current)] + [
        (each, read.refs.get(each, Counter()), expected.refs.get(each, Counter()))
        for each in read.refs.keys() | expected.refs.keys()
    ]:
        if rows != right:
            more, less = rows - right, right - rows
            raise Finding(f"table {name} {what}: too much {describe(more)}; missing {describe(less)}")
    refuse_unless(read.columns == expected.columns, f"table {name}: {read.columns}, the model says {expected.columns}")
    refuse_unless(read.refs.keys() == expected.refs.keys(), f"table {name}: refs {[*read.refs]}")
    refuse_unless(expected.uuid in {"", read.uuid}, f"table {name} has another UUID")
    judge.states[location] = read


def rows_of(state: State, start: int, count: int) -> tuple[pa.Table, Rows]:
    """Return rows for PyIceberg, and for the model."""
    numbers = range(start, start + count)
    columns: dict[str, Any] = {"id": pa.array(numbers, pa.int64())}
    rows: list[list[tuple[int, Any]]] = [[(1, number)] for number in numbers]
    if state.version == WITH_LINEAGE:
        for at, row in enumerate(rows):
            row += [(ROW_ID, state.next_row + at), (UPDATED, state.sequence + 1)]
    for name, number in state.columns.items():
        if name != "id":
            columns[name] = pa.array([f"n{each % 3}" for each in numbers], pa.string())
            for row, each in zip(rows, numbers, strict=True):
                row.append((number, f"n{each % 3}"))
    return pa.table(columns), Counter(tuple(sorted(row)) for row in rows)


CHANGES: Final[dict[str, float]] = {
    "append": 14, "delete": 3, "equal": 1, "overwrite": 2, "column": 1, "partition": 0.5, "branch": 1, "tag": 1,
    "unref": 1, "drop": 1.2, "rename": 1.2, "create": 0.3, "abandon": 1,
}  # fmt: skip
"""How often a table that is there is changed in which way."""
WHILE_A_JOB_RUNS: Final[dict[str, float]] = CHANGES | {
    "append": 4,
    "delete": 20,
    "overwrite": 4,
    "drop": 4,
    "rename": 4,
}


class Table(Operation):
    """One change of one Iceberg table."""

    weight = 40
    uses = (
        "POST /v1/{prefix}/namespaces/{namespace}/tables",
        "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}",
        "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}",
        "HEAD /v1/{prefix}/namespaces/{namespace}/tables/{table}",
        "DELETE /v1/{prefix}/namespaces/{namespace}/tables/{table}",
        "GET /v1/{prefix}/namespaces/{namespace}/tables",
        "POST /v1/{prefix}/namespaces/{namespace}/register",
        "POST /v1/{prefix}/tables/rename",
    )

    def draw(self, draw: Draw) -> Args | None:
        """Create where nothing is, change what there is."""
        world = draw.world
        if not world.size.tables:
            return None
        there = [each for each in NAMES if is_table(world, each)]
        name = draw.chance.choice(there if there and (draw.nested or draw.share(0.6)) else NAMES)
        near = [str(each[2]) for each in draw.focus if each[1] == SPACE]
        if near and draw.share(0.8):
            name = near[0]
        if name not in there:
            what = draw.pick({"create": 8, "register": 2, "drop": 0.3})
        else:
            what = draw.pick(WHILE_A_JOB_RUNS if draw.nested else CHANGES)
        args: Args = {"what": what, "name": name, "by": draw.pick({"library": 6, "endpoint": 1})}
        world.number += 40
        args |= {"start": world.number, "count": draw.chance.choice((1, 2, 5, 30)), "to": draw.chance.choice(NAMES)}
        args |= {"share": draw.chance.random(), "version": draw.chance.choice((1, 2, 2, 2, 3))}
        if what == "delete" and draw.share(0.7 if draw.nested else 0.15):
            args["by"] = "duckdb"
        return args

    def do(self, world: World, args: Args) -> str:
        """Change it, and read it."""
        what, name, model = args["what"], args["name"], world.model
        there = is_table(world, name)
        if not there and what not in {"create", "register", "drop"}:
            return "none"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                with timed(world):
                    expected = getattr(self, f"_{what}")(world, tables_of(world), args)
            except Exception as error:
                if isinstance(error, Finding) or not model.now.frozen:
                    raise Finding(f"{what} of table {name} was refused: {type(error).__name__}: {error}") from error
                return "frozen"  # each client has a word of its own for that
        if expected is None:
            return "refused"
        if expected == "nothing":
            return "nothing"
        if model.now.frozen:
            raise Finding(f"{what} of table {name} was done in a frozen lakehouse")
        note(world, {"commit", "bulk"}, expected)
        return str(what)

    # Each returns what is expected of the tables that it changes, or nothing where it was refused, rightly.

    def _create(self, world: World, tables: Tables, args: Args) -> Any:
        name, catalog = args["name"], tables.catalog(args)
        if world.key("namespace", SPACE) not in world.model.now.content:
            tables.ask(lambda: catalog.create_namespace(SPACE))
            note(world, {"commit", "bulk"}, {})
            world.judge_new()
        taken = is_taken(world, name)
        try:
            about = {"format-version": str(args["version"]), "commit.retry.min-wait-ms": "1"}
            tables.ask(lambda: catalog.create_table((SPACE, name), SCHEMA, properties=about))
        except Exception as error:
            if not taken or "xists" not in f"{type(error).__name__} {error}":
                raise
            return None
        refuse_unless(not taken, f"table {name} was created, and it was there")
        return {name: State("", Counter(), {}, {"id": 1, "name": 2}, frozenset())}

    def _append(self, world: World, tables: Tables, args: Args) -> Any:
        state = state_of(world, args["name"])
        data, rows = rows_of(state, args["start"], args["count"])
        if state.version == WITH_LINEAGE:
            columns, values = ", ".join(data.column_names), ", ".join("?" * data.num_columns)
            sql = f"INSERT INTO l.{SPACE}.{args['name']} ({columns}) VALUES ({values})"
            sql += f", ({values})" * (data.num_rows - 1)
            flat = [value for row in data.to_pylist() for value in row.values()]
            if not self._ask_duckdb(tables, sql, flat):
                return "nothing"
        else:
            tables.catalog(args).load_table((SPACE, args["name"])).append(data)
        return {args["name"]: replace(state, current=state.current + rows)}

    def _ask_duckdb(self, tables: Tables, sql: str, values: list[Any] | None = None) -> bool:
        """Run a statement; return whether DuckDB can do that: not in partitions, nor deletes in format version 1."""
        try:
            tables.duck.execute(sql, values or [])
        except duckdb.NotImplementedException:
            return False
        return True

    def _abandon(self, world: World, tables: Tables, args: Args) -> Any:
        """Write files that no commit ever names."""
        state = state_of(world, args["name"])
        if state.version == WITH_LINEAGE:
            return "nothing"
        data, _ = rows_of(state, args["start"], args["count"])
        tables.catalog(args).load_table((SPACE, args["name"])).transaction().append(data)
        return "nothing"

    def _delete(self, world: World, tables: Tables, args: Args) -> Any:
        name, state = args["name"], state_of(world, args["name"])
        if state.has_equality:  # PyIceberg reads no such table
            return self._equal(world, tables, args)
        gone, left = self._rows_to_delete(state, args)
        if not gone:
            return "nothing"
        among = f"id <= {gone[-1]} AND id >= {gone[0]}"
        if args["by"] == "duckdb" and tables.library.load_table((SPACE, name)).spec().fields:
            return "nothing"  # DuckDB deletes from files of before the partitions in a way that PyIceberg overlooks
        if args["by"] == "duckdb" or state.version == WITH_LINEAGE:
            if not self._ask_duckdb(tables, f"DELETE FROM l.{SPACE}.{name} WHERE {among}"):
                return "nothing"
        else:
            tables.catalog(args).load_table((SPACE, name)).delete(among)
        return {name: replace(state, current=left)}

    def _equal(self, world: World, tables: Tables, args: Args) -> Any:
        name, state = args["name"], state_of(world, args["name"])
        gone, left = self._rows_to_delete(state, args)
        if not gone or state.version != 2:
            return "nothing"
        delete_by_equality(tables.catalog(args).load_table((SPACE, name)), [*gone])
        return {name: replace(state, current=left)}

    def _rows_to_delete(self, state: State, args: Args) -> tuple[range, Rows]:
        """Return the IDs of some rows, and the rows without them."""
        numbers = sorted(dict(row)[1] for row in state.current)
        if not numbers:
            return range(0), Counter()
        at = numbers[int(args["share"] * len(numbers))]
        gone = range(at - 2, at + 1)
        return gone, Counter({row: count for row, count in state.current.items() if dict(row)[1] not in gone})

    def _overwrite(self, world: World, tables: Tables, args: Args) -> Any:
        state = state_of(world, args["name"])
        if state.version == WITH_LINEAGE:
            return "nothing"
        data, rows = rows_of(state, args["start"], args["count"])
        tables.catalog(args).load_table((SPACE, args["name"])).overwrite(data)
        return {args["name"]: replace(state, current=rows)}

    def _column(self, world: World, tables: Tables, args: Args) -> Any:
        name, state = args["name"], state_of(world, args["name"])
        table = tables.catalog(args).load_table((SPACE, name))
        others = [each for each in state.columns if each not in {"id", "name"}]
        with table.update_schema() as update:
            if others and args["share"] < 0.4:
                update.rename_column(others[0], f"r{args['start']}")
            else:
                update.add_column(f"c{args['start']}", StringType())
        columns = dict(state.columns)
        if others and args["share"] < 0.4:
            columns[f"r{args['start']}"] = columns.pop(others[0])
        else:
            columns[f"c{args['start']}"] = table.metadata.last_column_id
        return {name: replace(state, columns=columns)}

    def _partition(self, world: World, tables: Tables, args: Args) -> Any:
        table = tables.catalog(args).load_table((SPACE, args["name"]))
        if table.spec().fields or table.metadata.format_version == WITH_LINEAGE:
            return "nothing"  # with partitions DuckDB writes rows in an order of its own, and so their IDs
        with table.update_spec() as update:
            update.add_identity("name")
        return {args["name"]: state_of(world, args["name"])}

    def _branch(self, world: World, tables: Tables, args: Args) -> Any:
        return self._ref(world, tables, args, "create_branch", f"b{args['count']}")

    def _tag(self, world: World, tables: Tables, args: Args) -> Any:
        return self._ref(world, tables, args, "create_tag", f"g{args['count']}")

    def _ref(self, world: World, tables: Tables, args: Args, how: str, ref: str) -> Any:
        name, state = args["name"], state_of(world, args["name"])
        table = tables.catalog(args).load_table((SPACE, name))
        snapshot = table.current_snapshot()
        if snapshot is None or ref in state.refs:
            return "nothing"
        getattr(table.manage_snapshots(), how)(snapshot.snapshot_id, ref).commit()
        return {name: replace(state, refs={**state.refs, ref: state.current})}

    def _unref(self, world: World, tables: Tables, args: Args) -> Any:
        name, state = args["name"], state_of(world, args["name"])
        if not state.refs:
            return "nothing"
        ref = sorted(state.refs)[int(args["share"] * len(state.refs))]
        manage = tables.catalog(args).load_table((SPACE, name)).manage_snapshots()
        (manage.remove_branch(ref) if ref.startswith("b") else manage.remove_tag(ref)).commit()
        return {name: replace(state, refs={each: rows for each, rows in state.refs.items() if each != ref})}

    def _drop(self, world: World, tables: Tables, args: Args) -> Any:
        name = args["name"]
        location = world.model.now.content.get(key_of(world, name))
        try:
            tables.catalog(args).drop_table((SPACE, name))
        except NoSuchTableError:
            refuse_unless(location is None, f"table {name} cannot be dropped, and it is there")
            return None
        refuse_unless(location is not None, f"table {name} was dropped, and it was not there")
        tables.dropped.append(str(location))
        return {name: None}

    def _rename(self, world: World, tables: Tables, args: Args) -> Any:
        name, to = args["name"], args["to"]
        taken = is_taken(world, to)
        try:
            tables.catalog(args).rename_table((SPACE, name), (SPACE, to))
        except Exception as error:
            if not taken or "xists" not in f"{type(error).__name__} {error}":
                raise
            return None
        refuse_unless(not taken, f"{name} was renamed to {to}, which was there")
        return {to: state_of(world, name), name: None}

    def _register(self, world: World, tables: Tables, args: Args) -> Any:
        """Bring back what was dropped: if its files are there, and no other definition names them."""
        waiting = [each for each in tables.dropped if each in tables.judge.states]
        if not waiting or world.key("namespace", SPACE) not in world.model.now.content:
            return "nothing"
        location, name = waiting[int(args["share"] * len(waiting))], args["name"]
        if is_taken(world, name):
            return "nothing"
        state = tables.judge.states[location]
        marks = world.model.now.content.values()
        held = any(mark in tables.judge.states and tables.judge.states[mark].uuid == state.uuid for mark in marks)
        try:
            tables.catalog(args).register_table((SPACE, name), f"file://{tables.judge.root / location}")
        except (LakehouseFrozen, CommitConflict):
            if not world.model.now.frozen and not tables.cleaned:
                raise
            return None
        except Exception as error:
            missing = not (tables.judge.root / location).exists()
            if not (held or missing or tables.cleaned or world.model.now.frozen):
                raise Finding(f"register of {location} was refused: {type(error).__name__}: {error}") from error
            return None
        return {name: state}


def same(world: World) -> dict[str, State | None]:
    """Return the expectation that no table changes its rows."""
    return {name: state_of(world, name) for name in NAMES if is_table(world, name)}


class TablesCompact(Operation):
    """Compaction of tables: their rows stay, and a table that goes meanwhile is lost, alone."""

    weight = 6
    uses = ("tables_compact.run", "trinitylake tables compact")

    def draw(self, draw: Draw) -> Args | None:
        """From two small files on."""
        if not draw.world.size.tables:
            return None
        there = [each for each in NAMES if is_table(draw.world, each)]
        many = max(there, key=lambda each: state_of(draw.world, each).files, default=None)
        if (many is None or state_of(draw.world, many).files < 2) and draw.share(0.8):
            return None
        if many is None or draw.share(1 / 6):
            return {"by": "command"}
        draw.used.append(["table", SPACE, many])
        return {"by": "job", **draw.between(often=0.8, prefer="table", calls=(0, 1, 1, 2, 2))}

    def do(self, world: World, args: Args) -> str:
        """Compact, one version for one or more tables."""
        model = world.model
        if args["by"] == "command":
            words = ("tables", "compact", world.root, "--min-files", "2", "--engine", "local")
            code, document = command(world, *words, may_fail=True)
            bad = [why for why in document.get("failures", {}).values() if NEEDS_SPARK not in why]
            left = code == 4 and document.get("failures") and not bad
            right = code == 0 or left or (model.now.frozen and code in {1, 3, 4})
            refuse_unless(right, f"tables compact ended with {code}: {document}")
            return self._done(world, document.get("versions", 0), {})
        if world.spark is not None:  # each procedure commits a version, which is reported when all are done
            args = args | {"calls": 0}
        between, hook = hooks(world, args)
        rules, one = GroupRules(min_files=2, share=0.05), Settings(at_once=1)  # else a seed repeats no interleaving
        config = tables_compact.Config(rules=rules, settings=one, engine=world.size.engine)
        names = {f"{SPACE}.{name}" for name in NAMES if is_table(world, name)}
        try:
            with timed(world):
                report = tables_compact.run(world.lake.refresh(), config, **hook)
        except LakehouseFrozen:
            refuse_unless(model.now.frozen or between.happened, "tables compact was refused as frozen")
            return "frozen"
        fine = {"done", "lost to a writer"} if between.happened else {"done"}
        strange = [each for each in report.outcomes if each.outcome not in fine]
        if world.spark is None:
            strange = [each for each in strange if NEEDS_SPARK not in each.reason]
        refuse_unless(not strange or model.now.frozen, f"outcomes of tables compact: {strange}")
        refuse_unless(
            between.happened or names >= {each.table for each in report.outcomes}, f"tables {report.outcomes}"
        )
        return self._done(world, report.versions, {each.table: each.outcome for each in report.outcomes})

    def _done(self, world: World, versions: int, outcomes: dict[str, str]) -> str:
        for _ in range(versions):
            note(world, {"commit", "bulk"}, same(world))
        return "+".join(sorted(set(outcomes.values()))) or ("done" if versions else "nothing")


class TablesExpire(Operation):
    """Expiration of snapshots: the current rows stay, and those of branches and tags."""

    weight = 2
    uses = ("tables_expire.run", "trinitylake tables expire")

    def draw(self, draw: Draw) -> Args | None:
        """Keep some."""
        if not draw.world.size.tables:
            return None
        return {
            "keep": draw.chance.choice((1, 1, 3)),
            "by": draw.pick({"job": 5, "command": 1}),
            **draw.between(prefer="table"),
        }

    def do(self, world: World, args: Args) -> str:
        """Expire."""
        model, keep = world.model, args["keep"]
        if args["by"] == "command":
            words = ("tables", "expire", world.root, "--keep-last", str(keep), "--older-than", "0s", "--yes")
            code, document = command(world, *words, may_fail=model.now.frozen)
            refuse_unless(code == 0 or model.now.frozen, f"tables expire ended with {code}: {document}")
            versions = document["versions"] if code == 0 else 0
        else:
            between, hook = hooks(world, args)
            del hook["spark"]  # this job has one engine
            config = tables_expire.Config(older_than_seconds=0, keep_last=keep)
            try:
                with timed(world):
                    report = tables_expire.run(world.lake.refresh(), config, **hook)
            except LakehouseFrozen:
                refuse_unless(model.now.frozen, "tables expire was refused as frozen")
                return "frozen"
            wrong = report.failures and not between.happened and not model.now.frozen
            refuse_unless(not wrong, f"tables expire: {report.failures}")
            versions = report.versions
        for _ in range(versions):
            note(world, {"commit", "bulk"}, same(world))
        return "done" if versions else "nothing"


class TablesClean(Operation):
    """Cleaning of table files at age zero: what retained versions need stays."""

    weight = 2
    uses = ("tables_clean.run", "trinitylake tables clean")

    def draw(self, draw: Draw) -> Args | None:
        """At age zero."""
        if not draw.world.size.tables:
            return None
        by = draw.pick({"job": 5, "command": 1})
        return {"by": by} if by == "command" else {"by": by, **draw.between("tables_clean", often=0.3, prefer="table")}

    def do(self, world: World, args: Args) -> str:
        """Clean, and look at the files."""
        tables = tables_of(world)
        quiet = True
        if args["by"] == "command":
            words = (
                "tables",
                "clean",
                world.root,
                "--older-than",
                "0s",
                "--allow-recent",
                "--engine",
                "local",
                "--yes",
            )
            code, document = command(world, *words)
            refuse_unless(code == 0, f"tables clean ended with {code}: {document}")
            after, young, doubts = document["version_after"], document["young"]["files"], document["doubts"]
        else:
            between, hook = hooks(world, args)
            config = tables_clean.Config(engine=world.size.engine, older_than_seconds=0, allow_recent=True)
            with timed(world):
                report = tables_clean.run(world.lake.refresh(), config, **hook)
            after, young, doubts, quiet = (
                report.version_after,
                report.young.files,
                list(report.doubts),
                not between.happened,
            )
        tables.cleaned = True
        if after is not None:
            world.model.commit(after, {"clean"}, {})
            world.judge_new()
        judge_table_files(world, young, cleaned=quiet and not doubts)
        return "nothing" if after is None else "done"


def judge_table_files(world: World, young: int, *, cleaned: bool) -> None:
    """Judge that the files that tables of retained versions need are there, and after a cleaning no others."""
    judge = tables_of(world).judge
    needed: set[str] = set()
    for each in (*world.model.versions.values(), *map(world.model.snapshot_content.get, world.model.now.snapshots)):
        for mark in set(each.content.values()) if each is not None else ():
            if "/" in mark:
                needed |= judge.needed(mark)
    root = tree.root_path(world.model.newest)
    needed |= files_of_views(world, [path for key, path in world.judge.judge(root).content().items() if key[0] == "D"])
    missing = sorted(each for each in needed if not Path(each).exists())
    refuse_unless(not missing, f"files of tables that a retained version needs are missing: {missing[:3]}")
    waiting = any(node.messages for node in world.tree.walk()) or world.saved
    if cleaned and not waiting and world.model.boundary == world.model.newest:
        area = world.directory / "lake" / "tables"
        there = {str(each) for each in area.rglob("*") if each.is_file()}
        if world.model.now.snapshots:  # which may need files of views that are gone
            needed |= files_of_views(world, [*world.definitions])
        left = sorted(there - needed)
        refuse_unless(len(left) <= young, f"{len(left)} files of tables are left after a cleaning: {left[:3]}")


def files_of_views(world: World, paths: list[str]) -> set[str]:
    """Return the metadata files that the definitions of views name, by the paths of these."""
    named = [world.definitions[path].properties.get("iceberg.metadata_location") for path in paths]
    return {str(world.directory / "lake" / each) for each in named if each}


class TablesHealth(Operation):
    """The figures of tables, beside the model."""

    weight = 1
    uses = ("tables_health.run", "trinitylake tables health")

    def draw(self, draw: Draw) -> Args | None:
        """By the job or the command."""
        return {"by": draw.pick({"job": 2, "command": 1})} if draw.world.size.tables else None

    def do(self, world: World, args: Args) -> str:
        """Compare the tables that it lists."""
        tables = [world.name_of(key) for key, mark in world.model.now.content.items() if "/" in mark]
        expected = sorted(f"{space}.{name}" for _, space, name in tables)
        if args["by"] == "command":
            code, document = command(world, "tables", "health", world.root, "--engine", "local")
            refuse_unless(code == 0, f"tables health ended with {code}: {document}")
            found = sorted(each["table"] if "table" in each else each["name"] for each in document["tables"])
        else:
            with timed(world):
                config = tables_health.Config(engine=world.size.engine)
                report = tables_health.run(world.lake.refresh(), config, world.spark)
            refuse_unless(not report.failures, f"tables health: {report.failures}")
            found = sorted(getattr(each, "table", None) or each.name for each in report.tables)  # type: ignore[attr-defined]
        refuse_unless(found == expected, f"tables health lists {found}, the model says {expected}")
        return "done"


__all__ = [
    "REASON",
    "AlreadyExists",
    "InvalidInput",
    "Table",
    "TablesClean",
    "TablesCompact",
    "TablesExpire",
    "TablesHealth",
]
