"""What may be wrong with one file: a node by itself, or a definition, by the invariants of ``docs/format.md``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from trinitylake_core import spec
from trinitylake_core.catalog import decode_definition
from trinitylake_core.definitions import TableDef, has_checksum
from trinitylake_core.errors import Corrupt, FileMissing
from trinitylake_core.storage import Storage
from trinitylake_core.tree.node import Node

_HINTS: Final = {
    "I1": "the file is damaged: restore it from an export, or roll back to a version that does not use it",
    "I10": "restore the file from an export, or roll back to a version that does not use it",
    "I13": "roll back to the version before; if its definition is gone too, restore it from an export",
    "I12": "create the namespace again, or drop what lies in it; a compaction changes neither",
    "I14": "the history was tampered with; the content of this version is still readable",
    "I15": "bring the object back from an export (`restore --from … --damaged`), or drop or re-create it",
    "I16": "run `trinitylake expire` again: it rewrites the boundary",
    "I18": "another file lies in its place: restore it from an export, or roll back to a version that does not use it",
    "I17": "drop the snapshot, or restore its files from an export",
    "I19": "an engine may have expired it: restore the table from a version whose metadata file exists",
}
_REWRITE: Final = "run `trinitylake compact`: it rewrites the nodes; if the finding stays, restore from an export"


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken invariant: its number, the file, what is wrong, and what to do."""

    invariant: str
    file: str
    message: str
    hint: str


def violation(invariant: str, file: str, message: str) -> Violation:
    """Return a finding with the advice that goes with its invariant."""
    return Violation(invariant, file, message, _HINTS.get(invariant, _REWRITE))


def check_definitions(
    storage: Storage,
    named: Sequence[tuple[str, str, str]],
    proved: Callable[[str], None] | None = None,
    tables: Callable[[str, str, TableDef], None] | None = None,
) -> Iterator[Violation]:
    """Yield what is wrong with definition files, given as kind, name and valid path. One ``get`` each, in parallel.

    ``proved`` is called with the path of each sound one that carries a checksum, ``tables`` with name, path and content
    of each sound one of a table.
    """
    contents = storage.read_many([path for _, _, path in named])
    for (kind, name, path), (_, data) in zip(named, contents, strict=True):
        if isinstance(data, FileMissing):
            yield violation("I15", path, f"the definition of {kind} {name!r} is missing")
            continue
        try:
            definition = decode_definition(kind, data, path)
        except Corrupt as error:
            yield violation("I15", path, f"the definition of {kind} {name!r}: {error}")
            continue
        if proved is not None and has_checksum(data):
            proved(path)
        if tables is not None and isinstance(definition, TableDef):
            tables(name, path, definition)


def check_node(
    node: Node, path: str, order: int, bounds: tuple[str | None, str | None], *, top: bool
) -> Iterator[Violation]:
    """Yield what is wrong within one node, as far as its layout knows. No request."""
    if node.table_rows is None:  # the flat table of the published SDK
        return
    if not node.checksummed and node.height is not None:
        yield violation("I1", path, "the checksum is gone from a file that this library wrote")
    if node.table_rows != order:
        yield violation("I2", path, f"the key table has {node.table_rows} rows instead of {order}")
    if any(a >= b for a, b in zip(node.keys, node.keys[1:], strict=False)):
        yield violation("I3", path, "keys are not strictly ascending")
    yield from _check_ranges(node, path, bounds)
    if len(node.keys) > order - 1 or (not top and len(node.keys) < -(-order // 2) - 1):
        yield violation("I6", path, f"{len(node.keys)} keys in a node of order {order}")
    if top and node.children and not node.keys:
        yield violation("I6", path, "the root has a single child")
    if node.height is not None and (node.height == 0) != node.is_leaf:
        yield violation("I8", path, f"height {node.height}, but it has {len(node.children)} children")
    for row, counts in ((spec.CHILD_KEYS, node.child_keys), (spec.CHILD_MESSAGES, node.child_messages)):
        if counts is not None and len(counts) != len(node.children):
            yield violation("I9", path, f"{row} counts {len(counts)} children of {len(node.children)}")


def _check_ranges(node: Node, path: str, bounds: tuple[str | None, str | None]) -> Iterator[Violation]:
    low, high = bounds
    for key in node.keys:
        if (low is not None and key <= low) or (high is not None and key >= high):
            yield violation("I4", path, f"key {key.rstrip()!r} lies outside the pivots around its node")
    for key, _, txn in node.buffer:
        if (low is not None and key <= low) or (high is not None and key >= high):
            yield violation("I5", path, f"a message for {key.rstrip()!r} lies outside the pivots around its node")
        if not txn and node.canonical:
            yield violation("I5", path, f"a message for {key.rstrip()!r} has no transaction ID")
