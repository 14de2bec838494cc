"""Names of tables and of views have sizes of their own, whichever of them is larger."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.exceptions import BadRequestError, TableAlreadyExistsError

from pipelines import cli
from trinitylake_core import Lakehouse
from trinitylake_core.iceberg import TrinityLakeCatalog

SCHEMA = pa.schema([("id", pa.int64())])


@pytest.fixture
def catalog(tmp_path: Path) -> TrinityLakeCatalog:
    root = Lakehouse.create(tmp_path / "lake", table_name_max_size_bytes=50, view_name_max_size_bytes=20).root
    catalog = TrinityLakeCatalog("lake", uri=root)
    catalog.create_namespace("a")
    return catalog


def test_a_table_name_may_be_longer_than_view_names(catalog: TrinityLakeCatalog) -> None:
    name, renamed = "x" * 45, "y" * 50
    catalog.create_table(f"a.{name}", SCHEMA)
    with pytest.raises(TableAlreadyExistsError):
        catalog.create_table(f"a.{name}", SCHEMA)
    catalog.rename_table(f"a.{name}", f"a.{renamed}")
    assert ("a", renamed) == catalog.load_table(f"a.{renamed}").name()


def test_a_table_name_that_is_too_long_is_refused_as_that_of_a_table(catalog: TrinityLakeCatalog) -> None:
    with pytest.raises(BadRequestError, match=r"table name 'x{60}' is 60 bytes long; this lakehouse allows 50"):
        catalog.create_table(f"a.{'x' * 60}", SCHEMA)
    catalog.create_table("a.short", SCHEMA)
    with pytest.raises(BadRequestError, match=r"table name 'y{60}' is 60 bytes long"):
        catalog.rename_table("a.short", f"a.{'y' * 60}")


def test_the_command_renames_within_the_size_of_tables(catalog: TrinityLakeCatalog, no_environment: None) -> None:
    catalog.create_table("a.short", SCHEMA)
    assert 0 == cli.main(["rename", catalog.properties["uri"], "a.short", "z" * 45])
    assert 2 == cli.main(["rename", catalog.properties["uri"], f"a.{'z' * 45}", "z" * 51])
