"""The layout of Olympia, the project that TrinityLake became: told apart, so that nothing is written into it.

Its roots lie at ``vn/`` and 64 binary digits, its definitions below ``def/``, its nodes below ``node/``. Neither
program reads files of the other one, and each would call a root of the other empty.
"""

from __future__ import annotations

import re
from typing import Final

from trinitylake_core.errors import InvalidLocation
from trinitylake_core.storage import Storage

_ROOTS: Final = "vn/"
_ROOT: Final = re.compile(r"vn/(latest|[01]{64})")


def refuse_olympia(storage: Storage) -> None:
    """Raise ``InvalidLocation`` for the root of a catalog of Olympia. One ``list``."""
    for file in storage.list(_ROOTS):
        if _ROOT.fullmatch(file.path):
            raise InvalidLocation(
                f"there is a catalog of Olympia at {storage.root} ({file.path}), the project that TrinityLake became: "
                "its layout is another one, which this program neither reads nor changes. Use Olympia's programs for "
                "it, and another root URI for a lakehouse"
            )
