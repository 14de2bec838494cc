"""The files of a rewrite: data files that are replaced, and those in their place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trinitylake_core.iceberg import border
from trinitylake_core.tables import full_uri


@dataclass(frozen=True, eq=False)
class DataFile:
    """A data file of a table.

    Attributes:
        entry: the file as PyIceberg knows it, with the figures of its columns.
        uri: its location in one spelling.
    """

    entry: Any
    uri: str

    @classmethod
    def of(cls, entry: Any) -> DataFile:
        """Return a file of which an entry of a manifest tells."""
        return cls(entry, full_uri(entry.file_path))

    @property
    def size(self) -> int:
        """Its size in bytes, by its manifest."""
        return int(self.entry.file_size_in_bytes)

    @property
    def rows(self) -> int:
        """Its rows, by its manifest."""
        return int(self.entry.record_count)

    @property
    def group(self) -> tuple[int, Any]:
        """Its partition spec and partition, which can be compared."""
        return self.entry.spec_id, self.entry.partition

    def replaced_by(self, location: str, size: int, figures: Mapping[str, Any]) -> DataFile:
        """Return a new Parquet file of the same partition."""
        return DataFile.of(border.new_data_file(location, size, self.entry.spec_id, self.entry.partition, figures))


@dataclass(frozen=True, eq=False)
class FileRewrite:
    """What replaces which files of one table.

    Attributes:
        uuid: the identity of the table.
        snapshot_id: the snapshot that was read.
        replaced: the files that go.
        added: those in their place, which are stored.
        delete_files: the URIs of the delete files that were there: the rewrite knows of no others.
        facts: for the summary of the snapshot.
    """

    uuid: str
    snapshot_id: int
    replaced: tuple[DataFile, ...]
    added: tuple[DataFile, ...]
    delete_files: frozenset[str] = frozenset()
    facts: Mapping[str, str] = field(default_factory=dict)
