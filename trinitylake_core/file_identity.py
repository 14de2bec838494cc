"""Which file of the cleaned area a URI may mean: files are compared by what they are, not by how a URI spells them.

Every file that a cleaning may remove lies in a directory whose name ends in twelve random hexadecimal digits. So the
end of a path from that directory on is the identity of the file, its *key*: two files have different keys, and whatever
stands before it (another name of the bucket, a mount, `abfss://` or `az://`) says nothing. Keys are texts that tables
can be joined by: no two names are ever compared one by one.
"""

from __future__ import annotations

import os
import posixpath
import re
import stat
import unicodedata
from collections.abc import Iterator
from typing import Final
from urllib.parse import unquote

from trinitylake_core.tables import DIRECTORY, full_uri

_OWN: Final = re.compile(r"[^/]+-[0-9a-f]{12}/")
"""The name of the directory that this catalog gives to one table."""
_NESTED_PERCENT: Final = re.compile(r"%(?:25)+")
_OWN_IN_AREA: Final = re.compile(rf"(?=(?:/|\A)({DIRECTORY}[^/]+/[^/]+-[0-9a-f]{{12}}/))")
"""The same below the area; a look ahead, so that the area of one lakehouse in that of another is found, too."""
_QUERY: Final = re.compile(r"[?#]")
_DECODINGS: Final = 3
_PLAIN: Final = re.compile(r"[ -\"$&->@-\[\]-~]+")
"""Characters that have one spelling: printable ones, but for the percent sign, ``?``, ``#`` and the backslash."""
_LOCAL: Final = "file://"


def file_keys(name: str) -> Iterator[str]:
    """Yield the keys of a file, given as URI or path: each end of it that begins with a table's own directory.

    A file has one key but for directories of partitions that look like a table's. Of a name with ``?`` or ``#`` some
    readers see only what stands before that, so it has the keys of that, too. No request.
    """
    cut = _QUERY.split(name, maxsplit=1)[0]
    for each in (name,) if cut == name else (name, cut):
        path = _canonical(each)
        for own in _OWN.finditer(path):
            yield path[own.start() :]


def is_plain(path: str) -> bool:
    """Whether the path of a file of the area is also its only spelling: nothing in it is encoded in any way."""
    return path.startswith(DIRECTORY) and "//" not in path and _PLAIN.fullmatch(path) is not None


def plain_name(path: str) -> str:
    """Return the path of a listed file as one would spell it that encodes nothing: some stores encode names."""
    return _canonical(path)


def ends_in_area(uri: str) -> Iterator[str]:
    """Yield each end of a URI that is the path of a file that a cleaning may remove, in one spelling. No request."""
    path = _canonical(uri)
    for own in _OWN_IN_AREA.finditer(path):
        yield path[own.start(1) :]


def _canonical(name: str) -> str:
    """Return a path or URI without percent signs, empty segments and dots, whoever has encoded it how often.

    A letter with an accent may be one character or two: disks of some systems change one into the other.
    """
    for _ in range(_DECODINGS):
        if "%" not in name:
            break
        name = unquote(_NESTED_PERCENT.sub("%", name))
    return posixpath.normpath(unicodedata.normalize("NFC", name).replace("\\", "/"))


class LocalLinks:
    """Where links of this machine's disk lead. Each directory is resolved once, so use it for one piece of work."""

    def __init__(self) -> None:
        self._directories: dict[str, str] = {}

    def target(self, uri: str) -> str | None:
        """Return the URI of a local file by its name without links; ``None`` where that is the same, or not local.

        A file that is not there has no link. One look at the file, and one at each directory above it the first time.
        """
        spelled = full_uri(uri)
        if not spelled.startswith(f"{_LOCAL}/"):
            return None
        found = self.target_of_path(spelled.removeprefix(_LOCAL))
        return None if found is None else f"{_LOCAL}{found}"

    def target_of_path(self, path: str) -> str | None:
        """Return the same of an absolute path, as a path."""
        directory, _, name = path.rpartition("/")
        real = self._directories.get(directory)
        if real is None:
            real = self._directories[directory] = _real(directory).rstrip("/")
        found = path if real == directory else f"{real}/{name}"
        if _is_link(found):
            found = _real(found)
        return None if found == path else found


def _is_link(path: str) -> bool:
    try:
        return stat.S_ISLNK(os.lstat(path).st_mode)
    except (OSError, ValueError):  # not there, too long, or not to be a path
        return False


def _real(path: str) -> str:
    try:
        return os.path.realpath(path or "/")
    except (OSError, ValueError):  # too long, or not to be a path: no file has this name
        return path
