"""S3 and compatible stores: objects by obstore, listings and batch deletes by s3fs.

obstore cannot list names that it would not write itself, nor report which names of a batch could not be deleted. s3fs
is imported when it is first needed for that. Both clients get what ``s3_settings`` resolved.

Exclusive creation is ``If-None-Match: *``, compare-and-set is ``If-Match`` with the ETag that was read.
"""

from __future__ import annotations

import re
import threading
from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial
from os.path import commonprefix
from typing import Any, Final, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

from trinitylake_core.errors import StorageDenied, StorageError
from trinitylake_core.storage.objects import MakeStore, ObjectStorage, ObstoreClient, millis
from trinitylake_core.storage.port import DeleteResult, FileInfo, Options
from trinitylake_core.storage.promise import shape_of
from trinitylake_core.storage.s3_options import S3Options
from trinitylake_core.storage.s3_settings import S3Settings, list_environment, resolve, s3fs_arguments
from trinitylake_core.storage.store_errors import TRANSIENT_CODES

Answer: TypeAlias = dict[str, Any]
"""The answer of a server, as botocore reads it."""
_PAGE: Final = 1000
_NOT_IN_XML: Final = re.compile("[^\\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

_file_systems: WeakKeyDictionary[ObstoreClient, Any] = WeakKeyDictionary()
"""The file systems, each shared by all storages with one client."""
_lock = threading.Lock()


class _Neighbours(NamedTuple):
    """Directories in the order of their names, and the name behind which lie those of their files that are left."""

    directories: Sequence[str]
    behind: str

    @property
    def common(self) -> str:
        """What the names of all their files begin with."""
        return commonprefix([self.directories[0], self.directories[-1]])  # noqa: RUF071 - characters are what counts

    def holds(self, path: str) -> bool:
        """Whether a file lies in one of them: others may lie between."""
        place = bisect_right(self.directories, path)
        return place > 0 and path.startswith(self.directories[place - 1])

    def split_behind(self, last: str) -> Iterator[_Neighbours]:
        """Yield what is left behind a file, in two halves if several directories are."""
        place = bisect_right(self.directories, last) - self.holds(last)
        left = self.directories[place:]
        middle = (len(left) + 1) // 2
        for some in (left[:middle], left[middle:]):
            if some:
                yield _Neighbours(some, max(some[0], last))


class S3Storage(ObjectStorage):
    """Objects below a prefix of one bucket."""

    def __init__(self, root: str, options: Options | None = None) -> None:
        super().__init__(root, options)
        self._s3 = S3Options.take(self._own_options)
        self._endpoint = str(self._s3.endpoint)
        self._resolved: S3Settings | None = None
        self._keeps_versions: bool | None = None
        """Whether a deletion leaves the content as an older version; ``None`` until an answer told."""

    def _settings(self) -> Hashable:
        return self._s3, list_environment()

    def settings(self) -> S3Settings:
        """Return what options, environment and profiles say about this bucket; resolved once for a storage.

        May read files; may send requests to a metadata service. Raises ``InvalidInput``, ``StorageDenied``.
        """
        if self._resolved is None:
            self._resolved = resolve(self._bucket, self._s3)
        return self._resolved

    def _make_store(self) -> MakeStore:
        return self.settings().make_store

    def _call(self, operation: str, seconds: float | None = None, **parameters: Any) -> Answer:
        """Send one HTTP request through s3fs and return its parsed answer.

        Raises ``TimeoutError`` if that takes longer than so many seconds, or than requests may take.
        """
        import s3fs  # noqa: PLC0415 - half a second that single objects need not pay
        from fsspec.asyn import sync  # noqa: PLC0415 - the same

        client = self._client
        with _lock:
            fs = _file_systems.get(client)
            if fs is None:  # no request; the first takes 0.2 s of CPU
                arguments = s3fs_arguments(self.settings(), self._common.max_concurrency)
                fs = _file_systems[client] = s3fs.S3FileSystem(**arguments)
        parameters["Bucket"] = self._bucket
        answer: Answer = sync(
            fs.loop,
            _send,
            seconds or self._seconds,
            fs,
            operation,
            parameters,
        )
        return answer

    def _note_written(self, version: str | None) -> None:
        super()._note_written(version)
        if shape_of(version) == "versioned":
            self._keeps_versions = True
        elif self._keeps_versions:
            self._keeps_versions = None

    # Deleting.

    def _delete_version(self, path: str, version: str) -> bool:
        send = partial(self._call, "delete_object", Key=self._key(path), VersionId=version)
        self._retrying("delete", path, send)
        return True

    def _delete(self, batch: Sequence[str]) -> tuple[DeleteResult, list[str]]:
        """S3 reports a missing key as a deleted one; both count as deleted."""
        names = {self._key(path): path for path in batch}
        objects = [{"Key": key} for key in names]
        # The names of what was deleted are many, so they are asked for until it is known whether versions stay.
        is_known = self._keeps_versions is not None
        answer = self._call("delete_objects", Delete={"Objects": objects, "Quiet": is_known})
        if not is_known:
            self._keeps_versions = any(each.get("DeleteMarker") for each in answer.get("Deleted", ()))
        result = DeleteResult()
        again: list[str] = []
        for error in answer.get("Errors", ()):
            path = names.pop(error.get("Key", ""), "")
            code = str(error.get("Code", ""))
            if code == "NoSuchKey":
                result.missing.append(path)
                continue
            message = error.get("Message", "")
            result.failed[path] = self._clean(f"{code}: {message}")
            if code in TRANSIENT_CODES:
                again.append(path)
        result.deleted = list(names.values())
        if self._keeps_versions:
            result.versions_kept = len(result.deleted)
        return result, again

    def _batches(self, paths: Sequence[str]) -> list[Sequence[str]]:
        """Return batches; a name that XML cannot hold would spoil its batch, so each has a request of its own."""
        strange = {path for path in paths if _NOT_IN_XML.search(path)}
        plain = [path for path in paths if path not in strange]
        batches = list(super()._batches(plain))
        for path in sorted(strange):
            batches.append([path])
        return batches

    def _delete_batch(self, batch: Sequence[str]) -> DeleteResult:
        path = batch[0]
        if not _NOT_IN_XML.search(path):
            return super()._delete_batch(batch)
        try:  # such a name is alone in its batch
            delete = partial(self._call, "delete_object", Key=self._key(path))
            self._retrying("delete", path, delete)
        except StorageDenied as error:
            return DeleteResult(failed={path: self._clean(error)})
        return DeleteResult(deleted=[path])

    # Listing.

    def _pages(self, prefix: str, **parameters: Any) -> Iterator[Answer]:
        if prefix:
            self._guard(prefix)
        parameters = {"Prefix": self._key(prefix), "MaxKeys": _PAGE, **parameters}

        def ask() -> Answer:  # a late page is asked for again, as other reads are
            send = lambda seconds: self._call("list_objects_v2", seconds, **parameters)  # noqa: E731
            return self._client.patience["list"].repeat(send, partial(self._count, "list"))

        while True:
            page = self._retrying("list", prefix, ask)
            yield page
            if not page.get("IsTruncated"):
                return
            if not page.get("NextContinuationToken"):
                raise StorageError(f"list of {self.root}{prefix}: a page is cut short without a continuation token")
            parameters["ContinuationToken"] = page["NextContinuationToken"]

    def _files(self, page: Answer) -> Iterator[FileInfo]:
        for item in page.get("Contents", ()):
            key: str = item["Key"]
            if not key.endswith("/"):  # a directory marker of some console is no file
                path = key[len(self._prefix) :]
                size = int(item["Size"])
                yield FileInfo(path, size, millis(item["LastModified"]))

    def list(self, prefix: str = "") -> Iterator[FileInfo]:
        for page in self._pages(prefix):
            yield from self._files(page)

    def list_many(self, directories: Sequence[str], wanted: Callable[[str], bool] | None = None) -> Iterator[FileInfo]:
        ordered = sorted(directories)
        parts = [_Neighbours(ordered, ordered[0])] if ordered else []
        while parts:
            rest: list[_Neighbours] = []
            for part, page in zip(parts, self.map(parts, self._ask_page), strict=True):
                if page is None:
                    yield from super().list_many(part.directories, wanted)
                    continue
                for info in self._files(page):
                    if part.holds(info.path) and (wanted is None or wanted(info.path)):
                        yield info
                if page.get("IsTruncated"):
                    last = page["Contents"][-1]["Key"]
                    rest += part.split_behind(last[len(self._prefix) :])
            parts = rest

    def _ask_page(self, part: _Neighbours) -> Answer | None:
        """Return the next page of neighbours, ``None`` if its names are none, or in no order: others may be missing."""
        names = [self._key(part.behind)]
        page = next(self._pages(part.common, StartAfter=names[0]))
        for item in page.get("Contents", ()):
            names.append(item["Key"])
        is_cut = page.get("IsTruncated") and len(names) == 1
        return None if is_cut or names != sorted(set(names)) else page

    def list_dirs(self, prefix: str = "") -> tuple[Sequence[str], Sequence[FileInfo]]:
        directories: list[str] = []
        files: list[FileInfo] = []
        for page in self._pages(prefix, Delimiter="/"):
            for entry in page.get("CommonPrefixes", ()):
                directory = entry["Prefix"][len(self._prefix) :]
                directories.append(directory)
            files += self._files(page)
        return directories, files

    def exists(self) -> bool:
        page = next(self._pages("", MaxKeys=2))
        return any(item["Key"] != self._prefix for item in page.get("Contents", ()))


async def _send(
    seconds: float,
    fs: Any,
    operation: str,
    parameters: Mapping[str, Any],
) -> Answer:
    """Return the parsed answer to one request; raise ``TimeoutError`` if it is not complete in time."""
    import asyncio  # noqa: PLC0415

    await fs.set_session()
    client = await fs.get_s3(parameters["Bucket"])
    method = getattr(client, operation)
    given = fs._get_s3_method_kwargs(method, **parameters)  # noqa: SLF001 - adds encryption and requester-pays
    answer: Answer = await asyncio.wait_for(method(**given), seconds)
    return answer
