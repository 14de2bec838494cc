"""Opening files and directories of a disk: below the root, whatever links lie on the way, and nothing else.

Who may write one table can put anything below the root in its directory: a link to another user's file, a pipe
without a writer, a device. So a path is resolved below the root, where a link may lead to another place inside but not
out of it, and out of the own directory of a table nowhere; a pipe is never waited for; and what is opened must be a
regular file.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import stat
import sys
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final

from trinitylake_core.errors import NotAFile
from trinitylake_core.locations import OWN_DIRECTORY

_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_WRITE: Final = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_LOOK: Final = os.O_PATH | os.O_CLOEXEC if sys.platform == "linux" else _READ
"""Only Linux can look at a file without opening it; elsewhere opening without waiting does no harm."""
DIRECTORY: Final = _LOOK | os.O_DIRECTORY
"""The flags with which a directory is opened to name what is in it."""
_OPENAT2: Final = 437
"""The number of Linux' system call, on every machine; the C library has no function for it."""
_RESOLVE_NO_SYMLINKS: Final = 0x04
_RESOLVE_BENEATH: Final = 0x08
OWN: Final = re.compile(f"({OWN_DIRECTORY})/(.+)", re.DOTALL)
"""The own directory of a table in the path of a file, and the path in it: no link leads there, and none out of it."""
_LINKS: Final = frozenset({errno.ELOOP, errno.EXDEV})
_NOT_REGULAR: Final = "is a directory, a pipe, a socket or a device, not a file"
_LEADS_OUT: Final = "is a link, or lies behind one, that leads out of the root directory or is absolute"
_IS_LINK: Final = "is a link, or lies behind one: what is there may belong to others"
_NEW_FILE: Final = 0o666
"""The mode of a new file, before the umask."""


class _How(ctypes.Structure):
    """The argument of ``openat2``."""

    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def open_for_reading(directory: str, path: str, own: re.Pattern[str]) -> int:
    """Return the descriptor of a regular file, by its path below a directory. Waits for nothing.

    ``own`` finds the directory in the path that no link leads to, nor out of.

    Raises:
        NotAFile: something else is there, or a link that leads out.
        OSError: it cannot be opened.
    """
    return _open(directory, path, _READ, own)


def describe_file(directory: str, path: str, own: re.Pattern[str]) -> os.stat_result:
    """Return what the disk knows of a regular file, by its path below a directory. Raises as :func:`open_for_reading`.

    The file itself is not opened where the system can do without, so no right to read it is needed.
    """
    descriptor = _open(directory, path, _LOOK, own)
    try:
        return os.fstat(descriptor)
    finally:
        os.close(descriptor)


def open_for_writing(directory: str, path: str, flags: int, own: re.Pattern[str]) -> int:
    """Return the descriptor of a file that is made unless it is there, by its path below a directory.

    ``flags`` are more of ``os.open``. A link may lead to another place below the directory, and nowhere else.
    Raises as :func:`open_for_reading`.
    """
    return _open(directory, path, _WRITE | flags, own, _NEW_FILE)


def open_directory(directory: str, path: str) -> int:
    """Return the descriptor of a directory, by its path below another one, in which a name is to be made.

    A link on the way may lead to another place below. Raises as :func:`open_for_reading`.
    """
    try:
        return _open_below(directory, path, DIRECTORY, OWN)
    except OSError as error:
        if error.errno not in _LINKS:
            raise
        raise NotAFile(f"{directory}: {path!r} {_LEADS_OUT}", path=path) from None


def open_directory_without_links(root: int, path: str) -> int:
    """Return the descriptor of a directory, by its path below an open one, in which a name is to be removed.

    Raises ``NotAFile`` for a link on the way, also for one that stays inside, and ``OSError``.
    """
    try:
        if _syscall is None:
            return open_without_links(root, path, DIRECTORY)
        return _openat2(root, path, _how(DIRECTORY, 0, _RESOLVE_BENEATH | _RESOLVE_NO_SYMLINKS))
    except OSError as error:
        if error.errno not in _LINKS:
            raise
        raise NotAFile(f"{path!r} {_IS_LINK}", path=path) from None


def make_directories(directory: str, path: str) -> None:
    """Make directories by their path below another one, unless they are there. Raises ``NotAFile``, ``OSError``."""
    here = os.open(directory, DIRECTORY)
    try:
        for name in path.split("/"):
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=here)
            below = open_directory_without_links(here, name)
            os.close(here)
            here = below
    except OSError as error:
        if error.errno not in {errno.ENOTDIR, errno.ENAMETOOLONG}:
            raise
        raise NotAFile(f"{directory}: {path!r} lies below a file, or its name is too long", path=path) from None
    finally:
        os.close(here)


def _open(directory: str, path: str, flags: int, own: re.Pattern[str], mode: int = 0) -> int:
    where = f"{directory}: {path!r}"
    try:
        if directory == "/" and not own.match(path):  # no link leads out of the root of the file system
            descriptor = os.open(f"/{path}", flags, mode)
        else:
            descriptor = _open_below(directory, path, flags, own, mode)
    except OSError as error:
        if error.errno in _LINKS:
            raise NotAFile(f"{where} {_LEADS_OUT}", path=path) from None
        if error.errno == errno.ENXIO:  # a socket, or a device that is not there
            raise NotAFile(f"{where} {_NOT_REGULAR}", path=path) from None
        raise
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise NotAFile(f"{where} {_NOT_REGULAR}", path=path)
    return descriptor


def _open_below(directory: str, path: str, flags: int, own: re.Pattern[str], mode: int = 0) -> int:
    """Open a path below a directory. Raises ``OSError``, one of :data:`_LINKS` for a link that leads out."""
    root = os.open(directory, DIRECTORY)
    try:
        if _syscall is None:
            return open_without_links(root, path, flags, mode)
        match = own.match(path)
        if match is not None:
            above = root
            root = _openat2(above, match[1], _how(DIRECTORY, 0, _RESOLVE_BENEATH | _RESOLVE_NO_SYMLINKS))
            os.close(above)
            path = match[2]
        return _openat2(root, path, _how(flags, mode, _RESOLVE_BENEATH))
    finally:
        os.close(root)


@lru_cache(maxsize=64)
def _how(flags: int, mode: int, resolve: int) -> _How:
    """Return an argument of ``openat2``, which does not change it."""
    return _How(flags, mode, resolve)


def _openat2(root: int, path: str, how: _How) -> int:
    size = ctypes.sizeof(how)
    name = os.fsencode(path)
    while True:
        descriptor: int = _syscall(
            _OPENAT2,
            root,
            name,
            ctypes.byref(how),
            size,
        )
        if descriptor >= 0:
            return descriptor
        number = ctypes.get_errno()
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))


def open_without_links(root: int, path: str, flags: int, mode: int = 0) -> int:
    """Open a path below an open directory, name by name. Every link is refused, also one that stays inside."""
    *above, name = [each for each in path.split("/") if each]
    step = DIRECTORY | os.O_NOFOLLOW
    directory = os.dup(root)
    try:
        for each in above:
            _refuse_link(directory, each)
            below = os.open(each, step, dir_fd=directory)
            os.close(directory)
            directory = below
        with suppress(FileNotFoundError):  # the call that opens it says so, or makes it
            _refuse_link(directory, name)
        return os.open(name, flags | os.O_NOFOLLOW, mode, dir_fd=directory)
    finally:
        os.close(directory)


def _refuse_link(directory: int, name: str) -> None:
    """Raise ``OSError`` for a link; one that is made after this is not followed, and its error says less."""
    status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    if stat.S_ISLNK(status.st_mode):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def _find_syscall() -> Any:
    """Return the C library's ``syscall`` if this system has ``openat2``; else ``None``.

    A kernel before 5.6 does not have it, and filters of system calls may refuse it.
    """
    if sys.platform != "linux":
        return None
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    how = _How(DIRECTORY, 0, _RESOLVE_BENEATH)
    root = os.open("/", DIRECTORY)
    try:
        descriptor = syscall(
            _OPENAT2,
            root,
            b".",
            ctypes.byref(how),
            ctypes.sizeof(how),
        )
    finally:
        os.close(root)
    if descriptor < 0:
        return None
    os.close(descriptor)
    return syscall


_syscall: Final = _find_syscall()
