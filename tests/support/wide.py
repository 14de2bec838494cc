"""Lakehouses of many objects without definitions, made in a moment: some costs show only in a tree that is wide."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from tests.support.lakes import compacted, new_lake
from trinitylake_core import Lakehouse

NAMESPACES: Final = 4


def wide(directory: Path, objects: int, order: int, **definition: Any) -> Lakehouse:
    """Return a lakehouse with so many tables, all in leaves, and nothing waiting."""
    lake = new_lake(directory, order=order, target=1 << 20, **definition)
    with lake.transaction() as txn:
        for number in range(NAMESPACES):
            txn.create_namespace(f"ns{number}")
    change(lake, range(objects))
    compacted(lake)
    return lake.refresh()


def change(lake: Lakehouse, numbers: Iterable[int], *, replaces: bool | None = None) -> Lakehouse:
    """Give tables other definitions, in one version; return the lakehouse at that version.

    ``replaces``: whether these tables are there, if the writer is to know that.
    """
    with lake.transaction() as txn:
        for number in numbers:
            key = lake.codec.table(f"ns{number % NAMESPACES}", f"t{number:06}")
            txn.put(key, f"0000/0000/0000/00000000-table-{txn.id[:8]}-{number}.binpb", replaces=replaces)
    return lake.refresh()


def scattered(objects: int, count: int, seed: int = 0) -> list[int]:
    """Return so many of the numbers of tables, at random, the same every time."""
    return sorted(random.Random(seed).sample(range(objects), count))
