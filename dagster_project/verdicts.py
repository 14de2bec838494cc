"""What Dagster was last told about an asset check, by whichever run."""

from __future__ import annotations

import dagster as dg
from dagster._core.storage.asset_check_execution_record import COMPLETED_ASSET_CHECK_EXECUTION_RECORD_STATUSES


def last_verdict(instance: dg.DagsterInstance, asset: dg.AssetKey, check: str) -> bool | None:
    """Return whether a check passed when it was last carried out; ``None`` if it never was.

    The newest record may be of a run that only plans to check, or that was cancelled before it did.
    """
    records = instance.event_log_storage.get_asset_check_execution_history(
        dg.AssetCheckKey(asset, check), limit=1, status=COMPLETED_ASSET_CHECK_EXECUTION_RECORD_STATUSES
    )
    evaluations = [each.evaluation for each in records]
    return next((each.passed for each in evaluations if isinstance(each, dg.AssetCheckEvaluation)), None)
