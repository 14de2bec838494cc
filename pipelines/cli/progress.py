"""The progress of jobs, printed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TextIO

_EVERY_SECONDS: Final = 2.0
_EVERY_SECONDS_ON_A_TERMINAL: Final = 0.1


class PrintedProgress:
    """Prints progress: on a terminal one line that changes, elsewhere a line every two seconds.

    The first line comes after one interval, so that what is quick stays quiet.
    """

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._terminal = stream.isatty()
        self._every = _EVERY_SECONDS_ON_A_TERMINAL if self._terminal else _EVERY_SECONDS
        self._next = clock() + self._every
        self._width = 0

    def __call__(self, phase: str, done: int, total: int | None = None, /) -> None:
        """Print a line if it is time for one."""
        now = self._clock()
        if now < self._next:
            return
        self._next = now + self._every
        text = f"{phase}: {done:,}" if total is None else f"{phase}: {done:,} of {total:,}"
        if self._terminal:
            self._stream.write(f"\r{text.ljust(self._width)}")
            self._width = len(text)
        else:
            self._stream.write(f"{text}\n")
        self._stream.flush()

    def close(self) -> None:
        """Remove the line that changes."""
        if self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._stream.flush()
            self._width = 0
