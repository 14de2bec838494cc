"""s3fs as the S3 backend uses it: one HTTP request for each call, ended at its deadline.

Importing this takes half a second, so nothing imports it before the first listing or deletion.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

from fsspec.asyn import sync
from s3fs import S3FileSystem

from trinitylake_core.storage.obstore_client import ObstoreClient

_file_systems: WeakKeyDictionary[ObstoreClient, Any] = WeakKeyDictionary()
_lock = threading.Lock()


def file_system(client: ObstoreClient, arguments: Mapping[str, Any]) -> Any:
    """Return the file system that all storages with this client share. No request; the first takes 0.2 s of CPU."""
    with _lock:
        fs = _file_systems.get(client)
        if fs is None:
            fs = _file_systems[client] = S3FileSystem(**arguments)
        return fs


def call(fs: Any, operation: str, seconds: float, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Send a request and return its parsed answer.

    Raises ``TimeoutError`` if the answer is not complete after so many seconds, even if a part of it arrives.
    """
    answer: dict[str, Any] = sync(fs.loop, _send, seconds, fs, operation, parameters)
    return answer


async def _send(seconds: float, fs: Any, operation: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    await fs.set_session()
    client = await fs.get_s3(parameters["Bucket"])
    method = getattr(client, operation)
    given = fs._get_s3_method_kwargs(method, **parameters)  # noqa: SLF001 - adds encryption and requester-pays
    answer: dict[str, Any] = await asyncio.wait_for(method(**given), seconds)
    return answer
