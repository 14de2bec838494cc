"""The fences of cleanings: whether files that were written are void (format, section 6)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from trinitylake_core import clock, spec
from trinitylake_core.commits.backend import LakehouseBackend
from trinitylake_core.commits.confirm import write_hint
from trinitylake_core.errors import ClocksDisagree, FileMissing, StorageError
from trinitylake_core.storage import Storage
from trinitylake_core.versions import Delta, Root, RootRows, from_millis

_LOG = logging.getLogger(__name__)
FRONT_ENDS_DIFFER_MILLIS: Final = 300_000
"""How far the clocks of the front ends of one object store may be apart; more makes only renewals more frequent."""
CLOCKS_DIFFER_MILLIS: Final = 15 * 60_000
"""How far the storage's clock and that of a process may be apart. S3 refuses signatures of clocks that differ more."""
_DAY_MILLIS: Final = 86_400_000


class Fences:
    """What the fences of cleanings mean for files written since a root was read (format, section 6).

    Files written before the time of a fence are void unless a root up to it reaches them. A commit that wins
    without having lost needs no check: a fence that is older than the files was in the chain when ``began`` was read,
    and its time lies before that; a later one finds the new root in the chain and keeps what it reaches.

    What counts is when ``began`` was stored, by the storage's own clock. That is before any file of the change was,
    however many there are, in any order and however often they were sent. It may be much earlier, so a change on
    top of an old root is now and then renewed without need; once, for it then stands on the fence.
    """

    def __init__(self, storage: Storage, began: Root) -> None:
        self._storage = storage
        self._began = began
        self._seen = False

    def void(self, newer: Sequence[Delta]) -> bool:
        """Whether files written since ``began`` may be gone, now that ``newer`` came in between.

        No request without a fence among them; else one ``head``.
        """
        newest = newer[-1]
        fenced = any(root.operation == spec.OP_CLEAN for root in newer)
        self._seen = self._seen or fenced
        if not self._seen:
            return False
        return void_since(self._storage, self._began, newest) if fenced else self._began.version < newest.oldest_version


def void_since(storage: Storage, began: Root, newest: RootRows) -> bool:
    """Whether files written since ``began`` was read may be gone, by the fence in ``newest``. At most one ``head``.

    So it is where ``began`` has expired: a file of its name would be another's. The front ends of one object store may
    disagree about the time by up to :data:`FRONT_ENDS_DIFFER_MILLIS`: one that is ahead may have stored ``began``, and
    one that is behind a file that was written after it.
    """
    if began.version < newest.oldest_version:
        return True
    return stored_at(storage, began) - FRONT_ENDS_DIFFER_MILLIS < newest.void_before_millis


def stored_at(storage: Storage, root: Root) -> int:
    """Return when a root was stored, by the storage's own clock, in milliseconds; 0 if it is gone. One ``head``."""
    try:
        return storage.info(root.path).modified_millis
    except FileMissing:
        return 0


def may_be_void(backend: LakehouseBackend, base: Root) -> bool:
    """Whether files that a version reaches, or that were written since it was read, may be gone.

    For a job that cannot read something: this distinguishes damage from what `expire` and `clean` removed.
    Two ``get`` and one ``head``.
    """
    return void_since(backend.storage, base, backend.newest())


def measure_storage_time(backend: LakehouseBackend) -> int:
    """Return the time by the storage's own clock, in epoch milliseconds; never later than it is.

    It is the modification time of the hint, which is written for that: one ``put`` and one ``head``. Another writer of
    the hint does no harm.

    Raises:
        ClocksDisagree: the clock of this process shows another time. One of them is wrong, and what a fence makes void
            by a wrong one stays void.
        StorageError.
    """
    before = clock.now_millis()
    stored = read_storage_clock(backend)
    after = clock.now_millis()
    if not before - CLOCKS_DIFFER_MILLIS <= stored <= after + CLOCKS_DIFFER_MILLIS:  # it was stored in between
        raise ClocksDisagree(
            f"the clock of the storage {backend.storage.root} shows {show_time(stored)}, and that of this process "
            f"{show_time(after)}: one of them is wrong, and nothing was committed. Correct it, and run this again"
        )
    return stored


def refuse_future(backend: LakehouseBackend, decided_millis: int) -> None:
    """Refuse a time by which was decided what is old, if it is later than the storage's clock shows.

    It was read before, once: two clocks that agree by now say nothing about it. One ``put`` and one ``head``.

    Raises:
        ClocksDisagree: it is later, or the clocks disagree now.
        StorageError.
    """
    stored = measure_storage_time(backend)
    if decided_millis > stored + CLOCKS_DIFFER_MILLIS:
        raise ClocksDisagree(
            f"the clock of this process showed {show_time(decided_millis)} when it was decided what is old, and the "
            f"clock of the storage {backend.storage.root} shows {show_time(stored)}: nothing was committed. Find out "
            "why the clock jumped, and run this again"
        )


def read_storage_clock(backend: LakehouseBackend) -> int:
    """Return when the storage stored a hint that is written for that, by its own clock, in epoch milliseconds.

    One ``put`` and one ``head``. Raises ``StorageError``.
    """
    write_hint(backend.storage, backend.newest_seen.version)
    try:
        return backend.storage.info(spec.HINT_FILE).modified_millis
    except FileMissing:
        raise StorageError(f"the clock of {backend.storage.root} cannot be read: no hint can be written") from None


def storage_time(backend: LakehouseBackend) -> int:
    """Return the time from which a cleaning counts the ages of files, by the storage's own clock.

    It is at most a day after the newest version. So even where one clock stamps everything, and jumps, nothing goes
    that was written in the safety age before that version, and no fence lies more than a day after it.
    One ``put`` and one ``head``. Raises as :func:`measure_storage_time`.
    """
    stored = measure_storage_time(backend)
    newest = backend.newest_seen
    if newest.created_at_millis - stored > CLOCKS_DIFFER_MILLIS:
        _LOG.warning(
            "version %d is dated %s, and the clock of the storage shows %s: the clock of its writer was ahead",
            newest.version,
            show_time(newest.created_at_millis),
            show_time(stored),
        )
    if not newest.created_at_millis:  # the writer of another implementation, which does not say
        return stored
    return min(stored, newest.created_at_millis + _DAY_MILLIS)


def show_time(millis: int) -> str:
    """Return a time in epoch milliseconds for people."""
    return from_millis(millis).isoformat(timespec="seconds").replace("+00:00", "Z")
