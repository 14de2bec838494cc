"""Single objects of S3, Azure and Google, by obstore: read, written, created, compared and set, one request each.

The classes for the three clouds (``s3``, ``blobs``) add what differs: settings, listings, deletions.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import Any, TypeVar

from trinitylake_core.errors import TrinityLakeError
from trinitylake_core.storage.base import CheckedByTrying
from trinitylake_core.storage.failures import TransientError
from trinitylake_core.storage.obstore_client import Kind, MakeStore, ObstoreClient, shared
from trinitylake_core.storage.port import Data, FileInfo, Tagged
from trinitylake_core.storage.requests import take_number
from trinitylake_core.storage.store_errors import is_beyond_the_end, map_error, refused_swap

T = TypeVar("T")


class ObjectStorage(CheckedByTrying):
    """Objects below a prefix of one bucket or container, through the client that this process shares."""

    def __init__(self, root: str, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(root, options)
        self._bucket, _, self._prefix = root.partition("://")[2].partition("/")
        self._seconds = take_number(self._own_options, "request_timeout", default=60.0, least=0.001)
        self._hedged_share = take_number(self._own_options, "hedged_share", default=0.1, least=0.0)
        self._shared: ObstoreClient | None = None

    def _reset_after_fork(self) -> None:
        super()._reset_after_fork()
        self._shared = None

    @abc.abstractmethod
    def _settings(self) -> Hashable:
        """Return all that :meth:`_make_store` depends on: storages for which it is equal share a client."""

    @abc.abstractmethod
    def _make_store(self) -> MakeStore:
        """Return the factory of obstore's stores."""

    def _version_of(self, meta: Mapping[str, Any]) -> str | None:
        """Return the tag that the server compares: an ETag."""
        tag: str | None = meta["e_tag"]
        return tag

    @property
    def _client(self) -> ObstoreClient:
        if self._shared is None:
            settings = (type(self), self._bucket, self._seconds, self._hedged_share, self._settings())
            make = lambda: ObstoreClient(self._make_store(), self._seconds, self._hedged_share)  # noqa: E731
            self._shared = shared(settings, make)
        return self._shared

    def _key(self, path: str) -> str:
        return self._prefix + path

    def _repeat(self, kind: Kind, call: Callable[[Any], T], size: int = 0) -> T:
        """Send a request that does no harm twice; a second one is counted, too."""
        return self._client.repeat(kind, call, partial(self._count, kind), size)

    def _get(self, path: str) -> bytes:
        api, key = self._client.api, self._key(path)
        return self._repeat("get", lambda store: bytes(api.get(store, key).bytes()))

    def _get_range(self, path: str, begin: int, end: int) -> bytes:
        api, key, options = self._client.api, self._key(path), {"range": (begin, end)}
        try:
            return self._repeat("get", lambda store: bytes(api.get(store, key, options=options).bytes()))
        except Exception as error:
            if is_beyond_the_end(error):
                return b""
            raise

    def _get_tagged(self, path: str) -> Tagged:
        api, key = self._client.api, self._key(path)

        def get(store: Any) -> Tagged:
            answer = api.get(store, key)
            return Tagged(bytes(answer.bytes()), self._version_of(answer.meta))

        return self._repeat("get", get)

    def _put(self, path: str, data: Data) -> None:
        api, key, content = self._client.api, self._key(path), _as_bytes(data)
        self._repeat("put", lambda store: api.put(store, key, content, use_multipart=False), len(content))

    def _create(self, path: str, data: Data) -> None:
        self._put_if(path, data, "create")

    def _put_if(self, path: str, data: Data, mode: str | Mapping[str, str | None]) -> Mapping[str, Any]:
        """Write an object only if there is none (``create``), or only in place of a version. It is sent once."""
        api, key, content = self._client.api, self._key(path), _as_bytes(data)
        return self._client.once(lambda store: api.put(store, key, content, mode=mode, use_multipart=False))

    def _swap(self, path: str, data: Data, expected: Tagged) -> Tagged:
        mode: str | dict[str, str | None] = "create"
        if expected.data is not None:
            mode = {"e_tag": expected.tag, "version": (expected.tag or "").strip('"')}
        try:
            done = self._put_if(path, data, mode)
        except Exception as error:
            refused = refused_swap(f"{self.root}{path}", error)
            if refused is None:
                raise
            raise refused from None
        return Tagged(bytes(data), self._version_of(done))

    def _head(self, path: str) -> FileInfo:
        api, key = self._client.api, self._key(path)
        meta = self._repeat("head", lambda store: api.head(store, key))
        return FileInfo(path, int(meta["size"]), millis(meta["last_modified"]))

    def _translate(self, kind: str, path: str, error: Exception) -> TrinityLakeError:
        mapped = map_error(kind, f"{self.root}{path}", self._bucket, error)
        clean = self._clean(mapped)
        if isinstance(mapped, TransientError):
            return TransientError(clean, undone=mapped.undone)
        return type(mapped)(clean)


def millis(moment: Any) -> int:
    """Return a time as epoch milliseconds."""
    return int(moment.timestamp() * 1000)


def _as_bytes(data: Data) -> bytes:
    return data if isinstance(data, bytes) else bytes(data)
