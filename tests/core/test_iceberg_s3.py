"""The PyIceberg catalog on S3: one set of credentials reads lakehouse and tables, in either spelling."""

from __future__ import annotations

import time

import pytest
from pyiceberg.exceptions import CommitFailedException

from pipelines import compaction, expire, tables_clean
from tests.support.icebergs import ids, opened, rows, with_table
from tests.support.s3_servers import KEY, SECRET, S3Server
from trinitylake_core import Lakehouse


@pytest.mark.s3
def test_a_table_on_s3_is_written_and_read_with_the_options_of_either_side(moto_server: S3Server) -> None:
    root = moto_server.new_root()
    Lakehouse.create(root, storage_options=moto_server.options)
    ours = {f"storage.{name}": value for name, value in moto_server.options.items()}
    catalog = opened(root, **ours)
    table = with_table(catalog, "sales.orders", 1)
    good = catalog.lakehouse.version
    assert table.metadata_location.startswith(f"{root}tables/sales/orders-")
    assert "MANAGED" == catalog.lakehouse.table("sales", "orders").table_type
    theirs = {
        "s3.endpoint": moto_server.endpoint,
        "s3.access-key-id": KEY,
        "s3.secret-access-key": SECRET,
        "s3.region": "us-east-1",
        "s3.force-virtual-addressing": "false",
    }
    other = opened(root, **theirs)
    with other.transaction() as txn:
        txn.load_table("sales.orders").append(rows(2))
        with_table(txn, "sales.items", 3)
    assert [1, 2] == ids(table.refresh())
    assert [1] == ids(opened(root, version=str(good), **theirs).load_table("sales.orders"))
    assert [] == list(catalog.lakehouse.check(definitions=True))


@pytest.mark.s3
def test_tables_on_s3_are_cleaned_by_the_times_that_the_server_gives(moto_server: S3Server) -> None:
    """Times of whole seconds: a file of the second of the fence stays, and is accepted."""
    root = moto_server.new_root()
    Lakehouse.create(root, storage_options=moto_server.options)
    ours = {f"storage.{name}": value for name, value in moto_server.options.items()}
    catalog = opened(root, **ours)
    table = with_table(catalog, "sales.orders", 1, properties={"commit.retry.num-retries": "0"})
    with_table(catalog, "sales.dropped", 2)
    catalog.drop_table("sales.dropped")
    late = table.transaction()
    late.append(rows(3))
    compaction.run(catalog.lakehouse, compaction.Config(engine="local"))
    month = int(time.time() * 1000) + 30 * 86_400_000
    expire.run(catalog.lakehouse, expire.Config(engine="local", keep_last=1, now_millis=month))
    time.sleep(1.1)
    config = tables_clean.Config(engine="local", older_than_seconds=0, allow_recent=True)
    report = tables_clean.run(catalog.lakehouse, config)
    left = [each.path for each in catalog.lakehouse.storage.list("tables/")]
    assert (0, 0) == (report.failed, len(report.doubts))
    assert 3 < report.deleted
    assert not any("/dropped-" in path for path in left)
    with pytest.raises(CommitFailedException, match="write them again"):
        late.commit_transaction()
    table.refresh().append(rows(4))
    time.sleep(1.1)
    assert 0 < tables_clean.run(catalog.lakehouse, config).deleted, "what the refused commit wrote"
    assert [1, 4] == ids(catalog.load_table("sales.orders"))
    assert 0 == tables_clean.run(catalog.lakehouse, config).orphan_files
