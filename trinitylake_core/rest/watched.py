"""What files of an operator say, read again when one of them changes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Generic, TypeVar

from trinitylake_core.errors import InvalidInput

LOG: Final = logging.getLogger("trinitylake.rest")
_Identity = tuple[int, ...]
_T = TypeVar("_T")


class Watched(Generic[_T]):
    """What is made of some files, and made again when one of them changes. What cannot be used changes nothing.

    Args:
        paths: the files.
        read: makes something of them. Raises ``OSError``, and ``InvalidInput`` with what is wrong.
        kept: what stays valid while they cannot be used, for the log.
    """

    def __init__(self, paths: Sequence[Path], read: Callable[[], _T], kept: str) -> None:
        self._paths = paths
        self._read = read
        self._kept = kept
        self._seen = self._look()  # before they are read: a change while they are read is one to come
        self._said: list[_Identity] | None = None
        """What was found wrong, and said."""
        self._value = read()

    def get(self) -> _T:
        """Return what they say now. One ``stat`` of each file."""
        now = self._look()
        if now == self._seen:
            self._said = None
            return self._value
        try:
            self._value = self._read()
        except (OSError, InvalidInput) as error:
            if now != self._said:
                text = "%s has changed and cannot be used (%s): %s until it is repaired"
                LOG.warning(text, self._paths[0], reason_of(error), self._kept)
            self._said = now
            if isinstance(error, InvalidInput):  # otherwise it is tried again: this process may have had too many files
                self._seen = now
            return self._value
        self._seen = now
        LOG.info("%s has changed: what it says now counts", self._paths[0])
        return self._value

    def _look(self) -> list[_Identity]:
        return [_identify_file(each) for each in self._paths]


def reason_of(error: OSError | InvalidInput) -> str:
    """Return why files cannot be used."""
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return str(error)


def _identify_file(path: Path) -> _Identity:
    try:
        status = path.stat()
    except OSError:
        return ()
    return (
        status.st_dev,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )
