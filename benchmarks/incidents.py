"""The incidents of docs/runbook.md, one after the other, in a deployment: who notices, what is sent, what is left.

python -m benchmarks incidents [--only NAME ...] [--list]

PostgreSQL, the units of ``deploy/`` and ten lakehouses of thirty tables, on disk and on an S3 server. Each incident has
the lakehouse whose turn it is. It is broken, noticed, mended by the commands of the page, and ends with one whole run
of maintenance. The commands are read from the page, so one that is wrong there fails here. What the page says of a
version, a time or a root is replaced by what it is here. Disks that can be full are tmpfs in a mount namespace of its
own, so none is left, however it ends.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import psutil
import pytest
import yaml

from benchmarks import report
from benchmarks.soak import TICKS
from tests.support import icebergs
from tests.support.deployment import Deployment, deployed, eventually
from tests.support.fleets import SMALL, Webhook, webhook
from tests.support.misbehaving import Misbehaving
from tests.support.postgres import run_postgres
from tests.support.s3_servers import KEY, SECRET, S3Server, run_moto
from trinitylake_core import Lakehouse
from trinitylake_core.commits.commit import acting_as
from trinitylake_core.errors import LakehouseFrozen
from trinitylake_core.locations import root_path
from trinitylake_core.storage import Storage, open_storage

RUNBOOK: Final = Path(__file__).parent.parent / "docs" / "runbook.md"
_OWN_MOUNTS: Final = "TRINITYLAKE_OWN_MOUNTS"
"""Set where mounts are seen by nobody else."""
_DISK: Final = "2g"
_LAKES: Final = 10
_TABLES: Final = 10
_YOUNG_MILLIS: Final = 8_000
"""Versions that are younger never expire; transactions that are older are not committed."""
_NOTICED_WITHIN: Final = 300.0
_RETRIED_WITHIN: Final = 1500.0
_SENT_WITHIN: Final = 150.0
_LAUNCHED_WITHIN: Final = 60.0
_FIRST_NIGHTS: Final = 3
_LOOK: Final = 0.5
_NEXT: Final = re.compile(r"use --expected-version (\d+)")
_GARBAGE: Final = b"this is no Arrow file"


class Page:
    """The commands of a page of incidents, by the heading above them."""

    def __init__(self, path: Path) -> None:
        self.text = path.read_text(encoding="utf-8")

    def commands(self, heading: str) -> list[str]:
        """Return the commands below a heading, with those of the headings below that one."""
        begun = re.search(rf"^(#+) {re.escape(heading)}$", self.text, re.MULTILINE)
        if begun is None:
            raise LookupError(f"the page has no heading {heading!r}")
        rest = self.text[begun.end() :]
        end = re.search(rf"^#{{1,{len(begun[1])}}} ", rest, re.MULTILINE)
        part = rest if end is None else rest[: end.start()]
        return [
            block or inline
            for block, inline in re.findall(r"^ *\$ (trinitylake .*)$|`(trinitylake [^`]*)`", part, re.MULTILINE)
        ]

    def command(self, heading: str, *words: str) -> list[str]:
        """Return the first command below a heading that has these words; one that has no others comes first."""
        lines = [shlex.split(line)[1:] for line in self.commands(heading)]
        found = [line for line in lines if words[0] == line[0] and {*words} <= {*line}]
        exact = [line for line in found if len(line) == len(words) + 1]  # and a root
        if found:
            return (exact or found)[0]
        raise LookupError(f"below {heading!r} the page has no command with {words}")


@dataclass
class Told:
    """What is told of one incident."""

    name: str
    lakehouse: str
    noticed: str = "people"
    minutes: float | None = None
    messages: list[str] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)
    night: str = ""
    left: str = "nothing"
    took: float = 0.0
    """Minutes, without the wait for the message that ends it."""


class Scene:
    """A lakehouse in which something happens, and what the person on call does about it."""

    def __init__(self, evening: Evening, name: str, told: Told) -> None:
        self.evening, self.name, self.told = evening, name, told
        self.root, self.backup, self.options = evening.roots[name], evening.backups[name], evening.options(name)
        self.begun = time.time()

    # -- what happens --

    @property
    def lake(self) -> Lakehouse:
        """The newest version, afresh."""
        return Lakehouse.open(self.root, storage_options=self.options)

    @property
    def storage(self) -> Storage:
        """The storage of the lakehouse, behind its back."""
        return open_storage(self.root, self.options)

    @property
    def version(self) -> int:
        """The newest version."""
        return self.lake.version

    def change(self, name: str, author: str = "etl@airflow", namespace: str = "finance", **properties: str) -> None:
        """Commit a table whose name no incident before took."""
        name = f"{name}_{self.version}"
        with acting_as(author), self.lake.transaction(reason=f"create {name}") as txn:
            txn.create_table(namespace, name, properties=properties)

    def node(self) -> str:
        """Return a node that the newest version alone reaches."""
        newest = self.version
        reached = [{*self.lake.at(version=each).root_node.node.children} for each in (newest - 1, newest)]
        return min(reached[1] - reached[0])

    def definition(self, namespace: str, name: str) -> str:
        """Return the file of a table's definition."""
        (path,) = [each.path for each in self.lake.objects() if (each.namespace, each.name) == (namespace, name)]
        return path

    def damage(self, path: str) -> None:
        """Write something else in the place of a file."""
        self.begun = time.time()
        self.storage.replace(path, _GARBAGE)

    # -- what is noticed --

    def sent(self) -> list[dict[str, Any]]:
        """Return the messages about this lakehouse since it was broken."""
        return self.evening.messages(self.name, self.begun)

    def notice(self) -> None:
        """Wait until a message says that something is wrong here."""
        eventually(lambda: bool(self.sent()), lambda: "no message came", _NOTICED_WITHIN, _LOOK)
        self._noticed("sensor")

    def notice_at_night(self) -> None:
        """Let the nightly run begin, and wait until a message says that something is wrong here."""
        run = self.evening.maintain(self.name, _RETRIED_WITHIN)
        self.told.steps.append(f"(the nightly run: {run['status']})")
        if run["status"] == "SUCCESS":
            raise AssertionError("the nightly run has noticed nothing")
        self.notice()
        self.told.noticed = "nightly run"

    def _noticed(self, by: str) -> None:
        self.told.noticed = by
        self.told.minutes = round((time.time() - self.begun) / 60, 1)

    # -- what is done --

    def do(self, heading: str, *words: str, code: int = 0, roots: dict[str, str] | None = None, **values: Any) -> str:
        """Carry out a command of the page, with the versions and roots of here; return what it printed."""
        line = self.evening.page.command(heading, *words)
        places = {
            "file:///data/lake": self.root,
            "file:///backup/lake": self.backup,
            "ROOT": self.root,
            **(roots or {}),
        }
        line = [places.get(word, word) for word in line]
        for option, value in values.items():
            name = f"--{option.replace('_', '-')}"
            line[line.index(name) + 1] = str(value)
        return self.run(line, code)

    def run(self, line: Sequence[str], code: int = 0) -> str:
        """Run a command, which must end with this code; return what it printed."""
        environment = os.environ | {"TRINITYLAKE_AUTHOR": "ada@oncall"}
        environment |= {"TRINITYLAKE_STORAGE_OPTIONS": json.dumps(self.options)} if self.options else {}
        program = Path(sysconfig.get_path("scripts")) / "trinitylake"
        done = subprocess.run(
            [str(program), *line],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        said = shlex.join(line).replace(self.root, "ROOT").replace(self.backup, "BACKUP")
        self.told.steps.append(said if done.returncode == 0 else f"{said} -> {done.returncode}")
        if done.returncode != code:
            raise AssertionError(f"{said} ended with {done.returncode}: {done.stdout[-1500:]}{done.stderr[-1500:]}")
        return done.stdout + done.stderr

    def plan(self, heading: str, *words: str, roots: dict[str, str] | None = None, **values: Any) -> str:
        """Carry out a dry run of the page; return the version that its plan is for."""
        told = self.do(heading, *words, "--dry-run", roots=roots, **values)
        found = _NEXT.search(told)
        if found is None:
            raise AssertionError(f"the plan does not say what carries it out: {told[-1500:]}")
        return found[1]


@dataclass
class Evening:
    """The deployment, its lakehouses, and what its webhook has heard."""

    deployment: Deployment
    told: Webhook
    server: S3Server
    way: Misbehaving
    roots: dict[str, str]
    backups: dict[str, str]
    folder: Path
    host: Path
    """The disk of the units: temporary files, DAGSTER_HOME and logs."""
    database: Path
    """The disk of PostgreSQL."""
    page: Page = field(default_factory=partial(Page, RUNBOOK))
    waits: dict[str, threading.Thread] = field(default_factory=dict)
    """What waits for the last message of an incident, by lakehouse: the next incident happens to another one."""

    def settle(self, *names: str) -> None:
        """Wait until the last incident of each of these lakehouses is over, and what was sent of it has come."""
        for name in names:
            if name in self.waits:
                self.waits.pop(name).join()

    def options(self, name: str) -> dict[str, Any]:
        """Return the storage options of a lakehouse."""
        return self.server.options if self.roots[name].startswith("s3:") else {}

    def messages(self, name: str, since: float) -> list[dict[str, Any]]:
        """Return the messages that name a lakehouse."""
        named = re.compile(rf"\b{name}(\b|_)")
        return [each for at, each in self.told.received if at >= since and named.search(json.dumps(each))]

    def maintain(self, name: str, seconds: float = 600.0) -> dict[str, Any]:
        """Run the whole maintenance of a lakehouse, as its schedule does."""
        return self.deployment.finished(self.deployment.launch(f"{name}_maintenance"), seconds)

    def wait_until_polled(self) -> None:
        """Wait until every sensor has ticked again."""
        begun = time.time()

        def ticked() -> bool:
            found = self.deployment.graphql(TICKS)["workspaceOrError"]["locationEntries"][0]["locationOrLoadError"]
            sensors = [each for part in found["repositories"] for each in part["sensors"]]
            ours = [each["sensorState"]["ticks"] for each in sensors if each["name"].endswith("_compaction_sensor")]
            return all(any(tick["timestamp"] > begun and tick["endTimestamp"] for tick in ticks) for ticks in ours)

        eventually(ticked, lambda: "a sensor does not tick", _NOTICED_WITHIN, 2.0)

    def validate(self) -> str:
        """Carry out what the page says about a wrong file; return what it printed."""
        line = "python -m dagster_project.instance validate"
        if line not in self.page.text:
            raise LookupError(f"the page does not say {line!r}")
        command = [sys.executable, *shlex.split(line)[1:]]
        done = subprocess.run(
            command, env=self.deployment.environment("code"), capture_output=True, text=True, check=False
        )
        return done.stdout + done.stderr

    def read_stanzas(self) -> dict[str, Any]:
        """Return ``lakehouses.yaml``."""
        found: dict[str, Any] = yaml.safe_load(self.stanzas.read_text(encoding="utf-8"))
        return found

    @property
    def stanzas(self) -> Path:
        """Where ``lakehouses.yaml`` lies."""
        return self.deployment.home / "etc" / "lakehouses.yaml"

    def write_stanzas(self, text: str) -> None:
        """Replace ``lakehouses.yaml``, and reload the code location."""
        self.stanzas.write_text(text, encoding="utf-8")
        name = self.deployment.location
        self.deployment.graphql(_RELOAD, name=name)
        self.deployment.wait_until_ready()


_RELOAD: Final = """mutation($name: String!) { reloadRepositoryLocation(repositoryLocationName: $name) { __typename
  ... on WorkspaceLocationEntry { loadStatus } } }"""

# -- the incidents, by the headings of the page -----------------------------------------------------------

DROPPED: Final = "A namespace was dropped"
DEPLOY: Final = "The nightly deploy broke the catalog"
DAMAGED: Final = "A file is damaged"
CORRUPT: Final = "The newest version is corrupt"
EXPIRED: Final = "Too many versions expired"
BILL: Final = "The bill grows"
DATA: Final = "Somebody expired the data"
SET_BACK: Final = "A bucket was set back"
MACHINES: Final = "When machines fail"
BACKUP: Final = "Is my backup good?"


def drop_a_namespace(scene: Scene) -> None:
    """Drop the namespace `sales`; work goes on."""
    good = scene.version
    with acting_as("bob@laptop"), scene.lake.transaction(reason="clean up my test namespace") as txn:
        txn.drop_namespace("sales", cascade=True)
    scene.change("later")
    told = scene.do(DROPPED, "history", "--object")
    assert "bob@laptop" in told
    scene.do(
        DROPPED,
        "restore",
        *("--expected-version",),
        version=good,
        expected_version=scene.plan(DROPPED, "restore", version=good),
    )
    scene.do(DROPPED, "verify", "--definitions")
    assert len(scene.lake.tables("sales")) == _TABLES


def break_the_catalog(scene: Scene) -> None:
    """Let a deploy change and drop; another writer commits between the plan and the rollback."""
    good = scene.version
    _deploy(scene)
    scene.do(DEPLOY, "history", "--limit")
    planned = scene.plan(DEPLOY, "rollback", to_version=good)
    with acting_as("etl@airflow"), scene.lake.transaction(reason="owner of the budget") as txn:
        txn.alter_table("finance", "budget", properties={"owner": "ada"})
    told = scene.do(DEPLOY, "rollback", "--expected-version", to_version=good, expected_version=planned, code=3)
    (newest,) = re.findall(r"version (\d+) \(commit by etl@airflow", told)
    scene.do(DEPLOY, "rollback", "--expected-version", to_version=good, expected_version=newest)
    scene.do(DEPLOY, "restore", "--only", version=newest)
    scene.do(DEPLOY, "verify", "--definitions")


def undo_a_deploy(scene: Scene) -> None:
    """Let a deploy change and drop; its author is known, its versions are not."""
    _deploy(scene)
    told = scene.do(DEPLOY, "undo", "--dry-run")
    found = _NEXT.search(told)
    assert found is not None, told
    scene.do(DEPLOY, "undo", "--expected-version", expected_version=found[1])


def _deploy(scene: Scene) -> None:
    for step in ("", ", step 2"):
        with acting_as("deploy-bot@ci"), scene.lake.transaction(reason=f"nightly deploy 2026.11.21{step}") as txn:
            txn.drop_table("sales", "t1" if step else "t0")
            txn.alter_table("sales", "t2", properties={"deploy": step or "step 1"})


def damage_the_target(scene: Scene) -> None:
    """Let a deploy break the catalog, and damage a definition of the version before it."""
    good = scene.version
    scene.damage(scene.definition("sales", "t0"))
    _deploy(scene)
    told = scene.do(DEPLOY, "rollback", "--dry-run", to_version=good, code=4)
    assert "is not intact" in told, told
    scene.do(DAMAGED, "mend", "--from")
    scene.do(CORRUPT, "verify", "--version", version=good)
    _roll_back(scene, DEPLOY, good)


def _roll_back(scene: Scene, section: str, version: int | str) -> None:
    """Roll back by a section of the runbook, if nobody has committed since the plan."""
    planned = scene.plan(section, "rollback", to_version=version)
    scene.do(section, "rollback", "--expected-version", to_version=version, expected_version=planned)


def _compacted(scene: Scene) -> None:
    scene.change("new")
    scene.run(["compact", scene.root])


def damage_a_node(scene: Scene) -> None:
    """Damage a node of the newest version, which the backup has."""
    _compacted(scene)
    assert scene.evening.maintain(scene.name)["status"] == "SUCCESS"
    scene.damage(min(scene.lake.root_node.node.children))
    scene.notice_at_night()
    scene.do(DAMAGED, "mend", "--from")
    scene.do(DAMAGED, "verify", "--all")


def damage_a_node_that_nobody_has(scene: Scene) -> None:
    """Damage a node of a compaction that was not backed up."""
    _compacted(scene)
    bad = scene.version
    scene.damage(scene.node())
    scene.notice_at_night()
    scene.do(DAMAGED, "mend", "--from", code=1)
    scene.do(CORRUPT, "verify", "--version", version=bad - 1)
    _roll_back(scene, CORRUPT, bad - 1)
    scene.do(CORRUPT, "verify", "--definitions")
    scene.do(CORRUPT, "mend", "--lost", lost=bad)


def damage_the_root(scene: Scene) -> None:
    """Damage the root of the newest version, which nobody has."""
    scene.change("new")
    bad = scene.version
    scene.damage(root_path(bad))
    scene.notice()
    scene.do(DAMAGED, "mend", "--from", code=1)
    told = scene.do(CORRUPT, "ls", code=4)
    (good,) = re.findall(r"--to-version (\d+)", told)
    _roll_back(scene, CORRUPT, good)
    scene.do(CORRUPT, "mend", "--lost", lost=bad)


def remove_a_root(scene: Scene) -> None:
    """Remove a root between others, which the backup has."""
    bad = scene.version
    scene.change("new")
    scene.begun = time.time()
    scene.storage.delete_many([root_path(bad)])
    scene.notice_at_night()
    scene.do(DAMAGED, "mend", "--from")
    scene.do(DAMAGED, "verify", "--all")


def remove_a_root_that_nobody_has(scene: Scene) -> None:
    """Remove a root between others, which was not backed up."""
    scene.change("new")
    bad = scene.version
    scene.change("newer")
    scene.begun = time.time()
    scene.storage.delete_many([root_path(bad)])
    scene.notice_at_night()
    scene.do(DAMAGED, "mend", "--from", code=1)
    scene.do(CORRUPT, "mend", "--lost", lost=bad)
    scene.do(DAMAGED, "verify", "--all")


def copy_a_strange_root(scene: Scene) -> None:
    """Copy the root of another lakehouse: it is the newest one here."""
    other = next(
        each for each in scene.evening.roots if scene.evening.options(each) == scene.options and each != scene.name
    )
    strange = open_storage(scene.evening.roots[other], scene.options)
    newest = Lakehouse.open(strange).version
    good = scene.version
    scene.begun = time.time()
    scene.storage.replace(root_path(good + 1), strange.read(root_path(newest)))
    scene.notice_at_night()
    _roll_back(scene, CORRUPT, good)
    scene.do(CORRUPT, "verify", "--definitions")
    scene.do(CORRUPT, "mend", "--lost", lost=good + 1)


def expire_too_much(scene: Scene) -> None:
    """Drop a namespace, and expire all versions that have it; the backup has it."""
    with acting_as("bob@laptop"), scene.lake.transaction(reason="clean up") as txn:
        txn.drop_namespace("sales", cascade=True)
    scene.change("later")
    _expire(scene, 1)
    planned = scene.plan(EXPIRED, "restore", "--only")
    line = scene.evening.page.command(EXPIRED, "restore", "--only", "--dry-run")
    places = {"file:///data/lake": scene.root, "file:///backup/lake": scene.backup}
    scene.run([*(places.get(word, word) for word in line if word != "--dry-run"), "--expected-version", planned])
    scene.do(DROPPED, "verify", "--definitions")
    assert len(scene.lake.tables("sales")) == _TABLES
    _move_backup(scene)


def damage_a_definition(scene: Scene) -> None:
    """Damage a definition, which the backup has."""
    scene.damage(scene.definition("sales", "t3"))
    scene.notice_at_night()
    scene.do(DROPPED, "verify", "--definitions", code=1)
    scene.do(DAMAGED, "mend", "--from")
    scene.do(DAMAGED, "verify", "--all")


def set_a_bucket_back(scene: Scene, *, goes_on: bool = False) -> None:
    """Put the storage back to its state of yesterday; today is in the backup alone."""
    yesterday = {each.path: scene.storage.read(each.path) for each in scene.storage.list()}
    before = scene.version
    scene.change("today")
    scene.change("today_too")
    assert scene.evening.maintain(scene.name)["status"] == "SUCCESS"
    scene.evening.wait_until_polled()
    seen = scene.version
    storage = scene.storage
    scene.begun = time.time()
    storage.delete_many([each.path for each in storage.list() if each.path not in yesterday])
    for path, data in yesterday.items():
        storage.replace(path, data)
    if goes_on:
        for number in range(seen - before + 1):
            scene.change(f"other{number}")
    scene.notice()
    if not goes_on:
        scene.do(SET_BACK, "export", "file:///data/lake", code=3)
        line = [
            each
            for each in scene.evening.page.commands(SET_BACK)
            if each.startswith("trinitylake export file:///backup")
        ]
        places = {"file:///data/lake": scene.root, "file:///backup/lake": scene.backup}
        scene.run([places.get(word, word) for word in shlex.split(line[0])[1:]])
        assert seen == scene.version
        return
    planned = scene.plan(SET_BACK, "restore", "--only")
    line = scene.evening.page.command(SET_BACK, "restore", "--only")
    places = {"file:///data/lake": scene.root, "file:///backup/lake": scene.backup}
    scene.run([*(places.get(word, word) for word in line if word != "--dry-run"), "--expected-version", planned])
    scene.do(SET_BACK, "alter", "--accept")
    _move_backup(scene)


def _move_backup(scene: Scene) -> None:
    """Give the backup a new root."""
    stanzas = scene.evening.read_stanzas()
    for each in stanzas["lakehouses"]:
        if each["name"] == scene.name:
            each["backup"]["target"] = f"{scene.backup.rstrip('/')}-new"
            scene.backup = scene.evening.backups[scene.name] = each["backup"]["target"]
    scene.evening.write_stanzas(yaml.safe_dump(stanzas))
    scene.told.steps.append("a new root for the backup in lakehouses.yaml")


def fill_the_backup(scene: Scene) -> None:
    """Let the storage of the backup be full."""
    disk = scene.evening.folder / f"{scene.name}-backup-disk"
    used = shutil.disk_usage(disk).used
    _mount(f"remount,size={used // 1024 + 8}k", disk)
    for number in range(4):
        scene.change(f"more{number}", padding="x" * 20_000)
    scene.begun = time.time()
    scene.notice_at_night()
    _mount("remount,size=64m", disk)
    scene.told.steps.append("room on the storage of the backup")
    scene.do(SET_BACK, "export", "file:///data/lake")


def _mount(options: str, disk: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(disk)], check=True)  # noqa: S607 - whatever there is


def end_the_storage(scene: Scene) -> None:
    """Let the S3 server refuse every request for four minutes, in which the nightly run begins."""
    scene.begun = time.time()
    scene.evening.way.most_at_once = 0
    run = scene.evening.deployment.launch(f"{scene.name}_maintenance")
    scene.notice()
    time.sleep(max(0.0, 240 - (time.time() - scene.begun)))
    scene.evening.way.most_at_once = None
    found = scene.evening.deployment.finished(run)
    scene.told.steps.append(f"(the nightly run: {found['status']})")


@contextmanager
def _full(disk: Path) -> Iterator[None]:
    """Let a disk be full while the block runs."""
    used = shutil.disk_usage(disk).used
    _mount(f"remount,size={used // 1024 + 64}k", disk)
    big = disk / "big"
    try:
        with big.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))
        yield
    finally:
        big.unlink()
        _mount(f"remount,size={_DISK}", disk)


def fill_the_host(scene: Scene) -> None:
    """Let the disk of the units be full: temporary files, DAGSTER_HOME and logs."""
    scene.change("new")
    with _full(scene.evening.host):
        _try_a_night(scene)
    scene.told.steps.append("room in the directory that the message names")


def fill_the_database(scene: Scene) -> None:
    """Let the disk of PostgreSQL be full when the nightly run begins."""
    scene.change("new")
    server = scene.evening.deployment.server
    assert server is not None
    assert server.process is not None
    with _full(scene.evening.database):
        _try_a_night(scene)
    scene.told.steps.append("room on the disk of PostgreSQL")
    if server.process.poll() is not None:
        server.start()
        scene.told.steps.append("PostgreSQL started again")
    scene.evening.deployment.wait_until_ready()


def _try_a_night(scene: Scene) -> None:
    """Let the nightly run begin where perhaps none can, and wait until a message says so, if one ever does."""
    scene.begun = time.time()
    deployment = scene.evening.deployment
    try:
        run_id = deployment.launch(f"{scene.name}_maintenance", seconds=_LAUNCHED_WITHIN)
        run = deployment.finished(run_id, _RETRIED_WITHIN)
    except (AssertionError, OSError) as error:
        scene.told.steps.append(f"(no run can be launched: {str(error)[-900:]})")
        time.sleep(_LAUNCHED_WITHIN)  # what is sent now is counted
        return
    scene.told.steps.append(f"(the nightly run: {run['status']})")
    if run["status"] != "SUCCESS":
        scene.notice()


def damage_a_snapshot(scene: Scene) -> None:
    """Damage the root of a snapshot that was never backed up."""
    scene.run(["snapshot", "create", scene.root, "before-migration"])
    (found,) = [each for each in scene.lake.snapshots() if each.name == "before-migration"]
    scene.damage(found.root_path)
    run = scene.evening.maintain(scene.name)
    scene.told.steps.append(f"(the nightly run: {run['status']})")
    scene.notice()
    scene.told.noticed = "nightly run"
    scene.do(DAMAGED, "mend", "--from", code=1)
    line = scene.evening.page.command(DAMAGED, "snapshot", "drop")
    names = {"ROOT": scene.root, "NAME": "before-migration"}
    scene.run([names.get(word, word) for word in line])


def restore_a_definition(scene: Scene) -> None:
    """Damage a definition that was made after the backup, which has the one before."""
    with acting_as("etl@airflow"), scene.lake.transaction(reason="owner") as txn:
        txn.alter_table("sales", "t5", properties={"owner": "ada"})
    first = scene.version
    scene.damage(scene.definition("sales", "t5"))
    scene.notice_at_night()
    scene.do(DAMAGED, "mend", "--from", code=1)
    line = scene.evening.page.command(EXPIRED, "restore", "--damaged", "--dry-run")
    places = {"file:///data/lake": scene.root, "file:///backup/lake": scene.backup}
    line = [places.get(word, word) for word in line]
    planned = _NEXT.search(scene.run(line))
    assert planned is not None
    line.remove("--dry-run")
    scene.run([*line, "--expected-version", planned[1]])
    scene.do(DROPPED, "verify", "--definitions")
    lost = scene.evening.page.command(CORRUPT, "mend", "--lost")
    at = lost.index("--lost")
    each_of = [word for version in range(first, scene.version) for word in ("--lost", str(version))]
    scene.run([places.get(word, word) for word in (*lost[:at], *each_of, *lost[at + 2 :])])


def freeze_the_writers(scene: Scene) -> None:
    """Let a deploy break the catalog, and another writer commit again and again until it is frozen."""
    good = scene.version
    _deploy(scene)
    scene.do("Runbook", "freeze", "--for")
    with pytest.raises(LakehouseFrozen, match="incident 4712"):
        scene.change("refused")
    _roll_back(scene, DEPLOY, good)
    scene.do("Runbook", "thaw")
    scene.change("allowed")


def kill_spark(scene: Scene) -> None:
    """Kill the JVM of a run that has work for one: for less none is started."""
    for part in range(10):  # each within the time that a transaction has
        with acting_as("etl@airflow"), scene.lake.transaction(reason="many tables") as txn:
            for number in range(30):
                txn.create_table("logs", f"many{part}_{number}")
    run_id = scene.evening.deployment.launch(
        f"{scene.name}_compaction",
        {"ops": {f"lakehouse__{scene.name}__tree_compaction": {"config": {"engine": "spark"}}}},
    )
    found: list[psutil.Process] = []

    def started() -> bool:
        found[:] = [each for each in scene.evening.deployment.processes("code") if _is_spark(each)]
        return bool(found)

    eventually(started, lambda: str(scene.evening.deployment.run(run_id)), 300, 0.05)
    time.sleep(3)
    scene.begun = time.time()
    for each in found:
        each.kill()
    run = scene.evening.deployment.finished(run_id)
    scene.told.steps.append(f"(the run whose Spark was killed: {run['status']})")
    if run["status"] != "SUCCESS":
        scene.notice()


def _is_spark(process: psutil.Process) -> bool:
    """Return whether a process is Spark's JVM. A `java -Xmx128m` before it only puts its command together, and ends."""
    try:
        return "java -cp" in " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False


def misspell_a_stanza(scene: Scene) -> None:
    """Misspell a field of its stanza."""
    good = scene.evening.stanzas.read_text(encoding="utf-8")
    stanzas = yaml.safe_load(good)
    for each in stanzas["lakehouses"]:
        if each["name"] == scene.name:
            each["retention"] = {"keep_lats": 3}
    scene.begun = time.time()
    scene.evening.write_stanzas(yaml.safe_dump(stanzas))
    scene.notice()
    told = scene.evening.validate()
    assert "keep_lats" in told, told
    scene.told.steps.append("validate")
    scene.evening.write_stanzas(good)
    scene.told.steps.append("the field in lakehouses.yaml")


def damage_the_backup(scene: Scene) -> None:
    """Damage a definition of the copy."""
    path = scene.definition("sales", "t4")
    scene.begun = time.time()
    copy = open_storage(scene.backup, scene.options)
    copy.replace(path, bytes(len(copy.read(path))))  # of another size, the next export would copy it again
    scene.notice_at_night()
    scene.do(BACKUP, "verify", "--definitions", code=1)
    scene.do(BACKUP, "mend", "--from")
    scene.do(BACKUP, "verify", "--definitions")


def lose_the_lakehouse(scene: Scene) -> None:
    """Remove every file; the backup goes to a new root, which the stanza names then."""
    storage = scene.storage
    scene.begun = time.time()
    storage.delete_many([each.path for each in storage.list()])
    scene.notice()
    new = f"{scene.root.rstrip('/')}-new"
    scene.do(BACKUP, "export", "file:///data/lake-new", roots={"file:///data/lake-new": new})
    stanzas = scene.evening.read_stanzas()
    for each in stanzas["lakehouses"]:
        if each["name"] == scene.name:
            each |= {"root": new, "backup": {"target": f"{scene.backup.rstrip('/')}-2"}}
    scene.evening.write_stanzas(yaml.safe_dump(stanzas))
    scene.told.steps.append("the new root, and a new one for its backup, in lakehouses.yaml")
    scene.root, scene.evening.roots[scene.name] = new, new


def expire_the_data(scene: Scene) -> None:
    """Delete a file of a table that an older version needs."""
    catalog = icebergs.opened(scene.root)
    orders = icebergs.with_table(catalog, "shop.orders", 1, 2)
    assert scene.evening.maintain(scene.name)["status"] == "SUCCESS"
    good = Lakehouse.open(scene.backup, storage_options=scene.options).version
    orders.overwrite(icebergs.rows(9))
    _expire(scene, scene.version - good + 1)  # `doctor` looks at the oldest version
    snapshot = orders.metadata.snapshots[0]
    gone = Path(snapshot.manifest_list.removeprefix("file://"))
    data, scene.begun = gone.read_bytes(), time.time()
    gone.unlink()
    told = scene.do(DATA, "doctor")
    assert "shop.orders" in told, told
    told = scene.do(DATA, "tables", "clean", "--dry-run", code=4)
    assert gone.name in told, told
    gone.write_bytes(data)
    scene.told.steps.append("the file under its name")
    line = [
        word.replace("sales.orders", "shop.orders") for word in scene.evening.page.command(DATA, "restore", "--only")
    ]
    line[line.index("--version") + 1] = str(good)
    scene.run([scene.root if word == "file:///data/lake" else word for word in line])
    assert icebergs.ids(icebergs.opened(scene.root).load_table("shop.orders")) == [1, 2]


def _expire(scene: Scene, keep: int) -> None:
    """Let versions expire, but for the newest ones."""
    time.sleep(_YOUNG_MILLIS / 1000)
    told = scene.run(["expire", scene.root, "--keep-last", str(keep), "--older-than", "0s"])
    assert "expired" in told, told


def let_the_bill_grow(scene: Scene) -> None:
    """Let old snapshots of a table weigh more than what is read. What is younger than the rules stays."""
    catalog = icebergs.opened(scene.root)
    table = icebergs.with_table(catalog, "shop.orders", 0, properties={"history.expire.max-snapshot-age-ms": "1000"})
    for number in range(1, 5):
        table.overwrite(icebergs.rows(number))
    time.sleep(_YOUNG_MILLIS / 1000)
    assert "shop.orders" in scene.do(BILL, "tables", "health")
    scene.do(BILL, "tables", "expire")
    scene.do(BILL, "compact")
    scene.do(SET_BACK, "export", "file:///data/lake")
    scene.do(BILL, "expire", "--keep-last")
    plan = f"{scene.evening.folder.as_uri()}/plan.parquet"
    scene.do(BILL, "tables", "clean", "--plan-to", roots={"file:///data/plan.parquet": plan})
    scene.do(BILL, "tables", "clean", "--plan", roots={"file:///data/plan.parquet": plan})


DISK, S3, ANY = "disk", "s3", ""
INCIDENTS: dict[str, tuple[str, Callable[[Scene], None]]] = {
    "a namespace was dropped": (ANY, drop_a_namespace),
    "a deploy broke the catalog": (ANY, break_the_catalog),
    "a deploy, by its author": (ANY, undo_a_deploy),
    "the target of a rollback is damaged": (ANY, damage_the_target),
    "a node is damaged": (ANY, damage_a_node),
    "a node that nobody has": (ANY, damage_a_node_that_nobody_has),
    "the newest root is garbage": (ANY, damage_the_root),
    "a root is missing": (ANY, remove_a_root),
    "a root is missing that nobody has": (ANY, remove_a_root_that_nobody_has),
    "the root of another lakehouse": (ANY, copy_a_strange_root),
    "too many versions expired": (ANY, expire_too_much),
    "a definition is damaged": (ANY, damage_a_definition),
    "a definition is restored": (ANY, restore_a_definition),
    "a snapshot is damaged": (ANY, damage_a_snapshot),
    "writers are frozen": (ANY, freeze_the_writers),
    "a bucket was set back": (ANY, set_a_bucket_back),
    "a bucket was set back and went on": (ANY, partial(set_a_bucket_back, goes_on=True)),
    "the backup is full": (DISK, fill_the_backup),
    "an outage of the storage": (S3, end_the_storage),
    "Spark is dead": (ANY, kill_spark),
    "lakehouses.yaml is wrong": (ANY, misspell_a_stanza),
    "the backup is bad": (ANY, damage_the_backup),
    "the lakehouse is gone": (ANY, lose_the_lakehouse),
    "the data were expired": (DISK, expire_the_data),
    "the bill grows": (DISK, let_the_bill_grow),
    "the host is full": (ANY, fill_the_host),
    "the database is full": (ANY, fill_the_database),
}
_OF_ALL: Final = {end_the_storage, misspell_a_stanza, fill_the_host, fill_the_database}
"""What also happens to the other lakehouses: none of them waits for a message meanwhile."""


# -- the evening ------------------------------------------------------------------------------------------


def turns() -> dict[str, str]:
    """Return the lakehouse of each incident: the next one, or the next one of the kind that it needs."""
    names = [f"{DISK if number % 2 == 0 else S3}{number}" for number in range(_LAKES)]
    found: dict[str, str] = {}
    for incident, (kind, _) in INCIDENTS.items():
        name = next(each for each in names if each.startswith(kind))
        names.remove(name)
        names.append(name)
        found[incident] = name
    return found


def _make(root: str, options: dict[str, Any]) -> None:
    lake = Lakehouse.create(root, storage_options=options, txn_ttl_millis=_YOUNG_MILLIS, **SMALL)
    for namespace in ("sales", "finance", "logs"):
        with acting_as("etl@airflow"), lake.transaction(reason=f"set up {namespace}") as txn:
            txn.create_namespace(namespace)
            for number in range(_TABLES):
                txn.create_table(namespace, f"t{number}")
            if namespace == "finance":
                txn.create_table(namespace, "budget")
        lake.refresh()


def _stanza(name: str, root: str, backup: str, endpoint: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": name,
        "root": root,
        "spark": {"master": "local[1]"},
        "schedules": {"maintenance": "0 3 1 1 *"},
        "compaction": {"poll": "15s", "engine": "local"},
        "health": {"definitions": True},
        "snapshots": {"daily": {"keep": 2}},
        "retention": {"keep_last": 20, "older_than": "1d"},
        "orphans": {"older_than": "1d"},
        "backup": {"target": backup},
    }
    if root.startswith("s3:"):
        secrets = {"key": {"env": "EVENING_KEY"}, "secret": {"env": "EVENING_SECRET"}}
        found["storage_options"] = secrets | {"endpoint_url": endpoint, "region": "us-east-1"}
    else:
        found["tables"] = {"older_than": "1d"}
    return found


@contextmanager
def running(folder: Path, chosen: Sequence[str]) -> Iterator[Evening]:
    """Yield the deployment at work; the lakehouses that are needed have had a night."""
    lake_of = turns()
    small = [lake_of[each] for each in chosen if INCIDENTS[each][1] is fill_the_backup]
    folder.chmod(0o755)  # PostgreSQL and the units are other users
    with (
        _disk(folder / "host") as host,
        _disk(folder / "database") as database,
        run_moto(folder) as server,
        Misbehaving(server.endpoint) as way,
        webhook() as told,
        _on(database),
        run_postgres() as postgres,
        _on(host),
    ):
        roots, backups = dict[str, str](), dict[str, str]()
        for name in sorted({*lake_of.values()}):
            root = server.new_root() if name.startswith(S3) else f"{(folder / name).as_uri()}/"
            disk = folder / f"{name}-backup-disk"
            disk.mkdir()
            if name in small:
                _mount("size=64m", disk)
            roots[name] = root
            backups[name] = server.new_root() if name.startswith(S3) else f"{disk.as_uri()}/copy/"
            _make(root, server.options if name.startswith(S3) else {})
        stanzas = [_stanza(name, root, backups[name], way.endpoint) for name, root in roots.items()]
        text = yaml.safe_dump({"notifications": {"webhook": {"env": "EVENING_HOOK"}}, "lakehouses": stanzas})
        secrets = {"EVENING_KEY": KEY, "EVENING_SECRET": SECRET, "EVENING_HOOK": told.url}
        secrets["TRINITYLAKE_AUTHOR"] = "maintenance@dagster"
        try:
            with deployed(text, postgres, secrets) as deployment:
                deployment.start_all()
                evening = Evening(deployment, told, server, way, roots, backups, folder, host, database)
                missing = [*dict.fromkeys(lake_of[each] for each in chosen)]
                for _ in range(_FIRST_NIGHTS):  # on a busy machine a run may be lost while all begin at once
                    runs = {name: deployment.launch(f"{name}_maintenance") for name in missing}
                    missing = [name for name, run in runs.items() if deployment.finished(run)["status"] != "SUCCESS"]
                assert not missing, missing
                yield evening
        finally:
            for name in small:
                subprocess.run(["umount", "-l", str(folder / f"{name}-backup-disk")], check=False)  # noqa: S607


@contextmanager
def _disk(path: Path) -> Iterator[Path]:
    """Make a disk, and yield where it is."""
    path.mkdir()
    _mount(f"size={_DISK},mode=755", path)
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=False)  # noqa: S607


@contextmanager
def _on(disk: Path) -> Iterator[None]:
    """Let directories that are made in the block lie on a disk."""
    before, tempfile.tempdir = tempfile.tempdir, str(disk)
    try:
        yield
    finally:
        tempfile.tempdir = before


def happen(evening: Evening, incident: str, name: str) -> Told:
    """Let an incident happen, do what the page says, and run the maintenance of a night.

    What is told of it is whole when its lakehouse has settled.
    """
    happens = INCIDENTS[incident][1]
    evening.settle(*([*evening.waits] if happens in _OF_ALL else [name]))
    told = Told(incident, name)
    scene = Scene(evening, name, told)
    begun = time.monotonic()
    try:
        happens(scene)
        found = evening.maintain(name)
        told.night = str(found["status"])
        if told.night != "SUCCESS":
            failed = [
                each for each in found["eventConnection"]["events"] if each["__typename"] == "ExecutionStepFailureEvent"
            ]
            told.left = "; ".join(str(each["error"]["message"])[-600:] for each in failed)
        scene.do(DAMAGED, "verify", "--all")
        told.steps.pop()
    except Exception as error:  # noqa: BLE001 - it is a finding, and the other incidents are to happen, too
        told.night, told.left = told.night or "not reached", f"FINDING: {type(error).__name__}: {error}"
    told.took = round((time.monotonic() - begun) / 60, 1)
    evening.waits[name] = threading.Thread(target=_tell_all, args=(scene,), daemon=True)
    evening.waits[name].start()
    if happens in _OF_ALL:
        evening.settle(name)
    return told


def _tell_all(scene: Scene) -> None:
    """Wait until the message that ends each problem has come, and what is sent late, too; print what happened."""
    open_ones: Callable[[], set[str]] = lambda: _open(scene.sent())  # noqa: E731
    deadline = time.monotonic() + _SENT_WITHIN
    time.sleep(35.0)
    while open_ones() and time.monotonic() < deadline:
        time.sleep(1.0)
    if open_ones() and not scene.told.left.startswith("FINDING"):
        scene.told.left = f"not closed: {open_ones()}"
    scene.told.messages = [json.dumps(each) for each in scene.sent()]
    show(scene.told)


def _open(messages: Sequence[dict[str, Any]]) -> set[str]:
    found = set[str]()
    for each in messages:
        if "key" in each:
            (found.discard if each["severity"] == "info" else found.add)(each["key"])
    return found


def show(told: Told) -> None:
    """Print what is told of an incident."""
    lines = [f"== {told.name} ({told.lakehouse}): noticed by {told.noticed} after {told.minutes} minutes"]
    lines += [f"   message: {each}" for each in told.messages]
    lines += [f"   step: {step}" for step in told.steps]
    lines.append(f"   the night: {told.night}; left: {told.left}; {told.took} minutes in all")
    print("\n".join(lines), flush=True)


def main(arguments: Sequence[str]) -> None:
    """Run the incidents and print a table of them."""
    if _OWN_MOUNTS not in os.environ:
        os.environ[_OWN_MOUNTS] = "yes"
        again = [sys.executable, "-m", "benchmarks", "incidents", *arguments]
        os.execvp("unshare", ["unshare", "--mount", *again])  # noqa: S606, S607 - the same process
    parser = argparse.ArgumentParser(prog="benchmarks incidents", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=list(INCIDENTS), default=list(INCIDENTS), metavar="NAME")
    parser.add_argument("--list", action="store_true", help="print the names of the incidents")
    options = parser.parse_args(arguments)
    if options.list:
        print("\n".join(INCIDENTS))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is stopped
    every: list[Told] = []
    with tempfile.TemporaryDirectory(prefix="evening-") as folder, running(Path(folder), options.only) as evening:
        names = turns()
        for incident in options.only:
            every.append(happen(evening, incident, names[incident]))
        evening.settle(*[*evening.waits])
        of_incidents = {each for told in every for each in told.messages}
        heard = [json.dumps(each) for _, each in evening.told.received]
        others = [each for each in heard if each not in of_incidents]
    print(f"{len(heard)} messages; of no incident:", *others, sep="\n   ")
    rows: dict[str, dict[str, Any]] = {
        told.name: {
            "noticed by": told.noticed,
            "minutes": told.minutes,
            "messages": len(told.messages),
            "steps": sum(not each.startswith("(") for each in told.steps),
            "the night": told.night,
            "left": told.left[:60],
            "minutes in all": told.took,
        }
        for told in every
    }
    print(report.table(rows))
    report.save("incidents", {"incidents": rows})
    if any(row["the night"] != "SUCCESS" or row["messages"] > 2 for row in rows.values()):
        sys.exit("an incident sent more than two messages, or the night after it was not green")
