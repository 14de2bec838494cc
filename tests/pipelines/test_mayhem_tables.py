"""Engines write, drop and purge tables beside every job that deletes, with SIGSTOP and SIGKILL: every version reads.

MAYHEM_SECONDS=600 .venv/bin/python -m pytest -m slow tests/pipelines/test_mayhem_tables.py -s
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pipelines import compaction, expire, tables_clean, verify
from tests.support import mixed_mayhem as mixed
from tests.support.icebergs import SCHEMA
from tests.support.mayhem import DAY, KILLS, Log, disturb
from tests.support.s3_servers import KEY, SECRET, S3Server, free_port
from tests.support.table_mayhem import (
    NAMESPACE,
    ROOM,
    SHARED,
    History,
    Plan,
    contents,
    end_holds,
    lines_of,
    live,
    places,
    reachable,
    serve,
)
from tests.support.writers import forking, pool
from trinitylake_core import Lakehouse
from trinitylake_core.clock import now_millis
from trinitylake_core.iceberg import TrinityLakeCatalog
from trinitylake_core.storage import open_storage

SECONDS = float(os.environ.get("MAYHEM_SECONDS", "60"))
STALL_SECONDS = 8.0
ENDPOINTS = 2
SHORT = ("direct", "rest", "duckdb", "maintainer", "reader")
ROLES = ("direct", "direct", "rest", "duckdb", "maintainer", "maintainer", "reader")
SPARKED = ("spark", "direct", "maintainer", "reader")
SOME = 12
DIED = "Process ForkServer"
SPARK_BYTES = {"spark": 3_000, "compactor": 100}
"""What a Spark notes until it has started: some changes, or what became of one table."""
MIXED_ROLES = ("spark", "direct", "rest", "duckdb", "maintainer", "maintainer", "compactor", "reader")
TTL_MILLIS = 20_000
"""The holds of compactions that are killed end soon."""
TICK_SECONDS = 1.1
"""Object stores give times of whole seconds."""


@dataclass(frozen=True)
class Mayhem:
    """Where it takes place, and the processes: endpoints, and others by their roles."""

    plan: Plan
    lake: Lakehouse
    logs: Path
    roles: tuple[str, ...] = ROLES
    sizes: dict[int, int] = field(default_factory=dict)
    lives: Counter[str] = field(default_factory=Counter)
    shared: tuple[str, ...] = SHARED
    live: Callable[..., None] = live
    kills: float = KILLS

    def is_starting(self, number: int) -> bool:
        """Whether a Spark has noted little yet: on a busy machine it takes a minute to start."""
        log = self.logs / f"{number}.log"
        size = log.stat().st_size if log.exists() else 0
        least = SPARK_BYTES.get(self._role(number), 0)
        return size < self.sizes.get(number, 0) + least

    def _role(self, number: int) -> str:
        return "endpoint" if number < ENDPOINTS else self.roles[number - ENDPOINTS]

    def start(self, number: int, life: int) -> Any:
        """Start an endpoint, or a process of a role."""
        log, role = self.logs / f"{number}.log", self._role(number)
        self.lives[role] += 1
        self.sizes[number] = log.stat().st_size if log.exists() else 0
        seed = number + (ENDPOINTS + len(self.roles)) * life
        target, args = (serve, (number,)) if number < ENDPOINTS else (self.live, (role, seed))
        process = forking().Process(target=target, args=(self.plan, *args, log))
        process.start()
        return process

    def run(self, enough: Callable[[], bool], stall: float) -> None:
        """Let them work, stop and kill them; judge what they noted and what is left."""
        self.logs.mkdir(exist_ok=True)
        count = ENDPOINTS + len(self.roles)
        disturbed = disturb(self.start, count, enough, stall=stall, kills=self.kills, spared=self.is_starting)
        lines = lines_of(sorted(self.logs.glob("*.log")))
        history = History(lines, self.shared)
        for line in lines:
            if line["what"] == "read":
                history.compare(line["version"], line["tables"])
        judged = history.judged
        judged.wrong += [f"{line}" for line in lines if line["what"] == "wrong"]
        failed = {line["error"][:150] for line in lines if line["what"] == "failed"}
        self.end(lines, history)
        writers = Counter(
            self.roles[line["op"] // ROOM % count - ENDPOINTS]
            for line in lines
            if line["what"] == "done" and line["op"] >= ROOM
        )
        print(
            f"{disturbed}, lives {dict(self.lives)}, {dict(writers)}, {self.lake.refresh().version} versions, {judged}",
            *sorted(failed),
            sep="\n",
        )
        assert [] == judged.wrong
        assert [] == self._crashed()
        assert 0 < judged.ended["done"] * judged.reads

    def end(self, lines: list[dict[str, Any]], history: History) -> None:
        """Judge what is left."""
        _clean(self.lake.refresh(), history)

    def _crashed(self) -> list[str]:
        """Return how processes ended by an error. PyIceberg logs that files of a failed commit are gone already."""
        told = [path.read_text() for path in self.logs.glob("*.err")]
        return [text[text.index(DIED) :] for text in told if DIED in text]


class MixedMayhem(Mayhem):
    """Beside both engines of compaction; no version and no snapshot expires, so that each is compared at the end."""

    def end(self, lines: list[dict[str, Any]], history: History) -> None:
        """Judge every version, every snapshot of every table, and what Spark reads in the end."""
        lake = self.lake.refresh()
        end_holds(lake)
        compacted = [line for line in lines if line["what"] == "compacted"]
        print(*Counter((each["engine"], each["outcome"]) for each in compacted).most_common(), sep="\n")
        print(*Counter((each["outcome"], each["reason"][:150]) for each in compacted if each["reason"]).most_common(9),
              sep="\n")  # fmt: skip
        print(*Counter(history.judged.errors).most_common(12), sep="\n")
        reader, known = mixed.Reader(Path(lake.root.removeprefix("file://"))), dict[str, list[int]]()
        for version, at in places(lake):
            history.compare(version, mixed.contents(lake, reader, known, **at))
        print(*mixed.compare_snapshots(lake, reader), sep="\n")
        before = mixed.rows_by_reader(lake, reader)
        _cleaned(lake)
        assert before == mixed.rows_by_reader(lake.refresh(), reader)
        with pool(1) as process:
            assert before == process.submit(mixed.rows_by_spark, lake.root).result(600)
        config = verify.Config("all", engine="local", tables=1.0, deep=True)
        assert [] == list(verify.run(open_storage(lake.root), config).findings)


def _after(seconds: float, waits: Callable[[], bool] = lambda: False) -> Callable[[], bool]:
    """Return what says that it is enough: so long after ``waits`` has ended."""
    began: list[float] = []

    def enough() -> bool:
        if not began and not waits():
            began.append(time.monotonic())
        return bool(began) and time.monotonic() >= began[0] + seconds

    return enough


def _mayhem(root: str, options: dict[str, object], logs: Path, roles: tuple[str, ...] = ROLES, **told: Any) -> Mayhem:
    lake = Lakehouse.create(root, storage_options=options, order=8, node_file_max_size_bytes=20_000)
    with TrinityLakeCatalog.over(lake).transaction() as txn:
        txn.create_namespace(NAMESPACE)
        for number, name in enumerate(SHARED):
            txn.create_table(name, SCHEMA, properties={"format-version": str(1 + (number > 0))})
    plan = Plan(root, options, [f"http://127.0.0.1:{free_port()}" for _ in range(ENDPOINTS)], **told)
    return Mayhem(plan, lake, logs, roles)


def _clean(lake: Lakehouse, history: History) -> None:
    """Clean: every version reads as before, and as told; roll back to the oldest one; let all others expire."""
    before = _everything(lake)
    for version, tables in before:
        history.compare(version, tables)
    _cleaned(lake)
    after = _everything(lake)
    assert [] == [version for version, tables in before if (version, tables) not in after]
    oldest, tables = before[0]
    lake.refresh().rollback(version=oldest, reason="test", force=True)
    assert tables == dict(contents(lake.refresh()))
    for name in [each.name for each in lake.refresh().snapshots()]:
        lake.refresh().drop_snapshot(name)
    compaction.run(lake, compaction.Config(engine="local"))
    config = expire.Config(engine="local", keep_last=1, now_millis=now_millis() + 30 * DAY)
    expire.run(lake, config)
    end_holds(lake.refresh())
    _cleaned(lake)
    assert tables == dict(contents(lake.refresh()))
    left, live = {each.path for each in lake.storage.list("tables/")}, reachable(lake.refresh())
    beside = {f"{above}/.{name}.crc" for above, _, name in (path.rpartition("/") for path in live)}  # by Spark
    assert (set(), set()) == (left - live - beside, live - left)


def _everything(lake: Lakehouse) -> list[tuple[int, dict[str, list[int]]]]:
    return [(version, dict(contents(lake, **at))) for version, at in places(lake.refresh())]


def _cleaned(lake: Lakehouse) -> None:
    time.sleep(TICK_SECONDS)
    report = tables_clean.run(lake, tables_clean.Config(engine="local", older_than_seconds=0, allow_recent=True))
    assert (0, (), 0) == (report.failed, report.doubts, report.foreign.files)


def test_a_short_mayhem(tmp_path: Path) -> None:
    """On this disk, without syncs, until some commits were made and some versions read."""
    mayhem = _mayhem((tmp_path / "lake").as_uri(), {"durable": False}, tmp_path / "logs", SHORT)

    def enough() -> bool:
        told = Counter(line["what"] for line in lines_of(mayhem.logs.glob("*.log")))
        return told["done"] >= SOME and told["read"] >= SOME // 4

    mayhem.run(enough, stall=2)


@pytest.mark.slow
def test_mayhem_on_a_disk(tmp_path: Path) -> None:
    """For longer."""
    mayhem = _mayhem((tmp_path / "lake").as_uri(), {"durable": False}, tmp_path / "logs")
    mayhem.run(_after(SECONDS), STALL_SECONDS)


@pytest.mark.slow
def test_mayhem_by_spark(tmp_path: Path) -> None:
    """Among few others: a Spark needs much of two cores.

    More versions stay, for its commit takes seconds, and an endpoint knows of a request only as long as they are there.
    """
    mayhem = _mayhem((tmp_path / "lake").as_uri(), {"durable": False}, tmp_path / "logs", SPARKED, kept=40)
    mayhem.run(_after(SECONDS), STALL_SECONDS)


@pytest.mark.slow
@pytest.mark.s3
def test_mayhem_on_s3(tmp_path: Path, moto_server: S3Server) -> None:
    """On an object store, whose address DuckDB must be told: the endpoint gives no credentials away."""
    address = moto_server.endpoint.removeprefix("http://")
    secret = (
        f"CREATE SECRET s (TYPE s3, KEY_ID '{KEY}', SECRET '{SECRET}', ENDPOINT '{address}', URL_STYLE 'path', "
        "USE_SSL false, REGION 'us-east-1')"
    )
    root = moto_server.new_root()
    spark = {
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO", "s3.endpoint": moto_server.endpoint,
        "s3.path-style-access": "true", "s3.access-key-id": KEY, "s3.secret-access-key": SECRET,
        "client.region": "us-east-1",
    }  # fmt: skip
    told: dict[str, Any] = {"attached": ", ACCESS_DELEGATION_MODE 'none'", "secret": secret, "spark": spark}
    mayhem = _mayhem(root, moto_server.options, tmp_path / "logs", **told)
    mayhem.run(_after(SECONDS), STALL_SECONDS)


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 1_500)
def test_streams_of_writers_beside_both_engines_of_compaction(tmp_path: Path) -> None:
    """Spark, PyIceberg and DuckDB write tables of both format versions: no row is wrong, lost, twice or has another ID.

    With deletes of every kind, and other partitions in mid-run.
    """
    root, logs = (tmp_path / "lake").as_uri(), tmp_path / "logs"
    logs.mkdir()
    options: dict[str, Any] = {"durable": False}
    lake = Lakehouse.create(
        root, storage_options=options, order=8, node_file_max_size_bytes=20_000, txn_ttl_millis=TTL_MILLIS
    )
    with closing(Log(logs / "prepared.log")) as log:
        mixed.prepare(lake, log)
    plan = Plan(root, options, [f"http://127.0.0.1:{free_port()}" for _ in range(ENDPOINTS)])
    mayhem = MixedMayhem(plan, lake, logs, MIXED_ROLES, shared=tuple(mixed.MIXED), live=mixed.live, kills=0.03)
    numbers = range(ENDPOINTS, ENDPOINTS + len(MIXED_ROLES))
    mayhem.run(_after(SECONDS, lambda: any(map(mayhem.is_starting, numbers))), STALL_SECONDS)
