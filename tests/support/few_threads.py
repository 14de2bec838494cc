"""A system that starts no more threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def few_threads(number: int) -> Iterator[list[threading.Thread]]:
    """Let only so many threads be started as long as the context lasts; yield those that were."""
    begun: list[threading.Thread] = []
    start = threading.Thread.start

    def start_few(thread: threading.Thread) -> None:
        if len(begun) == number:
            raise RuntimeError("can't start new thread")
        begun.append(thread)
        start(thread)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", start_few)
        yield begun
