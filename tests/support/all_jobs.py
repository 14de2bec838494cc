"""The jobs whose tasks do all kinds of work on Spark, one after another, in a process of their own, with its Spark.

python -m tests.support.all_jobs DIRECTORY      prints what the jobs reported, as JSON
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyspark

from pipelines import clean, compaction, diff, expire, export, load, rollback, stats, verify
from pipelines.engine import open_engine
from pipelines.integrity.digest import digest
from pipelines.job import dry_run
from pipelines.session import SessionConfig, lazy_session
from tests.support.lakes import FAST
from trinitylake_core import Lakehouse
from trinitylake_core.clock import now_millis
from trinitylake_core.storage import open_storage

OBJECTS = Path(__file__).parent / "objects.jsonl"
_DAY = 86_400_000


def main(directory: Path) -> None:
    """Run all jobs on the lakehouse in ``directory / "lake"`` and tell what does not depend on time or chance."""
    lake = Lakehouse.open((directory / "lake").as_uri(), storage_options=FAST)
    with lazy_session(SessionConfig(master="local[2]")) as spark:
        told = dict(_told(spark, lake, directory))
    print(json.dumps({"spark": pyspark.__version__, **told}, default=str))


def _told(spark: Any, lake: Lakehouse, directory: Path) -> Any:
    start = lake.version
    done = compaction.run(lake, compaction.Config(engine="spark", tasks=3), spark)
    yield "compaction", [done.messages_after, done.proved, done.nodes_read, done.nodes_written, done.height_after]
    yield "digest", [digest(open_engine(engine, spark), lake.refresh()) for engine in ("spark", "local")]
    seen = verify.run(lake, verify.Config(versions="all", definitions=True), spark)
    yield "verify", [seen.ok, seen.nodes_read, seen.definitions_read, seen.definitions_proved, seen.versions]
    changes = diff.run(lake.at(version=start - 5), lake, diff.Config(engine="spark"), spark)
    yield "diff", [[change.change, change.kind, change.namespace, change.name] for change in changes]
    loaded = load.run(lake, str(OBJECTS), load.Config(engine="spark"), spark)
    yield "load", [loaded.engine, loaded.added, loaded.replaced, loaded.skipped]
    lake.refresh()
    health = stats.deep(lake, open_engine("spark", spark), storage=True)
    yield (
        "stats",
        [health.nodes, health.keys, health.messages, None if health.reach is None else health.reach.newest.files],
    )
    copied = export.run(lake, open_storage((directory / "copy").as_uri(), FAST), export.Config(engine="spark"), spark)
    yield "export", [copied.definitions_copied, copied.nodes_copied, copied.roots_created]
    back = rollback.run(lake, rollback.Config(version=start, reason="test", engine="spark"), spark)
    yield "rollback", back.version_after
    lake.refresh()
    rules = expire.Config(keep_last=3, now_millis=now_millis() + 30 * _DAY)
    freed = expire.run(lake, rules, spark, review=dry_run).freed
    yield "expire", None if freed is None else [freed.versions, freed.files]
    expire.run(lake, expire.Config(keep_last=3, now_millis=now_millis() + 30 * _DAY), spark)
    cleaned = clean.run(lake.refresh(), clean.Config(older_than_seconds=0, allow_recent=True), spark)
    yield "clean", [cleaned.deleted, cleaned.failed, cleaned.nodes_read, sorted(cleaned.orphans)]
    yield "violations", [str(each) for each in lake.refresh().check(definitions=True)]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
