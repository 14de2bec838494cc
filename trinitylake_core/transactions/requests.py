"""Requests that a client may send again after a lost answer: each is carried out at most once.

The client's key, a UUIDv7, is the ID of the transaction, and the summary of the version contains it. So a commit that
is rebased over a version with its own key finds it there, also one of another process. What was committed before the
base is read once per process, back to a version of which is proved that neither it nor an older one contains the key:

* its row ``requests_until_millis`` has an earlier time than the key: no version up to it contains a later key;
* or it was made before the time in the key: a commit refuses a key from the future.

Neither rests on a clock: both rows only grow along the chain, and each commit that takes a key obeys them.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

from trinitylake_core import clock, spec
from trinitylake_core.commits.backend import LakehouseBackend
from trinitylake_core.durations import describe_duration
from trinitylake_core.errors import CommitConflict, InvalidInput, OutcomeUnknown
from trinitylake_core.versions import Root, RootRows

_LIFETIME_MILLIS: Final = 30 * 60_000
"""So long a client may send a request again, at the most."""
_AHEAD_MILLIS: Final = spec.REQUESTS_AHEAD_MILLIS
"""So far a client's clock may be ahead of this one, and so much further back versions are read."""
_FACT: Final = "request"
_UUID7: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_MOST: Final = 50_000


@dataclass(frozen=True, slots=True)
class RequestKey:
    """What a client calls its request, and a digest of what it asked for.

    Attributes:
        id: a UUIDv7; its first 48 bits are the client's time.
        digest: what differs where the same key came with another request.
    """

    id: str
    digest: str

    @classmethod
    def of(cls, text: str, digest: str, lifetime_millis: int = _LIFETIME_MILLIS) -> RequestKey:
        """Return the key that a client sent.

        Raises:
            InvalidInput: it is no UUIDv7.
            OutcomeUnknown: it is older than its lifetime, or from the future. Its request may have been carried out
                before, for a clock may be wrong now: a refusal would let clients delete the files of their commit.
        """
        key = cls(text.lower(), digest)
        if not _UUID7.fullmatch(key.id):
            raise InvalidInput("an idempotency key must be a UUIDv7 (RFC 9562) of 36 characters")
        age = clock.now_millis() - key.millis
        if age > lifetime_millis + min(_AHEAD_MILLIS, lifetime_millis):
            raise OutcomeUnknown(
                f"the idempotency key is older than {describe_duration(lifetime_millis / 1000)}: see whether its "
                "request was carried out, and send what is still wanted with a new key"
            )
        if age < -_AHEAD_MILLIS:
            raise OutcomeUnknown(f"the time in the idempotency key is {-age // 1000} s ahead of the server's clock")
        return key

    @property
    def millis(self) -> int:
        """The client's time, in epoch milliseconds."""
        return int(self.id[:13].replace("-", ""), 16)

    def refuse_earlier(self, created_at_millis: int, base: Root) -> None:
        """Refuse to become a version on top of ``base`` that is older than the key.

        A later search for the key ends at such a version. Raises ``CommitConflict``.
        """
        if created_at_millis < self.millis - _AHEAD_MILLIS:
            raise CommitConflict("the clock of this machine went back; try again", version=base.version)

    def facts(self) -> dict[str, str]:
        """Return its part of the summary of a version, beside the ID of the transaction."""
        return {_FACT: self.digest}


def lifetime_of_keys(txn_ttl_millis: int) -> int:
    """Return for how many milliseconds a client may send a request again, by the lakehouse's ``txn_ttl_millis``.

    Versions younger than ``txn_ttl_millis`` never expire, so those are there among which a key is looked for; the
    clocks of client, endpoint and expiration may differ.
    """
    kept = max(txn_ttl_millis // 2, txn_ttl_millis - 3 * _AHEAD_MILLIS)
    return min(_LIFETIME_MILLIS, kept)


def as_iso_duration(lifetime_millis: int) -> str:
    """Return a lifetime of keys as a duration of ISO 8601, in minutes or in seconds, rounded down."""
    seconds = lifetime_millis // 1000
    if seconds % 60 == 0:
        return f"PT{seconds // 60}M"
    return f"PT{seconds}S"


class Repeated(Exception):
    """A request was carried out already, or another one had its key: the version, and the digest of that request."""

    def __init__(self, version: int, digest: str) -> None:
        super().__init__(f"version {version} is what this request became")
        self.version = version
        self.digest = digest


_ASKED: ContextVar[RequestKey | None] = ContextVar("request", default=None)


@contextmanager
def asked_by(key: RequestKey | None) -> Iterator[None]:
    """Make what this block changes the change of one request."""
    token = _ASKED.set(key)
    try:
        yield
    finally:
        _ASKED.reset(token)


def current_request() -> RequestKey | None:
    """Return the request that is being carried out, if it has a key."""
    return _ASKED.get()


class Requests:
    """The requests with keys that recent versions contain: one stretch of versions, each read once. Thread-safe."""

    def __init__(self, backend: LakehouseBackend) -> None:
        self._backend = backend
        self._lock = threading.Lock()
        self._until: dict[int, int] = {}
        """For each version of the stretch: no version up to it contains a key of a later time."""
        self._found: dict[str, tuple[int, str]] = {}
        self._low = self._high = -2  # none was asked for yet

    def note(self, root: RootRows) -> None:
        """Take in the version after those that are known, so that it is not read for this."""
        with self._lock:
            if root.version == self._high + 1:
                self._add(root)
                self._high = root.version
                self._forget_oldest()

    def refuse_repeated(self, key: RequestKey, base: Root) -> None:
        """Find a request in the versions up to ``base``.

        No request where the key is newer than all that these contain. Else one ``get`` for each version that was not
        read yet, down to one that proves that the key is in no older one.

        Raises:
            Repeated: it is there, or another one with its key.
            OutcomeUnknown: a version that may contain the key has expired, or cannot be read.
        """
        with self._lock:
            self._cover(base, key.millis)
            found = self._found.get(key.id)
            self._forget_oldest()
        if found is not None:
            raise Repeated(*found)

    def _cover(self, base: Root, millis: int) -> None:
        """Make the stretch reach from ``base`` down to a version below which no key has a time or a later one."""
        if base.version > self._high:
            newer = list(self._read_down(base, self._high, millis))
            lowest = newer[-1].version
            if lowest > self._high + 1:  # what lies between was not read: the stretch begins anew
                self._low = lowest
            for root in newer:
                self._add(root)
            self._high = base.version
        if self._until[self._low] >= millis:
            for root in self._read_versions(self._low - 1, -1, millis):
                self._add(root)
                self._low = root.version

    def _read_down(self, base: Root, above: int, millis: int) -> Iterator[RootRows]:
        """Yield ``base`` and the versions below it, down to one that ends the search, or to the first above another."""
        yield base
        if _last_key_in(base) >= millis:
            yield from self._read_versions(base.version - 1, above, millis)

    def _read_versions(self, first: int, above: int, millis: int) -> Iterator[RootRows]:
        """Yield the versions from one downwards, to one that ends the search, or to the first above another."""
        wanted = range(first, max(above, -1), -1)
        for version, root in self._backend.versions.in_batches(wanted):
            if root is None or root.unreadable is not None:
                raise OutcomeUnknown(
                    f"version {version} has expired or cannot be read, so it is not known whether this request was "
                    "carried out before: look at the history, and send what is still wanted with a new key"
                )
            yield root.delta()
            if _last_key_in(root) < millis:
                return

    def _add(self, root: RootRows) -> None:
        self._until[root.version] = _last_key_in(root)
        if f'"{_FACT}":' not in root.system.get(spec.SUMMARY, ""):
            return
        for member in root.members:
            if member.txn is not None and member.request is not None:
                self._found[member.txn] = root.version, member.request

    def _forget_oldest(self) -> None:
        """Drop the oldest versions beyond what is remembered; where they are needed again they are read again."""
        if len(self._until) <= _MOST and len(self._found) <= _MOST:
            return
        self._low += (self._high - self._low) // 2
        low = self._low
        self._until = {version: until for version, until in self._until.items() if version >= low}
        self._found = {key: found for key, found in self._found.items() if found[0] >= low}


def _last_key_in(root: RootRows) -> int:
    """Return a time that no key in a version, or in an older one, is later than."""
    return min(root.requests_until_millis, root.created_at_millis + _AHEAD_MILLIS)
