"""The lock of a lakehouse on a disk: a ``flock`` on an empty file that stays.

A file that came and went could be held by two processes, one of them under a name that is gone. So the lock file is
never removed, and listings do not show it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from trinitylake_core.errors import UnsafeStorage
from trinitylake_core.storage.failures import TransientError

LOCK_FILE: Final = "_tmp-lock"
_PATIENCE_SECONDS: Final = 5.0
"""How long one try waits. What is done under the lock takes milliseconds, but its holder may have been stopped."""
_POLL_SECONDS: Final = 0.002
_NO_LOCKS: Final = frozenset({errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EBADF})


@contextmanager
def hold_lock(path: str) -> Iterator[None]:
    """Hold the lock at ``path``, whose directory exists, while the block runs; threads exclude each other, too.

    Raises:
        TransientError: another process held it for too long; nothing was done.
        UnsafeStorage: this file system has no locks.
        OSError: the lock file cannot be opened.
    """
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        descriptor = _open_lock(path)
        try:
            while not _try(descriptor, path):
                if time.monotonic() > deadline:
                    raise TransientError(f"another process holds the lock {path}", undone=True)
                time.sleep(_POLL_SECONDS)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                    break
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # another process removed the file, and its next holder makes another one
    try:
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # a child forked inside the block has the descriptor, too
        os.close(descriptor)


def prove_lock(path: str) -> None:
    """Prove that the file system refuses a second lock. Raises ``UnsafeStorage``, or what ``hold_lock`` does."""
    with hold_lock(path):
        descriptor = _open_lock(path)
        try:
            refused = not _try(descriptor, path)
        finally:
            os.close(descriptor)
    if not refused:
        raise UnsafeStorage(f"{path}: this file system ignores locks (flock): concurrent expirations could collide")


def _open_lock(path: str) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except PermissionError:  # another user made it; reading it is enough on a local disk
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def _try(descriptor: int, path: str) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        raise UnsafeStorage(f"{path}: this file system has no locks ({error.strerror})") from None
    return True
