"""The files of a table in groups: those of one partition by one partition spec, which one rewrite may merge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from trinitylake_core.iceberg.reading.references import DescribedFile

TARGET: Final = "write.target-file-size-bytes"
"""The property of a table by which its owner sets the size of data files."""
TARGET_DEFAULT: Final = 512 << 20
MANIFEST_BYTES: Final = 8 << 20
"""Merged manifests are about so large, as Iceberg's are."""
SMALL: Final = 0.75
"""A file below this share of the target size is small, as for Iceberg's ``rewrite_data_files``."""
LARGE: Final = 1.8
"""A file above this share of the target size is large, as for Iceberg's ``rewrite_data_files``."""
_ROWS_OF_FILE: Final = 1000
"""Iceberg's writer looks at the size of a file after so many rows: it cannot split fewer."""
_TARGET_DIGITS: Final = 18
_DATA: Final = 0
_POSITION_DELETES: Final = 1
_EQUALITY_DELETES: Final = 2


class GroupKey(NamedTuple):
    """A partition spec, and a partition of it as bytes that only tell partitions apart."""

    spec_id: int
    partition: bytes


@dataclass(slots=True)
class FileGroup:
    """The data files of one partition by one spec, and the delete files that may apply to them.

    Attributes:
        files: the data files, with ``bytes`` and ``rows`` of all of them.
        small_files: those below 75 % of the target size, with ``small_bytes``.
        large_files: those above 180 % of it that have the rows to become several, with ``large_bytes``.
        delete_files: the delete files that may apply, with ``deletes``: rows of position deletes, and of equality
            deletes, of which each may delete any number of rows.
        deletes_elsewhere: files of position deletes by other specs. By Iceberg's specification they do not apply, but
            DuckDB writes and applies such deletes of files of an older spec.
        newest_millis: when the newest data or delete file was added; 0 where its snapshot has expired.
        paths: the URIs of the data files, each with its size, if they were asked for.
        small_paths: those of the small ones, and ``large_paths`` of the large ones.
    """

    files: int = 0
    bytes: int = 0
    rows: int = 0
    small_files: int = 0
    small_bytes: int = 0
    large_files: int = 0
    large_bytes: int = 0
    delete_files: int = 0
    deletes: int = 0
    equality_deletes: int = 0
    deletes_elsewhere: int = 0
    newest_millis: int = 0
    paths: dict[str, int] = field(default_factory=dict)
    small_paths: dict[str, int] = field(default_factory=dict)
    large_paths: dict[str, int] = field(default_factory=dict)

    def add_delete(self, file: DescribedFile, added_millis: int) -> None:
        """Count a delete file that may apply."""
        self.delete_files += 1
        self.deletes += file.rows
        self.equality_deletes += file.content == _EQUALITY_DELETES
        self.newest_millis = max(self.newest_millis, added_millis)


class FileGroups:
    """Sorts the files of a snapshot into groups. Memory: one group each, and the paths if they are wanted."""

    def __init__(self, target: int, times: Mapping[int | None, int], *, with_paths: bool) -> None:
        """Begin without files; ``times`` has when each snapshot was made, by ID; ``None``: one that is not known."""
        self._target = target
        self._times = times
        self._with_paths = with_paths
        self._groups: dict[GroupKey, FileGroup] = {}
        self._deletes: list[tuple[GroupKey, DescribedFile, int]] = []

    def add(self, spec_id: int, file: DescribedFile) -> None:
        """Sort a file in, which a manifest of a spec names."""
        key = GroupKey(spec_id, file.partition)
        added_millis = self._times.get(file.snapshot_id, 0)
        if file.content != _DATA:
            self._deletes.append((key, file, added_millis))
            return
        group = self._groups.setdefault(key, FileGroup())
        group.files += 1
        group.bytes += file.size
        group.rows += file.rows
        group.newest_millis = max(group.newest_millis, added_millis)
        if self._with_paths:
            group.paths[file.uri] = file.size
        if file.size < SMALL * self._target:
            group.small_files += 1
            group.small_bytes += file.size
            if self._with_paths:
                group.small_paths[file.uri] = file.size
        elif _is_large(file, self._target):
            group.large_files += 1
            group.large_bytes += file.size
            if self._with_paths:
                group.large_paths[file.uri] = file.size

    def finish(self) -> dict[GroupKey, FileGroup]:
        """Return the groups, each with the delete files that may apply.

        Position deletes, and equality deletes of a partition, apply to their own partition; equality deletes of a spec
        without partitions apply to all.
        """
        by_position = Counter(key.spec_id for key, file, _ in self._deletes if file.content == _POSITION_DELETES)
        for key, group in self._groups.items():
            group.deletes_elsewhere = by_position.total() - by_position[key.spec_id]
        for key, file, added_millis in self._deletes:
            is_global = file.content == _EQUALITY_DELETES and not file.partition
            own = self._groups.get(key)
            concerned: Iterable[FileGroup] = self._groups.values() if is_global else _if_there(own)
            for group in concerned:
                group.add_delete(file, added_millis)
        self._deletes = []
        return self._groups


def _is_large(file: DescribedFile, target: int) -> bool:
    """Whether a file is to become several."""
    if file.size <= LARGE * target:
        return False
    pieces = file.size / max(1, target)
    return file.rows >= pieces * _ROWS_OF_FILE


def _if_there(group: FileGroup | None) -> Iterator[FileGroup]:
    if group is not None:
        yield group


def target_of(properties: Mapping[str, object] | None, default: int = TARGET_DEFAULT) -> int:
    """Return the size that data files of a table shall have: its owner may have written anything there."""
    text = str((properties or {}).get(TARGET, ""))
    is_number = text.isascii() and text.isdecimal() and len(text) <= _TARGET_DIGITS
    return int(text) if is_number else default
