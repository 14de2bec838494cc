"""What a restore changes, and the transactions that bring it back (format, section 6)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import Final

from trinitylake_core.commits.backend import LakehouseBackend
from trinitylake_core.commits.rolled_back import newest_base, refuse_changed, refuse_lost
from trinitylake_core.definitions import DECODERS, NamespaceDef, TableDef, ViewDef, encode
from trinitylake_core.diff import CHANGED, Change, diff_trees
from trinitylake_core.errors import Corrupt, CorruptDefinition, FileMissing, InvalidInput, InvalidLocation, StorageError
from trinitylake_core.keys import NAMESPACE, ObjectName
from trinitylake_core.locations import validate_path
from trinitylake_core.recovery.patterns import Pattern
from trinitylake_core.recovery.plan import Differ
from trinitylake_core.recovery.selection import Side, matching, to_restore
from trinitylake_core.transactions.transaction import Transaction
from trinitylake_core.versions import Delta, Root, Versions


@contextmanager
def still_kept(backend: LakehouseBackend, newest: Root, target: Root) -> Iterator[None]:
    """Tell damage from a target that expired, and was cleaned, while it was read. Then three ``get`` more.

    Raises:
        VersionExpired, SnapshotNotFound: the target is no longer kept, by ``newest`` or by now, so that what is
            missing was removed.
        Corrupt: it is kept, and damaged.
    """
    refuse_lost(backend, newest, target)
    try:
        yield
    except Corrupt:
        refuse_lost(backend, newest_base(backend).root, target)
        raise


class BringingBack(Transaction):
    """A transaction whose definitions only the version ``target`` may keep alive."""

    target: Root

    def take(self, there: Side, changes: Sequence[Change]) -> None:
        """Point objects to their definitions in another version, and drop what is gone there. No request."""
        self.target = there.root
        for change in changes:
            self.put(change.key, change.new_path, replaces=change.old_path is not None)
            if change.kind != NAMESPACE and change.new_path is not None:
                self.need_namespace(change.namespace)
            if change.kind == NAMESPACE and change.new_path is None:
                self.close_namespace(change.namespace)

    def prove_copies(self) -> None:
        """Do nothing: nothing is copied."""

    def rebase(self, base: Root, newer: Sequence[Delta]) -> None:
        """Also stop when the target has expired. Raises ``VersionExpired``, ``SnapshotNotFound``."""
        super().rebase(base, newer)
        refuse_lost(self._backend, newer[-1], self.target)


def refuse_outdated(versions: Versions, planned_at: int, newest: Root) -> None:
    """Refuse a plan if a version after it changed objects. One ``get`` for each version since.

    Raises:
        InvalidInput: the plan names a version that does not exist yet.
        PlanOutdated: another writer committed since.
    """
    if planned_at > newest.version:
        raise InvalidInput(f"the plan cannot be of version {planned_at}: the newest one is {newest.version}")
    found = [root for root in versions.readable_roots(range(planned_at + 1, newest.version)) if root is not None]
    refuse_changed(planned_at, [*found, newest] if newest.version > planned_at else [])


def newest_root(backend: LakehouseBackend, planned_at: int | None = None) -> Root:
    """Return the newest root, which no plan made at version ``planned_at`` is too old for. Three ``get`` or so.

    Raises:
        InvalidInput, PlanOutdated: as :func:`refuse_outdated`.
    """
    newest = backend.newest()
    backend.note_newest(newest)
    if planned_at is not None:
        refuse_outdated(backend.versions, planned_at, newest)
    return newest


def require_reason(reason: str | None) -> str:
    """Return the reason, or raise ``InvalidInput`` if there is none."""
    if reason is None or not reason.strip():
        raise InvalidInput("a reason is required: it stands in the history")
    return reason


def refuse_no_source(source: object, *, damaged: bool) -> None:
    """Raise ``InvalidInput`` if damaged objects are to be restored and the caller named no other lakehouse."""
    if damaged and source is None:
        raise InvalidInput("damaged definition files come back from another lakehouse: name it as the source")


def changes_to_restore(
    here: Side, there: Side, only: Sequence[str], differ: Differ | None, *, copy: bool, exact: bool, damaged: bool
) -> list[Change]:
    """Return the changes of a restore, in keys of this lakehouse.

    With ``copy`` they are the objects that match and differ between two lakehouses, and with ``damaged`` those whose
    file here is missing or damaged, too. A node that both sides name is not read on either side.
    """
    differing: Iterable[Change] = (
        differ(here.root, there.root)
        if differ is not None
        else diff_trees(
            here.backend.nodes, here.root.node, here.codec, there.backend.nodes, there.root.node, there.codec
        )
    )
    if not copy:
        return to_restore(here, there, only, differing, exact=exact)
    named: set[_Name] = set()

    def noted() -> Iterator[Change]:
        for change in differing:
            named.add((change.kind, change.namespace, change.name))
            yield change

    matching_changes = to_restore(here, there, only, noted() if damaged else differing, exact=exact)
    found = list(_really_changed(here, there, matching_changes))
    if damaged:
        found += _damaged_here(here, there, _of_one_file(here, only, named))
    codec = here.codec
    return [replace(each, key=codec.encode(ObjectName(each.kind, each.namespace, each.name))) for each in found]


# -- from another lakehouse ----------------------------------------------------------------------------
#
# Files of another lakehouse may be named as files that were here once: those may be cleaned away at any moment. So what
# is copied gets new names, and is read back before the version that refers to it exists.

_READ_TOGETHER: Final = 1024
_Name = tuple[str, str, str | None]
"""Kind, namespace, and name of an object: keys may differ between two lakehouses."""
_Read = bytes | FileMissing


def _really_changed(here: Side, there: Side, changes: Sequence[Change]) -> Iterator[Change]:
    """Yield the changes without those whose files are equal: they were copied in before. Two ``get`` each.

    That a file cannot be read here is not a reason to leave it as it is.
    """
    for start in range(0, len(changes), _READ_TOGETHER):
        part = changes[start : start + _READ_TOGETHER]
        both = [each for each in part if each.old_path is not None and each.new_path is not None]
        same = {each.key for each, ours, theirs in _read_both(here, there, both) if ours == theirs}
        yield from (each for each in part if each.key not in same)


def _read_both(here: Side, there: Side, changes: Sequence[Change]) -> Iterator[tuple[Change, _Read, _Read]]:
    """Yield changes with what the files hold that both sides name. Two ``get`` each; a missing one equals no other."""
    ours = here.backend.storage.read_many([_valid(each.old_path) for each in changes])
    theirs = there.backend.storage.read_many([_valid(each.new_path) for each in changes])
    for each, (_, one), (_, other) in zip(changes, ours, theirs, strict=True):
        yield each, one, other


def _of_one_file(here: Side, only: Sequence[str], named: set[_Name]) -> Iterator[Change]:
    """Yield the objects that match and have the same file on both sides: all but those ``named`` as differing."""
    patterns = [Pattern(text) for text in only]
    for at, pattern in enumerate(patterns):
        for entry in matching(here.backend.nodes, here.root.node, here.codec, pattern):
            name = (entry.kind, entry.namespace, entry.name)
            if name not in named and not any(other.matches(*name[1:]) for other in patterns[:at]):
                yield Change(CHANGED, *name, entry.key, entry.path, entry.path)


def _damaged_here(here: Side, there: Side, alike: Iterator[Change]) -> Iterator[Change]:
    """Yield the objects whose file is missing or damaged here. Two ``get`` each.

    Files of one name hold the same, so of two that differ one is damaged: ours, unless only theirs cannot be read.
    """
    while part := list(islice(alike, _READ_TOGETHER)):
        for each, ours, theirs in _read_both(here, there, part):
            if ours != theirs and (_can_be_read(each, theirs) or not _can_be_read(each, ours)):
                yield each


def _can_be_read(change: Change, data: _Read) -> bool:
    if isinstance(data, FileMissing):
        return False
    try:
        DECODERS[change.kind](data, change.new_path or "")
    except CorruptDefinition:
        return False
    return True


class CopyingIn(Transaction):
    """A transaction that brings definitions of another lakehouse; held in memory until they are committed."""

    def take(self, there: Side, changes: Sequence[Change]) -> None:
        """Read and prove definitions, set them here under new names, and drop what is gone there. One ``get`` for each.

        Raises ``CorruptDefinition`` where one is missing or damaged there; nothing was written yet.
        """
        wanted = [change for change in changes if change.new_path is not None]
        for start in range(0, len(wanted), _READ_TOGETHER):
            part = wanted[start : start + _READ_TOGETHER]
            for each, definition in zip(part, _definitions(there.backend, part), strict=True):
                self._before[each.key] = each.old_path is not None
                self._set(each.kind, each.key, definition, each.namespace, each.name)
                if each.kind != NAMESPACE:
                    self.need_namespace(each.namespace)
        for change in changes:
            if change.new_path is None:
                self.put(change.key, None, replaces=True)
                if change.kind == NAMESPACE:
                    self.close_namespace(change.namespace)

    def prove_copies(self) -> None:
        """Read back what was copied in. One ``get`` each. Raises ``StorageError`` if it is not what was written."""
        held = {path: encode(definition) for path, (_, definition) in self._definitions.items()}
        for path, data in self._backend.storage.read_many(sorted(held)):
            if isinstance(data, FileMissing) or bytes(data) != held[path]:
                raise StorageError(f"{path} does not hold what was written to it; nothing was committed")


def _definitions(backend: LakehouseBackend, wanted: Sequence[Change]) -> Iterator[NamespaceDef | TableDef | ViewDef]:
    paths = [_valid(each.new_path) for each in wanted]
    for each, (path, data) in zip(wanted, backend.storage.read_many(paths), strict=True):
        if isinstance(data, FileMissing):
            raise CorruptDefinition(f"{backend.storage.root}: definition file {path!r} is missing", path=path)
        yield DECODERS[each.kind](data, path)


def _valid(path: str | None) -> str:
    try:
        return validate_path(path or "")
    except InvalidLocation as error:
        raise CorruptDefinition(str(error), path=path) from None
