"""Many Iceberg tables with many manifests, in seconds: PyIceberg writes one, and the others are the same bytes.

Names that differ have one length, and the Avro files are not packed, so a name can be put in the place of another.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pyiceberg.avro.codecs import AvroCompressionCodec
from pyiceberg.manifest import ManifestFile, write_manifest_list
from pyiceberg.table import Table

from tests.support.icebergs import new_iceberg, with_table
from trinitylake_core.iceberg import TrinityLakeCatalog
from trinitylake_core.storage import Storage
from trinitylake_core.tables import ICEBERG, METADATA_LOCATION

_NAMESPACE: Final = "many"
_PACKED: Final = "write.avro.compression-codec"
_UNPACKED: Final[AvroCompressionCodec] = "null"


def many_tables(
    directory: Path, tables: int, manifests: int, versions: int, order: int | None = None
) -> TrinityLakeCatalog:
    """Return the catalog over a lakehouse with so many tables, each with manifests of its own.

    In each of the versions that follow the first one a share of the tables gets new metadata, and shares its snapshot.
    """
    catalog = new_iceberg(directory, order)
    fill_tables(catalog, tables, manifests)
    for version in range(1, versions):
        change_tables(catalog, version, tables // versions or 1, tables)
    catalog.lakehouse.refresh()
    return catalog


def fill_tables(catalog: TrinityLakeCatalog, tables: int, manifests: int) -> None:
    """Create so many tables in an empty lakehouse, each with manifests of its own, on whatever storage."""
    table = with_table(catalog, f"{_NAMESPACE}.t0000", 1, properties={_PACKED: _UNPACKED})
    lake = catalog.lakehouse.refresh()
    definition = lake.table(_NAMESPACE, "t0000")
    root, _, own = table.location().removeprefix(lake.storage.root).rpartition("/")
    files = _files(table, manifests, lake.storage, f"{root}/{own}/")
    names = [f"t{number:04}-{uuid.uuid4().hex[:12]}" for number in range(1, tables)]
    identity = str(table.metadata.table_uuid)

    def copy_files() -> Iterator[tuple[str, bytes]]:
        for name in names:
            new = {own.encode(): name.encode(), identity.encode(): str(uuid.uuid4()).encode()}
            for path, data in files.items():
                for old, other in new.items():
                    data = data.replace(old, other)  # noqa: PLW2901 - one after the other
                yield f"{root}/{name}/{path}", data

    lake.storage.write_many(copy_files())
    with lake.transaction() as txn:
        for name in names:
            fields = {key: value.replace(own, name) for key, value in definition.format_properties.items()}
            txn.create_table(_NAMESPACE, name[:5], table_format=ICEBERG, table_type="MANAGED", format_properties=fields)


def _files(table: Table, manifests: int, storage: Storage, place: str) -> dict[str, bytes]:
    """Write a table's list with more manifests; return what its directory holds, but for data, by name."""
    snapshot = table.current_snapshot()
    assert snapshot is not None
    (one,) = snapshot.manifests(table.io)
    known = one.manifest_path.rpartition("/")[2]
    (entry,) = one.fetch_manifest_entry(table.io)
    data_file = entry.data_file.file_path.rpartition("/")[2]
    content, found = storage.read(f"{place}metadata/{known}"), dict[str, bytes]()
    lists = [_named(one, one.manifest_path)]
    for number in range(1, manifests):
        name, data = f"{uuid.uuid4()}-m0.avro", f"{number:08}-0-{uuid.uuid4()}.parquet"[-len(data_file) :]
        assert (len(name), len(data)) == (len(known), len(data_file))
        found[f"{place}metadata/{name}"] = content.replace(data_file.encode(), data.encode())
        lists.append(_named(one, one.manifest_path.replace(known, name)))
    storage.delete_many([snapshot.manifest_list.removeprefix(storage.root)])
    listed = table.io.new_output(snapshot.manifest_list)
    with write_manifest_list(2, listed, snapshot.snapshot_id, None, 1, _UNPACKED) as writer:
        writer.add_manifests(lists)
    storage.write_many(found.items())
    there = [each.path for each in storage.list(f"{place}metadata/")]
    return {path.removeprefix(place): storage.read(path) for path in there}


def _named(manifest: ManifestFile, path: str) -> ManifestFile:
    values = {name: getattr(manifest, name) for name in _FIELDS} | {"manifest_path": path}
    return ManifestFile.from_args(_table_format_version=2, **values)


_FIELDS: Final = (
    "manifest_path", "manifest_length", "partition_spec_id", "content", "sequence_number", "min_sequence_number",
    "added_snapshot_id", "added_files_count", "existing_files_count", "deleted_files_count", "added_rows_count",
    "existing_rows_count", "deleted_rows_count", "partitions", "key_metadata",
)  # fmt: skip


def change_tables(catalog: TrinityLakeCatalog, version: int, count: int, tables: int) -> None:
    """Commit a version in which some tables have a copy of their metadata."""
    lake = catalog.lakehouse.refresh()
    with lake.transaction() as txn:
        for number in range(version * count, (version + 1) * count):
            name = f"t{number % tables:04}"
            location = lake.table(_NAMESPACE, name).format_properties[METADATA_LOCATION]
            copy = f"{location.rpartition('/')[0]}/{version:05}-{uuid.uuid4()}.metadata.json"
            lake.storage.create(copy, lake.storage.read(location))
            txn.alter_table(_NAMESPACE, name, format_properties={METADATA_LOCATION: copy})
