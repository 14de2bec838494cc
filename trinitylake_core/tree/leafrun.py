"""Runs of leaves as columns: flushing many leaves below one parent in one go (format, section 4).

A leaf that a compaction rewrites holds hundreds of rows: as Python objects each would be read, compared and written
again. Here neighbouring leaves stay Arrow columns from file to file. What a flush decides are numbers of rows: which
row of the old files, or of the messages, each new entry is. The text is copied once, into the new entries.

Nothing here touches a storage, and nothing is trusted: :func:`is_exact` compares the new entries with those
of the old ones, and with the messages.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
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
_FEWER: Final = 8
"""With so many times fewer keys than are sought, each key is searched for, and not the others among them."""
ROOMY: Final = 0.95
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
        keys = pa.concat_arrays([part.keys for part in parts])
        values = pa.concat_arrays([part.values for part in parts])
        return cls(keys, values)

    def slice(self, start: int, stop: int) -> Columns:
        """Return rows ``start`` to before ``stop``, without a copy."""
        count = stop - start
        return Columns(self.keys.slice(start, count), self.values.slice(start, count))

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
        return _are_equal(self.keys, other.keys) and _are_equal(self.values, other.values)


@dataclass(frozen=True, slots=True)
class Leaves:
    """The entries of neighbouring leaves: those of each, and the pivot behind each but, perhaps, the last one."""

    columns: Columns
    counts: _Rows
    """The entries of each, without the pivot."""

    def starts(self) -> _Rows:
        """Return the row of the first entry of each leaf."""
        with_pivots = self.counts + 1
        return np.cumsum(with_pivots) - with_pivots

    def edges(self) -> list[tuple[str, str]]:
        """Return the first and the last key of each. REQUIRES: none is empty."""
        starts = self.starts()
        ends = starts + self.counts
        first = _texts_in(self.columns.keys, starts)
        last = _texts_in(self.columns.keys, ends - 1)
        return list(zip(first, last, strict=True))

    def pivots(self) -> tuple[list[str], list[str]]:
        """Return keys and values of the entries behind leaves."""
        ends = self.starts() + self.counts
        inside = ends < len(self.columns)  # nothing need stand behind the last leaf
        pivots = ends[inside]
        return _texts_in(self.columns.keys, pivots), _texts_in(self.columns.values, pivots)


@dataclass(frozen=True, slots=True)
class LeafPlan:
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


def _are_equal(one: Any, other: Any) -> bool:
    """Return whether two columns hold the same rows. The same place in memory, which nobody changes, does."""
    return _place_of(one) == _place_of(other) or bool(one.equals(other))


def _place_of(column: Any) -> tuple[Any, ...]:
    """Return type, rows and buffers of a column."""
    addresses = [None if buffer is None else buffer.address for buffer in column.buffers()]
    return column.type, column.offset, len(column), addresses


def _texts_in(column: Any, rows: _Rows) -> list[Any]:
    """Return the texts in a few rows of a column."""
    if column.type == _VIEW:
        return list(take_views(column, rows).to_pylist())
    texts = Texts(column)
    return [texts[row].decode() for row in rows.tolist()]


def as_views(column: Any) -> Any:
    """Return a column of texts as views: 16 bytes a row that say where the text is, which stays where it is."""
    if column.type == _VIEW:
        return column
    return column.cast(_VIEW)


def take_views(column: Any, rows: _Rows) -> Any:
    """Return rows of a column as views."""
    column = as_views(column)
    _, views_buffer, *texts = column.buffers()
    # A view is 16 bytes: as two numbers a row, NumPy takes them far faster than Arrow's own `take`.
    views = np.frombuffer(views_buffer or b"", np.int64).reshape(-1, 2)
    views = views[column.offset : column.offset + len(column)]
    valid = None
    if column.null_count:
        taken = is_set(column).take(rows)
        _, valid = as_bits(taken).buffers()
    taken_views = pa.py_buffer(views.take(rows, axis=0))
    return pa.Array.from_buffers(_VIEW, len(rows), [valid, taken_views, *texts])


def as_bits(mask: _Mask) -> Any:
    """Return a mask as a column."""
    bits = pa.py_buffer(np.packbits(mask, bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), len(mask), [None, bits])


def is_set(column: Any) -> _Mask:
    """Return for each row of a column whether it is not NULL."""
    bits = column.buffers()[0]
    if bits is None:
        return np.ones(len(column), dtype=bool)
    first_byte, start = divmod(column.offset, 8)
    packed = np.frombuffer(bits, np.uint8, offset=first_byte)
    unpacked = np.unpackbits(packed, count=start + len(column), bitorder="little")
    return unpacked[start:].view(bool)


def newest_rows(keys: Any) -> Any:
    """Return the numbers of the rows that hold the last of each key, in key order; ``None`` if that is all as it is."""
    if in_order(keys, None, None):
        return None
    import pyarrow.compute as pc  # noqa: PLC0415 - loaded by large changes, not by every command

    rows = pc.sort_indices(keys)
    ordered = keys.take(rows)
    differs_from_next = pc.not_equal(ordered.slice(0, len(ordered) - 1), ordered.slice(1))
    very_last = as_bits(np.ones(1, dtype=bool))
    return rows.filter(pa.concat_arrays([differs_from_next, very_last]))


def plan_merge(old: Columns, changes: Columns) -> LeafPlan:
    """Return the plan by which sorted changes are carried out: sets replace or insert, deletions drop.

    REQUIRES: keys ascend in both; a key has one change at most.
    """
    at, found = positions(old.keys, changes.keys)
    sets = is_set(changes.values)
    change_rows = len(old) + np.arange(len(changes))

    # The rows of both in key order: the old ones, and what is inserted between them.
    inserted = sets & ~found
    place = at + np.cumsum(inserted) - inserted  # behind what is inserted before it
    count = len(old) + int(inserted.sum())
    is_old = np.ones(count, dtype=bool)
    is_old[place[inserted]] = False
    keys = np.empty(count, dtype=np.int64)
    keys[is_old] = np.arange(len(old))
    keys[~is_old] = change_rows[inserted]

    # What sets an entry gives the value, and what deletes one drops the row.
    values = keys.copy()
    values[place[sets]] = change_rows[sets]
    is_changed = np.zeros(count, dtype=bool)
    is_changed[place[sets]] = True
    kept = np.ones(count, dtype=bool)
    kept[place[found & ~sets]] = False

    touched = np.zeros(len(old), dtype=bool)
    touched[at[found]] = True
    return LeafPlan(keys=keys[kept], values=values[kept], found=found, touched=touched, set=is_changed[kept])


def laid_out(both: Columns, plan: LeafPlan, counts: _Rows) -> Leaves:
    """Return the entries of new leaves: views on the old ones and the changes behind these."""
    keys = take_views(both.keys, plan.keys)
    values = take_views(both.values, plan.values)
    return Leaves(Columns(keys, values), counts)


def positions(keys: Any, sought: Any) -> tuple[_Rows, _Mask]:
    """Return the row of each sought key, or the one before which it would be inserted, and whether it is there.

    REQUIRES: both ascend.
    """
    if not len(sought):
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=bool)
    fixed = fixed_width(keys)
    fixed_sought = fixed_width(sought)
    if fixed is None or fixed_sought is None or fixed.dtype != fixed_sought.dtype:
        if len(keys) * _FEWER < len(sought):
            return _positions_among_few(Texts(keys), Texts(sought))
        return _positions_of_texts(Texts(keys), Texts(sought))
    at = np.searchsorted(fixed, fixed_sought)
    neighbour = np.minimum(at, len(fixed) - 1)
    return at, fixed[neighbour] == fixed_sought


def _positions_among_few(keys: Texts, sought: Texts) -> tuple[_Rows, _Mask]:
    """Return what :func:`positions` does: each of few keys is found among the many that are sought."""
    there = np.zeros(len(sought), dtype=bool)
    behind = np.zeros(len(keys), dtype=np.int64)
    for row in range(len(keys)):
        key = keys[row]
        place = bisect_left(sought, key)
        is_there = place < len(sought) and sought[place] == key
        if is_there:
            there[place] = True
        behind[row] = place + is_there  # from this one on, what is sought is larger than the key
    return np.searchsorted(behind, np.arange(len(sought)), side="right"), there


def _positions_of_texts(keys: Texts, sought: Texts) -> tuple[_Rows, _Mask]:
    """Return what :func:`positions` does, of keys of any lengths."""
    places = np.zeros(len(sought), dtype=np.int64)
    there = np.zeros(len(sought), dtype=bool)
    place = 0
    for row in range(len(sought)):
        wanted = sought[row]
        place = bisect_left(keys, wanted, place)
        places[row] = place
        there[row] = place < len(keys) and keys[place] == wanted
    return places, there


def pieces_of(rows: int, leaves: int, fewest: int, most: int) -> int | None:
    """Return into how many leaves to cut ``rows`` entries that were in ``leaves``; ``None`` if not even one is filled.

    A cut into ``p`` leaves makes ``p - 1`` entries pivots. The number stays what it was where that fits well.
    ENSURES: each leaf of an even cut holds ``fewest`` to ``most`` keys.
    """
    if rows < fewest:
        return None
    fits_well = leaves > 0 and _average(rows, leaves) <= most * ROOMY
    if fits_well and _fewest_keys(rows, leaves) >= fewest:
        return leaves
    width = max(fewest, round(most * FILL))
    wished = max(1, round((rows + 1) / (width + 1)))
    while wished > 1 and _fewest_keys(rows, wished) < fewest:
        wished -= 1
    while _most_keys(rows, wished) > most:
        wished += 1
    if _fewest_keys(rows, wished) < fewest:
        return None
    return wished


def _average(rows: int, pieces: int) -> float:
    return (rows - pieces + 1) / pieces


def _fewest_keys(rows: int, pieces: int) -> int:
    return (rows - pieces + 1) // pieces


def _most_keys(rows: int, pieces: int) -> int:
    return -(-(rows - pieces + 1) // pieces)


def cut(rows: int, pieces: int) -> _Rows:
    """Return the number of entries of each leaf, evenly; the entries between leaves become pivots."""
    each, longer = divmod(rows - pieces + 1, pieces)
    is_longer = np.arange(pieces, dtype=np.int64) < longer
    return each + is_longer


def is_exact(old: Columns, changes: Columns, new: Columns, plan: LeafPlan, low: str | None, high: str | None) -> bool:
    """Return whether new entries mean what old ones and sorted changes mean together, in order and inside the range.

    Exact, not by a hash, and independent of the plan, which only names the places to examine.
    REQUIRES: the old keys ascend.
    """
    if len(new) != len(plan.set) or len(old) != len(plan.touched):
        return False
    sets = is_set(changes.values)
    before = old.views()
    some = changes.views()
    after = new.views()
    # The new keys ascend strictly, so none is there twice, and neither has a key two changes.
    if not in_order(after.keys, low, high) or not in_order(some.keys, None, None):
        return False
    # The new entries that a change sets, by the plan, are those that the changes set, all of them.
    if not after.only(plan.set).equals(some.only(sets)):
        return False
    # The other new entries are the old ones without some: these are keys that have changes.
    if not after.only(~plan.set).equals(before.only(~plan.touched)):
        return False
    left_out = take_views(before.keys, np.flatnonzero(plan.touched))
    changed = take_views(some.keys, np.flatnonzero(plan.found))
    if not left_out.equals(changed):
        return False
    # No old entry remains that is deleted: it was left out, or there is none. One that is set would be there twice.
    other_deletions = as_bits(~sets & ~plan.found)
    return _holds_none(changes.keys.filter(other_deletions), old.keys)


def _holds_none(sought: Any, keys: Any) -> bool:
    """Return whether ascending keys hold none of some others: each lies strictly between two neighbours."""
    import pyarrow.compute as pc  # noqa: PLC0415 - the same

    if not len(sought):
        return True
    at, _ = positions(keys, sought)
    has_left = at > 0
    left = take_views(keys, at[has_left] - 1)
    behind_left = take_views(sought, np.flatnonzero(has_left))
    if pc.all(pc.less(left, behind_left)).as_py() is False:
        return False
    has_right = at < len(keys)
    right = take_views(keys, at[has_right])
    before_right = take_views(sought, np.flatnonzero(has_right))
    return pc.all(pc.less(before_right, right)).as_py() is not False


def in_order(keys: Any, low: str | None, high: str | None) -> bool:
    """Return whether keys, none of them NULL, ascend strictly and lie strictly between two others."""
    import pyarrow.compute as pc  # noqa: PLC0415 - the same

    if keys.null_count:
        return False
    if not len(keys):
        return True
    if low is not None and keys[0].as_py() <= low:
        return False
    if high is not None and keys[len(keys) - 1].as_py() >= high:
        return False
    ascends = pc.less(keys.slice(0, len(keys) - 1), keys.slice(1))
    return pc.all(ascends).as_py() is not False
