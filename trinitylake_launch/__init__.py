"""The program ``trinitylake``: makes sure that the packages it needs are ours, before any of them is imported.

``pipelines`` is a name that other people give to folders, too, and a second checkout has a ``trinitylake_core`` of its
own. Such a folder in front of ours on Python's path is imported instead, and would fail somewhere with "No module
named 'pipelines.…'". This package lies beside the others, under a name that nobody else gives.
"""

from __future__ import annotations

import sys

_WRONG_INPUT = 2


def describe_foreign(name: str) -> str | None:
    """Return the sentence for a package of this name that is not beside this one, ``None`` if it is ours.

    It is not imported.
    """
    from importlib.util import find_spec
    from pathlib import Path

    spec = find_spec(name)
    if spec is None:
        return None
    places = list(spec.submodule_search_locations or [spec.origin or ""])
    if not places or Path(places[0]).resolve() == Path(__file__).resolve().parents[1] / name:
        return None
    return (
        f"{name!r} means {places[0]} here, which hides the package of that name that belongs to trinitylake: give "
        "trinitylake an environment of its own without that folder on PYTHONPATH, or rename the folder "
        "(docs/runbook.md#by-error-message)"
    )


def main() -> int:
    """Run the command line and return its exit code."""
    foreign = describe_foreign("trinitylake_core")
    if foreign is not None:
        return refuse(foreign)
    from trinitylake_core.launch import main as run

    return run()


def refuse(sentence: str) -> int:
    """Report wrong input where nothing of ours can be imported; return the exit code."""
    sys.stderr.write(f"error: {sentence}\n")
    if "--json" in sys.argv:
        import json

        document = {"error": {"type": "InvalidInput", "message": sentence}}
        sys.stdout.write(json.dumps(document) + "\n")
    return _WRONG_INPUT
