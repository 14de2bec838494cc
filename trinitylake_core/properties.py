"""Properties of a lakehouse: changed by a version of its own; what of them outlives a rollback (format, section 6)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from trinitylake_core import spec
from trinitylake_core.commits.changes import NewDefinition, commit_summary
from trinitylake_core.commits.commit import commit, now_millis, require_writable, whoami
from trinitylake_core.commits.files import LakehouseStore
from trinitylake_core.commits.frozen import Freeze, freeze_of, parse_freeze, refuse_frozen
from trinitylake_core.definitions import LakehouseDef, altered_lakehouse
from trinitylake_core.errors import InvalidInput
from trinitylake_core.versions import Root, from_millis


@dataclass(frozen=True, slots=True)
class Alteration:
    """What a change of properties did, or on a dry run would do.

    Attributes:
        version: the newest version, which it was planned at.
        version_after: the version it became; ``None`` on a dry run, or when there was nothing to change.
        changes: value before and after of each property that changes; ``None`` where there is none.
        properties: all properties afterwards.
    """

    version: int
    version_after: int | None
    dry_run: bool
    changes: dict[str, tuple[str | None, str | None]]
    properties: dict[str, str]
    reason: str | None


def alter(
    files: LakehouseStore,
    base: Root,
    properties: Mapping[str, str | None],
    *,
    reason: str | None = None,
    dry_run: bool = False,
    before_commit: Callable[[], None] | None = None,
) -> Alteration:
    """Do the work of :meth:`Lakehouse.alter`, by a version that conflicts with nothing.

    After a lost race the same properties are set in the newest definition: those set by other writers stay. One
    ``put`` more than a commit of nothing; no request if nothing changes.
    """
    require_writable(files, base)
    if not properties:
        raise InvalidInput("name at least one property to set or to remove")
    frozen = properties.get(spec.FREEZE)
    if frozen is not None and parse_freeze(frozen) is None:
        raise InvalidInput(f"`freeze` sets the property {spec.FREEZE}, and `thaw` removes it")
    before = files.definition(base)
    after = altered_lakehouse(before, properties=properties)
    changes = _changes(before, after)
    version: int | None = None
    if changes and not dry_run:
        summary = commit_summary(reason=reason, properties=dict(properties))
        change = NewDefinition(
            files, spec.OP_ALTER, summary, lambda newest, _: altered_lakehouse(newest, properties=properties)
        )
        root = commit(files, base, change, before_commit=before_commit)
        version, after = root.version, files.definition(root)
    return Alteration(base.version, version, dry_run, changes, dict(sorted(after.properties.items())), reason)


def freeze(
    files: LakehouseStore,
    base: Root,
    reason: str,
    until: datetime | None,
    *,
    before_commit: Callable[[], None] | None = None,
) -> Freeze:
    """Do the work of :meth:`Lakehouse.freeze`, by a version that conflicts with nothing. Costs as :func:`alter`."""
    require_writable(files, base)
    new = Freeze(reason, whoami(), from_millis(now_millis()), until)
    properties = {spec.FREEZE: new.property()}
    if until is not None and until <= new.since:
        raise InvalidInput("the freeze would have ended already: its end lies in the past")

    def edit(newest: LakehouseDef, _: Root) -> LakehouseDef:
        before = freeze_of(newest)
        if before is not None and before.author != new.author:
            refuse_frozen(files)
        return altered_lakehouse(newest, properties=properties)

    commit(
        files,
        base,
        NewDefinition(files, spec.OP_ALTER, commit_summary(reason=reason, properties=properties), edit),
        before_commit=before_commit,
        urgent=True,
    )
    return new


def _changes(before: LakehouseDef, after: LakehouseDef) -> dict[str, tuple[str | None, str | None]]:
    names = sorted({*before.properties, *after.properties})
    pairs = {name: (before.properties.get(name), after.properties.get(name)) for name in names}
    return {name: (old, new) for name, (old, new) in pairs.items() if old != new}
