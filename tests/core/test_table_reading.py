"""Metadata files, manifest lists and manifests of other programs: read exactly as they were written, or not at all."""

from __future__ import annotations

import gzip
import json
import os
import random
import tracemalloc
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.avro_by_hand import AvroFile, number, sized
from tests.support.table_files import any_manifest, any_metadata, list_schema, manifest_schema, required
from trinitylake_core.errors import NotAFile
from trinitylake_core.iceberg.reading import limits
from trinitylake_core.iceberg.reading.files import read_file
from trinitylake_core.iceberg.reading.references import (
    UnreadableTable,
    current_snapshot,
    decode_metadata,
    files_in,
    forbids_deletes,
    listed_in,
    references,
)
from trinitylake_core.storage import open_storage

FIXTURES: Final = Path(__file__).parents[1] / "fixtures" / "tables"
AT: Final = "file:///lake/tables/t/metadata/x"


# -- files on which an earlier reader failed -------------------------------------------------------------------


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


def test_a_table_whose_partition_spec_is_missing_is_none_of_cleaning() -> None:
    name = "v1-partition-specs-without-default-spec-id.metadata.json"
    assert references((FIXTURES / name).read_bytes(), name).location == "s3://bucket/t"


# -- paths -----------------------------------------------------------------------------------------------------

_NO_PATHS: Final = (
    "", " ", "x", "data/x.parquet", "./x", "../x", "/", "//", "/a/", "s3://", "s3://b/", "/a/../b", "/a/./b", "/a/..",
    "/a/%2E./b", "C:/a/b", "C:\\a", "/a\0b", "/a\nb", "file:x", "s3:x", "/" + "x" * limits.PATH_BYTES,
)  # fmt: skip


def _manifest(**changes: Any) -> bytes:
    """Return a manifest with one file, of which some values are others."""
    file = AvroFile(manifest_schema(2, []))
    row = {
        "content": 0, "file_path": "/lake/f.parquet", "file_format": "PARQUET", "partition": {}, "record_count": 1,
        "file_size_in_bytes": 1, **dict.fromkeys(("column_sizes", "value_counts", "null_value_counts")),
        **dict.fromkeys(("nan_value_counts", "distinct_counts", "lower_bounds", "upper_bounds", "key_metadata")),
        **dict.fromkeys(("split_offsets", "sort_order_id", "equality_ids")), **changes,
    }  # fmt: skip
    entry = dict.fromkeys(("snapshot_id", "sequence_number", "file_sequence_number"))
    file.add([{"status": changes.get("status", 1), **entry, "data_file": row}])
    return file.data()


@pytest.mark.parametrize("path", _NO_PATHS, ids=repr)
def test_a_file_whose_path_is_not_absolute_makes_the_manifest_unreadable(path: str) -> None:
    with pytest.raises(UnreadableTable, match="row 1: its file_path "):
        list(files_in(_manifest(file_path=path), AT))


@pytest.mark.parametrize("path", _NO_PATHS, ids=repr)
def test_a_manifest_whose_path_is_not_absolute_makes_the_list_unreadable(path: str) -> None:
    file = AvroFile({"type": "record", "name": "manifest_file", "fields": list_schema(2)["fields"][:2]})
    file.add([{"manifest_path": "/ok", "manifest_length": 1}, {"manifest_path": path, "manifest_length": 1}])
    with pytest.raises(UnreadableTable, match="manifest_path in row 2 "):
        list(listed_in(file.data(), AT))


@pytest.mark.parametrize("path", [*_NO_PATHS, None, 7, ["/a"], "/\ud800"], ids=repr)
@pytest.mark.parametrize("member", ["manifest-list", "manifests", "statistics", "partition-statistics"])
def test_table_metadata_with_a_path_that_is_not_absolute_are_unreadable(path: Any, member: str) -> None:
    document, _ = any_metadata(random.Random(3))
    if member.endswith("statistics"):
        document[member] = [{"snapshot-id": 1, "statistics-path": path}]
    else:
        named = [path] if member == "manifests" else path
        document["snapshots"] = [{"snapshot-id": 1, "timestamp-ms": 1, member: named}]
        document |= {"current-snapshot-id": 1, "refs": {}}
    with pytest.raises(UnreadableTable):
        references(json.dumps(document).encode(), AT)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"status": 3}, "its status is none of"),
        ({"status": -1}, "its status is none of"),
        ({"content": 3}, "its content is none of"),
        ({"file_size_in_bytes": -1}, "its file_size_in_bytes is no size"),
    ],
)
def test_what_the_specification_does_not_have_makes_a_manifest_unreadable(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UnreadableTable, match=words):
        list(files_in(_manifest(**changes), AT))


def test_a_deleted_file_is_not_live_whatever_else_is_said_of_it() -> None:
    assert [] == list(files_in(_manifest(status=2, file_path=""), AT))


@pytest.mark.parametrize(
    ("value", "forbids"),
    [("true", False), ("TRUE", False), ("false", True), (" true", True), ("no", True), ("", True), (False, True)],
)
def test_the_owner_forbids_to_delete_by_all_but_true(value: Any, forbids: bool) -> None:
    """As Java's ``Boolean.parseBoolean``, by which other engines decide it."""
    assert forbids == forbids_deletes({"gc.enabled": value})
    assert not forbids_deletes({})


@pytest.mark.parametrize(
    "changes",
    [
        {"format-version": 4},
        {"format-version": "2"},
        {"format-version": True},
        {"location": None},
        {"table-uuid": 7},
        {"properties": []},
        {"properties": {"write.data.path": "data"}},
        {"snapshots": {}},
        {"snapshots": [7]},
        {"snapshots": [{"snapshot-id": 1}]},
        {"snapshots": [{"snapshot-id": 1, "manifests": "/x"}]},
        {"current-snapshot-id": 12345},
        {"current-snapshot-id": []},
        {"refs": {"main": {"snapshot-id": 12345}}},
        {"statistics": "x"},
    ],
    ids=str,
)
def test_metadata_that_do_not_tell_their_files_are_unreadable(changes: dict[str, Any]) -> None:
    document, _ = any_metadata(random.Random(3))
    references(json.dumps(document).encode(), AT)
    with pytest.raises(UnreadableTable):
        references(json.dumps(document | changes).encode(), AT)


@pytest.mark.parametrize("millis", [None, "1", -1, 1 << 70, 1.5])
def test_the_time_of_the_current_snapshot_is_a_time(millis: Any) -> None:
    document = {"current-snapshot-id": 1, "snapshots": [{"snapshot-id": 1, "timestamp-ms": millis}]}
    with pytest.raises(UnreadableTable, match="timestamp-ms is no time"):
        current_snapshot(document, AT)


# -- bombs -----------------------------------------------------------------------------------------------------


def _bomb(rows: int, body: bytes, schema: Any = None) -> bytes:
    file = AvroFile(schema or manifest_schema(2, []), "deflate", blocks=[(rows, body)])
    return file.data()


def _with_field(kind: Any) -> Any:
    return manifest_schema(2, [{"name": "p", "type": kind, "field-id": 1000}])


def _doubling(levels: int) -> Any:
    """Return a type that is small in a schema and takes two to the power of ``levels`` fields."""
    kind: Any = {"type": "record", "name": "e0", "fields": []}
    for level in range(1, levels):
        fields = [{"name": "a", "type": kind}, {"name": "b", "type": f"e{level - 1}"}]
        kind = {"type": "record", "name": f"e{level}", "fields": fields}
    return kind


def _nested(levels: int) -> Any:
    kind: Any = "int"
    for _ in range(levels):
        kind = {"type": "array", "items": kind}
    return kind


_EMPTY: Final = {"type": "record", "name": "empty", "fields": []}
_ENDLESS: Final = {
    "a million rows of nothing": _bomb(1_000_000, b"", {"type": "record", "name": "r", "fields": []}),
    "a million rows in no bytes": _bomb(1_000_000, b""),
    "a million rows of zeros": _bomb(1_000_000, bytes(22_000_000)),
    "more rows than the file has bytes": _bomb(1 << 62, bytes(1000)),
    "an array of nulls": _bomb(1, number(1 << 62), _with_field({"type": "array", "items": "null"})),
    "an array of empty records": _bomb(1, number(1 << 62), _with_field({"type": "array", "items": _EMPTY})),
    "an array of floats without end": _bomb(
        1, number(1) + b"\0\0\0" + number(0) + sized(b"/x") + sized(b"") + number(1 << 61),
        _with_field({"type": "array", "items": "float"}),
    ),
    "a record that contains itself": _bomb(
        1, bytes(100), _with_field({"type": "record", "name": "s", "fields": [{"name": "a", "type": "s"}]})
    ),
    "a list that contains itself": _bomb(
        1, b"\2" * 10_000,
        _with_field({"type": "record", "name": "s", "fields": [{"name": "a", "type": ["null", "s"]}]}),
    ),
    "types thirty deep that double": _bomb(1, bytes(100), _with_field(_doubling(40))),
    "types a hundred deep": _bomb(1, bytes(100), _with_field(_nested(100))),
    "types ten thousand deep": _bomb(1, bytes(100)).replace(b'"int"', b'"xxx"'),
    "a block that unpacks to a hundred times its size and more": _bomb(1, bytes(40 << 20)),
    "a header of a million entries": b"Obj\1" + number(1_000_000) + b"\2a\0" * 100,
    "a header without an end": b"Obj\1" + (number(-1) + number(0)) * 100_000,
}  # fmt: skip


@pytest.mark.parametrize("name", _ENDLESS)
def test_a_small_file_takes_neither_time_nor_memory(name: str) -> None:
    data = _ENDLESS[name]
    tracemalloc.start()
    try:
        with pytest.raises(UnreadableTable):
            list(files_in(data, AT))
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


def test_a_schema_of_ten_thousand_brackets_is_refused() -> None:
    file = AvroFile(None, schema_text=b"[" * 100_000 + b"]" * 100_000)
    with pytest.raises(UnreadableTable, match="the header: its schema is not JSON"):
        list(files_in(file.data(), AT))


def test_types_that_double_and_take_no_bytes_take_no_time() -> None:
    """Thirty records, each of which has the one before twice: a thousand million fields, and not one byte."""
    written = any_manifest(random.Random(1), 2, [], 1, 0)
    assert written.parts is not None or written.data
    file = AvroFile(_with_field(_doubling(29)))
    assert [] == list(files_in(file.data(), AT))


def test_a_packed_metadata_file_does_not_unpack_beyond_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "METADATA_BYTES", 1 << 20)
    packed = gzip.compress(b" " * (64 << 20) + b"{}")
    assert len(packed) < 1 << 20
    tracemalloc.start()
    try:
        with pytest.raises(UnreadableTable, match="larger than a file of this kind may be, unpacked"):
            decode_metadata(packed, AT)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_many_members_of_gzip_are_one_file_with_one_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {"a": 1} == decode_metadata(gzip.compress(b'{"a"') + gzip.compress(b":1}"), AT)
    monkeypatch.setattr(limits, "METADATA_BYTES", 1_000)
    with pytest.raises(UnreadableTable, match="larger than a file of this kind may be"):
        decode_metadata(b"".join(gzip.compress(b" " * 100) for _ in range(11)), AT)
    with pytest.raises(UnreadableTable):
        decode_metadata(gzip.compress(b"{}")[:-9], AT)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "nested more than 100 deep"),
        (b"[" * 101 + b"]" * 101, "nested more than 100 deep"),
        (b"[" + b"{}," * 1_999_999 + b"{}]", "more than 1,000,000 values"),
        (b"[" + b'"",' * 2_000_001 + b'""]', "more than 1,000,000 values"),
        (b'{"a": NaN}', "a number that is none"),
        (b'{"a": ' + b"9" * 5000 + b"}", "a number that is none"),
        (b'{"a": "\\ud800"}', "half a character"),
        (b'{"SECRET": "\xff"}', "not UTF-8, at byte 12"),
        (b'{"SECRET" "x"}', "not JSON, in line 1, column 11"),
        (b'["SECRET"]', "no JSON object"),
        ('{"a": 1}'.encode("utf-16"), "not UTF-8"),
        (b"", "not JSON"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_json_is_refused_in_words_that_do_not_quote_it(text: bytes, words: str) -> None:
    for data in (text, gzip.compress(text)):
        with pytest.raises(UnreadableTable, match=words) as error:
            decode_metadata(data, AT)
        assert error.value.__cause__ is None
        assert "SECRET" not in str(error.value)


def test_brackets_and_commas_in_texts_count_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "METADATA_ELEMENTS", 20)
    document = {"a": "[" * 1000, 'b"\\': ',:{"' * 100 + "\\", "c": ["\\" * 3, '\\"[']}
    assert document == decode_metadata(json.dumps(document).encode(), AT)


def test_no_more_of_a_file_is_read_than_one_may_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "AVRO_BYTES", 1_000)
    monkeypatch.setattr(limits, "METADATA_BYTES", 1_000)
    storage = open_storage(tmp_path.as_uri())
    (tmp_path / "large").touch()
    os.truncate(tmp_path / "large", 1 << 40)  # a file of holes
    with pytest.raises(UnreadableTable, match="more than 1,000 bytes"):
        read_file(storage, "large", AT)
    os.truncate(tmp_path / "large", 1_000)
    assert bytes(1_000) == read_file(storage, "large", AT)
    (tmp_path / "empty").touch()
    assert b"" == read_file(storage, "empty", AT)
    with pytest.raises(NotAFile):
        read_file(storage, ".", AT)


# -- other writers ---------------------------------------------------------------------------------------------


def test_columns_are_found_by_their_numbers_in_any_order_and_under_any_name() -> None:
    inner = [
        required(7_000, "new", {"type": "map", "values": ["null", "long", "string"]}),
        required(104, "größe", "long"),
        required(7_001, "kind", {"type": "enum", "name": "kinds", "symbols": ["A", "B"]}),
        required(100, "pfad", ["null", "string"]),
    ]
    outer = [required(2, "datei", {"type": "record", "name": "d", "fields": inner}), required(0, "s", ["int", "null"])]
    file = AvroFile({"type": "record", "name": "e", "namespace": "other.org", "fields": outer})
    body = number(2) + sized(b"a") + b"\0" + sized(b"b") + b"\4" + sized(b"text") + b"\0"
    file.blocks.append((1, body + number(77) + b"\2" + b"\2" + sized(b"s3://b/f") + b"\0" + number(1)))
    assert [("s3://b/f", 77, False)] == [tuple(each) for each in files_in(file.data(), AT)]


def test_the_record_of_a_file_may_be_in_a_union_as_bigquery_writes_it() -> None:
    schema = manifest_schema(2, [])
    inside = schema["fields"][-1]["type"]
    inside["fields"] = [each for each in inside["fields"] if each["field-id"] in (100, 104)]
    schema["fields"] = [schema["fields"][0], {**schema["fields"][-1], "type": ["null", inside]}]
    file = AvroFile(schema)
    file.add([{"status": 1, "data_file": {"file_path": "/lake/f", "file_size_in_bytes": 7}}])
    assert [("file:///lake/f", 7, False)] == [tuple(each) for each in files_in(file.data(), AT)]
    file.add([{"status": 1, "data_file": None}])
    with pytest.raises(UnreadableTable, match="row 2: its file_size_in_bytes is no size"):
        list(files_in(file.data(), AT))


def test_bits_beyond_the_last_one_of_a_number_that_is_passed_over_are_nobodys() -> None:
    """A file of DuckDB's tests has such a snapshot ID; of one that is read they are not accepted."""
    schema = {"type": "record", "name": "e", "fields": [*list_schema(1)["fields"][:2], required(503, "id", "long")]}
    too_many_bits = b"\xff" * 9 + b"\x03"
    body = sized(b"/lake/m.avro") + number(7)
    file = AvroFile(schema, blocks=[(1, body + too_many_bits)])
    assert [("file:///lake/m.avro", 7)] == [(each.uri, each.size) for each in listed_in(file.data(), AT)]
    file = AvroFile(schema, blocks=[(1, sized(b"/lake/m.avro") + too_many_bits + number(7))])
    with pytest.raises(UnreadableTable, match="more than 64 bits"):
        list(listed_in(file.data(), AT))


def test_a_column_that_must_be_there_and_is_not_makes_the_file_unreadable() -> None:
    schema = manifest_schema(2, [])
    schema["fields"][-1]["type"]["fields"] = [
        each for each in schema["fields"][-1]["type"]["fields"] if each["field-id"] != 104
    ]
    with pytest.raises(UnreadableTable, match="its schema has no column with the field-id 104"):
        list(files_in(AvroFile(schema).data(), AT))
