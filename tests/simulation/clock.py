"""Time, sleep and randomness of actors come from their scheduler; all other threads keep the real ones.

What a node file says is read once: thousands of runs read the same bytes, and schedules do not change them.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa

from tests.simulation import store as stores
from tests.simulation.scheduler import current
from trinitylake_core.iceberg import border
from trinitylake_core.tree import nodefile
from trinitylake_core.tree.noderows import NodeRows

_REMEMBERED: Final = 20_000
_read_batch = lru_cache(maxsize=_REMEMBERED)(nodefile.read_batch)
_rows = nodefile._rows
_time_ns, _time, _sleep, _urandom, _uniform = time.time_ns, time.time, time.sleep, os.urandom, random.uniform


def _sim_time_ns() -> int:
    here = current()
    return _time_ns() if here is None else here.run.now_millis(here.actor) * 1_000_000


def _sim_time() -> float:
    here = current()
    return _time() if here is None else here.run.now_millis(here.actor) / 1000


def _sim_sleep(seconds: float) -> None:
    here = current()
    if here is None:
        _sleep(seconds)
    else:
        here.run.now_millis(here.actor)  # whether it comes before or after what others do makes a difference
        here.run.store.now_millis += int(seconds * 1000)


def _sim_urandom(size: int) -> bytes:
    """Return random bytes for ``uuid.uuid4`` and names of files."""
    here = current()
    return _urandom(size) if here is None else here.actor.random.randbytes(size)


def _sim_uniform(low: float, high: float) -> float:
    here = current()
    return _uniform(low, high) if here is None else here.actor.random.uniform(low, high)


def _scheduled(kind: str, path: str, action: Callable[[], Any]) -> Any:
    here = current()
    return action() if here is None else here.run.request(kind, path, action)


_rows_read: dict[int, tuple[pa.RecordBatch, NodeRows]] = {}
"""What was found in batches, by their identity; each holds its batch, so that no other one has that identity."""


def _sim_rows(batch: pa.RecordBatch, *where: Any) -> NodeRows:
    known = _rows_read.get(id(batch))
    if known is None:
        if len(_rows_read) == _REMEMBERED:
            _rows_read.clear()
        known = _rows_read[id(batch)] = (batch, _rows(batch, *where))
    return known[1]


def _sim_read_batch(data: bytes | memoryview, path: str) -> tuple[pa.RecordBatch, bool]:
    return _read_batch(bytes(data), path)


@contextmanager
def own_time() -> Iterator[None]:
    """Let time, sleep and randomness of actors come from their scheduler; all other threads keep the real ones."""
    patches: list[tuple[Any, str, Any, Any]] = [
        (time, "time_ns", _time_ns, _sim_time_ns),
        (time, "time", _time, _sim_time),
        (time, "sleep", _sleep, _sim_sleep),
        (os, "urandom", _urandom, _sim_urandom),
        (random, "uniform", _uniform, _sim_uniform),
        (stores, "scheduled", stores.scheduled, _scheduled),
        (nodefile, "read_batch", nodefile.read_batch, _sim_read_batch),
        (nodefile, "_rows", _rows, _sim_rows),
        (border, "_SCHEMES", border._SCHEMES, border._SCHEMES | {"sim"}),
    ]
    for module, name, _, ours in patches:
        setattr(module, name, ours)
    try:
        yield
    finally:
        for module, name, theirs, _ in patches:
            setattr(module, name, theirs)
