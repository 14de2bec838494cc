"""An older release as a second writer: its command line, in a process of its own, on the lakehouse of a world."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final

PACKAGES: Final = ("pipelines", "trinitylake_core", "trinitylake_launch")
_SERVE: Final = """
import contextlib, io, json, sys
from pipelines import cli
for line in sys.stdin:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main(json.loads(line))
    print(json.dumps([code, out.getvalue(), err.getvalue()]), flush=True)
"""
_MENDED: Final = ("--full", "mend")
"""What 0.1.0 does wrong, or does not know: the newer release does it in such a world."""


class Older:
    """Takes commands until it is closed. Names and times of its files are its own: a seed does not repeat them."""

    def __init__(self, revision: str) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="judge-older-")
        archived = subprocess.run(("git", "archive", revision, *PACKAGES), capture_output=True, check=True).stdout
        with tarfile.open(fileobj=io.BytesIO(archived)) as archive:
            archive.extractall(self._directory.name, filter="data")
        self._process = subprocess.Popen(
            (sys.executable, "-c", _SERVE),
            cwd=Path(self._directory.name),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def does(self, words: list[str]) -> bool:
        """Whether it is asked for a command."""
        return not any(word in words for word in _MENDED)

    def run(self, words: list[str]) -> tuple[int, str, str]:
        """Return exit code, output and messages of a command."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()
        code, out, err = json.loads(self._process.stdout.readline())
        return int(code), str(out), str(err)

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        self._directory.cleanup()
