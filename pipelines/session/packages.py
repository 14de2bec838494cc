"""Our packages as something that can be shipped: one zip file with the same bytes for the same sources."""

from __future__ import annotations

import atexit
import hashlib
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

_EPOCH = (1980, 1, 1, 0, 0, 0)


def source_directories(*packages: ModuleType) -> list[str]:
    """Return the directories that packages are imported from, each once."""
    return list(dict.fromkeys(str(_directory(package).parent) for package in packages))


@cache
def zipped(*packages: ModuleType) -> Path:
    """Return a zip file of the Python sources of packages; it exists as long as this process.

    Its name holds a hash of its content: a Spark session refuses another file of a known name.
    """
    sources = sorted(each for package in packages for each in _sources(package))
    digest = hashlib.sha256()
    for name, file in sources:
        digest.update(name.encode() + b"\0" + file.read_bytes() + b"\0")
    directory = Path(tempfile.mkdtemp(prefix="trinitylake-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    target = directory / f"trinitylake-{digest.hexdigest()[:16]}.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, file in sources:
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), file.read_bytes())
    return target


def _sources(package: ModuleType) -> Iterator[tuple[str, Path]]:
    directory = _directory(package)
    for file in directory.rglob("*.py"):
        yield file.relative_to(directory.parent).as_posix(), file


def _directory(package: ModuleType) -> Path:
    return Path(str(package.__file__)).resolve().parent
