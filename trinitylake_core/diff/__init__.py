"""What changed between two versions (``docs/architecture.md``). Structural: shared files are never opened.

A child that both sides point to, with the same messages waiting for it on both, means the same on both
sides and is skipped. The rest is compared as two streams in key order. The modules, from the ground up:

* ``changes``: what a comparison yields;
* ``stream``: one side, in key order, whose subtrees are opened only on request;
* ``compare``: two streams against each other;
* ``holes``: a comparison around nodes that cannot be read;
* ``unshared``: where two trees differ, as far as their tops tell; for those who share the work out.
"""

from __future__ import annotations

from trinitylake_core.diff.changes import ADDED, CHANGED, REMOVED, Change, Row, changes
from trinitylake_core.diff.compare import diff_foreign, diff_nodes
from trinitylake_core.diff.holes import NotCompared, diff_around_holes
from trinitylake_core.diff.stream import EVERYWHERE, Span
from trinitylake_core.diff.unshared import Unshared, unshared

__all__ = [
    "ADDED",
    "CHANGED",
    "EVERYWHERE",
    "REMOVED",
    "Change",
    "NotCompared",
    "Row",
    "Span",
    "Unshared",
    "changes",
    "diff_around_holes",
    "diff_foreign",
    "diff_nodes",
    "unshared",
]
