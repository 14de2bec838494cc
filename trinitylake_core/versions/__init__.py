"""Versions: roots, the newest one, history and time travel (format, sections 2, 3 and 6).

``root`` is the content of one root, ``files`` reads single files, ``search`` finds the newest version, ``boundary``
moves the boundary, ``versions`` finds all others, also for a pass over many versions.
"""

from trinitylake_core.versions.boundary import (
    claim_boundary,
    is_claim,
    lower_lying_boundary,
    raise_boundary,
    settle_boundary,
)
from trinitylake_core.versions.counts import (
    CountBounds,
    ObjectCounts,
    SystemRows,
    bounds_in,
    is_number,
    parse_bounds,
    sum_bounds,
)
from trinitylake_core.versions.root import (
    MENDED,
    Delta,
    Member,
    Root,
    RootRows,
    VersionInfo,
    from_millis,
    objects_of,
    to_millis,
    unreadable_root,
    version_info,
)
from trinitylake_core.versions.root_files import LOST_MARK, copy_of_definition, number_in
from trinitylake_core.versions.versions import Versions, VersionsReadOnce
