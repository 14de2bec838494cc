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


def make_progress(stream: TextIO) -> PrintedProgress:
    """Return the progress for a stream: bars on a terminal, lines elsewhere."""
    if stream.isatty():
        return Bar(stream)
    return PrintedProgress(stream)


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
        line = f"{phase}: {done:,}"
        if total is not None:
            line += f" of {total:,}"
        self._stream.write(f"{line}\n")
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
        if self._bars is None:
            self._bars = _start_bars(self._stream, self._clock)
        task = self._show_phase(self._bars, phase, total)
        text = f"{done:,}"
        if total is not None:
            text += f"/{total:,}"
        speed = self._bars.tasks[0].speed
        if speed:
            text += f" {speed:,.0f}/s"
        self._bars.update(task, completed=done, total=total, done=text)
        self._bars.refresh()

    def _show_phase(self, bars: Bars, phase: str, total: int | None) -> TaskID:
        """Return the bar of a phase; the one of the phase before it goes."""
        if self._task is None or phase != self._phase:
            if self._task is not None:
                bars.remove_task(self._task)
            self._phase = phase
            self._task = bars.add_task(phase, total=total, done="")
        return self._task

    def close(self) -> None:
        """Remove the bar; the next call draws a new one."""
        if self._bars is not None:
            self._bars.stop()
        self._bars = None
        self._phase = None
        self._task = None

    def mute(self) -> None:
        """Remove the bar, and draw no other."""
        self._muted = True
        self.close()


def _start_bars(stream: TextIO, clock: Callable[[], float]) -> Bars:
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from pipelines.cli.terminal import console

    bars = Progress(
        TextColumn("{task.description}"),
        BarColumn(20),
        TextColumn("{task.fields[done]}"),
        TimeRemainingColumn(compact=True),
        console=console(stream),
        auto_refresh=False,
        transient=True,
        get_time=clock,
    )
    bars.start()
    return bars
