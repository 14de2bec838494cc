"""Says to a person who waits which storage gives no answer.

Requests are repeated for minutes, since a storage that is restarted comes back, and a command that tells nobody looks
as if it had hung itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

FIRST_SECONDS: Final = 5.0
"""So long a storage may be silent before it is named."""
_AGAIN_SECONDS: Final = 30.0
"""It is named again after so many seconds more."""
_LOOK_SECONDS: Final = 0.5


@contextmanager
def watch_silence(say: Callable[[str], None]) -> Iterator[None]:
    """While the block runs, say in a sentence which storage gives no answer, first after five seconds."""
    is_over = threading.Event()
    thread = threading.Thread(target=_watch, args=(say, is_over), name="patience", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()


def _watch(say: Callable[[str], None], is_over: threading.Event) -> None:
    said: dict[str, float] = {}
    """How long each storage had been silent when it was named last."""
    while not is_over.wait(_LOOK_SECONDS):
        from trinitylake_core.storage.base import list_silent  # after half a second: a listing must not wait for it

        silent = dict(list_silent(FIRST_SECONDS))
        for root, seconds in silent.items():
            before = said.get(root)
            if before is None or seconds >= before + _AGAIN_SECONDS:
                said[root] = seconds
                say(f"no answer yet from {root} after {seconds:.0f} s; it is asked again, Ctrl-C gives up")
        said = {root: seconds for root, seconds in said.items() if root in silent}
