"""Versions of a history whose roots cannot be read: an export leaves them out and lists them (format, section 6).

A rollback leaves such a root behind. It is in the history until it expires, and must be in a copy, too: where a root is
missing, a search for the newest version would end. So its bytes are copied as they are, and what its tree held is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trinitylake_core.errors import Corrupt, FileMissing, StorageError
from trinitylake_core.locations import root_path
from trinitylake_core.storage import Storage
from trinitylake_core.versions import Versions


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A version that cannot be copied, because its root cannot be read.

    Attributes:
        version: its number.
        file: the path of its root.
        why: what is wrong with the file.
        at_target: whether the target can read it: it was copied before it was damaged.
    """

    version: int
    file: str
    why: str
    at_target: bool


def unreadable_roots(source: Versions, target: Storage, wanted: Sequence[int]) -> Iterator[tuple[Unreadable, bytes]]:
    """Yield the versions whose roots are there and cannot be read, and the bytes of these.

    So is one whose lakehouse definition is not there, such as that of another lakehouse. Two ``get`` for each version,
    and for each that is found two more, one of them at the target, and a ``head``.

    Raises:
        StorageError: a file is not the same each time it is read; an answer that was cut short proves nothing.
    """
    copies = Versions(target)
    paths = [root_path(version) for version in wanted]
    for version, (path, data) in zip(wanted, source.storage.read_many(paths), strict=True):
        if isinstance(data, FileMissing):
            continue
        why = _damage(source, version, data)
        if why is None:
            continue
        if source.storage.read(path) != data or source.storage.info(path).size != len(data):
            raise StorageError(f"{path} was read differently each time, as if the storage cut answers short; try again")
        yield Unreadable(version, path, why, _readable(copies, version)), data


def _damage(versions: Versions, version: int, data: bytes) -> str | None:
    try:
        versions.definition_file(versions.decode(version, root_path(version), data))
    except Corrupt as error:
        return str(error)
    return None


def _readable(versions: Versions, version: int) -> bool:
    try:
        return versions.try_root(version) is not None
    except Corrupt:
        return False
