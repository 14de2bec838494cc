"""Versions: roots, the newest one, history and time travel (format, sections 2, 3 and 6)."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from trinitylake_core import locations, nodefile, spec
from trinitylake_core.definitions import LakehouseDef, decode_lakehouse, effective
from trinitylake_core.errors import (
    CorruptDefinition,
    CorruptNode,
    FileMissing,
    InvalidInput,
    InvalidLocation,
    NotALakehouse,
    VersionExpired,
    VersionNotFound,
)
from trinitylake_core.node import Messages, Node
from trinitylake_core.storage import Storage

_HISTORY_BATCH: Final = 64
_SEARCHES: Final = 5
"""How often a search for the newest version begins again when expiration overtakes it."""


@dataclass(frozen=True, slots=True)
class Root:
    """The root node of one version, with what its system rows say."""

    version: int
    path: str
    node: Node
    data: bytes | memoryview = b""
    """The bytes of the file."""

    @property
    def definition_path(self) -> str:
        """Path of the lakehouse definition. Raises ``CorruptNode`` when the root names none."""
        path = self.node.system.get(spec.LAKEHOUSE_DEF) or self.node.system.get(spec.LAKEHOUSE_DEF_A)
        if path is None:
            raise CorruptNode(
                f"root {self.path!r} does not name a lakehouse definition", path=self.path, invariant="I13"
            )
        return path

    @property
    def created_at_millis(self) -> int:
        """When the root was created, in epoch milliseconds; 0 where it does not say."""
        return self._number(spec.CREATED_AT_MILLIS)

    @property
    def oldest_version(self) -> int:
        """The boundary as of this version."""
        return self._number(spec.OLDEST_VERSION)

    @property
    def void_before_millis(self) -> int:
        """The storage's time before which a file that no root up to this one reaches is void; 0 before any fence."""
        return self._number(spec.VOID_BEFORE_MILLIS)

    @property
    def previous_root(self) -> str | None:
        """Path of the root this one was committed on top of."""
        return self.node.system.get(spec.PREVIOUS_ROOT)

    @property
    def rollback_from_root(self) -> str | None:
        """Path of the root that was rolled back from."""
        return self.node.system.get(spec.ROLLBACK_FROM_ROOT)

    @property
    def operation(self) -> str | None:
        """What made this version; ``None`` where the writer did not say."""
        return self.node.system.get(spec.OPERATION)

    @property
    def txn(self) -> str | None:
        """ID of the transaction that made this version."""
        return self.node.system.get(spec.TXN_ID)

    @property
    def summary(self) -> dict[str, Any]:
        """Facts about this version; empty where there are none."""
        try:
            facts = json.loads(self.node.system.get(spec.SUMMARY) or "{}")
        except ValueError:
            return {}
        return facts if isinstance(facts, dict) else {}

    def own_messages(self) -> Messages:
        """Return the messages of the transaction that made this root (format, section 6)."""
        txn = self.txn
        if txn is None or self.operation not in spec.TRANSACTIONAL_OPERATIONS:
            return Messages()
        return self.node.buffer.of_transaction(txn)

    def _number(self, name: str) -> int:
        text = self.node.system.get(name, "0")
        if not (text.isascii() and text.isdecimal()):
            raise CorruptNode(f"root {self.path!r}: {name} is {text!r}, not a number", path=self.path)
        return int(text)


@dataclass(frozen=True, slots=True)
class VersionInfo:
    """One line of the history. Counts are ``None`` where the root does not tell them."""

    version: int
    created_at: datetime
    created_at_millis: int
    operation: str | None
    txn: str | None
    summary: dict[str, Any]
    changes: int
    objects: int | None
    messages: int | None
    height: int | None
    root_bytes: int
    path: str
    previous_root: str | None
    rollback_from_root: str | None

    @property
    def reason(self) -> str | None:
        """Why the version was made, where somebody said so."""
        return self.summary.get("reason")

    @property
    def author(self) -> str | None:
        """Who made it."""
        return self.summary.get("author")


def version_info(root: Root) -> VersionInfo:
    """Return what a root says about its version. No request."""
    node = root.node
    return VersionInfo(
        root.version, from_millis(root.created_at_millis), root.created_at_millis, root.operation, root.txn,
        root.summary,
        len(root.own_messages()), objects_of(node), node.subtree_messages, node.height, node.nbytes, root.path,
        root.previous_root, root.rollback_from_root,
    )  # fmt: skip


def objects_of(node: Node) -> int | None:
    """Return how many objects a version holds, as far as its root tells.

    Exact where the root is the whole tree. Else without the messages, of which nobody knows before they are
    pushed down whether they add an object or change one; ``None`` where the root does not count.
    """
    if not node.is_leaf or node.height is None:
        return node.subtree_keys
    pending = node.pending
    replaced = sum(node.position(key) is not None for key in pending.keys)
    return len(node.keys) - replaced + sum(value is not None for value in pending.values)


def from_millis(millis: int) -> datetime:
    """Return epoch milliseconds as an aware UTC time; the last time there is where they lie beyond it."""
    try:
        return datetime.fromtimestamp(millis / 1000, UTC)
    except (OverflowError, OSError, ValueError):
        return datetime.max.replace(tzinfo=UTC)


def to_millis(timestamp: datetime | str | int) -> int:
    """Return a time as epoch milliseconds; text is ISO 8601, and UTC unless it says otherwise.

    Raises:
        InvalidInput: the text is not ISO 8601.
    """
    if isinstance(timestamp, int):
        return timestamp
    if isinstance(timestamp, str):
        try:
            timestamp = datetime.fromisoformat(timestamp)
        except ValueError:
            raise InvalidInput(f"{timestamp!r} is not an ISO 8601 time such as 2026-11-20T03:00:00Z") from None
    if timestamp.tzinfo is None:
        timestamp = timestamp.replace(tzinfo=UTC)
    return int(timestamp.timestamp() * 1000 // 1)


class Versions:
    """The roots of one lakehouse. Finding the newest costs O(log versions) requests, never a walk."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.sdk = False
        """Whether the published Java SDK wrote this lakehouse: other root names, read-only."""
        self._definitions: dict[str, LakehouseDef] = {}
        self._definition_data: dict[str, bytes] = {}

    # -- single roots --------------------------------------------------------------------------

    def path(self, version: int) -> str:
        """Return the path of a root, in the naming of this lakehouse."""
        return locations.sdk_root_path(version) if self.sdk else locations.root_path(version)

    def root(self, version: int) -> Root:
        """Return the root of a version. One ``get``.

        Raises:
            VersionNotFound, VersionExpired: it never existed, or retention removed it.
            CorruptNode: the root file cannot be read.
        """
        if not 0 <= version <= spec.MAX_VERSION:
            raise VersionNotFound(f"version {version} is not between 0 and {spec.MAX_VERSION}")
        root = self.try_root(version)
        if root is None:
            boundary = self.boundary()
            if version < boundary:
                raise VersionExpired(f"version {version} has expired; the oldest one kept is {boundary}")
            raise VersionNotFound(f"version {version} does not exist")
        return root

    def try_root(self, version: int, known: Root | None = None) -> Root | None:
        """Return the root of a version, or ``None`` if there is no such file. One ``get``."""
        path = self.path(version)
        try:
            data = self.storage.read(path)
        except FileMissing:
            return None
        if known is not None and known.path == path and known.data == data:
            return known
        return self.decode(version, path, data)

    def roots(self, versions: Sequence[int]) -> Iterator[Root | None]:
        """Yield several roots in order, read in parallel; ``None`` for those that are gone."""
        paths = [self.path(version) for version in versions]
        for version, (path, data) in zip(versions, self.storage.read_many(paths), strict=True):
            yield None if isinstance(data, FileMissing) else self.decode(version, path, data)

    def decode(self, version: int, path: str, data: bytes) -> Root:
        """Return the root in the bytes of its file."""
        try:
            node = nodefile.decode(data, path)
        except nodefile.OrderNeeded as needed:
            definition = self.definition(Root(version, path, Node(system=needed.system)))
            node = nodefile.decode(data, path, definition.order)
        root = Root(version, path, node, data)
        if node.system.get(spec.VERSION, str(version)) != str(version):
            raise CorruptNode(
                f"root {path!r} says it is version {node.system[spec.VERSION]}, not {version}",
                path=path,
                invariant="I13",
            )
        return root

    def definition(self, root: Root) -> LakehouseDef:
        """Return the lakehouse definition of a version, defaults filled in. At most one ``get``.

        Raises:
            CorruptDefinition: missing or garbage.
            InvalidDefinition: a major version that is not supported.
        """
        path = root.definition_path
        if path not in self._definitions:
            copy = root.node.system.get(spec.LAKEHOUSE_DEF_COPY, "")
            data = _copied(copy, path) if copy else None
            data = self._read(path) if data is None else data
            self._definitions[path] = effective(decode_lakehouse(data, path))
            self._definition_data[path] = data
        return self._definitions[path]

    def knows_definition(self, path: str, data: bytes) -> None:
        """Remember a lakehouse definition that this process wrote: after its commit nothing has to be read."""
        self._definition_data[path] = data
        self._definitions[path] = effective(decode_lakehouse(data, path))

    def definition_data(self, root: Root) -> bytes:
        """Return the lakehouse definition of a version as it is stored. At most one ``get``. Raises as above."""
        self.definition(root)
        return self._definition_data[root.definition_path]

    def definition_file(self, root: Root) -> LakehouseDef:
        """Return the lakehouse definition of a version from its own file, past the cache and the copy. One ``get``.

        Raises:
            CorruptDefinition: missing, garbage, or not what the copy in the root says.
            InvalidDefinition: a major version that is not supported.
        """
        path = root.definition_path
        data = self._read(path)
        definition = effective(decode_lakehouse(data, path))
        copy = root.node.system.get(spec.LAKEHOUSE_DEF_COPY)
        if copy and effective(decode_lakehouse(_copied(copy, path) or data, path)) != definition:
            raise CorruptDefinition(f"root {root.path!r} holds a copy of {path!r} that differs from it", path=path)
        return definition

    def _read(self, path: str) -> bytes:
        try:
            return self.storage.read(locations.validate_path(path))
        except FileMissing:
            raise CorruptDefinition(f"definition file {path!r} is missing", path=path, invariant="I13") from None
        except InvalidLocation as error:
            raise CorruptDefinition(str(error), path=path, invariant="I13") from None

    # -- finding -------------------------------------------------------------------------------

    def hint(self) -> int | None:
        """Return the latest hint, or ``None`` if it is missing or garbage. One ``get``."""
        return self._number(spec.HINT_FILE)

    def boundary(self) -> int:
        """Return the oldest version that still exists, as the boundary file says. One ``get``."""
        return self._number(spec.BOUNDARY_FILE) or 0

    def _number(self, path: str) -> int | None:
        try:
            text = self.storage.read(path).strip()
        except FileMissing:
            return None
        return int(text) if text.isdigit() and len(text) <= 10 and int(text) <= spec.MAX_VERSION else None

    def latest(self, known: Root | None = None) -> Root:
        """Return the newest root, from one that is known or else the hint on.

        Three ``get`` with a fresh hint, the root itself among them, two with a known root; O(log) more with a
        stale one. A known root that is still what is stored is not decoded again.

        Raises:
            NotALakehouse: there is no root at all.
        """
        hint = self.hint() if known is None else known.version
        if hint is not None:
            root = self._newest_from(hint, known)
            if root is not None:
                return root
        return self._latest_from_boundary()

    def _newest_from(self, version: int, known: Root | None) -> Root | None:
        ahead = self.try_root(version + 1) if version < spec.MAX_VERSION else None
        root = self.try_root(version, known) or self._sdk_root(version) if ahead is None else ahead
        if root is not None and (ahead is not None or self.sdk):
            root = self._gallop(root)
        return None if root is None or self._has_expired(root) else root

    def _sdk_root(self, version: int) -> Root | None:
        if not self.sdk:
            self.sdk = True
            root = self.try_root(version)
            self.sdk = root is not None
            return root
        return None

    def _has_expired(self, root: Root) -> bool:
        """Whether a root lies below the boundary: roots behind it may be gone, so it need not be the newest.

        Asks only if the root is old enough for expiration to have begun removing what follows it (the fence).
        """
        age = datetime.now(UTC).timestamp() * 1000 - root.created_at_millis
        return age > self.definition(root).txn_ttl_millis // 2 and self.boundary() > root.version

    def _latest_from_boundary(self) -> Root:
        for _ in range(_SEARCHES):
            boundary = self.boundary()
            root = self.try_root(boundary) or self._sdk_root(boundary)
            if root is None:
                break
            newest = self._gallop(root)
            if newest is not None and not self._has_expired(newest):
                return newest
        return self._latest_listed()

    def _latest_listed(self) -> Root:
        found = [
            (parsed.version, parsed.legacy)
            for file in self.storage.list("_")
            if (parsed := locations.parse(file.path)) is not None and parsed.version is not None
        ]
        if not found:
            raise NotALakehouse(f"there is no lakehouse at {self.storage.root}; `create` makes one")
        version, self.sdk = max(found)
        return self.root(version)

    def _gallop(self, root: Root) -> Root | None:
        """Return the newest root from ``root`` on, or ``None`` if it expires under the search's hands."""
        low, step = root.version, 1
        while self._exists(low + step):
            low += step
            step *= 2
        high = low + step
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._exists(middle) else (low, middle)
        return root if low == root.version else self.try_root(low)

    def _exists(self, version: int) -> bool:
        if version > spec.MAX_VERSION:
            return False
        try:
            self.storage.info(self.path(version))
        except FileMissing:
            return False
        return True

    # -- time ----------------------------------------------------------------------------------

    def at_timestamp(self, timestamp: datetime | str | int, newest: Root) -> Root:
        """Return the newest root created at or before a time. O(log versions) ``get``.

        Raises:
            VersionNotFound, VersionExpired: the time lies before the first version that is kept.
        """
        millis = to_millis(timestamp)
        if newest.created_at_millis <= millis:
            return newest
        return self._bisect(
            newest, lambda root: root.created_at_millis <= millis, f"at {from_millis(millis).isoformat()}"
        )

    def _bisect(self, newest: Root, holds: Callable[[Root], bool], when: str) -> Root:
        low, high = newest.oldest_version, newest.version
        best: Root | None = None
        while low < high:
            middle = (low + high) // 2
            root = self.try_root(middle)
            if root is None:
                low = max(middle + 1, self.boundary())
            elif holds(root):
                best, low = root, middle + 1
            else:
                high = middle
        if best is not None:
            return best
        if (boundary := self.boundary()) > 0:
            raise VersionExpired(f"no version {when} is kept; the oldest one kept is {boundary}")
        raise VersionNotFound(f"there was no version {when}; the lakehouse was created later")

    def history(self, newest: Root, limit: int | None = None) -> Iterator[Root]:
        """Yield roots from ``newest`` back to the boundary. One ``get`` each, read ahead in parallel."""
        yield from [newest] if limit is None or limit > 0 else []
        version = newest.version - 1
        left = version + 1 if limit is None else min(limit - 1, version + 1)
        batch = 4
        while left > 0 and version >= newest.oldest_version:
            count = min(batch, left, version - newest.oldest_version + 1)
            for root in self.roots(range(version, version - count, -1)):
                if root is None:
                    return
                yield root
            version, left, batch = version - count, left - count, min(batch * 2, _HISTORY_BATCH)


def copy_of_definition(definition_bytes: bytes, path: str) -> str | None:
    """Return the value of the row ``lakehouse_def_copy``, or ``None`` if the definition is too large for it."""
    if len(definition_bytes) > spec.LAKEHOUSE_DEF_COPY_MAX_BYTES:
        return None
    return f"{path} {base64.b64encode(definition_bytes).decode()}"


def _copied(copy: str, path: str) -> bytes | None:
    of, _, text = copy.partition(" ")
    try:
        return base64.b64decode(text, validate=True) if of == path else None
    except ValueError:
        return None
