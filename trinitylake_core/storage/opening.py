"""From a root URI to the storage behind it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trinitylake_core.storage.base import BaseStorage
from trinitylake_core.storage.generic import FsspecStorage
from trinitylake_core.storage.local import LocalStorage
from trinitylake_core.storage.port import Storage
from trinitylake_core.storage.roots import normalise_root
from trinitylake_core.storage.s3 import S3Storage

_BACKENDS: dict[str, type[BaseStorage]] = {"file": LocalStorage, "s3": S3Storage}


def open_storage(root: str, options: Mapping[str, Any] | None = None) -> Storage:
    """Return the storage at a root URI. No request; nothing needs to be there yet.

    Raises ``InvalidLocation`` for a malformed URI, ``InvalidInput`` for a malformed option, and ``StorageError``
    when the client library for the scheme is not installed.
    """
    normalised = normalise_root(root)
    backend = _BACKENDS.get(normalised.partition("://")[0], FsspecStorage)
    return backend(normalised, options)
