"""Who may do what: bearer tokens, and the patterns of names that their principals may read, write or manage."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from trinitylake_core import clock, yaml_text
from trinitylake_core.errors import InvalidInput
from trinitylake_core.rest.problems import Problem
from trinitylake_core.rest.watched import Watched, reason_of
from trinitylake_core.versions.root import to_millis

READ: Final = "read"
WRITE: Final = "write"
MANAGE: Final = "manage"
RIGHTS: Final = (READ, WRITE, MANAGE)
"""Each right includes those before it. ``manage`` creates, drops and renames; ``write`` changes what is there."""
_HASH: Final = "token_sha256"
_TOKENS: Final = "tokens"
_FIELDS: Final = frozenset({_HASH, _TOKENS, *RIGHTS})
_TOKEN_FIELDS: Final = frozenset({"sha256", "expires"})
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_SOME: Final = re.compile(r"\[[^]]+\]|[*?]")
"""What stands for characters in a pattern."""
_EXAMPLE: Final = "principals: {etl: {token_sha256: ..., write: ['sales.*'], read: ['*']}}"
_Rights = Mapping[str, Sequence[str]]


class WrongToken(Problem):
    """A token that nobody has; its answer waits, so that guessing takes long."""

    def __init__(self) -> None:
        super().__init__(401, "NotAuthorizedException", "the bearer token is not known to this endpoint")


class ExpiredToken(Problem):
    """A token that its owner has to replace. Nobody else learns that: it is somebody's."""

    def __init__(self) -> None:
        super().__init__(401, "NotAuthorizedException", "the bearer token has expired: ask for a new one")


@dataclass(frozen=True, slots=True)
class Principal:
    """Who sent a request; their name is the author in the history.

    A table is ``namespace.name``; ``*`` matches every character.

    Attributes:
        allowed: patterns of names by right, in the only lakehouse that there is.
        lakehouses: patterns of names by right, for each lakehouse that they name.
        everywhere: whether ``allowed`` counts in every lakehouse.
    """

    name: str
    allowed: _Rights
    lakehouses: Mapping[str, _Rights] = field(default_factory=dict)
    everywhere: bool = False

    def within(self, lakehouse: str) -> Principal:
        """Return the principal with the rights in one lakehouse."""
        own = self.lakehouses.get(lakehouse, {})
        rights = {}
        for right in RIGHTS:
            here = own.get(right, ())
            rights[right] = (*self.allowed.get(right, ()), *here)
        return replace(self, allowed=rights, lakehouses={})

    @property
    def has_rights(self) -> bool:
        """Whether there is anything that the principal may do in the only lakehouse."""
        return any(self.allowed.values())

    @property
    def manages_all(self) -> bool:
        """Whether there is nothing that the principal may not manage."""
        return "*" in self.allowed.get(MANAGE, ())

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
    """The principals that an endpoint knows, by the hashes of their tokens. Tokens themselves are stored nowhere.

    Args:
        by_hash: the principals.
        expiries: when tokens expire, in epoch milliseconds, by their hashes; others never do.
    """

    def __init__(self, by_hash: Mapping[str, Principal], expiries: Mapping[str, int] | None = None) -> None:
        self._by_hash = dict(by_hash)
        self._expiries = dict(expiries or {})

    @classmethod
    def one(cls, token: str, name: str) -> Principals:
        """Return principals of which the only one may do everything."""
        return cls({hash_token(token): almighty(name)})

    @staticmethod
    def of_file(path: str | Path) -> Principals:
        """Read principals from a YAML file, and again whenever it has changed.

        Raises ``InvalidInput`` with the path, the line and what is wrong.
        """
        return _PrincipalsOfFile(Path(path))

    def bind_rights(self, lakehouses: Sequence[str]) -> None:
        """Let the rights count in the lakehouses of an endpoint.

        Raises ``InvalidInput``: a right names none of two or more, or one that is not served.
        """
        for principal in self._by_hash.values():
            for right in RIGHTS:
                _refuse_other_lakehouses(principal, right, lakehouses)

    def of(self, authorization: str | None) -> Principal:
        """Return the principal of an ``Authorization`` header. Raises ``Problem`` (401).

        For a token that is not known that is ``WrongToken``, and ``ExpiredToken`` for one that was.
        """
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise Problem(401, "NotAuthorizedException", "this endpoint requires a bearer token: set 'token'")
        given = hash_token(token.strip())
        for known, principal in self._by_hash.items():
            if hmac.compare_digest(given, known):
                expiry = self._expiries.get(known)
                if expiry is not None and clock.now_millis() >= expiry:
                    raise ExpiredToken
                return principal
        raise WrongToken


def almighty(name: str) -> Principal:
    """Return a principal who may do everything."""
    return Principal(name, {MANAGE: ("*",)}, everywhere=True)


def _refuse_other_lakehouses(principal: Principal, right: str, served: Sequence[str]) -> None:
    """Raise ``_Wrong`` for a right in a lakehouse that is not served, or in none of several."""
    if principal.allowed.get(right) and not principal.everywhere and len(served) > 1:
        listed = ", ".join(served)
        raise _Wrong(
            f"{principal.name}.{right} names no lakehouse, and there are {listed}: write {{{served[0]}: [...]}}",
            principal.name,
            right,
        )
    for lakehouse, rights in principal.lakehouses.items():
        if not rights.get(right):
            continue
        if lakehouse not in served:
            raise _Wrong(
                f"{principal.name}.{right} matches nothing: no lakehouse {lakehouse!r} is served here",
                principal.name,
                right,
                lakehouse,
            )


class _Wrong(InvalidInput):
    """Something is wrong with an entry of a file; ``keys`` lead to it, from the top."""

    def __init__(self, text: str, *keys: Any) -> None:
        super().__init__(text)
        self.keys: tuple[Any, ...] = ("principals", *keys)


class _PrincipalsOfFile(Principals):
    """The principals of a file, which is read again when it changes. A broken one changes nothing."""

    def __init__(self, path: Path) -> None:
        super().__init__({})
        self._path = path
        self._lakehouses: Sequence[str] = ()
        self._watched = self._watch()

    def bind_rights(self, lakehouses: Sequence[str]) -> None:
        """Let the rights count in the lakehouses of an endpoint, now and whenever the file is read again."""
        self._lakehouses = lakehouses
        self._watched = self._watch()

    def of(self, authorization: str | None) -> Principal:
        """Return the principal of an ``Authorization`` header, as the file is now. One ``stat`` of the file."""
        return self._watched.get().of(authorization)

    def _watch(self) -> Watched[Principals]:
        try:
            return Watched([self._path], self._read_file, "the tokens of before stay valid")
        except (OSError, InvalidInput) as error:
            text = f"{self._path} is not a file of principals: {reason_of(error)}; write {_EXAMPLE}"
            raise InvalidInput(text) from None

    def _read_file(self) -> Principals:
        """Return what the file says now. Raises ``InvalidInput`` with what is wrong and the line, and ``OSError``."""
        data = self._path.read_bytes()
        try:
            text = data.decode()
        except UnicodeDecodeError:
            raise InvalidInput("it is not UTF-8") from None
        found = yaml_text.load(text, self._path.name)
        try:
            known = Principals(*_parse(found))
            if self._lakehouses:
                known.bind_rights(self._lakehouses)
        except _Wrong as error:
            line = yaml_text.line_of(text, *error.keys)
            raise InvalidInput(f"line {line}: {error}") from None
        return known


def _parse(found: Any) -> tuple[dict[str, Principal], dict[str, int]]:
    """Return the principals of a file by the hashes of their tokens, and when these expire.

    Raises ``InvalidInput`` with what is wrong.
    """
    if not isinstance(found, dict):
        raise InvalidInput("it has no 'principals'")
    entries = found.get("principals")
    if not isinstance(entries, dict):
        raise InvalidInput("it has no 'principals'")
    for other in found:
        if other != "principals":
            wrong = _Wrong(f"there is no field {other!r}, but for 'principals'")
            wrong.keys = (other,)
            raise wrong
    by_hash: dict[str, Principal] = {}
    expiries: dict[str, int] = {}
    names = set[str]()
    for key, entry in entries.items():
        name = str(key)
        if name in names:
            raise _Wrong(f"{name} is there twice", key)
        names.add(name)
        principal = _principal(name, entry)
        for digest, expiry in _tokens(name, entry).items():
            if digest in by_hash:
                raise _Wrong(f"{name} has the token of {by_hash[digest].name}", key)
            by_hash[digest] = principal
            if expiry is not None:
                expiries[digest] = expiry
    return by_hash, expiries


def _principal(name: str, entry: Any) -> Principal:
    if not isinstance(entry, dict):
        raise _Wrong(f"{name} has no fields", name)
    for each in entry:
        if each not in _FIELDS:
            raise _Wrong(f"{name} has unknown fields: {each}", name, each)
    allowed = {}
    lakehouses: dict[str, dict[str, Sequence[str]]] = {}
    for right in RIGHTS:
        rule = entry.get(right, [])
        if not isinstance(rule, dict):
            allowed[right] = _patterns(rule, name, right)
            continue
        for lakehouse, patterns in rule.items():
            allowed_there = lakehouses.setdefault(str(lakehouse), {})
            allowed_there[right] = _patterns(patterns, name, right, lakehouse)
    return Principal(name, allowed, lakehouses)


def _tokens(name: str, entry: Mapping[str, Any]) -> dict[str, int | None]:
    """Return the hashes of the tokens of a principal, and when each expires, in epoch milliseconds."""
    found: dict[str, int | None] = {}
    given = entry.get(_TOKENS, [])
    if not isinstance(given, list) or (_HASH not in entry and not given):
        raise _Wrong(f"{name} has no {_HASH}, and no list of {_TOKENS}", name)
    if _HASH in entry:
        found[_hash(entry[_HASH], name, _HASH)] = None
    for index, token in enumerate(given):
        digest, expiry = _token(token, name, _TOKENS, index)
        if digest in found:
            raise _Wrong(f"{name} has a token twice", name, _TOKENS, index)
        found[digest] = expiry
    return found


def _token(token: Any, name: str, *keys: Any) -> tuple[str, int | None]:
    """Return the hash of a token in a list, and when it expires."""
    is_mapping = isinstance(token, dict)
    if not is_mapping or "sha256" not in token or token.keys() - _TOKEN_FIELDS:
        raise _Wrong(f"{name}.{_TOKENS} needs entries such as {{sha256: ..., expires: 2027-01-31}}", name, *keys)
    digest = _hash(token["sha256"], name, *keys)
    if "expires" not in token:
        return digest, None
    return digest, _expiry(token["expires"], name, *keys)


def _hash(value: Any, name: str, *keys: Any) -> str:
    digest = str(value).lower()
    if not _SHA256.fullmatch(digest):
        raise _Wrong(f"{name}.{keys[0]} is not a SHA-256 in hexadecimal", name, *keys)
    return digest


def _expiry(value: Any, name: str, *keys: Any) -> int:
    """Return a date or a time of YAML as epoch milliseconds, in UTC where it has no time zone."""
    try:
        return to_millis(str(value))
    except InvalidInput as error:
        raise _Wrong(f"{name}.{keys[0]}: {error}", name, *keys) from None


def _patterns(found: Any, name: str, *keys: Any) -> tuple[str, ...]:
    place = ".".join(map(str, (name, *keys)))
    is_list = isinstance(found, list)
    # A text would be a list of characters, and its * would allow all.
    if not is_list or not all(isinstance(each, str) for each in found):
        raise _Wrong(f"{place} is not a list of patterns, such as ['sales.*']", name, *keys)
    for index, pattern in enumerate(found):
        if not _may_match(pattern):
            raise _Wrong(f"{place}: no name matches {pattern!r}", name, *keys, index)
    return tuple(found)


def _may_match(pattern: str) -> bool:
    """Whether there may be a name that a pattern matches: each of its levels can be one."""
    sample = _SOME.sub("x", pattern)
    levels = sample.replace("\\.", "").split(".")
    return all(map(is_addressable, levels))


def is_addressable(name: str) -> bool:
    """Whether a path can hold a name, so that every client and every proxy means the same by it."""
    if not name or name in {".", ".."}:
        return False
    if name != name.strip() or "/" in name:
        return False
    return name.isprintable()


def hash_token(token: str) -> str:
    """Return the hash of a token, as the file of principals contains it."""
    return hashlib.sha256(token.encode()).hexdigest()
