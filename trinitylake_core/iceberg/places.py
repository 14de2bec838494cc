"""Where tables lie and may be written, and how their metadata files are read and written."""

from __future__ import annotations

import gzip
import re
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from pyiceberg.exceptions import ForbiddenError, ValidationError
from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.table import TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import EMPTY_DICT, Properties
from pyiceberg.view.metadata import ViewMetadata

from trinitylake_core.errors import FileMissing, InvalidLocation, NotAFile
from trinitylake_core.iceberg import border
from trinitylake_core.iceberg.errors import MetadataMissing
from trinitylake_core.iceberg.reading import limits
from trinitylake_core.iceberg.reading.files import read_file
from trinitylake_core.iceberg.references import PACKED, WRITTEN_PATHS, UnreadableTable
from trinitylake_core.storage import Storage, open_storage, options_for
from trinitylake_core.storage.root_uris import refuse_credentials
from trinitylake_core.tables import (
    DIRECTORY,
    Located,
    base_uri,
    former_root,
    full_uri,
    here,
    is_below_by_link,
    path_below,
)
from trinitylake_core.tree.readahead import Cache

_UNREADABLE: Final = re.compile(r"[^A-Za-z0-9._-]")
_LABEL_MAX: Final = 80
_RECENT_BYTES: Final = 4 << 20


class Stored(NamedTuple):
    """The metadata of a table, and the location of their file."""

    metadata: TableMetadata
    metadata_location: str


class MovedIO(FileIO):
    """Reads the files of a table that came with its lakehouse from another root: where they lie now.

    The metadata keep the locations that they were written with, and so do position deletes, which name data files.
    """

    def __init__(self, files: FileIO, root: str, former: str) -> None:
        super().__init__(files.properties)
        self._files = files
        self._root = root
        self.former = former

    def new_input(self, location: str) -> InputFile:
        """Return a file for reading, by the location that the metadata name."""
        return self._files.new_input(here(self._root, location, self.former))

    def new_output(self, location: str) -> OutputFile:
        """Refuse to write: the table is written at the location in its metadata. Raises ``ForbiddenError``."""
        raise self.refusal(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Refuse to delete. Raises ``ForbiddenError``."""
        raise self.refusal(location if isinstance(location, str) else location.location)

    def refusal(self, what: str) -> ForbiddenError:
        """Return the error for what others than readers of this catalog want of the table."""
        return ForbiddenError(
            f"{what}: the table was written below {self.former} and came here with its lakehouse, so its metadata name "
            f"files there. PyIceberg's catalog at {self._root} reads it; to write it, and for other engines, export "
            "the lakehouse with its tables back to that root"
        )


class Places:
    """The locations of one catalog: below the root, and below its warehouse where it has one.

    Metadata files below the root go through the storage of the lakehouse, so that they are durable before the root
    that names them appears, and so that requests are retried and counted like all others. No name that is made here
    is one of the format (section 2): ``clean`` considers none of them.
    """

    def __init__(self, storage: Storage, warehouse: str | None, options: Properties = EMPTY_DICT) -> None:
        """``options`` are those of the catalog: what they say about a FileIO counts for all files outside the root."""
        if warehouse is not None:
            refuse_credentials(warehouse, "warehouse")
        self.storage = storage
        self._located = Located(storage)
        self._options = options
        self.base = base_uri(storage.root)
        self.warehouse = None if warehouse is None else full_uri(warehouse).rstrip("/") + "/"
        self._recent: Cache[TableMetadata] | None = None
        self.serves_clients = False

    def new_location(self, namespace: str, name: str, parent: str | None = None) -> str:
        """Return a location for a new table that no other table has, nor had: files of two never mix.

        ``parent`` is the ``location`` of the namespace, if it has one.
        """
        directory = (
            parent.rstrip("/") if parent else f"{self.warehouse or f'{self.base}{DIRECTORY}'}{_label(namespace)}"
        )
        return f"{directory}/{_label(name)}-{uuid.uuid4().hex[:12]}"

    def new_metadata_file(self, metadata: TableMetadata, number: int = 0) -> str:
        """Return the location of a new metadata file of a table: always computed here, whatever its properties name."""
        directory = metadata.properties.get(TableProperties.WRITE_METADATA_PATH)
        directory = directory or f"{metadata.location.rstrip('/')}/metadata"
        return f"{directory.rstrip('/')}/{number:05d}-{uuid.uuid4()}.metadata.json"

    def file_io(self, location: str) -> FileIO:
        """Return what reads and writes at a location, by the options of the catalog. No request.

        Raises ``InvalidLocation``.
        """
        return border.file_io(self._options, location)

    def check(self, metadata: TableMetadata, location: str, current: Stored | None = None) -> None:
        """Refuse a table of which a part would be written where this catalog may not write.

        That is below the root or the warehouse, or where an EXTERNAL table is already. A MANAGED one that says that it
        is elsewhere was copied with its lakehouse: the original writes there. Raises ``ForbiddenError``,
        ``InvalidLocation``.
        """
        known: list[str] = []
        if current is not None and path_below(self.storage.root, current.metadata_location) is None:
            old, at = current.metadata, current.metadata_location
            known = [old.location, at.rpartition("/")[0], *_written_paths(old)]
        self.refuse_outside([metadata.location, location, *_written_paths(metadata)], known)

    def refuse_outside(self, locations: Sequence[str], known: Sequence[str] = ()) -> None:
        """Refuse locations that are not below the root, the warehouse or ``known``. Raises as :meth:`check`."""
        allowed = self._allowed(known)
        for each in locations:
            refuse_credentials(each, "location")
            uri = full_uri(each).rstrip("/") + "/"
            if ".." in uri.split("/"):
                raise InvalidLocation(f"location {each!r} has a '..' segment, so it may lead anywhere")
            if not uri.startswith(allowed) and not is_below_by_link(self.storage.root, uri):
                raise ForbiddenError(
                    f"location {each!r} is outside what this catalog may write: {' and '.join(allowed)}; leave the "
                    "location out, set the catalog's property 'warehouse', or register a table that lies elsewhere"
                )

    def _allowed(self, known: Iterable[str]) -> tuple[str, ...]:
        places = [self.base, *([self.warehouse] if self.warehouse else [])]
        return (*places, *(full_uri(each).rstrip("/") + "/" for each in known))

    def moved(self, files: FileIO, metadata: TableMetadata, location: str) -> FileIO:
        """Return the FileIO of a table: ``files``, but for one that came here with its lakehouse."""
        if path_below(self.storage.root, location) is None:
            return files
        former = former_root(self.storage.root, location, metadata.location)
        return MovedIO(files, self.storage.root, former) if former else files

    def serve_clients(self) -> None:
        """Hold the metadata that were written lately, so that the next commit to their table reads no file.

        From now on :meth:`refuse_local` also refuses manifests that a commit names.
        """
        self._recent, self.serves_clients = Cache(_RECENT_BYTES), True

    def refuse_local(self, location: str, known: Iterable[str] = ()) -> None:
        """Refuse to read a file of this machine for a client, but below the root, the warehouse or ``known``.

        Raises ``ForbiddenError``.
        """
        uri = full_uri(location)
        is_local = "://" not in uri or uri.startswith("file:")
        if is_local and (not uri.startswith(self._allowed(known)) or ".." in uri.split("/")):
            raise ForbiddenError(f"{location!r} is not a place from which this endpoint reads files")

    def base_of_commit(self, location: str) -> TableMetadata:
        """Return the table metadata at a location, to commit on top of them. One ``get``, none if they are held.

        Raises as :meth:`read`.
        """
        held = None if self._recent is None else self._recent.held(location)
        return self.read(location) if held is None else held

    def read(self, location: str) -> TableMetadata:
        """Return the table metadata at a location. One ``get``.

        Raises:
            FileNotFoundError: there is no such file.
            ValidationError: it is not table metadata.
        """
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
        """Write metadata to a new file. One ``put``. Return its path, if it is below the root."""
        data = border.as_json(metadata).encode()
        data = gzip.compress(data) if location.endswith(PACKED) else data
        path = path_below(self.storage.root, location)
        if path is not None:
            self.storage.write_many([(path, data)])
        elif self._is_of_storage(location):
            directory, _, name = full_uri(location).removeprefix("file://").rpartition("/")
            uri = Path(directory).as_uri()
            open_storage(uri, options_for(uri, *self.storage.spec())).write_many([(name, data)])
        else:
            with self.file_io(location).new_output(location).create(overwrite=True) as stream:
                stream.write(data)
        if path is not None and self._recent is not None and not isinstance(metadata, ViewMetadata):
            self._recent.hold(location, metadata, len(data))
        return path

    def _is_of_storage(self, location: str) -> bool:
        """Whether the lakehouse's own storage, or this machine's disk, has a file; a FileIO reads all others."""
        return path_below(self.storage.root, location) is not None or full_uri(location).startswith("file:")

    def full(self, stored: str) -> str:
        """Return the location that a definition names by a path below the root, or by a URI."""
        return stored if full_uri(stored) != stored or "://" in stored else f"{self.base}{stored}"

    def stored(self, location: str) -> tuple[str, str]:
        """Return table type and ``metadata_location`` as a definition has them: a path, or a full URI outside."""
        path = path_below(self.storage.root, location)
        return ("EXTERNAL", full_uri(location)) if path is None else ("MANAGED", path)


def _written_paths(metadata: TableMetadata) -> list[str]:
    properties: dict[str, Any] = metadata.properties
    return [properties[name] for name in WRITTEN_PATHS if properties.get(name)]


def _label(name: str) -> str:
    """Return a name for people as one segment of a path."""
    label = _UNREADABLE.sub("_", name)[:_LABEL_MAX]
    return label if label.strip(".") else label.replace(".", "_")
