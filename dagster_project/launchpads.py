"""The launchpads of the jobs that people start by hand: their options, what they start with, and what they refuse.

Dagster's webserver checks names, types and choices, and marks them in the editor. Everything else is checked by
``check``, when somebody launches, before there is a run.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import dagster as dg
from pydantic import Field

from dagster_project.config.settings import LakehouseSettings
from dagster_project.metadata.recovery import DEFINITION_FIELDS
from pipelines import history, restore, rollback, undo, verify, version_ref
from trinitylake_core import InvalidInput, spec
from trinitylake_core.recovery.recover import required
from trinitylake_core.storage import normalise_root
from trinitylake_core.versions import to_millis

_ENGINES: Final = dg.Enum("Engine", [dg.EnumValue(each) for each in ("spark", "local", "auto")])
_AUTO: Final = "auto"
_MOST: Final = 1000
"""So many rows a table may have that the webserver still shows quickly."""
_REASON = Field(description="Why; required, and recorded in the history.")
_ENGINE = Field(default=None, description="spark, local or auto; overrides lakehouses.yaml.")
_TARGET = Field(
    description="Root URI to write to. Its storage options are those of `export` in lakehouses.yaml, or those of "
    "`backup` if it is the target of the backup."
)


class Launchpad(dg.Config):
    """The options of a job that somebody starts by hand."""

    def check(self, known: LakehouseSettings | None) -> None:
        """Raise ``InvalidInput`` for what can be seen to be wrong without opening anything.

        ``known``: the settings of the lakehouse; in a fleet (``None``) they are looked up when the run starts.
        """


def fields_of(launchpad: type[Launchpad]) -> dict[str, dg.Field]:
    """Return the fields of a launchpad for Dagster, with the engines as a choice."""
    fields: dict[str, dg.Field] = dict(launchpad.to_fields_dict())
    if "engine" in fields:
        described = fields["engine"].description
        fields["engine"] = dg.Field(dg.Noneable(_ENGINES), default_value=None, is_required=False, description=described)
    return fields


def _arguments(launchpad: Launchpad) -> dict[str, Any]:
    given = launchpad.model_dump()
    return given | {"engine": given["engine"] or _AUTO}


def _refuse_no_time(text: str | None) -> None:
    if text is not None:
        to_millis(text)


class RollbackConfig(Launchpad):
    """Where to roll back to: exactly one of version, timestamp and snapshot."""

    reason: str = _REASON
    version: int | None = Field(default=None, description="The version to go back to.")
    timestamp: str | None = Field(
        default=None, description="Or the version that was the newest at that time, ISO 8601, UTC."
    )
    snapshot: str | None = Field(default=None, description="Or the version that this snapshot names.")
    dry_run: bool = Field(default=True, description="Verify the target and show the plan; false carries it out.")
    expected_version: int | None = Field(
        default=None, description="The version at which the plan was made; stop if objects changed after it."
    )
    force: bool = Field(default=False, description="Also undo what is committed while this runs.")
    engine: str | None = _ENGINE

    def check(self, known: LakehouseSettings | None) -> None:  # noqa: D102
        rollback.Config(**_arguments(self))
        _refuse_no_time(self.timestamp)


class RestoreConfig(Launchpad):
    """Which objects to bring back, and from exactly one of version, timestamp and snapshot."""

    reason: str = _REASON
    only: list[str] = Field(description="Patterns: sales.orders, 'sales.*', or sales for the namespace itself.")
    version: int | None = Field(default=None, description="As they were at this version.")
    timestamp: str | None = Field(default=None, description="Or as they were at this time, ISO 8601, UTC.")
    snapshot: str | None = Field(default=None, description="Or as they were in this snapshot.")
    source: str | None = Field(
        default=None,
        description="Root URI of another lakehouse to bring them from, such as the backup; the version is one of its "
        "own, by default its newest. Its storage options are those of the backup, or of `export`.",
    )
    exact: bool = Field(default=False, description="Also drop matching objects that did not exist then.")
    damaged: bool = Field(
        default=False,
        description="With `source`: also bring back matching objects whose definition file is missing or damaged.",
    )
    dry_run: bool = Field(default=True, description="Show what would change; false carries it out.")
    expected_version: int | None = Field(
        default=None, description="The version at which the plan was made; stop if objects changed after it."
    )
    engine: str | None = _ENGINE

    def check(self, known: LakehouseSettings | None) -> None:  # noqa: D102
        restore.Config(**_arguments(self))
        _refuse_no_time(self.timestamp)
        if self.source is not None:
            normalise_root(self.source)


class UndoConfig(Launchpad):
    """What to undo: at least one of since, author and matching."""

    reason: str = _REASON
    since: str | None = Field(
        default=None, description="What was committed then or later: ISO 8601, UTC, such as 2026-11-20T03:00:00Z."
    )
    author: str | None = Field(default=None, description="Whose commits, with * and ?.")
    matching: str | None = Field(default=None, description="Commits with this text in their reason.")
    others: bool = Field(default=False, description="Also undo what others committed after it.")
    dry_run: bool = Field(default=True, description="Show what was found and the plan; false carries it out.")
    expected_version: int | None = Field(
        default=None, description="The version at which the plan was made; stop if objects changed after it."
    )
    force: bool = Field(default=False, description="Also undo what is committed while this runs.")
    engine: str | None = _ENGINE

    def check(self, known: LakehouseSettings | None) -> None:  # noqa: D102
        undo.Config(**_arguments(self))


class HistoryConfig(Launchpad):
    """Which versions to list."""

    limit: int = Field(default=200, description=f"At most so many, the newest first; up to {_MOST}.")
    since: str | None = Field(
        default=None, description="Only those created then or later: ISO 8601, UTC, or an age such as 2h or 3d."
    )
    author: str | None = Field(default=None, description="Only those of whom this matches, with * and ?.")
    matching: str | None = Field(default=None, description="Only those with this text in their reason.")
    operations: list[str] = Field(
        default_factory=list, description="Only those made by one of these: commit, compact, rollback, ..."
    )

    def check(self, known: LakehouseSettings | None) -> None:  # noqa: D102
        _refuse_too_many(self.limit)
        if unknown := sorted({*self.operations} - {*spec.OPERATIONS}):
            raise InvalidInput(f"operations: unknown {', '.join(unknown)}; there are {', '.join(spec.OPERATIONS)}")
        self.filters()

    def filters(self) -> history.Config:
        """Return the same as a history wants it. Raises ``InvalidInput``."""
        since = version_ref.moment(self.since)
        text = since.isoformat() if isinstance(since, datetime) else since
        return history.Config(self.limit, text, self.author, self.matching, tuple(self.operations))


class DiffConfig(Launchpad):
    """Which versions to compare. A version is a number, HEAD, HEAD~3, a snapshot, a time, or an age such as -2h."""

    before: str = Field(description=f"The old version: {version_ref.MEANING}.")
    after: str = Field(default="HEAD", description="The new version, likewise.")
    other: str | None = Field(
        default=None, description="Root URI of the lakehouse of the new version, if it is another one: the backup."
    )
    limit: int = Field(default=500, description=f"So many changes are shown, up to {_MOST}; all are counted.")
    engine: str | None = _ENGINE

    def check(self, known: LakehouseSettings | None) -> None:  # noqa: D102
        _refuse_too_many(self.limit)
        for name, text in (("before", self.before), ("after", self.after)):
            if not text.strip():
                raise InvalidInput(f"say which version to compare: `{name}` is {version_ref.MEANING}")
        if self.other is not None:
            normalise_root(self.other)


def _refuse_too_many(limit: int) -> None:
    if not 1 <= limit <= _MOST:
        raise InvalidInput(f"limit must be from 1 to {_MOST}, not {limit}")


class ExportConfig(Launchpad):
    """What to copy, and where to."""

    target: str = _TARGET
    history: bool = Field(default=True, description="Copy all retained versions and snapshots: a backup.")
    version: int | None = Field(default=None, description="Copy only this version; overrides history.")
    dry_run: bool = Field(default=False, description="Count what would be copied; write nothing.")
    engine: str | None = _ENGINE

    def check(self, known: LakehouseSettings | None) -> None:  # noqa: D102
        if self.target or known is not None:
            normalise_root(chosen_target(self.target, known))


class VerifyConfig(Launchpad):
    """What to verify."""

    versions: str = Field(
        default="newest", description="newest, all (all retained versions and snapshots), or a version number."
    )
    definitions: bool = Field(default=True, description="Also read and parse every definition.")
    engine: str | None = _ENGINE

    def check(self, known: LakehouseSettings | None) -> None:  # noqa: D102
        verify.Config(self.which)

    @property
    def which(self) -> str | int:
        """The versions, as a verification wants them."""
        return int(self.versions) if self.versions.isascii() and self.versions.isdecimal() else self.versions


class UpgradeConfig(Launchpad):
    """What to rewrite in the canonical format, and where."""

    target: str = _TARGET
    history: bool = Field(default=True, description="Upgrade all retained versions, not only the newest.")
    definition: dict[str, Any] = Field(
        default_factory=dict, description="Fields to change in the new lakehouse definition, such as order: 128."
    )
    dry_run: bool = Field(default=True, description="Read and check everything; write nothing.")
    engine: str | None = _ENGINE

    def check(self, known: LakehouseSettings | None) -> None:  # noqa: D102
        refuse_unknown_fields(self.definition)
        if self.target or known is not None:
            normalise_root(chosen_target(self.target, known))


class AlterConfig(Launchpad):
    """Which properties of the lakehouse to set or to remove."""

    reason: str = _REASON
    properties: dict[str, str] = Field(
        default_factory=dict, description="Values by name, such as maintenance.delete.enabled: 'false'."
    )
    remove: list[str] = Field(default_factory=list, description="Names of properties to remove.")
    dry_run: bool = Field(default=True, description="Show what would change; false carries it out.")

    def check(self, known: LakehouseSettings | None) -> None:  # noqa: D102
        required(self.reason)
        if both := sorted(self.properties.keys() & set(self.remove)):
            raise InvalidInput(f"{', '.join(both)}: either a value or `remove`")


def target_of(settings: LakehouseSettings) -> str:
    """Return where a lakehouse is copied to unless somebody says otherwise: its target of exports, or its backup."""
    return settings.export.target or ("" if settings.backup is None else settings.backup.target)


def chosen_target(chosen: str, settings: LakehouseSettings | None) -> str:
    """Return where to write to: what was chosen, or else what the launchpad of one lakehouse starts with."""
    uri = chosen or ("" if settings is None else target_of(settings))
    if not uri:
        raise InvalidInput("`target` is required: the root URI to write to, such as s3://backup/lake")
    return uri


def refuse_unknown_fields(changed: Mapping[str, Any]) -> None:
    """Raise ``InvalidInput`` if a lakehouse definition has no such field."""
    unknown = sorted(changed.keys() - DEFINITION_FIELDS)
    if unknown:
        raise InvalidInput(
            f"definition: unknown field {', '.join(unknown)}; the fields are {', '.join(sorted(DEFINITION_FIELDS))}"
        )


def defaults(settings: LakehouseSettings | None) -> dict[str, dict[str, Any]]:
    """Return the configuration that the launchpad of each job starts with. Empty fields have to be filled in.

    In a fleet (``None``) an empty target is that of the lakehouse, looked up when the run starts.
    """
    target = "" if settings is None else settings.export.target or ""
    return {
        "rollback": {"version": None, "reason": "", "dry_run": True},
        "restore": {"only": [], "version": None, "reason": "", "exact": False, "dry_run": True},
        "undo": {"author": None, "since": None, "matching": None, "reason": "", "others": False, "dry_run": True},
        "history": {"limit": 200},
        "diff": {"before": "HEAD~1", "after": "HEAD"},
        "export": {"target": "" if settings is None else target_of(settings), "history": True, "dry_run": False},
        "verify": {"versions": "newest", "definitions": True},
        "upgrade": {"target": target, "history": True, "definition": {}, "dry_run": True},
        "alter": {"properties": {}, "remove": [], "reason": "", "dry_run": True},
    }
