"""Runs of leaves as columns: flushing many leaves below one parent in one go (format, section 4).

A leaf that a compaction rewrites holds hundreds of rows: as Python objects each would be read, compared and written
again. Here neighbouring leaves stay Arrow columns from file to file. What a flush decides are numbers of rows: which
row of the old files, or of the messages, each new entry is. The text is copied once, into the new entries.

Nothing here touches a storage, and nothing is trusted: :func:`is_exact` compares the new entries with those
of the old ones, and with the messages.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from trinitylake_core.tree.noderows import Texts, fixed_width, text_array

if TYPE_CHECKING:  # the command line loads this module, and must not wait for what only a compaction needs
    import numpy.typing as npt

_Rows: TypeAlias = "npt.NDArray[np.int64]"
_Mask: TypeAlias = "npt.NDArray[np.bool_]"
FILL: Final = 0.75
"""How full new leaves are made where a run needs another number of them: room for the next changes on either side."""
_VIEW: Final = pa.string_view()
_ROOMY: Final = 0.95
"""Up to which average fill a run keeps its number of leaves."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Rows as two Arrow columns. Entries ascend and hold no NULL; in a change a NULL value deletes."""

    keys: Any
    values: Any

    def __len__(self) -> int:
        return len(self.keys)

    @classmethod
    def of(cls, keys: Sequence[str | None], values: Sequence[str | None]) -> Columns:
        """Return rows that are given as lists."""
        return cls(text_array(keys), text_array(values))

    @classmethod
    def join(cls, parts: Sequence[Columns]) -> Columns:
        """Return the rows of parts, one after the other, copied. REQUIRES: at least one part."""
        return cls(pa.concat_arrays([part.keys for part in parts]), pa.concat_arrays([part.values for part in parts]))

    def pair(self) -> tuple[Any, Any]:
        """Return both columns."""
        return self.keys, self.values

    def slice(self, start: int, stop: int) -> Columns:
        """Return rows ``start`` to before ``stop``, without a copy."""
        return Columns(self.keys.slice(start, stop - start), self.values.slice(start, stop - start))

    def views(self) -> Columns:
        """Return the same rows as views."""
        return Columns(as_views(self.keys), as_views(self.values))

    def only(self, mask: _Mask) -> Columns:
        """Return the rows where a mask is set, as :meth:`take` does."""
        return self.take(np.flatnonzero(mask))

    def take(self, rows: _Rows) -> Columns:
        """Return the rows of these numbers as views: no text is copied."""
        return Columns(take_views(self.keys, rows), take_views(self.values, rows))

    def equals(self, other: Columns) -> bool:
        """Return whether both hold the same rows."""
        return bool(self.keys.equals(other.keys) and self.values.equals(other.values))


@dataclass(frozen=True, slots=True)
class Leaves:
    """The entries of neighbouring leaves: those of each, and the pivot behind each but, perhaps, the last one."""

    columns: Columns
    counts: _Rows
    """The entries of each, without the pivot."""

    def starts(self) -> _Rows:
        """Return the row of the first entry of each leaf."""
        return np.cumsum(self.counts + 1) - self.counts - 1

    def each_leaf(self) -> Iterator[Columns]:
        """Yield each leaf, without a copy."""
        for start, count in zip(self.starts().tolist(), self.counts.tolist(), strict=True):
            yield self.columns.slice(start, start + count)

    def edges(self) -> list[tuple[str, str]]:
        """Return the first and the last key of each. REQUIRES: none is empty."""
        starts = self.starts()
        first, last = (take_views(self.columns.keys, at) for at in (starts, starts + self.counts - 1))
        return list(zip(first.to_pylist(), last.to_pylist(), strict=True))

    def pivots(self) -> tuple[list[str], list[str]]:
        """Return keys and values of the entries behind leaves."""
        ends = self.starts() + self.counts
        pivots = self.columns.take(ends[ends < len(self.columns)])
        return pivots.keys.to_pylist(), pivots.values.to_pylist()


@dataclass(frozen=True, slots=True)
class Plan:
    """What a flush makes of entries. Rows are numbered over the old entries, then over the changes."""

    keys: _Rows
    """The row from which the key of each new entry comes."""
    values: _Rows
    found: _Mask
    """Which changes are of a key that is there."""
    touched: _Mask
    """Which old entries a change replaces or deletes."""
    set: _Mask
    """Which new entries a change sets."""

    def __len__(self) -> int:
        return len(self.keys)


def as_views(column: Any) -> Any:
    """Return a column of texts as views: 16 bytes a row that say where the text is, which stays where it is."""
    return column if column.type == _VIEW else column.cast(_VIEW)


def take_views(column: Any, rows: _Rows) -> Any:
    """Return rows of a column as views."""
    column = as_views(column)
    _, places, *texts = column.buffers()
    at = np.frombuffer(places or b"", np.int64).reshape(-1, 2)[column.offset : column.offset + len(column)]
    valid = set_bits(is_set(column).take(rows)).buffers()[1] if column.null_count else None
    buffers = [valid, pa.py_buffer(at.take(rows, axis=0)), *texts]
    return pa.Array.from_buffers(_VIEW, len(rows), buffers)


def set_bits(mask: _Mask) -> Any:
    """Return a mask as a column."""
    return pa.Array.from_buffers(pa.bool_(), len(mask), [None, pa.py_buffer(np.packbits(mask, bitorder="little"))])


def is_set(column: Any) -> _Mask:
    """Return for each row of a column whether it is not NULL."""
    bits = column.buffers()[0]
    if bits is None:
        return np.ones(len(column), dtype=bool)
    first, start = divmod(column.offset, 8)
    found = np.unpackbits(np.frombuffer(bits, np.uint8, offset=first), count=start + len(column), bitorder="little")
    return found[start:].view(bool)


def newest_rows(keys: Any) -> Any:
    """Return the numbers of the rows that hold the last of each key, in key order; ``None`` if that is all as it is."""
    if in_order(keys, None, None):
        return None
    import pyarrow.compute as pc  # noqa: PLC0415 - loaded by large changes, not by every command

    rows = pc.sort_indices(keys)
    ordered = keys.take(rows)
    last = pc.not_equal(ordered.slice(0, len(ordered) - 1), ordered.slice(1))
    return rows.filter(pa.concat_arrays([last, set_bits(np.ones(1, dtype=bool))]))


def plan_merge(old: Columns, changes: Columns) -> Plan:
    """Return the plan by which sorted changes are carried out: sets replace or insert, deletions drop.

    REQUIRES: keys ascend in both; a key has one change at most.
    """
    at, found = positions(old.keys, changes.keys)
    sets, rows = is_set(changes.values), len(old) + np.arange(len(changes))
    new = sets & ~found
    place = at + np.cumsum(new) - new  # among all rows: the old ones, and what is inserted between them
    before = np.ones(len(old) + int(new.sum()), dtype=bool)
    before[place[new]] = False
    keys = np.empty(len(before), dtype=np.int64)
    keys[before], keys[~before] = np.arange(len(old)), rows[new]
    values, put, kept = keys.copy(), np.zeros(len(keys), dtype=bool), np.ones(len(keys), dtype=bool)
    values[place[sets]], put[place[sets]], kept[place[found & ~sets]] = rows[sets], True, False
    touched = np.zeros(len(old), dtype=bool)
    touched[at[found]] = True
    return Plan(keys[kept], values[kept], found, touched, put[kept])


def laid_out(both: Columns, plan: Plan, counts: _Rows) -> Leaves:
    """Return the entries of new leaves: views on the old ones and the changes behind these."""
    return Leaves(Columns(take_views(both.keys, plan.keys), take_views(both.values, plan.values)), counts)


def positions(keys: Any, sought: Any) -> tuple[_Rows, _Mask]:
    """Return the row of each sought key, or the one before which it would be inserted, and whether it is there.

    REQUIRES: both ascend.
    """
    if not len(sought):
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=bool)
    view, needles = fixed_width(keys), fixed_width(sought)
    if view is not None and needles is not None and view.dtype == needles.dtype:
        at = np.searchsorted(view, needles)
        return at, view[np.minimum(at, len(view) - 1)] == needles
    texts, needed, place = Texts(keys), Texts(sought), 0
    places, there = np.zeros(len(sought), dtype=np.int64), np.zeros(len(sought), dtype=bool)
    for row in range(len(needed)):
        places[row] = place = bisect_left(texts, needed[row], place)
        there[row] = place < len(texts) and texts[place] == needed[row]
    return places, there


def pieces_of(rows: int, leaves: int, fewest: int, most: int) -> int | None:
    """Return into how many leaves to cut ``rows`` entries that were in ``leaves``; ``None`` if not even one is filled.

    A cut into ``p`` leaves makes ``p - 1`` entries pivots. The number stays what it was where that fits well.
    ENSURES: each leaf of an even cut holds ``fewest`` to ``most`` keys.
    """
    if rows < fewest:
        return None
    if leaves > 0 and _average(rows, leaves) <= most * _ROOMY and (rows - leaves + 1) // leaves >= fewest:
        return leaves
    wished = max(1, round((rows + 1) / (max(fewest, round(most * FILL)) + 1)))
    while wished > 1 and (rows - wished + 1) // wished < fewest:
        wished -= 1
    while -(-(rows - wished + 1) // wished) > most:
        wished += 1
    return wished if (rows - wished + 1) // wished >= fewest else None


def _average(rows: int, pieces: int) -> float:
    return (rows - pieces + 1) / pieces


def cut(rows: int, pieces: int) -> _Rows:
    """Return the number of entries of each leaf, evenly; the entries between leaves become pivots."""
    each, longer = divmod(rows - pieces + 1, pieces)
    return each + (np.arange(pieces, dtype=np.int64) < longer)


def is_exact(old: Columns, changes: Columns, new: Columns, plan: Plan, low: str | None, high: str | None) -> bool:
    """Return whether new entries mean what old ones and sorted changes mean together, in order and inside the range.

    Exact, not by a hash, and independent of the plan, which only names the places to examine.
    REQUIRES: the old keys ascend.

    * The new keys ascend strictly, so none is there twice, and neither has a key two changes.
    * The new entries that a change sets, by the plan, are those that the changes set, all of them.
    * The other new entries are the old ones without some whose keys have changes. None of these others has a key that
      is set, which would be there twice. None has one that is deleted: such an old entry is left out, or there is none.
    """
    if len(new) != len(plan.set) or len(old) != len(plan.touched):
        return False
    sets = is_set(changes.values)
    before, some, after = old.views(), changes.views(), new.views()
    return bool(
        in_order(after.keys, low, high)
        and in_order(some.keys, None, None)
        and after.only(plan.set).equals(some.only(sets))
        and after.only(~plan.set).equals(before.only(~plan.touched))
        and take_views(before.keys, np.flatnonzero(plan.touched)).equals(
            take_views(some.keys, np.flatnonzero(plan.found))
        )
        and _holds_none(changes.keys.filter(set_bits(~sets & ~plan.found)), old.keys)
    )


def _holds_none(sought: Any, keys: Any) -> bool:
    """Return whether ascending keys hold none of some others: each lies strictly between two neighbours."""
    import pyarrow.compute as pc  # noqa: PLC0415 - the same

    if not len(sought):
        return True
    at, _ = positions(keys, sought)
    behind, before = at > 0, at < len(keys)
    around = (
        (take_views(keys, at[behind] - 1), take_views(sought, np.flatnonzero(behind))),
        (take_views(sought, np.flatnonzero(before)), take_views(keys, at[before])),
    )
    return all(pc.all(pc.less(left, right)).as_py() is not False for left, right in around)


def in_order(keys: Any, low: str | None, high: str | None) -> bool:
    """Return whether keys, none of them NULL, ascend strictly and lie strictly between two others."""
    import pyarrow.compute as pc  # noqa: PLC0415 - the same

    if not len(keys) or keys.null_count:
        return not keys.null_count
    ascending = pc.all(pc.less(keys.slice(0, len(keys) - 1), keys.slice(1))).as_py()
    first, last = keys[0].as_py(), keys[len(keys) - 1].as_py()
    return ascending is not False and (low is None or low < first) and (high is None or last < high)
