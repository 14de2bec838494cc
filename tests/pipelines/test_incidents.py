"""The incidents of docs/runbook.md, from the command line alone: what it says, and what it comes to, by digest."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import Table

from pipelines.cli import main
from tests.support.clock import Clock
from tests.support.icebergs import ids, new_iceberg, rows, with_table
from tests.support.lakes import compacted, content, filled, new_lake, reopened
from tests.support.surgery import Surgery
from trinitylake_core import Lakehouse
from trinitylake_core.catalog import content_hash
from trinitylake_core.definitions import encode

Cli = Callable[..., tuple[int, Any, str]]
TABLES = 30


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run a command; return exit code, the JSON document, and what was told on stderr."""

    def run(*words: str) -> tuple[int, Any, str]:
        command = " ".join(words[: 2 if words[0] == "tables" else 1])
        engine = [] if command in {"ls", "history", "stats", "doctor", "tables expire"} else ["--engine", "local"]
        code = main([*words, *engine, "--json"])
        out, err = capsys.readouterr()
        return code, json.loads(out) if out.startswith("{") else {}, err

    return run


def lakehouse(directory: Path) -> Lakehouse:
    """Thirty tables in ``ns0`` and some elsewhere, compacted; three versions of it, and then what somebody did."""
    lake = filled(new_lake(directory, order=8), tables=0, namespaces=2)
    for part in range(3):
        with lake.transaction() as txn:
            for number in range(part * 10, part * 10 + 10):
                txn.create_table("ns0", f"t{number:03}")
                txn.create_table("ns1", f"t{number:03}")
    compacted(lake)
    return lake.refresh()


def digest_of(lake: Lakehouse, objects: Mapping[str, str]) -> str:
    """Return the digest that a version with these keys and paths must have; shares no code with the walk."""
    total = sum(content_hash(*lake.codec.split(key), path) for key, path in objects.items())
    return format(total % 2**128, "032x")


def meaning(lake: Lakehouse) -> dict[tuple[str, str, str | None], bytes]:
    return {(each.kind, each.namespace, each.name): encode(lake.definition_of(each)) for each in lake.objects()}


def test_thirty_tables_dropped_and_a_good_commit_after_it(tmp_path: Path, cli: Cli) -> None:
    """The history shows the loss by its counts; a restore brings back the thirty, and the good commit stays."""
    lake = lakehouse(tmp_path)
    before = content(lake)
    with lake.transaction(reason="clean up") as txn:
        txn.drop_namespace("ns0", cascade=True)
    bad = lake.refresh().version
    with lake.transaction(reason="good") as txn:
        txn.alter_table("ns1", "t001", properties={"good": "yes"})
        txn.create_namespace("later")
    good = content(lake.refresh())
    code, told, _ = cli("history", lake.root, "--limit", "3")
    assert (0, [32, 31, 62]) == (code, [each["objects"] for each in told["versions"]])
    assert [30, 30, 60] == [each["tables"] for each in told["versions"]]
    assert (0, TABLES + 1) == (cli("diff", lake.root, str(bad - 1), str(bad))[0], _removed(cli, lake, bad))
    words = ["--only", "ns0", "--only", "ns0.*", "--version", str(bad - 1), "--reason", "incident 1"]
    code, told, _ = cli("restore", lake.root, *words, "--dry-run")
    assert (0, {"added": 31, "removed": 0, "changed": 0}) == (code, told["plan"]["counts"])
    code, told, _ = cli("restore", lake.root, *words, "--expected-version", str(told["version_before"]))
    assert (0, bad + 2) == (code, told["version_after"])
    assert digest_of(lake, before | good) == reopened(lake).digest()
    assert 0 == cli("verify", lake.root, "--definitions")[0]


def _removed(cli: Cli, lake: Lakehouse, bad: int) -> int:
    changes = cli("diff", lake.root, str(bad - 1), str(bad))[1]["changes"]
    return sum(each["change"] == "removed" for each in changes)


@pytest.mark.parametrize("damage", ["node", "root"])
def test_the_newest_version_is_damaged(tmp_path: Path, cli: Cli, damage: str) -> None:
    """A node below the root, or the root file itself: verify finds it, and the rollback leaves it by its own plan."""
    lake = lakehouse(tmp_path)
    for number in range(TABLES):
        with lake.transaction() as txn:
            txn.alter_table("ns0", f"t{number:03}", properties={"a": "b"})
    good, digest = lake.refresh().version, lake.digest()
    compacted(lake)
    bad = lake.refresh().version
    surgery = Surgery(lake.root, lake.definition.order)
    path = lake.root_node.path if damage == "root" else lake.root_node.node.children[0]
    surgery.write(path, surgery.read(path)[:500])
    code, told, _ = cli("verify", lake.root)
    assert (1, {path}) == (code, {each["file"] for each in told["findings"]})
    assert (4 if damage == "root" else 0) == cli("stats", lake.root)[0]
    assert 0 == cli("ls", lake.root, "--version", str(good))[0]
    words = ["--to-version", str(good), "--reason", "incident 2"]
    code, told, _ = cli("rollback", lake.root, *words, "--dry-run")
    assert (0, [path]) == (code, [each["file"] for each in told["plan"]["not_compared"]])
    code, told, _ = cli("rollback", lake.root, *words, "--expected-version", str(told["version_before"]))
    assert (0, bad + 1) == (code, told["version_after"])
    assert digest == reopened(lake).digest()
    assert 0 == cli("verify", lake.root, "--definitions")[0]
    assert 0 == cli("compact", lake.root)[0]
    assert digest == reopened(lake).digest()


def test_somebody_expired_too_much(tmp_path: Path, cli: Cli, clock: Clock) -> None:
    """The namespace is gone from every version that is kept; the backup has it, and gives it back."""
    lake = lakehouse(tmp_path)
    backup = (tmp_path / "backup").as_uri()
    assert 0 == cli("export", lake.root, backup)[0]
    wanted = meaning(Lakehouse.open(backup))
    saved = lake.version
    with lake.transaction() as txn:
        txn.drop_namespace("ns0", cascade=True)
    with lake.transaction() as txn:
        txn.create_namespace("later")
    clock.forward(days=30)
    assert 0 == cli("expire", lake.root, "--keep-last", "1", "--older-than", "0s")[0]
    code, _, err = cli("rollback", lake.root, "--to-version", str(saved), "--reason", "incident 3")
    assert (2, True) == (code, "has expired" in err)
    code, _, err = cli("export", backup, lake.root)
    assert (3, True) == (code, "newer than version" in err)
    words = ["--from", backup, "--only", "ns0", "--only", "ns0.*", "--reason", "incident 3"]
    code, told, _ = cli("restore", lake.root, *words, "--dry-run")
    assert (0, {"added": 31, "removed": 0, "changed": 0}) == (code, told["plan"]["counts"])
    code, told, _ = cli("restore", lake.root, *words, "--expected-version", str(told["version_before"]))
    assert 0 == code
    after = reopened(lake)
    assert wanted | {("namespace", "later", None): meaning(after)["namespace", "later", None]} == meaning(after)
    assert 0 == cli("verify", lake.root, "--definitions")[0]
    code, told, _ = cli("restore", lake.root, *words[:2], "--only", "*", "--exact", "--reason", "everything")
    assert (0, {"added": 0, "removed": 1, "changed": 0}) == (code, told["plan"]["counts"])
    assert wanted == meaning(reopened(lake))


def sizes(lake: Lakehouse) -> tuple[int, int]:
    """Return how many files of tables there are, and their bytes."""
    found = [each.size for each in lake.storage.list("tables/")]
    return len(found), sum(found)


def test_the_bill_grows(tmp_path: Path, cli: Cli, clock: Clock) -> None:
    """Old snapshots go from the table, then the versions that name them, then the files; what is read stays."""
    catalog = new_iceberg(tmp_path)
    root, orders = catalog.lakehouse.root, with_table(catalog, "sales.orders", 0)
    for number in range(1, 6):
        orders.overwrite(rows(number, number + 1))
    with_table(catalog, "sales.dropped", 1)
    catalog.drop_table("sales.dropped")
    before = sizes(catalog.lakehouse)
    clock.forward(days=30)
    health = cli("tables", "health", root)[1]
    assert health["old_bytes"] > 4 * health["bytes"]
    assert 10 == cli("tables", "expire", root)[1]["snapshots"]
    assert 0 == cli("tables", "clean", root, "--dry-run")[1]["orphan_files"]
    kept = cli("expire", root, "--keep-last", "3", "--dry-run")[1]["kept"]
    assert "keep_last" == kept[0]["rule"]
    assert 0 == cli("compact", root)[0]
    clock.forward(days=30)
    assert 0 == cli("expire", root, "--keep-last", "1")[0]
    plan = (tmp_path / "plan.parquet").as_uri()
    planned = cli("tables", "clean", root, "--plan-to", plan)[1]
    assert 0 < planned["orphan_files"] == cli("tables", "clean", root, "--plan", plan)[1]["deleted"]
    files, size = sizes(catalog.lakehouse)
    assert (4, True) == (files, size < before[1] / 4)  # metadata, manifest list, manifest, data
    assert 0 == cli("tables", "health", root)[1]["old_bytes"]
    assert [5, 6] == ids(catalog.load_table("sales.orders"))


def test_somebody_expired_the_data(tmp_path: Path, cli: Cli, capsys: pytest.CaptureFixture[str], clock: Clock) -> None:
    """An engine deleted what an older version needs: that is named, nothing more goes, and it comes back."""
    catalog = new_iceberg(tmp_path)
    root, orders = catalog.lakehouse.root, with_table(catalog, "sales.orders", 1, 2)
    orders.append(rows(3))
    good = catalog.lakehouse.refresh().version
    orders.overwrite(rows(9))
    compacted(catalog.lakehouse.refresh())
    clock.forward(days=30)
    assert 0 == cli("expire", root, "--keep-last", "3")[0]
    gone = expired_by_an_engine(orders)
    code = main(["doctor", root])
    assert (0, True) == (code, "Somebody expired the data': sales.orders" in capsys.readouterr().out)
    assert 0 == cli("verify", root, "--all", "--tables")[0]
    planned = cli("tables", "clean", root, "--dry-run")[1]
    assert (0, 1) == (planned["orphan_files"], len({each["directory"] for each in planned["doubts"]}))
    for path, data in gone.items():
        path.write_bytes(data)
    assert [] == cli("doctor", root)[1]["tables"]["lost"]
    assert [] == cli("tables", "clean", root, "--dry-run")[1]["doubts"]
    words = ["--only", "sales.orders", "--version", str(good), "--reason", "incident 4720"]
    assert 0 == cli("restore", root, *words)[0]
    assert 2 == cli("tables", "health", root)[1]["data_files"]
    assert [1, 2, 3] == ids(catalog.load_table("sales.orders"))


def expired_by_an_engine(table: Table) -> dict[Path, bytes]:
    """Expire old snapshots of a table and delete the files that only they need, as Spark does; return these."""
    now = table.refresh().current_snapshot()
    assert now is not None
    old = [each.snapshot_id for each in table.metadata.snapshots if each.snapshot_id != now.snapshot_id]
    table.maintenance.expire_snapshots().by_ids(old).commit()
    manifests = now.manifests(table.io)
    data = [each.data_file.file_path for manifest in manifests for each in manifest.fetch_manifest_entry(table.io)]
    needed = {now.manifest_list, *(each.manifest_path for each in manifests), *data}
    files = [each for each in Path(table.location().removeprefix("file://")).rglob("*.*") if each.suffix != ".json"]
    gone = {each: each.read_bytes() for each in files if f"file://{each}" not in needed}
    for each in gone:
        each.unlink()
    return gone
