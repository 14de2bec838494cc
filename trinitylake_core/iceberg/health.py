"""The health of an Iceberg table, by its metadata. No data file is read or asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

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
_Manifests = Mapping[str, int]
"""Manifests with the bytes that each has at the least; 0 where nothing tells."""


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

    One ``get`` for it, for each manifest list, and for each distinct manifest. Memory: two numbers for each file, and
    the files of the manifests that are read side by side.

    Raises:
        FileMissing, NotAFile, refer.UnreadableTable: a file is gone, or garbage.
        InvalidInput, StorageError: it cannot be opened, or the storage fails.
    """
    storage, path = located.find(location)
    data = read_file(storage, path, location)
    found = refer.decode_metadata(data, location)
    refs = refer.references_in(found, location)
    located = located.of(location, refs.location)
    current = refer.current_snapshot(found, location) or {}
    lists = _manifests_of_lists(located, refs.manifest_lists)
    now = _manifests_of_snapshot(current, lists)
    old = _manifests_but(now, refs.manifests, lists)

    sizes: dict[int, int] = {}
    data_files = 0
    small_files = 0
    delete_files = 0
    small = _SMALL * _target_of(found)
    for file in _files_of(located, now):
        sizes[_number(file)] = file.size
        if file.deletes:
            delete_files += 1
            continue
        data_files += 1
        if file.size < small:
            small_files += 1
    old_sizes: dict[int, int] = {}
    for file in _files_of(located, old):
        number = _number(file)
        if number not in sizes:
            old_sizes[number] = file.size
    return Figures(
        snapshots=len(found.get("snapshots") or ()),
        committed_at_millis=current.get("timestamp-ms"),
        manifests=len(now),
        data_files=data_files,
        small_files=small_files,
        delete_files=delete_files,
        bytes=_sum_of(sizes.values(), location),
        old_bytes=_sum_of(old_sizes.values(), location),
    )


def _number(file: refer.TableFile) -> int:
    first, _ = mmh3.hash64(file.uri)
    return int(first)


def _manifests_of_lists(located: Located, uris: Iterable[str]) -> dict[str, _Manifests]:
    """Return the manifests in manifest lists. One ``get`` for each list."""

    def read(uri: str) -> tuple[str, _Manifests]:
        storage, path = located.find(uri)
        data = read_file(storage, path, uri)
        manifests = {each.uri: each.size for each in refer.listed_in(data, uri)}
        return uri, manifests

    return dict(located.storage.map(sorted(uris), read))


def _manifests_of_snapshot(snapshot: Mapping[str, Any], lists: Mapping[str, _Manifests]) -> _Manifests:
    """Return the manifests of a snapshot: of its list, or those that one of format version 1 names itself."""
    if "manifest-list" in snapshot:
        uri = full_uri(snapshot["manifest-list"])
        return lists[uri]
    named = snapshot.get("manifests", ())
    return {full_uri(each): 0 for each in named}


def _manifests_but(now: _Manifests, named: Iterable[str], lists: Mapping[str, _Manifests]) -> _Manifests:
    """Return the manifests that metadata name themselves, and those of lists, but for those of the current snapshot."""
    found = dict.fromkeys(named, 0)
    for manifests in lists.values():
        found.update(manifests)
    for uri in now:
        found.pop(uri, None)
    return found


def _files_of(located: Located, manifests: _Manifests) -> Iterator[refer.TableFile]:
    """Yield the files in manifests. One ``get`` for each manifest."""

    def read(uri: str) -> list[refer.TableFile]:
        storage, path = located.find(uri)
        data = read_file(storage, path, uri, least=manifests[uri])
        return list(refer.files_in(data, uri))

    for files in located.storage.map(sorted(manifests), read):
        yield from files


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
