"""Our errors as PyIceberg's: what its callers catch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pyiceberg import exceptions as iceberg

from trinitylake_core import errors as ours

_SAME: Final[tuple[tuple[type[Exception], type[Exception]], ...]] = (
    (ours.CommitConflict, iceberg.CommitFailedException),
    (ours.TransactionExpired, iceberg.CommitFailedException),
    (ours.LakehouseFrozen, iceberg.CommitFailedException),
    (ours.LakehouseReplaced, iceberg.ForbiddenError),
    (ours.ReadOnly, iceberg.ForbiddenError),
    (ours.UnsafeStorage, iceberg.ForbiddenError),
    (ours.StorageDenied, iceberg.ForbiddenError),
    (ours.InvalidLocation, iceberg.ForbiddenError),
    (ours.InvalidName, iceberg.BadRequestError),
    (ours.InvalidDefinition, iceberg.ValidationError),
)

REFUSED: Final = (iceberg.CommitFailedException, iceberg.ValidationError, FileNotFoundError, ValueError)
"""The errors by which one table cannot be read or changed now; they concern no other table."""


@contextmanager
def translated() -> Iterator[None]:
    """Raise PyIceberg's exception for each of our errors that has one; the others pass as they are."""
    try:
        yield
    except ours.TrinityLakeError as error:
        for own, theirs in _SAME:
            if isinstance(error, own):
                raise theirs(str(error)) from error
        raise


def no_namespace(namespace: str) -> iceberg.NoSuchNamespaceError:
    """Return the exception for a namespace that is not there."""
    return iceberg.NoSuchNamespaceError(f"Namespace {namespace} does not exists")


def no_table(namespace: str, name: str) -> iceberg.NoSuchTableError:
    """Return the exception for a table that is not there."""
    return iceberg.NoSuchTableError(f"Table does not exist: {namespace}.{name}")


def no_view(namespace: str, name: str) -> iceberg.NoSuchViewError:
    """Return the exception for a view that is not there."""
    return iceberg.NoSuchViewError(f"View does not exist: {namespace}.{name}")
