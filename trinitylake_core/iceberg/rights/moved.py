"""Tables that came with their lakehouse from another root: they are read where they lie now, and not written."""

from __future__ import annotations

from pyiceberg.exceptions import ForbiddenError
from pyiceberg.io import FileIO, InputFile, OutputFile

from trinitylake_core.tables import here


class MovedIO(FileIO):
    """Reads the files of a table that came with its lakehouse from another root: where they lie now.

    The metadata keep the locations that they were written with, and so do position deletes, which name data files.
    """

    def __init__(self, files: FileIO, root: str, former: str) -> None:
        super().__init__(files.properties)
        self._files = files
        self._root = root
        self.former = former

    def new_input(self, location: str) -> InputFile:
        """Return a file for reading, by the location that the metadata name."""
        return self._files.new_input(here(self._root, location, self.former))

    def new_output(self, location: str) -> OutputFile:
        """Refuse to write: the table is written at the location in its metadata. Raises ``ForbiddenError``."""
        raise self.refusal(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Refuse to delete. Raises ``ForbiddenError``."""
        raise self.refusal(location if isinstance(location, str) else location.location)

    def refusal(self, what: str) -> ForbiddenError:
        """Return the error for what others than readers of this catalog want of the table."""
        return refusal_of_moved(what, self._root, self.former)


def refusal_of_moved(what: str, root: str, former: str) -> ForbiddenError:
    """Return the error for writing a table that was written below a ``former`` root, and for giving it to engines."""
    return ForbiddenError(
        f"{what}: the table was written below {former} and came here with its lakehouse, so its metadata name "
        f"files there. PyIceberg's catalog at {root} reads it; to write it, and for other engines, export "
        "the lakehouse with its tables back to that root"
    )
