"""What versions say, read from the bytes of their files without the product's reader.

Only Arrow, protobuf and the layout of the format: system rows, the row without a key, ``order - 1`` rows of the
table, then messages, oldest first.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple

import pyarrow as pa

from tests.simulation.ground import COUNTER, SIZES
from trinitylake_core.definitions import TableDef

Content = dict[str, str]
"""Path of the definition by object key."""
_ORDER: Final[int] = SIZES["order"]


class NodeFile(NamedTuple):
    """One node file: its system rows, its table and children, and its messages (key, path or ``None``, txn)."""

    system: dict[str, str]
    table: dict[str, str]
    children: tuple[str, ...]
    messages: tuple[tuple[str, str | None, str], ...]

    @property
    def own(self) -> dict[str, str | None]:
        """The messages of the transaction that made this root."""
        return {key: value for key, value, txn in self.messages if txn == self.system.get("txn")}

    def number(self, name: str) -> int:
        """Return a system row as a number, 0 where there is none."""
        return int(self.system.get(name, "0"))


@lru_cache(maxsize=20_000)
def node_file(data: bytes) -> NodeFile:
    """Return the content of a node file."""
    with pa.ipc.open_file(pa.BufferReader(data)) as reader:
        batch = reader.read_all().to_pydict()
    keys, values, children, txns = (batch[name] for name in ("key", "pvalue", "pnode", "txn"))
    first = keys.index(None)
    table = range(first + 1, first + _ORDER)
    return NodeFile(
        dict(zip(keys[:first], values[:first], strict=True)),
        {keys[row]: values[row] for row in table if keys[row] is not None},
        tuple(child for child in children[first : first + _ORDER] if child is not None),
        tuple(zip(keys[first + _ORDER :], values[first + _ORDER :], txns[first + _ORDER :], strict=True)),
    )


class Tree(NamedTuple):
    """One version: its content, and every file but the definitions of the objects that it needs."""

    content: Content
    nodes: frozenset[str]


def tree(data: bytes, files: Mapping[str, bytes]) -> Tree:
    """Return the content of a root. Raises ``KeyError`` with the path of a node that was never written."""
    node = node_file(data)
    content: Content = {}
    nodes: set[str] = set(node.children)
    for child in node.children:
        below = tree(files[child], files)
        content |= below.content
        nodes |= below.nodes
    content |= node.table
    for key, value, _ in node.messages:
        if value is None:
            content.pop(key, None)
        else:
            content[key] = value
    return Tree(content, frozenset(nodes))


@lru_cache(maxsize=20_000)
def counter(data: bytes) -> str | None:
    """Return the counter of a table, ``None`` for definitions without one."""
    return dict(TableDef.FromString(data).properties).get(COUNTER)
