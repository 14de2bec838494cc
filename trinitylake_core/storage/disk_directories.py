"""Which directories of a disk are there already: names for new files, and directories that are made.

Making a directory costs a local disk as much as writing a small file, and a young lakehouse has next to no two files in
one. Names of nodes are random: so a writer of many lists once which directories are there, and takes from then on, of a
few names, one that needs no new directory. Object stores have no directories, and names stay spread evenly there.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from trinitylake_core.errors import NotAFile

_LOOK_AFTER: Final = 32
"""For how many new directories looking which ones are there pays; looking costs as much as making some tens."""
_TRIES: Final = 16
"""How many names are tried; making a directory costs as much as some tens of names."""
_OWNER_ONLY: Final = 0o700
_AS_UMASK_SAYS: Final = 0o777
_LEVELS: Final = 3
"""How deep files of optimised paths lie (format, section 2)."""


class Directories:
    """What is known of the directories below ``root``. Others may make and remove some: all of it are guesses."""

    def __init__(self, root: str, added: Callable[[str], None]) -> None:
        """Know nothing yet; ``added`` is called with each directory in which a name may not be durable yet."""
        self._root = root
        self._added = added
        self._known: set[str] = set()
        self._places: set[str] = set()
        """The directories in optimised paths: directories that are there, or will be made."""
        self._new = 0
        """How many of them were not there when a name was picked, as far as was known."""
        self._looked = False

    def ensure(self, directory: str, plain: str = "") -> None:
        """Make a directory and those above it unless they are known to be there. Raises ``OSError``, ``NotAFile``.

        One below the root that is there was made by another process, which may have died before it was durable.
        No link may lead to the directory ``plain``.
        """
        if directory in self._known:
            return
        above = os.path.dirname(directory)
        inside = directory.startswith(self._root.rstrip("/") + "/")
        if inside:
            self.ensure(above, plain)
            self._refuse_link(directory, plain)
        if not os.path.isdir(directory):
            self.ensure(above, plain)
            try:
                os.mkdir(directory, self._mode_of(directory))
            except FileExistsError:
                if not os.path.isdir(directory):
                    text = "a file stands where a directory should be"
                    raise NotADirectoryError(errno.ENOTDIR, text, directory) from None
            except FileNotFoundError:
                self._known.clear()
                os.makedirs(directory, self._mode_of(directory), exist_ok=True)
            inside = True
        if inside:
            self._added(above)
        self._known.add(directory)

    def _refuse_link(self, directory: str, plain: str) -> None:
        """Raise ``NotAFile`` for a link out of the root, or on the way to ``plain``: no directory is made behind it."""
        if not os.path.islink(directory):
            return
        if f"{plain}/".startswith(f"{directory}/"):
            raise NotAFile(f"{directory} is a link", path=directory)
        root = os.path.realpath(self._root)
        if os.path.commonpath([root, os.path.realpath(directory)]) != root:
            raise NotAFile(f"{directory} is a link that leads out of the root directory", path=directory)

    def _mode_of(self, directory: str) -> int:
        """Return the mode of a new directory: a lakehouse is its owner's alone, and all below it follows the umask."""
        if directory == self._root.rstrip("/"):
            return _OWNER_ONLY
        return _AS_UMASK_SAYS

    def forget(self) -> None:
        """Know nothing any more: a directory that was there is gone."""
        self._known.clear()

    def pick(self, make: Callable[[], str]) -> str:
        """Return one of the paths that ``make`` returns: below a directory that is there already, if some are tried."""
        path = make()
        if self._new >= _LOOK_AFTER:
            if not self._looked:
                self._looked = True
                cut = len(self._root.rstrip("/")) + 1
                level = [self._root]
                for _ in range(_LEVELS):
                    above = level
                    level = []
                    for each in above:
                        with suppress(OSError), os.scandir(each) as entries:
                            level += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
                self._places.update(each[cut:] for each in level)
            for _ in range(_TRIES - 1):
                if path[: path.rfind("/")] in self._places:
                    return path
                path = make()
        place = path[: path.rfind("/")]
        if place not in self._places:
            self._places.add(place)
            self._new += 1
        return path
