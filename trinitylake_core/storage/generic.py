"""Any other fsspec file system: ``memory://`` and so on.

fsspec's default for exclusive creation asks whether the file exists and then writes, which is no lock
at all. So only ``memory://`` may create; all others can be read.
The storage option ``exclusive_create: trusted`` overrides that, at the caller's risk.

fsspec has no compare-and-set at all. Within one process (``memory://``) a lock makes one; everywhere else it is
refused, and with it what needs it: expiration and saved transactions.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime
from functools import partial
from inspect import signature
from typing import Any, Final

from trinitylake_core.errors import (
    AlreadyExists,
    FileMissing,
    InvalidInput,
    StorageDenied,
    StorageError,
    TrinityLakeError,
    UnsafeStorage,
)
from trinitylake_core.storage.base import CheckedByTrying
from trinitylake_core.storage.failures import Outdated, TransientError
from trinitylake_core.storage.port import Data, DeleteResult, FileInfo, Tagged

_WITHIN_ONE_PROCESS: Final = "memory"
_MODIFIED_FIELDS: Final = ("mtime", "LastModified", "last_modified", "updated", "modified", "created")

_TIMES: Final = (int, float, datetime)
_memory_lock = threading.Lock()


class FsspecStorage(CheckedByTrying):
    """Files of an fsspec file system below one root."""

    def __init__(self, root: str, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(root, options)
        self._scheme = root.partition("://")[0]
        self._trusted = self._own_options.pop("exclusive_create", None) == "trusted"
        self._fs: Any = None
        self._base = ""
        self._filesystem()

    def _reset_after_fork(self) -> None:
        super()._reset_after_fork()
        if self._scheme != _WITHIN_ONE_PROCESS:
            self._fs = None

    def _filesystem(self) -> Any:
        with self._lock:
            if self._fs is None:
                self._fs = _make_filesystem(self.root, self._scheme, self._own_options)
                self._base = str(self._fs._strip_protocol(self.root)).rstrip("/") + "/"  # noqa: SLF001 - the fsspec way
            return self._fs

    # Raw operations.

    def _get(self, path: str) -> bytes:
        return bytes(self._filesystem().cat_file(self._base + path))

    def _get_range(self, path: str, begin: int, end: int) -> bytes:
        return bytes(self._filesystem().cat_file(self._base + path, begin, end))

    def _put(self, path: str, data: Data) -> None:
        self._filesystem().pipe_file(self._base + path, bytes(data))

    def _create(self, path: str, data: Data) -> None:
        self._refuse_unsafe()
        fs = self._filesystem()
        with _memory_lock if self._scheme == _WITHIN_ONE_PROCESS else nullcontext():
            fs.pipe_file(self._base + path, bytes(data), mode="create")

    def _swap(self, path: str, data: Data, expected: Tagged) -> Tagged:
        self._refuse_swap()
        fs, name = self._filesystem(), self._base + path
        with _memory_lock:
            found = bytes(fs.cat_file(name)) if fs.isfile(name) else None
            if found != expected.data:
                raise Outdated(f"{self.root}{path} is not what it was when it was read")
            fs.pipe_file(name, bytes(data))
        return Tagged(bytes(data))

    def _refuse_swap(self) -> None:
        if self._scheme != _WITHIN_ONE_PROCESS:
            raise UnsafeStorage(
                f"{self.root}: files cannot be compared and set on {self._scheme}://; expire versions, and save "
                "transactions, on a local disk or S3"
            )

    def prove_compare_and_set(self, path: str, data: bytes) -> None:
        """Refuse every file system but that of this process. No request. Raises ``UnsafeStorage``."""
        del path, data
        self._refuse_swap()

    def _refuse_unsafe(self) -> None:
        if self._trusted or self._scheme == _WITHIN_ONE_PROCESS:
            return
        raise UnsafeStorage(
            f"{self.root}: exclusive creation is not known to be atomic on {self._scheme}://; it can be read only. "
            "If you know that it is, set the storage option exclusive_create to 'trusted'"
        )

    def _head(self, path: str) -> FileInfo:
        details = self._filesystem().info(self._base + path)
        if details.get("type") == "directory":
            raise IsADirectoryError(f"{self.root}{path} is a directory")
        return self._info(details)

    def _delete(self, batch: Sequence[str]) -> tuple[DeleteResult, list[str]]:
        fs = self._filesystem()
        result = DeleteResult()
        for path in batch:
            try:
                fs.rm_file(self._base + path)
            except FileNotFoundError:
                result.missing.append(path)
            except Exception as error:  # noqa: BLE001 - one file must not stop the others
                result.failed[path] = self._clean(f"{type(error).__name__}: {error}")
            else:
                result.deleted.append(path)
        return result, []

    # Listing.

    def _relative(self, details: Mapping[str, Any]) -> str:
        name = str(details["name"])
        name = name if name.startswith("/") or not self._base.startswith("/") else f"/{name}"
        return name.removeprefix(self._base).rstrip("/")

    def _info(self, details: Mapping[str, Any]) -> FileInfo:
        """Return the entry of a listing. An unknown age is never returned as 0: deletions depend on it."""
        modified = next((details[name] for name in _MODIFIED_FIELDS if isinstance(details.get(name), _TIMES)), None)
        if modified is None:
            raise StorageError(f"this file system does not report when {details.get('name')} was last changed")
        seconds = modified.timestamp() if isinstance(modified, datetime) else modified
        return FileInfo(self._relative(details), int(details.get("size") or 0), int(seconds * 1000))

    def _ls(self, directory: str) -> tuple[list[FileInfo], list[str]]:
        fs = self._filesystem()
        fs.invalidate_cache()
        try:
            entries = fs.ls((self._base + directory).rstrip("/"), detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return [], []
        files: list[FileInfo] = []
        directories: list[str] = []
        for entry in entries:
            if entry.get("type") != "directory":
                files.append(self._info(entry))
            elif (name := f"{self._relative(entry)}/") not in {directory, "/"}:
                directories.append(name)
        return files, directories

    def list(self, prefix: str = "") -> Iterator[FileInfo]:
        if prefix:
            self._guard(prefix)
        above, slash, _ = prefix.rpartition("/")
        waiting = [above + slash]
        while waiting:
            directory = waiting.pop()
            files, directories = self._retrying("list", directory, partial(self._ls, directory))
            waiting += [inner for inner in directories if inner.startswith(prefix) or prefix.startswith(inner)]
            yield from (info for info in files if info.path.startswith(prefix))

    def list_dirs(self, prefix: str = "") -> tuple[Sequence[str], Sequence[FileInfo]]:
        if prefix:
            self._guard(prefix)
        files, directories = self._retrying("list", prefix, partial(self._ls, prefix))
        return directories, files

    def exists(self) -> bool:
        files, directories = self._retrying("list", "", partial(self._ls, ""))
        return bool(files or directories)

    def prove_exclusive_create(self, path: str, data: bytes) -> None:
        """Refuse what is not known to be atomic; try the others. One ``create`` the first time."""
        self._refuse_unsafe()
        super().prove_exclusive_create(path, data)

    def _translate(self, kind: str, path: str, error: Exception) -> TrinityLakeError:
        where = f"{self.root}{path}"
        if isinstance(error, FileExistsError):
            return AlreadyExists(f"{where} already exists")
        if isinstance(error, FileNotFoundError) and kind in {"get", "head"}:
            return FileMissing(f"{where} does not exist")
        text = self._clean(f"{kind} of {where}: {type(error).__name__}: {error}")
        if isinstance(error, PermissionError):
            return StorageDenied(text)
        return TransientError(text) if isinstance(error, TimeoutError | ConnectionError) else StorageError(text)


def _make_filesystem(root: str, scheme: str, options: Mapping[str, Any]) -> Any:
    try:
        import fsspec  # noqa: PLC0415 - not needed for local lakehouses

        _, *arguments = signature(fsspec.get_filesystem_class(scheme).__init__).parameters.values()
        needed = [each for each in arguments if each.kind == each.POSITIONAL_OR_KEYWORD and each.default is each.empty]
        missing = [each.name for each in needed if each.name not in options]
        if missing:  # ``ftp`` and ``sftp`` need a host
            raise InvalidInput(f"{root}: this kind of storage needs the storage option {', '.join(missing)}")
        return fsspec.filesystem(scheme, **options)
    except (ImportError, OSError) as error:  # pyarrow's hdfs:// fails with an OSError where Java's library is missing
        text = f"{root}: the client library of {scheme}:// is missing: {str(error).partition(chr(10))[0]}"
        raise InvalidInput(f"{text}; install what fsspec needs for it") from error
    except ValueError as error:
        raise InvalidInput(f"{root}: no file system for {scheme}://: {error}") from error
