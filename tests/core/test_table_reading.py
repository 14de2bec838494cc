"""Metadata files, manifest lists and manifests of other programs: read exactly as they were written, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from trinitylake_core.iceberg.references import UnreadableTable, files_in, references

FIXTURES = Path(__file__).parents[1] / "fixtures" / "tables"


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("manifest-decimal38-three-rows.avro", 3),
        ("manifest-decimal30-stats.avro", 4),
        ("manifest-decimal9-2-plain.avro", 2),
        ("manifest-decimal12-2-negative.avro", 1),
    ],
)
def test_all_files_of_a_manifest_partitioned_by_a_decimal_are_found(name: str, files: int) -> None:
    found = [each.uri for each in files_in((FIXTURES / name).read_bytes(), name)]
    assert [uri.rpartition("/")[2] for uri in found] == [f"f{number}.parquet" for number in range(files)]


def test_a_table_whose_paths_are_relative_is_unreadable() -> None:
    name = "v2-relative-locations.metadata.json"
    with pytest.raises(UnreadableTable, match="its location is not an absolute path"):
        references((FIXTURES / name).read_bytes(), name)


def test_statistics_of_an_unknown_kind_are_found() -> None:
    name = "v2-statistics-of-another-blob-type.metadata.json"
    assert references((FIXTURES / name).read_bytes(), name).statistics == {"s3://bucket/t/metadata/5.stats"}
