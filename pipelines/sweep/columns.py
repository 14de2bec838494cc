"""Files as columns: a sweep in this process holds no Python object per file.

A file that is marked is known by 64 bits of its path. That two paths share them can only keep a file: a file is an
orphan if its bits are *not* among the marked ones, and the same path always has the same bits. An orphan that is taken
for a marked file goes with the next cleaning, for every process makes other bits of a path. Where one file must be
found among others, to tell whether it is old enough or the same, paths themselves are compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from pipelines.files.listing import CANDIDATES, FIXED, ROOT, UNKNOWN, Listed
from pipelines.sweep.model import Size
from pipelines.tasks import LONG, TEXT
from pipelines.trees.spool import HASH, Spool, column_of, hashes_of, numbers, texts_of

if TYPE_CHECKING:
    import numpy.typing as npt

    from pipelines.trees.spool import Hashes

    Mask: TypeAlias = npt.NDArray[np.bool_]
    Positions: TypeAlias = npt.NDArray[np.intp]

_KINDS: Final = (UNKNOWN, FIXED, ROOT, *sorted(CANDIDATES))
_CODE: Final = {kind: code for code, kind in enumerate(_KINDS)}
_FIRST_CANDIDATE: Final = 3
FILES: Final = pa.schema(
    {HASH: LONG, "path": TEXT, "bytes": LONG, "modified_millis": LONG, "kind": LONG, "version": LONG}
)
"""What is listed. ``kind`` is a number here, no age is :data:`NO_AGE`, and no version -1."""
NO_AGE: Final = -(1 << 63)
_MARKS: Final = pa.schema({HASH: LONG, "first": LONG, "last": LONG})
_MARKED_AT_ONCE: Final = 1 << 16


# -- files ---------------------------------------------------------------------------------------------


def batch_of(files: Sequence[Listed]) -> pa.RecordBatch:
    """Return files as a batch of ``FILES``."""
    paths, sizes, times, kinds, versions = zip(*files, strict=True) if files else ((),) * 5
    columns = [
        sizes,
        [NO_AGE if each is None else each for each in times],
        [_CODE[kind] for kind in kinds],
        [-1 if each is None else each for each in versions],
    ]
    arrays = [column_of(np.array(column, np.int64)) for column in columns]
    hashes = column_of(hashes_of(paths, len(paths)))
    return pa.RecordBatch.from_arrays([hashes, texts_of(paths), *arrays], schema=FILES)


def listed_in(files: pa.Table) -> Iterator[Listed]:
    """Yield files as they were listed."""
    for batch in files.to_batches():
        _, *columns = (column.to_pylist() for column in batch.columns)
        for path, size, modified, kind, version in zip(*columns, strict=True):
            age = None if modified == NO_AGE else modified
            yield Listed(path, size, age, _KINDS[kind], None if version < 0 else version)


def may_go(files: pa.Table, boundary: int) -> Mask:
    """Return which files have names that may ever be deleted; see ``Listed.may_go``."""
    kinds = numbers(files, "kind")
    wanted: Mask = (kinds >= _FIRST_CANDIDATE) | ((kinds == _CODE[ROOT]) & (numbers(files, "version") < boundary))
    return wanted


def is_kind(files: pa.Table, kind: str) -> Mask:
    """Return which files are of a kind."""
    wanted: Mask = numbers(files, "kind") == _CODE[kind]
    return wanted


def is_unknown(files: pa.Table) -> Mask:
    """Return which files belong to somebody else, by their names."""
    return is_kind(files, UNKNOWN)


def size_of(files: pa.Table, mask: Mask | None = None) -> Size:
    """Return how many files there are, and their bytes."""
    sizes = numbers(files, "bytes")
    sizes = sizes if mask is None else sizes[mask]
    return Size(len(sizes), int(sizes.sum()))


def by_kind(files: pa.Table) -> dict[str, Size]:
    """Return number and bytes of files, by kind."""
    kinds = numbers(files, "kind")
    return {_KINDS[kind]: size_of(files, kinds == kind) for kind in np.unique(kinds).tolist()}


def once(files: pa.Table) -> pa.Table:
    """Return each file once: an inventory may list it twice, and then the entry counts that says it is younger."""
    if len(np.unique(numbers(files, HASH))) == len(files):
        return files
    found: dict[str, Listed] = {}
    for file in listed_in(files):
        known = found.get(file.path)
        found[file.path] = file if known is None else younger(known, file)
    return pa.Table.from_batches([batch_of(list(found.values()))])


def younger(one: Listed, two: Listed) -> Listed:
    """Return of two entries for a file the one that says it is younger; nothing is as young as what has no age."""
    ages = [each.modified_millis for each in (one, two) if each.modified_millis is not None]
    return one._replace(bytes=max(one.bytes, two.bytes), modified_millis=max(ages) if len(ages) == 2 else None)


# -- marks ---------------------------------------------------------------------------------------------


class Marked(NamedTuple):
    """Files that are marked, once each and sorted: their bits, and the first and last version that reaches them."""

    hashes: Hashes
    first: Hashes
    last: Hashes

    def find(self, wanted: Hashes) -> tuple[Mask, Positions]:
        """Return which files are marked, and where each of them is in these columns."""
        at = np.searchsorted(self.hashes, wanted)
        inside = np.minimum(at, max(0, len(self.hashes) - 1))
        found = self.hashes[inside] == wanted if len(self.hashes) else np.zeros(len(wanted), np.bool_)
        return found, inside[found]

    def has(self, files: pa.Table) -> Mask:
        """Return which files are marked."""
        return self.find(numbers(files, HASH))[0]


def marked(rows: pa.Table) -> Marked:
    """Return marks, those of one file together."""
    return _together(*(numbers(rows, name) for name in _MARKS.names))


def _together(hashes: Hashes, first: Hashes, last: Hashes) -> Marked:
    if not len(hashes):
        return Marked(hashes, first, last)
    order = np.argsort(hashes)
    hashes = hashes[order]
    starts = np.flatnonzero(np.concatenate(([True], hashes[1:] != hashes[:-1])))
    lows, highs = np.minimum.reduceat(first[order], starts), np.maximum.reduceat(last[order], starts)
    return Marked(hashes[starts], lows, highs)


class Marks:
    """Marks of files, gathered until there are enough for a batch. Whoever adds to them flushes at the end."""

    def __init__(self) -> None:
        self.spool = Spool(_MARKS)
        self._hashes: list[int] = []
        self._runs: list[tuple[int, int, int]] = []

    def add(self, paths: Sequence[str], first: int, last: int) -> None:
        """Mark files that versions from ``first`` to ``last`` reach."""
        self._hashes.extend(map(hash, paths))
        self._runs.append((len(paths), first, last))
        if len(self._hashes) > _MARKED_AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Hand over what was gathered."""
        if not self._runs:
            return
        counts, first, last = np.array(self._runs, np.int64).T
        columns = (np.array(self._hashes, np.int64), np.repeat(first, counts), np.repeat(last, counts))
        self.spool.add(pa.RecordBatch.from_arrays([column_of(each) for each in _together(*columns)], schema=_MARKS))
        self._hashes, self._runs = [], []

    def close(self) -> None:
        """Let go of all marks."""
        self._hashes, self._runs = [], []
        self.spool.close()
