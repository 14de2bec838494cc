"""The boundary file: a durable copy of ``oldest_version`` for readers that have no root yet (format, section 6).

``oldest_version`` in the newest root is the truth. The file only grows, by compare-and-set, after that root
and before anything below it is deleted. A copy of some versions begins with a boundary of its own.

The file never contains the same bytes twice (:func:`_unused_bytes`). So a process that finds the bytes it has read
knows that no other process wrote in between, and a request that was given up as late finds nothing to replace.
"""

from __future__ import annotations

from collections.abc import Callable, Container

from trinitylake_core import spec
from trinitylake_core.errors import OutcomeUnknown, TrinityLakeError
from trinitylake_core.storage import Tagged
from trinitylake_core.versions.root_files import RootFiles, number_in
from trinitylake_core.versions.search import find_newest, listed_versions, newest_listed


def raise_boundary(roots: RootFiles, to: int) -> int:
    """Raise the boundary file to ``to``, unless it contains more already; return its number, which is durable.

    REQUIRES that the newest root has an ``oldest_version`` of ``to`` or more, and that
    :meth:`Storage.prove_compare_and_set` was called. A missing file and garbage are replaced.

    One ``get``, and one ``put`` if it moves; both again for each other process that moves it at the same time.
    """
    lost: OutcomeUnknown | None = None
    while True:
        seen = roots.storage.read_tagged(spec.BOUNDARY_FILE)
        number = _number(seen)
        if number is not None and number >= to:
            return number
        if lost is not None:
            raise lost
        wanted = _unused_bytes(seen.data, to)
        try:
            written = roots.storage.compare_and_set(spec.BOUNDARY_FILE, wanted, seen)
        except OutcomeUnknown as error:  # what the file contains by now decides
            lost = error
            continue
        if written is not None:
            return to


def lower_lying_boundary(roots: RootFiles) -> int | None:
    """Replace a boundary that expiration cannot have written by the one of the newest root, and return that.

    The only case in which the file becomes smaller, and ``None`` in all others. Expiration commits a root with the
    boundary before it writes the file, so a file with more than a root found after it was read is wrong. If versions
    below it are missing all the same, it is left alone: lowered, it would promise what is gone. So it is if another
    process has written it since. The claim of a copy that has not put its first root there is more, too; it is
    replaced by the first version of those that are there.

    REQUIRES :meth:`Storage.prove_compare_and_set`. Some ``get``, two ``head``, one ``put``; a ``list`` for a claim.
    """
    seen = roots.storage.read_tagged(spec.BOUNDARY_FILE)
    number = _number(seen)
    if not number:
        return None
    newest = find_newest(roots)
    truth = newest.oldest_version
    if is_claim(seen.data) and number > newest.version:
        truth = lowest_there(roots, newest.version, number)
    if number <= truth:
        return None
    last_below = min(number - 1, newest.version)
    if not roots.root_exists(truth) or not roots.root_exists(last_below):
        return None
    written = roots.storage.compare_and_set(spec.BOUNDARY_FILE, _unused_bytes(seen.data, truth), seen)
    return None if written is None else truth


def is_claim(data: bytes | None) -> bool:
    """Whether the content of a boundary file is the claim of a copy that is not complete."""
    if data is None or not data.endswith(b"\n"):
        return False
    return number_in(data) is not None


def lowest_there(roots: RootFiles, newest: int, boundary: int) -> int:
    """Return the first of the versions that are there without a gap up to ``newest``, which the boundary lies beyond.

    Where there is a version at the boundary, it is one, and what was the newest version has expired. One ``list`` a
    page.
    """
    there = set(listed_versions(roots))
    if any(version >= boundary for version in there):
        return boundary
    lowest = newest
    while lowest - 1 in there:
        lowest -= 1
    return lowest


def claim_boundary(roots: RootFiles, to: int, seen: bytes | None, known: Container[int]) -> bytes | None:
    """Write ``to`` into the boundary file where a copy will put roots that no older root leads to; return the claim.

    From then on no writer gets a version below ``to`` confirmed: a writer reads the boundary after it has created a
    root. If the copy fails, the roots there open as before, until there is one at the boundary.

    ``seen`` is the content of the file when the place was listed, and ``known`` are the versions whose roots were
    there. Return ``None``, with the number in the file as before, if the file has changed since or if there are other
    roots: another process copies or commits there.

    A claim ends in line breaks, and differs from every earlier claim: two copies never hold the same one.
    :func:`settle_boundary` takes them away. REQUIRES :meth:`Storage.prove_compare_and_set`, and that ``seen`` is not
    the claim of a larger number. One ``get``, ``put`` and ``list``.
    """
    found = roots.storage.read_tagged(spec.BOUNDARY_FILE)
    if found.data != seen:
        return None
    if seen is not None and is_claim(seen) and number_in(seen) == to:
        claim = seen + b"\n"
    else:
        claim = _unused_bytes(seen, to) + b"\n"
    is_alone = _replace_alone(roots, found, claim, lambda version: version in known)
    return claim if is_alone else None


def settle_boundary(
    roots: RootFiles,
    to: int,
    known: Container[int],
    *,
    grows: bool,
    movable: Callable[[], bool],
    claim: bytes | None = None,
) -> bool:
    """Write ``to`` into the boundary file for a copy that is complete, if no other process copies there.

    With ``grows`` the number may not become smaller; with a ``claim`` the file must still contain that. ``movable``
    returns whether the file can be written, and raises where it would have to be. Return ``False`` if this is not so,
    if another process wrote the file at the same time, or if there are roots of other versions than those that are
    ``known``: the file gets the number back that it had. Below a claim there may be others than 0: they were never
    confirmed to a writer. A process that creates such a root after this listing settles the boundary after that, and
    is refused there.

    One ``get``; if the file changes, one ``put`` and one ``list``.
    """
    seen = roots.storage.read_tagged(spec.BOUNDARY_FILE)
    number = _number(seen)
    if seen.data is not None and number == to and not is_claim(seen.data):
        return True
    if claim is not None:
        if seen.data != claim:
            return False
    elif grows and number is not None and number > to:
        return False
    if not movable():
        return True
    claimed = to if claim is not None else 0
    settled = _unused_bytes(seen.data, to)
    return _replace_alone(roots, seen, settled, lambda version: version in known or 0 < version < claimed)


def _replace_alone(roots: RootFiles, seen: Tagged, now: bytes, is_known: Callable[[int], bool]) -> bool:
    """Replace the file if it is as it was seen; give it the number back that it had if a listed version is not known.

    The number stands in bytes of its own then.
    """
    moved = roots.storage.compare_and_set(spec.BOUNDARY_FILE, now, seen)
    if moved is None:
        return False
    if all(map(is_known, listed_versions(roots))):
        return True
    before = (seen.data or b"0\n").lstrip()
    restored = _space_before(now) + b" " + before
    roots.storage.compare_and_set(spec.BOUNDARY_FILE, restored, moved)
    return False


def _unused_bytes(before: bytes | None, to: int) -> bytes:
    """Return the bytes for ``to`` where the file contained ``before``: bytes that it never contained.

    Object stores and disks identify a file by its content, and so does an export that read it a while ago. White space
    means nothing to readers (``number_in``). A process that makes the number larger keeps the spaces before it. A
    process that does not puts one more there. A claim of the number just loses its line breaks: it began with bytes of
    its own.
    """
    number = None if before is None else number_in(before)
    if before is None or number is None:
        return b"%d" % to
    if number == to and is_claim(before):
        return before.rstrip()
    space = _space_before(before)
    if to <= number:
        space += b" "
    return space + b"%d" % to


def _space_before(before: bytes) -> bytes:
    text = before.lstrip()
    return before[: len(before) - len(text)]


def boundary_by_roots(roots: RootFiles) -> int:
    """Return the boundary of the newest root, for when the file is garbage. A listing and one ``get``.

    Raises ``TrinityLakeError``: the newest root cannot be read.
    """
    version, _ = newest_listed(roots)
    root = roots.try_root(version)
    if root is None:
        raise TrinityLakeError(f"{roots.path(version)} was listed and is gone; try again")
    return root.oldest_version


def _number(seen: Tagged) -> int | None:
    return 0 if seen.data is None else number_in(seen.data)
