"""The home of a Dagster instance on this machine: its ``dagster.yaml``, and how Dagster is started with it.

Dagster is not imported: it takes seconds, and need not be installed. Its settings are those of ``make ui``: runs whose
process died are ended and give back their pool, one maintenance run at a time, and nothing is sent anywhere.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from trinitylake_core.errors import InvalidInput
from trinitylake_core.extras import install_command

HOME_VARIABLE: Final = "DAGSTER_HOME"
HOME_NAME: Final = ".dagster"
FILE_NAME: Final = "dagster.yaml"
_SUPERSEDED: Final = "ignore:Function `dev_command` is superseded"
"""What Python is not to print: Dagster advises another program, which needs a project of its own kind."""
_WORKSPACE: Final = "workspace.yaml"
_VALIDATE: Final = ("-m", "dagster_project.instance", "validate")
_NEEDED: Final = ("dagster", "dagster_webserver")


def require_dagster() -> None:
    """Raise ``InvalidInput`` where Dagster, or its pages, are not installed."""
    for name in _NEEDED:
        if find_spec(name) is None:
            raise InvalidInput(f"this needs the extra 'dagster' ({name}): {install_command('dagster')}")


def choose_home(environment: Mapping[str, str], directory: Path) -> Path:
    """Return the home that the environment names, by default one beside ``lakehouses.yaml``."""
    named = environment.get(HOME_VARIABLE)
    if named:
        return Path(named).expanduser().absolute()
    return (directory / HOME_NAME).absolute()


def write_settings(home: Path) -> bool:
    """Write ``dagster.yaml`` into a home that has none; return whether it was written. One that is there stays.

    Raises ``InvalidInput``: the directory or the file cannot be made.
    """
    target = home / FILE_NAME
    if target.exists():
        return False
    try:
        home.mkdir(parents=True, exist_ok=True)
        unfinished = home / f"{FILE_NAME}.new"
        shutil.copyfile(_find_file(FILE_NAME), unfinished)
        unfinished.replace(target)  # whole, or not at all: half of it may be valid, and lack what frees pools
    except OSError as error:
        raise InvalidInput(f"cannot write {target}: {error.strerror or error}") from None
    return True


def _find_file(name: str) -> Path:
    """Return a file of the package for Dagster, which nothing here imports."""
    spec = find_spec("dagster_project")
    if spec is None or spec.origin is None:
        raise InvalidInput("the package dagster_project is not installed: install trinitylake-maintenance again")
    return Path(spec.origin).parent / name


def start_command(host: str, port: int) -> list[str]:
    """Return the command line of Dagster: its pages and its daemon, with the code location of this project."""
    words = [sys.executable, "-W", _SUPERSEDED, "-m", "dagster", "dev", "--workspace", str(_find_file(_WORKSPACE))]
    return [*words, "--host", host, "--port", str(port)]


def list_mistakes(environment: Mapping[str, str]) -> list[str]:
    """Return what is wrong in the ``lakehouses.yaml`` that an environment names, a line for each mistake.

    By a process of its own, because the command line imports nothing of Dagster.
    """
    words = [sys.executable, *_VALIDATE]
    done = subprocess.run(words, env=environment, stdout=subprocess.PIPE, text=True, check=False)  # noqa: S603 - ours
    return done.stdout.splitlines()
