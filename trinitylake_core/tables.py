"""Where the Iceberg table of a definition is, and which of its snapshots it stands at (format, section 5).

Needs no Iceberg library: what engines wrote into the definition is enough, and one small file otherwise.
"""

from __future__ import annotations

import re
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Final

from trinitylake_core.definitions import ObjectDef, TableDef, ViewDef
from trinitylake_core.errors import InvalidLocation
from trinitylake_core.locations import OWN, validate_path
from trinitylake_core.storage.root_uris import S3_SCHEMES, local_path

ICEBERG: Final = "ICEBERG"
MANAGED: Final = "MANAGED"
EXTERNAL: Final = "EXTERNAL"
LOCATION: Final = "location"
DIRECTORY: Final = "tables/"
"""Where the files of Iceberg tables lie below the root of a lakehouse, if no other place is given."""
METADATA_LOCATION: Final = "metadata_location"
PREVIOUS_METADATA_LOCATION: Final = "previous_metadata_location"
VIEW_METADATA_LOCATION: Final = "iceberg.metadata_location"
"""Property of a view: its metadata file, as a path below the root or a URI."""
TABLE_UUID: Final = "uuid"
ELSEWHERE: Final = "iceberg.location"
"""Format property of a table: its location, where that does not lie in the directory of its metadata."""
FORMER: Final = "iceberg.former-directories"
"""Format property of a table: the directories that were its own before, and are not now, one a line: its files of older
versions lie there."""
SNAPSHOT_ID: Final = "current-snapshot-id"
SNAPSHOT_MILLIS: Final = "current-snapshot-timestamp-ms"
SNAPSHOT_ROWS: Final = "current-snapshot-total-records"
SNAPSHOT_BYTES: Final = "current-snapshot-total-files-size"
"""Format properties under the names that other Iceberg catalogs give them."""

UNPROVED: Final = (
    "a cleaning of tables may have removed what these metadata refer to. Register them with the Iceberg catalog "
    "(`register_table`), which proves their files, or restore the table from a version of this lakehouse"
)
"""Why a definition with metadata below ``tables/`` is refused, where nothing proves their files."""
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://?")
_SLASHES: Final = re.compile("//+")
_THIS_MACHINE: Final = "localhost/"


_NUMBER: Final = re.compile(r"-?[0-9]{1,19}")


def whole_number(text: str) -> int | None:
    """Return the number that a format property contains, ``None`` where it is none: any engine may have written it."""
    return int(text) if _NUMBER.fullmatch(text) else None


@lru_cache(maxsize=256)
def base_uri(root: str) -> str:
    """Return a root URI as Iceberg spells locations: a local path is not percent-encoded there."""
    return f"file://{local_path(root).rstrip('/')}/" if root.startswith("file:") else root


def full_uri(location: str) -> str:
    """Return a location in one spelling: ``file:///path`` for a local path, ``s3://`` for ``s3a://``.

    A disk has no empty names, and ``localhost`` is this machine.
    """
    if location.startswith("file:///") and "//" not in location[7:]:  # most are, and this is asked for each file
        return location
    match = _SCHEME.match(location)
    if match is None:
        return _file_uri(location) if location.startswith("/") else location
    scheme = S3_SCHEMES.get(match[1].lower(), match[1].lower())
    rest = location[match.end() :]
    if scheme != "file":
        return f"{scheme}://{rest}"
    if match[0].endswith("//") and rest.lower().startswith(_THIS_MACHINE):
        rest = rest[len(_THIS_MACHINE) :]
    return _file_uri(rest)


def _file_uri(path: str) -> str:
    path = path.lstrip("/")
    return f"file:///{_SLASHES.sub('/', path)}" if "//" in path else f"file:///{path}"


def path_below(root: str, location: str) -> str | None:
    """Return the path inside the lakehouse that a location names, or ``None`` where it lies elsewhere.

    Raises ``InvalidLocation``: it begins like a location inside, and leads out of it.
    """
    base = base_uri(root)
    uri = full_uri(location).rstrip("/")
    if not uri.startswith(base):
        linked = _linked_base(base, uri)
        if linked is None:
            return None
        base = linked
    return validate_path(uri.removeprefix(base))


def _linked_base(base: str, uri: str) -> str | None:
    """Return what a location of a table begins with if that is another way to the directory of a root: a link, a mount.

    Both are local. Only what lies below ``tables/`` is looked at: the directory above it is compared.
    """
    if not (base.startswith("file:") and uri.startswith("file:")):
        return None
    end = uri.find(f"/{DIRECTORY}")
    while end >= 0:
        above = uri[: end + 1]
        if _is_same_directory(above, base):
            return above
        end = uri.find(f"/{DIRECTORY}", end + 1)
    return None


@lru_cache(maxsize=256)
def _is_same_directory(one: str, two: str) -> bool:
    """Whether two local directories are one. Asked once: a walk meets millions of files below one directory."""
    try:
        return Path(one.removeprefix("file://")).samefile(two.removeprefix("file://"))
    except (OSError, ValueError):  # one that is not there is no other's
        return False


def area_path(root: str, location: str) -> str | None:
    """Return the path of a file that `tables clean` may remove: below ``tables/`` of the lakehouse; else ``None``.

    Raises ``InvalidLocation`` as :func:`path_below` does.
    """
    path = path_below(root, location)
    return path if path is not None and path.startswith(DIRECTORY) else None


def metadata_uri(root: str, table: TableDef) -> str | None:
    """Return the URI of a table's metadata file, or ``None`` where the definition names none.

    Raises ``InvalidLocation``: a MANAGED table's path that leads out of the lakehouse.
    """
    return _uri(root, table, table.format_properties.get(METADATA_LOCATION, ""))


def named_in_area(root: str, definition: ObjectDef) -> str | None:
    """Return the path of the metadata that a table or a view names, if `tables clean` may remove it; else ``None``."""
    uri = None
    with suppress(InvalidLocation):  # no such file can be one of the area
        if isinstance(definition, TableDef):
            uri = metadata_uri(root, definition)
        elif isinstance(definition, ViewDef):
            uri = view_metadata_uri(root, definition)
        return area_path(root, uri) if uri else None
    return None


def view_metadata_uri(root: str, view: ViewDef) -> str | None:
    """Return the URI of the Iceberg metadata file of a view, or ``None`` where its definition names none."""
    location = view.properties.get(VIEW_METADATA_LOCATION)
    return location if not location or "://" in location else f"{base_uri(root)}{location}"


def table_location(root: str, table: TableDef) -> str | None:
    """Return the URI of the directory that a table's data is in, or ``None`` where the definition names none.

    Raises ``InvalidLocation``: a MANAGED table's path that leads out of the lakehouse.
    """
    return _uri(root, table, table.format_properties.get(LOCATION, "").removesuffix("/"))


def former_root(root: str, metadata: str, location: str) -> str:
    """Return the root below which a table was written that came with its lakehouse; empty if that is ``root``.

    Args:
        root: the root that it is read at.
        metadata: the URI of its metadata file, or the path below the root.
        location: its location by its metadata.
    """
    path = path_below(root, metadata) if "://" in full_uri(metadata) else metadata
    directory = (path or "").rpartition("/")[0].removesuffix("/metadata")
    uri = full_uri(location).rstrip("/")
    former = uri.removesuffix(directory) if directory and uri.endswith(f"/{directory}") else ""
    is_here = former == base_uri(root) or path_below(root, f"{former}{DIRECTORY}x") is not None
    return "" if is_here else former


def here(root: str, uri: str, former: str) -> str:
    """Return the URI at which a file of a table is that was written below a ``former`` root; empty: below this one."""
    uri = full_uri(uri)
    return base_uri(root) + uri.removeprefix(former) if former and uri.startswith(former) else uri


def own_directory(root: str, metadata_location: str) -> str | None:
    """Return the directory of a table or a view by the location of one of its metadata files; it ends with a slash.

    ``None`` where the file lies in a directory that others share, such as the root.
    """
    uri = full_uri(metadata_location)
    path = path_below(root, uri)
    directory = uri.rpartition("/")[0].removesuffix("/metadata")
    if path is None:
        is_bucket = directory.count("/") <= 2
        return None if is_bucket else f"{directory}/"
    base = base_uri(root)
    made_here = OWN.match(path)
    if made_here is not None:
        return f"{base}{made_here[0]}"
    below = f"{directory}/".removeprefix(base)
    least = 3 if below.startswith(DIRECTORY) else 1
    return None if below.count("/") < least else f"{directory}/"


def shared_directory(root: str, metadata_location: str) -> str | None:
    """Return the directory of a metadata file below ``tables/`` that is not the own one of its table; else ``None``.

    Release 0.1.0 let tables lie right at ``tables/NAME``, where a namespace of this name has the directories of its.
    """
    uri = full_uri(metadata_location)
    path = path_below(root, uri)
    is_shared = path is not None and path.startswith(DIRECTORY) and own_directory(root, uri) is None
    directory, _, _ = uri.rpartition("/")
    return f"{directory}/" if is_shared else None


def as_directory(location: str) -> str:
    """Return a location in one spelling, with a slash at its end."""
    return f"{full_uri(location).rstrip('/')}/"


def _uri(root: str, table: TableDef, location: str) -> str | None:
    if not location:
        return None
    return base_uri(root) + validate_path(location) if table.table_type == MANAGED else location
