"""The boundary file: a durable copy of ``oldest_version`` for readers that have no root yet (format, section 6).

``oldest_version`` in the newest root is the truth. The file only grows, by compare-and-set, after the root that says so
and before anything below it is deleted. A copy of some versions begins with a boundary of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Container

from trinitylake_core import spec
from trinitylake_core.errors import TrinityLakeError
from trinitylake_core.storage import Tagged
from trinitylake_core.versions.files import RootFiles, number_in
from trinitylake_core.versions.search import find_newest, listed_versions, newest_listed


def raise_boundary(files: RootFiles, to: int) -> int:
    """Make the boundary file say ``to``, unless it says more already; return what it says, durably.

    REQUIRES that the newest root has an ``oldest_version`` of ``to`` or more, and that
    :meth:`Storage.prove_compare_and_set` was called. A missing file and garbage are replaced.

    One ``get``, and one ``put`` if it moves; both again for each other process that moves it at the same time.
    """
    while True:
        seen = files.storage.read_tagged(spec.BOUNDARY_FILE)
        says = _said(seen)
        if says is not None and says >= to:
            return says
        if files.storage.compare_and_set(spec.BOUNDARY_FILE, str(to).encode(), seen) is not None:
            return to


def lower_lying_boundary(files: RootFiles) -> int | None:
    """Replace a boundary that expiration cannot have written by the one that the newest root says, and return that.

    The only case in which the file becomes smaller, and ``None`` in all others. Expiration commits a root that says the
    boundary before it writes the file, so a file that says more than a root found after it was read is a lie. If
    versions below it are missing all the same, it is left alone: lowered, it would promise what is gone. So it is if
    anybody has written it since.

    REQUIRES :meth:`Storage.prove_compare_and_set`. Some ``get``, two ``head``, one ``put``.
    """
    seen = files.storage.read_tagged(spec.BOUNDARY_FILE)
    says = _said(seen)
    if not says:
        return None
    newest = find_newest(files)
    truth = newest.oldest_version
    if says <= truth or not files.root_exists(truth) or not files.root_exists(min(says - 1, newest.version)):
        return None
    done = files.storage.compare_and_set(spec.BOUNDARY_FILE, str(truth).encode(), seen)
    return truth if done is not None else None


def claim_boundary(files: RootFiles, to: int) -> bool:
    """Make the boundary file say ``to`` where a copy is about to begin, if nobody else copies there.

    Where no lakehouse is yet, the file may say anything, left behind by a copy that was killed, and may become smaller.
    A claim ends in a line break: :func:`settle_boundary` takes that away, so that whoever has looked before a copy was
    complete, and claims the place later, finds another file than it read, even if the number is the same.
    Return ``False`` if there are roots, or if somebody else wrote the file at the same time. Roots that appear
    meanwhile are of another copy, and may be hidden by what the file says now, so it says again what it said.

    REQUIRES :meth:`Storage.prove_compare_and_set`. One ``get`` and one ``list``; if the file moves, one more ``list``
    and one ``put``.
    """
    seen = files.storage.read_tagged(spec.BOUNDARY_FILE)
    if listed_versions(files):
        return False
    claim = b"%d\n" % to
    if seen.data == claim:
        return True
    moved = files.storage.compare_and_set(spec.BOUNDARY_FILE, claim, seen)
    if moved is None:
        return False
    if not listed_versions(files):
        return True
    files.storage.compare_and_set(spec.BOUNDARY_FILE, seen.data or b"0\n", moved)
    return False


def settle_boundary(
    files: RootFiles, to: int, known: Container[int], *, grows: bool, movable: Callable[[], bool]
) -> bool:
    """Make the boundary file say ``to`` for a copy that is complete, if nobody else copies there.

    With ``grows`` the number may not become smaller. ``movable`` tells whether the file can be written, and raises
    where it would have to be. Return ``False`` if the number would have to become smaller, if somebody else wrote the
    file at the same time, or if there are roots of other versions than those that are ``known``: the file says again
    what it said. Whoever creates such a root later than this has looked, settles the boundary after that, and is
    refused there.

    One ``get``; if the file changes, one ``put`` and one ``list``.
    """
    seen = files.storage.read_tagged(spec.BOUNDARY_FILE)
    says = _said(seen)
    settled = b"%d" % to
    if seen.data == settled:
        return True
    if grows and says is not None and says > to:
        return False
    if not movable():
        return True
    moved = files.storage.compare_and_set(spec.BOUNDARY_FILE, settled, seen)
    if moved is None:
        return False
    if all(version in known for version in listed_versions(files)):
        return True
    files.storage.compare_and_set(spec.BOUNDARY_FILE, seen.data or b"0\n", moved)
    return False


def boundary_by_roots(files: RootFiles) -> int:
    """Return the boundary as the newest root says it, for when the file is garbage. A listing and one ``get``.

    Raises:
        TrinityLakeError: the newest root cannot be read.
    """
    version, _ = newest_listed(files)
    root = files.try_root(version)
    if root is None:
        raise TrinityLakeError(f"{files.path(version)} was listed and is gone; try again")
    return root.oldest_version


def _said(seen: Tagged) -> int | None:
    return 0 if seen.data is None else number_in(seen.data)
