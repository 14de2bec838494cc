"""How PyIceberg reads, writes and deletes files of a simulated store."""

from __future__ import annotations

import io
from typing import Any, Final

from pyiceberg.io import FileIO, InputFile, OutputFile

from tests.simulation import store as stores
from tests.simulation.store import Store

SIM_FILE_IO: Final = "tests.simulation.fileio.SimFileIO"


class _Writing(io.BytesIO):
    """A file that is there once it is closed."""

    def __init__(self, store: Store, path: str) -> None:
        super().__init__()
        self._to = store, path

    def close(self) -> None:
        if not self.closed:
            store, path = self._to
            store.put("put", path, self.getvalue())
        super().close()


class SimFile(InputFile, OutputFile):
    """One file of a store, by its URI. Only deletions are requests that may be preempted."""

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self._store, self._path = stores.mounted(location)

    def __len__(self) -> int:
        return len(self._store.objects[self._path].data)

    def exists(self) -> bool:
        """Return whether it is there."""
        return self._path in self._store.objects

    def open(self, seekable: bool = True) -> Any:
        """Open it for reading. Raises ``FileNotFoundError``."""
        if not self.exists():
            raise FileNotFoundError(self.location)
        return io.BytesIO(self._store.objects[self._path].data)

    def create(self, overwrite: bool = False) -> Any:
        """Open it for writing."""
        return _Writing(self._store, self._path)

    def to_input_file(self) -> InputFile:
        """Return it for reading."""
        return self

    def delete(self) -> None:
        """Delete it. One ``delete``."""
        stores.scheduled("delete", self._path, lambda: self._store.remove(self._path))


class SimFileIO(FileIO):
    """The files of the stores that are mounted."""

    def new_input(self, location: str) -> InputFile:
        """Return a file for reading."""
        return SimFile(location)

    def new_output(self, location: str) -> OutputFile:
        """Return a file for writing."""
        return SimFile(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Delete a file."""
        SimFile(location if isinstance(location, str) else location.location).delete()
