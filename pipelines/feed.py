"""The feed of changes: each version once, oldest first, with the objects that it changed.

A program that follows a lakehouse (lineage, a cache, models of dbt) keeps the number of the last version that it has
dealt with, and goes on after it. What expired in between is named, never passed over in silence.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trinitylake_core import Change, Corrupt, Lakehouse, VersionExpired, VersionInfo, VersionNotFound
from trinitylake_core.spec import QUIET_OPERATIONS
from trinitylake_core.versions import unreadable_root, version_info


@dataclass(frozen=True, slots=True)
class Entry:
    """One version.

    Attributes:
        version: number, time, operation, author and reason of the version.
        not_compared: why the objects that it changed are not known, ``None`` if they are.
        changed: the objects that it changed. They are read as the caller asks for them.
    """

    version: VersionInfo
    not_compared: str | None
    changed: Iterator[Change]


def entries(lake: Lakehouse, after: int) -> Iterator[Entry]:
    """Yield the versions after one, up to that of the handle, oldest first.

    Two ``get`` for each, and the nodes that it does not share with the version before it; maintenance, which changes
    no object, costs no node. A version that expired after ``after`` is no entry: the first one that is kept says which
    are missing. A version that cannot be read is an entry that reports this, and so is the one after it.

    Raises:
        VersionNotFound: ``after`` is beyond the newest version.
    """
    if after > lake.version:
        raise VersionNotFound(f"version {after} does not exist; the newest version is {lake.version}")
    before, why = _readable(lake, after)
    number = after + 1
    while number <= lake.version:
        this, missing = _readable(lake, number)
        if this is None and (kept := lake.files.versions.kept_from(lake.version)) > number:
            before, why, number = None, f"versions {number} to {kept - 1} have expired", kept
            continue
        if this is None:
            yield Entry(version_info(unreadable_root(number, "", missing or "")), missing, iter(()))
        else:
            yield _entry(before, this, why)
        before, why, number = this, missing, number + 1


def _entry(before: Lakehouse | None, this: Lakehouse, why: str | None) -> Entry:
    info = this.info()
    if info.operation in QUIET_OPERATIONS:
        return Entry(info, why, iter(()))
    return Entry(info, why, iter(()) if before is None else before.diff(before, this))


def _readable(lake: Lakehouse, version: int) -> tuple[Lakehouse | None, str | None]:
    """Return a version, or why it cannot be read."""
    try:
        return lake.at(version), None
    except VersionExpired:
        return None, f"version {version} has expired"
    except Corrupt as error:
        return None, f"version {version} cannot be read: {error}"
