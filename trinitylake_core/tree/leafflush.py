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
    keys, values, refs = work.keys, work.values, work.refs
    work.keys, work.values, work.refs = [], [], []
    left: set[int] = set()
    for start, stop, together in stretches(refs, chosen, sink.max_keys):
        as_is = keys[start : stop - 1], values[start : stop - 1], refs[start:stop]
        run = _flush_stretch(sink, *as_is, stamp, proof) if together else None
        if run is None:
            left.update(len(work.refs) + index - start for index in range(start, stop) if index in chosen)
        inner_keys, inner_values, inner_refs = run or as_is
        work.keys += inner_keys
        work.values += inner_values
        work.refs += inner_refs
        work.keys += keys[stop - 1 : stop]
        work.values += values[stop - 1 : stop]
    return left


def stretches(refs: Sequence[Ref], chosen: Collection[int], most: int) -> Iterator[tuple[int, int, bool]]:
    """Yield all children as stretches (start, stop, whether to flush them together).

    The end of a stretch depends on nothing behind it: a worker that begins at a stretch gets the same stretches.
    """
    start = 0
    while start < len(refs):
        together = _fit_for_columns(refs, start, chosen)
        stop, rows = start + 1, refs[start].keys or most
        while stop < len(refs) and together == _fit_for_columns(refs, stop, chosen):
            rows += refs[stop].keys or most
            if together and rows > LARGEST_ROWS:
                break
            stop += 1
        yield start, stop, together and (stop - start >= SHORTEST or rows >= FEWEST_ROWS)
        start = stop


def _fit_for_columns(refs: Sequence[Ref], index: int, chosen: Collection[int]) -> bool:
    return index in chosen and refs[index].path is not None


def _flush_stretch(
    sink: NodeSink, keys: list[str], values: list[str], refs: list[Ref], stamp: int, proof: Proof
) -> tuple[list[str], list[str], list[Ref]] | None:
    leaves = sink.read_columns([ref.path or "" for ref in refs])
    if leaves is None:
        return None
    pivots = [(key, value) for key, value in zip(keys, values, strict=True) if not isinstance(value, DeletedPivot)]
    changes = Messages.join(ref.pending for ref in refs).columns()
    both = Columns.join([*_with_pivots(leaves, values, Columns.of(keys, values)), changes])
    old, (low, high) = both.slice(0, len(both) - len(changes)), (refs[0].within[0], refs[-1].within[1])
    plan = plan_merge(old, changes)
    pieces = pieces_of(len(plan), len(refs), max(1, sink.min_keys), sink.max_keys)
    if pieces is None or not in_order(old.keys, low, high):
        return None
    new = laid_out(both, plan, cut(len(plan), pieces))

    def prove() -> None:
        whole = len(new.columns) == int(new.counts.sum()) + pieces - 1
        if not whole or not is_exact(old, changes, new.columns, plan, low, high):
            raise Corrupt("the proof of a run of leaves failed: nothing was committed; please report this as a bug")

    paths = sink.new_paths(pieces)
    sink.add_leaves(new, paths, stamp, prove)
    made, between = _refs_of(new, paths), new.pivots()
    proof.replace_subtrees(
        [(ref.path or "", ref.within, ref.pending) for ref in refs],
        ([key for key, _ in pivots], [value for _, value in pivots]),
        [(ref.path or "", ref.within) for ref in made],
        between,
    )
    return *between, made


def _with_pivots(leaves: Sequence[Columns], values: Sequence[str], pivots: Columns) -> Iterator[Columns]:
    """Yield leaves, and behind each the pivot there, unless it is deleted."""
    for index, leaf in enumerate(leaves):
        yield leaf
        if index < len(values) and not isinstance(values[index], DeletedPivot):
            yield pivots.slice(index, index + 1)


def _refs_of(new: Leaves, paths: Sequence[str]) -> list[Ref]:
    return [
        Ref(0, path, keys=count, messages=0, within=(first, last + "\0"))
        for path, count, (first, last) in zip(paths, new.counts.tolist(), new.edges(), strict=True)
    ]
