"""The tree of a new root: messages at the end of its buffer, and below it what finds no room (format, section 4).

No root is larger than ``node_file_max_size_bytes``, so that an open costs the same after every commit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from trinitylake_core.catalog import codec_of, object_counts
from trinitylake_core.commits.backend import LakehouseBackend
from trinitylake_core.definitions import commit_buffer_bytes
from trinitylake_core.errors import Corrupt
from trinitylake_core.tree.leafrun import Columns, in_order, is_exact, plan_merge
from trinitylake_core.tree.node import Messages, Node
from trinitylake_core.tree.noderows import text_size
from trinitylake_core.tree.nodestore import NodeWriter
from trinitylake_core.tree.rewrite import Rewriter
from trinitylake_core.tree.subtree import Choice, PayingChildren, Policy, Work, dirty_children, heaviest_children
from trinitylake_core.versions import CountBounds, Root

_FAILED: Final = "the proof of a large commit failed: nothing was committed; please report this as a bug"


class Appended(NamedTuple):
    """A root with new messages.

    Attributes:
        node: its node.
        counts: the objects that it contains, at least and at most; ``None`` = unknown.
        is_bulk: whether the messages found no room in its buffer, so that some of them are further down.
    """

    node: Node
    counts: CountBounds | None
    is_bulk: bool


def append_messages(
    backend: LakehouseBackend,
    base: Root,
    own: Messages,
    count_gained: Callable[[], CountBounds],
    created_at_millis: int,
    writer: NodeWriter,
) -> Appended:
    """Return the node of ``base`` with messages at the end of its buffer, and the objects that it contains then.

    Older messages are pushed down if with ``own`` the root would grow too large: a write buffer of more than
    ``commit.buffer.max-bytes``, which every commit writes again, or a node over its target. Then the heaviest children
    get theirs, until half of either is free; about one ``put`` per such child. So a flush is rare: all commits until
    the buffer is full again write nothing but the root. If ``own`` alone are too many for a root, they are pushed down,
    too (:func:`push_down`).
    """
    definition, node = backend.definition(base), base.node
    size = own.nbytes()
    buffered = node.buffer.nbytes()
    most = commit_buffer_bytes(definition)
    is_too_large = buffered + size > most or node.estimated_bytes() + size > writer.target_bytes
    is_bulk = node.table_bytes() + size > writer.target_bytes if is_too_large else False
    if buffered and is_too_large and not is_bulk:
        node = _flush_heaviest(node, created_at_millis, writer, size, most)
    appended = node.with_messages(own)
    if appended.estimated_bytes() > writer.target_bytes:
        is_bulk = True
        appended = push_down(base.node.with_messages(own), most, created_at_millis, writer)
    return Appended(appended, _count_with(backend, base, count_gained), is_bulk)


def _count_with(backend: LakehouseBackend, base: Root, count_gained: Callable[[], CountBounds]) -> CountBounds | None:
    """Return the objects that a version contains with what it gains over ``base``; ``None`` if they are not counted."""
    counts = base.count_bounds
    if counts is None and base.node.is_leaf:  # the root is all there is: no request
        codec = codec_of(backend.definition(base), sdk=backend.versions.sdk)
        counts = CountBounds.exactly(object_counts(backend.nodes, base.node, codec))
    return None if counts is None else counts.plus(count_gained())


def has_room_for_all(node: Node, entries: Sequence[Columns], target_bytes: int) -> bool:
    """Whether a root may have room for entries as messages: certainly not if their texts alone are too large."""
    texts = sum(text_size(rows.keys) + text_size(rows.values) for rows in entries)
    return node.table_bytes() + texts <= target_bytes


def plant_tree(
    backend: LakehouseBackend,
    base: Root,
    entries: Sequence[Columns],
    count_gained: Callable[[], CountBounds],
    created_at_millis: int,
    writer: NodeWriter,
) -> Appended:
    """Return the root of a new tree of entries, in key order, in the place of an empty one: proved.

    What :func:`append_messages` does with the same messages, if they find no room in the root; but they are not copied
    in between, and as a whole they may be larger than an Arrow column. The files are written when this returns.

    Raises:
        Corrupt: the proof failed.
    """
    counts = _count_with(backend, base, count_gained)
    rewriter = Rewriter(writer, created_at_millis, prove=True)
    node = _build_of(entries, rewriter)
    writer.flush()
    if not rewriter.is_proved():
        raise Corrupt(_FAILED)
    return Appended(node, counts, is_bulk=True)


def _flush_heaviest(node: Node, created_at_millis: int, writer: NodeWriter, size: int, most: int) -> Node:
    """Return a root whose heaviest children were given their messages, so that ``size`` bytes more have room."""
    below = max(writer.target_bytes - size, writer.target_bytes // 2)
    room = max(0, writer.target_bytes - size)
    of_root = heaviest_children(min(node.table_bytes() + most // 2, room))
    is_large = node.estimated_bytes() > writer.target_bytes  # made by an older writer
    rewriter = Rewriter(writer, created_at_millis, prove=is_large, partial=True)
    flushed = _flush(node, of_root, heaviest_children(below), rewriter)
    if is_large and not rewriter.is_proved():
        raise Corrupt(_FAILED)
    return flushed


def push_down(node: Node, most: int, created_at_millis: int, writer: NodeWriter) -> Node:
    """Return a root with the same meaning that is not larger than the target of a node: proved.

    The heaviest children get their messages, until half of the ``most`` bytes of a root's buffer are free; so do
    theirs, until each node fits. A root that is a leaf becomes a tree. Costs what it writes, and reads as many nodes.
    Its files are written when this returns.

    Raises:
        Corrupt: the tree is damaged, or the proof failed.
    """
    rewriter = Rewriter(writer, created_at_millis, prove=True, partial=True)
    if node.is_leaf:
        pushed = _build(node, rewriter)
    else:
        of_root = heaviest_children(min(node.table_bytes() + most // 2, writer.target_bytes))
        of_others = PayingChildren(writer.order, 0).over(writer.target_bytes)
        pushed = _flush(node, of_root, of_others, rewriter)
    if max(pushed.estimated_bytes(), rewriter.largest_bytes) > writer.target_bytes:  # nodes that were joined
        rewriter = Rewriter(writer, created_at_millis, prove=True)
        pushed = _flush(node, dirty_children, dirty_children, rewriter)
    writer.flush()
    if not rewriter.is_proved():
        raise Corrupt(_FAILED)
    return pushed


def _flush(node: Node, of_root: Policy, of_others: Policy, rewriter: Rewriter) -> Node:
    tree = rewriter.ref_of(node)
    top = rewriter.open(tree)

    def choose(work: Work) -> Choice:
        return (of_root if work is top else of_others)(work)

    tree = rewriter.flush(tree, choose)
    rewriter.open(tree)
    return rewriter.node_of(tree)


def _build(node: Node, rewriter: Rewriter) -> Node:
    """Return the root of a new tree of the entries of a leaf and the messages in it, which were too many for it."""
    changes = node.pending.columns()
    if node.keys or changes.values.null_count or not in_order(changes.keys, None, None):
        entries = _merge(Columns.of(node.keys, node.values), changes)
    else:
        entries = changes  # where nothing was, each of them is an entry as it stands
    return _build_of([entries], rewriter)


def _build_of(entries: Sequence[Columns], rewriter: Rewriter) -> Node:
    """Return the root of a new tree of entries in key order."""
    if rewriter.proof is not None:
        for rows in entries:
            rewriter.proof.fed_columns(rows)
    tree = rewriter.build(entries)
    rewriter.open(tree)
    return rewriter.node_of(tree)


def _merge(old: Columns, changes: Columns) -> Columns:
    """Return old entries with changes carried out. Raises ``Corrupt``: the proof of the result failed."""
    both = Columns.join([old, changes])
    old = both.slice(0, len(old))
    plan = plan_merge(old, changes)
    merged = both.keys.take(pa.array(plan.keys)), both.values.take(pa.array(plan.values))
    entries = Columns(*merged)
    if not is_exact(old, changes, entries, plan, None, None):
        raise Corrupt(_FAILED)
    return entries
