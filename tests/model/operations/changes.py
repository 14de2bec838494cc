"""Transactions: typed edits, raw puts, large and small, saved and resumed, several from one base."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tests.model import tree
from tests.model.model import Content
from tests.model.operations.base import Args, Between, Draw, Finding, Operation, World, handle_of, timed
from tests.support.faults import FaultPlan, attach, detach
from trinitylake_core import AlreadyExists, CommitConflict, InvalidInput, NamespaceNotEmpty, ObjectNotFound
from trinitylake_core.errors import (
    LakehouseFrozen,
    OutcomeUnknown,
    StorageError,
    TransactionExpired,
    TransactionNotFound,
    VersionExpired,
)

EXPIRED = (TransactionExpired, VersionExpired)
GONE = (*EXPIRED, TransactionNotFound, OutcomeUnknown)
"""What a commit may say whose base has expired: that its root took the free name of an expired version, too."""
Edit = list[Any]


@dataclass
class Pending:
    """An open transaction, and what it sees."""

    txn: Any
    base: int
    view: Content
    touched: set[str] = field(default_factory=set)
    spaces: set[str] = field(default_factory=set)
    met_freeze: bool = False
    in_doubt: bool = False
    """Whether it was sent, and the storage failed: it is sent again later."""
    unknown: bool = False
    """Whether its commit ended with an unknown outcome, because its base had expired."""

    @property
    def id(self) -> str:
        """The ID of the transaction."""
        return str(self.txn.id)

    def set(self, key: str, mark: str | None) -> None:
        """Note one change."""
        self.touched.add(key)
        if mark is None:
            self.view.pop(key, None)
        else:
            self.view[key] = mark

    def changes(self) -> dict[str, str | None]:
        """Return what it writes."""
        return {key: self.view.get(key) for key in self.touched}


def begin(world: World, args: Args) -> Pending:
    """Begin a transaction at the version that a handle knows."""
    lake = handle_of(world, args)
    group = lake.group() if args.get("group") else None
    with timed(world):
        txn = lake.transaction(isolation=args.get("isolation"), reason="the judge", group=group)
    base = txn.base_version
    if base not in world.model.versions:  # a stale handle, whose version has expired
        world.stale.refresh()
        return begin(world, {})
    return Pending(txn, base, dict(world.model.versions[base].content))


# -- edits -------------------------------------------------------------------------------------------


def make_edit(world: World, pending: Pending, edit: Edit) -> None:
    """Make one change in a transaction and in its model; both do it, or both refuse."""
    what, *rest = edit
    try:
        with timed(world):
            EDITS[what](world, pending, *rest)
    except EXPIRED as error:
        if pending.base >= world.model.boundary:
            raise Finding(f"version {pending.base} is kept, and the transaction says: {error}") from error


def look_within(world: World, pending: Pending) -> None:
    """Compare what a transaction lists, with its own changes in it, with what it sees by the model."""
    try:
        with timed(world):
            listed = [entry.key for entry in pending.txn.objects()]
    except EXPIRED as error:
        if pending.base >= world.model.boundary:
            raise Finding(f"version {pending.base} is kept, and the transaction says: {error}") from error
        return
    if listed != sorted(pending.view):
        raise Finding(f"a transaction lists and does not list {sorted(set(listed) ^ pending.view.keys())[:5]}")


def _expect(error: type[Exception] | None, act: Any) -> bool:
    try:
        act()
    except EXPIRED:
        raise
    except (AlreadyExists, ObjectNotFound, NamespaceNotEmpty) as raised:
        if error is None or not isinstance(raised, error):
            raise Finding(f"expected {error}, and got {type(raised).__name__}: {raised}") from raised
        return False
    if error is not None:
        raise Finding(f"expected {error.__name__}, and it was done")
    return True


def _create(world: World, pending: Pending, kind: str, namespace: str, name: str | None) -> None:
    key, space, mark = world.key(kind, namespace, name), world.key("namespace", namespace), world.new_mark()
    pending.spaces.add(namespace)
    txn, properties = pending.txn, {"mark": mark}
    error: type[Exception] | None = None
    if kind != "namespace" and space not in pending.view:
        error = ObjectNotFound
    elif key in pending.view:
        error = AlreadyExists
    act = {
        "namespace": lambda: txn.create_namespace(namespace, properties),
        "table": lambda: txn.create_table(namespace, name, properties=properties),
        "view": lambda: txn.create_view(namespace, name, sql="SELECT 1", properties=properties),
    }[kind]
    if _expect(error, act):
        pending.set(key, mark)


def _alter(world: World, pending: Pending, kind: str, namespace: str, name: str | None) -> None:
    key, mark = world.key(kind, namespace, name), world.new_mark()
    pending.spaces.add(namespace)
    txn, properties = pending.txn, {"mark": mark}
    act = {
        "namespace": lambda: txn.alter_namespace(namespace, properties),
        "table": lambda: txn.alter_table(namespace, name, properties=properties),
        "view": lambda: txn.replace_view(namespace, name, properties=properties),
    }[kind]
    if _expect(None if key in pending.view else ObjectNotFound, act):
        pending.set(key, mark)


def _drop(world: World, pending: Pending, kind: str, namespace: str, name: str | None, cascade: bool = False) -> None:
    key, txn = world.key(kind, namespace, name), pending.txn
    pending.spaces.add(namespace)
    error: type[Exception] | None = None if key in pending.view else ObjectNotFound
    inside: list[str] = []
    if kind == "namespace":
        starts = (world.key("table", namespace), world.key("view", namespace))
        inside = [each for each in pending.view if each.startswith(starts)]
        if error is None and inside and not cascade:
            error = NamespaceNotEmpty
    act = {
        "namespace": lambda: txn.drop_namespace(namespace, cascade=cascade),
        "table": lambda: txn.drop_table(namespace, name),
        "view": lambda: txn.drop_view(namespace, name),
    }[kind]
    if _expect(error, act):
        for each in (*inside, key):
            pending.set(each, None)
            world.dropped.append(each)


def _rename(world: World, pending: Pending, kind: str, namespace: str, name: str, to_space: str, to_name: str) -> None:
    old, new = world.key(kind, namespace, name), world.key(kind, to_space, to_name)
    pending.spaces |= {namespace, to_space}
    error: type[Exception] | None = None
    if old not in pending.view or world.key("namespace", to_space) not in pending.view:
        error = ObjectNotFound
    elif new in pending.view:
        error = AlreadyExists
    rename = pending.txn.rename_table if kind == "table" else pending.txn.rename_view
    if _expect(error, lambda: rename(namespace, name, to_space, to_name)):
        pending.set(new, pending.view[old])
        pending.set(old, None)
        world.dropped.append(old)


def _source(world: World, pending: Pending, key: str) -> str | None:
    """Return the path of an object in the base."""
    if pending.base < world.model.boundary:
        return None
    return world.judge.judge(tree.root_path(pending.base)).look_up(key)


def has_metadata(world: World, path: str) -> bool:
    """Whether a view names a metadata file: nothing proves the file where the view is altered after a put."""
    return "iceberg.metadata_location" in world.definitions[path].properties


def _put(world: World, pending: Pending, kind: str, namespace: str, name: str, source: Any, told: bool) -> None:
    """Point a key to the definition of another object, or delete it."""
    key = world.key(kind, namespace, name)
    pending.spaces.add(namespace)
    if world.key("namespace", namespace) not in pending.view:
        return
    base = world.model.versions.get(pending.base)
    if base is None:
        return
    replaces = (key in base.content) if told else None
    if source is None:
        pending.txn.put(key, None, replaces=replaces)
        pending.set(key, None)
        return
    from_key = world.key(kind, *source)
    path = _source(world, pending, from_key)
    if path is None or "/" in base.content[from_key] or has_metadata(world, path):
        return
    pending.txn.need_namespace(namespace)
    pending.txn.put(key, path, replaces=replaces)
    pending.set(key, base.content[from_key])


def _put_many(world: World, pending: Pending, how: str, kind: str, start: float, count: int, told: bool) -> None:
    """Set or delete many keys at once: equal values, other values, new keys, none."""
    base = world.model.versions.get(pending.base)
    if base is None or pending.base < world.model.boundary:
        return
    prefix = {"table": "C", "view": "D"}[kind]
    there = sorted(key for key, mark in base.content.items() if key[0] == prefix and "/" not in mark)
    if not there:
        return
    first = int(start * len(there))
    chosen = there[first : first + count]
    root = world.judge.judge(tree.root_path(pending.base))
    rows: dict[str, str | None] = {}
    marks: dict[str, str | None] = {}
    if how == "fresh":
        space = world.name_of(there[first])[1]
        chosen = [world.key(kind, space, f"p{int(1000 * start) + number}") for number in range(count)]
    for number, key in enumerate(chosen):
        source = key if how == "same" else there[(first + 7 * number) % len(there)]
        namespace = world.name_of(key)[1]
        if world.key("namespace", namespace) not in pending.view:
            continue
        pending.spaces.add(namespace)
        path = None if how == "delete" else root.look_up(source)
        if path is not None and has_metadata(world, path):
            continue
        rows[key] = path
        marks[key] = None if how == "delete" else base.content[source]
    keys = sorted(rows)
    existing = {key in base.content for key in keys}
    replaces = existing.pop() if told and len(existing) == 1 else None
    for namespace in {world.name_of(key)[1] for key in keys}:
        pending.txn.need_namespace(namespace)
    pending.txn.put_many(
        pa.table({"key": pa.array(keys, pa.string()), "path": pa.array([rows[key] for key in keys], pa.string())}),
        replaces=replaces,
    )
    for key, mark in marks.items():
        pending.set(key, mark)


def _many(world: World, pending: Pending, how: str, kind: str, namespace: str, start: float, count: int) -> None:
    """Create, change or drop many objects, each by its own call."""
    if how == "create":
        if world.key("namespace", namespace) not in pending.view:
            _create(world, pending, "namespace", namespace, None)
        for number in range(count):
            _create(world, pending, kind, namespace, f"t{int(start * 3 * world.size.objects) + number}")
        return
    prefix = {"table": "C", "view": "D"}[kind]
    there = sorted(key for key, mark in pending.view.items() if key[0] == prefix and "/" not in mark)
    first = int(start * len(there))
    for key in there[first : first + count]:
        _, space, name = world.name_of(key)
        if how == "drop":
            _drop(world, pending, kind, space, name)
        else:
            _alter(world, pending, kind, space, name)


class Unsent(Exception):
    """The storage failed, and no version came of it."""


EDITS: dict[str, Any] = {
    "create": _create,
    "alter": _alter,
    "drop": _drop,
    "rename": _rename,
    "put": _put,
    "put_many": _put_many,
    "many": _many,
}


# -- ending ------------------------------------------------------------------------------------------


def verdict(world: World, pending: Pending) -> bool | None:
    """Return whether a commit has to be done (true), has to be refused (false), or may be either (none)."""
    model = world.model
    if model.now.frozen:
        return False
    if pending.base < model.boundary:
        return None
    result: bool | None = True
    before = model.versions[pending.base]
    for each in model.since(pending.base):
        if each.touched is None:
            return False
        for key in each.touched & pending.touched:
            result = None
            if each.content.get(key) != before.content.get(key):
                return False
        if any(world.name_of(key)[1] in pending.spaces for key in each.touched):
            result = None
        before = each
    return result


def commit(world: World, pending: Pending, between: Between | None = None, **options: Any) -> str:
    """Commit, and compare the outcome with what the model allows."""
    hook = between.check if between else None
    try:
        with timed(world):
            version = send(world, pending, hook, options)
    except Unsent:
        pending.in_doubt = True
        world.open_transactions[pending.id] = pending
        return "in doubt"
    except (CommitConflict, *GONE, LakehouseFrozen) as error:
        expected = verdict(world, pending)
        is_kept = pending.base >= world.model.boundary  # else a frozen lakehouse, too, may tell it that it has expired
        is_gone = isinstance(error, GONE)
        is_open = expected is None and not isinstance(error, OutcomeUnknown)
        is_open = is_open or (pending.in_doubt and isinstance(error, OutcomeUnknown))  # it may not deny
        if expected is True or (is_gone and is_kept and not is_open):
            raise Finding(f"a commit based on version {pending.base} was refused: {error}") from error
        if isinstance(error, LakehouseFrozen):
            pending.met_freeze = True
            world.open_transactions[pending.id] = pending
            return "frozen"
        pending.unknown = isinstance(error, OutcomeUnknown)
        return "refused"
    if not pending.touched:
        if version != pending.base:
            raise Finding(f"a transaction without changes became version {version}")
        return "nothing"
    if verdict(world, pending) is False:
        raise Finding(f"version {version}: done, but others changed the same keys since version {pending.base}")
    changes = pending.changes()
    refuse_homeless(world, changes)
    world.model.commit(version, {"commit", "bulk"}, changes, touched=frozenset(pending.touched))
    return "done"


def send(world: World, pending: Pending, hook: Any, options: dict[str, Any]) -> int:
    """Commit over a storage that may fail or lose answers; an unknown outcome is sent again, and looked up."""
    fault = options.pop("fault", None)
    if fault is None:
        return int(pending.txn.commit(before_commit=hook, **options))
    storage = pending.txn._backend.storage
    attach(storage, FaultPlan(fault["mode"], at=fault["at"], kinds=fault.get("kinds")))
    try:
        return int(pending.txn.commit(before_commit=hook, **options))
    except StorageError as error:
        detach(storage)
        found = world.files.exists(tree.root_path(world.model.newest + 1))
        ours = found and world.root_rows(world.model.newest + 1).get("txn") == pending.id
        if found and not ours:
            raise Finding(f"version {world.model.newest + 1} is of a transaction that nobody sent: {error}") from error
        if fault.get("later") and not found:
            raise Unsent from error
        version = int(pending.txn.commit())
        if version != world.model.newest + 1:
            raise Finding(f"after {type(error).__name__} the same commit became version {version}") from error
        return version
    finally:
        detach(storage)


def refuse_homeless(world: World, changes: dict[str, str | None]) -> None:
    """Fail if a change leaves an object without its namespace: I12."""
    now = world.model.now.content
    for key, mark in changes.items():
        _, namespace, name = world.name_of(key)
        if name is not None and mark is not None:
            space = world.key("namespace", namespace)
            if changes.get(space, now.get(space)) is None:
                raise Finding(f"I12: {key.rstrip()!r} was committed, and its namespace is gone")
        if name is None and mark is None:
            starts = (world.key("table", namespace), world.key("view", namespace))
            left = [each for each in now if each.startswith(starts) and changes.get(each, now[each]) is not None]
            if left:
                raise Finding(f"I12: namespace {namespace!r} was dropped, and holds {left[0].rstrip()!r}")


def end(
    world: World, pending: Pending, how: str, between: Between | None = None, fault: dict[str, Any] | None = None
) -> str:
    """End a transaction, or leave it open."""
    txn = pending.txn
    if how == "abort":
        with timed(world):
            txn.abort()
        return "aborted"
    if how == "leave":
        world.open_transactions[pending.id] = pending
        return "left open"
    if how == "save":
        try:
            with timed(world):
                txn.save()
        except (*EXPIRED, CommitConflict) as error:
            if pending.base >= world.model.boundary:
                raise Finding(f"a transaction based on version {pending.base} was not saved: {error}") from error
            return "not saved"
        world.saved[pending.id] = pending
        return "saved"
    options = {} if fault is None else {"fault": fault}
    outcome = commit(world, pending, between, **options)
    if how == "twice" and outcome not in {"frozen", "in doubt"}:
        try:
            txn.commit()
        except InvalidInput:
            return f"{outcome}, and not again"
        except OutcomeUnknown:
            if pending.unknown:
                return f"{outcome}, and still unknown"
            raise
        raise Finding("a transaction was committed twice")
    return outcome


# -- operations --------------------------------------------------------------------------------------


def draw_edits(draw: Draw, count: int) -> list[Edit]:
    """Return some edits, often several of one key, which the later ones find as the earlier ones leave it."""
    found: list[Edit] = []
    before: list[list[str | None]] = []
    there: dict[str, bool] = {}
    for _ in range(count):
        kind, namespace, name = draw.chance.choice(before) if before and draw.share(0.25) else draw.object()
        before.append([kind, namespace, name])
        key = draw.world.key(str(kind), str(namespace), name)
        is_there = there.get(key, key in draw.world.model.now.content)
        if name is None:
            edit = _draw_edit_of_namespace(draw, str(namespace), is_there)
        else:
            edit = _draw_edit(draw, str(kind), str(namespace), name, is_there, key in there)
        found.append(edit)
        is_gone = edit[0] in {"drop", "rename"} or (edit[0] == "put" and edit[4] is None)
        there[key] = not is_gone
    return found


def _draw_edit_of_namespace(draw: Draw, namespace: str, is_there: bool) -> Edit:
    waiting = [*draw.world.open_transactions.values(), *draw.world.saved.values()]
    is_needed = draw.nested or any(namespace in each.spaces for each in waiting)
    weights: dict[str, float] = {"create": 8, "alter": 1, "drop": 1}
    if is_there:
        weights = {"alter": 4, "drop": 1, "cascade": 3 if is_needed else 0.7, "create": 1}
    what = draw.pick(weights)
    return ["drop", "namespace", namespace, None, True] if what == "cascade" else [what, "namespace", namespace, None]


def _draw_edit(draw: Draw, kind: str, namespace: str, name: str, is_there: bool, again: bool) -> Edit:
    raw = 3 if again else 1
    if is_there:
        what = draw.pick({"alter": 4, "drop": 4, "rename": 2, "put": raw, "delete": raw, "create": 0.5})
    else:
        what = draw.pick({"create": 7, "put": raw, "delete": 0.5 * raw, "alter": 0.5, "drop": 0.5, "rename": 0.3})
    if what == "rename":
        to = draw.object()
        return ["rename", kind, namespace, name, to[1], to[2] or "x"]
    if what == "delete":
        return ["put", kind, namespace, name, None, draw.share(0.5)]
    if what == "put":
        prefix = {"table": "C", "view": "D"}[kind]
        keys = [key for key in draw.present() if key[0] == prefix]
        if not keys:
            return ["create", kind, namespace, name]
        _, space, source = draw.world.name_of(draw.chance.choice(keys))
        return ["put", kind, namespace, name, [space, source], draw.share(0.3)]
    return [what, kind, namespace, name]


def draw_large(draw: Draw) -> list[Edit]:
    """Return one edit of many objects: as many as make the tree deeper, or nearly empty."""
    size = draw.world.size
    count = min(draw.chance.choice((10, 100, 1000, 20_000)), 7 * max(30, size.objects) // 10)
    kind, start = draw.pick({"table": 3, "view": 1}), draw.chance.random()
    crowded = len(draw.present()) > 2 * size.objects
    what = draw.pick({"create": 1 if crowded else 4, "drop": 6 if crowded else 2, "alter": 1, "put_many": 3})
    if what == "put_many":
        how = draw.pick({"same": 3, "other": 3, "fresh": 1, "delete": 1})
        return [["put_many", how, kind, start, count, draw.share(0.2)]]
    return [["many", what, kind, draw.namespace(), start, count]]


def draw_fault(draw: Draw) -> Args:
    """Return what goes wrong during the commit; mostly nothing."""
    if draw.share(0.03):  # what it has written stays there, and no version names it
        return {"fault": {"mode": "fail_permanently", "at": 1, "kinds": ["create"], "later": True}}
    if not draw.share(0.03):
        return {}
    mode = draw.pick({"lose": 6, "lose_from": 1, "fail": 2, "fail_from": 1})  # those that go on cost seconds
    fault: Args = {"mode": mode, "at": draw.chance.randrange(1, 6)}
    if draw.share(0.5):
        fault |= {"kinds": ["create"], "at": 1}
    return {"fault": fault}


class Transact(Operation):
    """One transaction of one to thousands of changes."""

    weight = 40
    uses = (
        "Lakehouse.transaction", "Lakehouse.group", "Transaction.commit", "Transaction.abort", "Transaction.save",
        "Transaction.create_namespace", "Transaction.alter_namespace", "Transaction.drop_namespace",
        "Transaction.create_table", "Transaction.alter_table", "Transaction.drop_table", "Transaction.rename_table",
        "Transaction.create_view", "Transaction.replace_view", "Transaction.drop_view", "Transaction.rename_view",
        "Transaction.put", "Transaction.put_many", "Transaction.need_namespace", "Transaction.objects",
    )  # fmt: skip

    def draw(self, draw: Draw) -> Args:
        """Mostly small; a few that are saved, left open, or sent twice."""
        if draw.share(0.06):
            edits = draw_large(draw)
            if draw.share(0.3):
                edits += draw_edits(draw, 3)
        else:
            edits = draw_edits(draw, draw.chance.choice((1, 1, 1, 2, 3, 10)))
        args: Args = {"edits": edits}
        puts = any(each[0] in {"put", "put_many"} for each in edits)
        how = draw.pick({"commit": 80, "abort": 3, "save": 7, "leave": 8, "twice": 3})
        if puts and how in {"save", "leave"}:
            how = "commit"
        args["end"] = how
        if draw.share(0.1):
            args["isolation"] = draw.chance.choice(("SNAPSHOT", "SERIALIZABLE"))
        if draw.share(0.1):
            args["stale"] = True
        if draw.share(0.1):
            args["group"] = True
        if "isolation" not in args and draw.share(0.2):  # one that is serializable depends on all that it lists
            args["look"] = True
        if not puts:
            drops = any(each[:2] == ["drop", "namespace"] for each in edits)
            prefer = draw.chance.choice(("transact", "transact", "clean"))
            args |= draw.between(often=0.5 if drops else 0.12, prefer=prefer)
        return args if "between" in args else args | draw_fault(draw)

    def do(self, world: World, args: Args) -> str:
        """Begin, change, end."""
        pending = begin(world, args)
        for edit in args["edits"]:
            make_edit(world, pending, edit)
        if args.get("look"):
            look_within(world, pending)
        return end(world, pending, args["end"], Between(world, args.get("between")), args.get("fault"))


class GoOn(Operation):
    """Go on with a transaction that was left open, while others committed."""

    weight = 6
    uses = ("Transaction.commit", "Transaction.save", "Transaction.abort")

    def draw(self, draw: Draw) -> Args | None:
        """With some more changes, sometimes."""
        if not draw.world.open_transactions:
            return None
        edits = [each for each in draw_edits(draw, 2) if each[0] != "put"] if draw.share(0.3) else []
        how = draw.pick({"commit": 8, "abort": 1, "save": 1, "twice": 1})
        which, doubtful = draw.chance.randrange(9), draw.in_doubt()
        if doubtful is not None and draw.share(0.5):
            which = doubtful
        return {"which": which, "edits": edits, "end": how, **(draw.between() or draw_fault(draw))}

    def do(self, world: World, args: Args) -> str:
        """Change it, and end it."""
        waiting = [*world.open_transactions]
        if not waiting:
            return "none"
        pending = world.open_transactions.pop(waiting[args["which"] % len(waiting)])
        how = args["end"]
        if not (pending.met_freeze or pending.in_doubt):  # one that was sent takes no more changes
            for edit in args["edits"]:
                make_edit(world, pending, edit)
        elif how == "save":
            how = "abort"
        if pending.in_doubt and how == "abort":
            how = "commit"  # to abort it would be a version, too
        return end(world, pending, how, Between(world, args.get("between")), args.get("fault"))


class Resume(Operation):
    """Resume a saved transaction with a new handle."""

    weight = 8
    uses = ("Lakehouse.resume_transaction", "Lakehouse.open", "Transaction.commit", "Transaction.save")

    def draw(self, draw: Draw) -> Args | None:
        """With some more changes, sometimes."""
        if not draw.world.saved:
            return None
        edits = [each for each in draw_edits(draw, 2) if each[0] != "put"] if draw.share(0.3) else []
        how = draw.pick({"commit": 8, "abort": 1, "save": 2, "twice": 1})
        which = draw.chance.randrange(9)
        saved = [*draw.world.saved.values()][which % len(draw.world.saved)]
        draw.used += [[*draw.world.name_of(key)] for key in sorted(saved.touched)]
        between = draw.between(often=0.4, prefer="transact")  # what it needs may go while it commits
        return {"which": which, "edits": edits, "end": how, **(between or draw_fault(draw))}

    def do(self, world: World, args: Args) -> str:
        """Change it, and end it."""
        waiting = [*world.saved]
        if not waiting:
            return "none"
        pending = world.saved.pop(waiting[args["which"] % len(waiting)])
        lake = type(world.lake).open(world.root, storage_options=world.options)
        try:
            pending.txn = lake.resume_transaction(pending.id)
        except (TransactionNotFound, *EXPIRED) as error:
            if pending.base >= world.model.boundary:
                raise Finding(f"a saved transaction based on version {pending.base} is gone: {error}") from error
            return "expired"
        if pending.txn.base_version != pending.base:
            raise Finding(f"saved at version {pending.base}, resumed at {pending.txn.base_version}")
        for edit in args["edits"]:
            make_edit(world, pending, edit)
        return end(world, pending, args["end"], Between(world, args.get("between")), args.get("fault"))


class Catchup(Operation):
    """The stale handle looks for the newest version."""

    weight = 3
    uses = ("Lakehouse.refresh", "Lakehouse.catch_up")

    def do(self, world: World, args: Args) -> str:
        """Refresh it."""
        world.stale.refresh()
        if world.stale.version != world.model.newest:
            raise Finding(f"refreshed to version {world.stale.version}, and {world.model.newest} is the newest")
        return "done"
