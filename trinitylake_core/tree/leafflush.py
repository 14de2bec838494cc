"""The flush of leaves below one parent as one column operation (format, section 4).

A compaction rewrites many leaves below one node: all of them, or those for which enough messages wait.
:func:`flush_runs` takes them out of the hands of the general flush: they go from file to file as columns (``leafrun``),
neighbours or not. What it leaves behind are files and pivots, as if each leaf had been flushed by itself. Special
leaves (with a buffer, of an older writer, or with too few rows for a single leaf) are left to the general flush.

Chosen leaves that are neighbours are a *stretch*; it may be cut into another number of leaves. Stretches of one node,
one after the other, are a *run*: read, merged, proved and written together. The pivots between two stretches of a run
stay as they are, and so do the leaves there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from trinitylake_core.errors import Corrupt
from trinitylake_core.tree.leafrun import (
    Columns,
    LeafPlan,
    Leaves,
    cut,
    in_order,
    is_exact,
    laid_out,
    pieces_of,
    plan_merge,
)
from trinitylake_core.tree.node import Messages
from trinitylake_core.tree.proof import Proof
from trinitylake_core.tree.search import Batch
from trinitylake_core.tree.subtree import DeletedPivot, NodeSink, Ref, Work

FEWEST_LEAVES: Final = 4
"""A run of fewer leaves is not worth being columns, unless it has :data:`FEWEST_ROWS`."""
FEWEST_ROWS: Final = 512
LARGEST_ROWS: Final = 1 << 14
"""The number of rows of leaves that become columns at once: some 5 MiB of ordinary entries, for every order.

A larger leaf is a stretch of its own. Several workers may share the leaves of one node between two stretches, but not
inside of one (:func:`find_stretches`).
"""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Chosen leaves that are neighbours: the places ``start`` to before ``stop``, and the rows in their files."""

    start: int
    stop: int
    rows: int


def flush_runs(sink: NodeSink, work: Work, chosen: Collection[int], stamp: int, proof: Proof) -> set[int]:
    """Flush runs of chosen leaves below a node in memory; return which of its children are still to be flushed.

    REQUIRES: all children of ``work`` are leaves. ENSURES: children that were flushed are files of ``min_keys`` to
    ``max_keys`` keys, and nothing is pending for them.

    Raises:
        CorruptNode: a leaf is missing or damaged.
        Corrupt: the proof of a run failed; please report it.
    """
    stretches = find_stretches(work.refs, chosen, sink.max_keys)
    flushed: dict[int, tuple[int, Work]] = {}
    for run in join_stretches(work.refs, stretches, sink.min_keys):
        parts = _flush_run(sink, work, run, stamp, proof)
        if parts is None:
            continue
        for stretch, part in zip(run, parts, strict=True):
            flushed[stretch.start] = stretch.stop, part
    return _put_in_place(work, flushed, chosen)


def find_stretches(refs: Sequence[Ref], chosen: Collection[int], most: int) -> Iterator[Stretch]:
    """Yield chosen leaves that are files as stretches, none of much more than :data:`LARGEST_ROWS`.

    The end of a stretch depends on nothing behind it: a worker that begins at a stretch gets the same stretches.
    """
    start = rows = 0
    for index, ref in enumerate(refs):
        if index not in chosen or ref.path is None:
            if rows:
                yield Stretch(start, index, rows)
            rows = 0
            continue
        more = ref.keys or most
        if rows and rows + more > LARGEST_ROWS:
            yield Stretch(start, index, rows)
            rows = 0
        if not rows:
            start = index
        rows += more
    if rows:
        yield Stretch(start, len(refs), rows)


def join_stretches(refs: Sequence[Ref], stretches: Iterator[Stretch], fewest: int) -> Iterator[list[Stretch]]:
    """Yield stretches as runs that are worth being columns.

    A stretch that may be left with fewer than ``fewest`` rows is a run of its own: only the general flush can join what
    remains to other leaves, and the rest of a run is not to wait for it.
    """
    run: list[Stretch] = []
    for stretch in stretches:
        if not _stays_filled(refs, stretch, fewest):
            if _is_worth_columns([stretch]):
                yield [stretch]
            continue
        run.append(stretch)
        if sum(each.rows for each in run) > LARGEST_ROWS // 2:
            if _is_worth_columns(run):
                yield run
            run = []
    if _is_worth_columns(run):
        yield run


def _stays_filled(refs: Sequence[Ref], stretch: Stretch, fewest: int) -> bool:
    """Return whether enough rows remain for a leaf, however many of those in the files the messages delete."""
    waiting = [ref.pending for ref in refs[stretch.start : stretch.stop]]
    if stretch.rows - sum(map(len, waiting)) >= fewest:
        return True
    return stretch.rows - sum(messages.deletions() for messages in waiting) >= fewest


def _is_worth_columns(run: Sequence[Stretch]) -> bool:
    leaves = sum(each.stop - each.start for each in run)
    rows = sum(each.rows for each in run)
    return leaves >= FEWEST_LEAVES or rows >= FEWEST_ROWS


def _put_in_place(work: Work, flushed: dict[int, tuple[int, Work]], chosen: Collection[int]) -> set[int]:
    """Put what became of stretches where they were; return which children are chosen and were not flushed."""
    before = Work(work.keys, work.values, work.refs)
    work.keys, work.values, work.refs = [], [], []
    left: set[int] = set()
    start = 0
    while start < len(before.refs):
        if start in flushed:
            stop, part = flushed[start]
        else:
            stop = start + 1
            part = before.cut(start, start)
            if start in chosen:
                left.add(len(work.refs))
        work.keys += part.keys
        work.values += part.values
        work.refs += part.refs
        work.keys += before.keys[stop - 1 : stop]  # the pivot behind them, if they are not the last ones
        work.values += before.values[stop - 1 : stop]
        start = stop
    return left


@dataclass(frozen=True, slots=True)
class _LeafRun:
    """A run in memory: its leaves as they were read, with the pivots behind them, and what is to become of them."""

    stretches: list[Work]
    old: Columns
    changes: Columns
    both: Columns
    """The old entries, and the changes behind them."""
    rows: list[int]
    """The old entries of each stretch, without the pivot behind it."""

    @property
    def refs(self) -> list[Ref]:
        """The leaves of all stretches."""
        return [ref for stretch in self.stretches for ref in stretch.refs]

    @property
    def within(self) -> tuple[str, str]:
        """The range of all of them."""
        refs = self.refs
        low, _ = refs[0].within
        _, high = refs[-1].within
        return low, high


def _flush_run(sink: NodeSink, work: Work, places: Sequence[Stretch], stamp: int, proof: Proof) -> list[Work] | None:
    """Return what becomes of each stretch, leaves and the pivots between them; ``None`` if they are special."""
    run = _read_run(sink, work, places)
    if run is None:
        return None
    plan = plan_merge(run.old, run.changes)
    cuts = []
    for rows, stretch in zip(_count_rows(run, plan), run.stretches, strict=True):
        pieces = pieces_of(rows, len(stretch.refs), max(1, sink.min_keys), sink.max_keys)
        if pieces is None:
            return None
        cuts.append(cut(rows, pieces))
    new = laid_out(run.both, plan, np.concatenate(cuts))
    pivots = new.pivots()
    last_leaves = np.cumsum([len(each) for each in cuts]) - 1

    # A wrong share of a stretch puts the pivot beside it into a leaf: that is refused where the node above is written.
    def prove() -> None:
        entries = int(new.counts.sum())
        is_whole = len(new.columns) == entries + len(new.counts) - 1
        if not is_whole or not is_exact(run.old, run.changes, new.columns, plan, *run.within):
            raise Corrupt("the proof of a run of leaves failed: nothing was committed; please report this as a bug")

    paths = sink.new_paths(len(new.counts))
    sink.add_leaves(new, paths, stamp, prove)
    whole = Work(*pivots, _refs_of(new, paths))
    flushed = []
    start = 0
    for last in last_leaves.tolist():
        flushed.append(whole.cut(start, last))
        start = last + 1
    _replace_in_proof(proof, run.stretches, flushed)
    return flushed


def _read_run(sink: NodeSink, work: Work, places: Sequence[Stretch]) -> _LeafRun | None:
    """Return a run that was read; ``None`` if a leaf is not plain, or holds a key outside of its range."""
    stretches = [work.cut(place.start, place.stop - 1) for place in places]
    bounds = _pivots_behind((work.keys, work.values), [place.stop - 1 for place in places[:-1]])
    paths = [ref.path or "" for stretch in stretches for ref in stretch.refs]
    leaves = sink.read_columns(paths)
    if leaves is None:
        return None
    parts = []
    rows = []
    between = Columns.of(*bounds)
    coming = iter(leaves)
    for number, stretch in enumerate(stretches):
        in_line = [*_with_pivots([next(coming) for _ in stretch.refs], stretch)]
        # What follows each row is seen below, where all keys must ascend. Only what stands left of a stretch is not.
        if _begins_too_early(in_line[0], stretch.refs[0]):
            return None
        parts += in_line
        rows.append(sum(map(len, in_line)))
        parts.append(between.slice(number, number + 1))  # of the last one it is empty
    changes = Messages.join(ref.pending for stretch in stretches for ref in stretch.refs).columns()
    both = Columns.join([*parts, changes])
    old = both.slice(0, len(both) - len(changes))
    run = _LeafRun(stretches, old, changes, both, rows)
    return run if in_order(old.keys, *run.within) else None


def _with_pivots(leaves: Sequence[Columns], stretch: Work) -> Iterator[Columns]:
    """Yield leaves, and behind each the pivot there, unless it is deleted."""
    pivots = Columns.of(stretch.keys, stretch.values)
    for index, leaf in enumerate(leaves):
        yield leaf
        has_pivot = index < len(stretch.values)
        if has_pivot and not isinstance(stretch.values[index], DeletedPivot):
            yield pivots.slice(index, index + 1)


def _begins_too_early(leaf: Columns, ref: Ref) -> bool:
    low, _ = ref.within
    return len(leaf) > 0 and leaf.keys[0].as_py() < low


def _pivots_behind(pivots: Batch, leaves: Sequence[int]) -> Batch:
    """Return the pivots behind some leaves, of those behind all."""
    keys, values = pivots
    return [keys[leaf] for leaf in leaves], [values[leaf] for leaf in leaves]


def _count_rows(run: _LeafRun, plan: LeafPlan) -> list[int]:
    """Return how many entries each stretch comes to hold."""
    numbers = np.arange(len(run.stretches))
    old_rows = np.array(run.rows)
    old_rows[:-1] += 1  # with the pivot behind it
    changes = [sum(len(ref.pending) for ref in stretch.refs) for stretch in run.stretches]
    of_old_rows = np.repeat(numbers, old_rows)
    of_changes = np.repeat(numbers, changes)
    stretch_of_row = np.concatenate([of_old_rows, of_changes])
    rows = np.bincount(stretch_of_row[plan.keys], minlength=len(numbers))
    rows[:-1] -= 1
    counts: list[int] = rows.tolist()
    return counts


def _replace_in_proof(proof: Proof, old: Sequence[Work], new: Sequence[Work]) -> None:
    """Exchange what stretches were for what they are, which is proved to mean the same."""
    proof.replace_subtrees(
        old=[(ref.path or "", ref.within, ref.pending) for work in old for ref in work.refs],
        old_pivots=_live_pivots_of(old),
        new=[(ref.path or "", ref.within) for work in new for ref in work.refs],
        new_pivots=_live_pivots_of(new),
    )


def _live_pivots_of(works: Sequence[Work]) -> Batch:
    keys: list[str] = []
    values: list[str] = []
    for work in works:
        live_keys, live_values = work.live_pivots()
        keys += live_keys
        values += live_values
    return keys, values


def _refs_of(new: Leaves, paths: Sequence[str]) -> list[Ref]:
    """Return new leaves as the subtrees that they are."""
    refs = []
    for path, count, (first, last) in zip(paths, new.counts.tolist(), new.edges(), strict=True):
        within = (first, last + "\0")  # half-open: the smallest text behind the last key
        refs.append(Ref(0, path, keys=count, messages=0, within=within))
    return refs
