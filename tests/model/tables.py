"""The judge of Iceberg tables: metadata as JSON, manifests by fastavro, rows by DuckDB; deletes it applies itself."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import fastavro

Row = tuple[tuple[int, Any], ...]
"""The values of a row that are not NULL, by their field IDs."""
Rows = Counter[Row]
DELETED, DATA, POSITIONS, EQUALITY = 2, 0, 1, 2


@dataclass(frozen=True)
class State:
    """What a metadata file says of a table.

    Attributes:
        uuid: of the table.
        current: the rows of its current snapshot.
        refs: the rows of each branch and tag but ``main``.
        columns: name and field ID of each column.
        snapshots: the IDs of all snapshots.
    """

    uuid: str
    current: Rows
    refs: dict[str, Rows]
    columns: dict[str, int]
    snapshots: frozenset[int]


def path_of(uri: str) -> str:
    """Return the path of a file on this disk."""
    assert uri.startswith(("file:///", "/")), f"{uri} is not absolute"
    return uri.removeprefix("file://")


def path_of_metadata(location: str) -> str:
    """Return the path of a metadata file, absolute or below the root of the lakehouse."""
    return location.removeprefix("file://")


@dataclass
class TableJudge:
    """Reads tables; files are read once, because they never change."""

    root: Path
    """Where the lakehouse lies: a definition may name metadata by a path below it."""
    states: dict[str, State] = field(default_factory=dict)
    """What the model says of each metadata file."""
    _snapshots: dict[str, Rows] = field(default_factory=dict)
    _files: dict[str, dict[int, Row]] = field(default_factory=dict)
    _duck: duckdb.DuckDBPyConnection = field(default_factory=duckdb.connect)

    def read(self, location: str) -> State:
        """Return what is there."""
        metadata = json.loads((self.root / path_of_metadata(location)).read_bytes())
        snapshots = {each["snapshot-id"]: each for each in metadata.get("snapshots", [])}
        current = metadata.get("current-snapshot-id", -1)
        refs = {name: ref["snapshot-id"] for name, ref in metadata.get("refs", {}).items()}
        assert refs.get("main", current) == current, f"{location}: main is not the current snapshot"
        schemas = metadata.get("schemas") or [metadata["schema"]]
        schema = next(s for s in schemas if s.get("schema-id", 0) == metadata.get("current-schema-id", 0))
        return State(
            metadata["table-uuid"],
            self.rows(snapshots[current]) if current in snapshots else Counter(),
            {name: self.rows(snapshots[of]) for name, of in refs.items() if name != "main"},
            {each["name"]: each["id"] for each in schema["fields"]},
            frozenset(snapshots),
        )

    def rows(self, snapshot: dict[str, Any]) -> Rows:
        """Return the rows of a snapshot."""
        listed = snapshot["manifest-list"]
        if listed not in self._snapshots:
            data, positions = [], {}
            for entry in self._entries(listed):
                file = entry["data_file"]
                content = file.get("content") or DATA
                assert content != EQUALITY, "an equality delete, which no operation writes"
                if content == DATA:
                    data.append(file)
                else:
                    positions |= {path: positions.get(path, set()) | at for path, at in self._deletes(file).items()}
            found: Rows = Counter()
            for file in data:
                rows = self._file(file["file_path"])
                assert len(rows) == file["record_count"], f"{file['file_path']}: {len(rows)} rows"
                gone = positions.get(file["file_path"], set())
                found.update(row for at, row in rows.items() if at not in gone)
            self._snapshots[listed] = found
        return self._snapshots[listed]

    @staticmethod
    def _avro(uri: str) -> Iterator[Any]:
        return fastavro.reader(io.BytesIO(Path(path_of(uri)).read_bytes()))

    def _entries(self, listed: str) -> Iterator[Any]:
        for manifest in self._avro(listed):
            for entry in self._avro(manifest["manifest_path"]):
                if entry["status"] != DELETED:
                    yield entry

    def _deletes(self, file: dict[str, Any]) -> dict[str, set[int]]:
        assert file["file_format"].upper() == "PARQUET", "a deletion vector, which no operation writes yet"
        found: dict[str, set[int]] = {}
        sql = "SELECT file_path, pos FROM read_parquet(?)"
        for path, at in self._duck.execute(sql, [path_of(file["file_path"])]).fetchall():
            found.setdefault(path, set()).add(at)
        return found

    def _file(self, uri: str) -> dict[int, Row]:
        """Return the rows of a data file, by their positions."""
        if uri not in self._files:
            path = path_of(uri)
            fields = self._duck.execute("SELECT name, field_id FROM parquet_schema(?)", [path]).fetchall()
            ids = {name: number for name, number in fields if number is not None}
            cursor = self._duck.execute("SELECT * FROM read_parquet(?, file_row_number=true)", [path])
            names = [each[0] for each in cursor.description or []]
            rows = {}
            for values in cursor.fetchall():
                by_name = dict(zip(names, values, strict=True))
                at = by_name.pop("file_row_number")
                pairs = ((ids[name], value) for name, value in by_name.items() if value is not None)
                rows[at] = tuple(sorted(pairs))
            self._files[uri] = rows
        return self._files[uri]

    def needed(self, location: str) -> set[str]:
        """Return the paths of all files that a metadata file names, and its own."""
        metadata = json.loads((self.root / path_of_metadata(location)).read_bytes())
        found = {str(self.root / path_of_metadata(location))}
        for snapshot in metadata.get("snapshots", []):
            found.add(snapshot["manifest-list"])
            for manifest in self._avro(snapshot["manifest-list"]):
                found.add(manifest["manifest_path"])
            found.update(entry["data_file"]["file_path"] for entry in self._entries(snapshot["manifest-list"]))
        found.update(each["statistics-path"] for each in metadata.get("statistics", []))
        return {path_of(each) for each in found}


def describe(rows: Rows) -> str:
    """Return a few rows."""
    return f"{sum(rows.values())} rows, {sorted(map(str, rows))[:3]}"


Expectation = Callable[[State], State]
