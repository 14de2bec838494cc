"""Proofs that a store decides, in tests that count requests or let each of them fail: made before, and once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from trinitylake_core.errors import UnsafeStorage
from trinitylake_core.storage import checked, open_storage


def prove_for_long(root: str, options: Mapping[str, Any]) -> None:
    """Prove that a store creates and replaces exclusively; this process asks for no further proof of its bucket."""
    storage = open_storage(root, options)
    storage.prove_exclusive_create()
    with suppress(UnsafeStorage):  # a test may want a store without it
        storage.prove_compare_and_set()
    for promise in checked._promises.values():
        promise._ends_at = math.inf
        promise._uses_left = 1 << 60


def forget_proofs() -> None:
    """Let this process know of no proof, as one that has just started."""
    checked._promises.clear()
