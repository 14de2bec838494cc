"""The lines of text files of any size, in blocks that tasks read alone, each line in exactly one of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Final, TypeAlias

from pipelines.reach.listing import expand_gzip, split_uri
from trinitylake_core.errors import FileMissing, InvalidInput
from trinitylake_core.storage import Options, Storage, open_storage, root_uri

BLOCK_BYTES: Final = 8 << 20
LINE_MAX_BYTES: Final = 16 << 20
_STEP_BYTES: Final = 256 << 10
PACKED: Final = ".gz"
"""How the names of compressed files end."""
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Block:
    """A part of a file, in bytes: the lines that begin in it. A compressed file is one block."""

    file: str
    begin: int
    end: int
    size: int


SizedFile: TypeAlias = tuple[str, int]
"""A file by its name and its size."""


@dataclass(frozen=True, slots=True, order=True)
class TextPlace:
    """Where a line begins: its file, and how many bytes lie before it there."""

    file: str
    offset: int


def find_text_files(
    uri: str,
    options: Options,
    suffixes: Sequence[str],
) -> tuple[Storage, list[SizedFile]]:
    """Return the storage, and names and sizes of the files: the one at ``uri``, or those of a directory.

    A directory counts with all below it. One ``head``, or a listing.

    Raises:
        InvalidInput: there is no file with one of the suffixes.
    """
    endings = (*suffixes, *(f"{suffix}{PACKED}" for suffix in suffixes))
    uri = root_uri(uri)
    if uri.endswith(endings):
        return _find_one_file(uri, options)
    storage = open_storage(uri, options)
    found = []
    for info in storage.list():
        if info.path.endswith(endings):
            found.append((info.path, info.size))
    if not found:
        raise InvalidInput(f"there is nothing to read at {storage.root}: no {', '.join(endings)}")
    found.sort()
    return storage, found


def _find_one_file(uri: str, options: Options) -> tuple[Storage, list[SizedFile]]:
    above, name = split_uri(uri)
    storage = open_storage(above, options)
    try:
        size = storage.info(name).size
    except FileMissing:
        raise InvalidInput(f"there is no file {uri}") from None
    return storage, [(name, size)]


def cut_into_blocks(files: Sequence[SizedFile], block_bytes: int) -> Iterator[Block]:
    """Yield files, by name and size, in blocks."""
    for file, size in files:
        step = block_bytes
        if file.endswith(PACKED):
            step = max(1, size)  # nobody can begin to unpack in the middle
        for begin in range(0, size, step):
            end = min(begin + step, size)
            yield Block(
                file=file,
                begin=begin,
                end=end,
                size=size,
            )


def read_lines(storage: Storage, block: Block) -> Iterator[tuple[TextPlace, bytes]]:
    """Yield the lines that begin in a block, without those that are empty. One ``get``, or a few where it ends.

    Raises:
        InvalidInput: a line is too long, or the file is not of the kind that its name promises.
        FileMissing, StorageError.
    """
    if block.file.endswith(PACKED):
        offset = 0
        data = expand_gzip(storage.read(block.file), block.file)
    else:
        offset, data = _read_whole_lines(storage, block)
    if offset == 0:
        data = data.removeprefix(_BYTE_ORDER_MARK)
    for line in data.split(b"\n"):
        if line.strip():
            yield TextPlace(block.file, offset), line
        offset += len(line) + 1


def _read_whole_lines(storage: Storage, block: Block) -> tuple[int, bytes]:
    """Return where the first line that begins in a block begins, and all that begin there, the last one to its end."""
    if block.begin == 0:
        begin = 0
        data = storage.read_range(block.file, 0, block.end)
    else:
        # A line begins behind the end of another one, so the byte before the block tells whether one begins with it.
        before = block.begin - 1
        data = storage.read_range(block.file, before, block.end)
        first_end = data.find(b"\n")
        if first_end < 0:
            return block.end, b""
        begin = before + first_end + 1
        data = data[first_end + 1 :]
    if not data:
        return block.end, b""
    return begin, data + _read_rest_of_line(storage, block, data)


def _read_rest_of_line(storage: Storage, block: Block, data: bytes) -> bytes:
    """Return what follows the block of its last line; nothing if the line, or the file, ends with the block."""
    parts = []
    at = block.end
    while at < block.size and not data.endswith(b"\n"):
        if at - block.end > LINE_MAX_BYTES:
            raise InvalidInput(f"{block.file} has a line longer than {LINE_MAX_BYTES >> 20} MiB: not JSON Lines")
        data = storage.read_range(block.file, at, at + _STEP_BYTES)
        line_end = data.find(b"\n")
        if line_end >= 0:
            data = data[: line_end + 1]
        parts.append(data)
        at += _STEP_BYTES
    return b"".join(parts)


def describe_place(storage: Storage, place: TextPlace) -> str:
    """Return a place as people look for it: file and line. Reads the file up to there."""
    return describe_places(storage, [place])[0]


def describe_places(storage: Storage, places: Sequence[TextPlace]) -> list[str]:
    """Return places as people look for them. Reads each file once, up to the last place in it."""
    numbers: dict[TextPlace, int] = {}
    for file, in_file in groupby(sorted(places), key=attrgetter("file")):
        data = None
        if file.endswith(PACKED):
            data = expand_gzip(storage.read(file), file)
        number = 1
        counted_to = 0
        for place in in_file:
            number += _count_line_ends(
                storage,
                file,
                data,
                counted_to,
                place.offset,
            )
            counted_to = place.offset
            numbers[place] = number
    return [f"{place.file}, line {numbers[place]}" for place in places]


def _count_line_ends(
    storage: Storage,
    file: str,
    data: bytes | None,
    begin: int,
    end: int,
) -> int:
    """Return how many lines end in a range of bytes of a file; ``data`` is its content, if it had to be unpacked."""
    if data is not None:
        return data.count(b"\n", begin, end)
    found = 0
    for at in range(begin, end, BLOCK_BYTES):
        stop = min(at + BLOCK_BYTES, end)
        found += storage.read_range(file, at, stop).count(b"\n")
    return found
