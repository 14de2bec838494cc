"""A local (or mounted) disk: fast, and safe against being killed or losing power at any moment.

Storage options: ``durable`` (default true; false switches every fsync off, for throw-away lakehouses and
tests), ``sync`` (``auto``, ``files``, ``filesystem``: how a barrier is made), and the common ones of
``requests.CommonOptions``. ``max_concurrency`` is 1 here, because threads do not pay on a local disk; raise it on a
network mount.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
import stat
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, ClassVar, Final

from trinitylake_core.errors import (
    AlreadyExists,
    FileMissing,
    InvalidInput,
    StorageDenied,
    StorageError,
    TrinityLakeError,
    UnsafeStorage,
)
from trinitylake_core.storage.base import BaseStorage
from trinitylake_core.storage.failures import Outdated, TransientError
from trinitylake_core.storage.port import Data, DeleteResult, FileInfo, Tagged
from trinitylake_core.storage.requests import CommonOptions, take_flag
from trinitylake_core.storage.root_uris import local_path

# -- the lock --------------------------------------------------------------------------------------
#
# The lock is a ``flock`` on an empty file that stays: a file that came and went could be held by two, one of them
# under a name that is gone. It never has to be removed, and listings do not show it.

LOCK_FILE: Final = "_tmp-lock"
_PATIENCE_SECONDS: Final = 5.0
"""How long one try waits. What is done under the lock takes milliseconds, but its holder may have been stopped."""
_POLL_SECONDS: Final = 0.002
_NO_LOCKS: Final = frozenset({errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EBADF})


@contextmanager
def locked(path: str) -> Iterator[None]:
    """Hold the lock at ``path``, whose directory exists, while the block runs; threads exclude each other, too.

    Raises:
        TransientError: another process held it for too long; nothing was done.
        UnsafeStorage: this file system has no locks.
        OSError: the lock file cannot be opened.
    """
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        descriptor = _opened(path)
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
    """Prove that the file system really refuses a second lock. Raises ``UnsafeStorage``, and as :func:`locked` does."""
    with locked(path):
        descriptor = _opened(path)
        try:
            refused = not _try(descriptor, path)
        finally:
            os.close(descriptor)
    if not refused:
        raise UnsafeStorage(f"{path}: this file system ignores locks (flock): concurrent expirations could collide")


def _opened(path: str) -> int:
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


MISSING = frozenset({errno.ENOENT, errno.ENOTDIR})
_DENIED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_TRANSIENT = frozenset({errno.EAGAIN, errno.ESTALE, errno.ETIMEDOUT, errno.EBUSY, errno.EMFILE, errno.ENFILE})
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


def write_file(path: str, data: Data, flags: int) -> None:
    """Write a whole file, created with ``flags``. Raises ``OSError``."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | flags, 0o666)
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
        alone = stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and status.st_size == len(data)
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


def _explain(error: OSError) -> str:
    return _CLEAR_TEXTS.get(error.errno or 0) or error.strerror or str(error)


def scan(
    base: str, directory: str, start: str = "", wanted: Callable[[str], bool] | None = None
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


# -- directories -----------------------------------------------------------------------------------
#
# Making a directory costs a local disk as much as writing a small file, and a young lakehouse has next to no two
# files in one. Names of nodes are random: so a writer of many lists once which directories are there, and takes from
# then on, of a few names, one that needs no new directory. Object stores have no directories, and names stay spread
# evenly there.

_LOOK_AFTER: Final = 32
"""For how many new directories looking which ones are there pays; looking costs as much as making some tens."""
_TRIES: Final = 16
"""How many names are tried; making a directory costs as much as some tens of names."""
_LEVELS: Final = 3
"""How deep files of optimised paths lie (format, section 2)."""


class Directories:
    """What is known of the directories below ``root``. Others may make and remove some: all of it are guesses."""

    def __init__(self, root: str, added: Callable[[str], None]) -> None:
        """Know nothing yet; ``added`` is called with each directory in which a name may not be durable yet."""
        self._root = root
        self._added = added
        self._known: set[str] = set()
        self._places: set[str] = set()
        """The directories in optimised paths: directories that are there, or will be made."""
        self._new = 0
        """How many of them were not there when a name was picked, as far as was known."""
        self._looked = False

    def ensure(self, directory: str) -> None:
        """Make a directory and those above it unless they are known to be there. Raises ``OSError``.

        One below the root that is there was made by another process, which may have died before it was durable.
        """
        if directory in self._known:
            return
        above = os.path.dirname(directory)
        inside = directory.startswith(self._root.rstrip("/") + "/")
        if inside:
            self.ensure(above)
        if not os.path.isdir(directory):
            self.ensure(above)
            try:
                os.mkdir(directory)
            except FileExistsError:
                if not os.path.isdir(directory):
                    text = "a file stands where a directory should be"
                    raise NotADirectoryError(errno.ENOTDIR, text, directory) from None
            except FileNotFoundError:
                self._known.clear()
                os.makedirs(directory, exist_ok=True)
            inside = True
        if inside:
            self._added(above)
        self._known.add(directory)

    def forget(self) -> None:
        """Know nothing any more: a directory that was there is gone."""
        self._known.clear()

    def pick(self, make: Callable[[], str]) -> str:
        """Return one of the paths that ``make`` returns: below a directory that is there already, if some are tried."""
        path = make()
        if self._new >= _LOOK_AFTER:
            if not self._looked:
                self._looked = True
                cut, level = len(self._root.rstrip("/")) + 1, [self._root]
                for _ in range(_LEVELS):
                    above, level = level, []
                    for each in above:
                        with suppress(OSError), os.scandir(each) as entries:
                            level += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
                self._places.update(each[cut:] for each in level)
            for _ in range(_TRIES - 1):
                if path[: path.rfind("/")] in self._places:
                    return path
                path = make()
        place = path[: path.rfind("/")]
        if place not in self._places:
            self._places.add(place)
            self._new += 1
        return path


# -- durability ------------------------------------------------------------------------------------
#
# Measured on ext4: one ``syncfs`` is faster than an ``fsync`` per file from two files on, ten times at thirty. It
# also waits for what other programs wrote to the same file system; ``sync="files"`` avoids that.
#
# Before Linux 5.8 ``syncfs`` reports success although data could not be written. There, and where there is
# none, files are synced one by one.

SYNC_MODES: Final = ("auto", "files", "filesystem")
_SINGLE_FILES: Final = 1
_REMEMBERED_FILES: Final = 4096


def reports_errors(release: str) -> bool:
    """Whether ``syncfs`` of a Linux kernel, named as ``uname -r`` does, reports data that was not written."""
    found = re.match(r"(\d+)\.(\d+)", release)
    return found is not None and (int(found[1]), int(found[2])) >= (5, 8)


def _find_syncfs() -> Callable[[int], int] | None:
    if not sys.platform.startswith("linux") or not reports_errors(os.uname().release):
        return None
    try:
        function = ctypes.CDLL(None, use_errno=True).syncfs
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_int]
    function.restype = ctypes.c_int
    return function


_syncfs = _find_syncfs()


def sync_path(path: str) -> None:
    """Make one file or directory durable; one that is gone needs no durability. Raises ``OSError``."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_filesystem(directory: str) -> None:
    """Make everything written to the file system of ``directory`` durable. Raises ``OSError``."""
    if _syncfs is None:
        raise OSError(errno.ENOSYS, "this system has no syncfs that reports errors", directory)
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        if _syncfs(descriptor) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), directory)
    finally:
        os.close(descriptor)


class Unsynced:
    """The files and directories written since the last barrier. Thread-safe.

    A flush by one thread also covers what the others wrote; a thread that finds nothing left to
    flush still waits for the flush under way, because its files may be in there.
    """

    def __init__(self, directory: str, mode: str) -> None:
        self._directory = directory
        self._mode = mode
        self._state = threading.Lock()
        self._flushing = threading.Lock()
        self._files: list[str] = []
        self._directories: set[str] = set()
        self._too_many = False
        self._others = False
        self._broken: str | None = None

    def file(self, path: str, parent: str | None) -> None:
        """Remember a file that was written, and the directory its name stands in unless the name may get lost."""
        with self._state:
            if self._too_many:
                return
            self._files.append(path)
            if parent is not None:
                self._directories.add(parent)
            if len(self._files) > _REMEMBERED_FILES and self._mode != "files" and _syncfs is not None:
                self._too_many = True
                self._files.clear()
                self._directories.clear()

    def directory(self, path: str) -> None:
        """Remember a directory in which a name was added or removed."""
        with self._state:
            if not self._too_many:
                self._directories.add(path)

    def cover_others(self) -> bool:
        """Have each flush from now on cover what any process wrote below the directory; return whether that works."""
        self._others = self._mode != "files" and _syncfs is not None
        return self._others

    def any(self) -> bool:
        """Whether a flush has anything to do or to wait for."""
        with self._state:
            waiting = self._files or self._directories or self._too_many or self._others
            return bool(waiting) or self._flushing.locked()

    def flush(self, *, others: bool = True) -> None:
        """Make everything remembered durable. Raises ``StorageError``, from then on for ever.

        ``others=False`` leaves out what other processes wrote: a flush a moment ago has covered it.

        After a failed fsync the kernel may have dropped the data, and a second fsync would succeed.
        """
        with self._flushing:
            if self._broken is not None:
                raise StorageError(f"an earlier sync failed ({self._broken}); write everything again with a new handle")
            with self._state:
                files, directories, everything = self._files, self._directories, self._too_many
                everything = everything or (others and self._others)
                self._files, self._directories, self._too_many = [], set(), False
            together = self._mode == "filesystem" or (self._mode == "auto" and len(files) > _SINGLE_FILES)
            try:
                if _syncfs is not None and (everything or together):
                    sync_filesystem(self._directory)
                else:
                    for path in (*files, *directories):
                        sync_path(path)
            except OSError as error:
                self._broken = str(error)
                raise StorageError(f"cannot make {self._directory} durable: {error}") from error


# -- the storage -----------------------------------------------------------------------------------


class LocalStorage(BaseStorage):
    """Files in a directory. A link of a complete, synced temporary file is the exclusive creation."""

    DEFAULTS: ClassVar[CommonOptions] = CommonOptions(
        retry_base_seconds=0.005, retry_max_seconds=1.0, max_concurrency=1
    )

    def __init__(self, root: str, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(root, options)
        own = self._own_options
        self._durable = take_flag(own, "durable", default=True)
        self._sync_mode = own.pop("sync", "auto")
        if self._sync_mode not in SYNC_MODES:
            raise InvalidInput(f"storage option sync must be one of {', '.join(SYNC_MODES)}, not {self._sync_mode!r}")
        if own:
            raise InvalidInput(f"unknown storage option for {root}: {', '.join(sorted(map(str, own)))}")
        self._directory = local_path(root)
        self._base = self._directory.rstrip("/") + "/"
        self._unsynced = Unsynced(self._directory, self._sync_mode)
        self._directories = Directories(self._directory, self._directory_added)
        self._lock_proven = False

    def _reset_after_fork(self) -> None:
        super()._reset_after_fork()
        self._unsynced = Unsynced(self._directory, self._sync_mode)  # the parent syncs what the parent wrote

    # Directories and durability.

    def pick(self, make: Callable[[], str]) -> str:
        return self._directories.pick(make)

    def _directory_added(self, above: str) -> None:
        if self._durable:
            self._unsynced.directory(above)

    def barrier(self) -> None:
        if self._durable and self._unsynced.any():
            self._retrying("sync", "", self._unsynced.flush)

    def covered(self) -> LocalStorage:
        """Return this storage without barriers, if a barrier of this object reaches all files of the file system."""
        if not self._durable or not self._unsynced.cover_others():
            return self
        root, options = self.spec()
        return LocalStorage(root, {**options, "durable": False})

    # Raw operations.

    def _get(self, path: str) -> bytes:
        descriptor = os.open(self._base + path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            expected = os.fstat(descriptor).st_size
            data = os.read(descriptor, expected + 1)
            if len(data) <= expected and (len(data) == expected or not data):
                return data
            parts = [data]
            while data := os.read(descriptor, 1 << 20):
                parts.append(data)
            return b"".join(parts)
        finally:
            os.close(descriptor)

    def _get_range(self, path: str, begin: int, end: int) -> bytes:
        with open(self._base + path, "rb") as file:
            file.seek(begin)
            return file.read(end - begin)

    def _put(self, path: str, data: Data) -> None:
        target = self._base + path
        parent = target[: target.rindex("/")]
        self._write_in(parent, target, data, os.O_TRUNC)
        if self._durable:
            self._unsynced.file(target, parent)

    def _write_in(self, parent: str, target: str, data: Data, flags: int) -> None:
        self._directories.ensure(parent)
        try:
            write_file(target, data, flags)
        except FileNotFoundError:  # another process removed the directory since we made it
            self._directories.forget()
            self._directories.ensure(parent)
            write_file(target, data, flags)

    def create(self, path: str, data: Data) -> None:
        """Create a file durably. One ``create``, and before it one ``sync`` unless ``durable`` is false.

        Everything written through this object before, and the complete file under a temporary name,
        reaches the disk in that one barrier; only then is the file given its name.
        """
        self._guard(path)
        if not self._durable:
            self._settle(path, data, partial(self._create, path, data))
            return
        temporaries: list[str] = []  # a fresh one each try: a lost one may already carry the final name

        def write_synced() -> None:
            temporaries.append(self._new_temporary())
            self._write_in(self._directory, temporaries[-1], data, os.O_EXCL)
            self._unsynced.file(temporaries[-1], None)
            self._unsynced.flush()

        def link() -> None:
            self._link(temporaries[-1], path)
            temporaries.pop()  # it is gone: no second try to remove it

        try:
            self._retrying("sync", path, write_synced)
            self._settle(path, data, link)
        finally:
            for temporary in temporaries:
                remove_quietly(temporary)

    def _new_temporary(self) -> str:
        return f"{self._base}{TEMPORARY_PREFIX}{uuid.uuid4().hex}"

    def _create(self, path: str, data: Data) -> None:
        temporary = self._new_temporary()
        try:
            self._write_in(self._directory, temporary, data, os.O_EXCL)
            self._link(temporary, path)
        finally:
            remove_quietly(temporary)

    def _link(self, temporary: str, path: str) -> None:
        """Give a complete file its final name, and make the name durable."""
        target = self._base + path
        parent = os.path.dirname(target)
        self._directories.ensure(parent)
        try:
            os.link(temporary, target)
        except FileExistsError:
            if os.stat(temporary).st_nlink != 2:  # two names: NFS lost the answer, the link is ours
                raise AlreadyExists(f"{self.root}{path} already exists") from None
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            raise UnsafeStorage(
                f"{self.root} cannot make hard links ({error.strerror}), so it cannot create files exclusively"
            ) from None
        remove_quietly(temporary)
        if self._durable:
            self._unsynced.directory(parent)
            self._unsynced.flush(others=False)

    def replace(self, path: str, data: Data, *, durable: bool = True) -> None:
        """Rename a complete temporary file over the old one. One ``put``; synced before and after if durable.

        A hint over a hint of the same length is written in place.
        """
        self._guard(path)

        def replace() -> None:
            if durable or not overwrite_small(self._base + path, data):
                self._replace(path, data, durable=durable and self._durable)

        self._retrying("put", path, replace)
        self._moved(written=len(data))

    def _replace(self, path: str, data: Data, *, durable: bool) -> None:
        target = self._base + path
        parent = os.path.dirname(target)
        self._directories.ensure(parent)
        temporary = self._new_temporary()
        try:
            self._write_in(self._directory, temporary, data, os.O_EXCL)
            if durable:
                sync_path(temporary)
            os.replace(temporary, target)
        except BaseException:
            remove_quietly(temporary)
            raise
        if durable:
            self._unsynced.directory(parent)
            self._unsynced.flush()

    def _swap(self, path: str, data: Data, expected: Tagged) -> Tagged:
        """Replace under a lock, which excludes all other calls of compare-and-set below this root."""
        with locked(self._lock_file()):
            try:
                found: bytes | None = self._get(path)
            except OSError as error:
                if error.errno not in MISSING:
                    raise
                found = None
            if found != expected.data:
                raise Outdated(f"{self.root}{path} is not what it was when it was read")
            self._replace(path, data, durable=self._durable)
        return Tagged(bytes(data))

    def _lock_file(self) -> str:
        self._directories.ensure(self._directory)
        return self._base + LOCK_FILE

    def _head(self, path: str) -> FileInfo:
        status = os.stat(self._base + path)
        if os.path.isdir(self._base + path):
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        return FileInfo(path, status.st_size, status.st_mtime_ns // 1_000_000)

    def _delete(self, batch: Sequence[str]) -> tuple[DeleteResult, list[str]]:
        result = DeleteResult()
        for path in batch:
            try:
                os.unlink(self._base + path)
            except OSError as error:
                if error.errno in MISSING:
                    result.missing.append(path)
                else:
                    result.failed[path] = _explain(error)
            else:
                result.deleted.append(path)
        return result, []

    # Listing.

    def list(self, prefix: str = "") -> Iterator[FileInfo]:
        return self.list_if(prefix)

    def list_if(self, prefix: str, wanted: Callable[[str], bool] | None = None) -> Iterator[FileInfo]:
        if prefix:
            self._guard(prefix)
        above, _, name = prefix.rpartition("/")
        waiting = [(f"{above}/" if above else "", name)]
        while waiting:
            directory, start = waiting.pop()
            files, directories = self._retrying("list", directory, partial(scan, self._base, directory, start, wanted))
            waiting += [(f"{inner}/", "") for inner in directories]
            yield from files

    def list_dirs(self, prefix: str = "") -> tuple[Sequence[str], Sequence[FileInfo]]:
        if prefix:
            self._guard(prefix)
        files, directories = self._retrying("list", prefix, partial(scan, self._base, prefix))
        return [f"{directory}/" for directory in directories], files

    def exists(self) -> bool:
        def any_entry() -> bool:
            try:
                with os.scandir(self._directory) as entries:
                    return any(not is_temporary(entry.name) for entry in entries)
            except (FileNotFoundError, NotADirectoryError):
                return False

        return self._retrying("list", "", any_entry)

    def remove_temporary(self, older_than_seconds: float = 3600.0) -> int:
        limit = time.time() - older_than_seconds
        return self._retrying("delete", TEMPORARY_PREFIX, partial(remove_temporary, self._directory, limit))

    def prove_exclusive_create(self, path: str, data: bytes) -> None:
        """Do nothing: a hard link never replaces a file. No request."""
        del path, data

    def prove_compare_and_set(self, path: str, data: bytes) -> None:
        """Prove once that the file system refuses a second lock. No request. Raises ``UnsafeStorage``."""
        del path, data
        if not self._lock_proven:
            try:
                prove_lock(self._lock_file())
            except TransientError as error:
                raise StorageError(str(error)) from None
            except OSError as error:
                raise self._translate("put", LOCK_FILE, error) from None
            self._lock_proven = True

    def _translate(self, kind: str, path: str, error: Exception) -> TrinityLakeError:
        where = f"{self.root}{path}"
        if not isinstance(error, OSError):
            return StorageError(f"{kind} of {where}: {type(error).__name__}: {error}")
        if error.errno in MISSING and kind in {"get", "head"}:
            return FileMissing(f"{where} does not exist")
        text = f"{kind} of {where}: {_explain(error)}"
        if error.errno in _TRANSIENT:
            return TransientError(text)
        return StorageDenied(text) if error.errno in _DENIED else StorageError(text)
