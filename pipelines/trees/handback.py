"""What a task hands back: a subtree as a file, or its root where that is underfull; and how a driver takes it over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from pipelines.engine.model import BINARY, INT, LONG, TEXT
from trinitylake_core.tree.node import Node
from trinitylake_core.tree.nodefile import decode, encode
from trinitylake_core.tree.nodestore import NodeWriter
from trinitylake_core.tree.proof import Range
from trinitylake_core.tree.rewrite import Rewriter
from trinitylake_core.tree.subtree import Ref

HANDED_BACK: Final = pa.schema(
    {
        "path": TEXT, "inline": BINARY, "height": INT, "low": TEXT, "high": TEXT, "keys": LONG, "messages": LONG,
    }
)  # fmt: skip
"""The columns of :func:`subtree_result`."""


def subtree_result(rewriter: Rewriter, writer: NodeWriter, tree: Ref) -> dict[str, Any]:
    """Flush the writer, and return what a driver needs to join the subtree; an underfull root as its bytes.

    What is handed over is out of the proof of ``rewriter``; the driver takes it into its own.
    """
    rewriter.open(tree)
    inline = None
    if tree.work is not None and len(tree.work.keys) < writer.min_keys:
        node = rewriter.node_of(tree)
        inline = bytes(encode(node, writer.order))
        keys, messages = node.subtree_keys, node.subtree_messages
    else:
        rewriter.leave(rewriter.seal(tree))
        keys, messages = tree.keys, tree.messages
    writer.flush()
    low, high = tree.within
    where = {"path": tree.path, "inline": inline, "height": tree.height, "low": low, "high": high}
    return where | {"keys": keys, "messages": messages}


def root_of(row: Mapping[str, Any], order: int) -> Ref | Node:
    """Return the subtree that :func:`subtree_result` wrote: a file, or its underfull root."""
    if row["inline"] is None:
        within = row["low"], row["high"]
        return Ref(row["height"], path=row["path"], keys=row["keys"], messages=row["messages"], within=within)
    return decode(row["inline"], "a node returned by a task", order)


def adopt(rewriter: Rewriter, root: Ref | Node, within: Range) -> Ref:
    """Return the result of a task as a subtree of a rewriter, and add it to its proof."""
    if isinstance(root, Node):
        return rewriter.ref_of(root, within)
    rewriter.enter(root)
    return root
