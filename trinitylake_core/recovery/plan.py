"""Plans of a rollback or a restore: what would change, and whether it can come back (format, section 6)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Final

from trinitylake_core import diff
from trinitylake_core.check import Violation, check_definitions
from trinitylake_core.commits.backend import LakehouseBackend
from trinitylake_core.commits.rolled_back import IsSame, newest_base, refuse_changed, refuse_lost
from trinitylake_core.diff import Change, NotCompared
from trinitylake_core.errors import Corrupt, InvalidInput
from trinitylake_core.keys import label
from trinitylake_core.short_repr import ShortRepr
from trinitylake_core.versions import Root, VersionInfo

SHOWN: Final = 1000
"""How many changes a plan names; it counts them all."""
FINDINGS: Final = 10
"""A proof stops after so many findings."""
_READ_TOGETHER: Final = 1024


@dataclass(frozen=True, slots=True, repr=False)
class RecoveryPlan(ShortRepr):
    """What a rollback or a restore would do, and, once done, the version it became.

    Attributes:
        version: the newest version, which the plan was made at.
        target: path of the root that the objects come from.
        counts: how many objects are added, removed and changed.
        changes: what changes, the first 1000.
        since: the versions that a rollback undoes, newest first: who committed what; at most 20.
        versions_undone: how many there are.
        version_after: the version it became; ``None`` on a dry run, or when there was nothing to do.
        not_compared: what ``counts`` and ``changes`` leave out, because the newest version cannot be read there; at
            most 1000 places. ``old`` is the newest version, ``new`` the target.
        source: root URI of the other lakehouse that the target is a version of; ``None`` = this one.
        nodes_proved: nodes of the target of a rollback, beside its root, that were read and proved for it.
    """

    operation: str
    version: int
    target_version: int
    target_created_at: datetime
    target: str
    counts: dict[str, int]
    changes: tuple[Change, ...]
    since: tuple[VersionInfo, ...]
    versions_undone: int
    reason: str
    version_after: int | None = None
    not_compared: tuple[NotCompared, ...] = ()
    source: str | None = None
    nodes_proved: int = 0


class ChangeTally:
    """The numbers of changes by what they do, and the first of them, which a plan names."""

    def __init__(self) -> None:
        self.counts = {diff.ADDED: 0, diff.REMOVED: 0, diff.CHANGED: 0}
        self.shown: list[Change] = []

    def add(self, changes: Iterable[Change]) -> None:
        """Count some changes."""
        for change in changes:
            self.counts[change.change] += 1
            if len(self.shown) < SHOWN:
                self.shown.append(change)


# -- what is refused -----------------------------------------------------------------------------------


def require_reason(reason: str | None) -> str:
    """Return the reason, or raise ``InvalidInput`` if there is none."""
    if reason is None or not reason.strip():
        raise InvalidInput("a reason is required (`--reason TEXT`, or `reason`): it stands in the history")
    return reason


def refuse_outdated(backend: LakehouseBackend, planned_at: int, newest: Root, is_same: IsSame) -> None:
    """Refuse a plan if the versions after it changed the content that it was made for.

    One ``get`` for each version since; where one of them changed objects, also what ``refuse_changed`` reads.

    Raises:
        InvalidInput: the plan names a version that does not exist yet.
        PlanOutdated: another writer changed objects since.
    """
    if planned_at > newest.version:
        raise InvalidInput(f"the plan cannot be of version {planned_at}: the newest one is {newest.version}")
    if planned_at == newest.version:
        return
    between = backend.versions.read_roots(range(planned_at + 1, newest.version))
    since = [root for root in between if root is not None]
    refuse_changed(backend, planned_at, [*since, newest], is_same)


def refuse_damaged(
    backend: LakehouseBackend,
    target: Root,
    violations: Iterable[Violation],
    *,
    of_other: bool = False,
) -> None:
    """Refuse a target of which files are missing or damaged. Three ``get`` where there are some.

    ``of_other``: the target is a version of another lakehouse, which this one cannot expire.

    Raises:
        VersionExpired, SnapshotNotFound: the target is no longer kept: the files were removed.
        Corrupt: it is kept; the message names the first files.
    """
    found = list(islice(violations, FINDINGS))
    if not found:
        return
    if not of_other:
        refuse_lost(backend, newest_base(backend).root, target)
    named = "; ".join(f"{each.file}: {each.message}" for each in found)
    raise Corrupt(
        f"version {target.version} is not intact, nothing was changed: {named}",
        path=found[0].file,
        invariant=found[0].invariant,
    )


def find_damaged_definitions(backend: LakehouseBackend, changes: Sequence[Change]) -> Iterator[Violation]:
    """Yield what is wrong with the definitions that changes bring back. One ``get`` each."""
    for start in range(0, len(changes), _READ_TOGETHER):
        named = []
        for change in changes[start : start + _READ_TOGETHER]:
            if change.new_path is not None:
                name = label(change.namespace, change.name)
                named.append((change.kind, name, change.new_path))
        yield from check_definitions(backend.storage, named)
