"""What the program ``trinitylake`` does once this package is known to be ours: the command line is imported here.

``trinitylake_launch``, which lies beside this package, says which packages are somebody else's.
"""

from __future__ import annotations

import sys
from importlib import import_module

_INTERRUPTED = 130


def main() -> int:
    """Run the command line and return its exit code. An interruption is reported as soon as this module is loaded."""
    try:
        from trinitylake_launch import describe_foreign, refuse

        foreign = describe_foreign("pipelines")
        if foreign is not None:
            return refuse(foreign)
        return int(import_module("pipelines.cli").main())
    except KeyboardInterrupt:  # while the program is still being loaded
        sys.stderr.write("error: interrupted\n")
        return _INTERRUPTED
