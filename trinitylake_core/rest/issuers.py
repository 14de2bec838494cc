"""Tokens that an issuer signed (OIDC): which one is good, whom it names, and by which keys.

The keys are those that the issuer publishes. One task of the event loop reads them, with a limit of time and of size,
and no request waits longer than a part of a second for it: an issuer that hangs or lies stops nobody else.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

import h11
import jwt
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from trinitylake_core.errors import InvalidInput
from trinitylake_core.rest.json_bounds import parse_object
from trinitylake_core.rest.local_only import is_loopback
from trinitylake_core.rest.problems import Problem, message_for_log

LOG: Final = logging.getLogger("trinitylake.rest")
_OF_RSA: Final = tuple(f"{kind}{bits}" for kind in ("RS", "PS") for bits in (256, 384, 512))
_ALGORITHMS: Final = (*(f"{kind}{bits}" for kind in ("RS", "PS", "ES") for bits in (256, 384, 512)), "EdDSA")
"""Those with a public key: whoever may read the key of another kind could sign with it."""
_KINDS_OF_KEYS: Final = frozenset({"RSA", "EC", "OKP"})
_SKEW_SECONDS: Final = 30
"""So far the clocks of issuer and endpoint may be apart."""
_FRESH_SECONDS: Final = 300.0
_KEPT_SECONDS: Final = 3600.0
"""So long keys are good that could not be read again: an issuer that is away for longer may have withdrawn them."""
_PAUSE_SECONDS: Final = 5.0
"""So often keys are read at most, however many tokens name one that is not known."""
_READ_SECONDS: Final = 5.0
_WAIT_SECONDS: Final = 0.8
_MOST_BYTES: Final = 256 << 10
_PIECE_BYTES: Final = 64 << 10
_MOST_PARTS: Final = 2000
"""Of an answer: each takes a moment of the event loop, however small it is."""
_LONGEST_TOKEN: Final = 8 << 10
_LONGEST_SUBJECT: Final = 200
_WRONG: Final = (401, "NotAuthorizedException", "the bearer token is not known to this endpoint")
_UNREAD: Final = (503, "ServiceUnavailableException", "the keys of the token's issuer cannot be read; try again later")


class KeyNotKnown(Problem):
    """A token names a key that the issuer may have published meanwhile."""

    def __init__(self, keys: Keys) -> None:
        super().__init__(*(_WRONG if keys.are_known else _UNREAD))
        self.keys = keys


@dataclass(frozen=True, slots=True)
class TokenSubject:
    """Whom a token names: one subject of an issuer, who is in some groups."""

    issuer: str
    subject: str
    groups: tuple[str, ...]


@dataclass(frozen=True)
class Issuer:
    """An issuer whose tokens are good.

    Attributes:
        name: its name in the file of principals.
        uri: the claim ``iss`` of its tokens.
        audience: what the claim ``aud`` has to contain.
        subject: the claim that says whose token it is.
        groups: the claim that lists their groups.
    """

    name: str
    uri: str
    audience: str
    keys: Keys = field(repr=False)
    subject: str = "sub"
    groups: str = "groups"

    def read(self, token: str) -> TokenSubject:
        """Return whom a token names. Runs in the event loop.

        Raises ``Problem``: a token that is not good (401), or nobody can say whether it is (503); ``KeyNotKnown`` where
        reading the keys again may help. What is wrong with its claims learns only who has a token of the issuer.
        """
        try:
            header = jwt.get_unverified_header(token)
            key = self.keys.find(header.get("kid"))
            claims = jwt.decode(
                token,
                key,
                algorithms=list(_ALGORITHMS if isinstance(key, jwt.PyJWK) else _OF_RSA),
                audience=self.audience,
                issuer=self.uri,
                leeway=_SKEW_SECONDS,
                options={"require": ["exp", "iss", "aud", self.subject]},
            )
        except jwt.ExpiredSignatureError:
            raise _refusal("the bearer token has expired: ask its issuer for a new one") from None
        except jwt.ImmatureSignatureError:
            raise _refusal(
                "the bearer token is not valid yet: compare the clocks of its issuer and this endpoint"
            ) from None
        except jwt.InvalidAudienceError:
            raise _refusal("the bearer token is for another audience than this endpoint") from None
        except jwt.MissingRequiredClaimError as error:
            raise _refusal(f"the bearer token has no claim {error.claim!r}") from None
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
            raise Problem(*_WRONG) from None
        return self._name(claims)

    def _name(self, claims: Mapping[str, Any]) -> TokenSubject:
        subject = claims[self.subject]
        if not _is_name(subject):
            raise _refusal(f"the claim {self.subject!r} of the bearer token is no name")
        found = claims.get(self.groups, [])
        if not isinstance(found, list):
            found = [found]
        groups = [each for each in found if isinstance(each, str)]
        return TokenSubject(self.name, subject, tuple(groups))


def _is_name(found: Any) -> bool:
    if not isinstance(found, str) or not found.isprintable():
        return False
    return 0 < len(found) <= _LONGEST_SUBJECT


def _refusal(why: str) -> Problem:
    return Problem(401, "NotAuthorizedException", why)


def unverified_issuer(token: str) -> str | None:
    """Return the claim ``iss`` of what looks like a signed token, to choose the keys that may prove it.

    Raises ``Problem`` (401): it is longer than proxies let a header be. Everybody may send one, and parsing takes long.
    """
    if len(token) > _LONGEST_TOKEN:
        raise _refusal(f"the bearer token is longer than {_LONGEST_TOKEN} characters: let its issuer leave claims out")
    try:
        claims = jwt.decode(token, options={"verify_signature": False})
    except (jwt.PyJWTError, ValueError, RecursionError):
        return None
    issuer = claims.get("iss")
    return issuer if isinstance(issuer, str) else None


class Keys:
    """The keys that an issuer publishes at a URI, read again when they are old, or when a token names another one.

    Raises ``InvalidInput``: a URI that whoever is on the way could answer.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._parts = _split(uri)
        self._by_id: Mapping[str, jwt.PyJWK | RSAPublicKey] = {}
        self._good_until = 0.0
        self._fresh_until = 0.0
        self._pause_until = 0.0
        self._reading: asyncio.Task[None] | None = None

    @property
    def are_known(self) -> bool:
        """Whether there are keys that are not too old."""
        return time.monotonic() < self._good_until

    def find(self, name: Any) -> jwt.PyJWK | RSAPublicKey:
        """Return the key of a name; one of RSA without an algorithm is good for all of RSA's.

        Raises ``KeyNotKnown``, ``Problem`` (401: there is no name).
        """
        if not isinstance(name, str):
            raise Problem(*_WRONG)
        if time.monotonic() >= self._fresh_until:
            self._begin()  # nobody waits for it as long as those of before are good
        if not self.are_known:
            raise KeyNotKnown(self)
        found = self._by_id.get(name)
        if found is None:
            raise KeyNotKnown(self)
        return found

    async def renew(self) -> None:
        """Read the keys again, unless that was just done, and wait a moment for them.

        Raises ``Problem`` (503): they were not read now, so nobody can tell whether the issuer has a new one.
        """
        before = self._fresh_until
        self._begin()
        if self._reading is not None:
            await asyncio.wait({self._reading}, timeout=_WAIT_SECONDS)
        if self._fresh_until == before:
            raise Problem(*_UNREAD)

    def _begin(self) -> None:
        now = time.monotonic()
        is_reading = self._reading is not None and not self._reading.done()
        if is_reading or now < self._pause_until:
            return
        self._pause_until = now + _PAUSE_SECONDS
        loop = asyncio.get_running_loop()
        self._reading = loop.create_task(self._read())

    async def _read(self) -> None:
        try:
            async with asyncio.timeout(_READ_SECONDS):
                data = await _fetch(self._parts)
            found = _keys_in(parse_object(data))
        except (OSError, ValueError, h11.ProtocolError, Problem) as error:
            where = self._parts._replace(query="").geturl()  # what follows may be a secret
            LOG.warning("the keys at %s cannot be read (%s)", where, message_for_log(error))
            return
        now = time.monotonic()
        self._by_id = found
        self._fresh_until = now + _FRESH_SECONDS
        self._good_until = now + _KEPT_SECONDS


def _split(uri: str) -> SplitResult:
    try:
        parts = urlsplit(uri)
        _ = parts.port  # raises where it is no number
    except ValueError:
        raise InvalidInput(f"{uri!r} is not a URI") from None
    host = parts.hostname or ""
    if "@" in parts.netloc:
        raise InvalidInput("the URI holds credentials, which are sent to nobody: leave them out")
    is_safe = parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host))
    is_plain = uri.isascii()
    if not host or not is_safe or not is_plain:
        raise InvalidInput(f"{uri!r} is not https: whoever is on the way could put keys of his own there")
    return parts


async def _fetch(parts: SplitResult) -> bytes:
    """Return what a URI says. Follows no redirection.

    Raises ``OSError``, ``h11.ProtocolError``, and ``ValueError`` for another status than 200 and for too much.
    """
    tls = None
    port = parts.port or 80
    if parts.scheme == "https":
        tls = await asyncio.to_thread(ssl.create_default_context)  # it reads the authorities of the machine
        port = parts.port or 443
    reader, writer = await asyncio.open_connection(parts.hostname, port, ssl=tls)
    try:
        http = h11.Connection(h11.CLIENT)
        path = parts.path or "/"
        target = f"{path}?{parts.query}" if parts.query else path
        headers = [("host", parts.netloc), ("accept", "application/json"), ("connection", "close")]
        request = h11.Request(method="GET", target=target, headers=headers)
        for event in (request, h11.EndOfMessage()):
            data = http.send(event)
            writer.write(data or b"")
        return await _read_answer(http, reader)
    finally:
        writer.close()


async def _read_answer(http: h11.Connection, reader: asyncio.StreamReader) -> bytes:
    body = bytearray()
    for _ in range(_MOST_PARTS):
        event = http.next_event()
        if event is h11.NEED_DATA:
            data = await reader.read(_PIECE_BYTES)
            http.receive_data(data)
        elif isinstance(event, h11.Response) and event.status_code != 200:
            raise InvalidInput(f"status {event.status_code}")
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > _MOST_BYTES:
                raise InvalidInput(f"more than {_MOST_BYTES >> 10} KiB")
        elif isinstance(event, h11.EndOfMessage):
            return bytes(body)
    raise InvalidInput(f"more than {_MOST_PARTS} parts")


def _keys_in(found: Mapping[str, Any]) -> dict[str, jwt.PyJWK | RSAPublicKey]:
    """Return the public keys of a JWK set by their names, without those that sign nothing. Raises ``InvalidInput``.

    There are none where the issuer says that it has none: it has withdrawn them.
    """
    listed = found.get("keys")
    if listed == []:
        return {}
    if not isinstance(listed, list):
        listed = []
    keys: dict[str, jwt.PyJWK | RSAPublicKey] = {}
    for each in listed:
        if not _is_public_key(each):
            continue
        name = each["kid"]
        try:
            key = jwt.PyJWK(each)
            is_weak = key.Algorithm.check_key_length(key.key) is not None
        except Exception:  # noqa: BLE001, S112 - whatever it is, it is no key that this endpoint understands
            continue
        if not is_weak:
            is_for_all = each["kty"] == "RSA" and "alg" not in each
            keys[name] = key.key if is_for_all else key
    if not keys:
        raise InvalidInput("it has no key")
    return keys


def _is_public_key(found: Any) -> bool:
    """Whether a value says that it is a key for signatures, with a name; one with its private half proves nothing."""
    if not isinstance(found, dict) or str(found.get("kty")) not in _KINDS_OF_KEYS:
        return False
    use = found.get("use", "sig")
    return use == "sig" and "d" not in found and isinstance(found.get("kid"), str)
