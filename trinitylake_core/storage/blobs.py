"""Azure Blob Storage and Google Cloud Storage, by obstore: ``az://``, ``abfss://``, ``gs://``.

Exclusive creation is ``If-None-Match: *`` or generation 0, compare-and-set is ``If-Match`` or the generation that was
read. Both are proved as on S3. Deletes are one request each, since obstore does not say which of a batch failed;
listings are those of a whole directory, since it knows no prefix that ends within a name.

Storage options: those of ``blob_settings``, ``connect_timeout``, ``read_timeout``, ``request_timeout``,
``hedged_share`` and the common ones. ``client: fsspec`` goes back to the fsspec file system.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from trinitylake_core.errors import FileMissing, StorageDenied, TrinityLakeError
from trinitylake_core.storage.blob_settings import GOOGLE, make_store_of
from trinitylake_core.storage.failures import TransientError
from trinitylake_core.storage.obstore_client import ObstoreClient, shared
from trinitylake_core.storage.port import Data, DeleteResult, FileInfo, Tagged
from trinitylake_core.storage.proving import ProvedByTrying
from trinitylake_core.storage.retry import take_number
from trinitylake_core.storage.s3_errors import is_beyond_the_end, map_error, refused_swap
from trinitylake_core.storage.s3_settings import environment

_PAGE = 1000
_Meta = Mapping[str, Any]


class _Listing:
    """The objects below a directory, page by page; begun again when a page got lost. Not thread-safe."""

    def __init__(self, client: ObstoreClient, directory: str) -> None:
        self._client = client
        self._directory = directory.rstrip("/")
        self._pages: Iterator[Sequence[_Meta]] | None = None
        self._arrived: Iterator[Sequence[_Meta]] | None = None
        self._last = ""

    def page(self) -> Sequence[_Meta]:
        """Return the next page with something new, none at the end. Called again without ``received``, the same."""
        pages, self._pages = self._pages, None
        pages = pages or self._client.listing(self._directory, _PAGE)
        page = self._client.next_page(pages)
        while page and page[-1]["path"] <= self._last:
            page = self._client.next_page(pages)
        self._arrived = pages
        return page

    def received(self, page: Sequence[_Meta]) -> Sequence[_Meta]:
        """Go on behind a page; return what is new in it."""
        self._pages = self._arrived
        beyond = [meta for meta in page if meta["path"] > self._last]
        self._last = page[-1]["path"]
        return beyond


class BlobStorage(ProvedByTrying):
    """Objects below a prefix of one bucket or container, through the client that this process shares."""

    OTHER: ClassVar[Tagged] = Tagged(b"", '"1"')

    def __init__(self, root: str, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(root, options)
        self._scheme, _, rest = root.partition("://")
        authority, _, self._prefix = rest.partition("/")
        own = dict(self._own_options)
        own.pop("client", None)
        self._endpoint = str(own.get("endpoint_url"))
        self._seconds = take_number(own, "request_timeout", default=60.0, least=0.001)
        self._hedged_share = take_number(own, "hedged_share", default=0.1, least=0.0)
        self._bucket, self._make_store = make_store_of(self._scheme, authority, own)
        self._client: ObstoreClient | None = None

    def _reset_after_fork(self) -> None:
        super()._reset_after_fork()
        self._client = None

    def _shared(self) -> ObstoreClient:
        if self._client is None:
            asked = (self._scheme, self.root.split("/")[2], repr(self._own_options), environment())
            make = partial(ObstoreClient, self._make_store, self._seconds, self._hedged_share)
            self._client = shared(asked, make)
        return self._client

    def _key(self, path: str) -> str:
        return self._prefix + path

    # Raw operations.

    def _get(self, path: str) -> bytes:
        return self._shared().get(self._key(path), self._asked_again)

    def _get_range(self, path: str, begin: int, end: int) -> bytes:
        try:
            return self._shared().get_range(self._key(path), begin, end, self._asked_again)
        except Exception as error:
            if is_beyond_the_end(error):
                return b""
            raise

    def _put(self, path: str, data: Data) -> None:
        self._shared().put(self._key(path), data, self._asked_again)

    def _create(self, path: str, data: Data) -> None:
        self._shared().put_if(self._key(path), data, "create", settled=self._asks_often())

    def _get_tagged(self, path: str) -> Tagged:
        data, version = self._shared().get_versioned(self._key(path), self._asked_again)
        return Tagged(data, self._tag(version))

    def _tag(self, version: Mapping[str, str | None]) -> str | None:
        """Return what the store compares: the generation on Google's, the ETag on Azure's."""
        return version["version"] if self._scheme in GOOGLE else version["e_tag"]

    def _swap(self, path: str, data: Data, expected: Tagged) -> Tagged:
        mode: str | dict[str, str | None] = "create"
        if expected.data is not None:
            mode = {"e_tag": expected.tag, "version": (expected.tag or "").strip('"')}
        try:
            done = self._shared().put_if(self._key(path), data, mode, settled=self._asks_often())
        except Exception as error:
            refused = refused_swap(f"{self.root}{path}", error)
            if refused is None:
                raise
            raise refused from None
        return Tagged(bytes(data), self._tag(done))

    def _head(self, path: str) -> FileInfo:
        return FileInfo(path, *_size_and_age(self._shared().head(self._key(path), self._asked_again)))

    # Deleting.

    def _delete(self, batch: Sequence[str]) -> tuple[DeleteResult, list[str]]:
        (path,) = batch
        self._shared().delete(self._key(path), self._asked_again)
        return DeleteResult(deleted=[path]), []

    def delete_many(self, paths: Sequence[str]) -> DeleteResult:
        """Delete files, several at a time. One ``delete`` each."""
        for path in paths:
            self._guard(path)
        result = DeleteResult()
        for part in self.in_parallel(paths, self._delete_alone):
            result.deleted += part.deleted
            result.missing += part.missing
            result.failed.update(part.failed)
        return result

    def _delete_alone(self, path: str) -> DeleteResult:
        try:
            return self._delete_batch([path])
        except FileMissing:
            return DeleteResult(missing=[path])
        except StorageDenied as error:
            return DeleteResult(failed={path: self._clean(error)})

    # Listing.

    def list(self, prefix: str = "") -> Iterator[FileInfo]:
        """Yield files by prefix. One ``list`` for 1000 files of the directory that the prefix is in.

        A listing that fails is begun again, and what was yielded is skipped: names come in ascending order.
        """
        if prefix:
            self._guard(prefix)
        listing = _Listing(self._shared(), self._key(prefix.rpartition("/")[0]))
        while page := self._retrying("list", prefix, listing.page):
            beyond = listing.received(page)
            infos = map(self._info, beyond)
            yield from (info for info in infos if info.path and info.path.startswith(prefix))

    def list_dirs(self, prefix: str = "") -> tuple[Sequence[str], Sequence[FileInfo]]:
        """Return one level. Counted as one ``list``, however many pages the store makes of it."""
        if prefix:
            self._guard(prefix)
        directory = self._key(prefix).rstrip("/")
        directories, objects = self._retrying("list", prefix, partial(self._shared().list_dirs, directory))
        files = [info for info in map(self._info, objects) if info.path.startswith(prefix) and info.path != prefix]
        return [f"{name[len(self._prefix) :]}/" for name in directories], files

    def exists(self) -> bool:
        """Return whether anything is there. One ``list``."""
        return next(self.list(), None) is not None

    def _info(self, meta: _Meta) -> FileInfo:
        return FileInfo(meta["path"][len(self._prefix) :], *_size_and_age(meta))

    # Errors.

    def _translate(self, kind: str, path: str, error: Exception) -> TrinityLakeError:
        where = f"{self.root}{path}"
        if kind == "delete" and isinstance(mapped := map_error("get", where, self._bucket, error), FileMissing):
            return mapped
        mapped = map_error(kind, where, self._bucket, error)
        clean = self._clean(mapped)
        if isinstance(mapped, TransientError):
            return TransientError(clean, undone=mapped.undone)
        return type(mapped)(clean)


def _size_and_age(meta: _Meta) -> tuple[int, int]:
    return int(meta["size"]), int(meta["last_modified"].timestamp() * 1000)
