"""Deleting many files: in batches, each failure counted and none fatal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import pyarrow as pa

from trinitylake_core.errors import StorageError
from trinitylake_core.storage import Storage, open_storage

BATCH: Final = 1000
_REASONS: Final = 20
_DELETED: Final = pa.schema(
    [
        ("attempted", pa.int64()),
        ("deleted", pa.int64()),
        ("already_gone", pa.int64()),
        ("failed", pa.int64()),
        ("bytes", pa.int64()),
        ("requests", pa.int64()),
        ("failures", pa.map_(pa.string(), pa.string())),
    ]
)
DELETED_DDL: Final = (
    "attempted bigint, deleted bigint, already_gone bigint, failed bigint, bytes bigint, requests bigint, "
    "failures map<string,string>"
)


@dataclass(slots=True)
class Deleted:
    """What became of files that were to be deleted.

    An object store does not tell a deleted file from one that was gone already. ``bytes`` are those of the
    deleted files; ``failures`` names some of the failed ones, with the reason.
    """

    attempted: int = 0
    deleted: int = 0
    already_gone: int = 0
    failed: int = 0
    bytes: int = 0
    requests: int = 0
    failures: dict[str, str] = field(default_factory=dict)

    def add(self, part: Deleted) -> None:
        """Add what became of other files."""
        for name in ("attempted", "deleted", "already_gone", "failed", "bytes", "requests"):
            setattr(self, name, getattr(self, name) + getattr(part, name))
        for path, reason in islice(part.failures.items(), max(0, _REASONS - len(self.failures))):
            self.failures[path] = reason


def delete(storage: Storage, files: Iterable[tuple[str, int]]) -> Iterator[Deleted]:
    """Delete files, given as path and size, and yield what became of each batch. One ``delete`` a batch."""
    remaining = iter(files)
    while batch := dict(islice(remaining, BATCH)):
        yield _delete_batch(storage, batch)


def _delete_batch(storage: Storage, sizes: Mapping[str, int]) -> Deleted:
    before = storage.counts.delete
    try:
        result = storage.delete_many(list(sizes))
    except StorageError as error:
        failures = {path: str(error) for path in islice(sizes, _REASONS)}
        return Deleted(len(sizes), failed=len(sizes), requests=storage.counts.delete - before, failures=failures)
    return Deleted(
        attempted=len(sizes),
        deleted=len(result.deleted),
        already_gone=len(result.missing),
        failed=len(result.failed),
        bytes=sum(sizes[path] for path in result.deleted),
        requests=storage.counts.delete - before,
        failures=dict(islice(result.failed.items(), _REASONS)),
    )


def delete_task(root: str, options: Mapping[str, Any]) -> Any:
    """Return what a Spark task does: delete the files of its batches (path, bytes), and tell what became of them."""

    def delete_partition(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        storage = open_storage(root, options)
        total = Deleted()
        pairs = (
            pair
            for batch in batches
            for pair in zip(batch.column("path").to_pylist(), batch.column("bytes").to_pylist(), strict=True)
        )
        for part in delete(storage, pairs):
            total.add(part)
        row = {name: getattr(total, name) for name in _DELETED.names}
        row["failures"] = list(total.failures.items())
        yield pa.RecordBatch.from_pylist([row], schema=_DELETED)

    return delete_partition
