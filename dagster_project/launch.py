"""What may be chosen in the launchpad for the jobs that people start by hand."""

from typing import Any

import dagster as dg
from pydantic import Field

from dagster_project.config.settings import LakehouseSettings

_REASON = Field(description="Why; required, and stands in the history for ever.")
_ENGINE = Field(default=None, description="spark, local or auto, instead of what lakehouses.yaml says.")
_TARGET = Field(
    description="Root URI to write to; its storage options are those of `export` in lakehouses.yaml, or of `backup` if "
    "it is that one's target."
)


class RollbackConfig(dg.Config):
    """Where to roll back to: exactly one of version, timestamp and snapshot."""

    reason: str = _REASON
    version: int | None = Field(default=None, description="The version to go back to.")
    timestamp: str | None = Field(default=None, description="Or the newest version of that time, ISO 8601, UTC.")
    snapshot: str | None = Field(default=None, description="Or the version that has this name.")
    dry_run: bool = Field(default=True, description="Prove the target and show the plan; false carries it out.")
    expected_version: int | None = Field(
        default=None, description="Stop if objects changed after this version, at which the plan was made."
    )
    force: bool = Field(default=False, description="Also undo what somebody commits while this runs.")
    engine: str | None = _ENGINE


class RestoreConfig(dg.Config):
    """Which objects to bring back, and from exactly one of version, timestamp and snapshot."""

    reason: str = _REASON
    only: list[str] = Field(description="Patterns: sales.orders, 'sales.*', or sales, the namespace itself.")
    version: int | None = Field(default=None, description="As they were at this version.")
    timestamp: str | None = Field(default=None, description="Or at a time, ISO 8601, UTC.")
    snapshot: str | None = Field(default=None, description="Or in a snapshot.")
    exact: bool = Field(default=False, description="Also drop objects that match and did not exist then.")
    dry_run: bool = Field(default=True, description="Show what would change; false carries it out.")
    engine: str | None = _ENGINE


class ExportConfig(dg.Config):
    """What to copy, and where to."""

    target: str = _TARGET
    history: bool = Field(default=True, description="Every version that is kept, and the snapshots: a backup.")
    version: int | None = Field(default=None, description="Without history: this version instead of the newest.")
    dry_run: bool = Field(default=False, description="Count what would be copied, and write nothing.")
    engine: str | None = _ENGINE


class VerifyConfig(dg.Config):
    """What to verify."""

    versions: str = Field(default="newest", description="newest, all (that are kept, and snapshots), or a number.")
    definitions: bool = Field(default=True, description="Also read and parse every definition.")
    engine: str | None = _ENGINE


class UpgradeConfig(dg.Config):
    """What to write anew, and where."""

    target: str = _TARGET
    history: bool = Field(default=True, description="Every version that is kept, not only the newest.")
    definition: dict[str, Any] = Field(
        default_factory=dict, description="What differs in the new lakehouse definition, such as order: 128."
    )
    dry_run: bool = Field(default=True, description="Read and check everything, write nothing.")
    engine: str | None = _ENGINE


def defaults(settings: LakehouseSettings) -> dict[str, dict[str, Any]]:
    """Return by job what the launchpad is filled with. What is empty there has to be filled in."""
    target = settings.export.target or ""
    backup = settings.backup.target if settings.backup is not None else ""
    return {
        "rollback": {"version": None, "reason": "", "dry_run": True},
        "restore": {"only": [], "version": None, "reason": "", "exact": False, "dry_run": True},
        "export": {"target": target or backup, "history": True, "dry_run": False},
        "verify": {"versions": "newest", "definitions": True},
        "upgrade": {"target": target, "history": True, "definition": {}, "dry_run": True},
    }
