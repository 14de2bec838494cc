"""TrinityLake lakehouses: the storage format, the tree, transactions and versions. No Spark, no Dagster."""

from trinitylake_core.catalog import ObjectEntry
from trinitylake_core.check import Violation
from trinitylake_core.diff import Change, NotCompared
from trinitylake_core.errors import (
    AlreadyExists,
    CommitConflict,
    Corrupt,
    CorruptDefinition,
    CorruptNode,
    FileMissing,
    InvalidDefinition,
    InvalidInput,
    InvalidLocation,
    InvalidName,
    NamespaceNotEmpty,
    NotALakehouse,
    NotFound,
    ObjectNotFound,
    PlanOutdated,
    ReadOnly,
    Refused,
    SnapshotNotFound,
    StorageDenied,
    StorageError,
    TransactionExpired,
    TransactionNotFound,
    TrinityLakeError,
    UnsafeStorage,
    VersionExpired,
    VersionNotFound,
)
from trinitylake_core.lakehouse import Lakehouse, Stats
from trinitylake_core.properties import Alteration
from trinitylake_core.recovery.recover import RecoveryPlan
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
    "CommitConflict",
    "Corrupt",
    "CorruptDefinition",
    "CorruptNode",
    "FileMissing",
    "InvalidDefinition",
    "InvalidInput",
    "InvalidLocation",
    "InvalidName",
    "Lakehouse",
    "NamespaceNotEmpty",
    "NotALakehouse",
    "NotCompared",
    "NotFound",
    "ObjectEntry",
    "ObjectNotFound",
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
    "Transaction",
    "TransactionExpired",
    "TransactionNotFound",
    "TrinityLakeError",
    "UnsafeStorage",
    "VersionExpired",
    "VersionInfo",
    "VersionNotFound",
    "Violation",
]
