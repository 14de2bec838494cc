"""Single files of a disk: written whole, overwritten in place, described, listed, and removed.

Nothing here retries, and nothing is durable when it returns: ``durability`` is the module for that.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from trinitylake_core.storage.disk_lock import LOCK_FILE
from trinitylake_core.storage.disk_opening import open_for_writing
from trinitylake_core.storage.port import Data, FileInfo

MISSING = frozenset({errno.ENOENT, errno.ENOTDIR})
NO_SUCH_FILE = MISSING | {errno.ENAMETOOLONG}
"""Of a file that is asked for: none can have a name that is too long."""
DENIED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
TRANSIENT = frozenset({errno.EAGAIN, errno.ESTALE, errno.ETIMEDOUT, errno.EBUSY, errno.EMFILE, errno.ENFILE})
NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EXDEV})
_CLEAR_TEXTS: Final = {
    errno.EISDIR: "is a directory, not a file",
    errno.ENOSPC: "no space left on the disk",
    errno.EDQUOT: "the disk quota is used up",
    errno.ENAMETOOLONG: "the name is too long for this file system",
}
_IN_PLACE_BYTES: Final = 64
"""What may be written in place: a hint has ten bytes at the most."""
TEMPORARY_PREFIX: Final = "_tmp-"
_TEMPORARY: Final = re.compile(r"_tmp-[0-9a-f]{32}")


def is_temporary(name: str) -> bool:
    """Whether a file in the root directory is this library's own scratch file, or its lock."""
    return _TEMPORARY.fullmatch(name) is not None or name == LOCK_FILE


def write_file(directory: str, path: str, data: Data, flags: int, own: re.Pattern[str]) -> None:
    """Write a whole file below a directory, created with ``flags``. Raises ``OSError``, ``NotAFile``."""
    descriptor = open_for_writing(directory, path, flags, own)
    try:
        written = os.write(descriptor, data)
        while written < len(data):
            written += os.write(descriptor, memoryview(data)[written:])
    finally:
        os.close(descriptor)


def overwrite_small(target: str, data: Data) -> bool:
    """Write over a small file of the same length in place, and return whether that was done. Waits for nothing.

    It costs a tenth of a new file, and the next sync has no directory to write. A file of the same length is never cut
    short, and not empty after a power failure. In theory a reader sees some old and some new bytes: only for content
    that readers do not trust. A link, or a file with further names, is a copy that must stay as it is.
    """
    if len(data) > _IN_PLACE_BYTES:
        return False
    try:
        descriptor = os.open(target, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:  # none yet, a link, not ours to write: the replacement reports what is wrong
        return False
    try:
        status = os.fstat(descriptor)
        is_file = stat.S_ISREG(status.st_mode)
        alone = is_file and status.st_nlink == 1 and status.st_size == len(data)
        return alone and os.write(descriptor, data) == len(data)
    finally:
        os.close(descriptor)


def remove_quietly(path: str) -> None:
    """Remove a temporary file; one that cannot be removed stays until `clean` removes it."""
    with suppress(OSError):
        os.unlink(path)


def describe(entry: os.DirEntry[str], path: str) -> FileInfo | None:
    """Return the list entry of a plain file; ``None`` for anything else and for a file that was just removed."""
    try:
        if not entry.is_file(follow_symlinks=False):
            return None
        status = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None
    return FileInfo(path, status.st_size, status.st_mtime_ns // 1_000_000)


def explain(error: OSError) -> str:
    """Return what went wrong, in words."""
    return _CLEAR_TEXTS.get(error.errno or 0) or error.strerror or str(error)


def scan(
    base: str,
    directory: str,
    start: str = "",
    wanted: Callable[[str], bool] | None = None,
) -> tuple[list[FileInfo], list[str]]:
    """Return files and directories in ``directory`` below ``base`` whose names begin with ``start``.

    Of files only those whose paths are ``wanted``; the others are not read. Links are not followed, temporary
    files are left out. Raises ``OSError``.
    """
    files: list[FileInfo] = []
    directories: list[str] = []
    try:
        with os.scandir(base + directory) as entries:
            for entry in entries:
                name = entry.name
                if not name.startswith(start) or (not directory and is_temporary(name)):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    directories.append(directory + name)
                elif wanted is not None and not wanted(directory + name):
                    continue
                elif (info := describe(entry, directory + name)) is not None:
                    files.append(info)
    except (FileNotFoundError, NotADirectoryError):
        pass
    return files, directories


def remove_temporary(directory: str, limit: float) -> int:
    """Remove temporary files last changed before ``limit``, in epoch seconds; return how many. Raises ``OSError``.

    The lock stays: another process may hold it.
    """
    removed = 0
    with suppress(FileNotFoundError), os.scandir(directory) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):  # another process was faster
                if _TEMPORARY.fullmatch(entry.name) and entry.stat(follow_symlinks=False).st_mtime <= limit:
                    remove_quietly(entry.path)
                    removed += 1
    return removed
