"""A file is live however its table spells it: cleaning compares files by what they are."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import quote

import pytest
from pyiceberg.table import Table

from pipelines import export
from tests.support.icebergs import ids, new_iceberg, rows, with_table
from tests.support.respelled import local, needed_by, respell_all, respell_data
from tests.support.zero_age import clean_tables, expire_all_but_the_newest
from trinitylake_core.file_identity import LocalLinks, ends_in_area, file_keys, is_plain
from trinitylake_core.iceberg import TrinityLakeCatalog

KEY: Final = "orders-0123456789ab/data/p=a b/f.parquet"
BUCKET: Final = "s3://bucket/lake"


@pytest.mark.parametrize(
    "uri",
    [
        f"tables/sales/{KEY}",
        f"{BUCKET}/tables/sales/{KEY}",
        f"s3a://other//lake//tables//sales/{KEY}",
        f"abfss://container@account.dfs.core.windows.net/lake/tables/sales/{quote(KEY)}",
        f"az://container/lake/tables/sales/{quote(quote(KEY))}",
        f"gs://bucket/mirror/{quote(quote(quote(KEY)))}",
        f"file://localhost/mnt/orders/{KEY}",
        f"C:\\lake\\{KEY}",
        f"s3://bucket/lake/tables/sales/{KEY.replace('/data/', '/%2e/data/x/%2e%2e/')}",
    ],
)
def test_a_file_has_one_key_however_it_is_spelled(uri: str) -> None:
    assert [KEY] == list(file_keys(uri))


def test_other_files_have_other_keys_or_none() -> None:
    assert [] == list(file_keys(f"{BUCKET}/tables/sales/orders/data/f.parquet"))
    assert [] == list(file_keys("s3://bucket/orders-0123456789ab"))
    nested = list(file_keys("tables/sales/orders-0123456789ab/data/p=x-ffffffffffff/f.parquet"))
    assert ["orders-0123456789ab/data/p=x-ffffffffffff/f.parquet", "p=x-ffffffffffff/f.parquet"] == nested
    cut = list(file_keys("s3://b/orders-0123456789ab/data/f#1"))
    assert ["orders-0123456789ab/data/f#1", "orders-0123456789ab/data/f"] == cut
    one, two = (list(file_keys(f"orders-0123456789ab/data/{name}")) for name in ("Zu\u0308rich", "Z\u00fcrich"))
    assert one == two
    assert is_plain("tables/sales/orders-0123456789ab/data/p=a b/f.parquet")
    odd = ("tables/x#1", "tables/x?1", "tables/\u00fc", f"tables/sales/{quote(KEY)}", f"{BUCKET}/tables/x", "tables//x")
    assert [] == list(filter(is_plain, (*odd, "warehouse/x")))


def test_many_percent_signs_cost_no_more_than_their_text() -> None:
    begin = time.process_time()
    for text in ("%25" * 2_700, "%" * 8_000, "%%34" * 2_000, "/" * 8_000, "a-0123456789ab/" * 500):
        assert list(file_keys(text)) is not None
    assert time.process_time() - begin < 1


def test_the_end_of_a_uri_that_lies_in_the_area_is_found() -> None:
    path = f"tables/sales/{KEY}"
    assert [path] == list(ends_in_area(path)) == list(ends_in_area(f"s3://other//{quote(path)}"))
    assert [f"tables/a/b-ffffffffffff/{path}", path] == list(ends_in_area(f"s3://other/tables/a/b-ffffffffffff/{path}"))
    assert [] == [
        each for uri in ("mytables/a/b-ffffffffffff/c", "tables/a/b/c") for each in ends_in_area(f"s3://x/{uri}")
    ]


def test_links_are_followed_and_what_is_none_stays(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").touch()
    (tmp_path / "real" / "beside").symlink_to("file")
    (tmp_path / "link").symlink_to("real")
    links, real = LocalLinks(), f"file://{tmp_path}/real"
    assert [f"{real}/file"] * 3 == [
        links.target(f"file://{tmp_path}/{each}") for each in ("link/file", "link/beside", "real/beside")
    ]
    same = ("real/file", "real/none", "none/none", f"real/{'x' * 5000}", "real/a\0b", "x/" * 3000 + "y")
    assert [None] * len(same) == [links.target(f"file://{tmp_path}/{each}") for each in same]
    assert links.target("s3://bucket/key") is None


# -- cleaning ----------------------------------------------------------------------------------------------------


def _through_a_link(root: Path) -> Callable[[str], str]:
    (root.parent / "link").symlink_to(root.parent)
    return lambda uri: uri.replace(str(root), f"{root.parent}/link/{root.name}")


def _through_a_link_to_the_table(root: Path) -> Callable[[str], str]:
    (directory,) = root.glob("tables/sales/odd-*")
    (root.parent / "odd").symlink_to(directory)
    return lambda uri: uri.replace(str(directory), str(root.parent / "odd"))


_SPELLINGS: Final[dict[str, Callable[[Path], Callable[[str], str]]]] = {
    "a link above the root": _through_a_link,
    "a link to the table": _through_a_link_to_the_table,
    "two slashes": lambda root: lambda uri: uri.replace("/tables/", "//tables//"),
    "two slashes above the root": lambda root: lambda uri: uri.replace("/lake/", "//lake/"),
    "this machine by name": lambda root: lambda uri: uri.replace("file://", "file://localhost"),
    "one slash": lambda root: lambda uri: uri.replace("file://", "file:"),
    "a plain path": lambda root: lambda uri: uri.removeprefix("file://"),
}
_SPELLINGS_OF_DATA: Final[dict[str, Callable[[Path], Callable[[str], str]]]] = {
    "percent signs": lambda root: lambda uri: uri.replace("/data/", "/%64ata/").replace("-", "%2D"),
    "percent signs twice": lambda root: lambda uri: uri.replace("/data/", "/%2564ata/"),
    "a mount of another machine": lambda root: lambda uri: uri.replace(str(root), "/mnt/lake"),
    "a mount of the tables": lambda root: lambda uri: uri.replace(f"{root}/tables/sales", "/mnt"),
    "another scheme": lambda root: lambda uri: uri.replace("file://", "abfss://container@account.example"),
    "another scheme, which may be a directory here": lambda root: lambda uri: uri.replace("file://", "s3://bucket//"),
}


def _odd_table(tmp_path: Path) -> tuple[TrinityLakeCatalog, Table]:
    """Return a table of two snapshots beside another, each with an abandoned append."""
    catalog = new_iceberg(tmp_path)
    for name in ("sales.odd", "sales.plain"):
        table = with_table(catalog, name, 1, 2)
        table.append(rows(3))
        table.transaction().append(rows(4))
    return catalog, catalog.load_table("sales.odd")


@pytest.mark.parametrize("name", [*_SPELLINGS, *_SPELLINGS_OF_DATA])
def test_no_file_that_a_table_needs_goes_however_it_is_spelled(name: str, tmp_path: Path) -> None:
    catalog, table = _odd_table(tmp_path)
    needed = needed_by(table) | needed_by(catalog.load_table("sales.plain"))
    if name in _SPELLINGS:
        respell_all(table, _SPELLINGS[name](tmp_path / "lake"))
    else:
        respell_data(table, _SPELLINGS_OF_DATA[name](tmp_path / "lake"))
    report = clean_tables(catalog.lakehouse)
    if name == "a link to the table":  # it lies outside, where anybody may have put it: what it leads to is not opened
        assert (True, 0) == (all(each.stops_all for each in report.doubts), report.deleted)
        assert "outside the places of its table" in report.doubts[0].reason
    else:
        assert ((), 6) == (report.doubts, report.deleted)
    assert {each for each in needed if each.exists()} == needed
    assert [1, 2, 3] == ids(catalog.load_table("sales.plain"))


def test_the_target_of_a_link_inside_a_table_stays(tmp_path: Path) -> None:
    """An engine reads the file through the link that its table names."""
    catalog, table = _odd_table(tmp_path)
    (data, *_) = [each for each in needed_by(table) if each.suffix == ".parquet"]
    target = data.rename(data.with_name(f"target-{data.name}"))
    data.symlink_to(target.name)
    clean_tables(catalog.lakehouse)
    assert target.exists()
    assert [1, 2, 3] == ids(catalog.load_table("sales.odd"))


def test_a_file_whose_name_the_store_has_encoded_stays(tmp_path: Path) -> None:
    catalog, table = _odd_table(tmp_path)
    (data, *_) = [each for each in needed_by(table) if each.suffix == ".parquet"]
    respell_data(table, lambda uri: uri.replace("-0-", " 0 "))
    encoded = data.rename(data.with_name(data.name.replace("-0-", "%200%20")))
    clean_tables(catalog.lakehouse)
    assert encoded.exists()


def test_a_table_elsewhere_that_was_copied_from_here_keeps_no_other_files(tmp_path: Path) -> None:
    """Its files have the names of files here, and that is all that is known of them: they stay, and the rest goes."""
    catalog, table = _odd_table(tmp_path)
    needed = needed_by(table)
    directory = local(table.location())
    shutil.copytree(directory, tmp_path / directory.name)
    respell_data(table, lambda uri: uri.replace(str(directory), str(tmp_path / directory.name)))
    assert 6 == clean_tables(catalog.lakehouse).deleted
    assert all(each.exists() for each in needed)


def test_files_of_a_dropped_table_stay_as_long_as_another_one_names_them_through_a_link(tmp_path: Path) -> None:
    catalog, table = _odd_table(tmp_path)
    spell = _through_a_link(tmp_path / "lake")
    borrowed = [str(each) for each in needed_by(table) if each.suffix == ".parquet"]
    with_table(catalog, "sales.borrower").add_files([spell(each) for each in borrowed])
    catalog.drop_table("sales.odd")
    expire_all_but_the_newest(catalog.lakehouse)
    report = clean_tables(catalog.lakehouse)
    assert () == report.doubts
    assert [1, 2, 3] == ids(catalog.load_table("sales.borrower"))
    assert set(borrowed) == {str(each) for each in (tmp_path / "lake").glob("tables/sales/odd-*/data/*")}


@pytest.mark.parametrize("name", ["a link above the root", "two slashes", "this machine by name"])
def test_an_export_copies_each_file_however_it_is_spelled(name: str, tmp_path: Path) -> None:
    catalog, table = _odd_table(tmp_path)
    needed = {each.relative_to(tmp_path / "lake") for each in needed_by(table)}
    respell_all(table, _SPELLINGS[name](tmp_path / "lake"))
    done = export.run(
        catalog.lakehouse.refresh(), (tmp_path / "copy").as_uri(), export.Config(engine="local", tables=True)
    )
    assert (0, {}) == (done.plan.table_files_elsewhere, done.plan.tables_lacking)
    assert needed <= {each.relative_to(tmp_path / "copy") for each in (tmp_path / "copy").rglob("*")}


@pytest.mark.parametrize("name", ["a mount of another machine", "percent signs"])
def test_an_export_copies_what_a_table_means_by_a_name_that_leads_nowhere(name: str, tmp_path: Path) -> None:
    catalog, table = _odd_table(tmp_path)
    needed = {each.relative_to(tmp_path / "lake") for each in needed_by(table)}
    respell_data(table, _SPELLINGS_OF_DATA[name](tmp_path / "lake"))
    done = export.run(
        catalog.lakehouse.refresh(), (tmp_path / "copy").as_uri(), export.Config(engine="local", tables=True)
    )
    assert 0 == done.plan.table_files_elsewhere
    assert needed <= {each.relative_to(tmp_path / "copy") for each in (tmp_path / "copy").rglob("*")}
