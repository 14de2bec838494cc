"""One run: its store, who acts on it, what was promised to whom, and the true history.

The history is kept here by watching the store: a root that is created right after the newest one is the next
version, and every other root is none, even if a reader takes it for one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

import pyarrow as pa

from tests.simulation import store as stores
from tests.simulation.ground import SAVED, SOURCE, Ground, foreign, ground, with_rows
from tests.simulation.reading import NodeFile, node_file
from tests.simulation.scheduler import running_actor
from tests.simulation.store import ROOT, SimStorage, Store
from trinitylake_core import Lakehouse
from trinitylake_core.locations import parse, root_path
from trinitylake_core.spec import BOUNDARY_FILE, HINT_FILE
from trinitylake_core.versions.root_files import LOST_MARK

COPY: Final = "sim://copy/"
"""Where an export goes."""
Changes = dict[str, tuple[int, int]]
"""What a transaction does: by table of namespace ``a``, what its counter said when it was read and what it says now."""


class Version(NamedTuple):
    """One root of the true history and who created it."""

    number: int
    data: bytes
    creator: str

    @property
    def node(self) -> NodeFile:
        """What the root says."""
        return node_file(self.data)

    @property
    def oldest(self) -> int:
        """The boundary as of this version."""
        return self.node.number("oldest_version")


@dataclass(frozen=True, slots=True)
class Ack:
    """A version that an actor was told it had made, with the transaction it became if it was one."""

    actor: str
    version: int
    txn: str | None = None


@dataclass(frozen=True, slots=True)
class Opened:
    """What a reader was given, and which version was the newest one when it began."""

    actor: str
    began_at: int
    version: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Exported:
    """The versions at the copy that an export has reported."""

    first: int
    last: int
    at_least: int = 0
    """The newest version when an export of the newest version began."""
    tables: bool = False


@dataclass(frozen=True, slots=True)
class Kept:
    """A version that a request by its number relied on, and what the boundary file said before the request."""

    actor: str
    version: int
    boundary: int


class Subject(NamedTuple):
    """Something that endpoints are asked about: a property of a namespace or a table, or a reference of a table."""

    kind: Literal["namespace", "table", "reference"]
    of: str
    name: str


@dataclass(frozen=True, slots=True)
class Told:
    """What an answer said, and which versions were the newest ones when it was asked for and when it came."""

    actor: str
    began_at: int
    ended_at: int
    about: Subject
    value: str | None


@dataclass(frozen=True, slots=True)
class Removed:
    """A file that an actor deleted, and how old it was by the storage's clock."""

    actor: str
    path: str
    age_millis: int


def _other_table(_: World, __: Version) -> bytes:
    """Return a valid Arrow file that is no node."""
    table, written = pa.table({"key": ["a", "b"], "amount": [1, 2]}), pa.BufferOutputStream()
    with pa.ipc.new_file(written, table.schema) as file:
        file.write_table(table)
    return bytes(written.getvalue())


def _a_child(world: World, version: Version) -> bytes:
    """Return a node of the same lakehouse."""
    return world.files[version.node.children[0]]


def _foreign(world: World, version: Version) -> bytes:
    """Return the root of the same version of another lakehouse: nothing in it tells that it is of another."""
    found = foreign(version.number)
    stores.mount(ROOT, world.store)
    world.foreign.add(found)
    return found


DAMAGES: Final[dict[str, Callable[[World, Version], bytes]]] = {
    "short": lambda _, version: version.data[: len(version.data) // 2],
    "empty": lambda *_: b"",
    "garbage": lambda _, version: bytes(255 - each for each in version.data),
    "table": _other_table,
    "child": _a_child,
    "older": lambda world, version: world.history[version.number - 3].data,
    "foreign": _foreign,
    "lost": lambda _, version: LOST_MARK + version.data,
}
"""What may be found in place of a root."""


@dataclass
class World:
    """Everything about one run that the oracle judges."""

    ground: Ground
    store: Store
    copy: Store = field(default_factory=Store)
    history: list[Version] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    """Every file there ever was, deleted or not."""
    violations: list[str] = field(default_factory=list)
    acks: list[Ack] = field(default_factory=list)
    intents: dict[str, list[Changes]] = field(default_factory=dict)
    """What transactions were about to do, by ID; several where a saved one was saved again."""
    saves: list[tuple[str, Changes]] = field(default_factory=list)
    """Acknowledged saves, in order."""
    aborts: list[str] = field(default_factory=list)
    opened: list[Opened] = field(default_factory=list)
    exported: list[Exported] = field(default_factory=list)
    copy_own: set[int] = field(default_factory=set)
    """Versions whose roots at the copy were created by a writer that committed there."""
    copy_acks: list[Ack] = field(default_factory=list)
    """Versions at the copy that were acknowledged to a writer."""
    copy_tried: dict[str, str] = field(default_factory=dict)
    """Who tried to commit which transaction to the copy."""
    copy_gone: set[str] = field(default_factory=set)
    """Transactions whose versions were deleted with the lakehouse at the place of the copy."""
    copy_cleared: int = 0
    """How often the lakehouse at the place of the copy was deleted."""
    copy_busy: set[str] = field(default_factory=set)
    """Who is at work at the place of the copy."""
    copy_torn: set[str] = field(default_factory=set)
    """Who was at work there when the lakehouse was deleted, beside who deleted it: the pages forbid that."""
    copy_torn_roots: set[str] = field(default_factory=set)
    """Who of them created a root there afterwards."""
    copy_given_back: bool = False
    """Whether an actor expired versions of the copy, which releases the claim of a dead export."""
    kept: list[Kept] = field(default_factory=list)
    """What was read, compared or exported as a version of a number."""
    told: list[Told] = field(default_factory=list)
    """What the answers of endpoints said."""
    written_at: dict[str, int] = field(default_factory=dict)
    """When each file was written that is there, by the storage's clock."""
    removed: list[Removed] = field(default_factory=list)
    """What was deleted."""
    rows: frozenset[str] = frozenset()
    """The files of the Iceberg table with rows."""
    lost: set[int] = field(default_factory=set)
    """Versions whose roots were lost."""
    stands_on: int | None = None
    """The version that handles stand on where nothing else is said; ``None`` for the last of the ground."""
    restored: list[int] = field(default_factory=list)
    """Versions that were made of what a copy held."""
    rollback_target: int | None = None
    damaged: set[int] = field(default_factory=set)
    """Versions whose roots were cut short behind everybody's back."""
    foreign: set[bytes] = field(default_factory=set)
    """Roots of another lakehouse that were put in the place of roots."""
    handles: list[tuple[str, Lakehouse]] = field(default_factory=list)

    @classmethod
    def new(cls) -> World:
        """Return a world that holds the lakehouse of the ground."""
        base = ground()
        world = cls(base, base.store.copy())
        world.store.observer = world.observe
        world.files = {path: each.data for path, each in base.store.objects.items()}
        world.written_at = {path: each.modified_millis for path, each in base.store.objects.items()}
        world.history = [Version(v, world.files[root_path(v)], "ground") for v in range(base.newest + 1)]
        saved = {"t2": (0, 1)}
        world.intents[SAVED] = [saved]
        world.saves.append((SAVED, saved))
        stores.mount(ROOT, world.store)
        stores.mount(SOURCE, base.source)
        stores.mount(COPY, world.copy)
        world.copy.changed = world.store.changed
        world.copy.follows = world.store
        world.copy.observer = world.observe_copy
        return world

    @property
    def newest(self) -> Version:
        """The newest version of the true history."""
        return self.history[-1]

    def observe(self, how: str, path: str, data: bytes | None) -> None:
        """Take note of a change of the store."""
        if data is None:
            age = self.store.now_millis - self.written_at.pop(path, 0)
            self.removed.append(Removed(running_actor(), path, age))
            return
        self.written_at[path] = self.store.now_millis
        if path == BOUNDARY_FILE:
            before = int(self.files.get(path, b"0"))
            if int(data) < before:
                self.violations.append(f"{running_actor()} lowered the boundary from {before} to {int(data)}")
        self.files[path] = data
        named = parse(path)
        if how == "create" and named is not None and named.version == self.newest.number + 1:
            self.history.append(Version(named.version, data, running_actor()))

    def observe_copy(self, how: str, path: str, data: bytes | None) -> None:
        """Take note of a change of the copy: a root is never replaced."""
        named = parse(path)
        if how == "create" and named is not None and named.version is not None and "copy" in running_actor():
            self.copy_own.add(named.version)
        if how == "create" and named is not None and named.version is not None:
            self.copy_torn_roots |= self.copy_torn & {running_actor()}
        if how in {"put", "swap"} and data is not None and named is not None and named.version is not None:
            self.violations.append(f"{running_actor()} replaced the root {path} of the copy")

    def damage(self, version: int, how: str = "short") -> None:
        """Replace the root of a version, as only a store can that breaks its promise. Some have read it before."""
        path = root_path(version)
        stored = self.store.objects[path]
        self.store.objects[path] = stored._replace(data=DAMAGES[how](self, self.history[version]))
        self.damaged.add(version)

    def is_damaged(self, version: int, data: bytes) -> bool:
        """Return whether the bytes of a root at the copy are those of a damaged one, which a history takes along."""
        stored = self.store.objects.get(root_path(version))  # it may have expired since it was copied
        return version in self.damaged and (stored is None or data == stored.data)

    def lose(self, versions: Sequence[int], hint: int) -> None:
        """Remove the roots of some versions, as only a store can that breaks its promise, and set the hint back."""
        for version in versions:
            self.store.objects.pop(root_path(version), None)
        self.store.put("put", HINT_FILE, b"%d" % hint)
        self.lost.update(versions)

    def boundary(self) -> int:
        """Return the number in the boundary file."""
        stored = self.store.objects.get(BOUNDARY_FILE)
        return 0 if stored is None else int(stored.data)

    @property
    def boundary_moved(self) -> bool:
        """Whether anybody wrote the boundary file, here or at the copy."""
        return any(path.endswith(BOUNDARY_FILE) for path in self.store.changed)

    def bring_rows(self) -> None:
        """Let there be an Iceberg table with rows, made by versions after the ground's."""
        if self.rows:
            return
        store, newest, self.rows = with_rows()
        stores.mount(ROOT, self.store)
        self.store.objects = dict(store.objects)
        self.store.now_millis = max(self.store.now_millis, store.now_millis)
        self.files |= {path: each.data for path, each in store.objects.items()}
        self.written_at |= {path: each.modified_millis for path, each in store.objects.items()}
        for version in range(self.newest.number + 1, newest + 1):
            self.history.append(Version(version, self.files[root_path(version)], "iceberg"))

    def handle_of_rows(self) -> Lakehouse:
        """Return a handle that stands on the newest version with the Iceberg tables. REQUIRES: they were brought."""
        lake = Lakehouse.open(SimStorage())
        self.handles.append((running_actor(), lake))
        return lake

    def damage_manifest_list(self, table: str) -> None:
        """Put garbage in the place of the manifest list of an Iceberg table, as only a store can."""
        newest = self.handle_of_rows()
        namespace, _, name = table.partition(".")
        metadata = json.loads(self.files[newest.table(namespace, name).format_properties["metadata_location"]])
        path = metadata["snapshots"][-1]["manifest-list"].removeprefix(ROOT)
        self.store.objects[path] = self.store.objects[path]._replace(data=b"garbage")

    @contextmanager
    def working_at_copy(self) -> Iterator[None]:
        """Take note that the running actor is at work at the place of the copy."""
        actor = running_actor()
        self.copy_busy.add(actor)
        try:
            yield
        finally:
            self.copy_busy.discard(actor)

    def clear_copy(self) -> None:
        """Delete the lakehouse at the place of the copy, at once."""
        self.copy_cleared += 1
        self.copy_torn |= self.copy_busy - {running_actor()}
        for path, stored in list(self.copy.objects.items()):
            named = parse(path)
            version = None if named is None else named.version
            if version is not None and not self.is_damaged(version, stored.data):
                self.copy_gone.add(node_file(stored.data).system.get("txn", ""))
            self.copy.remove(path)

    def names_damage(self, text: object) -> bool:
        """Whether an error or a finding names a root that is damaged, or a file that only such a root refers to."""
        if any(root_path(version) in str(text) for version in self.lost):
            return True
        if any(f"version {version} is marked as lost" in str(text) for version in self.damaged):
            return True
        paths = (root_path(version) for version in self.damaged)
        found = (self.store.objects[path].data for path in paths if path in self.store.objects)
        nodes = [node_file(data) for data in found if data in self.foreign]
        theirs = {path for node in nodes for _, path, _ in node.messages if path}
        return any(name in str(text) for name in theirs | {root_path(version) for version in self.damaged})

    def handle(self, version: int | None = None) -> Lakehouse:
        """Return a handle that was opened when a version was the newest one; by default the last of the ground."""
        version = self.stands_on if version is None else version
        storage = SimStorage()
        storage.store = self.ground.store if version is None else self.ground.at[version]
        lake = Lakehouse.open(storage)
        storage.store = self.store
        self.handles.append((running_actor(), lake))
        return lake

    def cold(self) -> Lakehouse:
        """Open the lakehouse as a process does that has just started, and take note of what it was given."""
        began = self.newest.number
        lake = Lakehouse.open(SimStorage())
        self.saw(began, lake)
        return lake

    def saw(self, began: int, lake: Lakehouse) -> None:
        """Take note of what a reader was given that looked for the newest version."""
        root: Any = lake.root_node
        self.opened.append(Opened(running_actor(), began, root.version, bytes(root.data)))
