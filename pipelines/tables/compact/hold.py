"""The hold on the fence of ``tables clean``: what a compaction writes must not be void before it is committed.

It is a saved transaction without changes, which lives as long as the compaction: a cleaning keeps its fence below the
start of the oldest one that is alive. It is a courtesy, not what safety rests on: without it the commit is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from trinitylake_core import Lakehouse
from trinitylake_core.errors import TrinityLakeError, UnsafeStorage

_LOG = logging.getLogger(__name__)
REASON = "tables compact is under way"


@contextmanager
def hold_fence(lake: Lakehouse) -> Iterator[None]:
    """Hold the fence back while the block runs. Two ``put``, and two ``get`` and a ``put`` at the end.

    A process that dies leaves its hold, which ends with ``txn_ttl_millis``. Raises ``StorageError``.
    """
    hold = lake.transaction(reason=REASON)
    try:
        hold.save()
    except UnsafeStorage as error:  # without compare-and-set no transaction is saved, and no cleaning commits a fence
        _LOG.warning("the files of this compaction are not held: %s", error)
        yield
        return
    try:
        yield
    finally:
        try:
            lake.resume_transaction(hold.id).abort()
        except TrinityLakeError as error:  # it ends by itself
            _LOG.warning("the hold %s of this compaction was not ended: %s", hold.id, error)
