"""Roots: the system rows of one version (format, section 3)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from trinitylake_core import spec
from trinitylake_core.errors import CorruptNode, InvalidInput
from trinitylake_core.storage import Data
from trinitylake_core.tree.node import Messages, Node
from trinitylake_core.versions.counts import CountBounds, ObjectCounts, bounds_in, counts_in, is_number

MENDED: Final = "mended"
"""In the summary of a version: the fences that it mended, which lay in the future, each with its time (section 6)."""


class Member(NamedTuple):
    """One transaction of a version: its only one, or one of the group that became this version.

    Attributes:
        txn: its ID; ``None`` where the version does not contain it.
        author: who made it.
        reason: why, if its author gave a reason.
        request: the digest of the request that it carried out, if a client gave that a key; then ``txn`` is the key.
    """

    txn: str | None
    author: str | None = None
    reason: str | None = None
    request: str | None = None


def members_in(txn: str | None, summary: Mapping[str, Any]) -> tuple[Member, ...]:
    """Return the transactions of a version, by its transaction ID and its summary; of a group all, else one."""
    found = summary.get("members")
    if not isinstance(found, list):
        return (_member({**summary, "txn": txn}),)
    members = [_member(facts) for facts in found if isinstance(facts, dict)]
    return tuple(members)


def _member(facts: Mapping[str, Any]) -> Member:
    """Return the member that facts in a summary describe. They may be of any type: other programs write them, too."""
    texts = {}
    for name in Member._fields:
        value = facts.get(name)
        texts[name] = value if isinstance(value, str) else None
    return Member(**texts)


class RootRows:
    """The system rows of a root."""

    __slots__ = ()

    version: int
    path: str

    @property
    def system(self) -> dict[str, str]:
        """The system rows by name."""
        raise NotImplementedError

    def own_messages(self) -> Messages:
        """Return the messages of the transaction that made this root (format, section 6)."""
        raise NotImplementedError

    @property
    def definition_path(self) -> str:
        """Path of the lakehouse definition. Raises ``CorruptNode`` when the root names none."""
        path = self.system.get(spec.LAKEHOUSE_DEF)
        if path is None:
            raise CorruptNode(
                f"root {self.path!r} does not name a lakehouse definition", path=self.path, invariant="I13"
            )
        return path

    @property
    def created_at_millis(self) -> int:
        """When the root was created, in epoch milliseconds; 0 where it does not contain that."""
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
    def tables_void_before_millis(self) -> int:
        """The same of the files of tables that no version up to this one reaches; 0 before tables were ever cleaned."""
        return self._number(spec.TABLES_VOID_BEFORE_MILLIS)

    @property
    def requests_until_millis(self) -> int:
        """No version up to this one contains a request whose key has a later time, in epoch milliseconds.

        The row says so. Where a writer did not carry it on, the time of the version bounds the times of keys.
        """
        if spec.REQUESTS_UNTIL_MILLIS in self.system:
            return self._number(spec.REQUESTS_UNTIL_MILLIS)
        return self.created_at_millis + spec.REQUESTS_AHEAD_MILLIS

    @property
    def settled_at_millis(self) -> int:
        """When the last version was made that was settled, in epoch milliseconds; 0 where that is unknown.

        In a settled version no message waits, and its root says exactly how many objects there are.
        """
        return self._number(spec.SETTLED_AT_MILLIS)

    @property
    def counts(self) -> ObjectCounts | None:
        """How many objects this version holds, exactly; ``None`` where its writer did not know."""
        return counts_in(self.system)

    @property
    def count_bounds(self) -> CountBounds | None:
        """How many objects this version holds at least and at most; ``None`` where its writer did not count."""
        return bounds_in(self.system)

    @property
    def previous_root(self) -> str | None:
        """Path of the root this one was committed on top of."""
        return self.system.get(spec.PREVIOUS_ROOT)

    @property
    def rollback_from_root(self) -> str | None:
        """Path of the root that was rolled back from."""
        return self.system.get(spec.ROLLBACK_FROM_ROOT)

    @property
    def operation(self) -> str | None:
        """What made this version; ``None`` where the writer recorded none."""
        stored = self.system.get(spec.OPERATION)
        return self.system.get(spec.BULK_OPERATION) if stored == spec.OP_BULK else stored

    @property
    def is_bulk(self) -> bool:
        """Whether the changes of its transaction found no room in its root: the messages there are not all of them."""
        return self.system.get(spec.OPERATION) == spec.OP_BULK

    @property
    def txn(self) -> str | None:
        """ID of the transaction that made this version."""
        return self.system.get(spec.TXN_ID)

    def follows(self, before: RootRows) -> bool:
        """Whether this version was committed on top of ``before``, as far as both record which transaction made that.

        The path of a root proves nothing: one root may have been put in the place of another.
        """
        named = self.system.get(spec.PREVIOUS_TXN)
        return named is None or before.txn in {None, named}

    @property
    def summary(self) -> dict[str, Any]:
        """Facts about this version; empty where there are none."""
        try:
            facts = json.loads(self.system.get(spec.SUMMARY) or "{}")
        except ValueError:
            return {}
        return facts if isinstance(facts, dict) else {}

    @property
    def members(self) -> tuple[Member, ...]:
        """The transactions that became this version: those of a group, or the only one."""
        return members_in(self.txn, self.summary)

    def count_changes(self) -> int:
        """Return how many objects this changed, from its messages; its summary says it where these are not all."""
        if self.is_bulk:
            return _add_facts(self.summary, "set", "deleted")
        if self.operation == spec.OP_LOAD:
            return _add_facts(self.summary, "added", "replaced")
        return len(self.own_messages())

    def contains(self, txn: str) -> bool:
        """Whether a transaction became this version, alone or as a member of a group. An abort became none."""
        if self.operation == spec.OP_ABORT:
            return False
        if self.txn == txn:
            return True
        is_named = txn in self.system.get(spec.SUMMARY, "")  # perhaps in a reason: most versions need no parsing
        return is_named and any(each.txn == txn for each in self.members)

    def _number(self, name: str) -> int:
        text = self.system.get(name, "0")
        if not is_number(text):
            raise CorruptNode(f"root {self.path!r}: {name} is {text[:40]!r}, not a number", path=self.path)
        return int(text)


@dataclass(frozen=True, slots=True)
class Root(RootRows):
    """The root node of one version, with its system rows."""

    version: int
    path: str
    node: Node = field(repr=False)
    data: Data = field(default=b"", repr=False)
    """The bytes of the file."""
    unreadable: str | None = None
    """Why the file cannot be read. Then the node is empty, and all that is known is the version."""

    @property
    def system(self) -> dict[str, str]:
        """The system rows by name."""
        return self.node.system

    def own_messages(self) -> Messages:
        """Return the messages of the transaction that made this root. No request."""
        txn = self.txn
        if txn is None or self.operation not in spec.TRANSACTIONAL_OPERATIONS:
            return Messages()
        return self.node.buffer.of_transaction(txn)

    def delta(self, before: Delta | None = None) -> Delta:
        """Return the root without its tree: a few hundred bytes where the root has a megabyte.

        Values that are the same in the delta ``before`` are shared with it, the lakehouse definition above all.
        """
        known = {} if before is None else before.system
        system = {}
        for name, value in self.node.system.items():
            known_value = known.get(name)
            system[name] = known_value if known_value == value else value
        return Delta(self.version, self.path, system, self.own_messages())


@dataclass(frozen=True, slots=True)
class Delta(RootRows):
    """The system rows and the changes of one version, without its tree: all that a commit which lost to it needs."""

    version: int
    path: str
    rows: dict[str, str]
    messages: Messages

    @property
    def system(self) -> dict[str, str]:
        """The system rows by name."""
        return self.rows

    def own_messages(self) -> Messages:
        """Return the messages of the transaction that made this version. No request."""
        return self.messages


@dataclass(frozen=True, slots=True)
class VersionInfo:
    """One line of the history. Counts are ``None`` where the root does not contain them."""

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
    namespaces: int | None = None
    tables: int | None = None
    views: int | None = None
    uncertain: int | None = None
    """Messages of which it is not known whether they create or delete an object: without any the counts are exact, else
    the most that it can be."""

    @property
    def reason(self) -> str | None:
        """The reason that the author of the version gave, if any."""
        return self.summary.get("reason")

    @property
    def author(self) -> str | None:
        """Who made it."""
        return self.summary.get("author")

    @property
    def members(self) -> tuple[Member, ...]:
        """The transactions that became this version: those of a group, or the only one."""
        return members_in(self.txn, self.summary)


def unreadable_root(version: int, path: str, why: str, created_at_millis: int = 0) -> Root:
    """Return the entry of a history for a root whose file is there and cannot be read.

    Its time is only a bound: that of a neighbour.
    """
    summary = {"reason": f"the root file cannot be read: {why}", "unreadable": True}
    rows = {
        spec.VERSION: str(version),
        spec.CREATED_AT_MILLIS: str(created_at_millis),
        spec.SUMMARY: json.dumps(summary),
    }
    return Root(version, path, Node(system=rows, height=None), unreadable=why)


def version_info(root: Root) -> VersionInfo:
    """Return the description of a version that its root contains. No request."""
    node = root.node
    summary = root.summary
    bounds = root.count_bounds
    counts = None if bounds is None else bounds.most
    return VersionInfo(
        version=root.version,
        created_at=from_millis(root.created_at_millis),
        created_at_millis=root.created_at_millis,
        operation=root.operation,
        txn=root.txn,
        summary=summary,
        changes=root.count_changes(),
        objects=objects_of(node),
        messages=node.subtree_messages,
        height=node.height,
        root_bytes=node.nbytes,
        path=root.path,
        previous_root=root.previous_root,
        rollback_from_root=root.rollback_from_root,
        namespaces=None if counts is None else counts.namespaces,
        tables=None if counts is None else counts.tables,
        views=None if counts is None else counts.views,
        uncertain=None if bounds is None else bounds.uncertain,
    )


def _add_facts(summary: Mapping[str, Any], *names: str) -> int:
    total = 0
    for name in names:
        count = summary.get(name)
        if isinstance(count, int):
            total += count
    return total


def objects_of(node: Node) -> int | None:
    """Return the number of objects of a version, as far as its root contains it.

    Exact where the root contains the counts (``namespaces``, ``tables``, ``views``) or is the whole tree. Where it
    contains bounds of them, the most that it can be. Otherwise without the messages: before a flush it is not known
    whether a message adds an object or changes one. ``None`` where the root does not count.
    """
    bounds = bounds_in(node.system)
    if bounds is not None:
        return bounds.most.total
    if not node.is_leaf or node.height is None:
        return node.subtree_keys
    pending = node.pending
    replaced = sum(1 for key in pending.keys if node.position(key) is not None)
    messages_that_set = sum(1 for value in pending.values if value is not None)
    return len(node.keys) - replaced + messages_that_set


def from_millis(millis: int) -> datetime:
    """Return epoch milliseconds as an aware UTC time; the last time there is where they lie beyond it."""
    try:
        return datetime.fromtimestamp(millis / 1000, UTC)
    except (OverflowError, OSError, ValueError):
        return datetime.max.replace(tzinfo=UTC)


def to_millis(timestamp: datetime | str | int) -> int:
    """Return a time as epoch milliseconds; text is ISO 8601, and UTC unless it has an offset.

    Raises:
        InvalidInput: the text is not ISO 8601, or a ``datetime`` has no time zone: Python takes it for local time.
    """
    if isinstance(timestamp, int):
        return timestamp
    if isinstance(timestamp, str):
        try:
            parsed = datetime.fromisoformat(timestamp)
        except ValueError:
            raise InvalidInput(f"{timestamp!r} is not an ISO 8601 time such as 2026-11-20T03:00:00Z") from None
        timestamp = parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)
    if timestamp.tzinfo is None:
        raise InvalidInput(f"{timestamp!r} has no time zone: write datetime(..., tzinfo=timezone.utc), or text in UTC")
    return int(timestamp.timestamp() * 1000 // 1)
