"""The launchpads of the jobs that people start by hand: their options, and what they start with."""

from typing import Any

import dagster as dg
from pydantic import Field

from dagster_project.config.settings import LakehouseSettings

_REASON = Field(description="Why; required, and recorded in the history.")
_ENGINE = Field(default=None, description="spark, local or auto; overrides lakehouses.yaml.")
_TARGET = Field(
    description="Root URI to write to. Its storage options are those of `export` in lakehouses.yaml, or those of "
    "`backup` if it is the target of the backup."
)


class RollbackConfig(dg.Config):
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


class RestoreConfig(dg.Config):
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
    dry_run: bool = Field(default=True, description="Show what would change; false carries it out.")
    expected_version: int | None = Field(
        default=None, description="The version at which the plan was made; stop if objects changed after it."
    )
    engine: str | None = _ENGINE


class ExportConfig(dg.Config):
    """What to copy, and where to."""

    target: str = _TARGET
    history: bool = Field(default=True, description="Copy all retained versions and snapshots: a backup.")
    version: int | None = Field(default=None, description="Copy only this version; overrides history.")
    dry_run: bool = Field(default=False, description="Count what would be copied; write nothing.")
    engine: str | None = _ENGINE


class VerifyConfig(dg.Config):
    """What to verify."""

    versions: str = Field(
        default="newest", description="newest, all (all retained versions and snapshots), or a version number."
    )
    definitions: bool = Field(default=True, description="Also read and parse every definition.")
    engine: str | None = _ENGINE


class UpgradeConfig(dg.Config):
    """What to rewrite in the canonical format, and where."""

    target: str = _TARGET
    history: bool = Field(default=True, description="Upgrade all retained versions, not only the newest.")
    definition: dict[str, Any] = Field(
        default_factory=dict, description="Fields to change in the new lakehouse definition, such as order: 128."
    )
    dry_run: bool = Field(default=True, description="Read and check everything; write nothing.")
    engine: str | None = _ENGINE


class AlterConfig(dg.Config):
    """Which properties of the lakehouse to set or to remove."""

    reason: str = _REASON
    properties: dict[str, str] = Field(
        default_factory=dict, description="Values by name, such as maintenance.delete.enabled: 'false'."
    )
    remove: list[str] = Field(default_factory=list, description="Names of properties to remove.")
    dry_run: bool = Field(default=True, description="Show what would change; false carries it out.")


def target_of(settings: LakehouseSettings) -> str:
    """Return where a lakehouse is copied to unless somebody says otherwise: its target of exports, or its backup."""
    return settings.export.target or ("" if settings.backup is None else settings.backup.target)


def defaults(settings: LakehouseSettings | None) -> dict[str, dict[str, Any]]:
    """Return the configuration that the launchpad of each job starts with. Empty fields have to be filled in.

    In a fleet (``None``) an empty target is that of the lakehouse, looked up when the run starts.
    """
    target = "" if settings is None else settings.export.target or ""
    return {
        "rollback": {"version": None, "reason": "", "dry_run": True},
        "restore": {"only": [], "version": None, "reason": "", "exact": False, "dry_run": True},
        "export": {"target": "" if settings is None else target_of(settings), "history": True, "dry_run": False},
        "verify": {"versions": "newest", "definitions": True},
        "upgrade": {"target": target, "history": True, "definition": {}, "dry_run": True},
        "alter": {"properties": {}, "remove": [], "reason": "", "dry_run": True},
    }
