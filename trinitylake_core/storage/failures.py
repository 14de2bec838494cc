"""Failures inside the storage package: what may be tried again, and error texts without secrets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from trinitylake_core.errors import StorageError
from trinitylake_core.storage.port import Options

_PUBLIC_OPTIONS = frozenset({"endpoint_url", "region", "region_name", "profile", "anon", "account_name"})
# The first group of each is the name that stays in the text; key IDs have none.
_SECRET_PATTERNS = (
    re.compile(
        r"(?i)(x-amz-(?:signature|credential|security-token)|signature|awsaccesskeyid|access_token|sig)=[^&\s\"'>]+"
    ),
    re.compile(r"(?i)(authorization|bearer)[:=\s]+[^\s,;]+"),
    re.compile(r"\b()(?:AKIA|ASIA)[A-Z0-9]{12,}\b"),
)
_USER_INFO = re.compile(r"://[^/\s@]+@")
_MIN_SECRET_LENGTH = 4


class TransientError(StorageError):
    """A request failed in a way that a second try may mend. Never leaves the storage package.

    ``undone``: the storage certainly did not carry the request out; otherwise it may have done so.
    """

    def __init__(self, message: str, *, undone: bool = False) -> None:
        super().__init__(message)
        self.undone = undone


class Unanswered(StorageError):
    """A request failed in all attempts, so that the store gave no answer."""


class Outdated(StorageError):
    """A file is no longer what it was when it was read. Never leaves the storage package."""


def secrets_of(options: Options) -> list[str]:
    """Return every string in ``options`` that could be a secret, longest first."""
    found: set[str] = set()

    def walk(name: str, value: Any) -> None:
        if isinstance(value, Mapping):
            for key, inner in value.items():
                walk(str(key), inner)
        elif isinstance(value, str) and name not in _PUBLIC_OPTIONS and len(value) >= _MIN_SECRET_LENGTH:
            found.add(value)

    for key, value in options.items():
        walk(str(key), value)
    return sorted(found, key=len, reverse=True)


def sanitise(text: str, secrets: Iterable[str]) -> str:
    """Return ``text`` without keys, tokens, signatures and passwords in URLs."""
    for secret in secrets:
        text = text.replace(secret, "***")
    for pattern in _SECRET_PATTERNS:
        text = pattern.sub(_hide_value, text)
    return _USER_INFO.sub("://***@", text)


def _hide_value(match: re.Match[str]) -> str:
    """Return what stands for a secret: the name before it stays."""
    name = match.group(1)
    if name:
        return f"{name}=***"
    return "***"
