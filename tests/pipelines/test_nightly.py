"""After each incident of docs/runbook.md one whole night of maintenance is green: on a disk, and on S3.

Compaction, snapshot, backup, expiration, cleaning, verification of all versions: from the command line, with the
backup that the night before has made.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipelines.cli import main
from tests.support.clock import Clock
from tests.support.lakes import filled
from tests.support.s3_servers import S3Server
from trinitylake_core import Lakehouse
from trinitylake_core.locations import root_path
from trinitylake_core.storage import open_storage

ENGINES = {"compact", "export", "expire", "clean", "verify", "rollback", "restore", "mend"}


class Night:
    """A lakehouse and its backup, and the commands of a night."""

    def __init__(self, directory: str, options: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
        self.root, self.backup, self.options, self.capsys = f"{directory}lake/", f"{directory}copy/", options, capsys
        self.in_doubt = 0
        filled(Lakehouse.create(self.root, storage_options=options, order=4), tables=12, namespaces=2)

    @property
    def lake(self) -> Lakehouse:
        """The newest version, afresh."""
        return Lakehouse.open(self.root, storage_options=self.options)

    def tell(self, *words: str, code: int = 0) -> dict[str, Any]:
        """Run a command on the lakehouse, which must end with this code; return its document."""
        engine = ["--engine", "local"] * (words[0] in ENGINES)
        found = main([*words[0].split(), self.root, *words[1:], *engine, "--json"])
        out, err = self.capsys.readouterr()
        assert code == found, (words, out[-3000:], err[-2000:], found)
        return dict(json.loads(out)) if out.startswith("{") else {"error": err}

    def pass_by(self) -> None:
        """Do what is done each night."""
        self.tell("compact")
        main(["snapshot", "create", self.root, f"nightly-{self.lake.version}"])
        self.capsys.readouterr()
        self.tell("export", self.backup, "--history")
        self.tell("expire")
        self.tell("clean")
        self.tell("tables clean", code=self.in_doubt)
        self.tell("verify", "--all", "--definitions")
        copy = [self.backup, "--all", "--definitions", "--engine", "local"]
        found = main(["verify", *copy])
        assert 0 == found, self.capsys.readouterr().out
        self.capsys.readouterr()

    def damage(self, path: str, data: bytes) -> None:
        """Write something else in the place of a file."""
        open_storage(self.root, self.options).replace(path, data)

    def change(self, name: str) -> None:
        """Commit a table."""
        with self.lake.transaction() as txn:
            txn.create_table("ns0", name)

    def node(self, version: int) -> str:
        """Return a node that only one version reaches."""
        reached = {each: set(self.lake.at(version=each).root_node.node.children) for each in (version - 1, version)}
        return min(reached[version] - reached[version - 1])

    def definition(self, name: str) -> str:
        """Return the file of a table's definition."""
        (path,) = [each.path for each in self.lake.objects() if each.name == name]
        return path


@pytest.fixture
def night(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Night:
    directory, options = f"{tmp_path.as_uri()}/", dict[str, Any](durable=False)
    if request.param == "s3":
        server: S3Server = request.getfixturevalue("moto_server")
        directory, options = server.new_root(), server.options
    monkeypatch.setenv("TRINITYLAKE_STORAGE_OPTIONS", json.dumps(options))
    return Night(directory, options, capsys)


def _a_root_that_the_backup_has(night: Night) -> None:
    """Rolled back as the page says, without putting the file back first."""
    night.change("new")
    bad = night.lake.version
    night.tell("export", night.backup, "--history")
    night.damage(root_path(bad), b"garbage")
    night.tell("ls", code=4)
    night.tell("rollback", str(bad - 1), "--reason", "incident")
    assert bad in {each["version"] for each in night.tell("export", night.backup, "--history")["plan"]["unreadable"]}
    night.tell("mend", "--from", night.backup, "--reason", "incident")
    assert night.lake.at(version=bad).table("ns0", "new")


def _a_root_that_is_put_back(night: Night) -> None:
    """Before anything else: no rollback is needed, and nothing is lost."""
    night.change("new")
    bad, digest = night.lake.version, night.lake.digest()
    night.tell("export", night.backup, "--history")
    night.damage(root_path(bad), b"")
    assert [root_path(bad)] == night.tell("mend", "--from", night.backup, "--reason", "incident", "--dry-run")["files"]
    night.tell("ls", code=4)
    assert [root_path(bad)] == night.tell("mend", "--from", night.backup, "--reason", "incident")["files"]
    assert digest == night.lake.digest()


def _a_root_that_nobody_has(night: Night) -> None:
    night.change("new")
    bad = night.lake.version
    night.damage(root_path(bad), b"garbage")
    done = night.tell("mend", "--from", night.backup, "--reason", "incident", code=1)
    assert ([], [root_path(bad)]) == (done["files"], list(done["left"]))
    night.tell("rollback", str(bad - 1), "--reason", "incident")
    night.tell("mend", "--lost", str(bad), "--reason", "nobody has it")
    assert b"garbage" in open_storage(night.root, night.options).read(root_path(bad))


def _a_node_that_the_backup_has(night: Night) -> None:
    night.change("new")
    night.tell("compact")
    bad = night.lake.version
    night.tell("export", night.backup, "--history")
    path = night.node(bad)
    night.damage(path, b"garbage")
    night.tell("rollback", str(bad - 1), "--reason", "incident")
    assert path in night.tell("export", night.backup, "--history")["plan"]["kept"]
    assert [path] == night.tell("mend", "--from", night.backup, "--reason", "incident")["files"]


def _a_node_that_nobody_has(night: Night) -> None:
    night.change("new")
    night.tell("compact")
    bad = night.lake.version
    night.damage(night.node(bad), b"garbage")
    night.tell("rollback", str(bad - 1), "--reason", "incident")
    night.tell("mend", "--lost", str(bad - 1), "--reason", "nobody has it", code=2)
    night.tell("mend", "--lost", str(bad), "--reason", "nobody has it")


def _a_definition(night: Night, data: bytes | None = b"") -> None:
    """It is emptied, and brought back under another name; older versions name the damaged one still."""
    path = night.definition("t000")
    if data is None:
        open_storage(night.root, night.options).delete_many([path])
    else:
        night.damage(path, data)
    words = ["--from", night.backup, "--only", "*", "--damaged", "--reason", "incident"]
    assert 1 == night.tell("restore", *words)["plan"]["counts"]["changed"]
    assert [path] == night.tell("export", night.backup, "--history")["plan"]["kept"]
    assert [path] == night.tell("mend", "--from", night.backup, "--reason", "incident")["files"]


def _a_definition_that_the_backup_lacks(night: Night) -> None:
    """It has the one before, which comes back; a backup in between names the version that meant the other."""
    with night.lake.transaction() as txn:
        txn.alter_table("ns0", "t000", properties={"owner": "ada"})
    bad, path = night.lake.version, night.definition("t000")
    night.damage(path, b"")
    night.tell("export", night.backup, "--history", code=4)
    night.tell("restore", "--from", night.backup, "--only", "*", "--damaged", "--reason", "incident")
    (damage,) = night.tell("export", night.backup, "--history", code=1)["plan"]["damaged"]
    assert (path, bad, bad) == (damage["file"], damage["first_version"], damage["last_version"])
    night.tell("mend", "--lost", str(bad), "--reason", "nobody has it")
    night.in_doubt = 4  # a message that waits names it, until the versions with that message expire


def _a_hole(night: Night) -> None:
    """A store that did not decide has left it."""
    bad = night.lake.version
    night.change("new")
    night.change("newer")
    open_storage(night.root, night.options).delete_many([root_path(bad)])
    night.tell("verify", "--all", code=1)
    night.tell("mend", "--lost", str(bad), "--reason", "nobody has it")


def _a_hole_that_is_put_back(night: Night) -> None:
    bad = night.lake.version
    night.tell("export", night.backup, "--history")
    night.change("new")
    open_storage(night.root, night.options).delete_many([root_path(bad), root_path(bad - 1)])
    done = night.tell("mend", "--from", night.backup, "--reason", "incident")
    assert {root_path(bad), root_path(bad - 1)} == set(done["files"])


def _a_namespace_dropped(night: Night) -> None:
    with night.lake.transaction() as txn:
        txn.drop_namespace("ns0", cascade=True)
    bad = night.lake.version
    words = ["--only", "ns0", "--only", "ns0.*", "--version", str(bad - 1), "--reason", "incident"]
    night.tell("restore", *words)


def _a_bad_deploy(night: Night) -> None:
    good = night.lake.version
    night.change("bad")
    night.change("worse")
    night.tell("rollback", str(good), "--reason", "incident")


def _set_back(night: Night, *, gone_on: bool) -> int:
    """Put the storage back to its state of the night before; return the newest version that was seen."""
    storage = open_storage(night.root, night.options)
    yesterday = {each.path: storage.read(each.path) for each in storage.list()}
    night.change("today")
    night.tell("export", night.backup, "--history")
    seen = night.lake.version
    gone = [each.path for each in storage.list() if each.path not in yesterday]
    storage.delete_many(gone)
    for path, data in yesterday.items():
        storage.replace(path, data)
    assert seen > night.lake.version
    if gone_on:
        for number in range(seen - night.lake.version + 1):
            night.change(f"other{number}")
    return seen


def _a_bucket_that_was_set_back(night: Night) -> None:
    """Noticed by the next backup; nothing is removed anywhere, and today comes back from the copy."""
    seen = _set_back(night, gone_on=False)
    told = night.tell("export", night.backup, "--history", code=3)["error"]["message"]
    assert f"newer than version {night.lake.version}" in told
    assert "WENT BACK IN TIME" in told
    assert "do not remove it" in told
    assert 0 == main(["export", night.backup, night.root, "--history", "--engine", "local"])
    night.capsys.readouterr()
    assert seen == night.lake.version
    assert night.lake.table("ns0", "today")


def _a_bucket_that_was_set_back_and_went_on(night: Night) -> None:
    """Another commit has a number that was seen: the objects come back from the copy, which stays as it is."""
    before = night.lake.version
    seen = _set_back(night, gone_on=True)
    told = night.tell("export", night.backup, "--history", code=2)["error"]["message"]
    assert "WENT BACK IN TIME" in told
    assert f"from version {before + 1} on both have other commits" in told
    assert f"its versions {before + 1} to {seen}" in told
    night.tell("restore", "--from", night.backup, "--only", "ns0.*", "--reason", "incident")
    assert night.lake.table("ns0", "today")
    assert night.lake.table("ns0", "other0")
    night.backup = f"{night.backup.removesuffix('copy/')}copy2/"


INCIDENTS: dict[str, Callable[[Night], None]] = {
    each.__name__.removeprefix("_a_").replace("_", " "): each
    for each in (
        _a_root_that_the_backup_has,
        _a_root_that_is_put_back,
        _a_root_that_nobody_has,
        _a_node_that_the_backup_has,
        _a_node_that_nobody_has,
        _a_definition,
        _a_definition_that_the_backup_lacks,
        _a_hole,
        _a_hole_that_is_put_back,
        _a_namespace_dropped,
        _a_bad_deploy,
        _a_bucket_that_was_set_back,
        _a_bucket_that_was_set_back_and_went_on,
    )
} | {"definition is missing": lambda night: _a_definition(night, None)}


ON_S3 = {"root that the backup has"}
"""What is tried there each time, and the rest on a disk; everything in both places in `make test-all`."""


def _everywhere() -> Iterator[Any]:
    for name, incident in INCIDENTS.items():
        is_there = name in ON_S3
        yield pytest.param("disk", incident, id=f"{name}, disk", marks=[pytest.mark.slow] * is_there)
        marks = [] if is_there else [pytest.mark.slow]
        yield pytest.param("s3", incident, id=f"{name}, S3", marks=[pytest.mark.s3, *marks])


@pytest.mark.parametrize(("night", "incident"), list(_everywhere()), indirect=["night"])
def test_a_night_after_an_incident_is_green(night: Night, incident: Callable[[Night], None], clock: Clock) -> None:
    night.pass_by()
    incident(night)
    night.pass_by()
    night.change("later")
    clock.forward(days=1)
    night.pass_by()
