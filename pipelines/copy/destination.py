"""The root URI that an export writes to: what it holds, whether it may be written to, and its roots in order.

The roots define a lakehouse. So they are created last, oldest first, and older ones are removed only when the hint
leads to the new ones. An export that is killed in between leaves a destination that is no lakehouse yet, the one it
was, or that of one of the new versions.

Another writer at the destination could find a root to which no older one leads, in place of a root that a third one
committed. So the boundary claims the place first (:func:`claim_boundary`), and a root below it counts for nothing.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Final

from pipelines.reports.summary import count
from trinitylake_core import Lakehouse
from trinitylake_core.commits.changes import definition_rows
from trinitylake_core.commits.confirm import write_hint
from trinitylake_core.definitions import LakehouseDef, encode
from trinitylake_core.errors import AlreadyExists, Corrupt, FileMissing, NotALakehouse, Refused, UnsafeStorage, WentBack
from trinitylake_core.locations import parse, root_path
from trinitylake_core.spec import BOUNDARY_FILE, PREVIOUS_TXN
from trinitylake_core.storage import Storage
from trinitylake_core.tree.node import Messages
from trinitylake_core.tree.nodefile import encode as encode_node
from trinitylake_core.versions import Root, Versions, claim_boundary, is_claim, number_in, settle_boundary
from trinitylake_core.versions.olympia import refuse_olympia

_WITHOUT_SNAPSHOTS: Final = uuid.UUID("5b0f6c1e-7d0a-4f0e-9a6b-3d1f2c4e8a90")


@dataclass(slots=True)
class Destination:
    """What a root URI holds before an export of the versions ``first`` to ``last``.

    Attributes:
        newest: the newest root there; ``None`` if there is no lakehouse.
        said: the content of its boundary file; ``None`` without one.
        roots: the versions whose roots are there and count.
        claim: the content of the boundary file since :meth:`prepare`, if it had to claim the place.
        created: the roots that were created.
    """

    storage: Storage
    first: int
    last: int
    newest: Root | None
    said: bytes | None
    roots: tuple[int, ...] = ()
    claim: bytes | None = None
    created: list[str] = field(default_factory=list)

    @property
    def boundary(self) -> int:
        """The number in its boundary file: 0 without one, and if it is garbage."""
        return _number(self.said)

    @property
    def follows(self) -> bool:
        """Whether a root that is there leads to the first one to create."""
        return self.newest is not None and self.first <= self.newest.version + 1

    @property
    def missing(self) -> list[int]:
        """The versions to create, oldest first."""
        there = set(self.roots)
        return [version for version in range(self.first, self.last + 1) if version not in there]

    @property
    def older(self) -> list[int]:
        """The versions to remove."""
        return [version for version in self.roots if version < self.first]

    def prepare(self) -> None:
        """Make the copied files durable, and prove that no root can be overwritten.

        Raises:
            UnsafeStorage: the storage ignores exclusive creation; or compare-and-set, and the boundary has to move.
            Refused: another export to the same place, or a writer, was at work there; or the lakehouse was replaced.
        """
        self.storage.barrier()
        self.storage.prove_exclusive_create()
        self.refuse_replaced()
        if self.follows and self.boundary == self.first:
            return
        if self.movable() and not self.follows:
            self.claim = claim_boundary(Versions(self.storage), self.first, self.said, self.roots)
            if self.claim is None:
                raise self.not_alone()

    def refuse_replaced(self) -> None:
        """Refuse to go on where the lakehouse that the copy was compared with is no longer there. One ``get``.

        The files that it had were left out of the copy, so nothing that is created now would be whole. Its newest root
        tells: whoever makes a lakehouse in its place makes another one.

        Raises:
            Refused: it was deleted, or another one is in its place, or another export has removed its versions.
        """
        if self.newest is None:
            return
        try:
            data: bytes | None = self.storage.read(self.newest.path)
        except FileMissing:
            data = None
        if data != self.newest.data:
            raise self.explain_replaced()

    def explain_replaced(self) -> Refused:
        """Return the error for a lakehouse that went away while the export ran."""
        return Refused(
            f"what was at {self.storage.root} was deleted or replaced while the export ran, or another export writes "
            "there, too; `verify` tells whether what is there now is whole. Stop what works there, and export again"
        )

    def movable(self) -> bool:
        """Return whether the boundary can be moved here. Where no process can move it, no claim is needed.

        Raises:
            UnsafeStorage: it cannot, and it has to move.
        """
        try:
            self.storage.prove_compare_and_set()
        except UnsafeStorage:
            if self.boundary != self.first:
                raise
            return False
        return True

    def create(self, path: str, data: bytes) -> None:
        """Create a root; one that is there with the same bytes is as good. One ``create``."""
        try:
            self.storage.create(path, data)
            self.created.append(path)
        except AlreadyExists:
            if self.storage.read(path) != data:
                raise AlreadyExists(
                    f"{self.storage.root}{path} is of another writer, who came in between; export to another root URI"
                ) from None

    def finish(self) -> int:
        """Advance the boundary and the hint, then remove the older roots: the order in which versions expire.

        Until the hint is written, a copy of one version opens at the older one, which is still all there.
        Returns how many roots were removed.

        Raises:
            Refused: another export to the same place put a later version there, or the lakehouse was replaced.
        """
        versions = Versions(self.storage)
        self.refuse_replaced()
        lies = self.newest is not None and self.boundary > self.newest.version
        known = {*self.roots, *range(self.first, self.last + 1)}
        if not settle_boundary(versions, self.first, known, grows=not lies, movable=self.movable, claim=self.claim):
            self.withdraw(versions)
            raise self.not_alone()
        if versions.hint() != self.last:
            write_hint(self.storage, self.last)
        paths = [root_path(version) for version in self.older]
        removed = 0
        if paths:
            removed = len(self.storage.delete_many(paths).deleted)
        newest = self.newest_now()
        if newest > self.last:
            raise Refused(
                f"another export has put version {newest} at {self.storage.root} meanwhile; run one at a time"
            )
        if newest != self.last:
            raise Corrupt(f"{self.storage.root} does not open at version {self.last}; please report this as a bug")
        return removed

    def newest_now(self) -> int:
        """Return the newest version, once everything is done.

        Raises:
            Refused: the last root is gone again. Only a deletion of the lakehouse does that.
        """
        versions = Versions(self.storage)
        try:
            newest = versions.latest().version
        except NotALakehouse:
            raise self.explain_replaced() from None
        if newest < self.last and versions.try_root(self.last) is None:
            raise self.explain_replaced()
        return newest

    def withdraw(self, versions: Versions) -> None:
        """Remove the roots that were created where they do not count: another process has replaced the claim."""
        if self.created and versions.latest().version < self.first:
            self.storage.delete_many(self.created)

    def not_alone(self) -> Refused:
        """Return the error for an export beside another one to the same place."""
        return Refused(f"another export writes to {self.storage.root}, too; run one at a time")


def inspect(
    storage: Storage,
    source: Lakehouse,
    first: int,
    *,
    history: bool,
) -> Destination:
    """Look at a root URI, and refuse what an export of ``source`` must not write to. Changes nothing.

    Costs two ``list``, and a few ``get`` where there is a lakehouse.

    Raises:
        AlreadyExists: another lakehouse is there, or an export that was written to since.
        Refused: it is newer, or holds a history that the export would remove or could not continue.
        Corrupt: its newest version cannot be read.
        InvalidLocation: a catalog of Olympia is there.
    """
    # Before the roots: what another export does there from now on either shows in the listing or changes this file.
    said = storage.read_tagged(BOUNDARY_FILE).data
    roots = sorted(
        parsed.version
        for prefix in ("_0", "_1")
        for file in storage.list(prefix)
        if (parsed := parse(file.path)) is not None and parsed.version is not None
    )
    versions = Versions(storage)
    last = source.version
    boundary = _number(said)
    if is_claim(said) and boundary > first:
        raise Refused(
            f"an export to {storage.root} that begins with version {boundary} is not complete, and this one begins "
            f"with version {first}; nothing was changed. Repeat that one, or export to another root URI"
        )
    try:
        newest = None
        if roots or versions.hint() is not None:  # a store that lists late shows no root of a lakehouse that is there
            newest = versions.latest()
    except NotALakehouse:
        newest = None
    except Corrupt as error:
        raise Corrupt(
            f"what is at {storage.root} cannot be read: {error}; nothing was changed. Export to another root URI",
            path=error.path,
            invariant=error.invariant,
        ) from error
    if newest is None:
        refuse_olympia(storage)
        return Destination(
            storage=storage,
            first=first,
            last=last,
            newest=None,
            said=said,
        )
    if newest.version not in roots:
        raise Refused(
            f"a listing of {storage.root} does not show the root of version {newest.version}, which is there: its "
            "store lists late, or somebody writes there; nothing was changed. Export later, or to another root URI"
        )
    proved = _is_same(versions, newest, source) or is_claim(said) or boundary == newest.version
    if roots[-1] > last:
        raise _newer_error(storage, source, roots[-1])
    if not proved and not _is_base(source, newest):
        raise AlreadyExists(
            f"{storage.root} may have been written to since it was exported: its version {newest.version} has expired "
            f"in {source.root}, so nothing proves that it is the same; nothing was changed. Export to another root URI"
        )
    lowest = 0
    if boundary <= newest.version:
        lowest = boundary
    older = sum(lowest <= version < last for version in set(roots))
    # A copy of one version has no version above its boundary, but for an export that was ended before its hint.
    is_history = older > 1 or (older == 1 and boundary < newest.version)
    if not history and is_history and versions.hint() != boundary:
        raise Refused(
            f"{storage.root} holds {count(older, 'older version')}, which an export of one version would remove; "
            "nothing was changed. Export with history, or to another root URI"
        )
    if history and first < boundary:
        raise Refused(
            f"{storage.root} starts at version {boundary}, so the versions from {first} on cannot be put before it; "
            "nothing was changed. Export the history to another root URI"
        )
    return Destination(
        storage=storage,
        first=first,
        last=last,
        newest=newest,
        said=said,
        roots=tuple(roots),
    )


def _number(said: bytes | None) -> int:
    if said is not None:
        return number_in(said) or 0
    return 0


def _is_same(versions: Versions, newest: Root, source: Lakehouse) -> bool:
    """Return whether ``source`` proves that a lakehouse is its export, and was not written to.

    It does as long as it keeps the version that is the newest there, or the one after it (:func:`_is_base`). After that
    a copy of one version proves it: its boundary lies at that version, and every commit there makes a root beyond the
    boundary. So does the claim of an export that was ended: the copy was the same when the claim was made.

    Raises:
        AlreadyExists: it is another lakehouse, or was written to.
    """
    root = versions.storage.root
    if versions.sdk or versions.definition(newest).id != source.definition.id:
        raise AlreadyExists(f"{root} holds another lakehouse; nothing was changed. Export to another root URI")
    ours = None
    if newest.version >= source.root_node.oldest_version:  # below it a late writer may have left a root
        try:
            ours = source.backend.versions.try_root(newest.version)
        except Corrupt:
            return _is_same_before(versions, newest.version, source)
    if ours is not None and _made_by(ours) != _made_by(newest):
        raise _parted_error(versions, newest, source)
    return ours is not None


def _newer_error(storage: Storage, source: Lakehouse, newest: int) -> Refused:
    """Return the error for a copy that is newer than what is exported."""
    last = source.version
    text = f"{storage.root} holds version {newest}, newer than version {last}; nothing was changed. "
    if source.backend.newest_seen.version > last:
        return Refused(f"{text}Export to another root URI")
    return WentBack(
        f"{text}If it is a copy of {source.root}, that lakehouse WENT BACK IN TIME, and this may be the only copy of "
        f"versions {last + 1} to {newest}: do not remove it. Stop the writers, and see the "
        "runbook, 'A bucket was set back'. If somebody commits to the copy, export to another root URI"
    )


def _parted_error(versions: Versions, newest: Root, source: Lakehouse) -> AlreadyExists:
    """Return the error for a copy whose newest version is another one than in ``source``. O(log versions) ``get``."""
    low, high = source.root_node.oldest_version - 1, newest.version
    while high - low > 1:
        middle = (low + high) // 2
        if _has_same(versions, middle, source):
            low = middle
        else:
            high = middle
    root = versions.storage.root
    return AlreadyExists(
        f"{root} was written to since it was exported, or {source.root} WENT BACK IN TIME and went on: from version "
        f"{high} on both have other commits. Nothing was changed. Do not remove the copy: it may be the only one of "
        f"its versions {high} to {newest.version}. See the runbook, 'A bucket was set back'; use another root URI"
    )


def _has_same(versions: Versions, version: int, source: Lakehouse) -> bool:
    """Return whether one transaction made a version on both sides; a root that cannot be read is another one's."""
    try:
        theirs, ours = versions.try_root(version), source.backend.versions.try_root(version)
    except Corrupt:
        return False
    return theirs is not None and ours is not None and _made_by(ours) == _made_by(theirs)


def _is_same_before(versions: Versions, damaged: int, source: Lakehouse) -> bool:
    """Return whether both have the same version before one that cannot be read in ``source``: the copy has that one.

    The newest version before it that both can read decides; ``False`` where there is none. Two ``get`` each.
    """
    for version in range(damaged - 1, source.root_node.oldest_version - 1, -1):
        try:
            theirs, ours = versions.try_root(version), source.backend.versions.try_root(version)
        except Corrupt:
            continue
        return theirs is not None and ours is not None and _made_by(ours) == _made_by(theirs)
    return False


def _made_by(root: Root) -> tuple[str | None, int]:
    return root.txn, root.created_at_millis


def _is_base(source: Lakehouse, root: Root) -> bool:
    """Return whether the version after ``root`` is kept by ``source``, and was committed on top of it. One ``get``."""
    after = None
    if root.version + 1 >= source.root_node.oldest_version:
        after = source.backend.versions.try_root(root.version + 1)
    return after is not None and PREVIOUS_TXN in after.system and after.follows(root)


def make_root_without_snapshots(source: Lakehouse) -> tuple[bytes, tuple[str, bytes]]:
    """Return the root of a version that is exported alone, and path and bytes of the definition that it names.

    The snapshots that the definition names are other versions, which the destination will not hold.
    """
    root = source.root_node
    definition = LakehouseDef()
    definition.CopyFrom(source.definition)
    definition.snapshots.clear()
    # An export that is repeated makes the same name, and so the same root.
    path = f"_lakehouse_def_{uuid.uuid5(_WITHOUT_SNAPSHOTS, root.definition_path)}.binpb"
    content = encode(definition)
    node = root.node.with_messages(Messages())
    rows = {**root.node.system, **definition_rows(path, content)}
    node.system = {name: value for name, value in rows.items() if value is not None}
    encoded = encode_node(node, source.definition.order, root_path(source.version))
    return bytes(encoded), (path, content)
