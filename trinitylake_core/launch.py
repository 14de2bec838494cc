"""The program ``trinitylake``: makes sure that the packages it needs are ours, before any of them is imported.

``pipelines`` is a name that other people give to folders, too. A folder of that name in front of ours on Python's path
is imported instead, and would fail somewhere with "No module named 'pipelines.…'".
"""

from __future__ import annotations

import sys
from importlib import import_module

_WRONG_INPUT = 2
_INTERRUPTED = 130


def require_ours(name: str) -> None:
    """Refuse a package of this name that is not beside this one. It is not imported.

    Raises ``InvalidInput``: the name means another project's folder; the message names it, and the two ways around it.
    """
    from importlib.util import find_spec
    from pathlib import Path

    from trinitylake_core.errors import InvalidInput

    spec = find_spec(name)
    found = None if spec is None else next(iter(spec.submodule_search_locations or [spec.origin or ""]), None)
    if found is None or Path(found).resolve() == Path(__file__).resolve().parents[1] / name:
        return
    raise InvalidInput(
        f"{name!r} means {found} here, which hides the package of that name that belongs to trinitylake: give "
        f"trinitylake an environment of its own without that folder on PYTHONPATH, or rename the folder "
        "(docs/troubleshooting.md)"
    )


def main() -> int:
    """Run the command line and return its exit code. An interruption is reported as soon as this module is loaded."""
    try:
        import json

        from trinitylake_core.errors import InvalidInput

        try:
            require_ours("pipelines")
        except InvalidInput as error:
            sys.stderr.write(f"error: {error}\n")
            if "--json" in sys.argv:
                sys.stdout.write(json.dumps({"error": {"type": "InvalidInput", "message": str(error)}}) + "\n")
            return _WRONG_INPUT
        return int(import_module("pipelines.cli").main())
    except KeyboardInterrupt:  # while the program is still being loaded
        sys.stderr.write("error: interrupted\n")
        return _INTERRUPTED
