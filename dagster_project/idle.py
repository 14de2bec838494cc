"""Whether any object of a lakehouse has changed since a step ran last.

Where none has, next to nothing is to do: what lakehouses.yaml leaves to Spark is then left to ``auto``, which starts
Spark only on other machines and for large work. A night without changes costs no Java process.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import dagster as dg

from trinitylake_core import Lakehouse, TrinityLakeError
from trinitylake_core.spec import QUIET_OPERATIONS

CONTENT: Final = "content_version"
"""The metadata of a step with the newest version that had changed objects when the step ran, and its transaction."""
_LOOKS: Final = 64
_RECORDS: Final = 4


def find_content_version(lake: Lakehouse) -> str:
    """Return the newest version that changed objects, and its transaction; the newest of all if none of 64 did.

    Another lakehouse may be made in the place of one, and have versions of the same numbers.
    One ``get`` for each version of maintenance since.
    """
    found = f"{lake.version} {lake.root_node.txn}"
    with suppress(TrinityLakeError):  # an older root is damaged, which `verify` reports
        versions = lake.history(limit=_LOOKS)
        changed = (f"{each.version} {each.txn}" for each in versions if each.operation not in QUIET_OPERATIONS)
        found = next(changed, found)
    return found


def has_seen(
    instance: dg.DagsterInstance, asset: dg.AssetKey, partition: str | None, content: str, *, before: str | None = None
) -> bool:
    """Return whether the last run of a step, other than the run ``before``, saw this content. One query."""
    only = dg.AssetRecordsFilter(asset, asset_partitions=None if partition is None else [partition])
    records = instance.fetch_materializations(only, limit=_RECORDS).records
    for record in records:
        if record.run_id != before and record.asset_materialization is not None:
            seen = record.asset_materialization.metadata.get(CONTENT)
            return seen is not None and str(seen.value) == content
    return False
