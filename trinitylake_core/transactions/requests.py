"""Requests that a client may send again after a lost answer: each is carried out at most once.

The client's key, a UUIDv7, is the ID of the transaction, and the summary of the version contains it. So a commit that
is rebased over a version with its own key finds it there, also one of another process. What was committed before the
base is read once per process, back to the time in the key: no version with this key is older, because a
commit refuses a key from the future.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

from trinitylake_core import spec
from trinitylake_core.commits.backend import LakehouseBackend
from trinitylake_core.commits.commit import now_millis
from trinitylake_core.errors import InvalidInput, OutcomeUnknown
from trinitylake_core.versions import Root, RootRows

LIFETIME_MINUTES: Final = 30
"""So long a client may send a request again."""
_LIFETIME_MILLIS: Final = LIFETIME_MINUTES * 60_000
_AHEAD_MILLIS: Final = 60_000
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
    def of(cls, text: str, digest: str) -> RequestKey:
        """Return the key that a client sent.

        Raises ``InvalidInput``: it is no UUIDv7, older than its lifetime, or from the future.
        """
        key = cls(text.lower(), digest)
        if not _UUID7.fullmatch(key.id):
            raise InvalidInput("an idempotency key must be a UUIDv7 (RFC 9562) of 36 characters")
        age = now_millis() - key._millis
        if age > _LIFETIME_MILLIS + _AHEAD_MILLIS:
            raise InvalidInput(
                f"the idempotency key is older than {LIFETIME_MINUTES} minutes: see whether its request was carried "
                "out, and send what is still wanted with a new key"
            )
        if age < -_AHEAD_MILLIS:
            raise InvalidInput(f"the time in the idempotency key is {-age // 1000} s ahead of the server's clock")
        return key

    @property
    def not_before_millis(self) -> int:
        """No version that this request became is older."""
        return self._millis - _AHEAD_MILLIS

    @property
    def _millis(self) -> int:
        return int(self.id[:13].replace("-", ""), 16)

    def facts(self) -> dict[str, str]:
        """Return its part of the summary of a version, beside the ID of the transaction."""
        return {_FACT: self.digest}


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


def asked() -> RequestKey | None:
    """Return the request that is being carried out, if it has a key."""
    return _ASKED.get()


class Requests:
    """The requests with keys that recent versions contain: one stretch of versions, each read once. Thread-safe."""

    def __init__(self, backend: LakehouseBackend) -> None:
        self._backend = backend
        self._lock = threading.Lock()
        self._times: dict[int, int] = {}
        self._found: dict[str, tuple[int, str]] = {}
        self._low = self._high = -2  # none was asked for yet

    def note(self, root: RootRows) -> None:
        """Take in the version after those that are known, so that it is not read for this."""
        with self._lock:
            if root.version == self._high + 1:
                self._add(root)
                self._high = root.version
                self._forget()

    def refuse_repeated(self, key: RequestKey, base: Root) -> None:
        """Find a request in the versions up to ``base``. No request, but one ``get`` for each version not read yet.

        Raises:
            Repeated: it is there, or another one with its key.
            OutcomeUnknown: versions from the time of the key have expired, or cannot be read.
        """
        with self._lock:
            self._cover(base, key.not_before_millis)
            found = self._found.get(key.id)
            self._forget()
        if found is not None:
            raise Repeated(*found)

    def _cover(self, base: Root, millis: int) -> None:
        """Make the stretch reach from ``base`` down to a version that was made before a time."""
        if base.version > self._high:
            newer = list(self._down(base.version, self._high, millis, base))
            if newer[-1].version > self._high + 1:
                self._times.clear()
                self._found.clear()
                self._low = newer[-1].version
            for root in newer:
                self._add(root)
            self._high = base.version
        if self._low > 0 and self._times[self._low] >= millis:
            for root in self._down(self._low - 1, -1, millis):
                self._add(root)
                self._low = root.version

    def _down(self, version: int, above: int, millis: int, base: Root | None = None) -> Iterator[RootRows]:
        """Yield the versions down to one that was made before a time, or to the first ``above`` another."""
        if base is not None:
            yield base
            if base.created_at_millis < millis:
                return
            version -= 1
        for each, root in self._backend.versions.in_batches(range(version, max(above, -1), -1)):
            if root is None or root.unreadable is not None:
                raise OutcomeUnknown(
                    f"version {each} has expired or cannot be read, so it is not known whether this request was "
                    "carried out before: look at the history, and send what is still wanted with a new key"
                )
            yield root.delta()
            if root.created_at_millis < millis:
                return

    def _add(self, root: RootRows) -> None:
        self._times[root.version] = root.created_at_millis
        if f'"{_FACT}":' in root.system.get(spec.SUMMARY, ""):
            for member in root.summary.get("members", ()):
                if _FACT in member:
                    self._found[member["txn"]] = root.version, member[_FACT]

    def _forget(self) -> None:
        """Drop the oldest versions beyond what is remembered; where they are needed again they are read again."""
        if len(self._times) > _MOST or len(self._found) > _MOST:
            self._low += (self._high - self._low) // 2
            self._times = {version: time for version, time in self._times.items() if version >= self._low}
            self._found = {key: found for key, found in self._found.items() if found[0] >= self._low}
