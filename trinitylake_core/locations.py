"""Build and parse every path of a lakehouse (format, section 2).

All paths are relative to the root URI. ``parse(build(x)) == x`` for every builder, and nothing in
this project deletes a file whose path :func:`parse` does not recognise.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import mmh3

from trinitylake_core import spec
from trinitylake_core.errors import InvalidLocation

_UUID: Final = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_OPTIMISED: Final = re.compile(r"([01]{4})/([01]{4})/([01]{4})/([01]{8})-([^/]+)")
_ROOT: Final = re.compile(rf"_([01]{{{spec.VERSION_BITS}}})\.ipc")
_SDK_ROOT: Final = re.compile(rf"_([01]{{{spec.SDK_VERSION_BITS}}})\.arrow")
_LAKEHOUSE_DEF: Final = re.compile(rf"_lakehouse_def_({_UUID})\.binpb")
_NODE: Final = re.compile(rf"node-({_UUID})\.(?:ipc|arrow)")
_TXN: Final = re.compile(r"txn-([A-Za-z0-9_.-]+)\.binpb")
_OBJECT: Final = re.compile(rf"(namespace|table|view)-(.+)-({_UUID})\.binpb", re.DOTALL)
_SDK_OBJECT: Final = re.compile(rf"(.+)-({_UUID})\.binpb", re.DOTALL)
_SAFE_PATH: Final = re.compile(r"(?:[01]{4}/){3}[01]{8}-[^/\0]+|_[A-Za-z0-9_.-]+")
_SAFE_PATHS: Final = re.compile(rf"(?:(?:{_SAFE_PATH.pattern})\0)*")
OWN_DIRECTORY: Final = r"tables/[^/]+/[^/]+-[0-9a-f]{12}"
"""The directory that one Iceberg table has, and no other ever gets: at the beginning of a path below the root."""
OWN: Final = re.compile(f"{OWN_DIRECTORY}/")
"""The same, with the slash at its end."""
_UNREADABLE: Final = re.compile(r"[^A-Za-z0-9._-]")
_FOUR_BITS: Final = [format(number, "04b") for number in range(16)]
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


@dataclass(frozen=True, slots=True)
class ParsedPath:
    """The meaning of a path.

    ``kind`` is one of ``root``, ``hint``, ``boundary``, ``lakehouse_def``, ``node``, ``transaction``,
    ``namespace``, ``table``, ``view`` and ``definition`` (an object definition of the published SDK).
    ``version`` is set for roots, ``id`` for files whose names contain one. ``legacy`` names are read, never written.
    """

    kind: str
    version: int | None = None
    id: str | None = None
    legacy: bool = False


@lru_cache(maxsize=4096)  # a commit asks of the same few paths again and again
def validate_path(path: str) -> str:
    """Return ``path`` if it is a valid file path; a pointer must not lead out of the lakehouse.

    Raises ``InvalidLocation``: absolute, with a scheme, or with an empty, ``.`` or ``..`` segment.
    """
    if _SAFE_PATH.fullmatch(path):
        return path
    first, _, _ = path.partition("/")
    # In the first segment a backslash may be that of a drive or a share of Windows; in a later one a name has it.
    if not path or _SCHEME.match(path) or "\0" in path or "\\" in first:
        raise InvalidLocation(f"not a path inside the lakehouse: {path!r}")
    if any(segment in ("", ".", "..") for segment in path.split("/")):
        raise InvalidLocation(f"path has an empty, '.' or '..' segment, so it may lead outside: {path!r}")
    return path


def validate_paths(paths: Sequence[str]) -> None:
    """Validate many paths, those of the usual kind together: an inner node points to a hundred.

    Raises ``InvalidLocation``: as :func:`validate_path`, for the first that is invalid.
    """
    together = "\0".join((*paths, ""))
    if together.count("\0") == len(paths) and _SAFE_PATHS.fullmatch(together):
        return
    for path in paths:
        validate_path(path)


def optimised_path(name: str) -> str:
    """Return the optimised path of an original file name: 20 hash bits spread files over prefixes."""
    name = name.replace("/", "-")
    bits = _bits(name)
    first = _FOUR_BITS[bits >> 16]
    second = _FOUR_BITS[bits >> 12 & 15]
    third = _FOUR_BITS[bits >> 8 & 15]
    rest = _FOUR_BITS[bits >> 4 & 15] + _FOUR_BITS[bits & 15]
    return f"{first}/{second}/{third}/{rest}-{name}"


def _bits(name: str) -> int:
    return mmh3.hash(name.encode(), 0, signed=False) & 0xFFFFF


def new_uuid() -> str:
    """Return a random UUID of version 4 as text. ``uuid.uuid4`` takes twice as long, and many names are tried."""
    digits = os.urandom(16).hex()
    variant = "89ab"[int(digits[16], 16) & 3]
    third = "4" + digits[13:16]
    fourth = variant + digits[17:20]
    return f"{digits[:8]}-{digits[8:12]}-{third}-{fourth}-{digits[20:]}"


def root_path(version: int) -> str:
    """Return the path of the root node of ``version``.

    Raises ``InvalidLocation``: the version does not fit into 32 bits.
    """
    if not 0 <= version <= spec.MAX_VERSION:
        raise InvalidLocation(f"version {version} is not between 0 and {spec.MAX_VERSION}")
    bits = f"{version:0{spec.VERSION_BITS}b}"
    return f"_{bits[::-1]}.ipc"  # reversed, so that neighbouring versions lie under different prefixes


def sdk_root_path(version: int) -> str:
    """Return the path under which the published Java SDK keeps the root of ``version``."""
    if not 0 <= version < 2**63:
        raise InvalidLocation(f"version {version} does not fit into 63 bits")
    bits = f"{version:0{spec.SDK_VERSION_BITS}b}"
    return f"_{bits[::-1]}.arrow"


def lakehouse_def_path() -> str:
    """Return a new path for a lakehouse definition."""
    return f"_lakehouse_def_{new_uuid()}.binpb"


def node_path() -> str:
    """Return a new path for a non-root node."""
    return optimised_path(f"node-{new_uuid()}.ipc")


def transaction_path(transaction_id: str) -> str:
    """Return the path of the saved transaction of this ID."""
    return optimised_path(f"txn-{transaction_id}.binpb")


def definition_path(kind: str, namespace: str, name: str | None = None) -> str:
    """Return a new path for an object definition; ``kind`` is ``namespace``, ``table`` or ``view``.

    The names in it are for people: they keep letters, digits, ``.``, ``_`` and ``-``, anything else becomes ``_``, so
    that no file name breaks an XML request, a shell or a log. They are cut where the last segment would outgrow what
    file systems take. Readers follow the stored pointer only, and :func:`parse` knows the names written before, too.
    """
    label = namespace if name is None else f"{namespace}-{name}"
    label = _UNREADABLE.sub("_", label)
    tail = f"-{new_uuid()}.binpb"
    around = len("00000000-") + len(f"{kind}-") + len(tail)
    room = spec.FILE_NAME_MAX_BYTES - around
    return optimised_path(f"{kind}-{label[:room]}{tail}")


def parse(path: str) -> ParsedPath | None:
    """Return the kind of file that ``path`` names, or ``None`` when the format does not define the name.

    An optimised path is recognised only if its prefix is the hash of its name.
    """
    match = _OPTIMISED.fullmatch(path)
    if match is not None:
        *prefix, name = match.groups()
        if int("".join(prefix), 2) != _bits(name):
            return None
        return _parse_name(name)
    if path == spec.HINT_FILE:
        return ParsedPath("hint")
    if path == spec.BOUNDARY_FILE:
        return ParsedPath("boundary")
    if match := _ROOT.fullmatch(path):
        return ParsedPath("root", version=int(match[1][::-1], 2))
    if match := _SDK_ROOT.fullmatch(path):
        return ParsedPath("root", version=int(match[1][::-1], 2), legacy=True)
    if match := _LAKEHOUSE_DEF.fullmatch(path):
        return ParsedPath("lakehouse_def", id=match[1])
    return None


def _parse_name(name: str) -> ParsedPath | None:
    if match := _NODE.fullmatch(name):
        return ParsedPath("node", id=match[1], legacy=name.endswith(".arrow"))
    if match := _TXN.fullmatch(name):
        return ParsedPath("transaction", id=match[1])
    if match := _OBJECT.fullmatch(name):
        return ParsedPath(match[1], id=match[3])
    if match := _SDK_OBJECT.fullmatch(name):
        return ParsedPath("definition", id=match[2], legacy=True)
    return None
