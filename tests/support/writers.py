"""Processes for races: forked off one that has no threads and has everything loaded."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from typing import Any


def forking() -> Any:
    """Return a context whose processes are forked off such a process."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.support.warm"])
    return context


def pool(processes: int) -> ProcessPoolExecutor:
    """Return a pool of such processes."""
    return ProcessPoolExecutor(processes, mp_context=forking())
