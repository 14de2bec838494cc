"""Lakehouses of any size, made fast: objects whose definition files nobody reads."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from trinitylake_core import Lakehouse, spec
from trinitylake_core.catalog import codec_of, object_counts
from trinitylake_core.clock import now_millis
from trinitylake_core.commits.changes import create_first
from trinitylake_core.commits.commit import Draft, new_id
from trinitylake_core.definitions import LakehouseDef, new_lakehouse_def, usual_order
from trinitylake_core.keys import KeyCodec
from trinitylake_core.locations import definition_path
from trinitylake_core.storage import open_storage
from trinitylake_core.tree.leafrun import Columns
from trinitylake_core.tree.nodestore import NodeStore, NodeWriter
from trinitylake_core.tree.rewrite import Rewriter
from trinitylake_core.versions import CountBounds, Versions

_PATH = "0101/0101/0101/01010101-table-{}-6fcb514b-b878-4c9d-95b7-8dc3a7ce6fd8.binpb"
NAMESPACES = 100
_BATCH = 50_000
PathOf = Callable[[str | int], str]


def table_name(number: int, objects: int) -> tuple[str, str]:
    """Return namespace and name of a table of a lakehouse of ``objects`` tables."""
    return f"ns{number * NAMESPACES // objects:03}", f"t{number:08}"


def build(root: str, objects: int, path_of: PathOf = _PATH.format, **definition: object) -> Lakehouse:
    """Return a lakehouse of 100 namespaces and ``objects`` tables, packed bottom up as version 0.

    ``path_of`` names the definition of a namespace, by its name, and of a table, by its number.
    """
    message = _definition(**definition)
    return _built(root, message, _batches(codec_of(message), objects, path_of))


def rows(objects: int) -> pa.Table:
    """Return entries as :func:`build` stores them as a table of keys and paths, sorted by key; each path is unique."""
    batches = [*_batches(codec_of(new_lakehouse_def()), objects, lambda name: definition_path("table", f"{name}"))]
    keys = pa.concat_arrays([batch.keys for batch in batches])
    return pa.table({"key": keys, "path": pa.concat_arrays([batch.values for batch in batches])})


def create(root: str, rows: pa.Table, **definition: object) -> Lakehouse:
    """Return a lakehouse of the entries in a table of keys and paths, sorted by key."""
    pairs = zip(rows.column("key").chunks, rows.column("path").chunks, strict=True)
    return _built(root, _definition(**definition), (Columns(keys, paths) for keys, paths in pairs))


def _definition(**fields: object) -> LakehouseDef:
    """Return the definition of a new lakehouse, with the order that `create` chooses where none is given."""
    message = new_lakehouse_def(**fields)  # type: ignore[arg-type]  # fields come from a command line
    if fields.get("order") is None:
        message.order = usual_order(message)
    return message


def _built(root: str, message: LakehouseDef, batches: Iterable[Columns]) -> Lakehouse:
    storage = open_storage(root)
    writer = NodeWriter(NodeStore(storage, message.order, message.node_file_max_size_bytes))
    rewriter = Rewriter(writer, now_millis(), prove=True)
    tree = rewriter.build(_fed(rewriter, batches))
    rewriter.open(tree)
    node = rewriter.node_of(tree)
    writer.flush()
    if not rewriter.is_proved():
        raise AssertionError("the proof of a new tree failed")
    counts = CountBounds.exactly(object_counts(writer, node, codec_of(message)))
    create_first(Versions(storage), message, Draft(node, spec.OP_LOAD, new_id(), counts=counts))
    return Lakehouse.open(root)


def _fed(rewriter: Rewriter, batches: Iterable[Columns]) -> Iterator[Columns]:
    for batch in batches:
        if rewriter.proof is not None:
            rewriter.proof.fed_columns(batch)
        yield batch


def _batches(codec: KeyCodec, objects: int, path_of: PathOf) -> Iterator[Columns]:
    namespaces = [f"ns{number:03}" for number in range(NAMESPACES)]
    yield Columns.of([codec.namespace(name) for name in namespaces], [path_of(name) for name in namespaces])
    spaces = pa.array([codec.table(name, "t")[: -codec.table_size] for name in namespaces])
    for start in range(0, objects, _BATCH):
        numbers = range(start, min(start + _BATCH, objects))
        of = pa.array([number * NAMESPACES // objects for number in numbers])
        names = pc.utf8_rpad(pa.array([f"t{number:08}" for number in numbers]), codec.table_size)
        keys = pc.binary_join_element_wise(spaces.take(of), names, "")
        yield Columns(keys, pa.array([path_of(number) for number in numbers]))


def change(lake: Lakehouse, objects: int, changes: int, *, part: float = 1.0, seed: int = 1) -> None:
    """Commit one transaction of mixed sets, updates and deletes, all in the middle ``part`` of the key range."""
    pick = random.Random(seed)
    low = int(objects * (1 - part) / 2)
    high = max(low + 1, low + int(objects * part))
    with lake.transaction() as txn:
        for number in range(changes):
            namespace, name = table_name(pick.randrange(low, high), objects)
            key = lake.codec.table(namespace, name if number % 3 else f"{name}x")
            txn.put(key, None if number % 3 == 1 else _PATH.format(f"new-{number}"))
    lake.refresh()
