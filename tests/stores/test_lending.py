"""Keys that are lent for one table, at a store that looks at policies: MinIO. `make test-stores`."""

from __future__ import annotations

import io
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import boto3
import pytest
from botocore.exceptions import ClientError
from pyarrow import parquet
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import Table

from pipelines import tables_compact
from pipelines.session import SessionConfig, get_session
from pipelines.session.iceberg import TESTED
from pipelines.tables.compact.decision import GroupRules
from pipelines.tables.compact.model import NamedEndpoint, Settings
from pipelines.tables.compact.statements import SparkCatalog
from tests.core.test_rest import Client
from tests.support.engines import by_spark_sql, connected
from tests.support.icebergs import ids, rows, with_table
from tests.support.real_stores import RunningStore
from tests.support.respelled import rewrite_avro
from tests.support.s3_servers import BUCKET, KEY, SECRET
from tests.support.writers import pool
from trinitylake_core import Lakehouse
from trinitylake_core.rest import Principals, Served, Warehouses, application
from trinitylake_core.rest.lending import Lender
from trinitylake_core.rest.principals import Principal, hash_token
from trinitylake_core.rest.serving import running

_ROLE = "arn:aws:iam::000000000000:role/tables"  # MinIO has no roles: the session gets what its policy leaves
_SECONDS: Final = 900
"""What keys last here. MinIO and AWS lend none for a shorter time."""
_DENIED: Final = r"ACCESS_DENIED|AccessDenied|Access Denied|403"
_RENEWED: Final = 'trinitylake_requests_total{operation="load_credentials",status="200"}'
_TASKS: Final = 12
_TASK_SECONDS: Final = 90
_FOR_SPARK: Final = {"header.X-Iceberg-Access-Delegation": "vended-credentials", "client.region": "us-east-1"}
_RIGHTS = {"owner": {"manage": ["*"]}, "writer": {"write": ["a.t"]}, "reader": {"read": ["a.t"]}}


@pytest.fixture
def lake(minio: RunningStore) -> Lakehouse:
    return Lakehouse.create(minio.new_root(), storage_options=minio.options)


@pytest.fixture
def uri(minio: RunningStore, lake: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An endpoint that lends. Clients have no keys in their environment."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    lender = Lender(_ROLE, endpoint=minio.options["endpoint_url"], seconds=_SECONDS)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    known = Principals({hash_token(name): Principal(name, allowed) for name, allowed in _RIGHTS.items()})
    with running(application(Warehouses({"lake": lambda: lake}, lender=lender), known)) as found:
        catalog = _as(found, "owner")
        for name in ("a.t", "a.neighbour"):
            with_table(catalog, name, 1)
        yield found


def _as(uri: str, name: str) -> Catalog:
    return load_catalog("lake", type="rest", uri=uri, warehouse="lake", token=name)


def _client(table: Table) -> Any:
    """Return a client of the store with the keys that a table came with."""
    lent = table.io.properties
    assert KEY != lent["s3.access-key-id"]
    return boto3.client(
        "s3",
        endpoint_url=lent["s3.endpoint"],
        region_name="us-east-1",
        aws_access_key_id=lent["s3.access-key-id"],
        aws_secret_access_key=lent["s3.secret-access-key"],
        aws_session_token=lent["s3.session-token"],
    )


def _is_refused(ask: Callable[[], Any]) -> bool:
    try:
        answer = ask()
    except ClientError as error:
        return bool(error.response["ResponseMetadata"]["HTTPStatusCode"] == 403)
    return [each["Code"] for each in answer.get("Errors", ())] == ["AccessDenied"]


def _attempts(client: Any, bucket: str, key: str, *, with_list: bool = True) -> list[Callable[[], Any]]:
    """Return what somebody may try with a file."""
    directory = f"{key.rpartition('/')[0]}/"
    at = {"Bucket": bucket, "Key": key}
    tries = [
        partial(client.get_object, **at),
        partial(client.head_object, **at),
        partial(client.put_object, **at, Body=b"mine"),
        partial(client.delete_object, **at),
        partial(client.create_multipart_upload, **at),
        partial(client.delete_objects, Bucket=bucket, Delete={"Objects": [{"Key": key}]}),
    ]
    listing = partial(client.list_objects_v2, Bucket=bucket, Prefix=directory)
    return [*tries, listing] if with_list else tries


def test_lent_keys_read_and_write_one_table_and_touch_nothing_else(
    uri: str, lake: Lakehouse, minio: RunningStore
) -> None:
    """The store decides. What is refused stays as it was."""
    owner = _as(uri, "owner")
    endpoint = minio.options["endpoint_url"]
    bucket, _, path = lake.root.removeprefix("s3://").partition("/")
    neighbour = owner.load_table("a.neighbour")
    own = owner.load_table("a.t").metadata_location.removeprefix(f"s3://{bucket}/")
    behind = boto3.client(
        "s3", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id=KEY, aws_secret_access_key=SECRET
    )
    listed = behind.list_objects_v2(Bucket=bucket, Prefix=path)["Contents"]
    others = [each["Key"] for each in listed if "/tables/" not in each["Key"]]
    forbidden = [
        neighbour.metadata_location.removeprefix(f"s3://{bucket}/"),
        next(each["Key"] for each in listed if "/tables/a/neighbour-" in each["Key"] and "/data/" in each["Key"]),
        *others[:2],
    ]
    before = {each["Key"]: each["ETag"] for each in listed}
    refused = attempts = 0
    for name in ("writer", "reader"):
        client = _client(_as(uri, name).load_table("a.t"))
        for key in forbidden:
            for ask in _attempts(client, bucket, key):
                attempts += 1
                refused += _is_refused(ask)
        for prefix in ("", path, f"{path}tables/", f"{path}tables/a/"):
            attempts += 1
            refused += _is_refused(partial(client.list_objects_v2, Bucket=bucket, Prefix=prefix))
    assert attempts >= 60
    assert attempts == refused
    print(f"{attempts} attempts, {refused} refused")
    after = behind.list_objects_v2(Bucket=bucket, Prefix=path)["Contents"]
    assert before == {each["Key"]: each["ETag"] for each in after}

    reader, writer = (_client(_as(uri, name).load_table("a.t")) for name in ("reader", "writer"))
    directory = own.rpartition("/metadata/")[0]
    assert reader.get_object(Bucket=bucket, Key=own)["Body"].read()
    assert 0 < reader.list_objects_v2(Bucket=bucket, Prefix=f"{directory}/")["KeyCount"]
    own_attempts = _attempts(reader, bucket, own, with_list=False)
    assert [False, False, True, True, True, True] == [_is_refused(ask) for ask in own_attempts]
    writer.put_object(Bucket=bucket, Key=f"{directory}/data/mine", Body=b"x")
    assert _is_refused(partial(writer.delete_object, Bucket=bucket, Key=f"{directory}/data/mine"))


def test_pyiceberg_reads_and_writes_with_lent_keys(uri: str) -> None:
    _as(uri, "writer").load_table("a.t").append(rows(2))
    assert [1, 2] == ids(_as(uri, "reader").load_table("a.t"))
    with pytest.raises(OSError, match=_DENIED):
        _as(uri, "reader").load_table("a.t").append(rows(3))


def test_duckdb_reads_and_writes_with_lent_keys(uri: str) -> None:
    with connected(Served(uri, "owner", "lake")) as connection:
        connection.execute("CREATE TABLE l.a.d AS SELECT range AS x FROM range(3)")
        connection.execute("INSERT INTO l.a.d VALUES (7)")
        assert [(4, 10)] == connection.execute("SELECT count(*), sum(x) FROM l.a.d").fetchall()


def test_spark_reads_and_writes_with_lent_keys(uri: str) -> None:
    """With Iceberg's runtime and AWS bundle, and so with Maven Central."""
    served = Served(uri, "owner", "lake")
    with pool(1) as process:
        statements = (
            "CREATE TABLE l.a.s (x BIGINT)",
            "INSERT INTO l.a.s VALUES (1), (2)",
            "DELETE FROM l.a.s WHERE x = 1",
            "SELECT x FROM l.a.s",
        )
        ran = process.submit(partial(by_spark_sql, served, "lake", **_FOR_SPARK), *statements).result()
    assert [(2,)] == ran[-1]


@pytest.mark.parametrize("way", ["keys are lent", "requests are signed"])
def test_spark_opens_for_a_table_its_own_files_whatever_its_writer_puts_there_meanwhile(
    way: str, uri: str, lake: Lakehouse, minio: RunningStore, tmp_path: Path
) -> None:
    """After we have looked at a manifest it names a file of another table, or one of this machine's disk.

    By keys for the directory of a table, or by requests that the endpoint in this process signs one by one.
    """
    owner = _as(uri, "owner")
    behind = _client_of_the_owner(minio.options)
    theirs = with_table(owner, "a.theirs", 4242)
    (secret,) = (each["file_path"] for each in theirs.inspect.files().to_pylist())
    private = tmp_path / "private.parquet"
    _download(behind, secret, private)
    shared = f"s3://{BUCKET}/shared-{way[:4]}"
    swaps = []
    for name, place in (("a.t", secret), ("a.disk", private.as_uri()), ("a.allowed", f"{shared}/x.parquet")):
        mine = owner.load_table("a.t") if name == "a.t" else with_table(owner, name, 1)
        mine.append(rows(2))
        found = _swap_file(behind, mine, place, private.stat().st_size, tmp_path / "scratch.avro")
        if name != "a.allowed":
            swaps += found
            continue
        (first, *_) = mine.inspect.files().to_pylist()
        _download(behind, first["file_path"], tmp_path / "allowed.parquet")
        found = _swap_file(behind, mine, place, first["file_size_in_bytes"], tmp_path / "scratch.avro")
        bucket, _, key = place.removeprefix("s3://").partition("/")
        for each in (*found, _Swap(bucket, key, (tmp_path / "allowed.parquet").read_bytes())):
            behind.put_object(Bucket=each.bucket, Key=each.key, Body=each.content)
    with_table(owner, "a.sound", 1).append(rows(2))
    settings = Settings(endpoint=NamedEndpoint(uri, "lake", "owner")) if way == "keys are lent" else Settings()
    options = {**minio.options, "allowed_locations": shared}
    with pool(1) as process:
        failures = process.submit(_compact_after_swaps, lake.root, options, settings, swaps).result(500)
    refused = {"a.t", "a.disk"} | ({"a.allowed"} if way == "keys are lent" else set())
    assert refused == set(failures), failures
    if way == "requests are signed":
        assert "lies outside the places of its table" in failures["a.t"]
        assert secret in failures["a.t"]
    for name in {"a.sound", "a.allowed"} - refused:
        done = owner.load_table(name)
        assert ([1, 2], 1) == (ids(done), len(done.inspect.files()))
    for name in ("a.t", "a.disk"):
        bucket, _, directory = owner.load_table(name).location().removeprefix("s3://").partition("/")
        for each in behind.list_objects_v2(Bucket=bucket, Prefix=f"{directory}/data/")["Contents"]:
            data = behind.get_object(Bucket=bucket, Key=each["Key"])["Body"].read()
            assert 4242 not in parquet.read_table(io.BytesIO(data))["id"].to_pylist(), failures


class _Swap(NamedTuple):
    bucket: str
    key: str
    content: bytes


def _client_of_the_owner(options: Mapping[str, Any]) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=options["endpoint_url"],
        region_name="us-east-1",
        aws_access_key_id=KEY,
        aws_secret_access_key=SECRET,
    )


def _download(behind: Any, uri: str, to: Path) -> None:
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    behind.download_file(bucket, key, str(to))


def _swap_file(behind: Any, mine: Table, place: str, size: int, scratch: Path) -> list[_Swap]:
    """Return the newest manifest of a table with another place for its file, and the list of manifests that fits."""
    snapshot = mine.current_snapshot()
    assert snapshot is not None
    manifest = snapshot.manifests(mine.io)[0].manifest_path

    def forge(file: str, change: Callable[[Any], None]) -> _Swap:
        bucket, _, key = file.removeprefix("s3://").partition("/")
        _download(behind, file, scratch)
        rewrite_avro(scratch, change)
        return _Swap(bucket, key, scratch.read_bytes())

    def name_place(row: Any) -> None:
        row["data_file"] |= {"file_path": place, "file_size_in_bytes": size}

    def resize(row: Any) -> None:
        if row["manifest_path"] == manifest:
            row["manifest_length"] = len(forged.content)

    forged = forge(manifest, name_place)
    return [forged, forge(snapshot.manifest_list, resize)]


def _compact_after_swaps(root: str, options: dict[str, Any], settings: Settings, swaps: list[_Swap]) -> dict[str, str]:
    """Compact tables on Spark, with keys for everything in the environment; overwrite files before each procedure."""
    os.environ |= {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1"}
    lake = Lakehouse.open(root, storage_options=options)
    conf = {"spark.jars.packages": f"org.apache.iceberg:iceberg-aws-bundle:{TESTED}"}
    spark = get_session(SessionConfig(master="local[2]", iceberg=TESTED, conf=conf))
    client = boto3.client("s3", endpoint_url=options["endpoint_url"])
    run = SparkCatalog.run

    def swap_and_run(catalog: SparkCatalog, statement: str) -> Any:
        if statement.startswith("CALL"):
            for each in swaps:
                client.put_object(Bucket=each.bucket, Key=each.key, Body=each.content)
        return run(catalog, statement)

    how = tables_compact.Config(pattern="a.*", engine="spark", rules=GroupRules(min_files=2), settings=settings)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SparkCatalog, "run", swap_and_run)
        return dict(tables_compact.run(lake, how, spark).failures)


def test_keys_end_at_the_store_and_long_jobs_get_new_ones(uri: str) -> None:
    """18 minutes, nearly all of them asleep: no store lends keys for less than fifteen.

    One statement of Spark reads and writes files until its first keys have ended, and gets new ones. A client that
    holds its keys is refused then.
    """
    source = with_table(_as(uri, "owner"), "a.long", properties={"read.split.open-file-cost": str(128 << 20)})
    for number in range(_TASKS):
        source.append(rows(number))
    sleeps = f"java_method('java.lang.Thread', 'sleep', {_TASK_SECONDS * 1000}L) IS NOT NULL"
    statements = ("CREATE TABLE l.a.copy (id BIGINT)", f"INSERT INTO l.a.copy SELECT id FROM l.a.long WHERE {sleeps}")
    served = Served(uri, "owner", "lake")
    with pool(1) as process, connected(served) as duck:
        job = process.submit(partial(by_spark_sql, served, "lake", **_FOR_SPARK), *statements)
        held = _as(uri, "writer").load_table("a.t")
        key = held.metadata_location.removeprefix(f"s3://{BUCKET}/")
        read = partial(_client(held).get_object, Bucket=BUCKET, Key=key)
        assert not _is_refused(read)
        assert [(1,)] == duck.execute("SELECT id FROM l.a.t").fetchall()
        ends = int(held.io.properties["s3.session-token-expires-at-ms"]) / 1000
        assert 0 < ends - time.time() <= _SECONDS
        time.sleep(ends + 1 - time.time())
        assert _is_refused(read)
        with pytest.raises(OSError, match=_DENIED):
            held.scan().to_arrow()
        assert [1] == ids(held.refresh())
        assert [(1,)] == duck.execute("SELECT id FROM l.a.t").fetchall()
        assert not job.done()
        job.result()
    assert list(range(_TASKS)) == ids(_as(uri, "owner").load_table("a.copy"))
    metrics = Client(uri, "owner")("GET", "/metrics").text
    (renewals,) = re.findall(rf"^{re.escape(_RENEWED)} ([0-9.]+)$", metrics, re.MULTILINE)
    print(f"new keys were asked for {renewals} times")
    assert float(renewals) >= 2  # the table that is read, and the one that is written
