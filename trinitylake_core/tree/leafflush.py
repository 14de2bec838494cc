"""The flush of neighbouring leaves as one column operation (format, section 4).

A compaction that reaches a node above the leaves usually rewrites most of them. :func:`flush_runs` takes such
neighbours out of the hands of the general flush: they go from file to file as columns (``leafrun``). What it leaves
behind are files and pivots, as if each leaf had been flushed by itself. Special leaves (with a buffer, of an older
writer, or with too few rows for a single leaf) are left to the general flush.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final

from trinitylake_core.errors import Corrupt
from trinitylake_core.tree.leafrun import Columns, Leaves, cut, in_order, is_exact, laid_out, pieces_of, plan_merge
from trinitylake_core.tree.node import Messages
from trinitylake_core.tree.proof import Proof
from trinitylake_core.tree.subtree import DeletedPivot, NodeSink, Ref, Work

SHORTEST: Final = 4
"""Fewer neighbours are not worth being columns, unless they have :data:`FEWEST_ROWS`."""
FEWEST_ROWS: Final = 512
LARGEST_ROWS: Final = 1 << 14
"""The number of rows of leaves that become columns at once: some 5 MiB of ordinary entries, for every order.

A larger leaf is a stretch of its own. Several workers may share the leaves of one node between two such runs
(:func:`stretches`), but not inside of one.
"""


def flush_runs(sink: NodeSink, work: Work, chosen: Collection[int], stamp: int, proof: Proof) -> set[int]:
    """Flush runs of chosen leaves below a node in memory; return which of its children are still to be flushed.

    REQUIRES: all children of ``work`` are leaves. ENSURES: children that were flushed are files of ``min_keys`` to
    ``max_keys`` keys, and nothing is pending for them.

    Raises:
        CorruptNode: a leaf is missing or damaged.
        Corrupt: the proof of a run failed; please report it.
    """
    before = Work(work.keys, work.values, work.refs)
    work.keys, work.values, work.refs = [], [], []
    left: set[int] = set()
    for start, stop, together in stretches(before.refs, chosen, sink.max_keys):
        stretch = before.cut(start, stop - 1)
        flushed = _flush_stretch(sink, stretch, stamp, proof) if together else None
        if flushed is None:
            flushed = stretch
            moved = len(work.refs) - start
            left.update(index + moved for index in range(start, stop) if index in chosen)
        work.keys += flushed.keys
        work.values += flushed.values
        work.refs += flushed.refs
        work.keys += before.keys[stop - 1 : stop]  # the pivot behind the stretch, if it is not the last one
        work.values += before.values[stop - 1 : stop]
    return left


def stretches(refs: Sequence[Ref], chosen: Collection[int], most: int) -> Iterator[tuple[int, int, bool]]:
    """Yield all children as stretches (start, stop, whether to flush them together).

    The end of a stretch depends on nothing behind it: a worker that begins at a stretch gets the same stretches.
    """
    start = 0
    while start < len(refs):
        fits = _fits_columns(refs, start, chosen)
        rows = refs[start].keys or most
        stop = start + 1
        while stop < len(refs) and _fits_columns(refs, stop, chosen) == fits:
            rows += refs[stop].keys or most
            if fits and rows > LARGEST_ROWS:
                break
            stop += 1
        is_worth_it = stop - start >= SHORTEST or rows >= FEWEST_ROWS
        yield start, stop, fits and is_worth_it
        start = stop


def _fits_columns(refs: Sequence[Ref], index: int, chosen: Collection[int]) -> bool:
    return index in chosen and refs[index].path is not None


def _flush_stretch(sink: NodeSink, stretch: Work, stamp: int, proof: Proof) -> Work | None:
    """Return what becomes of neighbouring leaves and the pivots between them; ``None`` if they are special."""
    leaves = sink.read_columns([ref.path or "" for ref in stretch.refs])
    if leaves is None:
        return None
    changes = Messages.join(ref.pending for ref in stretch.refs).columns()
    both = Columns.join([*_with_pivots(leaves, stretch), changes])
    old = both.slice(0, len(both) - len(changes))
    low, _ = stretch.refs[0].within
    _, high = stretch.refs[-1].within
    plan = plan_merge(old, changes)
    pieces = pieces_of(len(plan), len(stretch.refs), max(1, sink.min_keys), sink.max_keys)
    if pieces is None or not in_order(old.keys, low, high):
        return None
    new = laid_out(both, plan, cut(len(plan), pieces))

    def prove() -> None:
        entries = int(new.counts.sum())
        pivots = pieces - 1
        is_whole = len(new.columns) == entries + pivots
        if not is_whole or not is_exact(old, changes, new.columns, plan, low, high):
            raise Corrupt("the proof of a run of leaves failed: nothing was committed; please report this as a bug")

    paths = sink.new_paths(pieces)
    sink.add_leaves(new, paths, stamp, prove)
    keys, values = new.pivots()
    flushed = Work(keys, values, _refs_of(new, paths))
    proof.replace_subtrees(
        old=[(ref.path or "", ref.within, ref.pending) for ref in stretch.refs],
        old_pivots=stretch.live_pivots(),
        new=[(ref.path or "", ref.within) for ref in flushed.refs],
        new_pivots=(keys, values),
    )
    return flushed


def _with_pivots(leaves: Sequence[Columns], stretch: Work) -> Iterator[Columns]:
    """Yield leaves, and behind each the pivot there, unless it is deleted."""
    pivots = Columns.of(stretch.keys, stretch.values)
    for index, leaf in enumerate(leaves):
        yield leaf
        has_pivot = index < len(stretch.values)
        if has_pivot and not isinstance(stretch.values[index], DeletedPivot):
            yield pivots.slice(index, index + 1)


def _refs_of(new: Leaves, paths: Sequence[str]) -> list[Ref]:
    """Return new leaves as the subtrees that they are."""
    refs = []
    for path, count, (first, last) in zip(paths, new.counts.tolist(), new.edges(), strict=True):
        within = (first, last + "\0")  # half-open: the smallest text behind the last key
        refs.append(Ref(0, path, keys=count, messages=0, within=within))
    return refs
