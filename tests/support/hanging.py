"""A local disk that hangs: whoever reads waits as long as a certain file is there, as on a file server that is gone."""

from __future__ import annotations

import time
from pathlib import Path

from trinitylake_core.storage.local import LocalStorage


def make_reads_hang(while_there: Path) -> None:
    """Make all reads of this process wait as long as a file is there."""
    read = LocalStorage._get

    def wait_and_read(storage: LocalStorage, path: str) -> bytes:
        while while_there.exists():
            time.sleep(0.05)
        return read(storage, path)

    LocalStorage._get = wait_and_read  # type: ignore[assignment, method-assign]
