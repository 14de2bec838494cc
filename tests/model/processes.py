"""The judge of several processes, which are killed and stopped, and go on.

    python -m tests.model --processes --minutes 5 --seed 1 --storage memory disk s3

Each process notes what it is about to do, under a tag that stands in the history as the reason of the version, and what
it was told afterwards. The judge follows the chain: every version is explained by one such note, says what the version
before it and the note say together, and what a process was told is true. A seed repeats the decisions of each process,
and not who is faster: where something is found, the directory stays.
"""

from __future__ import annotations

import http.client
import json
import multiprocessing
import random
import signal
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

from pipelines import clean, compaction, expire, export, load, rollback
from tests.model import files, tree, wire
from tests.model.operations.base import Finding
from tests.model.world import meaning_of
from tests.support.icebergs import request_key
from tests.support.lakes import in_memory
from tests.support.mayhem import disturb
from tests.support.slow_s3 import run_slow_s3
from trinitylake_core import AlreadyExists, Lakehouse, ObjectNotFound
from trinitylake_core.definitions import key_table_max_bytes, new_lakehouse_def
from trinitylake_core.errors import NamespaceNotEmpty, OutcomeUnknown, StorageError, TrinityLakeError
from trinitylake_core.rest import endpoint

WRITERS, JOBS, ENDPOINTS = 3, 2, 2
NAMES: Final = 40
SPACES: Final = ("n0", "n1")
KEPT: Final = 40
TTL_MILLIS: Final = 4000
AT_ONCE: Final = 20
"""So many versions are judged before a process is stopped or killed again."""
BEHIND: Final = 30
"""By so many versions the judge may be behind, before writers wait: versions expire."""
JUDGED: Final = "judged"
"""The file in which it says how far it is."""
ATTEMPTS: Final = 4
"""How often a request is sent whose answer is lost, to one endpoint and the other."""
LOST: Final = 0.002
"""Of so many requests the answer is lost, or late, ..., on the storage that loses answers: of each kind of fault."""
PATIENCE_SECONDS: Final = 3.0
STALL_SECONDS: Final = 6.0
"""Processes are stopped for up to so long: longer than a transaction lives."""
QUIET: Final = frozenset({"compact", "expire", "clean", "snapshot", "alter", "abort", "create"})


def pad(name: str) -> str:
    """Return a name as it stands in a key."""
    return name + " " * (8 - len(name.encode()))


def key_of(kind: str, namespace: str, name: str | None = None) -> str:
    """Return the key of an object."""
    return {"namespace": "B===", "table": "C===", "view": "D==="}[kind] + pad(namespace) + (pad(name) if name else "")


# -- a process ---------------------------------------------------------------------------------------


class Process:
    """What one process does until it is killed."""

    def __init__(self, root: str, options: dict[str, Any], log: Path, number: int, life: int, seed: int) -> None:
        self.root = root
        self.options = options
        self.chance = random.Random(f"{seed} {number} {life}")
        self.name = f"{number}.{life}"
        self.count = 0
        self.copies = log.parent
        self.spaces = 0
        self.lake = Lakehouse.open(root, storage_options=options)
        self.log = log.open("a", encoding="utf-8")  # from now on it may be killed: to open S3 takes a while

    def note(self, **about: Any) -> None:
        """Write a line; one that is killed has written it, too."""
        self.log.write(json.dumps(about) + "\n")
        self.log.flush()

    def new_tag(self) -> str:
        """Return the next tag."""
        self.count += 1
        return f"judge {self.name}.{self.count}"

    def edit(self, txn: Any, writes: dict[str, str | None], tag: str) -> None:
        """Make one change, if what is there allows it."""
        kind = self.chance.choice(("table", "table", "view"))
        namespace, name = self.chance.choice(SPACES), f"t{self.chance.randrange(NAMES)}"
        mark, key = f"{tag} {len(writes)}", key_of(kind, namespace, name)
        properties = {"mark": mark}
        what = self.chance.random()
        try:
            txn.namespace(namespace)
        except ObjectNotFound:  # a rollback may have gone back behind it
            txn.create_namespace(namespace, properties)
            writes[key_of("namespace", namespace)] = mark
        try:
            if what < 0.02:
                txn.alter_namespace(namespace, properties)
                writes[key_of("namespace", namespace)] = mark
            elif what < 0.5:
                if kind == "table":
                    txn.create_table(namespace, name, properties=properties)
                else:
                    txn.create_view(namespace, name, sql="SELECT 1", properties=properties)
                writes[key] = mark
            elif what < 0.75:
                if kind == "table":
                    txn.alter_table(namespace, name, properties=properties)
                else:
                    txn.replace_view(namespace, name, properties=properties)
                writes[key] = mark
            else:
                (txn.drop_table if kind == "table" else txn.drop_view)(namespace, name)
                writes[key] = None
        except (AlreadyExists, ObjectNotFound, NamespaceNotEmpty):
            pass

    def wait(self) -> None:
        """Wait a moment if the judge is behind."""
        try:
            judged = int((self.copies / JUDGED).read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):  # not yet, or just now
            return
        if self.lake.version > judged + BEHIND:
            time.sleep(0.2)

    def write(self) -> None:
        """Commit a transaction, by way of a save now and then; send it again where the outcome is unknown."""
        self.wait()
        if self.chance.random() < 0.8:
            self.lake.refresh()
        tag, writes = self.new_tag(), dict[str, str | None]()
        isolation = self.chance.choice((None, None, "SERIALIZABLE"))
        txn = self.lake.transaction(isolation=isolation, reason=tag)
        for _ in range(self.chance.choice((1, 1, 2, 5, 40))):
            self.edit(txn, writes, tag)
        if not writes:
            txn.abort()
            return
        self.note(tag=tag, writes=writes, base=txn.base_version)
        if self.chance.random() < 0.1:
            saved = txn.save()
            self.lake = Lakehouse.open(self.root, storage_options=self.options)
            txn = self.lake.resume_transaction(saved)
            if self.chance.random() < 0.2:
                txn.abort()
                self.note(tag=tag, refused="aborted")
                return
        self.end(txn, tag)

    def end(self, txn: Any, tag: str) -> None:
        """Commit, and note what was told."""
        try:
            version = txn.commit()
        except OutcomeUnknown:
            try:
                version = txn.commit()
            except (OutcomeUnknown, StorageError):
                return
            except TrinityLakeError as error:
                self.note(tag=tag, refused=f"after an unknown outcome: {type(error).__name__}: {error}"[:300])
                return
        except StorageError:
            return
        except TrinityLakeError as error:
            self.note(tag=tag, refused=f"{type(error).__name__}: {error}"[:300])
            return
        self.note(tag=tag, version=version)

    def send(self) -> None:
        """Create a namespace of its own by the endpoints, change it and drop it; stop where an answer stays unknown."""
        number, life = self.name.split(".")
        name = f"e{number}{int(life) % 100:02}{self.spaces % 10_000:04}"
        self.spaces += 1
        path, key = f"/v1/lake/namespaces/{name}", key_of("namespace", name)
        for method, at, drops in (("POST", "/v1/lake/namespaces", False), ("POST", f"{path}/properties", False),
                                  ("DELETE", path, True)):  # fmt: skip
            tag = self.new_tag()
            mark = f"{tag} 0"
            body: dict[str, Any] = {"updates": {"mark": mark}} if at != "/v1/lake/namespaces" else {}
            body = body or {"namespace": [name], "properties": {"mark": mark}}
            self.note(tag=tag, sent=method, writes={key: None if drops else mark})
            status, unknown = self._ask(method, at, None if drops else body)
            if status is None or (unknown and status >= 400):
                return
            if status >= 400:
                self.note(tag=tag, refused=f"{status}")
                return
            self.note(tag=tag, done=status)

    def _ask(self, method: str, path: str, body: Any) -> tuple[int | None, bool]:
        """Send a request, again with its key where an answer is lost; return the status, and whether one was lost."""
        key, unknown = request_key(), False
        for _ in range(ATTEMPTS):
            about = json.loads(self.chance.choice(endpoints_below(self.copies)).read_text(encoding="utf-8"))
            headers = {"Authorization": f"Bearer {about['token']}", "Idempotency-Key": key}
            headers["Content-Type"] = "application/json"
            data = None if body is None else json.dumps(body).encode()
            request = urllib.request.Request(about["uri"] + path, data, headers, method=method)
            try:
                with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
                    return answer.status, unknown
            except urllib.error.HTTPError as error:
                with error:
                    if error.code < 500:
                        return error.code, unknown
            except (OSError, http.client.HTTPException):  # nobody listens, or it was killed, or stopped
                time.sleep(0.1)
            unknown = True
        return None, unknown

    def compact(self) -> None:
        """Compact, or compact all."""
        compaction.run(self.lake, compaction.Config(engine="local", full=self.chance.random() < 0.5))

    def expire(self) -> None:
        """Keep some versions."""
        expire.run(self.lake.refresh(), expire.Config(engine="local", keep_last=KEPT))

    def clean(self) -> None:
        """Remove orphans of any age."""
        clean.run(self.lake.refresh(), clean.Config(engine="local", older_than_seconds=0, allow_recent=True))

    def snapshot(self) -> None:
        """Name a version, or drop a name."""
        name = f"s{self.chance.randrange(4)}"
        if name in {each.name for each in self.lake.refresh().snapshots()}:
            self.lake.drop_snapshot(name)
        else:
            self.lake.create_snapshot(name, kind=self.chance.choice(("minimal", "partial")))

    def roll_back(self) -> None:
        """Return to one of the last versions."""
        tag, version = self.new_tag(), self.lake.refresh().version - self.chance.randrange(1, 6)
        self.note(tag=tag, rollback=version)
        try:
            report = rollback.run(self.lake, rollback.Config(version=version, reason=tag, engine="local"))
        except StorageError:
            return
        except TrinityLakeError as error:
            self.note(tag=tag, refused=f"{type(error).__name__}: {error}"[:300])
            return
        self.note(tag=tag, version=report.version_after)

    def load(self) -> None:
        """Load some tables, and replace or skip those that are there."""
        tag, existing = self.new_tag(), self.chance.choice(("skip", "replace"))
        names = {(self.chance.choice(SPACES), f"t{self.chance.randrange(NAMES)}") for _ in range(5)}
        marks = {each: f"{tag} {number}" for number, each in enumerate(sorted(names))}
        source = self.copies / f"{self.name}.jsonl"
        lines = []
        for (namespace, name), mark in marks.items():
            lines.append({"create_table": {"namespace": namespace, "name": name, "properties": {"mark": mark}}})
        source.write_text("".join(json.dumps(each) + "\n" for each in lines), encoding="utf-8")
        self.note(tag=tag, load={key_of("table", *each): mark for each, mark in marks.items()}, existing=existing)
        try:
            report = load.run(self.lake, source.as_uri(), load.Config(existing=existing, engine="local", reason=tag))
        except StorageError:
            return
        except TrinityLakeError as error:
            self.note(tag=tag, refused=f"{type(error).__name__}: {error}"[:300])
            return
        if report.version_after is not None:
            self.note(tag=tag, version=report.version_after)

    def export(self) -> None:
        """Copy the newest version elsewhere."""
        target = (self.copies / f"copy-{self.name}-{self.count}").as_uri()
        self.count += 1
        export.run(self.lake.refresh(), target, export.Config(engine="local"), storage_options={"durable": False})

    def alter(self) -> None:
        """Set a property of the lakehouse."""
        self.count += 1
        self.lake.alter({"mark": f"{self.name}-{self.count}"}, reason="a mark")

    def acts(self, role: str) -> Iterator[Any]:
        """Yield what a role does."""
        jobs = [self.compact] * 6 + [self.expire] * 3 + [self.clean] * 3
        jobs += [self.snapshot, self.roll_back, self.load, self.load, self.alter, self.export]
        while True:
            if role != "writer":
                yield self.chance.choice(jobs)
            elif self.chance.random() < 0.1 and len(endpoints_below(self.copies)) == ENDPOINTS:
                yield self.send
            else:
                yield self.write


def endpoints_below(logs: Path) -> list[Path]:
    """Return the files in which endpoints say where they are; those that were killed may be among them."""
    return sorted(logs.glob("endpoint-*.json"))


def serve(root: str, options: dict[str, Any], log: Path, number: int) -> None:
    """Be an endpoint until killed."""
    with endpoint(Lakehouse.open(root, storage_options=options)) as at:
        new = log.with_suffix(".new")
        new.write_text(json.dumps({"uri": at.uri, "token": at.token}), encoding="utf-8")
        new.rename(log.parent / f"endpoint-{number}.json")
        log.touch()
        while True:
            signal.pause()


def live(root: str, options: dict[str, Any], log: Path, number: int, life: int, seed: int) -> None:
    """Act until killed."""
    if number >= WRITERS + JOBS:
        serve(root, options, log, number)
    process = Process(root, options, log, number, life, seed)
    for act in process.acts("writer" if number < WRITERS else "job"):
        name = act.__name__
        try:
            act()
        except TrinityLakeError as error:
            kind = type(error).__name__
            process.note(act=name, outcome=kind, **({"text": str(error)[:500]} if kind == "Corrupt" else {}))
            if kind in {"Corrupt", "CorruptNode", "CorruptDefinition", "UnsafeStorage"}:
                process.note(finding=f"{name}: {kind}: {error}"[:800])
        except Exception as error:  # noqa: BLE001 - whatever a process meets is a finding
            process.note(finding=f"{name}: {type(error).__name__}: {error}"[:800])
        else:
            process.note(act=name, outcome="done")


# -- the judge ---------------------------------------------------------------------------------------


class Bucket:
    """Files below a prefix of a bucket, by boto3."""

    def __init__(self, client: Any, bucket: str, prefix: str) -> None:
        self.client = client
        self.bucket = bucket
        self.prefix = prefix

    def read(self, path: str) -> bytes:
        """Return a file."""
        try:
            found = self.client.get_object(Bucket=self.bucket, Key=self.prefix + path)
        except self.client.exceptions.NoSuchKey:
            raise FileNotFoundError(path) from None
        return bytes(found["Body"].read())

    def exists(self, path: str) -> bool:
        """Whether a file is there."""
        try:
            self.read(path)
        except FileNotFoundError:
            return False
        return True

    def names(self) -> Iterator[str]:
        """Yield the paths of all files."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=self.prefix)
        for page in pages:
            for each in page.get("Contents", []):
                yield each["Key"][len(self.prefix) :]


@dataclass
class Chain:
    """Follows the versions, and explains each by a note."""

    at: files.Files
    logs: Path
    order: int
    node_bytes: int
    newest: int = 0
    contents: dict[int, dict[str, str]] = field(default_factory=lambda: {0: {}})
    by_tag: dict[str, int] = field(default_factory=dict)
    written: dict[int, set[str]] = field(default_factory=dict)
    """The keys that each version wrote, by its notes."""
    notes: dict[str, dict[str, Any]] = field(default_factory=dict)
    told: list[dict[str, Any]] = field(default_factory=list)
    sent: dict[tuple[str, str | None], str] = field(default_factory=dict)
    """The tags of what endpoints were asked for, by key and mark."""
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    gaps: int = 0
    judged: int = 0
    _offsets: dict[Path, int] = field(default_factory=dict)
    _marks: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        sizes = {"B": 8, "C": 8, "D": 8}
        self.judge = tree.TreeJudge(self.at.read, self._means, self.order, self.node_bytes, sizes)

    def _means(self, key: str, path: str) -> str:
        if path not in self._marks:
            try:
                data = self.at.read(path)
            except FileNotFoundError:
                raise tree.Broken(f"I15 {path}: the definition of {key.rstrip()!r} is missing") from None
            self._marks[path] = meaning_of(wire.read_definition(key[0], data))
        return self._marks[path]

    def read_notes(self) -> None:
        """Read what the processes have written since."""
        for path in self.logs.glob("*.log"):
            with path.open("rb") as file:
                file.seek(self._offsets.get(path, 0))
                data = file.read()
            whole = data.rfind(b"\n") + 1
            self._offsets[path] = self._offsets.get(path, 0) + whole
            for line in data[:whole].splitlines():
                about = json.loads(line)
                if "finding" in about:
                    raise Finding(about["finding"])
                if "act" in about:
                    self.outcomes[about["act"], about["outcome"]] += 1
                elif "version" in about or "refused" in about or "done" in about:
                    self.told.append(about)
                    what = about.get("refused", "done" if "done" in about else "version")
                    self.outcomes["told", what.partition(":")[0]] += 1
                else:
                    if "sent" in about:
                        self.sent |= dict.fromkeys(about["writes"].items(), about["tag"])
                    self.notes[about["tag"]] = about

    def follow(self, most: int | None = None) -> None:
        """Judge the versions that came since, or so many of them: processes may be faster than the judge."""
        while most is None or most > 0:
            most = None if most is None else most - 1
            number = self.newest + 1
            if not self.at.exists(tree.root_path(number)):
                boundary = self._boundary()
                if boundary <= number:
                    return
                self.gaps += 1  # those between expired before they were read
                self.newest = boundary - 1
                continue
            self.read_notes()
            try:
                self._judge(number)
            except (FileNotFoundError, tree.Broken):
                if self._boundary() <= number:
                    raise
                self.gaps += 1  # it expired while it was read, and was cleaned
                self.judge.nodes.clear()
                self.contents.pop(number, None)
            self.newest = number
            (self.logs / JUDGED).write_text(f"{number}", encoding="utf-8")

    def _boundary(self) -> int:
        try:
            return int(self.at.read("_oldest_version.txt"))
        except FileNotFoundError:
            return 0

    def _judge(self, number: int) -> None:
        path = tree.root_path(number)
        node = self.judge.judge(path, self.at.read(path))
        rows = node.system
        tree.refuse(int(rows["version"]) != number, "I13", path, rows["version"])
        found = {key: self._means(key, at) for key, at in node.content().items()}
        before = self.contents.get(number - 1)
        expected = self._explain(number, rows, before, found)
        if expected is not None and expected != found:
            raise Finding(f"version {number}, {rows['operation']}: {tree.differences(found, expected)}")
        if "tables" in rows:
            said = tuple(int(rows[name]) for name in ("namespaces", "tables", "views"))
            tree.refuse(said != node.counts, "I9", path, f"counts {said}, and holds {node.counts}")
        self.contents[number] = found
        self.contents.pop(number - 500, None)
        self.judged += 1

    def _explain(
        self, number: int, rows: dict[str, str], before: dict[str, str] | None, found: dict[str, str]
    ) -> dict[str, str] | None:
        """Return what a version must hold, by its note; nothing where the version before it was not seen."""
        operation = rows["operation"]
        if operation in QUIET:
            return before
        tag = str(wire.read_json(rows.get("summary")).get("reason"))
        about = self.notes.get(tag)
        if about is None and before is not None and operation in {"commit", "bulk"}:
            return self._explain_requests(number, before, found)
        if about is None and before is None:
            return None
        if about is None:
            raise Finding(f"version {number}, {operation}, has the reason {tag!r}, which nobody noted")
        self._note_version(tag, number)
        if "rollback" in about:
            return self.contents.get(about["rollback"])
        if before is None:
            return None
        if "load" in about:
            return {**before, **about["load"]} if about["existing"] == "replace" else {**about["load"], **before}
        for each in range(about["base"] + 1, number):
            lost = self._writes_of(each) & about["writes"].keys()
            if lost:
                raise Finding(f"version {number} is based on {about['base']}, and overwrites {lost} of version {each}")
        content = {**before, **{key: mark for key, mark in about["writes"].items() if mark is not None}}
        for key, mark in about["writes"].items():
            if mark is None:
                content.pop(key, None)
        return content

    def _explain_requests(self, number: int, before: dict[str, str], found: dict[str, str]) -> dict[str, str]:
        """Return what a version must hold that an endpoint made of requests, of which each changes one namespace."""
        changed = [key for key in found.keys() | before.keys() if found.get(key) != before.get(key)]
        if not changed:
            raise Finding(f"version {number} changes nothing, and nobody noted it")
        for key in sorted(changed):
            tag = self.sent.get((key, found.get(key)))
            if tag is None:
                raise Finding(f"version {number} makes {found.get(key)!r} of {key.rstrip()!r}, which nobody sent")
            self._note_version(tag, number)
        return found

    def _note_version(self, tag: str, number: int) -> None:
        if tag in self.by_tag:
            raise Finding(f"{tag} is version {self.by_tag[tag]}, and version {number} too")
        self.by_tag[tag] = number
        self.written.setdefault(number, set()).update(self.notes[tag].get("writes", {}))

    def _writes_of(self, number: int) -> set[str]:
        return self.written.get(number, set())

    def finish(self) -> None:
        """Judge what is left, what the processes were told, and every retained version and its files once more."""
        self.follow()
        self.read_notes()
        for each in self.told:
            tag = each["tag"]
            if "version" in each and each["version"] <= self.newest and self.by_tag.get(tag, -1) != each["version"]:
                if self.gaps and tag not in self.by_tag:
                    continue
                raise Finding(f"{tag} was told that it is version {each['version']}; that is {self.by_tag.get(tag)}")
            if "version" in each and each["version"] > self.newest:
                raise Finding(f"{tag} was told that it is version {each['version']}, and {self.newest} is the newest")
            if "done" in each and tag not in self.by_tag and not self.gaps:
                raise Finding(f"{tag} was told that it is done, and no version says so")
            if "refused" in each and tag in self.by_tag:
                raise Finding(f"{tag} was refused ({each['refused']}), and is version {self.by_tag[tag]}")
        self.judge.nodes.clear()
        snapshots = set[str]()
        for number in range(self._boundary(), self.newest + 1):
            path = tree.root_path(number)
            node = self.judge.judge(path, self.at.read(path))
            found = {key: self._means(key, at) for key, at in node.content().items()}
            if number in self.contents and found != self.contents[number]:
                raise Finding(f"version {number} now: {tree.differences(found, self.contents[number])}")
            facts = wire.read_lakehouse(self.at.read(node.system["lakehouse_def"]))
            snapshots = {each.path for each in facts.snapshots.values()}
        versions = range(self._boundary(), self.newest + 1)
        needed, _ = files.needed(self.at, self.judge, versions, snapshots, int(time.time() * 1000))
        files.refuse_wrong_files(self.at, needed, set(), 0, cleaned=False)


def run(seconds: float, seed: int, storage: str) -> str:
    """Let processes live for a while; return what they did. Raises ``Finding``; the directory stays then."""
    where = in_memory() if storage == "memory" else None
    directory = Path(tempfile.mkdtemp(prefix="judge-processes-", dir=where))
    chance = random.Random(seed)
    order = chance.choice((3, 4, 5, 8, 128))
    sizes = dict.fromkeys((f"{kind}_name_max_size_bytes" for kind in ("namespace", "table", "view")), 8)
    least = key_table_max_bytes(new_lakehouse_def(order=order, **sizes)) + 1
    node_bytes = least + chance.choice((0, 2000, 20_000))
    with ExitStack() as stack:
        if storage in {"s3", "lossy"}:
            server = stack.enter_context(run_slow_s3(directory))
            server.set(share=LOST if storage == "lossy" else 0, seed=seed)
            root, options = server.new_root(), server.options
            at: files.Files = Bucket(server.client(), server.bucket, root.split("/", 3)[3])
        else:
            root, options = (directory / "lake").as_uri(), {"durable": storage == "disk"}
            at = files.Directory(directory / "lake")
        definition: dict[str, Any] = {"order": order, "node_file_max_size_bytes": node_bytes, **sizes}
        lake = Lakehouse.create(root, storage_options=options, txn_ttl_millis=TTL_MILLIS, **definition)
        (logs := directory / "logs").mkdir()
        chain = Chain(at, logs, order, node_bytes)
        writes: dict[str, str | None] = {key_of("namespace", each): "first" for each in SPACES}
        (logs / "first.log").write_text(json.dumps({"tag": "first", "writes": writes, "base": 0}) + "\n")
        with lake.transaction(reason="first") as txn:
            for each in SPACES:
                txn.create_namespace(each, {"mark": "first"})
        until, lives = list[float](), dict[int, Path]()
        context = multiprocessing.get_context("forkserver")  # each begins with all modules there, and no thread
        context.set_forkserver_preload(["tests.model.processes", "pandas"])  # which PyArrow imports late

        def start(number: int, life: int) -> BaseProcess:
            log = lives[number] = logs / f"{number}-{life}.log"
            process = context.Process(target=live, args=(root, options, log, number, life, seed), daemon=True)
            process.start()
            return process

        def enough() -> bool:
            chain.follow(AT_ONCE)
            if not until and all(log.exists() for log in lives.values()):  # to import everything may take a while
                until.append(time.monotonic() + seconds)
            return bool(until) and time.monotonic() > until[0]

        try:
            disturbed = disturb(
                start,
                WRITERS + JOBS + ENDPOINTS,
                enough,
                stall=STALL_SECONDS,
                spared=lambda number: not lives[number].exists(),
            )
            chain.finish()
        except BaseException:
            print(f"the directory stays: {directory}", flush=True)
            raise
    outcomes = ", ".join(f"{act} {outcome}: {count}" for (act, outcome), count in sorted(chain.outcomes.items()))
    files.remove(directory)
    return (
        f"seed {seed}, {storage}, order {order}: {chain.newest} versions, {chain.judged} judged, {chain.gaps} missed, "
        f"{disturbed}; {outcomes}"
    )


def run_all(seconds: float, each: float, seed: int, storages: Sequence[str]) -> int:
    """Run one lakehouse after the other until the time is over, and print what happened; return what was found."""
    until, wrong = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        storage = storages[seed % len(storages)]
        try:
            print(run(each, seed, storage), flush=True)
        except (Finding, tree.Broken, AssertionError) as error:
            wrong += 1
            print(f"FOUND with seed {seed}, {storage}: {error}", flush=True)
        seed += 1
    return wrong
