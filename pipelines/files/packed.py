"""Text that gzip packed, never more of it than fits into memory: a few kilobytes may unpack to terabytes."""

from __future__ import annotations

import zlib
from typing import Final

from trinitylake_core.errors import InvalidInput

UNPACKED_MAX_BYTES: Final = 1 << 30
_GZIP: Final = 16 + zlib.MAX_WBITS


def unpacked(data: bytes, name: str, most: int = UNPACKED_MAX_BYTES) -> bytes:
    """Return the content of a gzip file, all its members one after the other.

    Raises:
        InvalidInput: it is not a valid gzip file, is cut short, or holds more than ``most`` bytes.
    """
    parts: list[bytes] = []
    left = most
    while data:
        stream = zlib.decompressobj(_GZIP)
        try:
            part = stream.decompress(data, left + 1)
        except zlib.error as error:
            raise InvalidInput(f"{name} is not a valid gzip file, or is cut short: {error}") from None
        left -= len(part)
        if left < 0:
            raise InvalidInput(
                f"{name} unpacks to more than {most >> 20} MiB; cut it into smaller files, or leave it unpacked"
            )
        if not stream.eof:
            raise InvalidInput(f"{name} is not a valid gzip file, or is cut short: it ends in the middle")
        parts.append(part)
        data = stream.unused_data.lstrip(b"\0")  # padding is allowed behind a member
    return b"".join(parts)
