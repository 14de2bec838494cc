"""A local (or mounted) disk: fast, and safe against being killed or losing power at any moment.

Storage options: ``durable`` (default true; false switches every fsync off, for throw-away lakehouses and
tests), ``sync`` (``auto``, ``files``, ``filesystem``: how a barrier is made), and the common ones of
``requests.CommonOptions``. ``max_concurrency`` is 1 here, because threads do not pay on a local disk; raise it on a
network mount. Only deletions have threads anyway (``disk_deleting``).
"""

from __future__ import annotations

import errno
import os
import re
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import ClassVar

from trinitylake_core.errors import (
    AlreadyExists,
    CannotHold,
    FileMissing,
    InvalidInput,
    StorageDenied,
    StorageError,
    StorageFull,
    TrinityLakeError,
    UnsafeStorage,
)
from trinitylake_core.storage import durability
from trinitylake_core.storage.base import BaseStorage
from trinitylake_core.storage.disk_deleting import THREADS, delete_files
from trinitylake_core.storage.disk_directories import Directories
from trinitylake_core.storage.disk_files import (
    DENIED,
    FULL,
    MISSING,
    NO_LINKS,
    NO_SUCH_FILE,
    TEMPORARY_PREFIX,
    TRANSIENT,
    explain,
    is_temporary,
    overwrite_small,
    remove_quietly,
    remove_temporary,
    scan,
    write_file,
)
from trinitylake_core.storage.disk_lock import LOCK_FILE, hold_lock, prove_lock
from trinitylake_core.storage.disk_opening import OWN, describe_file, open_directory, open_for_reading
from trinitylake_core.storage.disk_owner import explain_denial
from trinitylake_core.storage.durability import SYNC_MODES, Unsynced
from trinitylake_core.storage.failures import Outdated, TransientError
from trinitylake_core.storage.port import Data, DeleteResult, FileInfo, Options, Tagged
from trinitylake_core.storage.requests import CommonOptions, take_flag
from trinitylake_core.storage.root_uris import local_path


class LocalStorage(BaseStorage):
    """Files in a directory. A link of a complete, synced temporary file is the exclusive creation."""

    DEFAULTS: ClassVar[CommonOptions] = CommonOptions(
        retry_base_seconds=0.005, retry_max_seconds=1.0, max_concurrency=1
    )

    #: finds the own directory of a table in the path of a file
    own: re.Pattern[str] = OWN

    def __init__(self, root: str, options: Options | None = None) -> None:
        super().__init__(root, options)
        own = self._own_options
        self._durable = take_flag(own, "durable", default=True)
        self._sync_mode = own.pop("sync", "auto")
        if self._sync_mode not in SYNC_MODES:
            raise InvalidInput(f"storage option sync must be one of {', '.join(SYNC_MODES)}")
        if own:
            unknown = ", ".join(sorted(map(str, own)))
            raise InvalidInput(f"unknown storage option for {root}: {unknown}")
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

    def without_barriers(self) -> LocalStorage:
        """Return this storage without barriers, if a barrier of this object reaches all files of the file system."""
        if not self._durable or not self._unsynced.cover_others():
            return self
        root, options = self.spec()
        return LocalStorage(root, {**options, "durable": False})

    # Raw operations.

    def _get(self, path: str) -> bytes:
        descriptor = open_for_reading(self._directory, path, self.own)
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
        descriptor = open_for_reading(self._directory, path, self.own)
        try:
            end = min(end, os.fstat(descriptor).st_size)
            parts: list[bytes] = []
            while begin < end and (data := os.pread(descriptor, end - begin, begin)):
                parts.append(data)
                begin += len(data)
            return b"".join(parts)
        finally:
            os.close(descriptor)

    def _put(self, path: str, data: Data) -> None:
        target = self._base + path
        parent = target[: target.rindex("/")]
        self._write_in(parent, path, data, os.O_TRUNC)
        if self._durable:
            self._unsynced.file(target, parent)

    def _write_in(self, parent: str, path: str, data: Data, flags: int) -> None:
        match = self.own.match(path)
        plain = self._base + match[1] if match is not None else ""
        self._directories.ensure(parent, plain)
        try:
            write_file(self._directory, path, data, flags, self.own)
        except FileNotFoundError:  # another process removed the directory since we made it
            self._directories.forget()
            self._directories.ensure(parent, plain)
            write_file(self._directory, path, data, flags, self.own)

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
            self._unsynced.file(self._base + temporaries[-1], None)
            self._unsynced.flush()

        def link() -> None:
            self._link(temporaries[-1], path)
            temporaries.pop()  # it is gone: no second try to remove it

        try:
            self._retrying("sync", path, write_synced)
            self._settle(path, data, link)
        finally:
            for temporary in temporaries:
                remove_quietly(self._base + temporary)

    def _new_temporary(self) -> str:
        """Return the path of a temporary file, which lies in the root directory."""
        return f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}"

    def _create(self, path: str, data: Data) -> str:
        temporary = self._new_temporary()
        try:
            self._write_in(self._directory, temporary, data, os.O_EXCL)
            self._link(temporary, path)
        finally:
            remove_quietly(self._base + temporary)
        return ""

    def _link(self, temporary: str, path: str) -> None:
        """Give a complete file its final name, and make the name durable."""
        parent = os.path.dirname(self._base + path)
        self._directories.ensure(parent)
        complete = self._base + temporary
        try:
            with self._lend_place(path) as (directory, name):
                os.link(complete, name, dst_dir_fd=directory)
        except FileExistsError:
            if os.stat(complete).st_nlink != 2:  # two names: NFS lost the answer, the link is ours
                raise AlreadyExists(f"{self.root}{path} already exists") from None
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            raise UnsafeStorage(
                f"{self.root} cannot make hard links ({error.strerror}), so it cannot create files exclusively"
            ) from None
        remove_quietly(complete)
        if self._durable:
            self._unsynced.directory(parent)
            self._unsynced.flush(others=False)

    @contextmanager
    def _lend_place(self, path: str) -> Iterator[tuple[int | None, str]]:
        """Lend the directory of a file, opened below the root, and the name of the file in it.

        Whoever may write there may put a link in the place of a directory at any moment: what is named by descriptor
        and name lies where it was looked for. The root itself is the operator's, and a path names what is in it.
        """
        above, _, name = path.rpartition("/")
        if not above:
            yield None, self._base + name
            return
        directory = open_directory(self._directory, above)
        try:
            yield directory, name
        finally:
            os.close(directory)

    def replace(self, path: str, data: Data, *, durable: bool = True) -> None:
        """Rename a complete temporary file over the old one. One ``put``; synced before and after if durable.

        A hint over a hint of the same length is written in place.
        """
        self._guard(path)

        def replace() -> None:
            if durable or not overwrite_small(self._base + path, data):
                self._replace(path, data, durable=durable and self._durable)

        self._retrying("put", path, replace)
        self._count_bytes(written=len(data))

    def _replace(self, path: str, data: Data, *, durable: bool) -> None:
        parent = os.path.dirname(self._base + path)
        self._directories.ensure(parent)
        temporary = self._new_temporary()
        complete = self._base + temporary
        try:
            self._write_in(self._directory, temporary, data, os.O_EXCL)
            if durable:
                durability.sync_path(complete)
            with self._lend_place(path) as (directory, name):
                os.replace(complete, name, dst_dir_fd=directory)
        except BaseException:
            remove_quietly(complete)
            raise
        if durable:
            self._unsynced.directory(parent)
            self._unsynced.flush()

    def _swap(self, path: str, data: Data, expected: Tagged) -> Tagged:
        """Replace under a lock, which excludes all other calls of compare-and-set below this root."""
        with hold_lock(self._lock_file()):
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
        status = describe_file(self._directory, path, self.own)
        return FileInfo(path, status.st_size, status.st_mtime_ns // 1_000_000)

    def _delete(self, batch: Sequence[str]) -> tuple[DeleteResult, list[str]]:
        threads = 1 if self.concurrency > 1 else THREADS  # several batches at once are enough
        return delete_files(self._directory, batch, threads)

    # Listing.

    def list(self, prefix: str = "") -> Iterator[FileInfo]:
        return self.list_if(prefix)

    def list_if(self, prefix: str, wanted: Callable[[str], bool] | None = None) -> Iterator[FileInfo]:
        if prefix:
            self._guard(prefix)
        above, _, name = prefix.rpartition("/")
        top = ""
        if above:
            top = f"{above}/"
        waiting = [(top, name)]
        while waiting:
            directory, start = waiting.pop()
            scan_directory = partial(
                scan,
                self._base,
                directory,
                start,
                wanted,
            )
            files, directories = self._retrying("list", directory, scan_directory)
            for inner in directories:
                waiting.append((f"{inner}/", ""))
            yield from files

    def list_dirs(self, prefix: str = "") -> tuple[Sequence[str], Sequence[FileInfo]]:
        if prefix:
            self._guard(prefix)
        scan_directory = partial(scan, self._base, prefix)
        files, directories = self._retrying("list", prefix, scan_directory)
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

    def prove_exclusive_create(self) -> None:
        """Do nothing: a hard link never replaces a file. No request."""

    def prove_compare_and_set(self) -> None:
        """Prove once that the file system refuses a second lock. No request. Raises ``UnsafeStorage``."""
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
        if error.errno in NO_SUCH_FILE and kind in {"get", "head"}:
            return FileMissing(f"{where} does not exist")
        text = f"{kind} of {where}: {explain(error)}"
        if error.errno in TRANSIENT:
            return TransientError(text)
        if error.errno in NO_SUCH_FILE - {errno.ENOENT}:
            return CannotHold(text)
        if error.errno in DENIED:
            return StorageDenied(text + explain_denial(self._base + path))
        if error.errno in FULL:
            return StorageFull(text)
        return StorageError(text)
