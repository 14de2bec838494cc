"""The snapshots of a table that expire by its own properties, as the Iceberg specification defines them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import RemoveSnapshotRefUpdate, RemoveSnapshotsUpdate, TableUpdate

from trinitylake_core.iceberg.references import GC_ENABLED, forbids_deletes

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
        removed = [RemoveSnapshotRefUpdate(ref_name=each) for each in self.refs]
        return (*removed, *([RemoveSnapshotsUpdate(snapshot_ids=list(self.snapshots))] if self.snapshots else []))


@dataclass(frozen=True, eq=False)
class PlannedSnapshots:
    """What tables lose by a plan, by their UUIDs: snapshots, and references with the snapshots that they named."""

    snapshots: dict[str, set[int]]
    refs: dict[str, dict[str, int]]

    def of(self, metadata: TableMetadata) -> Expiring:
        """Return what of the plan is there still. Raises ``ValueError`` where a branch or tag has changed since."""
        uuid = str(metadata.table_uuid)
        planned = self.snapshots.get(uuid, set())
        planned_refs = self.refs.get(uuid, {})
        gone_refs: list[str] = []
        moved: list[str] = []
        for name, ref in sorted(metadata.refs.items()):
            number = ref.snapshot_id
            if planned_refs.get(name) == number:
                gone_refs.append(name)
            elif name in planned_refs or number in planned:
                moved.append(name)
        if moved:
            raise ValueError(f"these branches or tags have changed since the plan was made: {', '.join(moved)}")
        numbers = [each.snapshot_id for each in metadata.snapshots]
        gone = [number for number in numbers if number in planned]
        return Expiring(tuple(gone), tuple(gone_refs))


def expiring(metadata: TableMetadata, rules: SnapshotRules | PlannedSnapshots, now_millis: int) -> Expiring:
    """Return the snapshots and references of a table that expire now: by rules, or by a plan. Pure; no file is deleted.

    A snapshot stays if a tag names it, if it is among the newest of a branch, or young and of a branch, or young and of
    no branch or tag at all.

    Raises:
        Forbidden: the table forbids it (``gc.enabled``).
        ValueError: a property that must be a number is none, or a plan no longer holds.
    """
    if forbids_deletes(metadata.properties):
        raise Forbidden(f"the table has the property {GC_ENABLED}, and it is not true")
    if isinstance(rules, PlannedSnapshots):
        return rules.of(metadata)
    own = _own_rules(metadata, rules)
    snapshots = {each.snapshot_id: each for each in metadata.snapshots}
    refs = {name: ref for name, ref in metadata.refs.items() if _stays(name, ref, snapshots, own, now_millis)}
    kept: set[int] = set()
    referenced: set[int] = set()
    for ref in refs.values():
        line = list(_ancestors(ref.snapshot_id, snapshots))
        if ref.snapshot_ref_type == SnapshotRefType.TAG:
            kept.add(ref.snapshot_id)
            referenced.add(ref.snapshot_id)
        else:
            kept |= _of_branch(ref, line, own, now_millis)
            referenced |= {each.snapshot_id for each in line}
    since = now_millis - own.max_age_millis
    kept |= {each.snapshot_id for each in metadata.snapshots if each.timestamp_ms >= since} - referenced
    gone = tuple(each.snapshot_id for each in metadata.snapshots if each.snapshot_id not in kept)
    return Expiring(gone, tuple(sorted(metadata.refs.keys() - refs.keys())))


def _own_rules(metadata: TableMetadata, rules: SnapshotRules) -> SnapshotRules:
    def number(name: str, default: int | None) -> int | None:
        text = metadata.properties.get(name)
        if text is None:
            return default
        if not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS):
            raise ValueError(f"its property {name} is not a number of milliseconds or snapshots")
        return int(text)

    return SnapshotRules(
        number(MAX_AGE, rules.max_age_millis) or 0,
        max(1, number(MIN_KEPT, rules.min_kept) or 1),
        number(MAX_REF_AGE, rules.max_ref_age_millis),
    )


def _stays(name: str, ref: SnapshotRef, snapshots: dict[int, Snapshot], rules: SnapshotRules, now_millis: int) -> bool:
    oldest = ref.max_ref_age_ms or rules.max_ref_age_millis
    snapshot = snapshots.get(ref.snapshot_id)
    if name == MAIN_BRANCH or oldest is None or snapshot is None:
        return True
    return now_millis - snapshot.timestamp_ms <= oldest


def _of_branch(ref: SnapshotRef, line: list[Snapshot], rules: SnapshotRules, now_millis: int) -> set[int]:
    """Return the snapshots of a branch, newest first, up to the first that is neither young nor among the newest."""
    since = now_millis - (ref.max_snapshot_age_ms or rules.max_age_millis)
    least = max(1, ref.min_snapshots_to_keep or rules.min_kept)  # what a file says may be negative
    kept: set[int] = set()
    for snapshot in line:
        if len(kept) >= least and snapshot.timestamp_ms < since:
            break
        kept.add(snapshot.snapshot_id)
    return kept


def _ancestors(snapshot_id: int | None, snapshots: dict[int, Snapshot]) -> Iterator[Snapshot]:
    seen: set[int] = set()
    while snapshot_id is not None and snapshot_id in snapshots and snapshot_id not in seen:
        seen.add(snapshot_id)
        yield snapshots[snapshot_id]
        snapshot_id = snapshots[snapshot_id].parent_snapshot_id
