"""Every job against a store that misbehaves now and then: 503, answers lost, late, stalled, trickled.

What the job does must be what it does without: the same report, the same content, versions created once each, and
nothing broken in what is left. And nobody waits for an answer that does not come.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from pipelines import clean, compaction, diff, expire, export, load, restore, rollback, snapshot, upgrade, verify
from tests.support.lakes import compacted, filled, new_lake
from tests.support.slow_s3 import SlowS3, run_slow_s3
from trinitylake_core import Lakehouse
from trinitylake_core.clock import now_millis
from trinitylake_core.storage import Storage, check_conformance, open_storage

pytestmark = pytest.mark.s3
DAY: Final = 86_400_000
_LOADED: Final = 40
_LONGEST_SECONDS: Final = 30.0
"""An answer that stalls comes after 40."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlowS3]:
    """A server that misbehaves when it is told to."""
    with run_slow_s3(tmp_path_factory.mktemp("slow")) as server:
        yield server


@dataclass(frozen=True)
class Stage:
    """Where a job runs: its lakehouse, an empty place beside it, files to load, Spark where it is to be used."""

    lake: Lakehouse
    beside: Storage
    source: str
    spark: Any
    engine: str

    @property
    def start(self) -> int:
        """The version that the lakehouse had before."""
        return self.lake.version


def test_the_server_is_fit_for_a_lakehouse(server: SlowS3) -> None:
    """Whoever is judged by it can rely on it: all that a storage must do."""
    server.set()
    assert [] == [each for each in check_conformance(server.new_root(), server.options) if not each.ok]


def _compact(stage: Stage) -> object:
    done = compaction.run(stage.lake, compaction.Config(engine=stage.engine), stage.spark)
    return done.version_after, done.messages_after, done.proved, done.height_after


def _verify(stage: Stage) -> object:
    done = verify.run(stage.lake, verify.Config(versions="all", definitions=True, engine=stage.engine), stage.spark)
    return done.ok, done.nodes_read, done.definitions_read, done.versions


def _clean(stage: Stage) -> object:
    config = clean.Config(engine=stage.engine, older_than_seconds=0, allow_recent=True)
    done = clean.run(stage.lake, config, stage.spark)
    return done.deleted, done.failed


def _expire(stage: Stage) -> object:
    config = expire.Config(engine=stage.engine, keep_last=3, now_millis=now_millis() + 30 * DAY)
    done = expire.run(stage.lake, config, stage.spark)
    return done.boundary_after, done.versions_expired


def _export(stage: Stage) -> object:
    config = export.Config(engine=stage.engine, history=True)
    export.run(stage.lake, stage.beside, config, stage.spark)
    copy = Lakehouse.open(stage.beside)
    return copy.version, copy.digest()


def _load(stage: Stage) -> object:
    done = load.run(stage.lake, stage.source, load.Config(engine=stage.engine), stage.spark)
    return done.version_after, done.added, done.replaced, done.skipped


def _rollback(stage: Stage) -> object:
    config = rollback.Config(version=stage.start - 3, reason="test", engine=stage.engine)
    return rollback.run(stage.lake, config, stage.spark).version_after


def _restore(stage: Stage) -> object:
    config = restore.Config(only=["ns0.*"], version=stage.start - 3, reason="test", exact=True, engine=stage.engine)
    done = restore.run(stage.lake, config, stage.spark)
    return done.version_after


def _snapshot(stage: Stage) -> object:
    done = snapshot.run(stage.lake, {"daily": 3, "hourly": 2})
    return len(done.created), len(stage.lake.refresh().snapshots())


def _upgrade(stage: Stage) -> object:
    config = upgrade.Config(engine=stage.engine, definition={"order": 7})
    done = upgrade.run(stage.lake, stage.beside, config, stage.spark)
    return done.version, done.digest, Lakehouse.open(stage.beside).digest()


def _diff(stage: Stage) -> object:
    changes = diff.run(stage.lake.at(version=stage.start - 9), stage.lake, diff.Config(stage.engine), stage.spark)
    return [str(change) for change in changes]


JOBS: Final[dict[str, Callable[[Stage], object]]] = {
    each.__name__[1:]: each
    for each in (_compact, _verify, _clean, _expire, _export, _load, _rollback, _restore, _snapshot, _upgrade, _diff)
}


@dataclass(frozen=True)
class Original:
    """A lakehouse on a disk, of which each run gets a copy, and lines to load."""

    lake: Lakehouse
    source: str


def original_lake(directory: Path, tables: int, changes: int) -> Original:
    """Return a lakehouse with waiting messages, some of them over nodes of several levels, and orphans."""
    lake = filled(new_lake(directory, order=8), tables=tables, changes=changes)
    compacted(lake)
    with lake.refresh().transaction() as txn:
        for number in range(0, tables, 5):
            txn.alter_table(f"ns{number % 3}", f"t{number:03}", properties={"a": "b"})
    lines = [{"create_table": {"namespace": "ns1", "name": f"new{number}"}} for number in range(_LOADED)]
    source = directory / "lines.jsonl"
    source.write_text("\n".join(map(json.dumps, lines)))
    return Original(lake.refresh(), str(source))


def _copied(original: Original, server: SlowS3, **options: Any) -> Stage:
    """Return a copy on the server; the lakehouse was opened by nobody yet but by a client that has asked before."""
    root = server.new_root()
    storage = original.lake.storage
    files = ((info.path, storage.read(info.path)) for info in storage.list())
    open_storage(root, server.options).write_many(files)
    given = {**server.options, **options}
    lake = Lakehouse.open(root, storage_options=given)
    return Stage(lake, open_storage(server.new_root(), given), original.source, None, "local")


@dataclass(frozen=True)
class Run:
    """What a job said, what is left, and how long an answer was waited for at most."""

    said: object
    left: object
    longest: float


def _run(job: Callable[[Stage], object], stage: Stage, server: SlowS3, share: float, seed: int) -> Run:
    server.set(share=share, delay=0, seed=seed)
    said = job(stage)
    held, faults = server.held(), server.faults()
    server.set()
    lake = Lakehouse.open(open_storage(*stage.lake.storage.spec()))
    assert [] == list(lake.check(definitions=True))
    names = [entry.key for entry in lake.objects()]
    left = lake.version, names if job is _load else lake.digest(), [info.operation for info in lake.history()]
    print(f"{job.__name__} {share}, {dict(faults)}, {held}")
    return Run(said, left, held["longest"])


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Original:
    """A few hundred files."""
    return original_lake(tmp_path_factory.mktemp("small"), 60, 6)


@pytest.mark.parametrize("job", ["compact", "load", "expire", "restore", "rollback", "snapshot", "verify"])
def test_a_job_does_the_same_among_faults(server: SlowS3, small: Original, job: str) -> None:
    """Each fault at 3 %, and a deadline of a second: that is what nobody waits longer than."""
    options = {"request_timeout": 1.0, "retries": 8}
    calm, rough = (
        _run(JOBS[job], _copied(small, server, **options), server, share, seed=len(job)) for share in (0.0, 0.03)
    )
    assert (calm.said, calm.left) == (rough.said, rough.left)
    assert rough.longest <= _LONGEST_SECONDS
