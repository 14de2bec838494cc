"""S3 and compatible stores, by s3fs (``client: s3fs``): one HTTP request for each counted request.

Storage options: ``key``, ``secret``, ``token``, ``profile``, ``anon``, ``endpoint_url``, ``region``,
``path_style`` (default: true when there is an ``endpoint_url``), ``connect_timeout`` (5 s), ``read_timeout``
(30 s), ``request_timeout`` (60 s for a whole request), ``client_kwargs``, ``config_kwargs`` and whatever else
``s3fs.S3FileSystem`` takes, and the common ones of ``retry.CommonOptions``. Without keys the usual environment
variables, profiles and instance roles apply.

Exclusive creation is ``If-None-Match: *``, compare-and-set is ``If-Match`` with the ETag that was read. Stores exist
that accept these headers and ignore them, therefore ``proving``.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal

from trinitylake_core.errors import (
    InvalidInput,
    StorageDenied,
    StorageError,
    TrinityLakeError,
)
from trinitylake_core.storage.failures import TransientError
from trinitylake_core.storage.hedge import Hedge, patiently
from trinitylake_core.storage.port import Data, DeleteResult, FileInfo, Tagged
from trinitylake_core.storage.proving import ProvedByTrying
from trinitylake_core.storage.retry import take_flag, take_number
from trinitylake_core.storage.s3_errors import is_beyond_the_end, is_transient_code, map_error, refused_swap

_PAGE: Final = 1000
_NOT_IN_XML: Final = re.compile("[^\\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_PASSED_FROM_ENVIRONMENT: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")


class S3Storage(ProvedByTrying):
    """Objects below a prefix of one bucket."""

    def __init__(self, root: str, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(root, options)
        bucket, _, prefix = root.removeprefix("s3://").partition("/")
        self._bucket = bucket
        self._prefix = prefix
        self._own_options.pop("client", None)
        self._seconds = take_number(self._own_options, "request_timeout", default=60.0, least=0.001)
        self._hedged_share = take_number(self._own_options, "hedged_share", default=0.1, least=0.0)
        self._arguments = _s3fs_arguments(self._own_options, self._common.max_concurrency)
        client = self._arguments["client_kwargs"]
        self._endpoint = str(self._arguments.get("endpoint_url") or client.get("endpoint_url"))
        self._hedges = _hedges(self._hedged_share)
        self._fs: Any = None

    def _reset_after_fork(self) -> None:
        super()._reset_after_fork()
        self._fs = None
        self._hedges = _hedges(self._hedged_share)

    def _patience(self, kind: Literal["list", "delete"]) -> Hedge:
        return self._hedges[kind]

    # Raw operations.

    def _filesystem(self) -> Any:
        fs = self._fs
        if fs is None:
            with self._lock:
                if self._fs is None:
                    self._fs = _make_filesystem(self._arguments)
                fs = self._fs
        return fs

    def _call(self, operation: str, seconds: float | None = None, **parameters: Any) -> dict[str, Any]:
        """Send one HTTP request and return its parsed answer, a streamed body read to its end.

        Raises ``TimeoutError`` if that takes longer than so many seconds, or than requests may take.
        """
        from fsspec.asyn import sync  # noqa: PLC0415 - half a second that local lakehouses need not pay

        fs = self._filesystem()
        parameters["Bucket"] = self._bucket
        answer: dict[str, Any] = sync(fs.loop, _send, seconds or self._seconds, fs, operation, parameters)
        return answer

    def _key(self, path: str) -> str:
        return self._prefix + path

    def _get(self, path: str) -> bytes:
        body: bytes = self._call("get_object", Key=self._key(path))["Body"]
        return body

    def _get_range(self, path: str, begin: int, end: int) -> bytes:
        try:
            body: bytes = self._call("get_object", Key=self._key(path), Range=f"bytes={begin}-{end - 1}")["Body"]
        except Exception as error:
            if is_beyond_the_end(error):
                return b""
            raise
        return body

    def _put(self, path: str, data: Data) -> None:
        self._call("put_object", Key=self._key(path), Body=bytes(data))

    def _create(self, path: str, data: Data) -> None:
        self._call("put_object", Key=self._key(path), Body=bytes(data), IfNoneMatch="*")

    def _get_tagged(self, path: str) -> Tagged:
        answer = self._call("get_object", Key=self._key(path))
        return Tagged(answer["Body"], answer["ETag"])

    def _swap(self, path: str, data: Data, expected: Tagged) -> Tagged:
        condition = {"IfNoneMatch": "*"} if expected.data is None else {"IfMatch": expected.tag}
        try:
            answer = self._call("put_object", Key=self._key(path), Body=bytes(data), **condition)
        except Exception as error:
            refused = refused_swap(f"{self.root}{path}", error)
            if refused is None:
                raise
            raise refused from None
        return Tagged(bytes(data), answer["ETag"])

    def _head(self, path: str) -> FileInfo:
        answer = self._call("head_object", Key=self._key(path))
        return FileInfo(path, int(answer["ContentLength"]), _millis(answer["LastModified"]))

    def _delete(self, batch: Sequence[str]) -> tuple[DeleteResult, list[str]]:
        """S3 does not tell a missing key from a deleted one; both count as deleted."""
        names = {self._key(path): path for path in batch}
        objects = [{"Key": key} for key in names]
        answer = self._patiently("delete", "delete_objects", {"Delete": {"Objects": objects, "Quiet": True}})
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
        for part in self.in_parallel(strange, self._delete_alone):
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
        """Return one page of a listing."""
        return self._patiently("list", "list_objects_v2", parameters)

    def _patiently(
        self, kind: Literal["list", "delete"], operation: str, parameters: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Send a request that may be repeated without harm; again if it takes unusually long (``hedge``)."""
        return patiently(
            self._patience(kind),
            self._seconds,
            lambda seconds: self._call(operation, seconds, **parameters),
            partial(self._asked_again, kind),
        )

    def _files(self, page: Mapping[str, Any]) -> Iterator[FileInfo]:
        for item in page.get("Contents", ()):
            key: str = item["Key"]
            if not key.endswith("/"):  # a directory marker of some console is no file
                yield FileInfo(key[len(self._prefix) :], int(item["Size"]), _millis(item["LastModified"]))

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

    # Errors.

    def _translate(self, kind: str, path: str, error: Exception) -> TrinityLakeError:
        mapped = map_error(kind, f"{self.root}{path}", self._bucket, error)
        clean = self._clean(mapped)
        if isinstance(mapped, TransientError):
            return TransientError(clean, undone=mapped.undone)
        return type(mapped)(clean)


def _hedges(share: float) -> dict[str, Hedge]:
    """Return the patience with listings, and with deletes: those of 1000 names take their time."""
    return {"list": Hedge(share), "delete": Hedge(share, least=2.0)}


def _s3fs_arguments(options: Mapping[str, Any], max_concurrency: int) -> dict[str, Any]:
    """Return the keyword arguments for ``s3fs.S3FileSystem``. Raises ``InvalidInput``."""
    arguments = dict(options)
    for name in ("client_kwargs", "config_kwargs"):
        if not isinstance(arguments.get(name) or {}, Mapping):
            raise InvalidInput(f"storage option {name} must be a mapping, not {type(arguments[name]).__name__}")
    client = dict(arguments.pop("client_kwargs", None) or {})
    config = dict(arguments.pop("config_kwargs", None) or {})
    region = arguments.pop("region", None) or arguments.pop("region_name", None)
    if region is not None:
        client.setdefault("region_name", region)
    custom = bool(arguments.get("endpoint_url") or client.get("endpoint_url"))
    custom = custom or any(os.environ.get(name) for name in _PASSED_FROM_ENVIRONMENT)
    if take_flag(arguments, "path_style", default=custom):
        config["s3"] = {"addressing_style": "path", **dict(config.get("s3") or {})}
    config.setdefault("connect_timeout", arguments.pop("connect_timeout", 5))
    config.setdefault("read_timeout", arguments.pop("read_timeout", 30))
    config.setdefault("max_pool_connections", max_concurrency)
    config["retries"] = {"total_max_attempts": 1, "mode": "standard"}  # ours count, theirs would hide
    return {
        **arguments,
        "client_kwargs": client,
        "config_kwargs": config,
        "use_listings_cache": False,
        "skip_instance_cache": True,
    }


def _make_filesystem(arguments: Mapping[str, Any]) -> Any:
    try:
        import s3fs  # noqa: PLC0415 - half a second that local lakehouses need not pay
    except ImportError as error:
        raise StorageError("s3:// needs the package s3fs: pip install 'trinitylake-maintenance[s3]'") from error
    return s3fs.S3FileSystem(**arguments)


async def _send(seconds: float, fs: Any, operation: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """Send a request; raise ``TimeoutError`` if its answer is not complete in time, however lively it trickles."""
    await fs.set_session()
    client = await fs.get_s3(parameters["Bucket"])
    method = getattr(client, operation)
    parameters = fs._get_s3_method_kwargs(method, **parameters)  # noqa: SLF001 - adds encryption and requester-pays
    return await asyncio.wait_for(_answer(operation, method(**parameters)), seconds)


async def _answer(operation: str, sent: Any) -> dict[str, Any]:
    answer: dict[str, Any] = await sent
    if operation == "get_object":
        async with answer["Body"] as body:
            answer["Body"] = await body.read()
    return answer


def _millis(moment: Any) -> int:
    return int(moment.timestamp() * 1000)
