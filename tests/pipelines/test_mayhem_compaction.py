"""Thirty tables of every kind are compacted by both engines beside writers, and beside all that deletes at age zero.

MAYHEM_SECONDS=400 .venv/bin/python -m pytest -n 0 -m slow tests/pipelines/test_mayhem_compaction.py -s

Partitions, position and equality deletes, deletion vectors, sort orders, tags, branches, evolved schemas and specs;
some 2,000 small files. PyIceberg, DuckDB and Spark append, update and delete; processes are stopped and killed.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from pipelines import compaction, expire, tables_clean, verify
from tests.support import kinds_mayhem as kinds
from tests.support.kinds_mayhem import TABLES, Prepared
from tests.support.mayhem import DAY, Log, disturb
from tests.support.s3_servers import free_port
from tests.support.table_mayhem import ROOM, History, Plan, end_holds, lines_of, places, reachable, serve
from tests.support.writers import forking, pool
from trinitylake_core import Lakehouse
from trinitylake_core.clock import now_millis
from trinitylake_core.iceberg import TrinityLakeCatalog
from trinitylake_core.rest import endpoint
from trinitylake_core.storage import open_storage

_SECONDS: Final = float(os.environ.get("MAYHEM_SECONDS", "90"))
_SLACK_SECONDS: Final = 1_200
"""To fill the tables, and to read what is left: on two cores with other work DuckDB takes seconds for each of them."""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(_SECONDS + _SLACK_SECONDS)]
_ENDPOINTS: Final = 2
_ROLES: Final = ("spark", "direct", "rest", "duckdb", "maintainer", "reader")
_BY_SPARK: Final = ("spark", "maintainer", "maintainer", "reader")
_KEPT: Final = 30
_STARTED_BYTES: Final = 20_000
_STALL_SECONDS: Final = 3.0
_TTL_MILLIS: Final = 20_000
"""The holds of compactions that are killed end soon."""
_TICK_SECONDS: Final = 1.1
_DIED: Final = "Process ForkServer"


@dataclass
class _Mayhem:
    """The processes: endpoints, and others by their roles."""

    plan: Plan
    logs: Path
    roles: tuple[str, ...] = _ROLES
    sizes: dict[int, int] = field(default_factory=dict)

    def start(self, number: int, life: int) -> Any:
        """Start an endpoint, or a process of a role."""
        log, role = self.logs / f"{number}.log", number - _ENDPOINTS
        self.sizes[number] = log.stat().st_size if log.exists() else 0
        seed = number + (_ENDPOINTS + len(self.roles)) * life
        target, args = (serve, (number,)) if role < 0 else (kinds.live, (self.roles[role], seed))
        process = forking().Process(target=target, args=(self.plan, *args, log))
        process.start()
        return process

    def is_starting(self, number: int) -> bool:
        """Whether a Spark has noted little yet."""
        log = self.logs / f"{number}.log"
        size = log.stat().st_size if log.exists() else 0
        is_spark = number >= _ENDPOINTS and self.roles[number - _ENDPOINTS] == "spark"
        return is_spark and size < self.sizes.get(number, 0) + _STARTED_BYTES


def test_every_row_of_every_version_is_what_was_acknowledged(tmp_path: Path) -> None:
    """All tables, and writers of all kinds."""
    _compact_beside(tmp_path, _ROLES, TABLES)


def test_spark_writes_deletion_vectors_beside_all_maintenance(tmp_path: Path) -> None:
    """Tables of format version 3, which Spark appends to, updates and deletes from, and compacts."""
    _compact_beside(tmp_path, _BY_SPARK, [name for name in TABLES if kinds.kind_of(name) in kinds.FORMAT_3])


def _compact_beside(tmp_path: Path, roles: tuple[str, ...], written: Sequence[str]) -> None:
    root, logs = (tmp_path / "lake").as_uri(), tmp_path / "logs"
    logs.mkdir()
    options = {"durable": False}
    lake = Lakehouse.create(
        root, storage_options=options, order=8, node_file_max_size_bytes=20_000, txn_ttl_millis=_TTL_MILLIS
    )
    share = _prepare(lake, logs, tmp_path / "shares.json", written)
    refs = kinds.refs_of(lake.refresh())
    uris = [f"http://127.0.0.1:{free_port()}" for _ in range(_ENDPOINTS)]
    plan = Plan(root, options, uris, secret=str(share), kept=_KEPT)
    print(f"{len(TABLES)} tables, {_files(lake)} data files")
    mayhem, ends = _Mayhem(plan, logs, roles), time.monotonic() + _SECONDS
    disturbed = disturb(
        mayhem.start,
        _ENDPOINTS + len(roles),
        lambda: time.monotonic() >= ends,
        stall=_STALL_SECONDS,
        spared=mayhem.is_starting,
    )
    lines = lines_of(sorted(logs.glob("*.log")))
    history = History(lines)
    for line in lines:
        if line["what"] == "read":
            history.compare(line["version"], line["tables"])
    history.judged.wrong += [f"{line}" for line in lines if line["what"] == "wrong"]
    _report(lake.refresh(), disturbed, lines, history, roles)
    told = [path.read_text() for path in logs.glob("*.err")]
    assert [] == [text[text.index(_DIED) :] for text in told if _DIED in text]
    _end(lake.refresh(), history, refs)


def _prepare(lake: Lakehouse, logs: Path, share: Path, written: Sequence[str]) -> Path:
    """Fill the tables, note their rows, and give each writer a share of those that are to be written."""
    prepared = Prepared()
    kinds.fill_by_pyiceberg(lake, prepared)
    with pool(1) as process:
        deleted = process.submit(kinds.fill_by_spark, lake.root).result(600)
    for name, gone in deleted.items():
        prepared.rows[name] = sorted({*prepared.numbers(name)} - {*gone})
    version = lake.refresh().version
    assert prepared.rows == kinds.contents(lake)
    with closing(Log(logs / "prepared.log")) as log:
        kinds.note_prepared(log, prepared, version)
    share.write_text(json.dumps({name: prepared.rows[name] for name in written}), encoding="utf-8")
    later = expire.Config(engine="local", keep_last=1, now_millis=now_millis() + 30 * DAY)
    expire.run(lake.refresh(), later)
    return share


def _files(lake: Lakehouse) -> int:
    catalog = TrinityLakeCatalog.over(lake)
    summaries = [catalog.load_table(name).metadata.current_snapshot().summary for name in TABLES]  # type: ignore[union-attr]
    return sum(int(each["total-data-files"] or 0) for each in summaries if each is not None)


def _report(
    lake: Lakehouse, disturbed: str, lines: list[dict[str, Any]], history: History, roles: tuple[str, ...]
) -> None:
    count = _ENDPOINTS + len(roles)
    done = [line["op"] for line in lines if line["what"] == "done" and line["op"] < 10**12]
    writers = Counter(roles[op // ROOM % count - _ENDPOINTS] for op in done)
    compacted = [line for line in lines if line["what"] == "compacted"]
    print(f"{disturbed}; {lake.version} versions; changes {dict(writers)}; {history.judged.ended}")
    for outcome, number in Counter((each["engine"], each["outcome"]) for each in compacted).most_common():
        print("  compactions", *outcome, number)
    merged = [each for each in compacted if each["outcome"] == "done"]
    print(f"  {sum(each['files'] for each in merged)} files became {sum(each['after'] for each in merged)}")
    print("  tables compacted", len({each["table"] for each in merged}))
    print("  versions read", sum(line["what"] == "read" for line in lines))
    for kind in ("cleaned", "snapshots"):
        print(f"  {kind}", sum(line["files"] for line in lines if line["what"] == kind))
    reasons = Counter((each["outcome"], each["reason"][:200]) for each in compacted if each["outcome"] != "done")
    print(*reasons.most_common(12), sep="\n")
    print(*Counter(line["error"][:200] for line in lines if line["what"] == "failed").most_common(12), sep="\n")
    print(*Counter(history.judged.errors).most_common(20), sep="\n")


# -- what is left ----------------------------------------------------------------------------------------


def _end(lake: Lakehouse, history: History, refs: dict[str, Any]) -> None:
    """Clean; every version reads as before and as told; roll back, forward, and let all but one version expire."""
    end_holds(lake)
    before = dict(_everything(lake))
    for version, tables in before.items():
        history.compare(version, tables)
    print(history.judged)
    assert [] == history.judged.wrong
    _cleaned(lake)
    after = dict(_everything(lake))  # and the version of the cleaning
    assert [] == [version for version, tables in before.items() if after.get(version) != tables]
    newest, oldest = lake.refresh().version, lake.root_node.oldest_version  # snapshots keep older ones
    lake.rollback(version=oldest, reason="a test", force=True)
    assert before[oldest] == kinds.contents(lake.refresh())
    lake.rollback(version=newest, reason="a test", force=True)
    assert after[newest] == kinds.contents(lake.refresh())
    assert refs == kinds.refs_of(lake), "tags and branches stay"
    compaction.run(lake, compaction.Config(engine="local"))
    expire.run(lake, expire.Config(engine="local", keep_last=1, now_millis=now_millis() + 30 * DAY))
    _cleaned(lake)
    assert after[newest] == kinds.contents(lake.refresh())
    assert refs == kinds.refs_of(lake)
    with pool(1) as process:
        assert after[newest] == process.submit(_by_spark, lake.root).result(600)
    left, live = {each.path for each in lake.storage.list("tables/")}, reachable(lake.refresh())
    beside = {f"{above}/.{name}.crc" for above, _, name in (path.rpartition("/") for path in live)}  # by Spark
    assert (set(), set()) == (left - live - beside, live - left)
    config = verify.Config("all", engine="local", tables=1.0, deep=True)
    assert [] == list(verify.run(open_storage(lake.root), config).findings)


def _by_spark(root: str) -> dict[str, list[int]]:
    with endpoint(Lakehouse.open(root)) as at, kinds.in_spark(at.properties()) as catalog:
        found = {}
        for name in TABLES:
            found[name] = sorted(number for (number,) in catalog.run(f"SELECT id FROM {catalog.name}.{name}"))
        return found


def _everything(lake: Lakehouse) -> Iterator[tuple[int, dict[str, list[int]]]]:
    known: dict[str, list[int]] = {}
    for version, at in places(lake.refresh()):
        yield version, kinds.contents(lake, known, **at)


def _cleaned(lake: Lakehouse) -> None:
    time.sleep(_TICK_SECONDS)
    report = tables_clean.run(lake, tables_clean.Config(engine="local", older_than_seconds=0, allow_recent=True))
    assert (0, (), 0) == (report.failed, report.doubts, report.foreign.files)
