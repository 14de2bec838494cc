"""What changed between two versions (``docs/architecture.md``). Structural: shared files are never opened.

A child that both sides point to, with the same messages waiting for it on both, means the same on both
sides and is skipped. The rest is compared as two streams in key order. The modules, from the ground up:

* ``stream``: one side, in key order, whose subtrees are opened only on request;
* ``descent``: both sides from the top down: which subtrees they do not share, and which leaves will be read;
* ``compare``: two streams against each other, also around nodes that cannot be read.
"""

from __future__ import annotations

from trinitylake_core.diff.compare import (
    ADDED,
    CHANGED,
    REMOVED,
    Change,
    Difference,
    NotCompared,
    as_change,
    changes,
    diff_damaged,
    diff_nodes,
    diff_trees,
)
from trinitylake_core.diff.descent import DifferingSubtrees, differing_subtrees
from trinitylake_core.diff.stream import EVERYWHERE, Span
