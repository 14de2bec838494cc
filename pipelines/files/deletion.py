"""Deleting many files: in batches, each failure counted and none fatal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import pyarrow as pa

from pipelines.engine.model import LONG, TEXT, Row
from trinitylake_core.errors import StorageError
from trinitylake_core.storage import Storage

BATCH: Final = 1000
_REASONS: Final = 20
DELETED: Final = pa.schema(
    {
        "attempted": LONG, "deleted": LONG, "already_gone": LONG, "failed": LONG, "bytes": LONG, "requests": LONG,
        "failures": pa.map_(TEXT, TEXT),
    }
)  # fmt: skip
"""The columns of :func:`delete_rows`."""


@dataclass(slots=True)
class Deleted:
    """What became of files that were to be deleted.

    An object store does not distinguish a deleted file from one that was gone already. ``bytes`` are those of the
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
    """Delete files, given as path and size, and yield what became of each batch. One ``delete`` per batch."""
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


def delete_rows(rows: Iterator[Row], storage: Storage) -> Iterator[tuple[Any, ...]]:
    """Delete files (path, bytes), and yield a row of :data:`DELETED` for the outcome of each batch."""
    for part in delete(storage, ((row["path"], row["bytes"]) for row in rows)):
        yield (*(getattr(part, name) for name in DELETED.names[:-1]), list(part.failures.items()))


def deleted_of(row: Row) -> Deleted:
    """Return the result of a deletion from a row of :func:`delete_rows`."""
    return Deleted(**{**row, "failures": dict(row["failures"])})
