"""Which versions the commits of one piece of work became, for who asked for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

_MADE: Final[ContextVar[list[int] | None]] = ContextVar("versions made", default=None)


@contextmanager
def collect_versions() -> Iterator[list[int]]:
    """Collect, while a block runs, the versions that are made in its thread."""
    found: list[int] = []
    token = _MADE.set(found)
    try:
        yield found
    finally:
        _MADE.reset(token)


def note_version(version: int) -> None:
    """Note that a commit became this version."""
    found = _MADE.get()
    if found is not None:
        found.append(version)
