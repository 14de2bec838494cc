"""Who may do what: tokens, and the patterns of names that their principals may read, write or manage."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

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
_ISSUERS: Final = "issuers"
_PRINCIPALS: Final = "principals"
_MOST_A_SECOND: Final = 1e6
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_SOME: Final = re.compile(r"\[[^]]+\]|[*?]")
"""What stands for characters in a pattern."""
_ESCAPED: Final = re.compile(r"\\[.\\]")
_EXAMPLE: Final = "principals: {etl: {token_sha256: ..., write: ['sales.*'], read: ['*']}}"
_ALL: Final = ""
"""Stands for the lakehouse of a right that names none."""
_WORDS: Final = {
    "model_type": "it is no mapping",
    "dict_type": "it is no mapping",
    "list_type": "it is no list",
    "string_type": "it is no text",
    "extra_forbidden": "there is no such field",
    "missing": "it is missing",
}
"""What pydantic says in other words."""
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
        raise _Wrong(text, _PRINCIPALS, principal.name, right)
    for lakehouse, rights in principal.lakehouses.items():
        if not rights.get(right):
            continue
        if lakehouse not in served:
            text = f"{principal.name}.{right} matches nothing: no lakehouse {lakehouse!r} is served here"
            raise _Wrong(text, _PRINCIPALS, principal.name, right, lakehouse)


class _Wrong(InvalidInput):
    """Something is wrong with an entry of a file; ``keys`` lead to it, from the top."""

    def __init__(self, text: str, *keys: Any) -> None:
        super().__init__(text)
        self.keys = keys


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


# -- what a file of principals says ----------------------------------------------------------------


def _as_digest(value: Any) -> str:
    digest = str(value).lower()
    if not _SHA256.fullmatch(digest):
        raise ValueError("it is not a SHA-256 in hexadecimal")
    return digest


def _as_millis(value: Any) -> int:
    """Return a date or a time of YAML as epoch milliseconds, in UTC where it has no time zone."""
    return to_millis(str(value))


def _refuse_unmatched(pattern: str) -> str:
    if not _may_match(pattern):
        raise ValueError(f"no name matches {pattern!r}")
    return pattern


def _by_lakehouse(rule: Any) -> Any:
    if not isinstance(rule, dict):
        return {_ALL: rule}
    if _ALL in rule:
        raise ValueError("no lakehouse has an empty name")
    return rule


def _refuse_colon(name: str) -> str:
    if ":" in name:  # in the history ISSUER:SUBJECT is a subject without a name of its own
        raise ValueError("it has a colon, which ends the name of an issuer")
    return name


def _refuse_unsafe(uri: str) -> str:
    return Keys(uri).uri


_Name = Annotated[str, BeforeValidator(str)]
_Text = Annotated[str, Field(min_length=1)]
_Texts = Annotated[list[str], Field(min_length=1)]
_Digest = Annotated[str, BeforeValidator(_as_digest)]
_Rule = Annotated[
    dict[_Name, list[Annotated[str, AfterValidator(_refuse_unmatched)]]],
    BeforeValidator(_by_lakehouse),
]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Token(_Strict):
    sha256: _Digest
    expires: Annotated[int | None, BeforeValidator(_as_millis)] = None


class _Entry(_Strict):
    token_sha256: _Digest | None = None
    tokens: list[_Token] = []
    subjects: dict[_Name, _Texts] = {}
    groups: dict[_Name, _Texts] = {}
    rate: Annotated[float | None, Field(gt=0, lt=_MOST_A_SECOND)] = None
    read: _Rule = {}
    write: _Rule = {}
    manage: _Rule = {}

    @model_validator(mode="after")
    def refuse_unknowable(self) -> _Entry:
        """Refuse a principal whom nobody can be."""
        if not (self.token_sha256 or self.tokens or self.subjects or self.groups):
            raise ValueError("it has no token_sha256, and no list of tokens, no subjects and no groups")
        return self

    def principal(self, name: str) -> Principal:
        """Return the principal."""
        allowed: dict[str, Sequence[str]] = {}
        lakehouses: dict[str, dict[str, Sequence[str]]] = {}
        for right in RIGHTS:
            for lakehouse, patterns in getattr(self, right).items():
                rights = allowed if lakehouse == _ALL else lakehouses.setdefault(lakehouse, {})
                rights[right] = tuple(patterns)
        return Principal(name, allowed, lakehouses, rate=self.rate)

    def all_tokens(self) -> list[_Token]:
        """Return its tokens."""
        if self.token_sha256 is None:
            return self.tokens
        return [_Token(sha256=self.token_sha256), *self.tokens]


class _IssuerEntry(_Strict):
    issuer: _Text
    audience: _Text
    jwks: Annotated[_Text, AfterValidator(_refuse_unsafe)]
    subject: _Text = "sub"
    groups: _Text = "groups"


class _File(_Strict):
    principals: dict[_Name, _Entry]
    issuers: dict[Annotated[str, AfterValidator(_refuse_colon)], _IssuerEntry] = {}


def _parse(found: Any, keys: dict[str, Keys]) -> Principals:
    """Return the principals of a file. ``keys`` are those of issuers by their URIs, which get the new ones.

    Raises ``_Wrong`` with what is wrong.
    """
    try:
        file = _File.model_validate(found)
    except ValidationError as error:
        raise _wrong_by(error.errors()[0]) from None
    if len(file.principals) < len(found[_PRINCIPALS]):
        raise _Wrong("the name of a principal is there twice: once as a text, once as something else", _PRINCIPALS)
    issuers = _read_issuers(file, keys)
    by_hash: dict[str, Principal] = {}
    expiries: dict[str, int] = {}
    subjects: dict[_Claimed, Principal] = {}
    groups: dict[_Claimed, list[Principal]] = {}
    for name, entry in file.principals.items():
        _refuse_other_issuers(name, entry, issuers)
        principal = entry.principal(name)
        for token in entry.all_tokens():
            if token.sha256 in by_hash:
                raise _Wrong(f"{name} has the token of {by_hash[token.sha256].name}", _PRINCIPALS, name)
            by_hash[token.sha256] = principal
            if token.expires is not None:
                expiries[token.sha256] = token.expires
        for subject in _list_claims(entry.subjects):
            if subjects.setdefault(subject, principal) is not principal:
                raise _Wrong(f"{name} has the subject of {subjects[subject].name}", _PRINCIPALS, name)
        for group in _list_claims(entry.groups):
            groups.setdefault(group, []).append(principal)
    by_uri = {each.uri: each for each in issuers.values()}
    return Principals(by_hash, expiries, Issued(by_uri, subjects, groups))


def _read_issuers(file: _File, keys: dict[str, Keys]) -> dict[str, Issuer]:
    """Return the issuers of a file by their names there."""
    issuers: dict[str, Issuer] = {}
    uris = set[str]()
    for name, entry in file.issuers.items():
        if entry.issuer in uris:
            raise _Wrong(f"there are two issuers {entry.issuer}", _ISSUERS, name)
        uris.add(entry.issuer)
        new = Keys(entry.jwks)
        known = keys.setdefault(entry.jwks, new)
        issuers[name] = Issuer(
            name,
            entry.issuer,
            entry.audience,
            known,
            entry.subject,
            entry.groups,
        )
    return issuers


def _refuse_other_issuers(name: str, entry: _Entry, issuers: Mapping[str, Issuer]) -> None:
    """Raise ``_Wrong`` for a principal whose name an issuer may give, or whose issuer the file does not have."""
    first, has_colon, _ = name.partition(":")
    if has_colon and first in issuers:
        text = f"{name!r} begins like the name of a subject of {first}: take another one"
        raise _Wrong(text, _PRINCIPALS, name)
    for issuer in (*entry.subjects, *entry.groups):
        if issuer not in issuers:
            raise _Wrong(f"{name}: there is no issuer {issuer!r}", _PRINCIPALS, name)


def _list_claims(values: Mapping[str, Sequence[str]]) -> list[_Claimed]:
    return [(issuer, each) for issuer, listed in values.items() for each in listed]


def _wrong_by(error: ErrorDetails) -> _Wrong:
    """Return our error for one of a model, with the way to what is wrong."""
    keys = [each for each in error["loc"] if each not in (_ALL, "[key]")]
    why = str(error.get("ctx", {}).get("error", _WORDS.get(error["type"], error["msg"])))
    place = ".".join(map(str, keys[1:] or keys))
    return _Wrong(f"{place}: {why}" if place else why, *keys)


def _may_match(pattern: str) -> bool:
    """Whether there may be a name that a pattern matches: each of its levels can be one."""
    sample = _SOME.sub("x", pattern)
    sample = _ESCAPED.sub("", sample)
    levels = sample.split(".")
    return "\\" not in sample and all(map(is_addressable, levels))


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
