"""Paths that files of tables name. One that is not absolute says nothing about where a file is: it is a doubt."""

from __future__ import annotations

import re
from typing import Any, Final

from trinitylake_core.iceberg.reading import limits
from trinitylake_core.iceberg.reading.errors import Malformed
from trinitylake_core.tables import full_uri

_ABSOLUTE: Final = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]+:)?/+[^/]")
"""A scheme of one letter is a drive of Windows."""
_GARBLED: Final = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_NO_SEGMENTS: Final = re.compile(r"/(?:\.|%2[Ee]){1,2}(?:/|\Z)")
"""Some engines decode what is percent-encoded."""


def file_uri(path: Any) -> str:
    """Return the URI of a file in one spelling (:func:`full_uri`). Raises ``Malformed``: it names no file."""
    uri = _absolute(path)
    if uri.endswith("/"):
        raise Malformed("is the path of a directory, not of a file")
    return uri


def directory_uri(path: Any) -> str:
    """Return the URI of a directory in one spelling, without a slash at its end. Raises ``Malformed``."""
    return _absolute(path).rstrip("/")


def _absolute(path: Any) -> str:
    if not isinstance(path, str):
        raise Malformed("is no text")
    if not _ABSOLUTE.match(path):
        raise Malformed("is empty" if not path else "is not an absolute path")
    if len(path) > limits.PATH_BYTES:
        raise Malformed(f"has more than {limits.PATH_BYTES:,} characters")
    if _GARBLED.search(path) or _NO_SEGMENTS.search(path):
        raise Malformed("has a control character, half a character, or a segment '.' or '..'")
    return full_uri(path)
