"""Random manifests, manifest lists and metadata files, as Iceberg's specification has them, with the right answers."""

from __future__ import annotations

import io
import json
import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import fastavro

from tests.support.avro_by_hand import AvroFile

CODECS: Final = ("null", "deflate", "deflate", "snappy", "zstandard", "bzip2")
_FASTAVRO_CODECS: Final = ("null", "deflate", "bzip2")
Field = dict[str, Any]


@dataclass(frozen=True)
class Written:
    """A file, and what is in it.

    Attributes:
        answer: of a manifest ``(path, size, deletes)`` of each row that is not DELETED; of a list ``(path, size)``.
        parts: the file in parts, if it was written by hand.
    """

    kind: str
    data: bytes
    answer: list[tuple[Any, ...]]
    parts: AvroFile | None = None


# -- schemas ---------------------------------------------------------------------------------------------------


def required(number: int, name: str, kind: Any) -> Field:
    """Return a field that is never null."""
    return {"name": name, "type": kind, "field-id": number}


def optional(number: int, name: str, kind: Any) -> Field:
    """Return a field that may be null."""
    return {"name": name, "type": ["null", kind], "default": None, "field-id": number}


def numbers_to(key: int, value: int, kind: str) -> Any:
    """Return a map with numbers as keys, which Avro has as an array of pairs."""
    pair = [required(key, "key", "int"), required(value, "value", kind)]
    return {
        "type": "array",
        "logicalType": "map",
        "items": {"type": "record", "name": f"k{key}_v{value}", "fields": pair},
    }


def array_of(number: int, kind: str) -> Any:
    """Return a list."""
    return {"type": "array", "items": kind, "element-id": number}


def decimal(precision: int, size: int) -> Any:
    """Return a decimal in so many bytes; writers differ about how many they take."""
    return {
        "type": "fixed",
        "size": size,
        "logicalType": "decimal",
        "precision": precision,
        "scale": min(2, precision),
        "name": f"decimal_{precision}_{size}",
    }


def _logical(kind: str, name: str, **more: Any) -> Any:
    return {"type": kind, "logicalType": name, **more}


_Kind = tuple[Callable[[random.Random], Any], Callable[[random.Random, Any], Any]]


def _plain(schema: Any, value: Callable[[random.Random], Any]) -> _Kind:
    return lambda chance: schema, lambda chance, _: value(chance)


def _bytes_of(chance: random.Random, schema: Any) -> bytes:
    return chance.randbytes(schema["size"])


def _any_decimal(chance: random.Random) -> Any:
    precision = chance.randint(1, 38)
    least = next(size for size in range(1, 17) if 10**precision <= 1 << (8 * size - 1))
    return decimal(precision, chance.choice([least, least, 16, least + chance.randint(0, 8)]))


def _any_fixed(chance: random.Random) -> Any:
    size = chance.choice([1, 2, 8, 16, 100, 2000])
    return {"type": "fixed", "name": f"fixed_{size}", "size": size}


def _int(chance: random.Random) -> int:
    return chance.choice([0, -1, 7, (1 << 31) - 1, -(1 << 31), chance.randint(-1000, 1000)])


def _long(chance: random.Random) -> int:
    return chance.choice([0, -1, 64, (1 << 63) - 1, -(1 << 63), chance.randint(-(10**12), 10**12)])


def _text(chance: random.Random) -> str:
    return chance.choice(["", "x", "Zürich", "a/b=c", "\N{GRINNING FACE}", "x" * chance.randint(1, 300)])


PARTITIONS: Final[dict[str, _Kind]] = {
    "boolean": _plain("boolean", lambda chance: chance.random() < 0.5),
    "int": _plain("int", _int),
    "long": _plain("long", _long),
    "float": _plain("float", lambda chance: chance.random()),
    "double": _plain("double", lambda chance: chance.random()),
    "decimal": (_any_decimal, _bytes_of),
    "date": _plain(_logical("int", "date"), _int),
    "time": _plain(_logical("long", "time-micros"), _long),
    "timestamp": _plain(_logical("long", "timestamp-micros", **{"adjust-to-utc": False}), _long),
    "timestamptz": _plain(_logical("long", "timestamp-micros", **{"adjust-to-utc": True}), _long),
    "timestamp_ns": _plain(_logical("long", "timestamp-nanos", **{"adjust-to-utc": False}), _long),
    "timestamptz_ns": _plain(_logical("long", "timestamp-nanos", **{"adjust-to-utc": True}), _long),
    "string": _plain("string", _text),
    "uuid": (lambda chance: {"type": "fixed", "size": 16, "logicalType": "uuid", "name": "uuid_fixed"}, _bytes_of),
    "fixed": (_any_fixed, _bytes_of),
    "binary": _plain("bytes", lambda chance: chance.randbytes(chance.choice([0, 1, 63, 64, 300]))),
    "decimal in bytes": _plain(
        _logical("bytes", "decimal", precision=12, scale=2), lambda chance: chance.randbytes(chance.randint(1, 9))
    ),
}
"""Every type of the specification: makes the schema, and a value of it."""


def partition_fields(chance: random.Random, kinds: list[str]) -> tuple[list[Field], list[Callable[[], Any]]]:
    """Return the fields of a partition, and what makes a value of each."""
    fields: list[Field] = []
    values: list[Callable[[], Any]] = []
    names: dict[str, Any] = {}
    for position, each in enumerate(kinds):
        make, value = PARTITIONS[each]
        schema = make(chance)
        name = schema.get("name") if isinstance(schema, dict) else None
        use: Any = schema
        if name in names:
            schema = names[name]
            use = name  # a type is defined once, and named after that
        elif name is not None:
            names[name] = schema
        inside = use if chance.random() < 0.2 else ["null", use] if chance.random() < 0.9 else [use, "null"]
        may_be_null = isinstance(inside, list)

        def any_value(value: Any = value, schema: Any = schema, may_be_null: bool = may_be_null) -> Any:
            return None if may_be_null and chance.random() < 0.2 else value(chance, schema)

        fields.append({"name": f"p{position}", "type": inside, "field-id": 1000 + position})
        values.append(any_value)
    return fields, values


_MAPS: Final = (
    (108, "column_sizes", 117, "long"),
    (109, "value_counts", 119, "long"),
    (110, "null_value_counts", 121, "long"),
    (137, "nan_value_counts", 138, "long"),
    (111, "distinct_counts", 123, "long"),
    (125, "lower_bounds", 126, "bytes"),
    (128, "upper_bounds", 129, "bytes"),
)


def manifest_schema(version: int, partition: list[Field]) -> Any:
    """Return the schema of the rows of a manifest."""
    file = [
        required(100, "file_path", "string"),
        required(101, "file_format", "string"),
        required(102, "partition", {"type": "record", "name": "r102", "fields": partition}),
        required(103, "record_count", "long"),
        required(104, "file_size_in_bytes", "long"),
    ]
    if version == 1:
        file.append(required(105, "block_size_in_bytes", "long"))
    else:
        file.insert(0, required(134, "content", "int"))
    file += [optional(number, name, numbers_to(key, key + 1, kind)) for number, name, key, kind in _MAPS]
    file += [
        optional(131, "key_metadata", "bytes"),
        optional(132, "split_offsets", array_of(133, "long")),
        optional(140, "sort_order_id", "int"),
    ]
    if version > 1:
        file.append(optional(135, "equality_ids", array_of(136, "int")))
    if version > 2:
        file += [
            optional(142, "first_row_id", "long"),
            optional(143, "referenced_data_file", "string"),
            optional(144, "content_offset", "long"),
            optional(145, "content_size_in_bytes", "long"),
        ]
    entry = [required(0, "status", "int"), optional(1, "snapshot_id", "long")]
    if version > 1:
        entry += [optional(3, "sequence_number", "long"), optional(4, "file_sequence_number", "long")]
    entry.append(required(2, "data_file", {"type": "record", "name": "r2", "fields": file}))
    return {"type": "record", "name": "manifest_entry", "fields": entry}


def list_schema(version: int) -> Any:
    """Return the schema of the rows of a manifest list."""
    summary = [
        required(509, "contains_null", "boolean"),
        optional(518, "contains_nan", "boolean"),
        optional(510, "lower_bound", "bytes"),
        optional(511, "upper_bound", "bytes"),
    ]
    partitions = {"type": "array", "items": {"type": "record", "name": "r508", "fields": summary}, "element-id": 508}
    fields = [
        required(500, "manifest_path", "string"),
        required(501, "manifest_length", "long"),
        required(502, "partition_spec_id", "int"),
    ]
    if version > 1:
        fields += [
            required(517, "content", "int"),
            required(515, "sequence_number", "long"),
            required(516, "min_sequence_number", "long"),
        ]
    fields += [
        required(503, "added_snapshot_id", "long"),
        required(504, "added_files_count", "int"),
        required(505, "existing_files_count", "int"),
        required(506, "deleted_files_count", "int"),
        optional(512, "added_rows_count", "long"),
        optional(507, "partitions", partitions),
        optional(519, "key_metadata", "bytes"),
    ]
    if version > 2:
        fields.append(optional(520, "first_row_id", "long"))
    return {"type": "record", "name": "manifest_file", "fields": fields}


# -- rows ------------------------------------------------------------------------------------------------------


def any_path(chance: random.Random) -> str:
    """Return an absolute path, in one of the spellings that engines use."""
    unique = uuid.UUID(bytes=chance.randbytes(16))
    name = f"tables/sales/t-0123456789ab/data/{unique}{_text(chance).replace('/', '')}.parquet"
    return (
        chance.choice(["s3://bucket/lake/", "file:///lake/", "/lake/", "file:/lake/", "abfss://c@a.x/", "gs://b/"])
        + name
    )


def _statistics(chance: random.Random, columns: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _, name, _, kind in _MAPS:
        value: Callable[[], Any] = (
            (lambda: chance.randbytes(chance.randint(0, 70))) if kind == "bytes" else (lambda: _long(chance))
        )
        pairs = [{"key": column + 1, "value": value()} for column in range(columns)]
        found[name] = None if not columns or chance.random() < 0.2 else pairs
    return found


def _manifest_row(chance: random.Random, partition: dict[str, Any], columns: int) -> Any:
    file = {
        "content": chance.choice([0, 0, 0, 1, 2]),
        "file_path": any_path(chance),
        "file_format": "PARQUET",
        "partition": partition,
        "record_count": abs(_long(chance)) % (1 << 40),
        "file_size_in_bytes": chance.choice([0, 1, 1 << 40, chance.randint(0, 10**9)]),
        "block_size_in_bytes": 1 << 26,
        "key_metadata": chance.choice([None, None, b"", b"key"]),
        "split_offsets": chance.choice([None, [4], [4, 1 << 27], []]),
        "sort_order_id": chance.choice([None, 0, 1]),
        "equality_ids": chance.choice([None, None, [1, 2]]),
        "first_row_id": chance.choice([None, 0, 1 << 40]),
        "referenced_data_file": chance.choice([None, any_path(chance)]),
        "content_offset": chance.choice([None, 4]),
        "content_size_in_bytes": chance.choice([None, 40]),
        **_statistics(chance, columns),
    }
    entry = {"status": chance.choice([0, 1, 1, 2]), "snapshot_id": chance.choice([None, _long(chance)])}
    return {**entry, "sequence_number": None, "file_sequence_number": chance.choice([None, 5]), "data_file": file}


def _list_row(chance: random.Random) -> Any:
    summaries = [
        {
            "contains_null": chance.random() < 0.5,
            "contains_nan": chance.choice([None, True, False]),
            "lower_bound": chance.choice([None, b"", chance.randbytes(8)]),
            "upper_bound": chance.choice([None, chance.randbytes(16)]),
        }
        for _ in range(chance.randint(0, 3))
    ]
    counts = {f"{each}_files_count": chance.randint(0, 100) for each in ("added", "existing", "deleted")}
    return {
        "manifest_path": any_path(chance),
        "manifest_length": chance.randint(0, 10**8),
        "partition_spec_id": chance.randint(0, 3),
        "content": chance.choice([0, 1]),
        "sequence_number": 7,
        "min_sequence_number": 5,
        "added_snapshot_id": _long(chance),
        **counts,
        "added_rows_count": chance.choice([None, 1 << 40]),
        "partitions": chance.choice([None, summaries]),
        "key_metadata": None,
        "first_row_id": chance.choice([None, 7]),
    }


def any_file(chance: random.Random, *, most_rows: int = 20) -> Written:
    """Return a manifest or a manifest list, by one of the two writers."""
    version = chance.choice([1, 2, 2, 3])
    count = chance.choice([0, 1, 1, 2, 3, chance.randint(1, most_rows)])
    if chance.random() < 0.3:
        schema = list_schema(version)
        rows = [_list_row(chance) for _ in range(count)]
        answer: list[tuple[Any, ...]] = [(each["manifest_path"], each["manifest_length"]) for each in rows]
        return _written(chance, "list", schema, rows, answer)
    kinds = chance.choices(list(PARTITIONS), k=chance.choice([0, 1, 1, 2, 3, 8]))
    return any_manifest(chance, version, kinds, count, chance.choice([0, 0, 1, 3, 30]))


def any_manifest(chance: random.Random, version: int, kinds: list[str], count: int, columns: int) -> Written:
    """Return a manifest with partition fields of these kinds, so many rows, and statistics of so many columns."""
    fields, values = partition_fields(chance, kinds)
    rows = []
    answer: list[tuple[Any, ...]] = []
    for _ in range(count):
        partition = {field["name"]: value() for field, value in zip(fields, values, strict=True)}
        row = _manifest_row(chance, partition, columns)
        rows.append(row)
        file = row["data_file"]
        if row["status"] != 2:
            answer.append((file["file_path"], file["file_size_in_bytes"], bool(file["content"]) and version > 1))
    return _written(chance, "manifest", manifest_schema(version, fields), rows, answer)


def _written(chance: random.Random, kind: str, schema: Any, rows: list[Any], answer: list[tuple[Any, ...]]) -> Written:
    if chance.random() < 0.5:
        return Written(kind, by_fastavro(chance, schema, rows), answer)
    parts = AvroFile(schema, chance.choice(CODECS), chance.randbytes(16), {"format-version": b"2", "schema": b"{}"})
    most = chance.choice([1, 3, 1000])
    for begin in range(0, len(rows), most):
        parts.add(rows[begin : begin + most], sized_blocks=chance.random() < 0.3)
    return Written(kind, parts.data(), answer, parts)


def by_fastavro(chance: random.Random, schema: Any, rows: list[Any]) -> bytes:
    """Return a file that fastavro wrote."""
    out = io.BytesIO()
    interval = chance.choice([100, 16_000])
    known = fastavro.parse_schema(json.loads(json.dumps(schema)))
    fastavro.writer(out, known, rows, chance.choice(_FASTAVRO_CODECS), sync_interval=interval, validator=False)
    return out.getvalue()


# -- metadata files --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Named:
    """What a metadata file names.

    Attributes:
        directories: the location, and other directories that properties name.
        files: manifest lists, manifests of version 1, and statistics.
    """

    directories: frozenset[str]
    files: frozenset[str]


def any_metadata(chance: random.Random) -> tuple[Any, Named]:
    """Return table metadata as JSON, and what they name."""
    version = chance.choice([1, 2, 2, 3])
    location = chance.choice(["s3://bucket/lake/tables/t", "/lake/tables/t/", "file:///lake/tables/t"])
    directories = {location}
    properties = {"owner": _text(chance), "a{b": "}]["}
    if chance.random() < 0.3:
        properties["write.data.path"] = "s3://bucket/elsewhere"
        directories.add("s3://bucket/elsewhere")
    snapshots: list[Any] = []
    files: set[str] = set()
    for number in range(chance.choice([0, 1, 2, 5, 30])):
        snapshot: dict[str, Any] = {"snapshot-id": _long(chance) ^ number, "timestamp-ms": 1_600_000_000_000 + number}
        snapshot["summary"] = {"operation": "append", "note": _text(chance)}
        if version == 1 and chance.random() < 0.5:
            snapshot["manifests"] = [any_path(chance) for _ in range(chance.randint(0, 3))]
            files.update(snapshot["manifests"])
        else:
            snapshot["manifest-list"] = any_path(chance)
            files.add(snapshot["manifest-list"])
        snapshots.append(snapshot)
    found: dict[str, Any] = {
        "format-version": version,
        "table-uuid": str(uuid.UUID(bytes=chance.randbytes(16))),
        "location": location,
        "last-updated-ms": 1,
        "properties": properties,
        "schemas": [{"type": "struct", "schema-id": 0, "fields": [_nested(chance.randint(0, 8))]}],
        "snapshots": snapshots,
        "current-snapshot-id": snapshots[-1]["snapshot-id"] if snapshots else chance.choice([-1, None]),
    }
    for member in ("statistics", "partition-statistics"):
        paths = [any_path(chance) for _ in range(chance.choice([0, 0, 2]))]
        if paths or chance.random() < 0.5:
            found[member] = [{"snapshot-id": 1, "statistics-path": each} for each in paths]
        files.update(paths)
    if snapshots and chance.random() < 0.5:
        found["refs"] = {"main": {"snapshot-id": snapshots[-1]["snapshot-id"], "type": "branch"}}
    return found, Named(frozenset(directories), frozenset(files))


def _nested(depth: int) -> Any:
    kind: Any = "long"
    for number in range(depth):
        kind = {"type": "list", "element-id": number, "element-required": False, "element": kind}
    return {"id": 1, "name": "a", "required": False, "type": kind}
