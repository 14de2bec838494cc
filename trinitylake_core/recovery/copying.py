"""Objects that a restore copies in from another lakehouse (format, section 6).

Files of another lakehouse may be named as files that were here once: those may be cleaned away at any moment. So what
is copied gets new names, and is read back before the version that refers to it exists.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final

from trinitylake_core.commits.backend import LakehouseBackend
from trinitylake_core.definitions import DECODERS, ObjectDef, encode
from trinitylake_core.diff import Change
from trinitylake_core.errors import CorruptDefinition, FileMissing, InvalidLocation, StorageError
from trinitylake_core.keys import NAMESPACE, KeyCodec, ObjectName
from trinitylake_core.locations import validate_path
from trinitylake_core.recovery.selection import Side
from trinitylake_core.transactions.transaction import Transaction

_READ_TOGETHER: Final = 1024
_Content = bytes | FileMissing
"""What reading a file came to."""


def changes_to_copy(here: Side, there: Side, changes: Sequence[Change]) -> list[Change]:
    """Return the changes without those whose files are equal: they were copied in before. Two ``get`` each.

    That a file cannot be read here is not a reason to leave it as it is.
    """
    found = []
    for start in range(0, len(changes), _READ_TOGETHER):
        part = changes[start : start + _READ_TOGETHER]
        on_both_sides = []
        for each in part:
            if each.old_path is not None and each.new_path is not None:
                on_both_sides.append(each)
        equal = set()
        for change, ours, theirs in _read_both(here, there, on_both_sides):
            if ours == theirs:
                equal.add(change.key)
        found += [change for change in part if change.key not in equal]
    return found


def find_damaged_here(here: Side, there: Side, of_one_file: Iterable[Change]) -> Iterator[Change]:
    """Yield the objects whose file is missing or damaged here. Two ``get`` each.

    Files of one name hold the same, so of two that differ one is damaged: ours, unless only theirs cannot be read.
    """
    remaining = iter(of_one_file)
    while part := list(islice(remaining, _READ_TOGETHER)):
        for change, ours, theirs in _read_both(here, there, part):
            if ours == theirs:
                continue
            if _can_be_read(change, theirs) or not _can_be_read(change, ours):
                yield change


def _read_both(here: Side, there: Side, changes: Sequence[Change]) -> Iterator[tuple[Change, _Content, _Content]]:
    """Yield changes with what the files hold that both sides name. Two ``get`` each; a missing one equals no other."""
    our_paths = [_validate(change.old_path) for change in changes]
    their_paths = [_validate(change.new_path) for change in changes]
    ours = here.backend.storage.read_many(our_paths)
    theirs = there.backend.storage.read_many(their_paths)
    for change, (_, our_data), (_, their_data) in zip(changes, ours, theirs, strict=True):
        yield change, our_data, their_data


def _can_be_read(change: Change, data: _Content) -> bool:
    if isinstance(data, FileMissing):
        return False
    try:
        DECODERS[change.kind](data, change.new_path or "")
    except CorruptDefinition:
        return False
    return True


def rekey(changes: Iterable[Change], codec: KeyCodec) -> list[Change]:
    """Return changes under the keys that their objects have here. Raises ``InvalidName`` for a name too long here."""
    found = []
    for change in changes:
        key = codec.encode(ObjectName(change.kind, change.namespace, change.name))
        found.append(replace(change, key=key))
    return found


class CopyIn(Transaction):
    """A transaction that brings definitions of another lakehouse; held in memory until they are committed."""

    def take(self, there: Side, changes: Sequence[Change]) -> None:
        """Read and prove definitions, set them here under new names, and drop what is gone there. One ``get`` for each.

        Raises ``CorruptDefinition`` where one is missing or damaged there; nothing was written yet.
        """
        coming_in = [change for change in changes if change.new_path is not None]
        for start in range(0, len(coming_in), _READ_TOGETHER):
            part = coming_in[start : start + _READ_TOGETHER]
            for change, definition in zip(part, _read_definitions(there.backend, part), strict=True):
                name = ObjectName(change.kind, change.namespace, change.name)
                self._put(change.key, definition, name, existed=change.old_path is not None)
                if change.kind != NAMESPACE:
                    self.need_namespace(change.namespace)
        for change in changes:
            if change.new_path is None:
                self.put(change.key, None, replaces=True)
                if change.kind == NAMESPACE:
                    self.close_namespace(change.namespace)

    def prove_copies(self) -> None:
        """Read back what was copied in. One ``get`` each. Raises ``StorageError`` if it is not what was written."""
        written = {}
        for new_path, (_, definition) in self._writes.definitions.items():
            written[new_path] = encode(definition)
        for path, data in self._backend.storage.read_many(sorted(written)):
            if isinstance(data, FileMissing) or bytes(data) != written[path]:
                raise StorageError(f"{path} does not hold what was written to it; nothing was committed")


def _read_definitions(backend: LakehouseBackend, changes: Sequence[Change]) -> Iterator[ObjectDef]:
    """Yield the definitions that changes bring in. One ``get`` each. Raises ``CorruptDefinition``."""
    paths = [_validate(change.new_path) for change in changes]
    for change, (path, data) in zip(changes, backend.storage.read_many(paths), strict=True):
        if isinstance(data, FileMissing):
            raise CorruptDefinition(f"{backend.storage.root}: definition file {path!r} is missing", path=path)
        yield DECODERS[change.kind](data, path)


def _validate(path: str | None) -> str:
    try:
        return validate_path(path or "")
    except InvalidLocation as error:
        raise CorruptDefinition(str(error), path=path) from None
