"""On-disk constants of the TrinityLake format. Do not change any of them: they are on disk."""

from __future__ import annotations

from typing import Final

MAJOR_VERSION: Final = 0
"""The only major version of the format that this library reads and writes."""

# Columns of a node file (format, section 4).
KEY: Final = "key"
PVALUE: Final = "pvalue"
PNODE: Final = "pnode"
TXN: Final = "txn"
COLUMNS: Final = (KEY, PVALUE, PNODE, TXN)
CHECKSUM_METADATA: Final = b"trinitylake.checksum"

# System-internal keys (format, section 3).
LAKEHOUSE_DEF: Final = "lakehouse_def"
PREVIOUS_ROOT: Final = "previous_root"
PREVIOUS_TXN: Final = "previous_txn"
ROLLBACK_FROM_ROOT: Final = "rollback_from_root"
VERSION: Final = "version"
CREATED_AT_MILLIS: Final = "created_at_millis"
N_KEYS: Final = "n_keys"
OLDEST_VERSION: Final = "oldest_version"
VOID_BEFORE_MILLIS: Final = "void_before_millis"
TABLES_VOID_BEFORE_MILLIS: Final = "tables_void_before_millis"
REQUESTS_UNTIL_MILLIS: Final = "requests_until_millis"
OPERATION: Final = "operation"
TXN_ID: Final = "txn"
SUMMARY: Final = "summary"
HEIGHT: Final = "height"
SUBTREE_KEYS: Final = "subtree_keys"
SUBTREE_MESSAGES: Final = "subtree_messages"
CHILD_KEYS: Final = "child_keys"
CHILD_MESSAGES: Final = "child_messages"
SELF: Final = "self"
NAMESPACES: Final = "namespaces"
TABLES: Final = "tables"
VIEWS: Final = "views"
COUNT_BOUNDS: Final = "count_bounds"
BULK_OPERATION: Final = "bulk_operation"
FITS: Final = "fits"
SETTLED_AT_MILLIS: Final = "settled_at_millis"

# Object definition schema IDs (format, section 3).
SCHEMA_NAMESPACE: Final = 1
SCHEMA_TABLE: Final = 2
SCHEMA_VIEW: Final = 3

# Files with a fixed name (format, section 2).
HINT_FILE: Final = "_latest_hint.txt"
BOUNDARY_FILE: Final = "_oldest_version.txt"
VERSION_BITS: Final = 32
MAX_VERSION: Final = 2**VERSION_BITS - 1
SDK_VERSION_BITS: Final = 64
FILE_NAME_MAX_BYTES: Final = 255
"""What every supported file system takes as one path segment."""

# Defaults of a lakehouse definition (format, section 5).
DEFAULT_ORDER: Final = 128
MIN_ORDER: Final = 3
DEFAULT_NAME_MAX_SIZE_BYTES: Final = 100
DEFAULT_NODE_FILE_MAX_SIZE_BYTES: Final = 1048576
DEFAULT_TXN_TTL_MILLIS: Final = 604_800_000

# Properties of a lakehouse that writers heed (format, section 5).
COMMIT_BUFFER_BYTES: Final = "commit.buffer.max-bytes"
DEFAULT_COMMIT_BUFFER_BYTES: Final = 32_768
"""Between 16 and 32 KiB a commit writes the fewest bytes, flushes included (docs/benchmarks/sizes.md)."""

# What may stand in the `operation` row of a root.
OP_CREATE: Final = "create"
OP_COMMIT: Final = "commit"
OP_COMPACT: Final = "compact"
OP_ROLLBACK: Final = "rollback"
OP_RESTORE: Final = "restore"
OP_EXPIRE: Final = "expire"
OP_SNAPSHOT: Final = "snapshot"
OP_LOAD: Final = "load"
OP_UPGRADE: Final = "upgrade"
OP_CLEAN: Final = "clean"
OP_ABORT: Final = "abort"
OP_ALTER: Final = "alter"
OP_BULK: Final = "bulk"
"""In a root: that of a transaction whose messages are not all in it; the row ``bulk_operation`` says which it is."""
OPERATIONS: Final = (
    OP_CREATE, OP_COMMIT, OP_COMPACT, OP_ROLLBACK, OP_RESTORE, OP_EXPIRE, OP_SNAPSHOT, OP_LOAD, OP_UPGRADE, OP_CLEAN,
    OP_ABORT, OP_ALTER,
)  # fmt: skip

LAKEHOUSE_DEF_COPY: Final = "lakehouse_def_copy"
"""System row of a root: ``<path> <base64>`` of a small lakehouse definition, to save its request."""
LAKEHOUSE_DEF_COPY_MAX_BYTES: Final = 1024
TXN_STATE: Final = "txn_state"
"""System row of the running root of a saved transaction: what it read, as JSON."""
TRANSACTIONAL_OPERATIONS: Final = frozenset({OP_COMMIT, OP_RESTORE, OP_CREATE, OP_UPGRADE})
"""Roots whose own messages are everything they changed."""
QUIET_OPERATIONS: Final = frozenset({OP_COMPACT, OP_SNAPSHOT, OP_EXPIRE, OP_CLEAN, OP_ABORT, OP_ALTER})
"""Roots that change no key's meaning and conflict with nothing."""
MAINTENANCE_PROPERTIES: Final = "maintenance."
"""How the properties of a lakehouse begin that restrict jobs; no rollback changes them."""
DELETE_ENABLED: Final = "maintenance.delete.enabled"
"""The property with which a lakehouse forbids all jobs to delete: ``false``."""
FREEZE: Final = "maintenance.freeze"
"""The property of a frozen lakehouse: who froze it, why, since when and until when, as JSON (format, section 6)."""
LOST_VERSIONS: Final = "maintenance.lost.versions"
"""The property that names the versions which are damaged for good, with commas between: no job needs them any more."""
HISTORY_ACCEPTED: Final = "maintenance.history.accepted"
"""The property that says when an operator accepted that the lakehouse went back in time, in epoch milliseconds."""
MAINTENANCE_KNOWN: Final = (DELETE_ENABLED, FREEZE, LOST_VERSIONS, HISTORY_ACCEPTED)
"""The properties that jobs obey: another one that begins so protects nothing, and is refused when it is set."""
FROZEN_OPERATIONS: Final = frozenset({OP_COMMIT, OP_LOAD})
"""What a frozen lakehouse refuses; maintenance and recovery go on."""

REQUESTS_AHEAD_MILLIS: Final = 60_000
"""So far the time in the key of a request may be ahead of the time of the version that it becomes (section 6)."""
