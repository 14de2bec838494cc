"""A world: a lakehouse of some size on some storage, handles of the product, the model, and the judge."""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from pipelines.session import SessionConfig, get_session
from tests.model import files, tree, wire
from tests.model.model import Content, Model, Version
from tests.model.older import Older
from tests.support.lakes import in_memory
from trinitylake_core import Lakehouse
from trinitylake_core.definitions import key_table_max_bytes, new_lakehouse_def

SPARK: Final = SessionConfig(
    master="local[2]",
    iceberg="1.12.0",
    conf={
        "spark.sql.codegen.wholeStage": "false",  # of so few rows most of the time would go into compiling
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.shuffle.partitions": "2",
    },
)
FREEZE: Final = "maintenance.freeze"
PREFIX: Final = {"namespace": "B===", "table": "C===", "view": "D==="}
KIND_OF: Final = {"B": "namespace", "C": "table", "D": "view"}


class Finding(AssertionError):
    """The product and the model disagree."""


@dataclass(frozen=True)
class Size:
    """How large a world is.

    Attributes:
        order: of the tree.
        room: bytes that a node has beyond the smallest that is allowed; ``None``: nodes of the default size.
        objects: about how many there are at the beginning.
        names: the most bytes of a name.
        storage: ``memory``, ``disk``, ...
        durable: whether the product waits for the disk.
        tables: whether there are Iceberg tables.
        engine: of jobs that are not run by the command line: ``local``, or ``spark``, one for all worlds.
    """

    order: int = 4
    room: int | None = 2000
    objects: int = 30
    names: int = 8
    storage: str = "memory"
    durable: bool = False
    tables: bool = False
    engine: str = "local"

    def __str__(self) -> str:
        room = "default" if self.room is None else f"+{self.room}"
        more = (", tables" if self.tables else "") + (", Spark" if self.engine == "spark" else "")
        return f"order {self.order}, nodes {room}, {self.objects} objects, {self.storage}{more}"

    def definition(self) -> dict[str, Any]:
        """Return the options of the lakehouse."""
        sizes = dict.fromkeys((f"{kind}_name_max_size_bytes" for kind in PREFIX), self.names)
        options: dict[str, Any] = {"order": self.order, **sizes}
        if self.room is not None:
            options["node_file_max_size_bytes"] = key_table_max_bytes(new_lakehouse_def(**options)) + 1 + self.room
        return options


@dataclass
class Spent:
    """What was done, and what it cost."""

    operations: int = 0
    versions: int = 0
    product_seconds: float = 0.0
    judge_seconds: float = 0.0
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    pairs: Counter[tuple[str, str]] = field(default_factory=Counter)
    worlds: Counter[str] = field(default_factory=Counter)


class World:
    """One lakehouse, everything that the product is asked through, and what the judge knows of it."""

    def __init__(self, size: Size, spent: Spent | None = None, older: Older | None = None) -> None:
        self.size = size
        self.older = older
        self.spent = spent or Spent()
        self.spark = get_session(SPARK) if size.engine == "spark" else None
        where = in_memory() if size.storage == "memory" else None
        self.directory = Path(tempfile.mkdtemp(prefix="judge-", dir=where))
        self.options = {"durable": size.durable}
        self.lake = Lakehouse.create(self.root, storage_options=self.options, **size.definition())
        self.stale = Lakehouse.open(self.root, storage_options=self.options)
        self.files = files.Directory(self.directory / "lake")
        self.facts = wire.read_lakehouse(self.files.read(self.root_rows(0)["lakehouse_def"]))
        self.judge = tree.TreeJudge(
            self.files.read, self.mark_of, self.facts.order, self.facts.node_bytes, self.facts.name_sizes
        )
        self.model = Model()
        self.model.versions[0] = Version({}, 0, frozenset({"create"}))
        self.model.newest = 0
        self.definitions: dict[str, wire.Definition] = {}
        self.open_transactions: dict[str, Any] = {}
        self.saved: dict[str, Any] = {}
        self.dropped: deque[str] = deque(maxlen=30)
        self.copies: dict[str, int] = {}
        self.tables: Any = None
        self.uuids: dict[str, str] = {}
        """Which table a metadata file of another catalog is of."""
        self.closing: list[Callable[[], object]] = []
        self.number = 0
        self.last: str | None = None
        self.outcomes: list[str] = []
        self.tree: tree.Node = self._judge_version(0)
        self._judged = 0
        self._deep = 0
        self.random = random.Random(0)
        """For the judge alone: what it looks at besides."""

    @property
    def root(self) -> str:
        """The root URI."""
        return (self.directory / "lake").as_uri()

    def close(self) -> None:
        """Remove everything."""
        for close in self.closing:
            close()
        self.closing.clear()
        shutil.rmtree(self.directory, ignore_errors=True)

    # -- names ---------------------------------------------------------------------------------------

    def key(self, kind: str, namespace: str, name: str | None = None) -> str:
        """Return the key of an object."""
        sizes = self.facts.name_sizes
        text = PREFIX[kind] + _pad(namespace, sizes["B"])
        return text if name is None else text + _pad(name, sizes[PREFIX[kind][0]])

    def name_of(self, key: str) -> tuple[str, str, str | None]:
        """Return kind, namespace and name of a key."""
        raw = key[4:].encode()
        size = self.facts.name_sizes["B"]
        name = raw[size:].decode().rstrip(" ") or None
        return KIND_OF[key[0]], raw[:size].decode().rstrip(" "), name

    # -- reading what is there -----------------------------------------------------------------------

    def mark_of(self, key: str, path: str) -> str:
        """Return what a definition means to the model: its mark, or of an Iceberg table where its metadata are."""
        known = self.definitions.get(path)
        if known is None:
            try:
                data = self.files.read(path)
            except FileNotFoundError:
                raise tree.Broken(f"I15 {path}: the definition of {key.rstrip()!r} is missing") from None
            known = self.definitions[path] = wire.read_definition(key[0], data)
        return meaning_of(known)

    def root_rows(self, version: int) -> dict[str, str]:
        """Return the system rows of a version."""
        path = tree.root_path(version)
        return tree.parse(path, self.files.read(path)).system

    def _judge_version(self, number: int) -> tree.Node:
        """Read a version, and compare it with the model."""
        path, said = tree.root_path(number), self.model.versions[number]
        try:
            node = self.judge.judge(path, self.files.read(path))
        except FileNotFoundError:
            raise Finding(f"the product reported version {number}, and there is no root of it") from None
        self._compare(node, said, f"version {number}")
        rows = node.system
        operation = rows.get("operation", "")
        if operation not in said.operations:
            raise Finding(f"version {number} has operation {operation!r}, the model expects {sorted(said.operations)}")
        tree.refuse(int(rows["version"]) != number, "I13", path, f"says that it is version {rows['version']}")
        if number > self.model.boundary:
            self._judge_chain(number, rows)
        self._judge_object_counts(node, said)
        if said.settled:
            tree.refuse(
                node.all_messages, "settled", path, f"{node.all_messages} messages wait after a full compaction"
            )
            tree.refuse("tables" not in rows, "settled", path, "the counts are not exact after a full compaction")
        if rows.get("settled_at_millis") == rows["created_at_millis"]:
            uncertain = "tables" not in rows and self.older is None  # 0.1.0 said so where counts were uncertain, too
            tree.refuse(node.all_messages or uncertain, "settled", path, "says that no message waits")
        self._judge_definition(rows["lakehouse_def"], said, number)
        return node

    def _compare(self, node: tree.Node, said: Version, what: str) -> None:
        if node.sum == said.sum and sum(node.counts) == len(said.content):
            return
        found = {key: self.mark_of(key, path) for key, path in node.content().items()}
        raise Finding(f"{what}: {tree.differences(found, said.content) or 'the sums differ, and the content does not'}")

    def _judge_chain(self, number: int, rows: dict[str, str]) -> None:
        path, before = tree.root_path(number), self.root_rows(number - 1)
        tree.refuse(rows["previous_root"] != tree.root_path(number - 1), "I14", path, rows["previous_root"])
        tree.refuse(
            rows.get("previous_txn", before.get("txn")) != before.get("txn"),
            "I14",
            path,
            "previous_txn names another one",
        )
        for name, strict in {
            "created_at_millis": 1,
            "oldest_version": 0,
            "void_before_millis": 0,
            "tables_void_before_millis": 0,
        }.items():
            was, now = int(before.get(name, 0)), int(rows.get(name, 0))
            tree.refuse(now < was + strict, "I14", path, f"{name} {now} after {was}")

    def _judge_object_counts(self, node: tree.Node, said: Version) -> None:
        rows, path = node.system, node.path
        if "namespaces" in rows:
            found = tuple(int(rows[name]) for name in ("namespaces", "tables", "views"))
            tree.refuse(found != node.counts, "I9", path, f"counts {found}, and holds {node.counts}")
        elif "count_bounds" in rows:
            bounds = list(map(int, rows["count_bounds"].split(",")))
            for kind, held in enumerate(node.counts):
                least, most = bounds[2 * kind : 2 * kind + 2]
                tree.refuse(not least <= held <= most, "I9", path, f"bounds {bounds}, and holds {node.counts}")

    def _judge_definition(self, path: str, said: Version, number: int) -> None:
        facts = wire.read_lakehouse(self.files.read(path))
        properties = {name: value for name, value in facts.properties.items() if name != FREEZE}
        found = (properties, {name: each.version for name, each in facts.snapshots.items()}, FREEZE in facts.properties)
        if found != (said.properties, said.snapshots, said.frozen):
            expected = (said.properties, said.snapshots, said.frozen)
            raise Finding(f"version {number}: properties, snapshots, frozen are {found}, the model says {expected}")
        if number == self.model.newest:
            self.facts = facts

    def judge_new(self) -> None:
        """Judge every version since the last time, and that there is no other one."""
        began = time.perf_counter()
        for number in range(self._judged + 1, self.model.newest + 1):
            if number >= self.model.boundary:
                self.tree = self._judge_version(number)
                self.spent.versions += 1
        self._judged = self.model.newest
        if self.files.exists(tree.root_path(self.model.newest + 1)):
            raise Finding(f"there is a version {self.model.newest + 1} that nothing reported")
        if self.random.random() < 0.02:
            self.judge_again(self.random.randrange(self.model.boundary, self.model.newest + 1))
        self.spent.judge_seconds += time.perf_counter() - began

    def content_of(self, number: int) -> Content:
        """Return what a version says, for an operation that has a choice."""
        path = tree.root_path(number)
        if not self.files.exists(path):
            raise Finding(f"the product reported version {number}, and there is no root of it")
        return {key: self.mark_of(key, at) for key, at in self.judge.judge(path).content().items()}

    def judge_again(self, number: int) -> None:
        """Read a version from its files as if for the first time, object by object."""
        fresh = self.fresh_judge(self.files)
        node = fresh.judge(tree.root_path(number))
        found = {key: self.mark_of(key, path) for key, path in node.content().items()}
        wrong = tree.differences(found, self.model.versions[number].content)
        if wrong:
            raise Finding(f"version {number}, read again: {wrong}")
        self._deep += 1

    def fresh_judge(self, at: files.Files) -> tree.TreeJudge:
        """Return a judge that remembers nothing, of this lakehouse or a copy of it."""
        return tree.TreeJudge(at.read, self.mark_of, self.facts.order, self.facts.node_bytes, self.facts.name_sizes)

    def judge_copy(self, directory: Path, number: int, said: Content) -> None:
        """Judge a version of a copy that lies elsewhere, whose definitions are read there."""
        there = files.Directory(directory)
        own: dict[str, str] = {}

        def means(key: str, path: str) -> str:
            if path not in own:
                own[path] = meaning_of(wire.read_definition(key[0], there.read(path)))
            return own[path]

        rows = tree.parse(tree.root_path(number), there.read(tree.root_path(number))).system
        facts = wire.read_lakehouse(there.read(rows["lakehouse_def"]))
        judge = tree.TreeJudge(there.read, means, facts.order, facts.node_bytes, facts.name_sizes)
        node = judge.judge(tree.root_path(number))
        wrong = tree.differences({key: means(key, path) for key, path in node.content().items()}, said)
        if wrong:
            raise Finding(f"the copy of version {number}: {wrong}")

    def judge_files(self, young: int, *, cleaned: bool) -> None:
        """Judge that needed files are there, and after a cleaning no other ones."""
        versions = range(self.model.boundary, self.model.newest + 1)
        snapshots = {each.path for each in self.facts.snapshots.values() if not each.target}
        needed, may_stay = files.needed(self.files, self.judge, versions, snapshots, int(time.time() * 1000))
        files.refuse_wrong_files(self.files, needed, may_stay, young, cleaned=cleaned)

    def finish(self) -> None:
        """Judge every retained version once more, and the files."""
        began = time.perf_counter()
        for number in range(self.model.boundary, self.model.newest + 1):
            self.judge_again(number)
        self.judge_files(0, cleaned=False)
        self.spent.judge_seconds += time.perf_counter() - began

    # -- for operations ------------------------------------------------------------------------------

    def path_of(self, key: str) -> str | None:
        """Return the path of the definition of an object in the newest version."""
        return self.tree.look_up(key)

    def new_mark(self) -> str:
        """Return a mark that no definition has."""
        self.number += 1
        return f"m{self.number}"

    def try_to(
        self, act: Callable[[], Any], refusals: Iterable[type[Exception]], *, must: bool | None, why: str = ""
    ) -> tuple[bool, Any]:
        """Do something that may be refused; ``must`` says whether it has to be done, or has to be refused.

        Return whether it was done, and what it returned.
        """
        began, judged = time.perf_counter(), self.spent.judge_seconds
        try:
            result = act()
        except tuple(refusals) as error:
            if must is True:
                raise Finding(
                    f"refused, and nothing speaks against it: {type(error).__name__}: {error} {why}"
                ) from error
            return False, error
        finally:
            self.spent.product_seconds += time.perf_counter() - began - (self.spent.judge_seconds - judged)
        if must is False:
            raise Finding(f"done, and it has to be refused {why}")
        return True, result

    def describe(self) -> dict[str, Any]:
        """Return the size, for a list of operations."""
        return asdict(self.size)


def meaning_of(definition: wire.Definition) -> str:
    """Return what stands for a definition in the model."""
    return definition.properties.get("format:metadata_location", definition.mark)


def _pad(name: str, size: int) -> str:
    return name + " " * (size - len(name.encode()))
