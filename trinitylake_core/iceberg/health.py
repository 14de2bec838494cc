"""The health of an Iceberg table, by its metadata. No data file is read or asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import mmh3

from trinitylake_core.iceberg import references as refer
from trinitylake_core.iceberg.reading.files import read_file
from trinitylake_core.tables import Located, full_uri

_TARGET: Final = "write.target-file-size-bytes"
_TARGET_DEFAULT: Final = 512 << 20
_TARGET_DIGITS: Final = 18
_MOST_BYTES: Final = (1 << 63) - 1
_SMALL: Final = 0.75
"""Iceberg's ``rewrite_data_files`` takes files below this share of the target size."""
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a table: of its current snapshot, but for two.

    Attributes:
        snapshots: how many its newest metadata hold.
        small_files: data files below 75 % of the table's target size.
        old_bytes: what only older snapshots in its newest metadata keep.
    """

    snapshots: int = 0
    committed_at_millis: int | None = None
    manifests: int = 0
    data_files: int = 0
    small_files: int = 0
    delete_files: int = 0
    bytes: int = 0
    old_bytes: int = 0


def figures(located: Located, location: str) -> Figures:
    """Return the figures of the table with this metadata file.

    One ``get`` for it, for each manifest list, and for each distinct manifest. Memory: sixteen bytes for each file.

    Raises:
        FileMissing, refer.UnreadableTable: a file is gone, or garbage.
        InvalidInput, StorageError: it cannot be opened, or the storage fails.
    """
    storage, path = located.find(location)
    found = refer.decoded(read_file(storage, path, location), location)
    refs = refer.references_in(found, location)
    located = located.of(location, refs.location)
    current = refer.current_snapshot(found, location) or {}
    lists = dict(_each(located, refs.manifest_lists, refer.manifests_in))
    now = set(lists.get(full_uri(str(current.get("manifest-list", ""))), ()))
    rest = refs.manifests.union(*lists.values()) - now
    sizes: dict[int, int] = {}
    data_files = small = deletes = 0
    target = _target_of(found)
    for _, files in _each(located, now, refer.files_in):
        for file in files:
            sizes[_number(file)] = file.size
            data_files, deletes = data_files + (not file.deletes), deletes + file.deletes
            small += not file.deletes and file.size < _SMALL * target
    old: dict[int, int] = {}
    for _, files in _each(located, rest, refer.files_in):
        old |= {number: file.size for file in files if (number := _number(file)) not in sizes}
    return Figures(
        len(found.get("snapshots") or ()),
        current.get("timestamp-ms"),
        len(now),
        data_files,
        small,
        deletes,
        _sum_of(sizes.values(), location),
        _sum_of(old.values(), location),
    )


def _number(file: refer.TableFile) -> int:
    return int(mmh3.hash64(file.uri)[0])


def _target_of(found: dict[str, Any]) -> int:
    """Return the size that data files of a table shall have: its owner may have written anything there."""
    text = str((found.get("properties") or {}).get(_TARGET, ""))
    is_number = text.isascii() and text.isdecimal() and len(text) <= _TARGET_DIGITS
    return int(text) if is_number else _TARGET_DEFAULT


def _sum_of(sizes: Iterable[int], location: str) -> int:
    """Return a sum of sizes of files, which writers may have made up."""
    total = sum(sizes)
    if total > _MOST_BYTES:
        raise refer.UnreadableTable("the sizes of its files add up to more bytes than there can be", path=location)
    return total


def _each(
    located: Located, uris: Iterable[str], parse: Callable[[bytes, str], Iterable[_T]]
) -> Iterable[tuple[str, list[_T]]]:
    def read(uri: str) -> tuple[str, list[_T]]:
        storage, path = located.find(uri)
        return uri, list(parse(read_file(storage, path, uri), uri))

    return located.storage.map(sorted(uris), read)
