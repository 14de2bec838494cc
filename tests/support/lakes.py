"""Small lakehouses with everything in them: several levels, buffers, history. And compaction without Spark."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from trinitylake_core import Lakehouse
from trinitylake_core.catalog import settle_counts
from trinitylake_core.clock import now_millis
from trinitylake_core.commits.changes import CompactionChange, commit_summary
from trinitylake_core.commits.commit import commit
from trinitylake_core.definitions import decode_transaction, key_table_max_bytes, new_lakehouse_def
from trinitylake_core.locations import transaction_path
from trinitylake_core.storage import open_storage
from trinitylake_core.transactions.transaction import Transaction
from trinitylake_core.tree.nodestore import NodeWriter
from trinitylake_core.tree.rewrite import Rewriter
from trinitylake_core.tree.subtree import dirty_children
from trinitylake_core.versions import Root

FAST: Final = {"durable": False}
"""Storage options of lakehouses that need not survive a power failure."""
NAME_SIZE: Final = 8
TINY: Final = 4500
"""A target size that leaves a few messages of room in each node."""


def in_memory() -> str | None:
    """Return a directory that needs no disk, where there is one: processes are killed here, not machines."""
    return next((path for path in ("/dev/shm",) if os.access(path, os.W_OK)), None)


def save_outlived(lake: Lakehouse, change: Callable[[Transaction], object]) -> str:
    """Save a transaction, and let its file say that its time to live is long over; return its ID.

    One that is past its time already cannot be saved.
    """
    txn = lake.transaction()
    change(txn)
    identity = txn.save()
    path = transaction_path(identity)
    saved = decode_transaction(lake.backend.storage.read(path), path)
    saved.began_at_millis -= 2 * lake.definition.txn_ttl_millis
    saved.expire_at_millis -= 2 * lake.definition.txn_ttl_millis
    lake.backend.storage.write(path, saved.SerializeToString(deterministic=True))
    return identity


@dataclass(frozen=True, slots=True)
class CancelBy:
    """Stops a job by a function that raises, or acts beside it right before each of its commits."""

    check: Callable[[], None]


def once(action: Callable[[], object]) -> Callable[[], None]:
    """Return a hook that acts the first time it is called."""
    left = [action]
    return lambda: None if not left else (left.pop()(), None)[1]


def smallest_target(order: int) -> int:
    """Return the smallest target size of a node that a lakehouse of this order may have."""
    kinds = ("namespace", "table", "view")
    sizes: dict[str, Any] = {f"{kind}_name_max_size_bytes": NAME_SIZE for kind in kinds}
    return key_table_max_bytes(new_lakehouse_def(order=order, **sizes)) + 1


def new_lake(directory: Path, order: int = 4, target: int = TINY, **definition: Any) -> Lakehouse:
    """Create a lakehouse with short names and tiny nodes below a directory."""
    sizes = dict.fromkeys(("namespace", "table", "view"), NAME_SIZE)
    named = {f"{kind}_name_max_size_bytes": size for kind, size in sizes.items()}
    options: dict[str, Any] = {"order": order, "node_file_max_size_bytes": target, **named, **definition}
    return Lakehouse.create((directory / "lake").as_uri(), storage_options=FAST, **options)


def reopened(lake: Lakehouse) -> Lakehouse:
    """Return a cold handle of the same lakehouse."""
    return Lakehouse.open(open_storage(*lake.storage.spec()))


def filled(lake: Lakehouse, tables: int = 40, namespaces: int = 3, changes: int = 4) -> Lakehouse:
    """Commit namespaces and tables, ``changes`` to a version, and return the lakehouse at its newest version."""
    with lake.transaction() as txn:
        for number in range(namespaces):
            txn.create_namespace(f"ns{number}")
    numbers = random.Random(7).sample(range(tables), tables)
    for start in range(0, tables, changes):
        with lake.transaction() as txn:
            for number in numbers[start : start + changes]:
                txn.create_table(f"ns{number % namespaces}", f"t{number:03}")
    return lake.refresh()


def compacted(lake: Lakehouse, base: Root | None = None) -> Root:
    """Compact a version, proved, and commit it on top of the newest one; return the root."""
    backend = lake.backend
    root = backend.newest_seen if base is None else base
    writer = NodeWriter(backend.nodes)
    rewriter = Rewriter(writer, now_millis(), prove=True)
    tree = rewriter.flush(rewriter.ref_of(root.node), dirty_children)
    rewriter.open(tree)
    node = rewriter.node_of(tree)
    writer.flush()
    assert rewriter.is_proved()
    assert node.subtree_messages in {0, None}
    counts = settle_counts(backend.nodes, node, lake.codec, root.count_bounds) if root.counts is None else None
    return commit(backend, root, CompactionChange(node, commit_summary(reason="test"), counts))


def content(lake: Lakehouse) -> dict[str, str]:
    """Return key and definition path of every object."""
    return {entry.key: entry.path for entry in lake.objects()}


def operations(lake: Lakehouse) -> list[str | None]:
    """Return the operation of each version, oldest first."""
    return [info.operation for info in lake.history()][::-1]


GOOD: Final = 9
"""The version before the mistake in :func:`with_a_mistake`."""


def with_a_mistake(directory: Path) -> Lakehouse:
    """Two levels and messages above them; in the version after ``GOOD`` a namespace is dropped by mistake."""
    made = filled(new_lake(directory, order=8), tables=28, changes=4)
    compacted(made)
    with made.transaction(reason="nightly deploy") as txn:
        txn.drop_namespace("ns0", cascade=True)
        txn.alter_table("ns1", "t001", properties={"a": "b"})
    assert GOOD + 1 == made.refresh().version
    return made
