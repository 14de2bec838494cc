"""The flush of a root by a commit: small roots keep small commits cheap (format, section 4)."""

from __future__ import annotations

from trinitylake_core.tree.node import Messages, Node
from trinitylake_core.tree.nodestore import NodeWriter
from trinitylake_core.tree.rewrite import Rewriter
from trinitylake_core.tree.subtree import heaviest_children
from trinitylake_core.versions import Root


def flushed_for(writer: NodeWriter, base: Root, own: Messages, stamp: int, buffer_bytes: int) -> Node:
    """Return the node of ``base``, its older messages pushed down if with ``own`` the root would grow too large.

    That is: a write buffer of more than ``buffer_bytes``, which every commit writes again, or a node over its target.
    Then the heaviest children get their messages, until half of either is free; about one ``put`` per such child. So a
    flush is rare: all commits until the buffer is full again write nothing but the root.
    """
    node, target = base.node, writer.target_bytes
    size, buffered = own.nbytes(), node.buffer.nbytes()
    if not buffered or (buffered + size <= buffer_bytes and node.estimated_bytes() + size <= target):
        return node
    rewriter = Rewriter(writer, stamp)
    tree = rewriter.ref_of(node)
    top, below = rewriter.open(tree), max(target - size, target // 2)
    room = node.table_bytes() + buffer_bytes // 2
    of_root, of_others = heaviest_children(min(room, below)), heaviest_children(below)
    tree = rewriter.flush(tree, lambda work: (of_root if work is top else of_others)(work))
    rewriter.open(tree)
    return rewriter.node_of(tree)
