"""`verify --tables --deep` reads all metadata of tables, asks for every live file, and names what is wrong."""

from __future__ import annotations

import json
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest

from pipelines import compaction, verify
from pipelines.cli import main
from tests.support.icebergs import new_iceberg, opened, rows, with_table
from trinitylake_core.errors import InvalidInput
from trinitylake_core.iceberg import TrinityLakeCatalog
from trinitylake_core.storage import open_storage
from trinitylake_core.tables import ICEBERG

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def catalog(tmp_path: Path) -> TrinityLakeCatalog:
    """Two tables with two snapshots each, and a third that was dropped."""
    made = new_iceberg(tmp_path)
    for name in ("sales.bad", "sales.good", "sales.dropped"):
        with_table(made, name, 1).append(rows(2))
    made.drop_table("sales.dropped")
    compaction.run(made.lakehouse, compaction.Config(engine="local"))
    return made


def verified(
    catalog: TrinityLakeCatalog, versions: str | int = "all", spark: Any = None, share: float = 1.0
) -> verify.Report:
    engine = "local" if spark is None else "spark"
    config = verify.Config(versions, engine=engine, tables=share, deep=True)
    return verify.run(open_storage(*catalog.lakehouse.storage.spec()), config, spark)


def one(catalog: TrinityLakeCatalog, pattern: str, table: str = "sales.bad") -> Path:
    """Return the oldest file of a table that matches a pattern."""
    directory = Path(catalog.load_table(table).location().removeprefix("file://"))
    return min(directory.rglob(pattern), key=lambda path: path.stat().st_mtime_ns)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def test_every_file_of_every_version_is_there_and_each_is_looked_at_once(catalog: TrinityLakeCatalog) -> None:
    counts = catalog.lakehouse.storage.counts
    assert counts is not None
    storage = open_storage(*catalog.lakehouse.storage.spec())
    config = verify.Config("all", engine="local", tables=1.0, deep=True)
    report = verify.run(storage, config)
    assert (True, [], 9) == (report.ok, report.findings, report.tables_checked)
    assert {"metadata file": 9, "manifest list": 6, "manifest": 6, "file": 6, "unknown": 0} == report.table_files
    assert 6 == storage.counts.head
    assert any("every file of tables is there: 9 metadata files" in line for line in report.summary())
    plain = open_storage(*catalog.lakehouse.storage.spec())
    verify.run(plain, verify.Config("all", engine="local", definitions=True))
    again = 9 + 9 + 6 + 6  # definitions, and what is in the tables
    assert plain.counts.get + again == storage.counts.get


def test_a_table_whose_metadata_points_outside_is_a_finding(catalog: TrinityLakeCatalog, tmp_path: Path) -> None:
    """Into a directory above the lakehouse by `..`."""
    (tmp_path / "secret").write_bytes(b"x")
    path = Path(catalog.load_table("sales.bad").metadata_location.removeprefix("file://"))
    found = json.loads(path.read_text())
    found["statistics"] = [{"statistics-path": f"{catalog.lakehouse.root}tables/../../secret"}]
    path.write_text(json.dumps(found))
    (finding,) = verified(catalog, "newest").findings
    assert "leads outside" in finding.message or ".." in finding.message
    assert finding.message.startswith("table 'sales.bad': ")


def test_a_file_that_many_tables_share_is_named_for_each_and_read_once(catalog: TrinityLakeCatalog) -> None:
    lake, bad = catalog.lakehouse, catalog.load_table("sales.bad")
    with lake.transaction() as txn:
        location = bad.metadata_location.removeprefix(f"file://{lake.root.removeprefix('file://')}")
        txn.create_table("sales", "twin", table_format="ICEBERG", format_properties={"metadata_location": location})
    one(catalog, "*.parquet").unlink()
    report = verified(catalog, "newest")
    assert ["table 'sales.bad'", "table 'sales.twin'"] == sorted(
        each.message.partition(":")[0] for each in report.findings if each.invariant == "I20"
    )
    assert 2 == report.table_files["metadata file"]


def test_files_elsewhere_are_looked_for_and_unreachable_ones_are_counted(
    catalog: TrinityLakeCatalog, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    theirs = with_table(new_iceberg(tmp_path / "other"), "a.b", 1)
    catalog.register_table("sales.theirs", theirs.metadata_location)
    assert verified(catalog, "newest").ok
    next(Path(theirs.location().removeprefix("file://")).rglob("*.parquet")).unlink()
    (finding,) = verified(catalog, "newest").findings
    assert finding.message.startswith("table 'sales.theirs': its file file://")
    with catalog.lakehouse.transaction() as txn:
        txn.drop_table("sales", "theirs")
        uri = {"metadata_location": "strange://bucket/a.metadata.json"}
        txn.create_table("sales", "far", table_type="EXTERNAL", table_format="ICEBERG", format_properties=uri)
    assert not verified(catalog, "newest").ok, "the message that was overwritten waits, and names the file"
    compaction.run(catalog.lakehouse, compaction.Config(engine="local"))
    report = verified(catalog, "newest")
    assert (True, 2, 1, 1) == (
        report.ok, report.tables_checked, report.tables_unknown, report.table_files["unknown"],
    )  # fmt: skip


def test_damaged_nodes_and_definitions_hide_no_other_table(catalog: TrinityLakeCatalog) -> None:
    one(catalog, "*.parquet").unlink()
    lake = catalog.lakehouse
    good = next(each.path for each in lake.objects(kind="table") if each.name == "good")
    Path(lake.root.removeprefix("file://"), good).write_bytes(b"garbage")
    found = {each.invariant for each in verified(catalog, "newest").findings}
    assert {"I15", "I20"} == found


def test_a_sample_looks_at_some_tables(tmp_path: Path) -> None:
    catalog = new_iceberg(tmp_path)
    for number in range(12):
        with_table(catalog, f"sales.t{number:02}", number)
    compaction.run(catalog.lakehouse, compaction.Config(engine="local"))
    every, half = verified(catalog, "newest"), verified(catalog, "newest", share=0.5)
    assert 12 == every.tables_checked
    assert 0 < half.tables_checked < 12
    assert half.table_files["file"] == half.tables_checked


def test_deep_needs_tables() -> None:
    with pytest.raises(InvalidInput, match="give the share"):
        verify.Config(deep=True)


def test_the_command_prints_findings_and_counts(
    catalog: TrinityLakeCatalog, capsys: pytest.CaptureFixture[str]
) -> None:
    root = catalog.lakehouse.root
    assert 0 == main(["verify", root, "--all", "--tables", "--deep", "--engine", "local", "--json"])
    assert 6 == json.loads(capsys.readouterr().out)["table_files"]["file"]
    one(catalog, "*-m0.avro").unlink()
    assert 1 == main(["verify", root, "--tables", "--deep", "--engine", "local"])
    printed = capsys.readouterr()
    assert "table 'sales.bad': its manifest" in printed.out
    assert 2 == main(["verify", root, "--deep"])


@pytest.mark.slow
def test_spark_finds_the_same(catalog: TrinityLakeCatalog, spark: SparkSession) -> None:
    assert verified(catalog, "newest").table_files == verified(catalog, "newest", spark).table_files
    one(catalog, "*.parquet").unlink()
    truncate(one(catalog, "*-m0.avro", "sales.good"))
    found = verified(opened(catalog.lakehouse.root), "newest", spark)
    assert verified(catalog, "newest").findings == found.findings
    assert 2 == len(found.findings)


# -- stores elsewhere -----------------------------------------------------------------------------------


class Stores(NamedTuple):
    """A server of several stores, and the paths that each was asked for, by bucket."""

    uri: str
    asked: dict[str, list[str]]


@pytest.fixture
def stores() -> Iterator[Stores]:
    """Stores that hold whatever they are asked for; ``dead`` answers 503 to everything, and ``mute`` hangs up."""
    asked: dict[str, list[str]] = defaultdict(list)

    class Server(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            bucket = self.path.split("/")[1]
            asked[bucket].append(self.path)
            if bucket == "mute":
                self.close_connection = True
                return
            self.send_response(503 if bucket == "dead" else 200)
            self.send_header("Content-Length", "0" if bucket == "dead" or self.command == "GET" else "100")
            self.send_header("Last-Modified", "Sun, 01 Nov 2026 00:00:00 GMT")
            self.send_header("ETag", '"x"')
            self.end_headers()

        do_HEAD = do_GET  # noqa: N815 - the name is the server's

        def log_message(self, *_words: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield Stores(f"http://127.0.0.1:{server.server_port}", asked)
        server.shutdown()
        thread.join()


@pytest.fixture
def away(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> Stores:
    """The stores, reached by the environment."""
    by = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true"}
    for name, value in {**by, "AWS_ENDPOINT_URL": stores.uri}.items():
        monkeypatch.setenv(name, value)
    return stores


def put_tables(catalog: TrinityLakeCatalog, bucket: str, tables: int) -> None:
    """Let a lakehouse have tables whose metadata lie in a store elsewhere."""
    with catalog.lakehouse.refresh().transaction() as txn:
        for number in range(tables):
            where = {"metadata_location": f"s3://{bucket}/t{number}/metadata/1.metadata.json"}
            name = f"{bucket}{number}"
            txn.create_table("sales", name, table_format=ICEBERG, table_type="EXTERNAL", format_properties=where)


def verified_tables(catalog: TrinityLakeCatalog, *, deep: bool) -> verify.Report:
    root, options = catalog.lakehouse.storage.spec()
    storage = open_storage(root, {**options, "retries": 1})
    return verify.run(storage, verify.Config(engine="local", tables=1.0, deep=deep, definitions=True))


TABLES: Final = 300


@pytest.mark.parametrize("deep", [True, False])
def test_a_store_that_gives_no_answer_is_named_and_soon_asked_no_more(
    catalog: TrinityLakeCatalog, away: Stores, deep: bool
) -> None:
    put_tables(catalog, "dead", TABLES)
    report = verified_tables(catalog, deep=deep)
    assert (False, [], TABLES) == (report.ok, report.findings, len(report.unseen))
    assert all("because its store gave no answer" in each.message for each in report.unseen)
    assert all("s3://dead/" in each.message and "'sales.dead" in each.message for each in report.unseen)
    said = " ".join(report.summary())
    assert "every" not in said
    assert f"not proved, because a store gave no answer: {TABLES} tables" in said
    assert len(away.asked["dead"]) < TABLES / 3


def test_two_dead_stores_of_five_cost_the_tables_of_the_others_nothing(
    catalog: TrinityLakeCatalog, away: Stores
) -> None:
    """One answers 503, one hangs up. Of each table in the other three one request is sent, and the report is whole."""
    each_has = TABLES // 5
    for bucket in ("one", "dead", "two", "mute", "three"):
        put_tables(catalog, bucket, each_has)
    report = verified_tables(catalog, deep=False)
    unseen = Counter("dead" if "s3://dead/" in each.message else "mute" for each in report.unseen)
    assert {"dead": each_has, "mute": each_has} == unseen
    assert ([], 3 * each_has + 2) == (report.findings, report.tables_checked)
    print({bucket: len(paths) for bucket, paths in away.asked.items()})
    for bucket in ("one", "two", "three"):
        assert sorted({*away.asked[bucket]}) == sorted(away.asked[bucket])
        assert each_has == len(away.asked[bucket])
    for bucket in ("dead", "mute"):
        assert 4 == len(away.asked[bucket]), "both attempts for the first table, and one for each of the next two"
