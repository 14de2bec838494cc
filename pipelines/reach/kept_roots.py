"""What a lakehouse keeps: the roots that every job which deletes must start from (format, section 6).

Retained are all versions from the boundary to the newest, the snapshots in the newest lakehouse definition,
expired or not, and the saved transactions that are alive. The rules of an expiration, which decide what it leaves
above the boundary (``docs/retention.md``), stand at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

from pipelines.reach.walk import FOREVER, Start
from trinitylake_core import spec
from trinitylake_core.commits.backend import LakehouseBackend
from trinitylake_core.commits.commit import require_writable
from trinitylake_core.definitions import LakehouseDef, TransactionDef, decode_transaction
from trinitylake_core.durations import describe_duration, millis
from trinitylake_core.errors import Corrupt, CorruptDefinition, FileMissing, InvalidLocation, Refused
from trinitylake_core.locations import root_path, validate_path
from trinitylake_core.storage import Storage
from trinitylake_core.versions import Root, lower_lying_boundary

GUARD: Final = spec.DELETE_ENABLED
"""Property of a lakehouse; anything but ``true`` forbids every job to delete."""
CLOCK_SLACK_MILLIS: Final = 300_000
"""How far the clock of a process that holds a saved transaction may lag behind ours, at the most."""


@dataclass(frozen=True, slots=True)
class GcRoots:
    """The roots of a lakehouse at one moment. ``boundary`` is read before ``newest``: nothing in between is missed."""

    boundary: int
    """The number in the boundary file, or in the newest root if that is larger."""
    newest: Root
    definition: LakehouseDef
    snapshots: dict[str, str]
    """Root path of every snapshot whose root lies in this lakehouse, by name."""
    lost: frozenset[int] = frozenset()
    """The versions that are marked as lost."""

    def starts(self, since: GcRoots | None = None) -> list[Start]:
        """Return the roots to walk from; with ``since`` only those that were not kept then.

        Versions that are marked as lost are left out: what only they reach need not stay.
        """
        first = self.boundary if since is None else max(self.boundary, since.newest.version + 1)
        known = set() if since is None else set(since.snapshots.values())
        kept = (version for version in range(first, self.newest.version + 1) if version not in self.lost)
        versions = [Start(root_path(version), version, version) for version in kept]
        return versions + [Start(path, FOREVER, FOREVER) for path in sorted({*self.snapshots.values()} - known)]


def gc_roots(backend: LakehouseBackend, *, heal: bool = False) -> GcRoots:
    """Return the roots that are kept now. Six ``get`` or so; the newest root is searched again.

    With ``heal``, a boundary file with a larger number than expiration can have written is put right first.

    Raises:
        ReadOnly: another generation of the format wrote the lakehouse.
        Corrupt: boundary or a snapshot's root path make no sense.
        UnsafeStorage: the boundary file is to be put right, and the storage cannot compare and set.
    """
    boundary = backend.versions.boundary()
    newest = backend.newest()
    backend.note_newest(newest)
    if heal and boundary > newest.oldest_version:
        backend.refuse_no_compare_and_set()
        lowered = lower_lying_boundary(backend.versions)
        boundary = boundary if lowered is None else lowered
    return gc_roots_at(backend, boundary, newest)


def gc_roots_at(backend: LakehouseBackend, boundary: int, newest: Root) -> GcRoots:
    """Return the roots that are kept as of a root. A ``get``, and one for each lost version. Raises as above."""
    require_writable(backend, newest)
    if max(boundary, newest.oldest_version) > newest.version:
        raise Corrupt(
            f"the boundary {max(boundary, newest.oldest_version)} lies beyond the newest version {newest.version}; "
            "nothing was deleted. An export to this place that is not complete leaves it like that: repeat the export; "
            "or, if nobody will, run `trinitylake expire` without --dry-run, which puts the boundary right",
            path=newest.path,
            invariant="I16",
        )
    try:
        definition = backend.versions.definition_file(newest)  # the root of another lakehouse has one, but not here
    except CorruptDefinition as error:
        raise CorruptDefinition(
            f"{error}. Either that file is lost, or the root is one of another lakehouse; nothing was deleted. "
            f"`trinitylake mend {backend.storage.root} --from BACKUP` puts the file back where a backup has it; "
            f"`trinitylake rollback {backend.storage.root} --to-version VERSION --reason REASON` leaves it behind",
            path=error.path,
            invariant=error.invariant,
        ) from error
    snapshots: dict[str, str] = {}
    for name, snapshot in definition.snapshots.items():
        if not snapshot.target_uri:
            try:
                snapshots[name] = validate_path(snapshot.root_node_file_path)
            except InvalidLocation as error:
                raise Corrupt(f"snapshot {name!r}: {error}; nothing was deleted", invariant="I17") from None
    boundary = max(boundary, newest.oldest_version)
    lost = backend.versions.marked_lost(definition, range(boundary, newest.version))
    return GcRoots(boundary, newest, definition, snapshots, frozenset(lost))


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

    Each running root costs a ``head``. A file whose running root is gone is dead: a network delivered its creation
    after the transaction was committed and removed, and no process can resume it. One that is being saved again has a
    second running root, which may have been cleaned before it was announced; then it is never confirmed.

    One that was committed or aborted since the listing is left out: it is a version by now, or nothing.

    Raises:
        CorruptDefinition: a file that may be a live transaction cannot be read, so the files it needs are unknown.
    """
    found = SavedTransactions()
    pairs = list(listed)
    contents: Iterator[tuple[str, bytes | FileMissing]] = storage.read_many([path for path, _ in pairs])
    for (path, modified), (_, data) in zip(pairs, contents, strict=True):
        if isinstance(data, FileMissing):
            continue
        running = _running_roots(path, data, modified, ttl_millis, now_millis)
        there = [each for each in running if is_there(storage, each)]
        if running[:1] != there[:1] or not running:
            found.dead += 1
        else:
            found.paths.add(path)
            found.starts.extend(Start(each, FOREVER, FOREVER) for each in there)
    return found


def is_there(storage: Storage, path: str) -> bool:
    """Return whether there is a file of this name. One ``head``."""
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
        if modified + ttl_millis + slack(ttl_millis) < now_millis:  # no transaction of that age can be alive
            return []
        raise CorruptDefinition(
            f"saved transaction {path!r} cannot be read ({error}) and may be live; nothing was deleted", path=path
        ) from None
    expires = definition.expire_at_millis or definition.began_at_millis + ttl_millis
    dies = expires + slack(max(0, expires - definition.began_at_millis))
    return running if definition.state != TransactionDef.ABORTED and now_millis < dies else []


def slack(ttl_millis: int) -> int:
    """Return the time for which a transaction still counts as alive after its time to live: clocks differ."""
    return min(CLOCK_SLACK_MILLIS, ttl_millis // 2)


# -- which versions an expiration keeps -------------------------------------------------------------


NEWEST: Final = "the newest version"
KEEP_LAST: Final = "keep_last"
OLDER_THAN: Final = "older_than"
TTL: Final = "txn_ttl_millis"
OWN_VERSION: Final = "its own version"


@dataclass(frozen=True, slots=True)
class RetentionReason:
    """What one rule keeps: all versions from one on. Rules overlap; the one that begins first decides.

    Attributes:
        rule: ``keep_last``, ``older_than``, ``txn_ttl_millis``, ``the newest version``, or ``its own version``: nothing
            would go but to make room for the version that the expiration itself commits.
        setting: what it is set to, for people: ``100``, ``7d``.
        first: the oldest version that it keeps.
        versions: how many it keeps.
    """

    rule: str
    setting: str
    first: int
    versions: int


@dataclass(frozen=True, slots=True)
class RetentionRules:
    """What keeps versions, besides that the newest one always stays: each of these as far as it is given.

    Attributes:
        keep_last: that many of the newest versions.
        age_seconds: what is not older than that.
        ttl_millis: the same, of the lakehouse itself.
    """

    keep_last: int | None
    age_seconds: float | None
    ttl_millis: int

    def first_by_count(self, versions: range) -> int:
        """Return the first version that ``keep_last`` keeps, or else the newest one."""
        newest = versions[-1]
        return newest if self.keep_last is None else min(newest, newest - self.keep_last + 1)

    def boundary(self, created_at: Callable[[int], int], versions: range, now_millis: int) -> int:
        """Return the first version that a rule keeps. O(log versions) calls of ``created_at``.

        REQUIRES: ``created_at`` ascends.
        """
        since = now_millis - self.ttl_millis
        if self.age_seconds is not None:
            since = min(since, now_millis - millis(self.age_seconds))
        last = max(versions.start, self.first_by_count(versions))
        return _first_since(created_at, range(versions.start, last), since)

    def reasons(self, created_at: Callable[[int], int], versions: range, now_millis: int) -> list[RetentionReason]:
        """Return the versions that each rule keeps, the widest rule first. O(log versions) calls for each of two rules.

        REQUIRES: ``created_at`` ascends.
        """
        newest = versions[-1]
        found = [_reason(NEWEST, "", newest, newest)]
        if self.keep_last is not None:
            first = max(versions.start, self.first_by_count(versions))
            found.append(_reason(KEEP_LAST, str(self.keep_last), first, newest))
        if self.age_seconds is not None:
            age = describe_duration(self.age_seconds)
            since = now_millis - millis(self.age_seconds)
            first = _first_since(created_at, versions, since)
            found.append(_reason(OLDER_THAN, age, first, newest))
        ttl = describe_duration(self.ttl_millis / 1000)
        since = now_millis - self.ttl_millis
        first = _first_since(created_at, versions, since)
        found.append(_reason(TTL, ttl, first, newest))
        found.sort(key=attrgetter("first"))
        return [each for each in found if each.versions > 0]


def _reason(rule: str, setting: str, first: int, newest: int) -> RetentionReason:
    return RetentionReason(rule, setting, first, newest - first + 1)


def _first_since(created_at: Callable[[int], int], versions: range, since: int) -> int:
    """Return the first of ``versions`` created at ``since`` or later; the one after them if there is none."""
    low, high = versions.start, versions.stop
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if created_at(middle) < since else (low, middle)
    return low
