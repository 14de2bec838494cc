"""Reading whole files of tables, whose sizes nobody has promised."""

from __future__ import annotations

from typing import Final

from trinitylake_core.iceberg.reading import limits
from trinitylake_core.iceberg.reading.errors import UnreadableTable
from trinitylake_core.storage import Storage

_MOST: Final = max(limits.AVRO_BYTES, limits.METADATA_BYTES)


def read_file(storage: Storage, path: str, location: str) -> bytes:
    """Return a metadata file, a manifest list or a manifest. One ``get``, which asks for no more than such a file has.

    Args:
        storage: where it is.
        path: its path there.
        location: its URI, for messages.

    Raises:
        UnreadableTable: it is larger than such a file may be.
        NotAFile: something else is there.
        FileMissing, StorageError.
    """
    data = storage.read_range(path, 0, _MOST + 1)
    if len(data) > _MOST:
        raise UnreadableTable(f"it has more than {_MOST:,} bytes, so it is no file of a table", path=location)
    return data
