"""The metadata files of one catalog: how they are read and written, below the root and elsewhere."""

from __future__ import annotations

import gzip
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from pyiceberg.exceptions import ValidationError
from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import EMPTY_DICT, Properties
from pyiceberg.view.metadata import ViewMetadata

from trinitylake_core.errors import CannotHold, FileMissing, NotAFile, StorageError
from trinitylake_core.file_identity import LocalLinks
from trinitylake_core.iceberg import border
from trinitylake_core.iceberg.errors import MetadataMissing, TableForbidden
from trinitylake_core.iceberg.reading import limits
from trinitylake_core.iceberg.reading.files import read_file
from trinitylake_core.iceberg.reading.references import PACKED, UnreadableTable
from trinitylake_core.iceberg.rights.locations import (
    METADATA_PATH,
    Locations,
    Place,
    directories_of,
    files_of,
    refuse_ambiguous,
)
from trinitylake_core.iceberg.rights.moved import MovedIO
from trinitylake_core.storage import Storage
from trinitylake_core.storage.disk_opening import make_directories
from trinitylake_core.storage.root_uris import local_path
from trinitylake_core.table_places import ALLOWED_LOCATIONS as OPTION
from trinitylake_core.table_places import Located, TablePlaces
from trinitylake_core.tables import as_directory, former_root, full_uri, own_directory, path_below
from trinitylake_core.tree.readahead import Cache

_CODEC: Final = "write.metadata.compression-codec"
_RECENT_BYTES: Final = 4 << 20


class Stored(NamedTuple):
    """The metadata of a table, and the location of their file."""

    metadata: TableMetadata
    metadata_location: str


class MetadataFiles:
    """Where the metadata files of one catalog are, and what tables and views may name.

    Metadata files below the root go through the storage of the lakehouse, so that they are durable before the root
    that names them appears, and so that requests are retried and counted like all others. No name that is made here
    is one of the format (section 2): ``clean`` considers none of them.
    """

    def __init__(self, storage: Storage, locations: Locations, options: Properties = EMPTY_DICT) -> None:
        """``options`` are those of the catalog: what they say about a FileIO counts for all files outside the root."""
        self.storage = storage
        self.locations = locations
        self.base = locations.base
        self._located = Located(storage, allowed=locations.prefixes)
        self._options = options
        self._recent: Cache[TableMetadata] | None = None

    @property
    def serves_clients(self) -> bool:
        """Whether others than the operator choose places and files."""
        return self.locations.is_strict

    def serve_clients(self) -> None:
        """Hold the metadata that were written lately, so that the next commit to their table reads no file.

        From now on only allowed places are read and written, and the own directories of tables.
        """
        self._recent = Cache(_RECENT_BYTES)
        self.locations.serve_clients()

    # -- what metadata may name ----------------------------------------------------------------

    def directories_of(self, metadata: TableMetadata | ViewMetadata, file: str | None = None) -> Iterator[Place]:
        """Yield the directories that a table or a view has with metadata: those that they name, and its own one.

        Its own one is that of their ``file``, or else of the next one: it may be above all that they name.
        """
        yield from directories_of(metadata)
        own = self.own_directory(file or self.new_metadata_file(metadata))
        if own is not None:
            yield Place("the directory that is its own by the new metadata file", own)

    def refuse_new(self, metadata: TableMetadata, own: Iterable[str]) -> list[str]:
        """Refuse metadata of a new table that name a place outside ``own`` directories and what is allowed.

        Return the directories that no other table may have. Raises as ``Locations.shared_ground``.
        """
        found = self.locations.new_ground([*self.directories_of(metadata), *files_of(metadata)], own)
        self._refuse_apart(metadata)
        return found

    def _refuse_apart(self, metadata: TableMetadata, before: TableMetadata | None = None) -> None:
        """Refuse to clients to lead metadata to a place by which jobs would not know the location of the table.

        A job finds the places of a table by its newest metadata file, so both ask the same. Raises ``TableForbidden``.
        """
        directory = metadata.properties.get(METADATA_PATH)
        known = None if before is None else before.properties.get(METADATA_PATH)
        if not self.serves_clients or not directory or directory == known:
            return
        file = self.new_metadata_file(metadata)
        places = TablePlaces.of(self.storage, file)
        if places.prefix_of(f"{metadata.location.rstrip('/')}/data") is None:
            raise TableForbidden(
                f"the property {METADATA_PATH!r} leads metadata to a place that does not hold the location of the "
                "table: maintenance opens the files of a table in the directory of its metadata only. Leave it out, or "
                f"have the operator allow the location for this directory (storage option {OPTION})"
            )

    def refuse_ambiguous(self, metadata: TableMetadata) -> None:
        """Refuse metadata that name a place which may be any. Raises ``ValidationError``, ``InvalidLocation``."""
        for place in (*directories_of(metadata), *files_of(metadata)):
            refuse_ambiguous(place)

    def refuse_new_view(self, metadata: ViewMetadata, own: Iterable[str]) -> list[str]:
        """Refuse a new view that names a place outside ``own`` directories and what is allowed: see `refuse_new`."""
        return self.locations.new_ground(self.directories_of(metadata), own)

    def refuse_registered_view(self, metadata: ViewMetadata, own: Iterable[str]) -> list[str]:
        """Refuse a view that is registered and names a place that it may not; the operator's may be anywhere."""
        if self.serves_clients:
            return self.refuse_new_view(metadata, own)
        for place in directories_of(metadata):
            refuse_ambiguous(place)
        return []

    def refuse_change(self, new: Stored, current: Stored) -> list[str]:
        """Refuse a place that metadata name anew: what the current metadata name stays as it is.

        That is outside what is allowed, and outside the table's own directory. An EXTERNAL table may also be where it
        is already. A MANAGED one that says that it is elsewhere was copied with its lakehouse: the original writes
        there.

        Return the directories that no other table may have. Raises as ``Locations.shared_ground``.
        """
        own = self._directories_of_current(current)
        known = {current.metadata_location}
        for before in (*directories_of(current.metadata), *files_of(current.metadata)):
            known.add(before.location)
        named = [Place("the new metadata file", new.metadata_location)]
        for place in (*self.directories_of(*new), *files_of(new.metadata)):
            if place.location not in known:
                named.append(place)
        found = self.locations.shared_ground(named, own)
        self._refuse_apart(new.metadata, current.metadata)
        return found

    def _directories_of_current(self, current: Stored) -> list[str]:
        """Return the directories in which a table that is here already may name any place."""
        directory, _, _ = current.metadata_location.rpartition("/")
        found = [directory]
        own = self.own_directory(current.metadata_location)
        if own is not None:
            found.append(own)
        if path_below(self.storage.root, current.metadata_location) is None:
            found += [each.location for each in directories_of(current.metadata)]
        return found

    def make_directory(self, metadata_location: str) -> None:
        """Make the directory of a metadata file, on a disk: DuckDB writes there before it creates a staged table.

        Object stores have no directories. Raises ``StorageError``, and ``ValidationError`` for a link on the way.
        """
        if not full_uri(metadata_location).startswith("file:"):
            return
        storage, path = self._located.find(metadata_location)
        root = local_path(storage.root)
        directory, _, _ = path.rpartition("/")
        try:
            Path(root).mkdir(parents=True, exist_ok=True)
            make_directories(root, directory)
        except NotAFile as error:
            raise _unwritable(metadata_location, error) from None
        except OSError as error:
            raise StorageError(f"the directory of a new table cannot be made: {error.strerror}") from None

    def own_directory(self, metadata_location: str) -> str | None:
        """Return the directory of a table or a view by one of its metadata files; ``None`` where others share it."""
        return own_directory(self.storage.root, metadata_location)

    def refuse_added(self, uris: Iterable[str], own: TablePlaces) -> list[str]:
        """Refuse files that a client adds, outside the places of its table and what is allowed. No request.

        Links of this machine's disk are followed: what they lead to is in the directory of another table, too.
        Return one file, as a directory, of each directory that is not the table's own: it may lie in no other table's.
        Raises as ``Locations.shared_ground``.
        """
        files = [Place(f"the file {full_uri(uri)}", uri) for uri in uris]
        one_of_each: dict[str, str] = {}
        links = LocalLinks()
        for file in self.locations.shared_ground(files, own.prefixes, own.shared):
            real = links.target(file.rstrip("/")) or file
            for each in (file, as_directory(real)):
                directory, _, _ = each.rstrip("/").rpartition("/")
                one_of_each[directory] = each
        return list(one_of_each.values())

    # -- files ---------------------------------------------------------------------------------

    def new_metadata_file(self, metadata: TableMetadata | ViewMetadata, number: int = 0) -> str:
        """Return the location of a new metadata file: always computed here, whatever the properties name."""
        directory = metadata.properties.get(METADATA_PATH) or f"{metadata.location.rstrip('/')}/metadata"
        is_packed = metadata.properties.get(_CODEC, "none").lower() == "gzip"
        ending = PACKED if is_packed else ".metadata.json"
        return f"{directory.rstrip('/')}/{number:05d}-{uuid.uuid4()}{ending}"

    def file_io(self, location: str) -> FileIO:
        """Return what reads and writes at a location, by the options of the catalog. No request.

        Raises ``InvalidLocation``.
        """
        return border.file_io(self._options, location)

    def file_io_of(self, table: Stored) -> FileIO:
        """Return the FileIO of a table; that of one that came here with its lakehouse reads only. No request."""
        files = self.file_io(table.metadata_location)
        former = self.former_root(table)
        return MovedIO(files, self.storage.root, former) if former else files

    def former_root(self, table: Stored) -> str:
        """Return the root below which a table was written that came with its lakehouse; empty for all others."""
        if path_below(self.storage.root, table.metadata_location) is None:
            return ""
        return former_root(self.storage.root, table.metadata_location, table.metadata.location)

    def base_of_commit(self, location: str) -> TableMetadata:
        """Return the table metadata at a location, to commit on top of them. One ``get``, none if they are held.

        Raises as :meth:`read`.
        """
        held = None if self._recent is None else self._recent.held(location)
        return self.read(location) if held is None else held

    def read(self, location: str) -> TableMetadata:
        """Return the table metadata at a location, without properties that name code. One ``get``.

        Raises:
            MetadataMissing: there is no such file.
            ValidationError: it is not table metadata.
        """
        return border.without_code(self.read_as_written(location))

    def read_as_written(self, location: str) -> TableMetadata:
        """Return the table metadata at a location, also with properties that name code. As :meth:`read`."""
        return border.table_metadata(self.content(location), location)

    def content(self, location: str) -> bytes:
        """Return the content of a metadata file. One ``get``.

        Raises:
            MetadataMissing: there is no such file.
            ValidationError: something else is there, or it is larger than such a file may be.
            InvalidLocation: it is no place where a file can be, or a scheme that this catalog does not read.
        """
        try:
            if self._is_of_storage(location):
                storage, path = self._located.find(location)
                return read_file(storage, path, location)
            with self.file_io(location).new_input(location).open() as stream:
                return stream.read(limits.METADATA_BYTES + 1)
        except (FileMissing, FileNotFoundError):
            raise MetadataMissing(
                f"metadata file {location} is missing: an engine may have expired it; look at an older version, "
                "or roll back or restore the table"
            ) from None
        except (NotAFile, UnreadableTable) as error:
            raise ValidationError(f"{location} cannot be read: {error}") from None

    def write(self, metadata: TableMetadata | ViewMetadata, location: str) -> str | None:
        """Write metadata to a new file. One ``put``. Return its path, if it is below the root.

        Raises ``ValidationError``: a link or a file is in the way, or a number in them is too large.
        """
        text = border.as_json(metadata)
        border.refuse_large_numbers(text)
        plain = text.encode()
        data = gzip.compress(plain) if location.endswith(PACKED) else plain
        path = path_below(self.storage.root, location)
        try:
            if path is None:
                self._write_elsewhere(data, location)
                return None
            self.storage.write_many([(path, data)])
        except (CannotHold, NotAFile) as error:
            raise _unwritable(location, error) from None
        if self._recent is not None and not isinstance(metadata, ViewMetadata):
            self._recent.hold(location, metadata, len(plain))
        return path

    def _write_elsewhere(self, data: bytes, location: str) -> None:
        if self._is_of_storage(location):
            storage, path = self._located.find(location)
            storage.write_many([(path, data)])
            return
        with self.file_io(location).new_output(location).create(overwrite=True) as stream:
            stream.write(data)

    def _is_of_storage(self, location: str) -> bool:
        """Whether the lakehouse's own storage, or this machine's disk, has a file; a FileIO reads all others."""
        return path_below(self.storage.root, location) is not None or full_uri(location).startswith("file:")

    # -- how definitions name them -------------------------------------------------------------

    def full(self, stored: str) -> str:
        """Return the location that a definition names by a path below the root, or by a URI."""
        is_full = full_uri(stored) != stored or "://" in stored
        return stored if is_full else f"{self.base}{stored}"

    def type_and_location(self, location: str) -> tuple[str, str]:
        """Return table type and ``metadata_location`` as a definition has them: a path, or a full URI outside."""
        path = path_below(self.storage.root, location)
        return ("EXTERNAL", full_uri(location)) if path is None else ("MANAGED", path)


def _unwritable(location: str, error: Exception) -> ValidationError:
    """Return the refusal of a place where a link or a file is in the way, or whose name no disk takes."""
    return ValidationError(f"{location} cannot be written: {error}; choose another place")
