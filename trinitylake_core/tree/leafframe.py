"""What stands around the record batch of a leaf file: the same for all, but for a checksum and three numbers.

Learnt at run time from a file that Arrow makes, so that it is what this version of Arrow writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import pyarrow as pa

from trinitylake_core import spec
from trinitylake_core.tree import nodefile
from trinitylake_core.tree.checksum import checksum_of

_STRING: Final = pa.string()
MAGIC: Final = 8
PREFIX: Final = 8
"""What stands before each message: a marker and the length of its metadata, 4 bytes each."""
DIGITS: Final = 32


@dataclass(frozen=True, slots=True)
class Frame:
    """What stands before and behind the record batch of each leaf file, cut where files differ."""

    head: tuple[bytes, bytes]
    """Before and behind the checksum."""
    tail: tuple[bytes, bytes, bytes]
    """Before and behind the checksum, and behind the block that says where the batch is."""
    checksum_first: bool
    """Whether the checksum stands before the block."""
    begin: int
    """Where the batch begins."""
    behind: int
    """How many bytes follow it."""

    def around(self, checksum: bytes, metadata: int, body: int) -> tuple[bytes, bytes]:
        """Return what stands before and behind a batch of so many bytes of metadata and body."""
        block = _block(self.begin, metadata, body)
        first, second = (checksum, block) if self.checksum_first else (block, checksum)
        one, two, three = self.tail
        return b"".join((self.head[0], checksum, self.head[1])), b"".join((one, first, two, second, three))


def _block(begin: int, metadata: int, body: int) -> bytes:
    """Return how the end of a file says where its batch is: three numbers of 8 bytes, the second one padded."""
    return b"".join(number.to_bytes(8, "little") for number in (begin, metadata, body))


@lru_cache(maxsize=1)
def frame() -> Frame | None:
    """Return what this version of Arrow puts around a batch, learnt from a file; ``None`` if that is not understood."""
    column = pa.array(["x"], _STRING)
    data = bytes(nodefile.file_of([column] * 4))
    checksum = checksum_of([column] * 4)
    begin = MAGIC + PREFIX + int.from_bytes(data[MAGIC + 4 : MAGIC + 8], "little")
    with pa.ipc.open_stream(pa.py_buffer(data[MAGIC:])) as reader:
        message = pa.ipc.read_message(pa.py_buffer(data[begin:]))
        known = reader.schema.names == list(spec.COLUMNS)
    metadata, body = PREFIX + message.metadata.size, message.body.size
    head, tail = data[:begin], data[begin + metadata + body :]
    block = _block(begin, metadata, body)
    if not known or head.count(checksum) != 1 or tail.count(checksum) != 1 or tail.count(block) != 1:
        return None
    before, behind = head.split(checksum)
    first, second = sorted((checksum, block), key=tail.index)
    one, rest = tail.split(first)
    two, three = rest.split(second)
    return Frame((before, behind), (one, two, three), first == checksum, begin, len(tail))
