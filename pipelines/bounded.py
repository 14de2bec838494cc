"""What keeps the memory of a job the same, however large the lakehouse is.

Tasks hand rows on in pieces of bounded weight, and what later steps need again waits on disk: Spark would keep
it on the heap until that is full, so that a job of ten times the versions looked like one that leaks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:  # the command line must not wait for pyspark where no Spark runs
    from pyspark.sql import DataFrame

_HEAVY: Final = 8_192
T = TypeVar("T")


def by_weight(rows: Iterable[T], weight: Callable[[T], int], most: int = _HEAVY) -> Iterator[list[T]]:
    """Yield rows in lists that weigh about ``most`` at the most; a row heavier than that comes alone or last."""
    piece, heavy = [], 0
    for row in rows:
        piece.append(row)
        heavy += weight(row)
        if heavy >= most:
            yield piece
            piece, heavy = [], 0
    if piece:
        yield piece


def on_disk(frame: DataFrame) -> DataFrame:
    """Keep a frame on the disks of the executors once it is computed; ``unpersist`` lets it go."""
    from pyspark import StorageLevel

    return frame.persist(StorageLevel.DISK_ONLY)


def checkpointed(frame: DataFrame) -> DataFrame:
    """Compute a frame now and keep it on disk: it is never computed a second time, a lost block fails the job."""
    from pyspark import StorageLevel

    return frame.localCheckpoint(eager=True, storageLevel=StorageLevel.DISK_ONLY)
