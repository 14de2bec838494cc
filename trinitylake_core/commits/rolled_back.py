"""A rollback as a change, the newest version that it leaves behind, and refused plans (format, section 6)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from trinitylake_core import diff, spec
from trinitylake_core.catalog import codec_of
from trinitylake_core.commits.backend import LakehouseBackend
from trinitylake_core.commits.changes import definition_rows, write_definition
from trinitylake_core.commits.commit import Draft, Summary, new_id
from trinitylake_core.commits.fences import measure_storage_time
from trinitylake_core.definitions import LakehouseDef, encode
from trinitylake_core.diff import Change
from trinitylake_core.errors import Corrupt, NotFound, PlanOutdated, SnapshotNotFound, VersionExpired
from trinitylake_core.locations import parse
from trinitylake_core.short_repr import first_of
from trinitylake_core.tree.node import Messages, Node
from trinitylake_core.tree.nodestore import NodeWriter
from trinitylake_core.versions import Delta, Root, RootRows, SystemRows

# -- the newest version, also where its root cannot be read ----------------------------------------
#
# A root that is cut short or garbage was committed once, and its content is lost. A rollback over it must be safe for
# every possible content:
#
# * *its lakehouse definition*: that of the newest version that can be read is carried on;
# * *its boundary*: nothing is deleted below a boundary before the boundary file contains it, and a process that
#   deletes has read the root that contains it again after that. So the file, read after the root was found to be
#   unreadable, is enough;
# * *its fence*: the storage's time by now is later than that of any fence that is committed already, so everything
#   older that no version reaches is void from now on;
# * *its transaction*: the new root does not name the one that it follows. A process that has the unreadable root in
#   memory takes the new root for the next version all the same.
#
# The same holds for versions below it that cannot be read.

_CARRIED = (
    spec.LAKEHOUSE_DEF, spec.LAKEHOUSE_DEF_COPY, spec.VOID_BEFORE_MILLIS, spec.TABLES_VOID_BEFORE_MILLIS,
    spec.REQUESTS_UNTIL_MILLIS,
)  # fmt: skip
_SHOWN = 3
"""So many of the versions that stop a rollback are named."""
IsSame: TypeAlias = Callable[[Iterator[Change]], bool]
"""Whether changes leave the content of the lakehouse as it was."""


@dataclass(frozen=True, slots=True)
class Base:
    """The newest version.

    Attributes:
        root: its root, or what stands for one that cannot be read: with the rows that a commit carries on, and no tree.
        readable: the newest root that can be read.
    """

    root: Root
    readable: Root


def newest_base(backend: LakehouseBackend) -> Base:
    """Return the newest version, also where its root is damaged. Four ``get`` or so; a listing where it is damaged.

    A root whose lakehouse definition is not there may be that of another lakehouse, and counts as damaged.

    Raises:
        NotALakehouse, Corrupt: no version can be read, or the boundary file cannot either.
        StorageError: a root is not the same each time it is read.
    """
    try:
        newest = backend.newest()
        backend.versions.definition_file(newest)
    except Corrupt:
        readable, unreadable = backend.versions.newest_readable()
        if unreadable:
            return Base(_standing_for(backend, unreadable[0], readable), readable)
        newest = readable
    backend.note_newest(newest)
    return Base(newest, newest)


def _standing_for(backend: LakehouseBackend, damaged: Root, readable: Root) -> Root:
    boundary = backend.versions.boundary_file()
    if boundary is None:
        raise Corrupt(
            f"neither {damaged.path} nor {spec.BOUNDARY_FILE} can be read, so it is not known which versions are kept; "
            f"copy {spec.BOUNDARY_FILE} from a backup, or write the number of the oldest version that is there into it",
            path=spec.BOUNDARY_FILE,
            invariant="I16",
        )
    rows = {name: readable.system[name] for name in _CARRIED if name in readable.system}
    later = damaged.version - readable.version
    rows |= {
        spec.VERSION: str(damaged.version),
        # Nobody knows when it was created. Times increase along the chain, and its versions had a millisecond each.
        spec.CREATED_AT_MILLIS: str(readable.created_at_millis + later),
        spec.OLDEST_VERSION: str(max(readable.oldest_version, boundary)),
        spec.SUMMARY: damaged.system[spec.SUMMARY],  # the reader put there why it cannot be read
    }
    return replace(damaged, node=Node(system=rows, height=None))


def has_none(changes: Iterator[Change]) -> bool:
    """Whether there are no changes: what others committed was taken back by then."""
    return next(changes, None) is None


class RolledBack:
    """A root with the content of an older one (format, section 6). A commit of another writer in between stops it."""

    def __init__(
        self,
        backend: LakehouseBackend,
        target: Root,
        summary: Summary,
        *,
        force: bool = False,
        is_same: IsSame = has_none,
    ) -> None:
        self._backend = backend
        self._target = target
        self._summary = summary
        self._force = force
        self._is_same = is_same
        self._txn = new_id()

    def build(self, base: Root, created_at_millis: int, writer: NodeWriter) -> Draft:
        """Return the target's node, under the definition that :func:`rolled_back` makes. At most one ``put``.

        On top of a root that cannot be read, everything that no version reaches is void: one ``put``, one ``head``.
        """
        rows: SystemRows = {spec.ROLLBACK_FROM_ROOT: base.path}
        if base.unreadable is not None:  # it may have been a fence
            now = measure_storage_time(self._backend)
            rows[spec.VOID_BEFORE_MILLIS] = str(max(base.void_before_millis, now))
            rows[spec.TABLES_VOID_BEFORE_MILLIS] = str(max(base.tables_void_before_millis, now))
            last_key = now + spec.REQUESTS_AHEAD_MILLIS
            rows[spec.REQUESTS_UNTIL_MILLIS] = str(max(base.requests_until_millis, last_key))
        target = self._backend.definition(self._target)
        definition = rolled_back(target, self._backend.definition(base))
        if definition == target:
            path = self._target.definition_path
            data = encode(target)
        else:
            path, data = write_definition(self._backend, definition)
        rows |= definition_rows(path, data)
        node = self._target.node.with_messages(Messages())
        return Draft(node, spec.OP_ROLLBACK, self._txn, self._summary, rows, counts=self._target.count_bounds)

    def rebase(self, base: Root, newer: Sequence[Delta]) -> None:
        """Stop: the plan was made for another version. With ``force`` go on, if the target is still kept.

        What leaves the content as it was (compaction, snapshot, expiration) stops nothing.

        Raises:
            PlanOutdated, VersionExpired, SnapshotNotFound.
        """
        refuse_lost(self._backend, newer[-1], self._target)
        if not self._force:
            refuse_changed(self._backend, base.version, newer, self._is_same)

    def renew(self, base: Root) -> None:
        """Do nothing: the target is kept, so no fence touches its files, and the definition is written by `build`."""


def rolled_back(target: LakehouseDef, newest: LakehouseDef) -> LakehouseDef:
    """Return the target's definition with what no rollback changes: the newest snapshots and ``maintenance.*``.

    A rollback to before the property that forbids deleting must not lift it.
    """
    definition = LakehouseDef()
    definition.CopyFrom(target)
    definition.snapshots.clear()
    for name, snapshot in newest.snapshots.items():
        definition.snapshots[name].CopyFrom(snapshot)
    for name in [each for each in target.properties if each.startswith(spec.MAINTENANCE_PROPERTIES)]:
        del definition.properties[name]
    for name, value in newest.properties.items():
        if name.startswith(spec.MAINTENANCE_PROPERTIES):
            definition.properties[name] = value
    return definition


def refuse_changed(backend: LakehouseBackend, planned_at: int, newer: Sequence[RootRows], is_same: IsSame) -> None:
    """Raise ``PlanOutdated`` if the versions after a plan changed the content that it was made for.

    No request where none of them may have. Else the two versions are compared: four ``get``, the nodes that they do
    not share, and what ``is_same`` reads.
    """
    loud = [root for root in newer if root.operation not in spec.QUIET_OPERATIONS]
    if not loud or _have_same_content(backend, planned_at, newer[-1].version, is_same):
        return
    shown = []
    newest_first = reversed(loud[-_SHOWN:])
    for root in newest_first:
        author = root.summary.get("author", "an unknown author")
        what = f"{root.operation} by {author}"
        reason = root.summary.get("reason")
        if reason:
            what += f": {reason}"
        shown.append(f"version {root.version} ({what})")
    named = first_of(shown, _SHOWN, len(loud))
    raise PlanOutdated(
        f"another writer committed since the plan, which was made at version {planned_at}: {named}; read "
        "the new plan (--dry-run), or undo these versions too with --force"
    )


def _have_same_content(backend: LakehouseBackend, before: int, after: int, is_same: IsSame) -> bool:
    """Whether two versions differ in nothing but what ``is_same`` allows; not if one of them cannot be read."""
    try:
        old = backend.versions.root(before)
        new = backend.versions.root(after)
        old_codec = codec_of(backend.definition(old))
        new_codec = codec_of(backend.definition(new))
        return is_same(diff.diff_trees(backend.nodes, old.node, old_codec, backend.nodes, new.node, new_codec))
    except (Corrupt, NotFound):
        return False


def refuse_lost(backend: LakehouseBackend, newest: RootRows, wanted: Root) -> None:
    """Refuse a version that ``newest`` no longer keeps: its files may be removed at any moment. No request.

    Raises:
        VersionExpired: it lies below the boundary, even if its root was not deleted yet.
        SnapshotNotFound: it was read by a snapshot that was dropped since.
    """
    named = parse(wanted.path)
    if named is not None and named.version is not None:  # a snapshot reads a copy, under the name of a node
        if wanted.version < newest.oldest_version:
            raise VersionExpired(
                f"version {wanted.version} has expired; the oldest one kept is {newest.oldest_version}"
            )
    elif all(each.root_node_file_path != wanted.path for each in backend.definition(newest).snapshots.values()):
        raise SnapshotNotFound(f"the snapshot of version {wanted.version} was dropped in the meantime")
