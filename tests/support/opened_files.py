"""Which files were opened, by whatever process and call: the kernel says it (inotify)."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_OPENED: Final = 0x20
_EVENT: Final = struct.Struct("iIII")


@contextmanager
def watched(files: Iterable[Path]) -> Iterator[list[Path]]:
    """Yield a list in which, at the end, each of some files stands as often as it was opened; links are not followed.

    Asking for what is known of a file, without opening it (``O_PATH``), does not count.
    """
    library = ctypes.CDLL(None, use_errno=True)
    queue = library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    names = {library.inotify_add_watch(queue, os.fsencode(each), _OPENED): each for each in files}
    assert queue >= 0
    assert min(names, default=0) >= 0
    opened: list[Path] = []
    try:
        yield opened
        try:
            while data := os.read(queue, 1 << 16):
                for begin in range(0, len(data), _EVENT.size):
                    number, *_ = _EVENT.unpack_from(data, begin)
                    opened.append(names[number])
        except BlockingIOError:
            pass
    finally:
        os.close(queue)
