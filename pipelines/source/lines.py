"""The lines of text files of any size, in blocks that tasks read alone, each line in exactly one of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pipelines.files.listing import split_uri, unpacked
from trinitylake_core.errors import FileMissing, InvalidInput
from trinitylake_core.storage import Storage, open_storage, root_uri

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


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where a line begins: its file, and how many bytes lie before it there."""

    file: str
    offset: int


def text_files(uri: str, options: Mapping[str, Any], suffixes: Sequence[str]) -> tuple[Storage, list[tuple[str, int]]]:
    """Return the storage, and names and sizes of the files: the one at ``uri``, or those of a directory.

    A directory counts with all below it. One ``head``, or a listing.

    Raises:
        InvalidInput: there is no file with one of the suffixes.
    """
    endings = tuple(f"{suffix}{packed}" for suffix in suffixes for packed in ("", PACKED))
    uri = root_uri(uri)
    if uri.endswith(endings):
        above, name = split_uri(uri)
        storage = open_storage(above, options)
        try:
            return storage, [(name, storage.info(name).size)]
        except FileMissing:
            raise InvalidInput(f"there is no file {uri}") from None
    storage = open_storage(uri, options)
    found = sorted((info.path, info.size) for info in storage.list() if info.path.endswith(endings))
    if not found:
        raise InvalidInput(f"there is nothing to read at {storage.root}: no {', '.join(endings)}")
    return storage, found


def blocks(files: Sequence[tuple[str, int]], block_bytes: int = BLOCK_BYTES) -> Iterator[Block]:
    """Yield files, by name and size, in blocks."""
    for file, size in files:
        step = max(1, size) if file.endswith(PACKED) else block_bytes
        for begin in range(0, size, step):
            yield Block(file, begin, min(begin + step, size), size)


def lines(storage: Storage, block: Block) -> Iterator[tuple[Place, bytes]]:
    """Yield the lines that begin in a block, without those that are empty. One ``get``, or a few where it ends.

    Raises:
        InvalidInput: a line is too long, or the file is not of the kind that its name promises.
        FileMissing, StorageError.
    """
    if block.file.endswith(PACKED):
        data, offset = unpacked(storage.read(block.file), block.file), 0
    else:
        data, offset = _whole_lines(storage, block)
    if offset == 0:
        data = data.removeprefix(_BYTE_ORDER_MARK)
    for line in data.split(b"\n"):
        if line.strip():
            yield Place(block.file, offset), line
        offset += len(line) + 1


def _whole_lines(storage: Storage, block: Block) -> tuple[bytes, int]:
    """Return the lines that begin in a block, the last one to its end, and where the first begins."""
    before = min(1, block.begin)  # a line begins behind the end of another one
    data = storage.read_range(block.file, block.begin - before, block.end)
    start = data.find(b"\n") + 1 if before else 0
    if (before and not start) or start == len(data):
        return b"", block.end
    parts, end = [data[start:]], block.end
    while not parts[-1].endswith(b"\n") and end < block.size:
        more = storage.read_range(block.file, end, end + _STEP_BYTES)
        stop = more.find(b"\n") + 1
        parts.append(more[:stop] if stop else more)
        end += _STEP_BYTES
        if end - block.end > LINE_MAX_BYTES:
            raise InvalidInput(f"{block.file} has a line longer than {LINE_MAX_BYTES >> 20} MiB: not JSON Lines")
    return b"".join(parts), block.begin - before + start


def in_words(storage: Storage, place: Place) -> str:
    """Return a place as people look for it: file and line. Reads the file up to there."""
    return all_in_words(storage, [place])[0]


def all_in_words(storage: Storage, places: Sequence[Place]) -> list[str]:
    """Return places as people look for them. Reads each file once, up to the last place in it."""
    numbers: dict[Place, int] = {}
    for file in dict.fromkeys(place.file for place in places):
        data = unpacked(storage.read(file), file) if file.endswith(PACKED) else None
        line, begin = 1, 0
        for place in sorted((place for place in places if place.file == file), key=lambda place: place.offset):
            line += _line_ends(storage, file, data, begin, place.offset)
            begin, numbers[place] = place.offset, line
    return [f"{place.file}, line {numbers[place]}" for place in places]


def _line_ends(storage: Storage, file: str, data: bytes | None, begin: int, end: int) -> int:
    if data is not None:
        return data.count(b"\n", begin, end)
    steps = range(begin, end, BLOCK_BYTES)
    return sum(storage.read_range(file, at, min(at + BLOCK_BYTES, end)).count(b"\n") for at in steps)
