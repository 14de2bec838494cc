"""The version before the last change of some objects: what `restore ROOT NAME` goes back to, without being told one."""

from __future__ import annotations

from collections.abc import Sequence

from trinitylake_core import Lakehouse, VersionExpired, VersionNotFound
from trinitylake_core.errors import Corrupt
from trinitylake_core.recovery.patterns import Pattern
from trinitylake_core.spec import QUIET_OPERATIONS


def find_version_before_change(lake: Lakehouse, patterns: Sequence[str]) -> int:
    """Return the version before the newest one that changed or dropped an object that a pattern matches.

    A version that created what matches is passed over: before it there was nothing to bring back. Two ``get`` for each
    version that is read, newest first, and the nodes that it does not share with the one before it.

    Raises:
        VersionNotFound: no version that is kept changed or dropped such an object.
    """
    wanted = [Pattern(text) for text in patterns]
    after = lake
    while after.version > 0:
        try:
            before = lake.at(version=after.version - 1)
        except (VersionExpired, Corrupt):
            break  # what the version changed can no longer be told
        if after.info().operation not in QUIET_OPERATIONS:
            for change in before.diff(before, after):
                is_wanted = any(pattern.matches(change.namespace, change.name) for pattern in wanted)
                if is_wanted and change.old_path is not None:
                    return before.version
        after = before
    raise VersionNotFound(
        f"no version that is kept changed or dropped {', '.join(patterns)}; say which one to restore from: --version, "
        "--timestamp or --snapshot"
    )
