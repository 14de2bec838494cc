"""Properties of a lakehouse: changed by a version of its own; what of them outlives a rollback (format, section 6)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trinitylake_core import spec
from trinitylake_core.commits.changes import NewDefinition, facts
from trinitylake_core.commits.commit import commit, require_writable
from trinitylake_core.commits.files import Files
from trinitylake_core.definitions import LakehouseDef, altered_lakehouse
from trinitylake_core.errors import InvalidInput
from trinitylake_core.versions import Root


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
    files: Files,
    base: Root,
    properties: Mapping[str, str | None],
    *,
    reason: str | None = None,
    dry_run: bool = False,
    before_commit: Callable[[], None] | None = None,
) -> Alteration:
    """Set properties of the lakehouse, or with ``None`` remove them, as a new version that conflicts with nothing.

    After a lost race the same properties are set in the newest definition: those set by other writers stay. One
    ``put`` more than a commit of nothing; no request if nothing changes.

    Raises:
        InvalidInput: no property, or a name or a value is not text.
        ReadOnly, UnsafeStorage, StorageError.
    """
    require_writable(files, base)
    if not properties:
        raise InvalidInput("say which properties to set or to remove")
    before = files.definition(base)
    after = altered_lakehouse(before, properties=properties)
    changes = _changes(before, after)
    version: int | None = None
    if changes and not dry_run:
        summary = facts(reason=reason, properties=dict(properties))
        change = NewDefinition(files, spec.OP_ALTER, summary, lambda newest, _: _edited(newest, properties))
        root = commit(files, base, change, before_commit=before_commit)
        version, after = root.version, files.definition(root)
    return Alteration(base.version, version, dry_run, changes, dict(sorted(after.properties.items())), reason)


def _edited(newest: LakehouseDef, properties: Mapping[str, Any]) -> LakehouseDef:
    return altered_lakehouse(newest, properties=properties)


def _changes(before: LakehouseDef, after: LakehouseDef) -> dict[str, tuple[str | None, str | None]]:
    names = sorted({*before.properties, *after.properties})
    pairs = {name: (before.properties.get(name), after.properties.get(name)) for name in names}
    return {name: (old, new) for name, (old, new) in pairs.items() if old != new}
