"""S3 and compatible stores: objects by obstore, listings and batch deletes by s3fs.

obstore cannot list names that it would not write itself, nor report which names of a batch could not be deleted. s3fs
is imported when it is first needed for that.

Exclusive creation is ``If-None-Match: *``, compare-and-set is ``If-Match`` with the ETag that was read. Options:
``s3_settings``.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final
from weakref import WeakKeyDictionary

from trinitylake_core.errors import StorageDenied, StorageError
from trinitylake_core.storage.objects import ObjectStorage, millis
from trinitylake_core.storage.obstore_client import MakeStore, ObstoreClient
from trinitylake_core.storage.port import DeleteResult, FileInfo
from trinitylake_core.storage.s3_settings import arguments_of, environment, make_store_of
from trinitylake_core.storage.store_errors import is_transient_code

_PAGE: Final = 1000
_NOT_IN_XML: Final = re.compile("[^\\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

_file_systems: WeakKeyDictionary[ObstoreClient, Any] = WeakKeyDictionary()
_lock = threading.Lock()


class S3Storage(ObjectStorage):
    """Objects below a prefix of one bucket."""

    def __init__(self, root: str, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(root, options)
        self._arguments = arguments_of(self._own_options, self._common.max_concurrency)
        client = self._arguments["client_kwargs"]
        self._endpoint = str(self._arguments.get("endpoint_url") or client.get("endpoint_url"))

    def _settings(self) -> Hashable:
        return repr(self._arguments), environment()

    def _make_store(self) -> MakeStore:
        return make_store_of(self._bucket, self._arguments)

    def _call(self, operation: str, seconds: float | None = None, **parameters: Any) -> dict[str, Any]:
        """Send one HTTP request through s3fs and return its parsed answer.

        Raises ``TimeoutError`` if that takes longer than so many seconds, or than requests may take.
        """
        from fsspec.asyn import sync  # noqa: PLC0415 - half a second that single objects need not pay

        fs = _file_system(self._client, self._arguments)
        parameters["Bucket"] = self._bucket
        answer: dict[str, Any] = sync(fs.loop, _send, seconds or self._seconds, fs, operation, parameters)
        return answer

    # Deleting.

    def _delete(self, batch: Sequence[str]) -> tuple[DeleteResult, list[str]]:
        """S3 reports a missing key as a deleted one; both count as deleted."""
        names = {self._key(path): path for path in batch}
        objects = [{"Key": key} for key in names]
        answer = self._call("delete_objects", Delete={"Objects": objects, "Quiet": True})
        result = DeleteResult()
        again: list[str] = []
        for error in answer.get("Errors", ()):
            path = names.pop(error.get("Key", ""), "")
            code = str(error.get("Code", ""))
            if code == "NoSuchKey":
                result.missing.append(path)
                continue
            result.failed[path] = self._clean(f"{code}: {error.get('Message', '')}")
            if is_transient_code(code):
                again.append(path)
        result.deleted = list(names.values())
        return result, again

    def delete_many(self, paths: Sequence[str]) -> DeleteResult:
        """Delete in batches. A name that XML cannot hold would spoil its batch, so each has a request of its own."""
        strange = [path for path in paths if _NOT_IN_XML.search(path)]
        if not strange:
            return super().delete_many(paths)
        for path in strange:
            self._guard(path)
        result = super().delete_many([path for path in paths if not _NOT_IN_XML.search(path)])
        for part in self.map(strange, self._delete_alone):
            result.deleted += part.deleted
            result.failed.update(part.failed)
        return result

    def _delete_alone(self, path: str) -> DeleteResult:
        """Delete one object by its URL; an error is that of this object alone."""
        try:
            self._retrying("delete", path, partial(self._call, "delete_object", Key=self._key(path)))
        except StorageDenied as error:
            return DeleteResult(failed={path: self._clean(error)})
        return DeleteResult(deleted=[path])

    # Listing.

    def _pages(self, prefix: str, **parameters: Any) -> Iterator[dict[str, Any]]:
        parameters = {"Prefix": self._key(prefix), "MaxKeys": _PAGE, **parameters}
        while True:
            page = self._retrying("list", prefix, partial(self._page, parameters))
            yield page
            if not page.get("IsTruncated"):
                return
            if not page.get("NextContinuationToken"):
                raise StorageError(f"list of {self.root}{prefix}: a page is cut short without a continuation token")
            parameters["ContinuationToken"] = page["NextContinuationToken"]

    def _page(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return one page of a listing; a late one is asked for again, as other reads are."""
        send = lambda seconds: self._call("list_objects_v2", seconds, **parameters)  # noqa: E731
        return self._client.patience["list"].repeat(send, partial(self._count, "list"))

    def _files(self, page: Mapping[str, Any]) -> Iterator[FileInfo]:
        for item in page.get("Contents", ()):
            key: str = item["Key"]
            if not key.endswith("/"):  # a directory marker of some console is no file
                yield FileInfo(key[len(self._prefix) :], int(item["Size"]), millis(item["LastModified"]))

    def list(self, prefix: str = "") -> Iterator[FileInfo]:
        """Yield files by prefix. One ``list`` a page of 1000."""
        if prefix:
            self._guard(prefix)
        for page in self._pages(prefix):
            yield from self._files(page)

    def list_dirs(self, prefix: str = "") -> tuple[Sequence[str], Sequence[FileInfo]]:
        """Return one level. One ``list`` a page."""
        if prefix:
            self._guard(prefix)
        directories: list[str] = []
        files: list[FileInfo] = []
        for page in self._pages(prefix, Delimiter="/"):
            directories += [entry["Prefix"][len(self._prefix) :] for entry in page.get("CommonPrefixes", ())]
            files += self._files(page)
        return directories, files

    def exists(self) -> bool:
        """Return whether anything is there. One ``list``."""
        page = next(self._pages("", MaxKeys=2))
        return any(item["Key"] != self._prefix for item in page.get("Contents", ()))


def _file_system(client: ObstoreClient, arguments: Mapping[str, Any]) -> Any:
    """Return the file system that all storages with this client share. No request; the first takes 0.2 s of CPU."""
    import s3fs  # noqa: PLC0415

    with _lock:
        fs = _file_systems.get(client)
        if fs is None:
            fs = _file_systems[client] = s3fs.S3FileSystem(**arguments)
        return fs


async def _send(seconds: float, fs: Any, operation: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parsed answer to one request; raise ``TimeoutError`` if it is not complete in time."""
    import asyncio  # noqa: PLC0415

    await fs.set_session()
    client = await fs.get_s3(parameters["Bucket"])
    method = getattr(client, operation)
    given = fs._get_s3_method_kwargs(method, **parameters)  # noqa: SLF001 - adds encryption and requester-pays
    answer: dict[str, Any] = await asyncio.wait_for(method(**given), seconds)
    return answer
