"""Who may do what: bearer tokens, and the patterns of names that their principals may read, write or manage."""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import yaml

from trinitylake_core.errors import InvalidInput
from trinitylake_core.rest.problems import Problem

LOG: Final = logging.getLogger("trinitylake.rest")
READ: Final = "read"
WRITE: Final = "write"
MANAGE: Final = "manage"
RIGHTS: Final = (READ, WRITE, MANAGE)
"""Each right includes those before it. ``manage`` creates, drops and renames; ``write`` changes what is there."""
_HASH: Final = "token_sha256"
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_EXAMPLE: Final = "principals: {etl: {token_sha256: ..., write: ['sales.*'], read: ['*']}}"


class WrongToken(Problem):
    """A token that nobody has; its answer waits, so that guessing takes long."""

    def __init__(self) -> None:
        super().__init__(401, "NotAuthorizedException", "the bearer token is not known to this endpoint")


@dataclass(frozen=True, slots=True)
class Principal:
    """Who sent a request; their name is the author in the history. ``allowed`` are patterns of names by right.

    A table is ``namespace.name``; ``*`` matches every character.
    """

    name: str
    allowed: Mapping[str, Sequence[str]]

    def may(self, right: str, name: str) -> bool:
        """Return whether the principal has a right on a namespace, table or view of this name."""
        including = RIGHTS[RIGHTS.index(right) :]
        for each in including:
            for pattern in self.allowed.get(each, ()):
                if fnmatchcase(name, pattern):
                    return True
        return False

    def require(self, right: str, name: str) -> None:
        """Refuse a request without the right. Raises ``Problem`` (403)."""
        if not self.may(right, name):
            raise Problem(403, "ForbiddenException", f"{self.name} may not {right} {name!r}")


def name_for_rights(identifier: Sequence[str]) -> str:
    r"""Return the name that patterns are compared with: levels joined by dots.

    A dot in the name of a table is written as ``\.``, so that ``b.c`` in ``a`` is not taken for ``c`` in ``a.b``.
    """
    return ".".join(each.replace(".", "\\.") for each in identifier)


class Principals:
    """The principals that an endpoint knows, by the hashes of their tokens. Tokens themselves are stored nowhere."""

    def __init__(self, by_hash: Mapping[str, Principal]) -> None:
        self._by_hash = dict(by_hash)

    @classmethod
    def one(cls, token: str, name: str) -> Principals:
        """Return principals of which the only one may do everything."""
        return cls({hash_token(token): Principal(name, {MANAGE: ("*",)})})

    @staticmethod
    def of_file(path: str | Path) -> Principals:
        """Read principals from a YAML file, and again whenever it has changed.

        Raises ``InvalidInput`` with the path and what is wrong.
        """
        return _PrincipalsOfFile(Path(path))

    def of(self, authorization: str | None) -> Principal:
        """Return the principal of an ``Authorization`` header. Raises ``Problem`` (401), for a token ``WrongToken``."""
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise Problem(401, "NotAuthorizedException", "this endpoint requires a bearer token: set 'token'")
        given = hash_token(token.strip())
        for known, principal in self._by_hash.items():
            if hmac.compare_digest(given, known):
                return principal
        raise WrongToken


_Identity = tuple[int, ...]


class _PrincipalsOfFile(Principals):
    """The principals of a file, which is read again when it changes. A broken one changes nothing."""

    def __init__(self, path: Path) -> None:
        try:
            self._seen, by_hash = _read_file(path)
        except (OSError, InvalidInput) as error:
            raise InvalidInput(f"{path} is not a file of principals: {_reason(error)}; write {_EXAMPLE}") from None
        super().__init__(by_hash)
        self._path = path

    def of(self, authorization: str | None) -> Principal:
        """Return the principal of an ``Authorization`` header, as the file is now. One ``stat`` of the file."""
        self._read_again_if_changed()
        return super().of(authorization)

    def _read_again_if_changed(self) -> None:
        try:
            now = _identity(self._path.stat())
        except OSError:
            now = ()
        if now == self._seen:
            return
        self._seen = now  # what is wrong is said once for each change
        try:
            self._seen, self._by_hash = _read_file(self._path)
        except (OSError, InvalidInput) as error:
            text = "%s has changed and cannot be used (%s): the tokens of before stay valid until it is repaired"
            LOG.warning(text, self._path, _reason(error))
        else:
            LOG.info("%s has changed: it names %d principals now", self._path, len(self._by_hash))


def _read_file(path: Path) -> tuple[_Identity, dict[str, Principal]]:
    """Return what identifies the content of a file, and its principals by the hashes of their tokens.

    Raises ``InvalidInput`` with what is wrong; ``OSError``.
    """
    with path.open("rb") as file:
        identity = _identity(os.fstat(file.fileno()))  # before it is read: a change while it is read is one to come
        text = file.read()
    try:
        found = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        if mark is None:
            raise InvalidInput("it is not YAML") from None
        raise InvalidInput(f"it is not YAML, line {mark.line + 1}") from None
    if not isinstance(found, dict):
        raise InvalidInput("it has no 'principals'")
    entries = found.get("principals")
    if not isinstance(entries, dict):
        raise InvalidInput("it has no 'principals'")
    by_hash: dict[str, Principal] = {}
    for name, entry in entries.items():
        digest = _hash_of_entry(name, entry)
        if digest in by_hash:
            raise InvalidInput(f"{name} has the token of {by_hash[digest].name}")
        allowed = {}
        for right in RIGHTS:
            allowed[right] = _patterns(name, entry, right)
        by_hash[digest] = Principal(str(name), allowed)
    return identity, by_hash


def _hash_of_entry(name: Any, entry: Any) -> str:
    if not isinstance(entry, dict):
        raise InvalidInput(f"{name} has no fields")
    fields = {str(each) for each in entry}
    unknown = fields - {_HASH, *RIGHTS}
    if unknown:
        raise InvalidInput(f"{name} has unknown fields: {', '.join(sorted(unknown))}")
    digest = str(entry.get(_HASH)).lower()
    if not _SHA256.fullmatch(digest):
        raise InvalidInput(f"{name}.{_HASH} is not a SHA-256 in hexadecimal")
    return digest


def _patterns(name: Any, entry: Mapping[str, Any], right: str) -> tuple[str, ...]:
    found = entry.get(right, [])
    # A text would be a list of characters, and its * would allow all.
    is_list = isinstance(found, list)
    if not is_list or not all(isinstance(each, str) for each in found):
        raise InvalidInput(f"{name}.{right} is not a list of patterns, such as ['sales.*']")
    return tuple(found)


def _identity(status: os.stat_result) -> _Identity:
    return (
        status.st_dev,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )


def _reason(error: OSError | InvalidInput) -> str:
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return str(error)


def hash_token(token: str) -> str:
    """Return the hash of a token, as the file of principals contains it."""
    return hashlib.sha256(token.encode()).hexdigest()
