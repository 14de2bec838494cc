"""A machine of the cluster is lost in each stage of a command: it is done all the same, or says what to do.

On this disk and on S3; its worker may be lost with it, or it goes on when others have done its tasks. Or Spark itself
starts and ends executors, as there is work (dynamic allocation).
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.programs import run_program

_PROGRAM = """
    import json, sys
    from contextlib import ExitStack
    from dataclasses import replace
    from pathlib import Path
    from benchmarks.cluster import write_lines
    from pipelines import backup, clean, compaction, diff, expire, export, load, rollback, stats
    from pipelines import tables_clean, tables_health, verify
    from pipelines.engine import open_engine
    from pipelines.job import dry_run
    from pipelines.session import lazy_session, session_parallelism
    from tests.support.lakes import FAST, filled
    from tests.support.lost_machines import DYNAMIC, LIVE, SPECULATIVE, killing
    from tests.support.many_tables import many_tables
    from tests.support.slow_s3 import run_slow_s3
    from tests.support.standalone import standalone
    from trinitylake_core import Lakehouse, clock
    from trinitylake_core.errors import StorageError
    from trinitylake_core.storage import open_storage

    folder, where, *steps = Path(sys.argv[1]), *sys.argv[2:]
    stack = ExitStack()
    roots, options = [(folder / name).as_uri() for name in ("lake", "copy")], FAST
    if where == "s3":
        server = stack.enter_context(run_slow_s3(folder))
        roots, options = [server.new_root(), server.new_root()], server.options
    lake = filled(Lakehouse.create(roots[0], order=8, storage_options=options), 600, 3, 200)
    before = lake.at(version=lake.version - 1)
    with lake.refresh().transaction() as txn:
        for number in range(600):
            txn.alter_table(f"ns{number % 3}", f"t{number:03}", properties={"changed": "yes"})
    lake.refresh()
    iceberg = 3 if where == "s3" else 60
    tables = many_tables(folder / "iceberg", iceberg, 2, 2, order=8).lakehouse.refresh()
    content = [each.digest() for each in (lake, tables)]
    copy = open_storage(roots[1], options if where == "s3" else {})
    no_age = {"older_than_seconds": 0, "allow_recent": True}
    later = clock.now_millis() + 10**10
    expired = expire.Config(keep_last=1, now_millis=later)
    loaded = Lakehouse.create((folder / "loaded").as_uri(), storage_options=FAST)
    lines = folder / "lines.jsonl"
    write_lines(5_000, lines)
    undone = rollback.Config(version=before.version, reason="r", engine="spark")

    def has_none_left(job, cleaned):
        rest = job.run(cleaned, job.Config(engine="local", **no_age), review=dry_run)
        return 0 == rest.orphan_files and not list(cleaned.refresh().check(definitions=True))

    def cleaned(job, spark, of):
        expire.run(of.refresh(), expired)
        report = job.run(of.refresh(), job.Config(engine="spark", **no_age), spark)
        return report.attempted and not report.failed

    commands = {
        "diff": (
            lambda spark: diff.report(before, lake, diff.Config(engine="spark"), spark).counts,
            lambda counts: counts == diff.report(before, lake, diff.Config(engine="local")).counts,
        ),
        "verify": (
            lambda spark: verify.run(lake, verify.Config(engine="spark", definitions=True), spark),
            lambda report: report.ok and report.definitions_read > 600,
        ),
        "health": (
            lambda spark: tables_health.run(tables, tables_health.Config(engine="spark"), spark).tables,
            lambda found: found == tables_health.run(tables, tables_health.Config(engine="local")).tables,
        ),
        "export": (
            lambda spark: export.run(lake, copy, export.Config(engine="spark", history=True), spark),
            lambda _: Lakehouse.open(copy).digest() == content[0],
        ),
        "stats": (
            lambda spark: stats.deep(lake, open_engine("spark", spark), storage=True).reach,
            lambda reach: reach == stats.deep(lake, storage=True).reach,
        ),
        "backup": (
            lambda spark: backup.run(lake, copy, backup.Config(engine="spark"), spark),
            lambda report: report.ok and report.versions_verified > 1,
        ),
        "load": (
            lambda spark: load.run(loaded.refresh(), str(lines), load.Config(engine="spark"), spark),
            lambda _: loaded.refresh().stats().objects > 5_000 and not list(loaded.check(definitions=True)),
        ),
        "rollback": (
            lambda spark: rollback.run(lake, undone, spark, review=dry_run),
            lambda report: report.plan == rollback.run(lake, replace(undone, engine="local"), review=dry_run).plan,
        ),
        "expire": (
            lambda spark: expire.run(lake, replace(expired, engine="spark"), spark, review=dry_run).freed,
            lambda freed: freed == expire.run(lake, expired, review=dry_run).freed,
        ),
        "compact": (
            lambda spark: compaction.run(lake, compaction.Config(engine="spark", full=True), spark),
            lambda _: not lake.refresh().backend.newest().node.buffer,
        ),
        "clean": (lambda spark: cleaned(clean, spark, lake), lambda did: did and has_none_left(clean, lake)),
        "tables clean": (
            lambda spark: cleaned(tables_clean, spark, tables),
            lambda did: did and has_none_left(tables_clean, tables),
        ),
    }
    more, workers = {"disk": ({}, 2), "more": ({}, 2), "s3": (SPECULATIVE, 3), "dynamic": (DYNAMIC, 3)}[where]
    conf = {**LIVE, **more}
    with stack, standalone(workers, folder) as cluster, lazy_session(cluster.session(**conf)) as spark:
        session_parallelism(spark())
        for step in steps:
            how, name = step.split(":")
            run, is_right = commands[name]
            told = None
            with killing(cluster, spark().sparkContext, how) as killer:
                try:
                    result = run(spark)
                except StorageError as error:
                    told = str(error)
            if told:
                result = run(spark)
            same = [each.refresh().digest() for each in (lake, tables)] == content
            found = {"lost": len(killer.stages), "told": told, "right": bool(is_right(result)), "same": same}
            print(json.dumps({step: found}), flush=True)
    events = [line for log in (folder / "events").iterdir() for line in log.read_text().splitlines()]
    begun = [line for line in events if "SparkListenerTaskStart" in line and '"Speculative":true' in line]
    came, went = (sum(f"SparkListenerExecutor{how}" in line for line in events) for how in ("Added", "Removed"))
    print(json.dumps({"second attempts": len(begun), "came": came, "went": went}))
"""
STEPS = {
    "disk": [f"executor:{each}" for each in ("diff", "verify", "health", "export", "compact", "clean", "tables clean")],
    "more": [f"executor:{each}" for each in ("export", "backup", "load", "rollback", "stats", "expire")],
    "s3": ["executor:clean", "straggler:compact", "worker:export"],
    "dynamic": [f"executor:{each}" for each in ("verify", "export", "clean")],
}
"""What is lost in which command, by the storage of the lakehouse."""


@pytest.fixture(scope="module", params=list(STEPS))
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Run the commands on a cluster of its own."""
    where = str(request.param)
    folder = tmp_path_factory.mktemp("lost")
    ended = run_program(_PROGRAM, str(folder), where, *STEPS[where], seconds=1_150)
    results: dict[str, Any] = {"where": where}
    for line in ended.stdout.splitlines():
        results |= json.loads(line)
    results["error"] = ended.stderr[-4000:] if ended.returncode else None
    return results


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(1_200)
def test_commands_outlive_machines_in_each_stage(found: dict[str, Any]) -> None:
    """What Spark kept there is made again, or kept elsewhere; where it is not, a second run is done.

    A straggler's tasks were done by second attempts, so two tasks wrote the same files.
    """
    steps = STEPS[found["where"]]
    assert set(steps) <= set(found), found["error"]
    for step in steps:
        job = found[step]
        assert job["lost"], step
        assert job["told"] is None or "run it again" in job["told"]
        assert (True, True) == (job["right"], job["same"]), step
    assert found["second attempts"] or found["where"] != "s3"
    killed = sum(found[step]["lost"] for step in steps)
    assert killed < found["went"] <= found["came"] or found["where"] != "dynamic", "executors ended by themselves, too"
