"""From a root URI to the storage behind it."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

from trinitylake_core.errors import InvalidInput, InvalidLocation
from trinitylake_core.extras import install_command
from trinitylake_core.storage.base import BaseStorage
from trinitylake_core.storage.local import LocalStorage
from trinitylake_core.storage.port import Options, Storage
from trinitylake_core.storage.requests import CommonOptions
from trinitylake_core.storage.root_uris import BLOBS, S3_SCHEMES, normalise_root, root_uri

_BACKENDS: dict[str, type[BaseStorage]] = {"file": LocalStorage}
"""Those that need no package."""


def options_for(uri: str, root: str, options: Options) -> dict[str, Any]:
    """Return those storage options of a lakehouse that apply to another URI, too. No request.

    All of them where both lie in the same kind of storage; else those that every kind knows, such as ``retries``:
    the key of a bucket has no meaning for a local file. A URI without a scheme is a local path.
    """
    if storage_kind(uri) == storage_kind(root):
        return dict(options)
    return {name: value for name, value in options.items() if name in CommonOptions.__slots__}


def storage_kind(uri: str) -> str:
    """Return the kind of storage that a URI or a path names: ``file``, ``s3``, ``az``, ``gs``, or its scheme."""
    scheme, found, _ = uri.partition("://")
    if found:
        scheme = scheme.lower()
    else:
        scheme = "file"
    return S3_SCHEMES.get(scheme) or BLOBS.get(scheme) or scheme


def storage_at(root: str | os.PathLike[str] | Storage, options: Options | None) -> Storage:
    """Return a storage as it is, or the one at a root as people write it. Raises as :func:`open_storage`."""
    return root if isinstance(root, Storage) else open_storage(root_uri(root), options)


def open_storage(root: str, options: Options | None = None) -> BaseStorage:
    """Return the storage at a root URI. No request; nothing needs to be there yet.

    Raises ``InvalidLocation`` for a malformed URI, and ``InvalidInput`` for a malformed option or a client
    library that is not installed.
    """
    normalised = normalise_root(root)
    scheme = normalised.partition("://")[0]
    if scheme == "s3":  # what a disk does without is imported when it is needed
        missing = []
        for name in ("obstore", "s3fs"):
            if find_spec(name) is None:
                missing.append(name)
        if missing:
            raise InvalidInput(f"s3:// needs {' and '.join(missing)}: {install_command('s3')}")
        from trinitylake_core.storage.s3 import S3Storage  # noqa: PLC0415

        return S3Storage(normalised, options)
    if scheme in BLOBS:
        from trinitylake_core.storage.blobs import BlobStorage  # noqa: PLC0415

        return BlobStorage(normalised, options)
    backend = _BACKENDS.get(scheme)
    if backend is None:
        raise InvalidLocation(
            f"root URI {normalised!r}: {scheme}:// is not supported. A lakehouse lies on a disk (file:///abs/path), in "
            "a store with the protocol of S3 (s3://bucket/path), on Azure (az://container/path), or on Google "
            "(gs://bucket/path)"
        )
    return backend(normalised, options)
