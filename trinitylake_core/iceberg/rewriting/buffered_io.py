"""PyIceberg's FileIO over the storages of a table: whole files in memory, read and written by our own client.

So requests are retried and counted like all others, and what is written is durable before a root names it, which the
FileIO of PyIceberg does not promise: a rewrite replaces durable files.
"""

from __future__ import annotations

import io
from typing import Any

from pyiceberg.exceptions import ForbiddenError
from pyiceberg.io import FileIO, InputFile, OutputFile

from trinitylake_core.table_places import Located
from trinitylake_core.tables import full_uri


class BufferedIO(FileIO):
    """Reads files that it was given, and keeps what is written until it is stored."""

    def __init__(self, located: Located) -> None:
        super().__init__({})
        self._located = located
        self._content: dict[str, bytes] = {}
        self._unstored: list[str] = []

    def hold(self, location: str, data: bytes) -> None:
        """Give the content of a file that was read already."""
        self._content[full_uri(location)] = data

    def content(self, location: str) -> bytes:
        """Return a file that is held, or was written. REQUIRES: it is."""
        return self._content[full_uri(location)]

    def keep(self, location: str, data: bytes) -> None:
        """Keep what was written, until it is stored."""
        self.hold(location, data)
        self._unstored.append(location)

    def store(self) -> None:
        """Write the files that are kept, side by side. One ``put`` each; they are durable after a barrier."""
        self._located.write((location, self.content(location)) for location in self._unstored)
        self._unstored.clear()

    def new_input(self, location: str) -> InputFile:
        """Return a file for reading."""
        return _Input(location, self)

    def new_output(self, location: str) -> OutputFile:
        """Return a file for writing; it is kept until it is stored."""
        return _Output(location, self)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Refuse to delete. Raises ``ForbiddenError``."""
        raise ForbiddenError("a rewrite deletes no file")


class _Kept:
    """A file that :class:`BufferedIO` keeps."""

    location: str

    def __init__(self, location: str, files: BufferedIO) -> None:
        super().__init__(location)  # type: ignore[call-arg]  # that of PyIceberg's class, which comes next
        self._files = files

    def __len__(self) -> int:
        return len(self._files.content(self.location))


class _Input(_Kept, InputFile):
    def exists(self) -> bool:
        """Say yes: nobody asks before reading."""
        return True

    def open(self, seekable: bool = True) -> Any:  # noqa: FBT001, FBT002 - PyIceberg's signature
        """Return the content as a stream."""
        return io.BytesIO(self._files.content(self.location))


class _Stream(io.BytesIO):
    """Gives its content away when it is closed."""

    def __init__(self, location: str, files: BufferedIO) -> None:
        super().__init__()
        self._location = location
        self._files = files

    def close(self) -> None:
        """Keep what was written."""
        if not self.closed:
            self._files.keep(self._location, self.getvalue())
        super().close()


class _Output(_Kept, OutputFile):
    def exists(self) -> bool:
        """Say no: names are random."""
        return False

    def to_input_file(self) -> InputFile:
        """Return the file for reading."""
        return _Input(self.location, self._files)

    def create(self, overwrite: bool = False) -> Any:  # noqa: FBT001, FBT002 - PyIceberg's signature
        """Return a stream to write to."""
        return _Stream(self.location, self._files)
