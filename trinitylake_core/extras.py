"""How an extra of this package is installed: from where the package itself came."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, distribution
from typing import Final

_PACKAGE: Final = "trinitylake-maintenance"


def install_command(extra: str) -> str:
    """Return the command that installs an extra: with the wheel or the directory that this program was installed from.

    pip notes that place where it installed from none of its indexes, which may not have the package.
    """
    wanted = f"{_PACKAGE}[{extra}]"
    try:
        noted = distribution(_PACKAGE).read_text("direct_url.json")
    except PackageNotFoundError:
        noted = None
    if noted is not None:
        wanted += f" @ {json.loads(noted)['url']}"
    return f"pip install '{wanted}'"
