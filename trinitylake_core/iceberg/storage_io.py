"""PyIceberg's FileIO over the client of the lakehouse's own storage: files of tables are found by the same settings.

PyIceberg's own ones for S3 know a part of what ``docs/storage.md`` lists: no file of an authority, no ``no_proxy``,
other places for profiles. For ``az://`` there is none, and those for Azure and Google need further packages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fsspec import AbstractFileSystem
from obstore.fsspec import FsspecStore
from pyiceberg.io.fsspec import FsspecFileIO
from pyiceberg.typedef import Properties

from trinitylake_core.iceberg.options import LAKEHOUSE_ROOT, own_options
from trinitylake_core.storage import open_storage
from trinitylake_core.storage.objects import ObjectStorage
from trinitylake_core.storage.opening import options_for

_LOCAL: Final = frozenset({"", "file"})


class _Buckets(FsspecStore):
    """Buckets of one scheme, each by the storage options that apply to it."""

    cachable = False

    def __init__(self, scheme: Any, root: str, options: Mapping[str, Any]) -> None:
        super().__init__(scheme)
        self._scheme = scheme
        self._root = root
        self._given = options

    def _construct_store(self, bucket: str) -> Any:
        uri = f"{self._scheme}://{bucket}/"
        storage = open_storage(uri, options_for(uri, self._root, self._given))
        if not isinstance(storage, ObjectStorage):
            raise TypeError(f"{uri} is no object store")
        return storage.file_store()


class StorageFileIO(FsspecFileIO):
    """Reads and writes files of tables with the settings of a lakehouse, which its properties contain.

    Files of another kind of storage are found by the environment alone: the key of a bucket has no meaning there.
    """

    def __init__(self, properties: Properties) -> None:
        super().__init__(properties)
        self._root = str(properties.get(LAKEHOUSE_ROOT, ""))

    def _get_fs(self, scheme: str, hostname: str | None = None) -> AbstractFileSystem:
        if scheme in _LOCAL:
            return super()._get_fs(scheme, hostname)
        return _Buckets(scheme, self._root, own_options(self.properties))
