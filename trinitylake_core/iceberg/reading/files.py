"""Reading whole files of tables, whose sizes nobody has promised."""

from __future__ import annotations

from trinitylake_core.iceberg.reading import limits
from trinitylake_core.iceberg.reading.errors import UnreadableTable
from trinitylake_core.storage import Storage


def read_file(storage: Storage, path: str, location: str, *, least: int = 0) -> bytes:
    """Return a metadata file, a manifest list or a manifest. One ``get``, which asks for no more than such a file has.

    Args:
        storage: where it is.
        path: its path there.
        location: its URI, for messages.
        least: the bytes that it has by what names it. A manifest that was cut behind a block looks whole.

    Raises:
        UnreadableTable: it is larger than such a file may be, or was cut.
        NotAFile: something else is there.
        FileMissing, StorageError.
    """
    most = max(limits.AVRO_BYTES, limits.METADATA_BYTES)
    data = storage.read_range(path, 0, most + 1)
    if len(data) > most:
        raise UnreadableTable(f"it has more than {most:,} bytes, so it is no file of a table", path=location)
    if len(data) < least:
        raise UnreadableTable(f"it has {len(data):,} bytes, and had {least:,} when it was written", path=location)
    return data
