"""Locations of tables: one spelling, and which of them lie inside a lakehouse."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trinitylake_core.definitions import table_def
from trinitylake_core.errors import FileMissing, InvalidLocation, NotAFile
from trinitylake_core.object_info import TableInfo
from trinitylake_core.storage import open_storage
from trinitylake_core.table_places import Located
from trinitylake_core.tables import base_uri, full_uri, metadata_uri, path_below, whole_number

FILE = "file:///a%20b/lake/"
S3 = "s3://bucket/lake/"


@pytest.mark.parametrize(
    ("location", "uri"),
    [
        ("/x/y", "file:///x/y"),
        ("file:/x/y", "file:///x/y"),
        ("FILE:///x/y", "file:///x/y"),
        ("s3a://b/k", "s3://b/k"),
        ("gs://b/k", "gs://b/k"),
    ],
)
def test_a_location_has_one_spelling(location: str, uri: str) -> None:
    assert uri == full_uri(location)


def test_what_lies_inside_has_a_path_and_what_leads_out_is_refused() -> None:
    assert "tables/t" == path_below(FILE, "file:///a b/lake/tables/t")
    assert "tables/t" == path_below(FILE, "/a b/lake/tables/t/")
    assert "t" == path_below(S3, "s3a://bucket/lake/t")
    assert [None] * 3 == [path_below(S3, each) for each in ("s3://bucket/lakes/t", "s3://other/lake/t", "/bucket/lake")]
    for outside in ("s3://bucket/lake/../x", "s3://bucket/lake//x", "s3://bucket/lake/./x"):
        with pytest.raises(InvalidLocation):
            path_below(S3, outside)


def test_a_managed_table_is_below_the_root_and_an_external_one_where_it_says() -> None:
    managed = table_def(format_properties={"metadata_location": "tables/t/1.metadata.json"})
    external = table_def(table_type="EXTERNAL", format_properties={"metadata_location": "s3://b/1.metadata.json"})
    assert base_uri(FILE) + "tables/t/1.metadata.json" == metadata_uri(FILE, managed)
    assert "s3://b/1.metadata.json" == metadata_uri(FILE, external)
    assert metadata_uri(FILE, table_def()) is None
    managed.format_properties["metadata_location"] = "../t"
    with pytest.raises(InvalidLocation):
        metadata_uri(S3, managed)


def test_a_device_or_a_pipe_elsewhere_is_not_read(tmp_path: Path) -> None:
    """Metadata of tables are written by others: a pipe would be waited for, and ``/dev/zero`` has no end."""
    located = Located(open_storage((tmp_path / "lake").as_uri()))
    os.mkfifo(tmp_path / "pipe")
    for uri in (f"file://{tmp_path}/pipe", "file:///dev/zero", str(tmp_path)):
        storage, path = located.find(uri)
        with pytest.raises(NotAFile, match="not a file"):
            storage.read(path)
    for missing in ("missing", "no/directory/missing"):
        storage, path = located.find(f"file://{tmp_path}/{missing}")
        with pytest.raises(FileMissing):
            storage.read(path)


@pytest.mark.parametrize(
    ("text", "number"),
    [("7", 7), ("-7", -7), ("", None), ("--7", None), ("²", None), ("\u0667", None), ("9" * 5000, None), ("7.0", None)],
)
def test_a_number_in_a_format_property_is_one_or_none(text: str, number: int | None) -> None:
    """An engine may have written anything there; ``int`` raises for some of what ``isdigit`` takes for digits."""
    assert number == whole_number(text)
    definition = table_def(format_properties={"current-snapshot-id": text})
    assert number == TableInfo("sales", "orders", "file:///lake/", definition).snapshot_id
