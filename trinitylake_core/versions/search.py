"""The newest version, by O(log versions) requests, never a walk (format, section 6).

A root below the boundary is nothing: what followed it may be deleted, and its own name may have been taken again by a
writer that stood still. So every search reads the boundary after the probe that ended it.
If that is still a version at or below the one found, no root above it can have been deleted by then, so that the
one found was the newest when the probe found nothing after it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trinitylake_core import locations, spec
from trinitylake_core.errors import MAYBE_THE_STORE, Corrupt, CorruptNode, FileMissing, NotALakehouse, StorageError
from trinitylake_core.storage.root_uris import local_path
from trinitylake_core.versions.olympia import refuse_olympia
from trinitylake_core.versions.root import Root, unreadable_root
from trinitylake_core.versions.root_files import RootFiles

_SEARCHES: Final = 5
"""How often a search begins again when expiration overtakes it."""


@dataclass(frozen=True, slots=True)
class _Found:
    """Where a search ended: the root, if there is one, and what the boundary file contained afterwards."""

    root: Root | None
    boundary: int | None

    @property
    def is_newest(self) -> bool:
        if self.root is None or self.boundary is None:
            return False
        return self.boundary <= self.root.version


def find_newest(roots: RootFiles, known: Root | None = None) -> Root:
    """Return the newest root, from one that is known or else from the hint on. Changes nothing but ``files.sdk``.

    Four ``get`` in three round trips with a fresh hint, three in two with a known root that is the newest; O(log) more
    with a stale one. A known root that is still what is stored is not decoded again.

    Raises:
        NotALakehouse: there is no root at all.
        CorruptNode: the known root is gone, and has not expired.
    """
    start = roots.hint() if known is None else known.version
    if start is None:
        found = _Found(None, roots.boundary_file())
    else:
        found = _above(roots, start, known)
    if known is not None and found.root is None and found.boundary is not None and found.boundary <= known.version:
        raise missing_root(roots, known.version, found.boundary)
    for _ in range(_SEARCHES):
        if found.is_newest and found.root is not None:
            return found.root
        if found.boundary is None:  # garbage: what is below it is not known
            break
        # The version of the boundary exists, unless expiration has moved the boundary since.
        if roots.root_exists(found.boundary):
            again = _Found(*roots.root_and_boundary(_gallop(roots, found.boundary)))
        else:
            again = _of_sdk(roots, found.boundary) or _Found(None, roots.boundary_file())
        if again.root is None and again.boundary == found.boundary:
            break
        found = again
    return _list_newest(roots, found.boundary)


def refuse_hole(roots: RootFiles, newest: int, listed: Iterable[int] | None = None) -> None:
    """Prove that no root lies beyond a version that is missing above the one where a search has ended.

    Every job that lists the roots calls this. A search by probes ends at a version that is missing: at the first of two
    lost roots that are neighbours, and at a single one if the hint is behind it. ``listed`` are versions that were
    listed after the search. A version that is not among them is searched again: others commit and expire. One ``list``
    a page unless ``listed`` is given, a ``head`` for each version committed since, one ``get`` where one is missing.
    Raises ``CorruptNode``: a root was lost (I14).
    """
    there = set(listed_versions(roots) if listed is None else listed)
    last, version = max(there, default=newest), newest + 1
    while version <= last:
        if version in there or roots.root_exists(version):
            version += 1
            continue
        boundary = roots.boundary()
        if boundary > last:  # others have gone on since the listing; if they have not, it decides nothing
            there = set(listed_versions(roots))
            last = max(there, default=last)
        if not version < boundary <= last:
            raise missing_root(roots, version, boundary if boundary <= version else newest)
        version = boundary


def missing_root(roots: RootFiles, version: int, boundary: int) -> CorruptNode:
    """Return the error for a root that must exist, because expiration has not come as far as that."""
    path = roots.path(version)
    roots.storage.doubt(path)
    return CorruptNode(
        f"the root {path!r} of version {version} is missing, though versions are kept from {boundary} on. "
        "`trinitylake mend ROOT --from BACKUP` puts it back, and `mend ROOT --lost VERSION` marks the version if "
        "nobody has it. Versions after it can be read, by number or with a limit. "
        f"{MAYBE_THE_STORE}",
        path=path,
        invariant="I14",
    )


def _above(roots: RootFiles, version: int, known: Root | None) -> _Found:
    """Search from a version that probably is the newest."""
    try:
        ahead = roots.try_root(version + 1) if version < spec.MAX_VERSION else None
    except Corrupt:  # damage, unless a rollback has left it behind
        low = _gallop(roots, version + 1)
        if low == version + 1:
            raise
        return _Found(*roots.root_and_boundary(low))
    if ahead is not None:
        low = _gallop(roots, version + 1)
        if low == version + 1:
            return _Found(ahead, roots.boundary_file())
        return _Found(*roots.root_and_boundary(low))
    found = _Found(*roots.root_and_boundary(version, known))
    if found.root is not None:
        return _climb(roots, version, found.root) if roots.sdk else found
    if known is not None:
        return found
    return _of_sdk(roots, version) or found


def _of_sdk(roots: RootFiles, version: int) -> _Found | None:
    """Look whether the published Java SDK wrote the lakehouse: from then on its names are used."""
    if roots.sdk:
        return None
    root = roots.try_root(version, sdk=True)
    if root is None:
        return None
    roots.sdk = True
    return _climb(roots, version, root)


def _climb(roots: RootFiles, version: int, root: Root) -> _Found:
    """Search above a root of the SDK, which expires nothing: there is no boundary."""
    newest = _gallop(roots, version)
    if newest != version:
        return _Found(roots.try_root(newest), 0)
    return _Found(root, 0)


def _gallop(roots: RootFiles, version: int) -> int:
    """Return the newest version that can be reached from one that exists. O(log) ``head``."""
    low, step = version, 1
    while roots.root_exists(low + step):
        low += step
        step *= 2
    high = low + step
    while high - low > 1:
        middle = (low + high) // 2
        if roots.root_exists(middle):
            low = middle
        else:
            high = middle
    return low


def _list_newest(roots: RootFiles, boundary: int | None) -> Root:
    """Return the newest root of a listing, without using hint and boundary. One ``list`` a page, two ``get``.

    A boundary that is the same before and after a listing in which nothing reaches it is wrong: expiration never
    removes the newest version. ``boundary`` is its value before the listing.
    """
    for _ in range(_SEARCHES):
        version, sdk = newest_listed(roots)
        if sdk:
            roots.sdk = True
        root, again = roots.root_and_boundary(version)
        if root is not None and (again is None or again <= version or again == boundary):
            return root
        boundary = again
    raise StorageError(f"{roots.storage.root}: versions expired faster than the newest one could be found; try again")


def newest_readable(roots: RootFiles) -> tuple[Root, list[Root]]:
    """Return the newest root that can be read, its lakehouse definition too, and what stands for those after it.

    The latter are newest first. For reading the remaining versions when :func:`find_newest` fails, and for a rollback
    that leaves the unreadable ones behind: a process that takes an older version for the newest one would undo commits
    of others. So each file is read twice, for an answer that was cut short on its way proves nothing. One ``list`` a
    page, and two ``get`` for each root that cannot be read; all of it again before none is found.

    Raises:
        NotALakehouse: there is no root at all.
        Corrupt: none of those above the boundary can be read.
        StorageError: a file is not the same each time it is read.
    """
    boundary = -1
    while True:
        version, roots.sdk = newest_listed(roots)
        before, boundary = boundary, roots.boundary()
        unreadable: dict[int, str] = {}
        while version >= boundary:
            root, why = None, "it is missing"
            try:
                root = _openable(roots, version)
            except Corrupt as error:
                _refuse_fickle(roots, version)
                why = str(error)
            if root is not None:
                when = root.created_at_millis
                return root, [unreadable_root(each, roots.path(each), why, when) for each, why in unreadable.items()]
            unreadable[version] = why
            version -= 1
        if boundary == before:
            break  # else others may have committed and expired versions since the listing
    raise CorruptNode(
        f"{roots.storage.root}: no root from the boundary {boundary} on can be read "
        f"({next(iter(unreadable.values()), 'there is none')}); restore it from an export",
        path=roots.path(boundary),
        invariant="I13",
    )


def _openable(roots: RootFiles, version: int) -> Root | None:
    """Return a root whose lakehouse definition can be read, too; ``None`` if there is no such file."""
    root = roots.try_root(version)
    if root is not None:
        roots.definition_file(root)  # its copy in the root does not prove that the root is of this lakehouse
    return root


def _refuse_fickle(roots: RootFiles, version: int) -> None:
    """Raise ``StorageError`` if a root is not as long as the storage reports, or can be read after all."""
    path = roots.path(version)
    try:
        read, size = len(roots.storage.read(path)), roots.storage.info(path).size
        if read == size and _openable(roots, version) is not None:
            read = -1
    except (FileMissing, Corrupt):
        return
    if read != size:
        raise StorageError(f"{path} was read differently each time, as if the storage cut answers short; try again")


def listed_versions(roots: RootFiles) -> list[int]:
    """Return the versions whose roots are listed, also those below the boundary; in no order. One ``list`` a page."""
    found = []
    for file in roots.storage.list("_"):
        parsed = locations.parse(file.path)
        if parsed is None or parsed.version is None:
            continue
        if parsed.legacy == roots.sdk:  # roots of the two kinds never share a root URI
            found.append(parsed.version)
    return found


def newest_listed(roots: RootFiles) -> tuple[int, bool]:
    """Return the highest version in a listing, and whether the Java SDK named it. One ``list`` a page.

    Raises:
        NotALakehouse: there is no root at all.
        InvalidLocation: there is a catalog of Olympia. One more ``list``.
    """
    found = []
    for file in roots.storage.list("_"):
        parsed = locations.parse(file.path)
        if parsed is not None and parsed.version is not None:
            # Roots of the two kinds never share a root URI; a stray file must not hide ours.
            found.append((not parsed.legacy, parsed.version))
    if found:
        canonical, version = max(found)
        return version, not canonical
    root = roots.storage.root
    if root.startswith("file:") and Path(local_path(root)).is_file():
        raise NotALakehouse(f"there is no lakehouse at {root}; it is a file, and a lakehouse is a directory")
    refuse_olympia(roots.storage)
    raise NotALakehouse(f"there is no lakehouse at {root}; `create` makes one")
