"""Who may do what: bearer tokens, and the patterns of names that their principals may read, write or manage."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

import yaml

from trinitylake_core.errors import InvalidInput
from trinitylake_core.rest.problems import Problem

READ: Final = "read"
WRITE: Final = "write"
MANAGE: Final = "manage"
RIGHTS: Final = (READ, WRITE, MANAGE)
"""Each right includes those before it. ``manage`` creates, drops and renames; ``write`` changes what is there."""
_HASH: Final = "token_sha256"
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_EXAMPLE: Final = "principals: {etl: {token_sha256: ..., write: ['sales.*'], read: ['*']}}"


@dataclass(frozen=True, slots=True)
class Principal:
    """Who sent a request; their name is the author in the history. ``allowed`` are patterns of names by right.

    A table is ``namespace.name``; ``*`` matches every character.
    """

    name: str
    allowed: Mapping[str, Sequence[str]]

    def may(self, right: str, name: str) -> bool:
        """Return whether the principal has a right on a namespace, table or view of this name."""
        granted = RIGHTS[RIGHTS.index(right) :]
        return any(fnmatchcase(name, pattern) for each in granted for pattern in self.allowed.get(each, ()))

    def require(self, right: str, name: str) -> None:
        """Refuse a request without the right. Raises ``Problem`` (403)."""
        if not self.may(right, name):
            raise Problem(403, "ForbiddenException", f"{self.name} may not {right} {name!r}")


class Principals:
    """The principals that an endpoint knows, by the hashes of their tokens. Tokens themselves are stored nowhere."""

    def __init__(self, by_hash: Mapping[str, Principal]) -> None:
        self._by_hash = dict(by_hash)

    @classmethod
    def one(cls, token: str, name: str) -> Principals:
        """Return principals of which the only one may do everything."""
        return cls({hashed(token): Principal(name, {MANAGE: ("*",)})})

    @classmethod
    def of_file(cls, path: str | Path) -> Principals:
        """Read principals from a YAML file. Raises ``InvalidInput`` with the path and what is wrong."""
        try:
            found = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
            by_hash: dict[str, Principal] = {}
            for name, entry in found["principals"].items():
                if unknown := set(entry) - {_HASH, *RIGHTS}:
                    raise ValueError(f"{name} has unknown fields: {', '.join(sorted(unknown))}")
                digest = str(entry[_HASH]).lower()
                if not _SHA256.fullmatch(digest):
                    raise ValueError(f"{name}.{_HASH} is not a SHA-256 in hexadecimal")
                if digest in by_hash:
                    raise ValueError(f"{name} has the token of {by_hash[digest].name}")
                allowed = {right: entry.get(right, []) for right in RIGHTS}
                for (
                    right,
                    patterns,
                ) in allowed.items():  # a text would be a list of characters, and its * would allow all
                    if not isinstance(patterns, list) or not all(isinstance(each, str) for each in patterns):
                        raise ValueError(f"{name}.{right} is not a list of patterns, such as ['sales.*']")
                by_hash[digest] = Principal(str(name), {right: tuple(each) for right, each in allowed.items()})
            return cls(by_hash)
        except (OSError, yaml.YAMLError, KeyError, TypeError, AttributeError, ValueError) as error:
            raise InvalidInput(f"{path} is not a file of principals ({error}); write {_EXAMPLE}") from error

    def of(self, authorization: str | None) -> Principal:
        """Return the principal of an ``Authorization`` header. Raises ``Problem`` (401)."""
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise Problem(401, "NotAuthorizedException", "this endpoint requires a bearer token: set 'token'")
        given = hashed(token.strip())
        for known, principal in self._by_hash.items():
            if hmac.compare_digest(given, known):
                return principal
        raise Problem(401, "NotAuthorizedException", "the bearer token is not known to this endpoint")


def hashed(token: str) -> str:
    """Return the hash of a token, as the file of principals contains it."""
    return hashlib.sha256(token.encode()).hexdigest()
