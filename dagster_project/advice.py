"""What to do about an error, said where the run failed; and whether repeating the step can help."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import dagster as dg

from trinitylake_core import errors

RETRY: Final = dg.RetryPolicy(max_retries=2, delay=30, backoff=dg.Backoff.EXPONENTIAL)
"""For work that may be done twice: it goes on where it stopped, or finds nothing left to do."""
_ADVICE: Final[tuple[tuple[type[errors.TrinityLakeError], str], ...]] = (
    (errors.NotALakehouse, "Check `root` in lakehouses.yaml."),
    (errors.VersionExpired, "The history (asset root_version_snapshots) lists what can still be read."),
    (errors.NotFound, "The history (asset root_version_snapshots) lists the versions and snapshots that there are."),
    (errors.InvalidInput, "Correct the run configuration or lakehouses.yaml, and launch again."),
    (errors.AlreadyExists, "Choose another name or target, or remove what is there."),
    (
        errors.PlanOutdated,
        "Somebody committed meanwhile: make a new plan with `dry_run: true`, look at it, launch again.",
    ),
    (errors.CommitConflict, "Somebody else committed first: launch again."),
    (errors.ReadOnly, "Upgrade the lakehouse to another root with the job `upgrade` first."),
    (errors.Refused, "The message says what would allow it."),
    (errors.Corrupt, "Run the job `verify`, then `rollback` to a version that is whole, or restore from an export."),
    (errors.StorageDenied, "Check the credentials in storage_options of lakehouses.yaml, and their permissions."),
    (errors.UnsafeStorage, "This storage ignores exclusive creation and must not be written to: use another one."),
    (errors.StorageError, "The storage failed: launch again when it is back."),
)
_FOR_EVER: Final = (errors.StorageDenied, errors.UnsafeStorage)


def advice(error: errors.TrinityLakeError) -> str:
    """Return what to do next about an error."""
    return next((text for kind, text in _ADVICE if isinstance(error, kind)), "")


def failure(error: errors.TrinityLakeError) -> dg.Failure:
    """Return a failure that tells the error and what to do. Only a failing storage or a lost race is worth a retry."""
    passes = isinstance(error, errors.StorageError) and not isinstance(error, _FOR_EVER)
    again = passes or isinstance(error, errors.CommitConflict | errors.PlanOutdated)
    return dg.Failure(f"{error}\n{advice(error)}".strip(), allow_retries=again)


@contextmanager
def advised() -> Iterator[None]:
    """Turn errors of the block into failures that say what to do. A cancelled step is never retried."""
    try:
        yield
    except dg.DagsterExecutionInterruptedError:
        raise dg.Failure("the run was cancelled", allow_retries=False) from None
    except errors.TrinityLakeError as error:
        raise failure(error) from error
