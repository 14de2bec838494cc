"""On S3, too, no job opens for a table what lies outside its places: the server's log and the kernel say what was."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from pipelines import compaction, export, stats, tables_clean, tables_compact, tables_expire, tables_health, verify
from pipelines.cli import main
from pipelines.engine import open_engine
from pipelines.session import SessionConfig, get_session
from pipelines.session.iceberg import TESTED
from pipelines.tables.compact.decision import GroupRules
from tests.support.icebergs import ids, opened, rows, with_table
from tests.support.opened_files import watched
from tests.support.respelled import rewrite_avro
from tests.support.s3_servers import IGNORES_IF_MATCH, KEY, SECRET, S3Server
from tests.support.writers import pool
from trinitylake_core import Lakehouse
from trinitylake_core.iceberg import ALLOWED_LOCATIONS, TrinityLakeCatalog
from trinitylake_core.iceberg.registration import register_all

_RULES: Final = GroupRules(min_files=2)
_SECONDS: Final = 500


def _name_elsewhere(server: S3Server, table: Any, place: str, scratch: Path) -> None:
    """Make the manifests of a table on S3 name another file in the place of the first one."""
    client = server.client()
    (first, *_) = sorted(str(each) for each in table.inspect.files()["file_path"].to_pylist())

    def rewrite(uri: str, change: Callable[[Any], None]) -> int:
        bucket, _, key = uri.removeprefix("s3://").partition("/")
        client.download_file(bucket, key, str(scratch))
        rewrite_avro(scratch, change)
        client.upload_file(str(scratch), bucket, key)
        return scratch.stat().st_size

    def change_file(row: Any) -> None:
        if row["data_file"]["file_path"] == first:
            row["data_file"]["file_path"] = place

    def change_manifest(row: Any) -> None:
        row["manifest_length"] = sizes[row["manifest_path"]]

    sizes = {}
    for snapshot in table.metadata.snapshots:
        for manifest in snapshot.manifests(table.io):
            sizes[manifest.manifest_path] = rewrite(manifest.manifest_path, change_file)
    for snapshot in table.metadata.snapshots:
        rewrite(snapshot.manifest_list, change_manifest)


class _Done(NamedTuple):
    """What the jobs said that change something."""

    failures: dict[str, str]
    files_made: int
    stops_all: bool


def _open(root: str, options: dict[str, Any], engine: str) -> tuple[Lakehouse, Any]:
    """Return the lakehouse, and a session of a Spark of this process where the engine is that."""
    lake = Lakehouse.open(root, storage_options=options)
    if engine == "local":
        return lake, None
    os.environ |= {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1"}
    conf = {"spark.jars.packages": f"org.apache.iceberg:iceberg-aws-bundle:{TESTED}"}
    return lake, get_session(SessionConfig(master="local[2]", iceberg=TESTED, conf=conf))


def _maintain(root: str, options: dict[str, Any], engine: str) -> _Done:
    lake, spark = _open(root, options, engine)
    how = tables_compact.Config(pattern="a.*", engine=engine, rules=_RULES)
    compacted = tables_compact.run(lake, how, spark)
    tables_health.run(lake, tables_health.Config(pattern="a.*", engine=engine), spark)
    tables_expire.run(lake, tables_expire.Config(pattern="a.*", older_than_seconds=0))
    cleaning = tables_clean.Config(engine=engine, older_than_seconds=0, allow_recent=True)
    cleaned = tables_clean.run(lake, cleaning, spark)
    stats.deep(lake, open_engine(engine, spark), storage=True)
    words = [f"--storage-option={name}={value}" for name, value in options.items()]
    assert 0 == main(["stats", root, "--tables", *words])
    return _Done(dict(compacted.failures), compacted.files_made, any(each.stops_all for each in cleaned.doubts))


def _prove_and_copy(root: str, options: dict[str, Any], engine: str, target: str) -> None:
    lake, spark = _open(root, options, engine)
    verify.run(lake, verify.Config(tables=1.0, deep=True, engine=engine), spark)
    export.run(lake, target, export.Config(engine=engine, tables=True), spark, storage_options=options)


@pytest.mark.s3
@pytest.mark.slow
@pytest.mark.parametrize("engine", ["local", "spark"])
@pytest.mark.parametrize("allowed", [False, True])
def test_no_job_opens_a_file_of_another_place_on_s3(
    allowed: bool, engine: str, moto_server: S3Server, tmp_path: Path
) -> None:
    root = moto_server.new_root()
    shared = moto_server.new_root().rstrip("/")
    Lakehouse.create(root, storage_options=moto_server.options)
    ours = {f"storage.{name}": value for name, value in moto_server.options.items()}
    catalog = opened(root, **ours, **{ALLOWED_LOCATIONS: shared})
    theirs = with_table(catalog, "hr.theirs", 1)
    secret = str(theirs.inspect.files()["file_path"][0])
    in_shared = str(with_table(catalog, "hr.shared", 1, location=f"{shared}/hr/t").inspect.files()["file_path"][0])
    catalog.drop_table("hr.theirs")  # so that nobody has a reason to open its file
    here = tmp_path / "here.parquet"
    here.write_bytes(b"secret of the machine")
    link, pipe = tmp_path / "link.parquet", tmp_path / "pipe.parquet"
    link.symlink_to(here)
    os.mkfifo(pipe)
    above = f"{root}tables/a/above.parquet"
    elsewhere = f"s3://{IGNORES_IF_MATCH}/elsewhere.parquet"
    for place in (above, elsewhere):
        bucket, _, key = place.removeprefix("s3://").partition("/")
        moto_server.client().put_object(Bucket=bucket, Key=key, Body=b"secret of somebody")
    places = {
        "another": secret,
        "shared": in_shared,
        "above": above,
        "bucket": elsewhere,
        "etc": here.as_uri(),
        "proc": "file:///proc/self/environ",
        "link": link.as_uri(),
        "pipe": pipe.as_uri(),
    }
    names = [*(f"a.{name}" for name in places), "a.sound"]
    for number in (1, 2):
        with catalog.transaction() as together:
            for name in names:
                if number == 1:
                    with_table(together, name, 1)
                else:
                    together.load_table(name).append(rows(2))
    for name, place in places.items():
        _name_elsewhere(moto_server, catalog.load_table(f"a.{name}"), place, tmp_path / "scratch.avro")
    # What a waiting message names is proved and copied for its own table: nothing waits.
    compaction.run(catalog.lakehouse, compaction.Config(engine="local", full=True))
    options = moto_server.options | ({"allowed_locations": shared} if allowed else {})
    asked = [secret, above, elsewhere, in_shared]
    before = {each: moto_server.requests(each.rpartition("/")[2]) for each in asked}
    with watched([here, pipe]) as opened_here, pool(1) as process:  # a Spark with Iceberg has a process of its own
        done = process.submit(_maintain, root, options, engine).result(_SECONDS)
        register_all(Lakehouse.create(moto_server.new_root(), storage_options=moto_server.options), catalog)
        asked_before_all = {each: moto_server.requests(each.rpartition("/")[2]) for each in asked}
        process.submit(_prove_and_copy, root, options, engine, moto_server.new_root()).result(_SECONDS)
    assert [] == opened_here
    assert before == asked_before_all
    for each in (secret, above, elsewhere):
        assert before[each] == moto_server.requests(each.rpartition("/")[2]), each
    assert {f"a.{name}" for name in places} == set(done.failures)
    assert (1, False) == (done.files_made, done.stops_all)
    lake = Lakehouse.open(root, storage_options=options)
    assert [1, 2] == ids(TrinityLakeCatalog.over(lake).load_table("a.sound"))
