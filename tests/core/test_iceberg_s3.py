"""The PyIceberg catalog on S3: one set of credentials reads lakehouse and tables, in either spelling."""

from __future__ import annotations

import pytest

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
