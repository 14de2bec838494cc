"""TrinityLake lakehouses: the storage format, the tree, transactions and versions. No Spark, no Dagster.

Every name is imported when it is first asked for: a program that only needs to know its way (the help text of the
command line) does not wait for Arrow, and one that is interrupted while it loads can report that (:mod:`launch`).
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # type checkers know the name; to import typing takes longer than everything else here

if TYPE_CHECKING:
    from typing import Any, Final

    from trinitylake_core.catalog import ObjectEntry
    from trinitylake_core.check import Violation
    from trinitylake_core.commits.frozen import Freeze
    from trinitylake_core.diff import Change, NotCompared
    from trinitylake_core.errors import (
        AlreadyExists,
        ClocksDisagree,
        CommitConflict,
        Corrupt,
        CorruptDefinition,
        CorruptNode,
        FileMissing,
        InvalidDefinition,
        InvalidInput,
        InvalidLocation,
        InvalidName,
        LakehouseFrozen,
        LakehouseReplaced,
        NamespaceNotEmpty,
        NotALakehouse,
        NotFound,
        ObjectNotFound,
        OutcomeUnknown,
        PlanOutdated,
        ReadOnly,
        Refused,
        SnapshotNotFound,
        StorageDenied,
        StorageError,
        StorageFull,
        TransactionExpired,
        TransactionNotFound,
        TrinityLakeError,
        UnsafeStorage,
        VersionExpired,
        VersionNotFound,
    )
    from trinitylake_core.lakehouse import Alteration, Lakehouse, Stats
    from trinitylake_core.object_info import NamespaceInfo, TableInfo, ViewInfo
    from trinitylake_core.recovery.plan import RecoveryPlan
    from trinitylake_core.recovery.target import RecoveryTarget
    from trinitylake_core.snapshots import SnapshotInfo
    from trinitylake_core.transactions.transaction import SERIALIZABLE, SNAPSHOT, Transaction
    from trinitylake_core.versions import VersionInfo

__all__ = [
    "SERIALIZABLE",
    "SNAPSHOT",
    "AlreadyExists",
    "Alteration",
    "Change",
    "ClocksDisagree",
    "CommitConflict",
    "Corrupt",
    "CorruptDefinition",
    "CorruptNode",
    "FileMissing",
    "Freeze",
    "InvalidDefinition",
    "InvalidInput",
    "InvalidLocation",
    "InvalidName",
    "Lakehouse",
    "LakehouseFrozen",
    "LakehouseReplaced",
    "NamespaceInfo",
    "NamespaceNotEmpty",
    "NotALakehouse",
    "NotCompared",
    "NotFound",
    "ObjectEntry",
    "ObjectNotFound",
    "OutcomeUnknown",
    "PlanOutdated",
    "ReadOnly",
    "RecoveryPlan",
    "RecoveryTarget",
    "Refused",
    "SnapshotInfo",
    "SnapshotNotFound",
    "Stats",
    "StorageDenied",
    "StorageError",
    "StorageFull",
    "TableInfo",
    "Transaction",
    "TransactionExpired",
    "TransactionNotFound",
    "TrinityLakeError",
    "UnsafeStorage",
    "VersionExpired",
    "VersionInfo",
    "VersionNotFound",
    "ViewInfo",
    "Violation",
]

_HOMES: Final = {
    "Alteration": "lakehouse",
    "Change": "diff",
    "Freeze": "commits.frozen",
    "NotCompared": "diff",
    "Lakehouse": "lakehouse",
    "NamespaceInfo": "object_info",
    "ObjectEntry": "catalog",
    "RecoveryPlan": "recovery.plan",
    "RecoveryTarget": "recovery.target",
    "SERIALIZABLE": "transactions.transaction",
    "SNAPSHOT": "transactions.transaction",
    "SnapshotInfo": "snapshots",
    "Stats": "lakehouse",
    "TableInfo": "object_info",
    "Transaction": "transactions.transaction",
    "VersionInfo": "versions",
    "ViewInfo": "object_info",
    "Violation": "check",
}


def __getattr__(name: str) -> Any:
    """Return a public name, whose module is imported now."""
    if name == "__version__":
        return import_module("importlib.metadata").version("trinitylake-maintenance")
    if name not in __all__:
        others = import_module(f"{__name__}.other_names")
        raise AttributeError(others.explain_missing(f"module {__name__!r}", name, others.OF_THE_PACKAGE, __all__))
    found = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES.get(name, 'errors')}"), name)
    return found


def __dir__() -> list[str]:
    """Return the public names."""
    return __all__
