"""Single damaged files, and their copies at another root: which of these prove what they are, and are put back.

A file of the lakehouse has one content for ever. So the copy of a file is that file if it proves that by itself: a
node or a root by its checksum and by the path that it contains, a definition by its checksum and the unique name that
it lies under. A root must also fit the versions around it, because roots of two lakehouses have the same names, and
so have those of a copy that has gone on by itself, or of the time before a lakehouse was set back.
"""

from __future__ import annotations

from functools import partial

from pipelines.reach.kept_roots import is_there
from trinitylake_core import spec
from trinitylake_core.definitions import DECODERS, decode_lakehouse, has_checksum
from trinitylake_core.errors import AlreadyExists, Corrupt, FileMissing, InvalidDefinition, StorageError
from trinitylake_core.keys import KINDS
from trinitylake_core.locations import parse
from trinitylake_core.storage import Storage
from trinitylake_core.tree.nodefile import decode
from trinitylake_core.versions import Root, Versions


def check_file(path: str, data: bytes) -> bool:
    """Return whether bytes prove that they are the file of this name.

    Raises ``Corrupt``: they are not what a file of its name holds. No name but that of a node, a root or a definition
    is known here, so other bytes prove nothing.
    """
    parsed = parse(path)
    kind = None if parsed is None else parsed.kind
    if kind in {"node", "root"}:
        node = decode(data, path)
        return node.named and node.checksummed
    if kind == "lakehouse_def":
        decode_lakehouse(data, path)
    elif kind in KINDS:
        DECODERS[str(kind)](data, path)
    else:
        return False
    return has_checksum(data)


def find_copy(storage: Storage, copy: Storage, path: str) -> tuple[bytes | None, str]:
    """Return the bytes to put back under a path that is missing or damaged, or ``None`` and the reason.

    The reason is empty if the file is sound. Two ``get`` here, one at the copy; of a root two more, and a
    ``head`` for each file that it alone names, if no version after it can be read.
    Raises ``StorageError``: the file is not the same each time it is read.
    """
    parsed = parse(path)
    ours = _read_sound(storage, path)
    data = _read(copy, path)
    # What is left of a definition that has lost its end still parses, as one of 0.1.0 without a checksum does.
    is_cut = data and parsed and parsed.kind in KINDS and ours != data and data.startswith(ours or b"")
    if ours is not None and not is_cut:
        return None, ""
    if data is None:
        return None, f"it is not at {copy.root}"
    try:
        if not check_file(path, data):
            return None, f"the file at {copy.root} does not prove what it is: it was written before files had checksums"
        if parsed is not None and parsed.version is not None:
            refuse_stranger(Versions(storage), Versions(copy).decode(parsed.version, path, data))
    except (Corrupt, InvalidDefinition) as error:
        return None, f"the file at {copy.root} is not put back: {error}"
    return data, ""


def is_sound(path: str, data: bytes | FileMissing) -> bool:
    """Return whether a file is there, and holds what a file of its name holds."""
    if isinstance(data, FileMissing):
        return False
    try:
        check_file(path, data)
    except (Corrupt, InvalidDefinition):
        return False
    return True


def why_damaged(storage: Storage, path: str) -> str:
    """Return what is wrong with a file that is missing or damaged. One ``get``."""
    data = _read(storage, path)
    if data is None:
        return f"{path!r} is missing"
    try:
        check_file(path, data)
    except (Corrupt, InvalidDefinition) as error:
        return str(error)
    return f"{path!r} is not what names it says"


def put_back(storage: Storage, path: str, data: bytes) -> None:
    """Write a file that is missing or damaged. One ``put``, or one ``create`` for a root that is missing.

    A root that is missing is created, not replaced: a writer may commit in its place meanwhile. Every other file
    has one content, whoever writes it. Raises ``StorageError``: it does not have that content afterwards.
    """
    parsed = parse(path)
    if parsed is not None and parsed.kind == "root" and _read(storage, path) is None:
        try:
            storage.create(path, data)
        except AlreadyExists as error:
            raise StorageError(f"{path} was made by somebody else meanwhile; run it again") from error
    else:
        storage.replace(path, data)
    if _read(storage, path) != data:
        raise StorageError(f"{storage.root}{path} does not hold what was written to it; run it again")


def refuse_stranger(versions: Versions, root: Root) -> None:
    """Raise ``Corrupt`` if a root does not fit the versions before and after it that can be read, or nothing proves it.

    The version after it proves it by its transaction. Else the files do that it alone names: their names are random,
    and whoever makes a root stores them before it. Two ``get``, and a ``head`` for each of these files.
    """
    before, after = (_readable(versions, root.version + step) for step in (-1, 1))
    if before is not None and (not root.follows(before) or root.created_at_millis <= before.created_at_millis):
        raise Corrupt(f"it was not committed on top of version {before.version}", path=root.path, invariant="I14")
    if after is not None and (not after.follows(root) or after.created_at_millis <= root.created_at_millis):
        raise Corrupt(f"version {after.version} was not committed on top of it", path=root.path, invariant="I14")
    if after is not None and root.txn is not None and after.system.get(spec.PREVIOUS_TXN) == root.txn:
        return
    own = _files_of(root)
    if before is not None:
        own -= _files_of(before)
    elif root.version > 0:  # what the one before it named is not known
        own = set(filter(None, root.own_messages().values))
    if not own or not all(versions.storage.map(sorted(own), partial(is_there, versions.storage))):
        raise Corrupt(
            f"nothing proves that it is version {root.version} of this lakehouse", path=root.path, invariant="I14"
        )


def _files_of(root: Root) -> set[str]:
    """Return the definitions and nodes that a root names."""
    node = root.node
    return {root.definition_path, *node.children, *filter(None, (*node.values, *node.buffer.values))}


def _readable(versions: Versions, version: int) -> Root | None:
    if version < 0:
        return None
    try:
        return versions.try_root(version)
    except Corrupt:
        return None


def _read_sound(storage: Storage, path: str) -> bytes | None:
    """Return a file if it holds what a file of its name holds. Raises ``StorageError``: two answers differ."""
    data = _read(storage, path)
    if data is not None and is_sound(path, data):
        return data
    if _read(storage, path) != data:
        raise StorageError(f"{path} was read differently each time, as if the storage cut answers short; try again")
    return None


def _read(storage: Storage, path: str) -> bytes | None:
    try:
        return storage.read(path)
    except FileMissing:
        return None
