"""Surgery: a lakehouse's files opened and changed behind the API's back, on a local disk.

    with Surgery(uri).node(path) as node:      # decoded, changed in the block, written back in place
        node.keys.reverse()

Files that the writer of this library would refuse to write can be made here, with a checksum that
matches, one that does not, or none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from trinitylake_core import Lakehouse, spec
from trinitylake_core.locations import root_path
from trinitylake_core.storage.disk_lock import LOCK_FILE
from trinitylake_core.storage.root_uris import local_path, normalise_root
from trinitylake_core.tree import nodefile
from trinitylake_core.tree.checksum import checksum_of
from trinitylake_core.tree.node import Node

Columns = dict[str, list[str | None]]
"""The raw columns of a node file, by name, in order."""
RIGHT: Final = "right"
WRONG: Final = "wrong"
ABSENT: Final = "absent"


class Surgery:
    """Direct access to the files of one lakehouse on a local disk."""

    def __init__(self, root: str, order: int) -> None:
        self.directory = Path(local_path(normalise_root(root)))
        self.order = order

    # -- files -----------------------------------------------------------------------------------

    def file(self, path: str) -> Path:
        """Return where a stored path lies on the disk."""
        return self.directory / path

    def read(self, path: str) -> bytes:
        """Return the bytes of a file."""
        return self.file(path).read_bytes()

    def write(self, path: str, data: bytes) -> None:
        """Write a file in place, over a file that may be there."""
        target = self.file(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)

    def remove(self, path: str) -> None:
        """Remove a file."""
        self.file(path).unlink()

    def listing(self) -> dict[str, bytes]:
        """Return every file below the root with its bytes."""
        return listing(self.directory)

    # -- nodes -----------------------------------------------------------------------------------

    def decode(self, path: str) -> Node:
        """Return the node in a file."""
        return nodefile.decode(self.read(path), path)

    @contextmanager
    def node(self, path: str) -> Iterator[Node]:
        """Yield the node in a file to be changed; it is written back in place, with a checksum that matches."""
        node = self.decode(path)
        yield node
        name = path if node.named else None
        self.write(path, bytes(nodefile.encode(node, max(self.order, len(node.keys) + 1), name)))

    def copy_node(self, source: str, target: str) -> None:
        """Write the node in one file as another file, which knows itself by its new name."""
        node = self.decode(source)
        self.write(target, bytes(nodefile.encode(node, self.order, target)))

    def columns(self, path: str) -> Columns:
        """Return the raw columns of a node file."""
        with pa.ipc.open_file(pa.py_buffer(self.read(path))) as reader:
            table = reader.read_all()
        return {name: table.column(name).to_pylist() for name in table.column_names}

    def write_columns(self, path: str, columns: Mapping[str, Sequence[Any]], checksum: str = RIGHT) -> None:
        """Write raw columns as a node file, with a right, a wrong or no checksum."""
        self.write(path, node_file(columns, checksum))

    @contextmanager
    def raw(self, path: str, checksum: str = RIGHT) -> Iterator[Columns]:
        """Yield the raw columns of a node file to be changed; they are written back in place."""
        columns = self.columns(path)
        yield columns
        self.write_columns(path, columns, checksum)

    def system_row(self, path: str, key: str, value: str | None) -> None:
        """Set a system row of a node file, or remove it with ``None``."""
        with self.raw(path) as columns:
            set_system_row(columns, key, value)

    # -- finding nodes ---------------------------------------------------------------------------

    def tree(self, version: int) -> list[tuple[str, Node]]:
        """Return path and node of the whole tree of a version, parents before children, left to right."""
        found: list[tuple[str, Node]] = []
        waiting = [root_path(version)]
        while waiting:
            path = waiting.pop(0)
            node = self.decode(path)
            found.append((path, node))
            waiting += node.children
        return found

    def find(self, version: int, wanted: Callable[[Node], bool]) -> str:
        """Return the path of the first node below the root that is wanted."""
        for path, node in self.tree(version)[1:]:
            if wanted(node):
                return path
        raise AssertionError(f"version {version} has no such node below its root")

    def leaf(self, version: int) -> str:
        """Return the path of a leaf below the root."""
        return self.find(version, lambda node: node.is_leaf)

    def inner(self, version: int) -> str:
        """Return the path of an inner node below the root."""
        return self.find(version, lambda node: not node.is_leaf)

    def path_to(self, version: int, target: str) -> list[str]:
        """Return the paths from the root to a node, both included."""
        parents = {child: path for path, node in self.tree(version) for child in node.children}
        found = [target]
        while found[0] in parents:
            found.insert(0, parents[found[0]])
        return found

    def recount(self, version: int) -> None:
        """Make all counts of a version's tree true again, where they are; those of its objects are unknown then."""
        self.strip(root_path(version), spec.NAMESPACES, spec.TABLES, spec.VIEWS)
        counted: dict[str, tuple[int, int]] = {}
        for path, found in reversed(self.tree(version)):
            children = [counted[child] for child in found.children]
            with self.node(path) as node:
                node.child_keys = [keys for keys, _ in children] or None
                node.child_messages = [messages for _, messages in children] or None
                node.subtree_keys = len(node.keys) + sum(keys for keys, _ in children)
                node.subtree_messages = len(node.buffer) + sum(messages for _, messages in children)
                counted[path] = node.subtree_keys, node.subtree_messages

    def strip(self, path: str, *keys: str) -> None:
        """Remove system rows from a node file."""
        with self.raw(path) as columns:
            for key in keys:
                set_system_row(columns, key, None)


def set_system_row(columns: Columns, key: str, value: str | None) -> None:
    """Set a system row in raw columns, or remove it with ``None``."""
    keys = columns[spec.KEY]
    first = keys.index(None)
    if key in keys[:first]:
        row = keys.index(key)
        for column in columns.values():
            del column[row]
    if value is not None:
        for name, column in columns.items():
            column.insert(0, {spec.KEY: key, spec.PVALUE: value, "value": value}.get(name))


def node_file(columns: Mapping[str, Sequence[Any]], checksum: str = RIGHT, *, batches: int = 1) -> bytes:
    """Return a node file with these columns, which must be four strings for a checksum."""
    arrays = [pa.array(column, pa.string()) for column in columns.values()]
    metadata = {}
    if checksum != ABSENT:
        digest = checksum_of(arrays)
        metadata[spec.CHECKSUM_METADATA] = digest if checksum == RIGHT else b"0" * len(digest)
    schema = pa.schema([pa.field(name, pa.string()) for name in columns], metadata=metadata)
    table = pa.Table.from_arrays(arrays, schema=schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_table(table, max_chunksize=max(1, -(-table.num_rows // batches)))
    data: bytes = sink.getvalue().to_pybytes()
    return data


def listing(directory: Path) -> dict[str, bytes]:
    """Return every file below a directory with its bytes; temporary files are files too, the lock is not."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != LOCK_FILE
    }


def directory_of(lake: Lakehouse) -> Path:
    """Return where a lakehouse on a disk is."""
    return Path(lake.root.removeprefix("file://"))


def files_of(lake: Lakehouse) -> dict[str, bytes]:
    """Return all files of a lakehouse on a disk, as :func:`listing` does."""
    return listing(directory_of(lake))
