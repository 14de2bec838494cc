"""A lakehouse with nine sound tables, and ways to make the tenth one hostile behind everybody's back."""

from __future__ import annotations

import functools
import gzip
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from tests.support.icebergs import new_iceberg, rows, with_table
from trinitylake_core.iceberg import ALLOWED_LOCATIONS, TrinityLakeCatalog
from trinitylake_core.tables import METADATA_LOCATION

NAMESPACE: Final = "sales"
SOUND: Final = tuple(f"sound{number}" for number in range(9))
HOSTILE: Final = "hostile"


def new_lakehouse(directory: Path, **properties: str) -> TrinityLakeCatalog:
    """Create a lakehouse with ten tables of one row each; none is hostile yet."""
    catalog = new_iceberg(directory, **properties)
    with catalog.transaction() as together:
        for name in (*SOUND, HOSTILE):
            with_table(together, f"{NAMESPACE}.{name}", 1)
    return catalog


def make_people(catalog: TrinityLakeCatalog, name: str, place: str, **properties: str) -> str:
    """Create a table with a row at a place below ``shared/``, as the operator; return the location of its metadata."""
    schema = catalog.load_table(f"{NAMESPACE}.{HOSTILE}").schema()
    allowed = f"{place.partition('/shared/')[0]}/shared"
    operator = TrinityLakeCatalog("operator", uri=catalog.lakehouse.root, **{ALLOWED_LOCATIONS: allowed})
    made = operator.create_table(name, schema, place, properties=properties)
    made.append(rows(4242))
    return operator.load_table(name).metadata_location


def metadata_file(catalog: TrinityLakeCatalog, name: str = HOSTILE) -> Path:
    """Return the newest metadata file of a table, which the catalog need not be able to read."""
    stored = catalog.lakehouse.table(NAMESPACE, name).format_properties[METADATA_LOCATION]
    return Path(catalog._places.base.removeprefix("file://")) / stored


def with_fields(fields: Mapping[str, Any]) -> Callable[[Path], None]:
    """Return a way to replace fields of the metadata; ``None`` removes one."""

    def change(file: Path) -> None:
        document = json.loads(file.read_text()) | fields
        file.write_text(json.dumps({name: value for name, value in document.items() if value is not None}))

    return change


def with_properties(**properties: str) -> Callable[[Path], None]:
    """Return a way to add properties to the metadata; two underscores stand for a dot."""

    def change(file: Path) -> None:
        document = json.loads(file.read_text())
        document["properties"] |= {name.replace("__", "."): value for name, value in properties.items()}
        file.write_text(json.dumps(document))

    return change


def with_content(data: bytes) -> Callable[[Path], None]:
    """Return a way to replace the metadata file."""
    return lambda file: void(file.write_bytes(data))


def named(location: str) -> Callable[[TrinityLakeCatalog], None]:
    """Return a way to make the definition name another metadata file."""

    def change(catalog: TrinityLakeCatalog) -> None:
        kind = "EXTERNAL" if "://" in location else "MANAGED"
        with catalog.lakehouse.refresh().transaction() as txn:
            txn.alter_table(NAMESPACE, HOSTILE, table_type=kind, format_properties={METADATA_LOCATION: location})

    return change


def with_nested_type(file: Path, depth: int) -> None:
    """Give the metadata a column whose type lies in lists that lie in each other."""
    kind: Any = "int"
    for number in range(depth):
        kind = {"type": "list", "element-id": number + 2, "element-required": False, "element": kind}
    field = {"id": 1, "name": "x", "required": False, "type": kind}
    with_fields({"schemas": [{"schema-id": 0, "type": "struct", "fields": [field]}]})(file)


def _pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def _directory(file: Path) -> None:
    file.unlink()
    file.mkdir()


def _link_to(target: str) -> Callable[[Path], None]:
    def change(file: Path) -> None:
        file.unlink()
        file.symlink_to(target)

    return change


@functools.cache
def _packed_spaces() -> bytes:
    """Return 300 MiB that are packed when a test asks for them: every process of the tests imports this module."""
    return gzip.compress(b" " * (300 << 20), 9)


_SNAPSHOT: Final = {"snapshot-id": 5, "timestamp-ms": 1, "summary": {"operation": "append"}, "sequence-number": 1}

OF_METADATA: Final[Mapping[str, Callable[[Path], None]]] = {
    "no JSON": with_content(b"\xff\xfe{"),
    "empty": with_content(b""),
    "a list": with_content(b"[]"),
    "deep": with_content(b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
    "many elements": with_content(b'{"format-version":2,"x":[' + b"{}," * 3_000_000 + b"{}]}"),
    "packed under a plain name": lambda file: void(file.write_bytes(_packed_spaces())),
    "a directory": _directory,
    "a pipe": _pipe,
    "a link out": _link_to("/etc/passwd"),
    "a link to a device": _link_to("/dev/zero"),
    "format version 99": with_fields({"format-version": 99}),
    "no location": with_fields({"location": None}),
    "a relative location": with_fields({"location": "warehouse/t"}),
    "a number for a location": with_fields({"location": 7}),
    "no default spec": with_fields({"format-version": 1, "schema": {}, "default-spec-id": None, "partition-specs": [
        {"spec-id": 1, "fields": []}, {"spec-id": 2, "fields": []}]}),
    "an unknown schema": with_fields({"current-schema-id": 99}),
    "an unknown snapshot": with_fields({"current-snapshot-id": 99}),
    "an unknown type": with_fields({"schemas": [{"schema-id": 0, "type": "struct", "fields": [
        {"id": 1, "name": "x", "required": False, "type": "decimal(9999999999,1)"}]}]}),
    "a type in a type in a type": lambda file: with_nested_type(file, 400),
    "a manifest list that is a number": with_fields({"snapshots": [_SNAPSHOT | {"manifest-list": 7}]}),
    "statistics that are a number": with_fields({"statistics": 7}),
    "references that are a list": with_fields({"refs": [1]}),
    "properties that are a list": with_fields({"properties": [1]}),
    "a UUID that is none": with_fields({"table-uuid": "../../x"}),
}  # fmt: skip
"""What a metadata file may be that no writer makes. Nobody can load such a table."""

OF_DEFINITION: Final[Mapping[str, Callable[[TrinityLakeCatalog], None]]] = {
    "a name that is too long": named(f"tables/{'x' * 5000}/v1.metadata.json"),
    "too many directories": named(f"tables/{'x/' * 3000}v1.metadata.json"),
    "a missing file": named("tables/none/v1.metadata.json"),
    "a file of this machine": named("file:///etc/passwd"),
    "a device": named("file:///dev/zero"),
    "another host": named("hdfs://127.0.0.1:9/v1.metadata.json"),
    "a web page": named("http://127.0.0.1:9/v1.metadata.json"),
    "a model": named("hf://models/x/y/v1.metadata.json"),
    "a root of this lakehouse": named("_latest.txt"),
}
"""Where a definition may say that the metadata are."""


def void(result: object) -> None:
    """Take a result that nobody wants."""
    del result
