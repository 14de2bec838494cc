"""Who may do what: tokens, and the patterns of names that their principals may read, write or manage."""

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
from trinitylake_core.rest.issuers import Issuer, Keys, unverified_issuer
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
_SUBJECTS: Final = "subjects"
_GROUPS: Final = "groups"
_RATE: Final = "rate"
_FIELDS: Final = frozenset({_HASH, _TOKENS, _SUBJECTS, _GROUPS, _RATE, *RIGHTS})
_ISSUERS: Final = "issuers"
_ISSUER_FIELDS: Final = ("issuer", "audience", "jwks", "subject", "groups")
_NEEDED: Final = 3
"""So many of them, the first, an issuer has to have."""
_MOST_A_SECOND: Final = 1e6
_OWN_CLAIMS: Final = {"subject": "sub", "groups": "groups"}
_TOKEN_FIELDS: Final = frozenset({"sha256", "expires"})
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_SOME: Final = re.compile(r"\[[^]]+\]|[*?]")
"""What stands for characters in a pattern."""
_EXAMPLE: Final = "principals: {etl: {token_sha256: ..., write: ['sales.*'], read: ['*']}}"
_Rights = Mapping[str, Sequence[str]]
_Claimed = tuple[str, str]
"""The name of an issuer, and a subject or a group of it."""


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
        rate: so many requests a second they may send; ``None``: any number.
    """

    name: str
    allowed: _Rights
    lakehouses: Mapping[str, _Rights] = field(default_factory=dict)
    everywhere: bool = False
    rate: float | None = None

    def within(self, lakehouse: str) -> Principal:
        """Return the principal with the rights in one lakehouse."""
        rights = _join_rights(self.allowed, self.lakehouses.get(lakehouse, {}))
        return replace(self, allowed=rights, lakehouses={})

    def join(self, other: Principal) -> Principal:
        """Return the principal with the rights of another one, too, and its rate where they have none."""
        allowed = _join_rights(self.allowed, other.allowed)
        lakehouses = dict(self.lakehouses)
        for lakehouse, rights in other.lakehouses.items():
            own = lakehouses.get(lakehouse, {})
            lakehouses[lakehouse] = _join_rights(own, rights)
        rate = self.rate or other.rate
        return replace(self, allowed=allowed, lakehouses=lakehouses, rate=rate)

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

    A dot in the name of a table is written as ``\.``, so that ``b.c`` in ``a`` is not taken for ``c`` in ``a.b``; and a
    backslash as two of them, so that it is not taken for ``c`` in a namespace whose name ends with a backslash.
    """
    escaped = [each.replace("\\", r"\\").replace(".", r"\.") for each in identifier]
    return ".".join(escaped)


def _join_rights(one: _Rights, other: _Rights) -> _Rights:
    joined = {}
    for right in RIGHTS:
        more = other.get(right, ())
        joined[right] = (*one.get(right, ()), *more)
    return joined


@dataclass(frozen=True, slots=True)
class Issued:
    """Which tokens of issuers are good, and for whom.

    Attributes:
        issuers: by the claim ``iss``.
        subjects: principals by the name of an issuer and a subject of it.
        groups: the principals whose rights a group has, by the name of an issuer and a group of it.
    """

    issuers: Mapping[str, Issuer] = field(default_factory=dict)
    subjects: Mapping[_Claimed, Principal] = field(default_factory=dict)
    groups: Mapping[_Claimed, Sequence[Principal]] = field(default_factory=dict)

    def of(self, token: str) -> Principal | None:
        """Return the principal of a token, ``None`` where it is of no issuer. Raises as ``Issuer.read`` does."""
        uri = unverified_issuer(token) if self.issuers else None
        issuer = self.issuers.get(uri or "")
        if issuer is None:
            return None
        named = issuer.read(token)
        shares: list[Principal] = []
        for group in named.groups:
            claimed = (named.issuer, group)
            shares += self.groups.get(claimed, ())
        claimed = (named.issuer, named.subject)
        principal = self.subjects.get(claimed)
        if principal is None:
            if not shares:
                text = f"the bearer token is good, and neither {named.subject!r} nor a group of it is a principal here"
                raise Problem(403, "ForbiddenException", text)
            name = ":".join(claimed)
            principal = Principal(name, {})
        for each in shares:
            principal = principal.join(each)
        return principal


class Principals:
    """The principals that an endpoint knows, by the hashes of their tokens. Tokens themselves are stored nowhere.

    Args:
        by_hash: the principals.
        expiries: when tokens expire, in epoch milliseconds, by their hashes; others never do.
        issued: those who have tokens of issuers.
    """

    def __init__(
        self,
        by_hash: Mapping[str, Principal],
        expiries: Mapping[str, int] | None = None,
        issued: Issued | None = None,
    ) -> None:
        self._by_hash = dict(by_hash)
        self._expiries = dict(expiries or {})
        self._issued = issued or Issued()

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
        holders = list(self._by_hash.values())
        holders += self._issued.subjects.values()
        for members in self._issued.groups.values():
            holders += members
        for principal in holders:
            for right in RIGHTS:
                _refuse_other_lakehouses(principal, right, lakehouses)

    def of(self, authorization: str | None) -> Principal:
        """Return the principal of an ``Authorization`` header. Raises ``Problem`` (401).

        For a token that is not known that is ``WrongToken``, and ``ExpiredToken`` for one that was. Where keys of an
        issuer have to be read first it is ``KeyNotKnown``.
        """
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise Problem(401, "NotAuthorizedException", "this endpoint requires a bearer token: set 'token'")
        token = token.strip()
        given = hash_token(token)
        for known, principal in self._by_hash.items():
            if hmac.compare_digest(given, known):
                expiry = self._expiries.get(known)
                if expiry is not None and clock.now_millis() >= expiry:
                    raise ExpiredToken
                return principal
        issued = self._issued.of(token)
        if issued is None:
            raise WrongToken
        return issued


def almighty(name: str) -> Principal:
    """Return a principal who may do everything."""
    return Principal(name, {MANAGE: ("*",)}, everywhere=True)


def _refuse_other_lakehouses(principal: Principal, right: str, served: Sequence[str]) -> None:
    """Raise ``_Wrong`` for a right in a lakehouse that is not served, or in none of several."""
    if principal.allowed.get(right) and not principal.everywhere and len(served) > 1:
        listed = ", ".join(served)
        first = served[0]
        text = f"{principal.name}.{right} names no lakehouse, and there are {listed}: write {{{first}: [...]}}"
        raise _Wrong(text, principal.name, right)
    for lakehouse, rights in principal.lakehouses.items():
        if not rights.get(right):
            continue
        if lakehouse not in served:
            text = f"{principal.name}.{right} matches nothing: no lakehouse {lakehouse!r} is served here"
            raise _Wrong(text, principal.name, right, lakehouse)


class _Wrong(InvalidInput):
    """Something is wrong with an entry of a file; ``keys`` lead to it, from the top."""

    def __init__(self, text: str, *keys: Any) -> None:
        super().__init__(text)
        self.keys: tuple[Any, ...] = ("principals", *keys)


class _WrongIssuer(_Wrong):
    """Something is wrong with an issuer of a file."""

    def __init__(self, text: str, *keys: Any) -> None:
        super().__init__(text)
        self.keys = (_ISSUERS, *keys)


class _PrincipalsOfFile(Principals):
    """The principals of a file, which is read again when it changes. A broken one changes nothing."""

    def __init__(self, path: Path) -> None:
        super().__init__({})
        self._path = path
        self._lakehouses: Sequence[str] = ()
        self._keys: dict[str, Keys] = {}
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
            known = _parse(found, self._keys)
            if self._lakehouses:
                known.bind_rights(self._lakehouses)
        except _Wrong as error:
            line = yaml_text.line_of(text, *error.keys)
            raise InvalidInput(f"line {line}: {error}") from None
        return known


def _parse(found: Any, keys: dict[str, Keys]) -> Principals:
    """Return the principals of a file. ``keys`` are those of issuers by their URIs, which get the new ones.

    Raises ``InvalidInput`` with what is wrong.
    """
    if not isinstance(found, dict):
        raise InvalidInput("it has no 'principals'")
    entries = found.get("principals")
    if not isinstance(entries, dict):
        raise InvalidInput("it has no 'principals'")
    known = {"principals", _ISSUERS}
    for other in found:
        if other not in known:
            wrong = _Wrong(f"there is no field {other!r}, but for 'principals' and {_ISSUERS!r}")
            wrong.keys = (other,)
            raise wrong
    listed = found.get(_ISSUERS, {})
    issuers = _issuers(listed, keys)
    by_hash: dict[str, Principal] = {}
    expiries: dict[str, int] = {}
    by_key: dict[Any, Principal] = {}
    names = set[str]()
    for key, entry in entries.items():
        name = str(key)
        if name in names:
            raise _Wrong(f"{name} is there twice", key)
        names.add(name)
        issuer, has_colon, _ = name.partition(":")
        if has_colon and issuer in issuers:
            raise _Wrong(f"{name!r} begins like the name of a subject of {issuer}: take another one", key)
        principal = _principal(name, entry)
        by_key[key] = principal
        for digest, expiry in _tokens(name, entry).items():
            if digest in by_hash:
                raise _Wrong(f"{name} has the token of {by_hash[digest].name}", key)
            by_hash[digest] = principal
            if expiry is not None:
                expiries[digest] = expiry
    issued = _find_holders(issuers, by_key, entries)
    return Principals(by_hash, expiries, issued)


def _find_holders(issuers: Mapping[str, Issuer], by_key: Mapping[Any, Principal], entries: Mapping[Any, Any]) -> Issued:
    """Return who has tokens of the issuers of a file."""
    subjects: dict[_Claimed, Principal] = {}
    groups: dict[_Claimed, list[Principal]] = {}
    for key, principal in by_key.items():
        name = principal.name
        entry = entries[key]
        for subject in _read_claims(name, entry, _SUBJECTS, issuers):
            holder = subjects.setdefault(subject, principal)
            if holder is not principal:
                raise _Wrong(f"{name} has the subject of {holder.name}", key, _SUBJECTS)
        for group in _read_claims(name, entry, _GROUPS, issuers):
            holders = groups.setdefault(group, [])
            holders.append(principal)
    by_uri = {}
    for issuer in issuers.values():
        by_uri[issuer.uri] = issuer
    return Issued(by_uri, subjects, groups)


def _issuers(found: Any, keys: dict[str, Keys]) -> dict[str, Issuer]:
    """Return the issuers of a file by their names there."""
    if not isinstance(found, dict):
        listed = ", ".join(_ISSUER_FIELDS)
        raise InvalidInput(f"{_ISSUERS!r} is no mapping of names to {listed}")
    issuers: dict[str, Issuer] = {}
    for name, entry in found.items():
        if not isinstance(name, str):
            raise _WrongIssuer(f"the name {name!r} of an issuer is no text: write it in quotes", name)
        if ":" in name:  # in the history ISSUER:SUBJECT is a subject without a name of its own
            raise _WrongIssuer(f"{name!r} has a colon, which ends the name of an issuer", name)
        fields = _issuer_fields(name, entry)
        uri, audience, jwks, subject, groups = fields
        others = [each.uri for each in issuers.values()]
        if uri in others:
            raise _WrongIssuer(f"there are two issuers {uri}", name)
        try:
            new = Keys(jwks)
        except InvalidInput as error:
            raise _WrongIssuer(f"{name}.jwks: {error}", name, "jwks") from None
        known = keys.setdefault(jwks, new)
        issuers[name] = Issuer(name, uri, audience, known, subject, groups)
    return issuers


def _issuer_fields(name: Any, entry: Any) -> list[str]:
    """Return the values of the fields of an issuer, in their order."""
    needed = _ISSUER_FIELDS[:_NEEDED]
    if not isinstance(entry, dict) or not entry.keys() >= set(needed):
        listed = ", ".join(needed)
        raise _WrongIssuer(f"{name} needs {listed}", name)
    for each, value in entry.items():
        if each not in _ISSUER_FIELDS:
            raise _WrongIssuer(f"{name} has unknown fields: {each}", name, each)
        if not isinstance(value, str) or not value:
            raise _WrongIssuer(f"{name}.{each} is no text", name, each)
    fields: dict[str, str] = _OWN_CLAIMS | entry
    return [fields[each] for each in _ISSUER_FIELDS]


def _read_claims(name: str, entry: Mapping[str, Any], what: str, issuers: Mapping[str, Issuer]) -> list[_Claimed]:
    """Return the subjects or the groups of a principal, each with its issuer."""
    found = entry.get(what, {})
    if not isinstance(found, dict):
        raise _Wrong(f"{name}.{what} is no mapping of issuers to lists", name, what)
    pairs = []
    for issuer, values in found.items():
        if issuer not in issuers:
            raise _Wrong(f"{name}.{what}: there is no issuer {issuer!r}", name, what, issuer)
        if not _is_list_of_texts(values):
            raise _Wrong(f"{name}.{what}.{issuer} is no list of texts", name, what, issuer)
        for value in values:
            pairs.append((issuer, value))
    return pairs


def _is_list_of_texts(found: Any) -> bool:
    if not isinstance(found, list) or not found:
        return False
    return all(isinstance(each, str) for each in found)


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
    rate = entry.get(_RATE)
    is_rate = isinstance(rate, int | float) and not isinstance(rate, bool)
    if rate is not None and not (is_rate and 0 < rate < _MOST_A_SECOND):
        raise _Wrong(f"{name}.{_RATE} is no number of requests a second", name, _RATE)
    return Principal(name, allowed, lakehouses, rate=rate)


def _tokens(name: str, entry: Mapping[str, Any]) -> dict[str, int | None]:
    """Return the hashes of the tokens of a principal, and when each expires, in epoch milliseconds."""
    found: dict[str, int | None] = {}
    given = entry.get(_TOKENS, [])
    ways = (_HASH, _TOKENS, _SUBJECTS, _GROUPS)
    is_named = any(map(entry.get, ways))
    if not isinstance(given, list) or not is_named:
        raise _Wrong(f"{name} has no {_HASH}, and no list of {_TOKENS}, no {_SUBJECTS} and no {_GROUPS}", name)
    if _HASH in entry:
        found[_hash(entry[_HASH], name, _HASH)] = None
    for index, token in enumerate(given):
        digest, expiry = _token(token, name, _TOKENS, index)
        is_known = digest in found
        if is_known:
            raise _Wrong(f"{name} has a token twice", name, _TOKENS, index)
        found[digest] = expiry
    return found


def _token(token: Any, name: str, *keys: Any) -> tuple[str, int | None]:
    """Return the hash of a token in a list, and when it expires."""
    is_sound = isinstance(token, dict) and "sha256" in token
    if not is_sound or token.keys() - _TOKEN_FIELDS:
        text = f"{name}.{_TOKENS} needs entries such as {{sha256: ..., expires: 2027-01-31}}"
        raise _Wrong(text, name, *keys)
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
    names = map(str, (name, *keys))
    place = ".".join(names)
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
    sample = sample.replace("\\.", "")
    levels = sample.split(".")
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
