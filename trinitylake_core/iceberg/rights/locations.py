"""Which places a table or a view may name: its own directory, and prefixes that the operator allowed.

A right on a name is a right on these places and no others. The metadata of a table name a directory, directories in
properties, and files; each of them is compared with the places before anything is written or read there.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple
from urllib.parse import unquote

from pyiceberg.exceptions import ValidationError
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.view.metadata import ViewMetadata

from trinitylake_core.errors import InvalidLocation
from trinitylake_core.grounds import canonical, named_places
from trinitylake_core.iceberg.errors import TableForbidden
from trinitylake_core.iceberg.names import CatalogName
from trinitylake_core.storage.root_uris import refuse_credentials
from trinitylake_core.tables import DIRECTORY, as_directory, base_uri, full_uri

METADATA_PATH: Final = "write.metadata.path"
"""The property of a table or a view that names the directory of its metadata files."""
_UNREADABLE: Final = re.compile(r"[^A-Za-z0-9._-]")
_MADE_HERE: Final = re.compile(r"([^/]+)/([^/]+)-[0-9a-f]{12}/")
_LABEL_MAX: Final = 80
_DIGEST_DIGITS: Final = 16


class Place(NamedTuple):
    """A location, and what names it: words for people."""

    what: str
    location: str


def directories_of(metadata: TableMetadata | ViewMetadata) -> Iterator[Place]:
    """Yield the directories that metadata name: where files of the table or view are, and where new ones will be."""
    yield Place("the location", metadata.location)
    yield from directories_in(metadata.properties)


def directories_in(properties: Mapping[str, str]) -> Iterator[Place]:
    """Yield the directories that properties name."""
    for name, value in named_places(properties):
        yield Place(f"the property {name!r}", value)


def files_of(metadata: TableMetadata) -> Iterator[Place]:
    """Yield the files that table metadata name themselves: all but those in manifest lists and manifests."""
    for snapshot in metadata.snapshots:
        yield Place(f"the manifest list of snapshot {snapshot.snapshot_id}", snapshot.manifest_list)
    for statistics in metadata.statistics:
        yield Place(f"the statistics of snapshot {statistics.snapshot_id}", statistics.statistics_path)
    for partitions in metadata.partition_statistics:
        yield Place(f"the partition statistics of snapshot {partitions.snapshot_id}", partitions.statistics_path)
    for number, entry in enumerate(metadata.metadata_log):
        yield Place(f"entry {number} of the metadata log", entry.metadata_file)


class Locations:
    """The places of one catalog.

    Args:
        root: the root of the lakehouse.
        warehouse: where new tables lie, if not below the root.
        allowed: further prefixes, in which tables may name any place.
    """

    def __init__(self, root: str, warehouse: str | None = None, allowed: Sequence[str] = ()) -> None:
        for each in (warehouse, *allowed):
            if each is not None:
                refuse_credentials(each, "warehouse")
        self._root = root
        self.base = base_uri(root)
        self.warehouse = None if warehouse is None else as_directory(warehouse)
        self.prefixes = (self.base, *([self.warehouse] if self.warehouse else []), *map(as_directory, allowed))
        self.is_strict = False

    def serve_clients(self) -> None:
        """From now on others than the operator choose places: a table may no longer be anywhere below the root."""
        self.prefixes = tuple(each for each in self.prefixes if each != self.base)
        self.is_strict = True

    # -- new places ----------------------------------------------------------------------------

    def new_directory(self, name: CatalogName, parent: str | None) -> str:
        """Return a location for a new table that no other table has, nor had: files of two never mix.

        ``parent`` is the ``location`` of the namespace, if it has one.
        """
        return f"{self._beginning(name, parent)}{uuid.uuid4().hex[:12]}"

    def directory_of_view(self, name: CatalogName, id_: str) -> str:
        """Return the location of a view whose definition names none: always the same one for the same ID."""
        return f"{self._beginning(name)}{hashlib.sha256(id_.encode()).hexdigest()[:12]}"

    def _beginning(self, name: CatalogName, parent: str | None = None) -> str:
        """Return the location of a new table up to its random digits."""
        directory = (
            parent.rstrip("/") if parent else f"{self.warehouse or self.base + DIRECTORY}{_label(name.namespace)}"
        )
        return f"{directory}/{_label(name.name)}-"

    def is_new_directory_of(self, name: CatalogName, location: str) -> bool:
        """Whether a location is one that :meth:`new_directory` makes for this name below the root."""
        beginning = f"{self.base}{DIRECTORY}{_label(name.namespace)}/{_label(name.name)}-"
        digits = full_uri(location).removeprefix(beginning)
        return re.fullmatch(r"[0-9a-f]{12}", digits) is not None

    def is_made_here(self, location: str) -> bool:
        """Whether a location is that of a table where this catalog makes directories by itself."""
        directory = as_directory(location)
        return any(_MADE_HERE.fullmatch(directory.removeprefix(each)) for each in self._made_here())

    def made_for(self, location: str) -> tuple[str, str] | None:
        """Return the namespace and the name, as words in a path, for which this catalog made the directory of a file.

        ``None``: it made none there. Raises ``InvalidLocation``.
        """
        directory = as_directory(canonical(self._root, location))
        for each in self._made_here():
            if not directory.startswith(each):
                continue
            below = directory.removeprefix(each)
            match = _MADE_HERE.match(below)
            if match is not None:
                namespace, name = match.groups()
                return namespace, name
        return None

    def is_made_for(self, name: CatalogName, made_for: tuple[str, str]) -> bool:
        """Whether the words in a path, see :meth:`made_for`, are those of a name."""
        own = (_label(name.namespace), _label(name.name))
        return made_for == own

    def _made_here(self) -> list[str]:
        return [f"{self.base}{DIRECTORY}", *([self.warehouse] if self.warehouse else [])]

    # -- refusals ------------------------------------------------------------------------------

    def refuse_outside(self, places: Iterable[Place], own: Iterable[str] = (), more: Iterable[str] = ()) -> None:
        """Refuse places that are neither in ``own`` directories nor below what is allowed, here or as ``more``.

        Raises:
            TableForbidden: one is outside.
            ValidationError: one is not absolute.
            InvalidLocation: one may lead anywhere, or holds credentials.
        """
        directories = (*self.prefixes, *more, *(as_directory(canonical(self._root, each)) for each in own))
        # What is allowed around the lakehouse allows nothing in it: there are the files of the catalog.
        below_root = tuple(each for each in directories if each.startswith(self.base))
        for place in places:
            refuse_ambiguous(place)
            directory = as_directory(canonical(self._root, place.location))
            allowed = below_root if directory.startswith(self.base) else directories
            if not directory.startswith(allowed):
                raise TableForbidden(
                    f"{place.what} is outside what this catalog may use for the table: its own directory"
                    f"{', and ' if self.prefixes else ''}{' and '.join(self.prefixes)}; leave it out, or have the "
                    "operator allow its prefix (docs/rest.md, docs/iceberg.md)"
                )

    def shared_ground(self, places: Iterable[Place], own: Iterable[str], more: Iterable[str] = ()) -> list[str]:
        """Refuse places as :meth:`refuse_outside`, and those of other tables; return the directories of the rest.

        Those are outside ``own`` directories: whether another table has one, only an index of all tables can say.
        Where this catalog makes directories for tables their names say it. No request.
        """
        places = list(places)
        own = list(own)
        self.refuse_outside(places, own, more)
        directories = []
        for each in own:
            directories.append(as_directory(canonical(self._root, each)))
        found: dict[str, None] = {}
        for place in places:
            directory = as_directory(canonical(self._root, place.location))
            if directory.startswith(tuple(directories)):
                continue
            self.refuse_others(place.what, directory)
            found[directory] = None
        return list(found)

    def refuse_others(self, what: str, directory: str) -> None:
        """Refuse a directory that by its name is another table's, or above those of tables. Raises `TableForbidden`."""
        if self._is_others(directory):
            raise TableForbidden(
                f"{what} is the directory of another table, lies in it, or is above those of tables; "
                "each directory has one owner: choose another one"
            )

    def ground_of_namespace(self, namespace: str, place: Place) -> str:
        """Return the directory that a location of a namespace means.

        Raises as :meth:`refuse_outside`, and ``TableForbidden`` where this catalog makes those of other namespaces.
        """
        self.refuse_outside([place])
        directory = as_directory(canonical(self._root, place.location))
        own = _label(namespace)
        for each in self._made_here():
            below = directory.removeprefix(each)
            first, _, rest = below.partition("/")
            is_others = rest or first != own
            if directory.startswith(each) and below and is_others and self._is_others(directory):
                raise TableForbidden(f"{place.what} is where tables of other namespaces lie: choose another one")
        return directory

    def new_ground(self, places: Iterable[Place], own: Iterable[str]) -> list[str]:
        """Return what :meth:`shared_ground` does, for a table or a view that is new.

        Raises as that, and ``TableForbidden``: one of its ``own`` directories is for many tables.
        """
        own = list(own)
        for each in own:
            if self.is_for_many(as_directory(canonical(self._root, each))):
                raise TableForbidden(
                    "by its metadata file it would have a directory that is for many tables; each directory has one "
                    "owner: choose another one"
                )
        return self.shared_ground(places, own)

    def _is_others(self, directory: str) -> bool:
        """Whether a directory that is not a table's own is, by its name, in one made for a table, or above those."""
        if self.is_for_many(directory):
            return True
        return any(_MADE_HERE.match(directory.removeprefix(each)) for each in self._made_here())

    def is_for_many(self, directory: str) -> bool:
        """Whether a directory is, by its name, above those of tables: also an allowed prefix, or what is above one."""
        made_here = self._made_here()
        if any(each.startswith(directory) for each in (*self.prefixes, *made_here)):
            return True
        return any(directory.removeprefix(each).count("/") == 1 for each in made_here)

    def refuse_unreadable(self, location: str, own: Iterable[str] = ()) -> None:
        """Refuse to read a file for a client, but below the root, in ``own`` directories, and where it is allowed.

        Raises as :meth:`refuse_outside`.
        """
        if self.is_strict:
            self.refuse_outside([Place("the file", location)], (self.base, *own))


def refuse_ambiguous(place: Place) -> None:
    """Refuse a location that does not say for everyone which place it is.

    Raises ``ValidationError``: it is not absolute; ``InvalidLocation``: it may lead anywhere, or holds credentials.
    """
    refuse_credentials(place.location, "location")
    scheme, is_absolute, rest = full_uri(place.location).partition("://")
    if not is_absolute or not scheme:
        raise ValidationError(f"{place.what} is not absolute, so it may mean any place; write it with a scheme")
    if not rest.isprintable():
        raise InvalidLocation(f"{place.what} has a control character")
    if any(unquote(segment) in {".", ".."} for segment in rest.split("/")):
        raise InvalidLocation(f"{place.what} has a '.' or '..' segment, so it may lead anywhere")


def _label(name: str) -> str:
    """Return a name for people as one segment of a path. Two names have two labels: one that had to be changed ends so.

    A tilde is in no label that is a name itself.
    """
    label = _UNREADABLE.sub("_", name)[:_LABEL_MAX]
    if not label.strip("."):
        label = label.replace(".", "_")
    if label == name:
        return label
    data = name.encode(errors="surrogatepass")
    digest = hashlib.sha256(data).hexdigest()
    ending = digest[:_DIGEST_DIGITS]
    return f"{label}~{ending}"
