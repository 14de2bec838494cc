"""Single files of the versions: roots by number, lakehouse definitions, the hint and the boundary."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from typing import Final

from trinitylake_core import locations, spec
from trinitylake_core.definitions import LakehouseDef, decode_lakehouse, effective, lost_versions
from trinitylake_core.errors import Corrupt, CorruptDefinition, CorruptNode, FileMissing, InvalidLocation, LostRoot
from trinitylake_core.storage import Storage
from trinitylake_core.tree import nodefile
from trinitylake_core.tree.nodefile import decode_head
from trinitylake_core.versions.root import Root, RootRows, unreadable_root

BATCH: Final = 64
"""So many roots are read ahead at the most."""
_DIGITS: Final = 10
"""No version has more."""
LOST_MARK: Final = b"This version of a TrinityLake lakehouse is lost.\n"
"""How the file begins that stands in the place of a root, once an operator has accepted that its version is lost.

What was there before, follows. No Arrow file begins so: for other readers it is a root that cannot be read.
"""
LARGE_BYTES: Final = 1 << 20
"""Root files from this size on hold the messages of a large transaction."""


class RootFiles:
    """Roots, hint and boundary, and the lakehouse definitions that the roots name. Thread-safe."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.sdk = False
        """Whether the published Java SDK wrote this lakehouse: other root names, read-only. Never changes back."""
        self._definitions: dict[str, LakehouseDef] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.storage.root!r})"

    # -- roots ---------------------------------------------------------------------------------

    def path(self, version: int, *, sdk: bool | None = None) -> str:
        """Return the path of a root; ``sdk`` chooses the names, by default those of this lakehouse."""
        sdk = self.sdk if sdk is None else sdk
        return locations.sdk_root_path(version) if sdk else locations.root_path(version)

    def try_root(self, version: int, *, sdk: bool | None = None) -> Root | None:
        """Return the root of a version, or ``None`` if there is no such file. One ``get``."""
        path = self.path(version, sdk=sdk)
        try:
            data = self.storage.read(path)
        except FileMissing:
            return None
        return self.decode(version, path, data)

    def try_rows(self, version: int) -> RootRows | None:
        """Return the system rows of a version's root, ``None`` if there is no such file. One ``get``.

        The messages of a large root are left out: they would take hundreds of megabytes.
        """
        path = self.path(version)
        try:
            data = self.storage.read(path)
        except FileMissing:
            return None
        if len(data) < LARGE_BYTES:
            return self.decode(version, path, data)
        _refuse_lost(version, path, data)
        node = decode_head(data, path)[0]
        return _proved_version(Root(version, path, node)).delta()

    def root_and_boundary(self, version: int, known: Root | None = None) -> tuple[Root | None, int | None]:
        """Return the root of a version, and what :meth:`boundary_file` returns. Two ``get`` at the same time.

        With ``known``, a root that is still what is stored is not decoded again.
        """
        path = self.path(version)
        data, boundary = self.data_and_boundary(version)
        if data is None:
            return None, boundary
        if known is not None and known.path == path and known.data == data:
            return known, boundary
        return self.decode(version, path, data), boundary

    def data_and_boundary(self, version: int) -> tuple[bytes | None, int | None]:
        """Return the root file of a version, and what :meth:`boundary_file` returns. Two ``get`` at the same time."""
        (_, data), (_, boundary) = self.storage.read_many([self.path(version), spec.BOUNDARY_FILE])
        root_data = None if isinstance(data, FileMissing) else data
        number = 0 if isinstance(boundary, FileMissing) else number_in(boundary)
        return root_data, number

    def read_roots(self, versions: Sequence[int]) -> Iterator[Root | None]:
        """Yield several roots in order, read in parallel; ``None`` for those that are gone.

        For a file that cannot be read comes a root whose ``unreadable`` says why.
        """
        paths = [self.path(version) for version in versions]
        for version, (path, data) in zip(versions, self.storage.read_many(paths), strict=True):
            if isinstance(data, FileMissing):
                yield None
                continue
            try:
                yield self.decode(version, path, data)
            except Corrupt as error:
                yield unreadable_root(version, path, str(error))

    def marked_lost(self, definition: LakehouseDef, versions: range) -> list[int]:
        """Return the versions that a definition names as lost and in whose place the mark stands, too.

        What one of both says alone is no reason to give up a version. One ``get`` for each that is named.
        """
        named = [version for version in lost_versions(definition) if version in versions]
        paths = [self.path(version) for version in named]
        found = []
        for version, (_, data) in zip(named, self.storage.read_many(paths), strict=True):
            if not isinstance(data, FileMissing) and data.startswith(LOST_MARK):
                found.append(version)
        return found

    def in_batches(self, versions: range, first: int = 1) -> Iterator[tuple[int, Root | None]]:
        """Yield versions with what :meth:`read_roots` yields, read in batches: ``first``, then twice as many."""
        size = first
        while versions:
            batch = versions[:size]
            yield from zip(batch, self.read_roots(batch), strict=True)
            versions = versions[size:]
            size = min(2 * size, BATCH)

    def try_readable(self, version: int, newest: Root) -> Root | None:
        """Return the root of a version, or of the first one after it that can be read: ``newest`` at the latest.

        ``None`` if there is no file of the version itself. One ``get`` each.
        """
        found = next(self.read_roots([version]))
        if found is None or found.unreadable is None:
            return found
        for later in range(version + 1, newest.version + 1):
            root = next(self.read_roots([later]))
            if root is not None and root.unreadable is None:
                return root
        return newest

    def root_exists(self, version: int) -> bool:
        """Whether there is a root file of a version. One ``head``."""
        if version > spec.MAX_VERSION:
            return False
        try:
            self.storage.info(self.path(version))
        except FileMissing:
            return False
        return True

    def decode(self, version: int, path: str, data: bytes) -> Root:
        """Return the root in the bytes of its file. Raises ``CorruptNode``, ``LostRoot``."""
        _refuse_lost(version, path, data)
        node = nodefile.decode(data, path)
        return _proved_version(Root(version, path, node, data))

    # -- lakehouse definitions -----------------------------------------------------------------

    def definition(self, root: RootRows) -> LakehouseDef:
        """Return the lakehouse definition of a version, defaults filled in. At most one ``get``.

        Raises:
            CorruptDefinition: missing or garbage.
            InvalidDefinition: a major version that is not supported.
        """
        path = root.definition_path
        known = self._definitions.get(path)
        if known is None:
            data = _definition_in_copy(root.system.get(spec.LAKEHOUSE_DEF_COPY, ""), path)
            if data is None:
                data = self._read(path)
            known = effective(decode_lakehouse(data, path))
            self._definitions[path] = known
        return known

    def knows_definition(self, path: str, data: bytes) -> None:
        """Remember a lakehouse definition that this process wrote: after its commit nothing has to be read."""
        self._definitions[path] = effective(decode_lakehouse(data, path))

    def definition_file(self, root: RootRows) -> LakehouseDef:
        """Return the lakehouse definition of a version from its own file, past the cache and the copy. One ``get``.

        Raises:
            CorruptDefinition: missing, garbage, or not equal to the copy in the root.
            InvalidDefinition: a major version that is not supported.
        """
        path = root.definition_path
        try:
            data = self._read(path)
        except CorruptDefinition as error:
            raise CorruptDefinition(f"{error}; the root {root.path!r} names it", path=path, invariant="I13") from None
        definition = effective(decode_lakehouse(data, path))
        copied = _definition_in_copy(root.system.get(spec.LAKEHOUSE_DEF_COPY, ""), path)
        if copied is not None and effective(decode_lakehouse(copied, path)) != definition:
            raise CorruptDefinition(f"root {root.path!r} holds a copy of {path!r} that differs from it", path=path)
        return definition

    def _read(self, path: str) -> bytes:
        try:
            return self.storage.read(locations.validate_path(path))
        except FileMissing:
            raise CorruptDefinition(f"definition file {path!r} is missing", path=path, invariant="I13") from None
        except InvalidLocation as error:
            raise CorruptDefinition(str(error), path=path, invariant="I13") from None

    # -- hint and boundary ---------------------------------------------------------------------

    def hint(self) -> int | None:
        """Return the latest hint, or ``None`` if it is missing or garbage. One ``get``."""
        try:
            return number_in(self.storage.read(spec.HINT_FILE))
        except FileMissing:
            return None

    def boundary_file(self) -> int | None:
        """Return the oldest version that still exists by the boundary file: 0 without one. One ``get``.

        ``None`` if it is garbage: then the newest root alone knows.
        """
        try:
            return number_in(self.storage.read(spec.BOUNDARY_FILE))
        except FileMissing:
            return 0

    def boundary(self) -> int:
        """Return the result of :meth:`boundary_file`, 0 if the file is garbage. One ``get``."""
        return self.boundary_file() or 0


def _refuse_lost(version: int, path: str, data: bytes) -> None:
    if data.startswith(LOST_MARK):
        raise LostRoot(f"version {version} is marked as lost", path=path)


def number_in(data: bytes) -> int | None:
    """Return the version in a hint or boundary file, ``None`` if there is none."""
    text = data.strip()
    if not text.isdigit() or len(text) > _DIGITS:
        return None
    number = int(text)
    return number if number <= spec.MAX_VERSION else None


def copy_of_definition(definition_bytes: bytes, path: str) -> str | None:
    """Return the value of the row ``lakehouse_def_copy``, or ``None`` if the definition is too large for it."""
    if len(definition_bytes) > spec.LAKEHOUSE_DEF_COPY_MAX_BYTES:
        return None
    return f"{path} {base64.b64encode(definition_bytes).decode()}"


def _definition_in_copy(copy: str, path: str) -> bytes | None:
    """Return the definition at ``path`` by its copy in a root; ``None`` if that is of another path, or damaged."""
    path_of_copy, _, text = copy.partition(" ")
    if path_of_copy != path:
        return None
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        return None


def _proved_version(root: Root) -> Root:
    """Return a root whose system rows are of its version. Raises ``CorruptNode``."""
    recorded = root.system.get(spec.VERSION, str(root.version))
    if recorded != str(root.version):
        message = f"root {root.path!r} is that of version {recorded}, not {root.version}"
        raise CorruptNode(message, path=root.path, invariant="I13")
    return root
