"""Root URIs: one spelling for each, and clear errors for wrong ones."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import unquote, unquote_to_bytes

from trinitylake_core.errors import InvalidLocation

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*):(//)?")
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_CONTAINERS = frozenset({"abfs", "abfss", "wasb", "wasbs"})
_SECRET_QUERY = re.compile(r"(?i)[?&][^=&]*(sig|token|secret|passw|key|credential)[^=&]*=")
S3_SCHEMES = {"s3": "s3", "s3a": "s3", "s3n": "s3"}
BLOBS = {"az": "az", "abfs": "az", "abfss": "az", "gs": "gs", "gcs": "gs"}
"""The schemes of Azure and Google, and what options have in common."""


def root_uri(root: str | os.PathLike[str]) -> str:
    """Return a root, as people write it, as a URI: a path becomes that of its directory, a URI stays. No request.

    Raises ``InvalidLocation`` for a path that cannot be one.
    """
    if isinstance(root, str) and (not root or "://" in root or _URI.match(root)):
        return root
    if not isinstance(root, str | os.PathLike):
        raise InvalidLocation(f"a root must be a URI or a path, not {type(root).__name__}")
    try:
        return Path(root).expanduser().resolve().as_uri()
    except (OSError, RuntimeError, ValueError) as error:  # too long, an unknown ~user, a NUL
        why = getattr(error, "strerror", None) or error
        raise InvalidLocation(f"{str(root)[:100]!r} cannot be a path: {why}") from None


def normalise_root(uri: str) -> str:
    """Return the root URI in its one spelling, ending in ``/``. No request.

    ``s3a://`` becomes ``s3://``, ``file:/x`` becomes ``file:///x/``. Raises ``InvalidLocation`` for
    anything without a scheme, with credentials in it, or with empty, ``.`` or ``..`` segments.
    """
    if not isinstance(uri, str):
        raise InvalidLocation(f"a root URI must be a string, not {type(uri).__name__}")
    match = _SCHEME.match(uri)
    if match is None or len(match.group(1)) == 1:
        if "@" in uri:  # it may hold a password
            uri = "***"
        raise InvalidLocation(
            f"root URI {uri!r} has no scheme; write {f'file://{Path(uri).absolute()}'!r} for a local directory "
            "(file:///abs/path) or s3://bucket/path for an object store"
        )
    scheme = match.group(1).lower()
    rest = uri[match.end() :]
    _refuse_credentials(scheme, rest)
    if _CONTROL.search(uri):
        raise InvalidLocation(f"root URI {uri!r} holds control characters")
    if scheme == "file":
        if rest.startswith("localhost/"):
            rest = rest.removeprefix("localhost")
        if not rest.startswith("/"):
            raise InvalidLocation(f"root URI {uri!r} must name an absolute path; write file:///abs/path")
        segments = []
        for segment in rest.split("/"):
            if segment:
                segments.append(segment)
        _refuse_dots([unquote(segment) for segment in segments], uri)
        return "file:///" + "".join(f"{segment}/" for segment in segments)
    if match.group(2) is None:
        raise InvalidLocation(f"root URI {uri!r} lacks '//' after the scheme; write {scheme}://...")
    return _normalise_remote(S3_SCHEMES.get(scheme, scheme), rest)


def local_path(root: str) -> str:
    """Return the absolute directory, without a trailing ``/``, that a normalised ``file`` root names."""
    return os.fsdecode(unquote_to_bytes(root.removeprefix("file://"))).rstrip("/") or "/"


def real_root(root: str) -> str:
    """Return a normalised root by the directory that it is: links are followed. Roots that are no files as they are."""
    if not root.startswith("file:"):
        return root
    return f"{Path(local_path(root)).resolve().as_uri().rstrip('/')}/"


def same_place(one: str, two: str) -> bool:
    """Whether two normalised roots are one directory: by links, by mounts, or because they are the same text."""
    if one == two or not (one.startswith("file:") and two.startswith("file:")):
        return one == two
    try:
        return Path(local_path(one)).samefile(local_path(two))
    except OSError:  # one that is not there yet is no other's
        return real_root(one) == real_root(two)


def _normalise_remote(scheme: str, rest: str) -> str:
    authority, _, path = rest.partition("/")
    if not authority and (scheme == "s3" or not path.strip("/")):
        raise InvalidLocation(f"root URI '{scheme}://{rest}' names no bucket; write {scheme}://bucket/path")
    if scheme == "s3" and authority.startswith("arn:"):
        # Nothing in a URI tells where the ARN ends, and what reads tables takes all before the slash for a name.
        raise InvalidLocation(
            f"root URI '{scheme}://{rest}' names a bucket by an ARN; write the alias of the access point, which is a "
            f"name as those of buckets are: {scheme}://name-…-s3alias/path"
        )
    path = path.rstrip("/")
    if path:
        _refuse_dots(path.split("/"), f"{scheme}://{rest}")
    root = f"{scheme}://{authority}/{path}"
    if root.endswith("/"):
        return root
    return f"{root}/"


def refuse_credentials(uri: str, what: str) -> None:
    """Raise ``InvalidLocation`` if a URI holds credentials; ``what`` names it. Anything without a scheme passes."""
    match = _SCHEME.match(uri)
    if match is None:
        return
    scheme = match.group(1).lower()
    if len(scheme) > 1:  # one letter is a drive of Windows
        rest = uri[match.end() :]
        _refuse_credentials(scheme, rest, what)


def _refuse_credentials(scheme: str, rest: str, what: str = "root URI") -> None:
    """Refuse credentials in a URI, of any scheme, and print nothing of it: they would end up in logs.

    A user without a password is one, too, unless the part before ``@`` is a container (``abfs://container@account``).
    """
    without_query, _, _ = rest.partition("?")
    authority, _, _ = without_query.partition("/")
    user, at, _ = authority.rpartition("@")
    secret = ":" in user or "%3a" in user.lower() or scheme not in _CONTAINERS
    query = scheme != "file" and _SECRET_QUERY.search(rest)
    if (at and secret) or query:
        raise InvalidLocation(f"{what} {scheme}://*** holds credentials; pass them as storage options")


def _refuse_dots(segments: list[str], uri: str) -> None:
    if any(segment in {"", ".", ".."} or "/" in segment for segment in segments):
        raise InvalidLocation(f"root URI {uri!r} holds an empty, '.' or '..' segment")
