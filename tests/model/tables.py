"""The judge of Iceberg tables: metadata as JSON, manifests by fastavro, rows by DuckDB; deletes it applies itself.

Rows of format version 3 have `_row_id` and `_last_updated_sequence_number` as fields, so they are compared as all are.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import duckdb
import fastavro
import pyroaring

Row = tuple[tuple[int, Any], ...]
"""The values of a row that are not NULL, by their field IDs."""
Rows = Counter[Row]
DELETED, DATA, POSITIONS, EQUALITY = 2, 0, 1, 2
ROW_ID: Final = 2_147_483_540
"""The field ID of `_row_id`, which the format reserves."""
UPDATED: Final = 2_147_483_539
"""That of `_last_updated_sequence_number`."""
_VECTOR: Final = 8
"""Bytes before the bitmap of a deletion vector: its length and a magic number."""
_CHECKSUM: Final = 4
"""Bytes after it."""


@dataclass(frozen=True)
class State:
    """What a metadata file says of a table.

    Attributes:
        uuid: of the table.
        current: the rows of its current snapshot.
        refs: the rows of each branch and tag but ``main``.
        columns: name and field ID of each column.
        snapshots: the IDs of all snapshots.
        version: of the format.
        next_row: the ID of the next row, in version 3.
        sequence: the last sequence number.
        has_equality: whether rows are deleted by equality in the current snapshot.
        files: how many data files that has.
    """

    uuid: str
    current: Rows
    refs: dict[str, Rows]
    columns: dict[str, int]
    snapshots: frozenset[int]
    version: int = 2
    next_row: int = 0
    sequence: int = 0
    has_equality: bool = False
    files: int = 0


@dataclass(frozen=True)
class Entry:
    """A file of a snapshot: its row in the manifest, its sequence number, and the ID of its first row in version 3."""

    file: dict[str, Any]
    sequence: int
    first_row: int | None

    @property
    def content(self) -> int:
        """Return what it holds: data or deletes."""
        return int(self.file.get("content") or DATA)


def path_of(uri: str) -> str:
    """Return the path of a file on this disk; Spark writes one slash where others write three."""
    assert uri.startswith(("file:/", "/")), f"{uri} is not absolute"
    return "/" + uri.removeprefix("file:").lstrip("/")


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
        contents = Counter[int]()
        if current in snapshots:
            contents.update(entry.content for entry in self._entries(snapshots[current]["manifest-list"]))
        found = State(
            metadata["table-uuid"],
            self.rows(snapshots[current]) if current in snapshots else Counter(),
            {name: self.rows(snapshots[of]) for name, of in refs.items() if name != "main"},
            {each["name"]: each["id"] for each in schema["fields"]},
            frozenset(snapshots),
            metadata["format-version"],
            metadata.get("next-row-id", 0),
            metadata.get("last-sequence-number", 0),
            contents[EQUALITY] > 0,
            contents[DATA],
        )
        refuse_wrong_lineage(location, found)
        return found

    def rows(self, snapshot: dict[str, Any]) -> Rows:
        """Return the rows of a snapshot."""
        listed = snapshot["manifest-list"]
        if listed not in self._snapshots:
            data: list[Entry] = []
            positions: dict[str, set[int]] = {}
            equal: list[Entry] = []
            for entry in self._entries(listed):
                if entry.content == DATA:
                    data.append(entry)
                elif entry.content == EQUALITY:
                    equal.append(entry)
                else:
                    for path, at in self._positions(entry.file).items():
                        positions[path] = positions.get(path, set()) | at
            found: Rows = Counter()
            for entry in data:
                found.update(self._rows_of(entry, positions.get(path_of(entry.file["file_path"]), set()), equal))
            self._snapshots[listed] = found
        return self._snapshots[listed]

    def _rows_of(self, entry: Entry, gone: set[int], equal: list[Entry]) -> Iterator[Row]:
        """Yield the rows of a data file that no delete removes, in version 3 with their lineage."""
        path = entry.file["file_path"]
        rows = self._file(path)
        assert len(rows) == entry.file["record_count"], f"{path}: {len(rows)} rows"
        deleted = []
        for delete in equal:
            if delete.sequence > entry.sequence:
                ids = frozenset(delete.file["equality_ids"])
                deleted.append((ids, set(self._file(delete.file["file_path"]).values())))
        for at, row in rows.items():
            if at in gone or any(_only(row, ids) in values for ids, values in deleted):
                continue
            if entry.first_row is None:
                yield row
            else:
                lineage = {ROW_ID: entry.first_row + at, UPDATED: entry.sequence}
                yield tuple(sorted({**lineage, **dict(row)}.items()))

    @staticmethod
    def _avro(uri: str) -> Iterator[Any]:
        return fastavro.reader(io.BytesIO(Path(path_of(uri)).read_bytes()))

    def _entries(self, listed: str) -> Iterator[Entry]:
        """Yield the files of a snapshot, with what they inherit from the manifest list."""
        for manifest in self._avro(listed):
            next_row = manifest.get("first_row_id")
            for entry in self._avro(manifest["manifest_path"]):
                if entry["status"] == DELETED:
                    continue
                file = entry["data_file"]
                sequence = entry.get("sequence_number")
                if sequence is None:
                    sequence = manifest.get("sequence_number") or 0
                first_row = file.get("first_row_id")
                if first_row is None and next_row is not None and not file.get("content"):
                    first_row = next_row
                    next_row += file["record_count"]
                yield Entry(file, sequence, first_row)

    def _positions(self, file: dict[str, Any]) -> dict[str, set[int]]:
        """Return the positions that a delete file or a deletion vector names, by data file."""
        if file["file_format"].upper() == "PUFFIN":
            start, size = file["content_offset"], file["content_size_in_bytes"]
            blob = Path(path_of(file["file_path"])).read_bytes()[start : start + size]
            return {
                path_of(file["referenced_data_file"]): set(pyroaring.BitMap64.deserialize(blob[_VECTOR:-_CHECKSUM]))
            }
        found: dict[str, set[int]] = {}
        sql = "SELECT file_path, pos FROM read_parquet(?)"
        for path, at in self._duck.execute(sql, [path_of(file["file_path"])]).fetchall():
            found.setdefault(path_of(path), set()).add(at)
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
            found.update(entry.file["file_path"] for entry in self._entries(snapshot["manifest-list"]))
        found.update(each["statistics-path"] for each in metadata.get("statistics", []))
        return {path_of(each) for each in found}


def _only(row: Row, ids: frozenset[int]) -> Row:
    return tuple(pair for pair in row if pair[0] in ids)


def refuse_wrong_lineage(location: str, state: State) -> None:
    """Fail if an ID of a row is there twice, or is one that a later row will get."""
    for rows in (state.current, *state.refs.values()):
        numbers = [dict(row).get(ROW_ID) for row in rows.elements()]
        known = [each for each in numbers if each is not None]
        assert state.version < 3 or len(known) == len(numbers), f"{location}: rows without an ID"
        assert len(known) == len(set(known)), f"{location}: two rows have one ID"
        assert max(known, default=-1) < state.next_row or not known, f"{location}: the next row gets a used ID"


def describe(rows: Rows) -> str:
    """Return a few rows."""
    return f"{sum(rows.values())} rows, {sorted(map(str, rows))[:3]}"


Expectation = Callable[[State], State]
