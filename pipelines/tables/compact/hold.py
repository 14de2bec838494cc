"""The hold on the fence of ``tables clean``: what a compaction writes must not be void before it is committed.

It is a saved transaction without changes, which lives as long as the compaction: a cleaning keeps its fence below the
start of the oldest hold that is alive; of other saved transactions it marks what they name. It is a courtesy, not what
safety rests on: without it the commit is refused.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from pipelines.reach.kept_roots import CLOCK_SLACK_MILLIS
from trinitylake_core import Lakehouse, spec
from trinitylake_core.definitions import decode_transaction
from trinitylake_core.errors import CorruptNode, FileMissing, TrinityLakeError, UnsafeStorage
from trinitylake_core.storage import Storage
from trinitylake_core.transactions.saved import running_root

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


def held_since(storage: Storage, live: Iterable[str]) -> int | None:
    """Return a time before the oldest hold among live saved transactions was saved; ``None`` without one.

    Args:
        storage: that of the lakehouse.
        live: the paths of the transactions. Two ``get`` and a ``head`` each.

    Raises ``CorruptDefinition``, ``StorageError``.
    """
    found: list[int] = []
    for path in live:
        try:
            definition = decode_transaction(storage.read(path), path)
            state = json.loads(running_root(storage, definition).system.get(spec.TXN_STATE) or "{}")
            saved_at = storage.info(path).modified_millis
        except (FileMissing, CorruptNode):  # it has ended since
            continue
        if state.get("reason") == REASON:
            found.append(min(definition.began_at_millis, saved_at) - CLOCK_SLACK_MILLIS)
    return min(found, default=None)
