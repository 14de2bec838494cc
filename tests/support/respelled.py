"""Tables whose metadata name their files by other spellings than those of this project's own writers."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
from pyiceberg.table import Table

Spelling = Callable[[str], str]


def local(uri: str) -> Path:
    """Return the path of a local file."""
    return Path(uri.removeprefix("file://"))


def needed_by(table: Table) -> set[Path]:
    """Return the files that the metadata of a table need, by PyIceberg, and the metadata file itself."""
    found = {local(table.metadata_location)}
    for snapshot in table.metadata.snapshots:
        found.add(local(snapshot.manifest_list))
        for manifest in snapshot.manifests(table.io):
            found.add(local(manifest.manifest_path))
            found |= {local(each.data_file.file_path) for each in manifest.fetch_manifest_entry(table.io)}
    return found


def respell_data(table: Table, spelling: Spelling) -> None:
    """Name the data files in all manifests of a table by another spelling; manifest lists say the new sizes."""

    def change(row: Any) -> None:
        row["data_file"]["file_path"] = spelling(row["data_file"]["file_path"])

    for snapshot in table.metadata.snapshots:
        for manifest in snapshot.manifests(table.io):
            rewrite_avro(local(manifest.manifest_path), change)
    respell_manifests(table, lambda uri: uri)


def respell_manifests(table: Table, spelling: Spelling) -> None:
    """Name the manifests in all manifest lists of a table by another spelling."""

    def change(row: Any) -> None:
        path = local(row["manifest_path"])
        row["manifest_path"], row["manifest_length"] = spelling(row["manifest_path"]), path.stat().st_size

    for snapshot in table.metadata.snapshots:
        rewrite_avro(local(snapshot.manifest_list), change)


def respell_lists(table: Table, spelling: Spelling) -> None:
    """Name the manifest lists in the newest metadata file of a table by another spelling."""
    file = local(table.metadata_location)
    document = json.loads(file.read_bytes())
    for snapshot in document["snapshots"]:
        snapshot["manifest-list"] = spelling(snapshot["manifest-list"])
    file.write_text(json.dumps(document))


def respell_all(table: Table, spelling: Spelling) -> None:
    """Name all files of a table by another spelling, but for the metadata file."""
    respell_data(table, spelling)
    respell_manifests(table, spelling)
    respell_lists(table, spelling)


def rewrite_avro(file: Path, change: Callable[[Any], None]) -> None:
    """Change each row of an Avro file, and leave its schema, its columns and their numbers as they are."""
    with file.open("rb") as stream:
        reader = fastavro.reader(stream)
        header = {name: value for name, value in reader.metadata.items() if not name.startswith("avro.")}
        rows, schema = list(reader), reader.writer_schema
    for row in rows:
        change(row)
    out = io.BytesIO()
    fastavro.writer(out, schema, rows, metadata=header)
    file.write_bytes(out.getvalue())
