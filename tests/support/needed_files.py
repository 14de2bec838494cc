"""Which files of Iceberg tables the retained versions of a lakehouse on this disk need: read independently.

Written from the published format and Iceberg's specification. It shares no code with the product: nodes are read with
pyarrow, definitions by the judge's few lines, Avro with fastavro. It is slow, and it forgives nothing but what cannot
be read: such a file names nothing here, and the product has its own tests for that.
"""

from __future__ import annotations

import functools
import gzip
import io
import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import fastavro
import pyarrow as pa

from tests.model.wire import read_fields

_ROOT_NAME: Final = re.compile(r"_([01]{32})\.ipc")
_BOUNDARY: Final = "_oldest_version.txt"
_TABLE_KEY: Final = "C==="
_DELETED: Final = 2
"""The status of a manifest's entry that names a file which its snapshot no longer has."""

_SNAPSHOTS, _SNAPSHOT_ROOT, _SNAPSHOT_TARGET = 100, 1, 4
_FORMAT_PROPERTIES: Final = 9
_KEY, _VALUE = 1, 2
"""Field numbers of ``LakehouseDef``, ``SnapshotDef``, ``TableDef`` and of the entries of a protobuf map."""


MOST_FILES: Final = 50_000
"""In larger lakehouses nobody is asked: they are there for figures."""


class DeletedLive(AssertionError):
    """A cleaning deleted files that a retained version needs."""


def find_needed(root: Path) -> set[str]:
    """Return the real paths of all files that tables of retained versions and snapshots refer to."""
    _avro.cache_clear()  # versions share most of them
    _real.cache_clear()
    locations = {path for node in _retained_roots(root) for path in _table_metadata(root, node)}
    needed = set[str]()
    for location in locations:
        below_root = not location.startswith(("/", "file:"))
        needed.update(_named_by_metadata(f"{root}/{location}" if below_root else location))
    return needed


def find_files(root: Path) -> set[str]:
    """Return the real paths of all files below a root."""
    files = set[str]()
    for where, _, names in os.walk(os.path.realpath(root)):
        files.update(f"{where}/{name}" for name in names)
    return files


def refuse_deleted(root: Path, before: Iterable[str]) -> None:
    """Refuse that files were deleted which a version needs that is retained now, and so was when they went.

    Args:
        root: of the lakehouse.
        before: what :func:`find_files` returned before the cleaning.
    """
    deleted = {path for path in before if not os.path.lexists(path)}
    if not deleted:
        return
    lost = deleted & find_needed(root)
    if lost:
        raise DeletedLive(f"{len(lost)} of {len(deleted)} deleted files are needed: {sorted(lost)[:3]}")


def _retained_roots(root: Path) -> Iterator[str]:
    boundary_file = root / _BOUNDARY
    boundary = int(boundary_file.read_text()) if boundary_file.exists() else 0
    roots = dict[int, str]()
    for path in root.iterdir():
        if match := _ROOT_NAME.fullmatch(path.name):
            roots[int(match[1][::-1], 2)] = path.name
    retained = sorted(version for version in roots if version >= boundary)
    yield from (roots[version] for version in retained)
    if retained:
        yield from _snapshot_roots(root, roots[retained[-1]])


def _snapshot_roots(root: Path, newest: str) -> Iterator[str]:
    definition = dict(_system_rows(_rows(root / newest))).get("lakehouse_def", "")
    for entry in _fields(_read(root / definition), _SNAPSHOTS):
        for snapshot in _fields(entry, _VALUE):
            elsewhere = [text for text in _fields(snapshot, _SNAPSHOT_TARGET) if text]
            if not elsewhere:
                yield from (path.decode() for path in _fields(snapshot, _SNAPSHOT_ROOT))


# --- the tree ---


def _table_metadata(root: Path, node: str) -> Iterator[str]:
    for key, definition in _contents(root, node).items():
        if not key.startswith(_TABLE_KEY):
            continue
        for entry in _fields(_read(root / definition), _FORMAT_PROPERTIES):
            (name,), (value,) = _fields(entry, _KEY), _fields(entry, _VALUE) or [b""]
            if name == b"metadata_location":
                yield value.decode()


def _contents(root: Path, node: str) -> dict[str, str]:
    """Return what the keys mean in one subtree: its messages are newer than all that is below them."""
    rows = _rows(root / node)
    system = _system_rows(rows)
    if not system:
        return {}
    body = rows[len(system) :]
    table_rows = _table_size(body, int(dict(system)["n_keys"]))
    found = dict[str, str]()
    for _, _, child in body[:table_rows]:
        if child is not None:
            found |= _contents(root, child)
    found |= {key: value for key, value, _ in body[:table_rows] if key is not None}
    for key, value, _ in body[table_rows:]:
        if value is None:
            found.pop(key, None)
        else:
            found[key] = value
    return found


def _table_size(body: list[Any], keys: int) -> int:
    """Return the rows of a key table: row 0, the keys, and all unused rows below them."""
    size = 1 + keys
    while size < len(body) and body[size] == (None, None, None):
        size += 1
    return size


def _system_rows(rows: list[Any]) -> list[tuple[str, str]]:
    """Return key and value of the rows above the first one that has no key."""
    count = next((number for number, row in enumerate(rows) if row[0] is None), len(rows))
    return [(key, value) for key, value, _ in rows[:count]]


def _rows(path: Path) -> list[Any]:
    """Return key, value and child of each row of a node; none if it cannot be read."""
    try:
        with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as file:
            table = file.read_all()
    except (OSError, pa.ArrowInvalid):
        return []
    columns = [table.column(name).to_pylist() for name in ("key", "pvalue", "pnode")]
    return list(zip(*columns, strict=True))


# --- protobuf ---


def _read(path: Path) -> bytes:
    """Return a file; nothing if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _fields(data: bytes, number: int) -> list[bytes]:
    """Return the values with a length of one field of a protobuf message."""
    with suppress(AssertionError, IndexError):  # what cannot be read
        return [each for each in read_fields(data).get(number, []) if isinstance(each, bytes)]
    return []


# --- Iceberg ---


def _named_by_metadata(uri: str) -> Iterator[str]:
    path = _real(uri)
    yield path
    try:
        data = _content(path)
        metadata = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
        named = list(_named_in(metadata))
    except Exception:  # noqa: BLE001 - whatever a damaged file makes of a reader: it names nothing
        return
    yield from named


def _content(path: str) -> bytes:
    """Return a regular file; a pipe would be waited for, and a device has no end."""
    return Path(path).read_bytes() if Path(path).is_file() else b""


def _named_in(metadata: Any) -> Iterator[str]:
    for kind in ("statistics", "partition-statistics"):
        yield from (_real(each["statistics-path"]) for each in metadata.get(kind) or () if "statistics-path" in each)
    for snapshot in metadata.get("snapshots") or ():
        manifests = snapshot.get("manifests") or []
        if listed := snapshot.get("manifest-list"):
            yield _real(listed)
            manifests = [*manifests, *(row["manifest_path"] for row in _avro(listed))]
        for manifest in manifests:
            yield _real(manifest)
            rows = _avro(manifest)
            yield from (_real(row["data_file"]["file_path"]) for row in rows if row["status"] != _DELETED)


@functools.cache
def _avro(uri: str) -> list[Any]:
    try:
        return list(fastavro.reader(io.BytesIO(_content(_real(uri)))))
    except Exception:  # noqa: BLE001 - whatever a damaged file makes of a reader: it names nothing
        return []


@functools.cache
def _real(uri: str) -> str:
    """Return the real path of a file that is named in whatever way: a link, ``//``, ``file://localhost/``, ``%41``."""
    path = re.sub(r"^file:(//(localhost)?(?=/))?", "", uri)
    real = os.path.realpath(path)
    if not os.path.lexists(real) and "%" in path:
        return os.path.realpath(unquote(path))
    return real
