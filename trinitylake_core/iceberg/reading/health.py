"""The health of an Iceberg table, by its metadata. No data file is read or asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

import mmh3

from trinitylake_core.iceberg.reading import references as refer
from trinitylake_core.iceberg.reading.file_groups import TARGET_DEFAULT, FileGroup, FileGroups, GroupKey, target_of
from trinitylake_core.iceberg.reading.files import read_file
from trinitylake_core.iceberg.reading.metadata_json import JsonObject
from trinitylake_core.table_places import Located
from trinitylake_core.tables import full_uri

T = TypeVar("T")
_MOST_BYTES: Final = (1 << 63) - 1
_Manifests = Mapping[str, refer.ListedManifest]
"""Manifests by their URIs; of one that a snapshot names itself its size is 0: nothing tells it."""


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a table: of its current snapshot, but for two.

    Attributes:
        snapshots: how many its newest metadata hold.
        groups: the files, by partition spec and partition.
        old_bytes: what only older snapshots in its newest metadata keep.
        target: the size that its data files shall have.
    """

    snapshots: int = 0
    committed_at_millis: int | None = None
    manifests: int = 0
    data_files: int = 0
    delete_files: int = 0
    bytes: int = 0
    old_bytes: int = 0
    target: int = TARGET_DEFAULT
    groups: Mapping[GroupKey, FileGroup] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CurrentFiles:
    """What the current snapshot of a table refers to, and what leads to the others.

    Attributes:
        located: the storages of its files.
        document: its metadata, as JSON.
        references: what they refer to.
        snapshot: the current snapshot; empty without one.
        lists: the manifests of each manifest list that was read.
        manifests: those of the current snapshot.
    """

    located: Located
    document: JsonObject
    references: refer.References
    snapshot: JsonObject
    lists: Mapping[str, _Manifests] = field(default_factory=dict)
    manifests: _Manifests = field(default_factory=dict)

    @property
    def properties(self) -> JsonObject:
        """The properties of the table."""
        return self.document.get("properties") or {}


def figures(located: Located, location: str) -> Figures:
    """Return the figures of the table with this metadata file.

    One ``get`` for it, for each manifest list, and for each distinct manifest. Memory: two numbers for each file, a
    group for each partition, and the files of the manifests that are read side by side.

    Raises:
        FileMissing, NotAFile, refer.UnreadableTable: a file is gone, or garbage.
        InvalidInput, StorageError: it cannot be opened, or the storage fails.
    """
    read = read_current(located, location, with_old=True)
    target = target_of(read.properties)
    groups = FileGroups(target, _times_of(read), with_paths=False)
    sizes: dict[int, int] = {}
    data_files = 0
    delete_files = 0
    for manifest, file in _described_files(read):
        sizes[_number(file.uri)] = file.size
        groups.add(manifest.spec_id, file)
        if file.content:
            delete_files += 1
        else:
            data_files += 1

    old_sizes: dict[int, int] = {}
    old = _manifests_but(read.manifests, read.references.manifests, read.lists)
    for _, files in read_manifests(read.located, old, refer.files_in):
        for named in files:
            number = _number(named.uri)
            if number not in sizes:
                old_sizes[number] = named.size
    return Figures(
        snapshots=len(read.document.get("snapshots") or ()),
        committed_at_millis=read.snapshot.get("timestamp-ms"),
        manifests=len(read.manifests),
        data_files=data_files,
        delete_files=delete_files,
        bytes=_sum_of(sizes.values(), location),
        old_bytes=_sum_of(old_sizes.values(), location),
        target=target,
        groups=groups.finish(),
    )


def grouped_files(read: CurrentFiles, target: int) -> Mapping[GroupKey, FileGroup]:
    """Return the files of the current snapshot by partition spec and partition, with their paths.

    One ``get`` for each manifest. Raises as :func:`figures`, and ``OutsidePlaces``: a rewrite would open a data or
    delete file that is not in the places of the table.
    """
    groups = FileGroups(target, _times_of(read), with_paths=True)
    for manifest, file in _described_files(read):
        read.located.require(file.uri)
        groups.add(manifest.spec_id, file)
    return groups.finish()


def read_current(located: Located, location: str, *, with_old: bool) -> CurrentFiles:
    """Return what the table with this metadata file refers to.

    One ``get`` for it and for the manifest list of its current snapshot; with ``with_old`` for every manifest list.
    Raises as :func:`figures`.
    """
    read = read_metadata(located, location)
    if not with_old:
        return replace(read, manifests=manifests_of_snapshot(read.located, read.snapshot))
    lists = _manifests_of_lists(read.located, read.references.manifest_lists)
    return replace(read, lists=lists, manifests=manifests_of_snapshot(read.located, read.snapshot, lists))


def read_metadata(located: Located, location: str) -> CurrentFiles:
    """Return what a metadata file says by itself. One ``get``. Raises as :func:`figures`."""
    storage, path = located.find(location)
    document = refer.decode_metadata(read_file(storage, path, location), location)
    references = refer.references_in(document, location)
    current = refer.current_snapshot(document, location) or {}
    return CurrentFiles(located.of(location, references.location), document, references, current)


def _times_of(read: CurrentFiles) -> dict[int | None, int]:
    """Return when each snapshot in metadata was made; ``None`` stands for any, which may be the current one."""
    times: dict[int | None, int] = {None: read.snapshot.get("timestamp-ms", 0)}
    for each in read.document.get("snapshots") or ():
        millis = each.get("timestamp-ms")
        times[each["snapshot-id"]] = millis if type(millis) is int else 0
    return times


def _number(uri: str) -> int:
    first, _ = mmh3.hash64(uri)
    return int(first)


def _manifests_of_lists(located: Located, lists: Mapping[str, int]) -> dict[str, _Manifests]:
    """Return the manifests in manifest lists, each with how many data files its snapshot has. One ``get`` each."""
    read: dict[str, _Manifests] = {}
    for each, manifests in read_manifests(located, _manifests_without_figures(lists), refer.listed_in):
        refer.refuse_cut(manifests, lists[each.uri], each.uri)
        read[each.uri] = {inner.uri: inner for inner in manifests}
    return read


def manifests_of_snapshot(
    located: Located, snapshot: JsonObject, lists: Mapping[str, _Manifests] | None = None
) -> _Manifests:
    """Return the manifests of a snapshot: of its list, or those that one of format version 1 names itself.

    One ``get``, unless the ``lists`` were read before. Raises as :func:`figures`.
    """
    if "manifest-list" in snapshot:
        uri = full_uri(snapshot["manifest-list"])
        return (lists or _manifests_of_lists(located, {uri: refer.count_files(snapshot)}))[uri]
    return _manifests_without_figures(snapshot.get("manifests", ()))


def _manifests_without_figures(paths: Iterable[str]) -> dict[str, refer.ListedManifest]:
    """Return manifests of which nothing but their URIs is known."""
    uris = [full_uri(each) for each in paths]
    return {uri: refer.ListedManifest(uri) for uri in uris}


def _manifests_but(now: _Manifests, named: Iterable[str], lists: Mapping[str, _Manifests]) -> _Manifests:
    """Return the manifests that metadata name themselves, and those of lists, but for those of the current snapshot."""
    found = _manifests_without_figures(named)
    for manifests in lists.values():
        found.update(manifests)
    for uri in now:
        found.pop(uri, None)
    return found


def _described_files(read: CurrentFiles) -> Iterator[tuple[refer.ListedManifest, refer.DescribedFile]]:
    """Yield the files of the current snapshot, each with its manifest. One ``get`` for each manifest."""
    for manifest, files in read_manifests(read.located, read.manifests, refer.described_files_in):
        for file in files:
            yield manifest, file


def read_manifests(
    located: Located, manifests: _Manifests, parse: Callable[[bytes, str], Iterable[T]]
) -> Iterator[tuple[refer.ListedManifest, list[T]]]:
    """Yield what is in manifests, or in lists of them, none shorter than what names it says.

    One ``get`` each, side by side. Raises as :func:`figures`.
    """

    def read(uri: str) -> tuple[refer.ListedManifest, list[T]]:
        manifest = manifests[uri]
        storage, path = located.find(uri)
        data = read_file(storage, path, uri, least=manifest.size)
        return manifest, list(parse(data, uri))

    return located.storage.map(sorted(manifests), read)


def _sum_of(sizes: Iterable[int], location: str) -> int:
    """Return a sum of sizes of files, which writers may have made up."""
    total = sum(sizes)
    if total > _MOST_BYTES:
        raise refer.UnreadableTable("the sizes of its files add up to more bytes than there can be", path=location)
    return total
