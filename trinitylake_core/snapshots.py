"""Snapshots: names for versions, kept in the lakehouse definition (format, section 6)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from trinitylake_core import clock, spec
from trinitylake_core.commits.backend import LakehouseBackend
from trinitylake_core.commits.changes import NewDefinition
from trinitylake_core.commits.rolled_back import refuse_lost
from trinitylake_core.definitions import LakehouseDef, SnapshotDef
from trinitylake_core.errors import (
    AlreadyExists,
    CorruptNode,
    InvalidInput,
    NotFound,
    SnapshotNotFound,
    VersionNotFound,
)
from trinitylake_core.locations import node_path, validate_path
from trinitylake_core.tree.node import Node
from trinitylake_core.tree.nodefile import encode
from trinitylake_core.tree.nodestore import NodeWriter
from trinitylake_core.versions import Root, from_millis, to_millis

KINDS: Final = ("minimal", "full", "partial")
SNAPSHOT_PREFIX: Final = "snapshot:"
"""Before the name of a snapshot, where a version is asked for."""
HEAD: Final = re.compile(r"HEAD(?:~([0-9]{1,9}))?")
AGE: Final = re.compile(r"-?([0-9]{1,9}(?:ms|s|m|h|d|w))")
_NAME: Final = re.compile(r"[^\x00-\x20\x7f]{1,255}")


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    """One snapshot. ``expires_at`` is ``None`` when it is kept until it is dropped."""

    name: str
    version: int
    kind: str
    created_at: datetime
    expires_at: datetime | None
    expired: bool
    root_path: str
    target_uri: str | None


def snapshot_infos(definition: LakehouseDef) -> list[SnapshotInfo]:
    """Return the snapshots in a lakehouse definition, oldest first."""
    infos = [
        SnapshotInfo(
            name=name,
            version=snapshot.version,
            kind=SnapshotDef.Kind.Name(snapshot.kind).lower(),
            created_at=from_millis(snapshot.created_at_millis),
            expires_at=from_millis(snapshot.expire_at_millis) if snapshot.expire_at_millis else None,
            expired=_is_expired(snapshot),
            root_path=snapshot.root_node_file_path,
            target_uri=snapshot.target_uri or None,
        )
        for name, snapshot in definition.snapshots.items()
    ]
    return sorted(infos, key=lambda info: (info.created_at, info.version, info.name))


def _is_expired(snapshot: SnapshotDef) -> bool:
    return bool(snapshot.expire_at_millis) and clock.now_millis() >= snapshot.expire_at_millis


def snapshot_root(backend: LakehouseBackend, definition: LakehouseDef, name: str) -> Root:
    """Return the root that a snapshot keeps. One ``get``.

    Raises:
        SnapshotNotFound: no snapshot of this name, or it has expired, or it is a copy at another root URI.
        CorruptNode: its root is missing or damaged.
    """
    if name not in definition.snapshots:
        raise _no_snapshot(name)
    snapshot = definition.snapshots[name]
    if _is_expired(snapshot):
        raise SnapshotNotFound(f"snapshot {name!r} expired at {from_millis(snapshot.expire_at_millis).isoformat()}")
    if snapshot.target_uri:
        try:
            return backend.versions.root(snapshot.version)
        except VersionNotFound:
            raise SnapshotNotFound(
                f"snapshot {name!r} is a full copy and its version is gone here; open {snapshot.target_uri}"
            ) from None
    path = validate_path(snapshot.root_node_file_path)
    try:
        return backend.versions.decode(snapshot.version, path, backend.storage.read(path))
    except NotFound:
        raise CorruptNode(f"the root {path!r} of snapshot {name!r} is missing", path=path, invariant="I17") from None


def _no_snapshot(name: str) -> SnapshotNotFound:
    return SnapshotNotFound(f"there is no snapshot {name!r}; `trinitylake snapshot list` names those that exist")


def new_snapshot(
    root: Root, name: str, *, kind: str, target_uri: str | None, expire_at_millis: int | None
) -> SnapshotDef:
    """Return the entry of a new snapshot of a version. Raises ``InvalidInput`` for its name or kind."""
    refuse_bad_name(name)
    if kind not in KINDS:
        raise InvalidInput(f"kind must be one of {', '.join(KINDS)}, not {kind!r}")
    if (kind == "full") != (target_uri is not None):
        raise InvalidInput("a full snapshot needs a target root URI; the other kinds do not take one")
    return SnapshotDef(
        root_node_file_path=root.path,
        version=root.version,
        kind=kind.upper(),
        target_uri=target_uri or "",
        created_at_millis=clock.now_millis(),
        expire_at_millis=expire_at_millis or 0,
    )


class SnapshotChange(NewDefinition):
    """A version whose definition names a snapshot. The files of the snapshot are written before its root is built.

    One ``put`` for the copy of the root, then as a commit on top of ``newest``: what is copied must be younger than the
    root that the commit begins with.

    Raises:
        AlreadyExists: a snapshot of this name that has not expired.
        VersionExpired: the version lies below the boundary, or another process moved the boundary above it.
    """

    def __init__(
        self,
        backend: LakehouseBackend,
        newest: Root,
        root: Root,
        name: str,
        snapshot: SnapshotDef,
        summary: dict[str, Any],
    ) -> None:
        super().__init__(backend, spec.OP_SNAPSHOT, summary, self._add)
        self._root = root
        self._name = name
        self._snapshot = snapshot
        self._refuse_impossible(backend.definition(newest), newest)
        self._write()

    def _refuse_impossible(self, definition: LakehouseDef, base: Root) -> None:
        name = self._name
        if name in definition.snapshots and not _is_expired(definition.snapshots[name]):
            raise AlreadyExists(f"snapshot {name!r} already exists; drop it first, or choose another name")
        refuse_lost(self._backend, base, self._root)

    def _add(self, definition: LakehouseDef, base: Root) -> LakehouseDef:
        self._refuse_impossible(definition, base)
        edited = LakehouseDef()
        edited.CopyFrom(definition)
        edited.snapshots[self._name].CopyFrom(self._snapshot)
        return edited

    def _write(self) -> None:
        """Copy the root under a node name, for ``partial`` every node below it, too. One ``put`` each.

        Nothing is copied for a full snapshot, which lies at another root URI.
        """
        if self._snapshot.kind == SnapshotDef.FULL:
            return
        backend, node, path = self._backend, self._root.node, node_path()
        if self._snapshot.kind == SnapshotDef.PARTIAL:
            writer = NodeWriter(backend.nodes)
            node = _copy_subtree(backend, node, writer)
            writer.flush()
        backend.storage.write_many([(path, encode(node, backend.nodes.order, path))])
        self._snapshot.root_node_file_path = path

    def renew(self, base: Root) -> None:
        """Copy again, under new names: a cleaning may be removing the copies. Raises ``VersionExpired``."""
        super().renew(base)
        refuse_lost(self._backend, base, self._root)
        self._write()


def without_snapshot(definition: LakehouseDef, name: str) -> LakehouseDef:
    """Return a lakehouse definition without a snapshot. Raises ``SnapshotNotFound``."""
    if name not in definition.snapshots:
        raise _no_snapshot(name)
    edited = LakehouseDef()
    edited.CopyFrom(definition)
    del edited.snapshots[name]
    return edited


def refuse_bad_name(name: str) -> None:
    """Raise ``InvalidInput`` for a snapshot name that is empty, too long, holds spaces or control characters.

    Also for one that means a version: a number, ``HEAD``, a time, an age. Older releases accepted these names.
    """
    if not _NAME.fullmatch(name):
        raise InvalidInput(f"a snapshot name is 1 to 255 characters without spaces and controls, not {name!r}")
    is_other = name.isdecimal() or HEAD.fullmatch(name) or AGE.fullmatch(name) or is_time(name)
    if is_other or name.startswith(SNAPSHOT_PREFIX):
        raise InvalidInput(
            f"a snapshot must not be called {name!r}: where a version is asked for, that means another one"
        )


def is_time(when: datetime | str) -> bool:
    """Whether a text is a time."""
    try:
        to_millis(when)
    except InvalidInput:
        return False
    return True


def _copy_subtree(backend: LakehouseBackend, node: Node, writer: NodeWriter) -> Node:
    """Return a copy of a node whose children are copies, too, which were given to a writer."""
    paths = []
    for child in backend.nodes.read_many(node.children):
        copied = _copy_subtree(backend, child, writer)
        paths.append(writer.add(copied))
    return Node(
        node.keys,
        node.values,
        paths,
        node.buffer,
        system=dict(node.system),
        height=node.height,
        subtree_keys=node.subtree_keys,
        subtree_messages=node.subtree_messages,
        child_keys=node.child_keys,
        child_messages=node.child_messages,
    )
