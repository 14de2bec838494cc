"""The asset checks of one lakehouse."""

from itertools import islice
from typing import Final

import dagster as dg

from dagster_project import reports
from dagster_project.assets import HEALTH, key
from dagster_project.resources import open_lakehouse
from dagster_project.settings import LakehouseSettings

INTEGRITY: Final = "integrity"


def checks_of(settings: LakehouseSettings) -> list[dg.AssetChecksDefinition]:
    """Return the asset checks of one lakehouse."""
    return [integrity(settings)]


def integrity(settings: LakehouseSettings) -> dg.AssetChecksDefinition:
    """Return the check that nothing of the newest version is broken. It stops whatever comes after."""

    @dg.asset_check(
        asset=key(settings, HEALTH),
        name=INTEGRITY,
        blocking=True,
        description="Reads every node of the newest version and proves each invariant of the format. Findings are "
        "listed with what to do. After a finding nothing that rewrites or deletes runs.",
    )
    def check() -> dg.AssetCheckResult:
        lake = open_lakehouse(settings)
        found = list(islice(lake.check(), reports.FINDINGS_LIMIT + 1))
        shown = found[: reports.FINDINGS_LIMIT]
        metadata = reports.of_violations(shown, lake.version, more=len(found) > len(shown))
        return dg.AssetCheckResult(passed=not found, metadata=metadata, description=metadata["outcome"])

    return check
