"""What a lakehouse keeps: the roots that every job which deletes must start from (format, section 6).

Retained are all versions from the boundary to the newest, the snapshots in the newest lakehouse definition,
expired or not, and the saved transactions that are alive.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from pipelines.trees.walk import FOREVER, Start
from trinitylake_core.commits.commit import require_writable
from trinitylake_core.commits.files import Files
from trinitylake_core.definitions import LakehouseDef, TransactionDef, decode_transaction
from trinitylake_core.errors import Corrupt, CorruptDefinition, FileMissing, InvalidLocation, Refused
from trinitylake_core.locations import root_path, validate_path
from trinitylake_core.storage import Storage
from trinitylake_core.versions import Root, lower_lying_boundary

GUARD: Final = "maintenance.delete.enabled"
"""Property of a lakehouse; anything but ``true`` forbids every job to delete."""
CLOCK_SLACK_MILLIS: Final = 300_000
"""How far the clock of a process that holds a saved transaction may lag behind ours, at the most."""


@dataclass(frozen=True, slots=True)
class Retained:
    """The roots of a lakehouse at one moment. ``boundary`` is read before ``newest``: nothing in between is missed."""

    boundary: int
    """What the boundary file says, or the newest root where that says more."""
    newest: Root
    definition: LakehouseDef
    snapshots: dict[str, str]
    """Root path of every snapshot whose root lies in this lakehouse, by name."""

    def starts(self, since: Retained | None = None) -> list[Start]:
        """Return the roots to walk from; with ``since`` only those that were not kept then."""
        first = self.boundary if since is None else max(self.boundary, since.newest.version + 1)
        known = set() if since is None else set(since.snapshots.values())
        versions = [Start(root_path(version), version, version) for version in range(first, self.newest.version + 1)]
        return versions + [Start(path, FOREVER, FOREVER) for path in sorted({*self.snapshots.values()} - known)]


def retained(files: Files, *, heal: bool = False) -> Retained:
    """Return what is kept now. Six ``get`` or so; the newest root is searched anew.

    With ``heal``, a boundary file that says more than expiration can have written is put right first.

    Raises:
        ReadOnly: another generation of the format wrote the lakehouse.
        Corrupt: boundary or a snapshot's root path make no sense.
        UnsafeStorage: the boundary file is to be put right, and the storage cannot compare and set.
    """
    boundary = files.versions.boundary()
    newest = files.newest()
    files.saw(newest)
    if heal and boundary > newest.oldest_version:
        files.refuse_no_compare_and_set(newest)
        lowered = lower_lying_boundary(files.versions)
        boundary = boundary if lowered is None else lowered
    return retained_at(files, boundary, newest)


def retained_at(files: Files, boundary: int, newest: Root) -> Retained:
    """Return what is kept as of a root. One ``get``. Raises as :func:`retained`."""
    require_writable(files, newest)
    if max(boundary, newest.oldest_version) > newest.version:
        raise Corrupt(
            f"the boundary {max(boundary, newest.oldest_version)} lies beyond the newest version {newest.version}; "
            "nothing was deleted. An export to this place that is not complete leaves it like that: repeat the export; "
            "or, if nobody will, run `trinitylake expire` without --dry-run, which puts the boundary right",
            path=newest.path,
            invariant="I16",
        )
    definition = _definition_here(files, newest)
    return Retained(max(boundary, newest.oldest_version), newest, definition, _snapshot_roots(definition))


def _definition_here(files: Files, newest: Root) -> LakehouseDef:
    """Return the lakehouse definition from its own file: the root of another lakehouse has one, but not here."""
    try:
        return files.versions.definition_file(newest)
    except CorruptDefinition as error:
        raise CorruptDefinition(
            f"{error}. Either that file is lost, or the root is one of another lakehouse; nothing was deleted. "
            f"`trinitylake rollback {files.storage.root} --to-version VERSION --reason REASON` leaves it behind",
            path=error.path,
            invariant=error.invariant,
        ) from error


def _snapshot_roots(definition: LakehouseDef) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, snapshot in definition.snapshots.items():
        if not snapshot.target_uri:
            try:
                found[name] = validate_path(snapshot.root_node_file_path)
            except InvalidLocation as error:
                raise Corrupt(f"snapshot {name!r}: {error}; nothing was deleted", invariant="I17") from None
    return found


def refuse_guarded(definition: LakehouseDef) -> None:
    """Raise ``Refused`` if the owner of a lakehouse forbids deleting."""
    value = definition.properties.get(GUARD, "true")
    if value.strip().lower() != "true":
        raise Refused(f"the lakehouse has the property {GUARD}={value}: nothing may be deleted from it")


@dataclass(slots=True)
class SavedTransactions:
    """Saved transactions: where the live ones lead, and how many are dead."""

    starts: list[Start] = field(default_factory=list)
    paths: set[str] = field(default_factory=set)
    """The files of live ones themselves."""
    dead: int = 0


def live_transactions(
    storage: Storage, listed: Iterable[tuple[str, int]], ttl_millis: int, now_millis: int
) -> SavedTransactions:
    """Return the saved transactions that are alive among listed (path, modified) pairs. One ``get`` each.

    One that is being saved again has two running roots, and costs one ``head`` more: the one that is not confirmed yet
    may have been cleaned before it was announced, and then nobody will confirm it.

    One that was committed or aborted since the listing is left out: whatever it became is a version by now.

    Raises:
        CorruptDefinition: a file that may be a live transaction cannot be read, so nobody knows what it needs.
    """
    found = SavedTransactions()
    pairs = list(listed)
    contents: Iterator[tuple[str, bytes | FileMissing]] = storage.read_many([path for path, _ in pairs])
    for (path, modified), (_, data) in zip(pairs, contents, strict=True):
        if isinstance(data, FileMissing):
            continue
        running = _running_roots(path, data, modified, ttl_millis, now_millis)
        if not running:
            found.dead += 1
        else:
            found.paths.add(path)
            confirmed, *pending = running
            there = [each for each in pending if _is_there(storage, each)]
            found.starts.extend(Start(each, FOREVER, FOREVER) for each in (confirmed, *there))
    return found


def _is_there(storage: Storage, path: str) -> bool:
    try:
        storage.info(path)
    except FileMissing:
        return False
    return True


def _running_roots(path: str, data: bytes, modified: int, ttl_millis: int, now_millis: int) -> list[str]:
    """Return the running root of a transaction, and the one not confirmed yet; none if it is aborted or too old."""
    try:
        definition = decode_transaction(data, path)
        running = [validate_path(definition.running_root_node_file_path)]
        if definition.pending_running_root_node_file_path:
            running.append(validate_path(definition.pending_running_root_node_file_path))
    except (Corrupt, InvalidLocation) as error:
        if modified + ttl_millis + slack(ttl_millis) < now_millis:  # whatever it was, it could not be alive
            return []
        raise CorruptDefinition(
            f"saved transaction {path!r} cannot be read ({error}) and may be live; nothing was deleted", path=path
        ) from None
    alive = definition.state != TransactionDef.ABORTED and now_millis < _dies_at(definition, ttl_millis)
    return running if alive else []


def _dies_at(definition: TransactionDef, ttl_millis: int) -> int:
    expires = definition.expire_at_millis or definition.began_at_millis + ttl_millis
    return expires + slack(max(0, expires - definition.began_at_millis))


def slack(ttl_millis: int) -> int:
    """Return how long after its time a transaction still counts as alive: clocks differ."""
    return min(CLOCK_SLACK_MILLIS, ttl_millis // 2)


def paths_of(starts: Sequence[Start]) -> set[str]:
    """Return the paths of roots."""
    return {start.path for start in starts}
