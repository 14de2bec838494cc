"""Code that a test runs in a process of its own, from this checkout: a process has one session of Spark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from contextlib import suppress
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]


def run_program(text: str, *arguments: str, seconds: float, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run code with such variables in its environment; where it takes longer, it is killed with all that it started."""
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(text), *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
    ) as program:  # fmt: skip
        try:
            out, err = program.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(program.pid, signal.SIGKILL)
            out, err = program.communicate()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(program.args, program.returncode, out, err)
