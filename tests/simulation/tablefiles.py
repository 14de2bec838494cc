"""Which files the metadata of an Iceberg table need, read by PyIceberg's own readers: none of the product's."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any

from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.manifest import read_manifest_list

from tests.simulation.store import ROOT


class _Held(InputFile):
    def __init__(self, files: Mapping[str, bytes], location: str) -> None:
        super().__init__(location)
        self._data = files[location.removeprefix(ROOT)]

    def __len__(self) -> int:
        return len(self._data)

    def exists(self) -> bool:
        """Return whether it is there: it was held."""
        return True

    def open(self, seekable: bool = True) -> Any:
        """Open it for reading."""
        return io.BytesIO(self._data)


class _HeldIO(FileIO):
    def __init__(self, files: Mapping[str, bytes]) -> None:
        super().__init__()
        self._files = files

    def new_input(self, location: str) -> InputFile:
        """Return a file for reading."""
        return _Held(self._files, location)

    def new_output(self, location: str) -> OutputFile:
        """Refuse to write."""
        raise NotImplementedError(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Refuse to delete."""
        raise NotImplementedError(str(location))


_KNOWN: dict[tuple[str, bytes], frozenset[str]] = {}


def files_of(files: Mapping[str, bytes], metadata: str) -> frozenset[str]:
    """Return the paths of all files that table metadata refer to, and their own, among files that ever were."""
    data = files[metadata]
    if (metadata, data) not in _KNOWN:
        held, found = _HeldIO(files), {metadata}
        for snapshot in json.loads(data)["snapshots"]:
            found.add(snapshot["manifest-list"])
            for manifest in read_manifest_list(held.new_input(snapshot["manifest-list"])):
                found.add(manifest.manifest_path)
                found |= {each.data_file.file_path for each in manifest.fetch_manifest_entry(held)}
        _KNOWN[metadata, data] = frozenset(path.removeprefix(ROOT) for path in found)
    return _KNOWN[metadata, data]
