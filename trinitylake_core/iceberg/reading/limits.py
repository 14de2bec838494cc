"""What a file of a table may be at the most. A table with a file beyond that is unreadable, by name.

The limits are far above what engines write. What a file costs, in memory and time, is bounded by the bytes that its
writer stored: a small file never unpacks to a large one.
"""

from __future__ import annotations

from typing import Final

METADATA_BYTES: Final = 64 << 20
"""Bytes of a file of table metadata, packed and unpacked: some 90,000 snapshots."""
METADATA_ELEMENTS: Final = 1_000_000
"""Values of a file of table metadata: objects and arrays, and what is in them after the first."""
METADATA_DEPTH: Final = 100
"""How deep objects and arrays of table metadata lie in each other; a column that is a struct adds three levels."""

AVRO_BYTES: Final = 256 << 20
"""Bytes of a manifest or manifest list as it is stored; engines begin a new manifest at 8 MiB."""
BLOCK_BYTES: Final = 256 << 20
"""Bytes of a block, unpacked: so much is in memory at once. PyIceberg writes a manifest list as one block."""
ROWS: Final = 2_000_000
"""Rows of a manifest or manifest list."""
HEADER_ENTRIES: Final = 1_000
"""Entries in the header of an Avro file."""
SCHEMA_BYTES: Final = 4 << 20
"""Bytes of the schema in such a header."""
SCHEMA_TYPES: Final = 10_000
"""Types in the schema of an Avro file; a partition field is three."""
SCHEMA_DEPTH: Final = 32
"""How deep the types of an Avro file lie in each other; those of Iceberg lie seven deep."""
UNION_BRANCHES: Final = 64
"""Branches of a union; the number of a branch is one byte."""
PATH_BYTES: Final = 8_192
"""Bytes of a path or URI."""


def most_unpacked(stored: int) -> int:
    """Return how many bytes the blocks of an Avro file of ``stored`` bytes may unpack to, together."""
    return (16 << 20) + 100 * stored


def most_rows(stored: int) -> int:
    """Return how many rows an Avro file of ``stored`` bytes may have; paths differ, so each is worth a byte."""
    return min(ROWS, 1_000 + stored)
