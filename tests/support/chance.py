"""Names that a seed repeats: of files, transactions and tables, which the product draws from ``os.urandom``."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def own_names(seed: str) -> Iterator[None]:
    """Let this thread, and those that it starts, draw names from a seed; threads that run already keep the real ones.

    Pools of earlier tests are among those: what they draw is no part of what a seed repeats.
    """
    draw, chance, lock = os.urandom, random.Random(seed), threading.Lock()
    others = {thread.ident for thread in threading.enumerate()} - {threading.get_ident()}

    def draw_bytes(size: int) -> bytes:
        if threading.get_ident() in others:
            return draw(size)
        with lock:
            return chance.randbytes(size)

    os.urandom = draw_bytes
    try:
        yield
    finally:
        os.urandom = draw
