"""Runs of leaves as columns: flushing many leaves below one parent in one go (format, section 4).

A leaf that a compaction rewrites holds a hundred rows, and a parent has a hundred leaves: as Python objects that is
ten thousand strings read, compared and written again. Here neighbouring leaves stay Arrow columns from file to file:
laid end to end with the pivots between them, merged with the messages that wait for them, cut again, encoded.

Nothing here touches a storage, and nothing is trusted: :func:`prove` compares what came out with what went in by
means that share no code with the merge.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import mmh3
import numpy as np
import pyarrow as pa

from trinitylake_core.tree.node import Messages

if TYPE_CHECKING:  # the command line loads this module, and must not wait for what only a compaction needs
    import numpy.typing as npt

_STRING: Final = pa.string()
_Rows: TypeAlias = "npt.NDArray[np.int64]"
FILL: Final = 0.75
"""How full new leaves are made where a run needs another number of them: room for the next changes on either side."""
_ROOMY: Final = 0.95
"""Up to which average fill a run keeps its number of leaves."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Entries as two Arrow columns, in key order, neither with a NULL."""

    keys: Any
    values: Any

    def __len__(self) -> int:
        return len(self.keys)

    def slice(self, start: int, stop: int) -> Columns:
        """Return rows ``start`` to before ``stop``, without a copy."""
        return Columns(self.keys.slice(start, stop - start), self.values.slice(start, stop - start))

    def every(self, step: int, first: int) -> list[tuple[str, str]]:
        """Return the entries ``first``, ``first + step`` and so on."""
        return self.rows(np.arange(first, len(self), step, dtype=np.int64))

    def rows(self, at: _Rows) -> list[tuple[str, str]]:
        """Return the entries that stand at some places."""
        indices = pa.array(at, pa.int64())
        return list(zip(self.keys.take(indices).to_pylist(), self.values.take(indices).to_pylist(), strict=True))


@dataclass(frozen=True, slots=True)
class Slices(Sequence[Columns]):
    """Neighbouring leaves that lie in the same two columns, each a slice of them; what lies between is not theirs."""

    whole: Columns
    starts: _Rows
    counts: _Rows

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return Slices(self.whole, self.starts[index], self.counts[index])
        start = int(self.starts[index])
        return self.whole.slice(start, start + int(self.counts[index]))

    def __iter__(self) -> Iterator[Columns]:
        ends = (self.starts + self.counts).tolist()
        return map(self.whole.slice, self.starts.tolist(), ends)

    def edges(self) -> list[tuple[str, str]]:
        """Return the first and the last key of each. REQUIRES: none is empty."""
        first = self.whole.keys.take(pa.array(self.starts)).to_pylist()
        return list(zip(first, self.whole.keys.take(pa.array(self.starts + self.counts - 1)).to_pylist(), strict=True))


def slices_of(parts: Sequence[Columns]) -> Slices:
    """Return leaves as slices of the same two columns, copied end to end where they are not. REQUIRES: at least one."""
    if isinstance(parts, Slices):
        return parts
    counts = np.array([len(part) for part in parts], dtype=np.int64)
    keys = pa.concat_arrays([part.keys for part in parts])
    return Slices(Columns(keys, pa.concat_arrays([part.values for part in parts])), np.cumsum(counts) - counts, counts)


class OrderedHash:
    """A hash of rows in their order, however they are cut into pieces. Two are equal when their rows are."""

    def __init__(self) -> None:
        self._columns = [(mmh3.mmh3_x64_128(), mmh3.mmh3_x64_128()) for _ in range(2)]

    def add(self, rows: Columns) -> None:
        """Add rows behind the others: lengths and text of each column."""
        for column, (lengths, text) in zip((rows.keys, rows.values), self._columns, strict=True):
            _, offsets, data = column.buffers()
            if not len(column):
                continue
            ends = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
            lengths.update(np.diff(ends).tobytes())
            if data is not None:
                text.update(memoryview(data)[int(ends[0]) : int(ends[-1])])

    def digest(self) -> bytes:
        """Return the hash of all rows so far."""
        return b"".join(hasher.digest() for pair in self._columns for hasher in pair)


def laid_out(leaves: Sequence[Columns], pivots: Sequence[tuple[str, str] | None]) -> Columns:
    """Return leaves end to end, each pivot between its two; ``None`` = a pivot that is deleted.

    REQUIRES: one pivot fewer than leaves; ascending keys. ENSURES: ascending keys.
    """
    run, between = slices_of(leaves), _pairs(pivots)
    if len(run) != len(pivots) + 1:
        raise ValueError(f"{len(run)} leaves have {len(run) - 1} pivots between them, not {len(pivots)}")
    ends = np.cumsum(run.counts)
    rows = np.repeat(run.starts - (ends - run.counts), run.counts) + np.arange(int(ends[-1]))
    alive = np.fromiter((pivot is not None for pivot in pivots), bool, len(pivots))
    at = pa.array(np.insert(rows, ends[:-1][alive], np.arange(len(between)) + len(run.whole)))
    return Columns(
        pa.concat_arrays([run.whole.keys, between.keys]).take(at),
        pa.concat_arrays([run.whole.values, between.values]).take(at),
    )


def _pairs(rows: Sequence[tuple[str, str] | None]) -> Columns:
    """Return rows, without those that are ``None``, as columns."""
    alive = [row for row in rows if row is not None]
    return Columns(pa.array([key for key, _ in alive], _STRING), pa.array([value for _, value in alive], _STRING))


def merged(old: Columns, messages: Messages) -> Columns:
    """Return entries with sorted messages carried out: sets replace or insert, deletions drop.

    REQUIRES: ``old`` ascending; messages ascending, one per key. ENSURES: ascending keys.
    """
    at, found = _positions(old.keys, messages.keys)
    sets = np.fromiter((value is not None for value in messages.values), bool, len(messages))
    rows = np.arange(len(messages), dtype=np.int64) + len(old)
    value_rows = np.arange(len(old), dtype=np.int64)
    value_rows[at[found & sets]] = rows[found & sets]
    kept = np.ones(len(old), dtype=bool)
    kept[at[found & ~sets]] = False
    new = sets & ~found
    if not new.any() and kept.all():
        return Columns(old.keys, _taken(old.values, messages.values, value_rows))
    key_rows = np.insert(np.arange(len(old), dtype=np.int64), at[new], rows[new])
    value_rows = np.insert(value_rows, at[new], rows[new])
    kept = np.insert(kept, at[new], np.ones(int(new.sum()), dtype=bool))
    return Columns(
        _taken(old.keys, messages.keys, key_rows[kept]), _taken(old.values, messages.values, value_rows[kept])
    )


def _taken(old: Any, new: Sequence[str | None], rows: _Rows) -> Any:
    return pa.concat_arrays([old, pa.array(new, _STRING)]).take(pa.array(rows))


def _positions(keys: Any, sought: Sequence[str]) -> tuple[_Rows, npt.NDArray[np.bool_]]:
    """Return where each sought key stands, or would be inserted, and whether it is there."""
    view = _fixed_width(keys)
    if view is not None:
        wanted = [key.encode() for key in sought]
        if all(len(key) == view.dtype.itemsize for key in wanted):
            needles = np.array(wanted, dtype=view.dtype)
            at = np.searchsorted(view, needles)
            return at, view[np.minimum(at, len(view) - 1)] == needles
    texts = keys.to_pylist()
    places = [bisect_left(texts, key) for key in sought]
    there = [place < len(texts) and texts[place] == key for place, key in zip(places, sought, strict=True)]
    return np.array(places, dtype=np.int64), np.array(there, dtype=bool)


def _fixed_width(keys: Any) -> npt.NDArray[np.bytes_] | None:
    """Return keys of one length, which those of one kind are, as a view on their bytes; else ``None``.

    Keys hold no NUL (format, section 3), so that padding with them changes no comparison.
    """
    if not len(keys):
        return None
    _, offsets, text = keys.buffers()
    ends = np.frombuffer(offsets, np.int32)[keys.offset : keys.offset + len(keys) + 1]
    width = int(ends[1] - ends[0])
    if width == 0 or not bool((np.diff(ends) == width).all()):
        return None
    return np.frombuffer(text, dtype=f"S{width}", count=len(keys), offset=int(ends[0]))


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


def cut(rows: Columns, pieces: int) -> tuple[Sequence[Columns], list[tuple[str, str]]]:
    """Return entries cut evenly into leaves, and the entries between them, which become pivots."""
    each, longer = divmod(len(rows) - pieces + 1, pieces)
    counts = each + (np.arange(pieces, dtype=np.int64) < longer)
    stops = np.cumsum(counts + 1) - 1
    return Slices(rows, stops - counts, counts), rows.rows(stops[:-1])


def proved(old: Columns, messages: Messages, new: Columns, low: str | None, high: str | None) -> bool:
    """Return whether ``new`` means what ``old`` and the messages mean together, in order and inside the range.

    Exact, not by a hash: rows that no message touches are those of ``old``, the others those that messages set.
    Filters by membership; the merge works by positions.
    """
    import pyarrow.compute as pc  # noqa: PLC0415 - loaded by a compaction, not by every command

    touched = pa.array(messages.keys, _STRING)
    ours = pc.is_in(new.keys, value_set=touched)
    sets = pa.array([value is not None for value in messages.values], pa.bool_())
    untouched_now, untouched_then = pc.invert(ours), pc.invert(pc.is_in(old.keys, value_set=touched))
    return bool(
        in_order(new.keys, low, high)
        and _same(new, untouched_now, old, untouched_then)
        and _same(new, ours, Columns(touched, pa.array(messages.values, _STRING)), sets)
    )


def end_to_end(whole: Columns, parts: Sequence[Columns], between: Sequence[tuple[str, str] | None]) -> bool:
    """Return whether rows are exactly those of parts, one after the other, and the rows between them; ``None`` is none.

    ``proved`` compares two wholes. This says that nothing was lost when leaves were laid out, or a whole was cut.
    """
    run, pivots = slices_of(parts), _pairs(between)
    if len(pivots) + int(run.counts.sum()) != len(whole):
        return False
    behind = np.fromiter((row is not None for row in between), bool, len(between))
    if len(behind) > len(run) or (run.counts < 0).any():
        return False
    owner = np.repeat(np.arange(len(run)), run.counts)
    pivot_rows = (np.cumsum(run.counts)[: len(behind)] + np.cumsum(behind) - 1)[behind]
    ours = np.ones(len(whole), dtype=bool)
    ours[pivot_rows] = False
    within = np.arange(len(owner)) - (np.cumsum(run.counts) - run.counts)[owner]
    at, mask = pa.array(run.starts[owner] + within), pa.array(ours)
    return bool(
        whole.keys.filter(mask).equals(run.whole.keys.take(at))
        and whole.values.filter(mask).equals(run.whole.values.take(at))
        and whole.rows(pivot_rows) == [row for row in between if row is not None]
    )


def in_order(keys: Any, low: str | None, high: str | None) -> bool:
    """Return whether keys ascend strictly and lie strictly between two others."""
    import pyarrow.compute as pc  # noqa: PLC0415 - the same

    if not len(keys):
        return True
    ascending = pc.all(pc.less(keys.slice(0, len(keys) - 1), keys.slice(1))).as_py()
    first, last = keys[0].as_py(), keys[len(keys) - 1].as_py()
    return ascending is not False and (low is None or low < first) and (high is None or last < high)


def _same(one: Columns, of_one: Any, two: Columns, of_two: Any) -> bool:
    return bool(
        one.keys.filter(of_one).equals(two.keys.filter(of_two))
        and one.values.filter(of_one).equals(two.values.filter(of_two))
    )
