"""The snapshots of a table that expire by its own properties, as the Iceberg specification defines them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import RemoveSnapshotRefUpdate, RemoveSnapshotsUpdate, TableUpdate

from trinitylake_core.iceberg.reading.references import GC_ENABLED, forbids_deletes
from trinitylake_core.tables import full_uri

MAX_AGE: Final = "history.expire.max-snapshot-age-ms"
MIN_KEPT: Final = "history.expire.min-snapshots-to-keep"
MAX_REF_AGE: Final = "history.expire.max-ref-age-ms"
"""Properties of a table."""


_DIGITS: Final = 18
"""So many digits a number in a property has at the most."""


class Forbidden(ValueError):
    """The owner of a table forbids that its snapshots expire."""


@dataclass(frozen=True, slots=True)
class SnapshotRules:
    """The rules for tables without properties of their own; the defaults are Iceberg's.

    Attributes:
        max_age_millis: a snapshot of a branch stays if it is not older.
        min_kept: so many of the newest snapshots of each branch stay.
        max_ref_age_millis: a tag, or a branch but ``main``, stays if its snapshot is not older; ``None``: for ever.
    """

    max_age_millis: int = 432_000_000
    min_kept: int = 1
    max_ref_age_millis: int | None = None


@dataclass(frozen=True, slots=True)
class Expiring:
    """What a table loses: snapshots by ID, and references by name."""

    snapshots: tuple[int, ...] = ()
    refs: tuple[str, ...] = ()

    def updates(self) -> tuple[TableUpdate, ...]:
        """Return the updates that remove them, references first; none if there is nothing."""
        updates: list[TableUpdate] = []
        for name in self.refs:
            updates.append(RemoveSnapshotRefUpdate(ref_name=name))
        if self.snapshots:
            numbers = list(self.snapshots)
            updates.append(RemoveSnapshotsUpdate(snapshot_ids=numbers))
        return tuple(updates)


@dataclass(frozen=True, slots=True)
class ExpiringTable:
    """The table that a plan was made for: its name, and the metadata file that it had then."""

    name: str
    metadata_location: str


@dataclass(frozen=True, eq=False)
class PlannedSnapshots:
    """What tables lose by a plan, by their UUIDs: snapshots, and references with the snapshots that they named."""

    tables: dict[str, ExpiringTable]
    snapshots: dict[str, set[int]]
    refs: dict[str, dict[str, int]]

    def of(self, metadata: TableMetadata, name: str, location: str) -> Expiring:
        """Return what of the plan is there still, of the table of this name with its metadata file.

        Raises ``ValueError``: it is not the table that the plan was made for, or a branch or tag has changed since.
        """
        uuid = str(metadata.table_uuid)
        self._refuse_other(metadata, name, location)
        planned = self.snapshots.get(uuid, set())
        planned_refs = self.refs.get(uuid, {})
        gone_refs: list[str] = []
        moved: list[str] = []
        for ref_name, ref in sorted(metadata.refs.items()):
            number = ref.snapshot_id
            if planned_refs.get(ref_name) == number:
                gone_refs.append(ref_name)
            elif ref_name in planned_refs or number in planned:
                moved.append(ref_name)
        if moved:
            raise ValueError(f"these branches or tags have changed since the plan was made: {', '.join(moved)}")
        numbers = [each.snapshot_id for each in metadata.snapshots]
        gone = [number for number in numbers if number in planned]
        return Expiring(tuple(gone), tuple(gone_refs))

    def _refuse_other(self, metadata: TableMetadata, name: str, location: str) -> None:
        """Refuse a table that has only the UUID, or only the name, of one in the plan, or whose history is another."""
        planned = self.tables.get(str(metadata.table_uuid))
        if planned is None:
            if any(each.name == name for each in self.tables.values()):
                raise ValueError("the plan was made for another table of this name")
            return
        if planned.name != name:
            raise ValueError(f"the plan was made for this table under the name {planned.name}")
        known = {full_uri(each.metadata_file) for each in metadata.metadata_log}
        if full_uri(planned.metadata_location) not in {full_uri(location), *known}:
            raise ValueError("its metadata do not follow those that the plan was made for; make a new plan")


def expiring(
    metadata: TableMetadata,
    rules: SnapshotRules | PlannedSnapshots,
    now_millis: int,
    *,
    name: str = "",
    location: str = "",
) -> Expiring:
    """Return the snapshots and references of a table that expire now: by rules, or by a plan. Pure; no file is deleted.

    A plan is for the table of this name, with its metadata at this location.

    A snapshot stays if a tag names it, if it is among the newest of a branch, or young and of a branch, or young and of
    no branch or tag at all.

    Raises:
        Forbidden: the table forbids it (``gc.enabled``).
        ValueError: a property that must be a number is none, or a plan no longer holds.
    """
    if forbids_deletes(metadata.properties):
        raise Forbidden(f"the table has the property {GC_ENABLED}, and it is not true")
    if isinstance(rules, PlannedSnapshots):
        return rules.of(metadata, name, location)
    own = _own_rules(metadata, rules)
    snapshots = {each.snapshot_id: each for each in metadata.snapshots}
    gone_refs: list[str] = []
    kept: set[int] = set()
    referenced: set[int] = set()
    for ref_name, ref in sorted(metadata.refs.items()):
        if not _is_ref_kept(ref_name, ref, snapshots, own, now_millis):
            gone_refs.append(ref_name)
        elif ref.snapshot_ref_type == SnapshotRefType.TAG:
            kept.add(ref.snapshot_id)
            referenced.add(ref.snapshot_id)
        else:
            line = list(ancestors(ref.snapshot_id, snapshots))
            kept |= _kept_of_branch(ref, line, own, now_millis)
            referenced |= {each.snapshot_id for each in line}
    if metadata.current_snapshot_id is not None:  # whatever the branch main is said to be
        kept.add(metadata.current_snapshot_id)

    since = now_millis - own.max_age_millis
    gone: list[int] = []
    for snapshot in metadata.snapshots:
        number = snapshot.snapshot_id
        is_young_and_of_none = snapshot.timestamp_ms >= since and number not in referenced
        if number not in kept and not is_young_and_of_none:
            gone.append(number)
    return Expiring(tuple(gone), tuple(gone_refs))


def _own_rules(metadata: TableMetadata, rules: SnapshotRules) -> SnapshotRules:
    max_age = _number(metadata, MAX_AGE, rules.max_age_millis)
    min_kept = _number(metadata, MIN_KEPT, rules.min_kept)
    max_ref_age = _number(metadata, MAX_REF_AGE, rules.max_ref_age_millis)
    return SnapshotRules(
        max_age_millis=max_age or 0,
        min_kept=max(1, min_kept or 1),
        max_ref_age_millis=max_ref_age,
    )


def _number(metadata: TableMetadata, name: str, default: int | None) -> int | None:
    """Return the number in a property of a table. Raises ``ValueError``: there is something else."""
    text = metadata.properties.get(name)
    if text is None:
        return default
    is_number = text.isascii() and text.isdecimal() and len(text) <= _DIGITS
    if not is_number:
        raise ValueError(f"its property {name} is not a number of milliseconds or snapshots")
    return int(text)


def _is_ref_kept(
    name: str,
    ref: SnapshotRef,
    snapshots: dict[int, Snapshot],
    rules: SnapshotRules,
    now_millis: int,
) -> bool:
    """Return whether a branch or a tag stays: the branch main does at any age."""
    max_age = ref.max_ref_age_ms or rules.max_ref_age_millis
    snapshot = snapshots.get(ref.snapshot_id)
    if name == MAIN_BRANCH or max_age is None or snapshot is None:  # without its snapshot its age is not known
        return True
    age = now_millis - snapshot.timestamp_ms
    return age <= max_age


def _kept_of_branch(
    ref: SnapshotRef,
    line: list[Snapshot],
    rules: SnapshotRules,
    now_millis: int,
) -> set[int]:
    """Return the snapshots of a branch, newest first, up to the first that is neither young nor among the newest."""
    max_age = ref.max_snapshot_age_ms or rules.max_age_millis
    least = ref.min_snapshots_to_keep or rules.min_kept
    least = max(1, least)  # what a file says may be negative
    since = now_millis - max_age
    kept: set[int] = set()
    for snapshot in line:
        is_old = snapshot.timestamp_ms < since
        if is_old and len(kept) >= least:
            break
        kept.add(snapshot.snapshot_id)
    return kept


def ancestors(snapshot_id: int | None, snapshots: dict[int, Snapshot]) -> Iterator[Snapshot]:
    """Yield a snapshot and those before it; a circle of them ends."""
    yielded: set[int] = set()
    while snapshot_id in snapshots and snapshot_id not in yielded:
        snapshot = snapshots[snapshot_id]
        yielded.add(snapshot_id)
        yield snapshot
        snapshot_id = snapshot.parent_snapshot_id
