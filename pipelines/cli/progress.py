"""The progress of jobs, printed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

_EVERY_SECONDS: Final = 2.0
_EVERY_SECONDS_ON_A_TERMINAL: Final = 0.1


def printed(stream: TextIO) -> PrintedProgress:
    """Return the progress for a stream: bars on a terminal, lines elsewhere."""
    return Bar(stream) if stream.isatty() else PrintedProgress(stream)


class PrintedProgress:
    """Prints a line every two seconds. The first comes after one interval, so that what is quick stays quiet."""

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._next = clock() + _EVERY_SECONDS

    def __call__(self, phase: str, done: int, total: int | None = None, /) -> None:
        """Print a line if it is time for one."""
        now = self._clock()
        if now < self._next:
            return
        self._next = now + _EVERY_SECONDS
        self._stream.write(f"{phase}: {done:,}\n" if total is None else f"{phase}: {done:,} of {total:,}\n")
        self._stream.flush()

    def close(self) -> None:
        """Remove what changes from the screen."""

    def mute(self) -> None:
        """Draw nothing any more: the screen belongs to the pager."""


class Bar(PrintedProgress):
    """Shows a bar with rate and remaining time, one phase after the other; quiet for the first tenth of a second."""

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stream, clock=clock)
        self._next = clock() + _EVERY_SECONDS_ON_A_TERMINAL
        self._bars: Bars | None = None
        self._phase: str | None = None
        self._task: TaskID | None = None
        self._muted = False

    def __call__(self, phase: str, done: int, total: int | None = None, /) -> None:
        """Draw it again if it is time to."""
        now = self._clock()
        if self._muted or now < self._next:
            return
        self._next = now + _EVERY_SECONDS_ON_A_TERMINAL
        bars = self._bars = self._bars or _bars(self._stream, self._clock)
        if phase != self._phase or self._task is None:
            if self._task is not None:
                bars.remove_task(self._task)
            self._phase, self._task = phase, bars.add_task(phase, total=total, done="")
        of = "" if total is None else f"/{total:,}"
        speed = bars.tasks[0].speed
        rate = f"{speed:,.0f}/s" if speed else ""
        bars.update(self._task, completed=done, total=total, done=f"{done:,}{of} {rate}")
        bars.refresh()

    def close(self) -> None:
        """Remove the bar; the next call draws a new one."""
        if self._bars is not None:
            self._bars.stop()
            self._bars = self._phase = self._task = None

    def mute(self) -> None:
        """Remove the bar, and draw no other."""
        self._muted = True
        self.close()


def _bars(stream: TextIO, clock: Callable[[], float]) -> Bars:
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from pipelines.cli.terminal import console

    columns = (TextColumn("{task.description}"), BarColumn(20), TextColumn("{task.fields[done]}"))
    bars = Progress(
        *columns,
        TimeRemainingColumn(compact=True),
        console=console(stream),
        auto_refresh=False,
        transient=True,
        get_time=clock,
    )
    bars.start()
    return bars
