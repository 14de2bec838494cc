"""Unpacking, with a limit that holds before the memory is taken."""

from __future__ import annotations

import bz2
import zlib
from collections.abc import Callable
from typing import Final

import pyarrow as pa

from trinitylake_core.iceberg.reading.errors import Malformed

Unpack = Callable[[bytes, int], bytes]
"""Takes packed bytes and how many they may become, and raises ``Malformed`` beyond that."""
_RAW_DEFLATE: Final = -15
_GZIP: Final = 31
_CRC_BYTES: Final = 4
_TOO_LARGE: Final = "it is larger than a file of this kind may be, unpacked"
GZIP_MAGIC: Final = b"\x1f\x8b"


def gunzip(data: bytes, most: int) -> bytes:
    """Return what a gzip file contains, which may consist of several members one after the other.

    Raises ``Malformed``: it is damaged, cut short, or contains more than ``most`` bytes.
    """
    parts: list[bytes] = []
    left = most
    while data:
        unpacker = zlib.decompressobj(_GZIP)
        part = _inflate(unpacker, data, left)
        left -= len(part)
        parts.append(part)
        data = unpacker.unused_data.lstrip(b"\0")  # padding is allowed
    return b"".join(parts)


def _inflate(unpacker: zlib._Decompress | bz2.BZ2Decompressor, data: bytes, most: int) -> bytes:
    try:
        unpacked = unpacker.decompress(data, most + 1)
    except (zlib.error, OSError, ValueError):
        raise Malformed("its packed data are damaged") from None
    _refuse_larger(len(unpacked), most)
    if not unpacker.eof:
        raise Malformed("its packed data end too early")
    return unpacked


def _deflate(data: bytes, most: int) -> bytes:
    """Unpack a block; Python's writers leave three bytes of a checksum behind it, which are not part of it."""
    return _inflate(zlib.decompressobj(_RAW_DEFLATE), data, most)


def _bzip2(data: bytes, most: int) -> bytes:
    return _inflate(bz2.BZ2Decompressor(), data, most)


def _refuse_larger(size: int, most: int) -> None:
    if size > most:
        raise Malformed(_TOO_LARGE)


def _snappy(data: bytes, most: int) -> bytes:
    """Unpack a block of raw Snappy, with the checksum behind it that Avro asks for."""
    packed, checksum = data[:-_CRC_BYTES], data[-_CRC_BYTES:]
    size = _snappy_size(packed)
    _refuse_larger(size, most)
    unpacked = _unpack_snappy(packed, size)
    if zlib.crc32(unpacked) != int.from_bytes(checksum, "big"):
        raise Malformed("the checksum of its packed data is wrong")
    return unpacked


def _snappy_size(packed: bytes) -> int:
    """Return the size that Snappy's first bytes tell: a number of up to 32 bits in groups of seven, low ones first."""
    size = 0
    for position, byte in enumerate(packed[:5]):
        size |= (byte & 0x7F) << 7 * position
        if byte < 0x80:
            return size
    raise Malformed("its packed data are damaged")


def _zstandard(data: bytes, most: int) -> bytes:
    """Unpack one or more frames. Those of Java do not tell their size, so they are read as a stream."""
    try:
        with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
            unpacked: bytes = stream.read(most + 1)
    except (pa.ArrowException, OSError, ValueError):
        raise Malformed("its packed data are damaged") from None
    _refuse_larger(len(unpacked), most)
    return unpacked


def _unpack_snappy(packed: bytes, size: int) -> bytes:
    try:
        unpacked: bytes = pa.Codec("snappy").decompress(packed, decompressed_size=size, asbytes=True)
    except (pa.ArrowException, OSError, ValueError):
        raise Malformed("its packed data are damaged") from None
    return unpacked


def _plain(data: bytes, most: int) -> bytes:
    _refuse_larger(len(data), most)
    return data


CODECS: Final = {
    b"null": _plain,
    b"deflate": _deflate,
    b"snappy": _snappy,
    b"zstandard": _zstandard,
    b"bzip2": _bzip2,
}
"""Those of the Avro specification that an Iceberg library writes, by the name in the header of a file."""
