"""Pictures of the command line for the pages: real runs on a terminal, saved as SVG into docs/images.

Makes them anew, from the lakehouse of `make demo`, which it does not change::

    make demo
    .venv/bin/python scripts/pictures.py
"""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

ROOT: Final = Path(__file__).absolute().parent.parent
INTO: Final = ROOT / "docs" / "images"
DEMO: Final = ROOT / ".demo"
COLUMNS: Final = 110
_COLOUR: Final = re.compile(rb"\x1b\[[0-9;]*m")
_RATE: Final = re.compile(rb"[0-9,]+/[0-9,]+ [0-9,]+/s")
_FONTS: Final = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
"""Where rich's pictures load a font from; a page of ours loads nothing from elsewhere."""
_FRAME: Final = re.compile(rb"\r\x1b\[2K|\x1b\[1A\x1b\[2K")


def main() -> int:
    """Make all pictures; return the exit code."""
    if not (DEMO / "lakehouse").is_dir():
        print("there is no .demo/lakehouse: run `make demo` first", file=sys.stderr)
        return 2
    save("help", ["--help"], DEMO)
    save("history", ["history", "./lakehouse", "--limit", "12"], DEMO)
    rollback = ["rollback", "./lakehouse", "--to-version", "HEAD~4", "--reason", "a bad deployment", "--dry-run"]
    save("rollback-terminal", rollback, DEMO)
    with tempfile.TemporaryDirectory() as scratch:
        shutil.copytree(DEMO / "lakehouse", Path(scratch) / "lakehouse")
        save("progress", ["export", "./lakehouse", "./backup", "--history"], Path(scratch), halfway=True)
    return 0


def save(name: str, words: list[str], directory: Path, *, halfway: bool = False) -> None:
    """Run a command on a terminal and save what it showed, or with ``halfway`` what it showed in between."""
    shown = run(words, directory)
    if halfway:
        frames = [frame for frame in _FRAME.split(shown) if _RATE.search(_COLOUR.sub(b"", frame))]
        if not frames:
            raise SystemExit(f"trinitylake {words[0]} drew no bar with a rate: it was done too soon")
        shown = frames[len(frames) // 2]
    command = " ".join(f'"{word}"' if " " in word else word for word in words)
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, highlight=False)
    console.print(Text.from_ansi(f"$ trinitylake {command}\n") + Text.from_ansi(shown.decode().replace("\r", "")))
    picture = console.export_svg(title=f"trinitylake {words[0].strip('-')}", theme=MONOKAI, unique_id=name)
    (INTO / f"{name}.svg").write_text(_FONTS.sub("", picture).rstrip() + "\n", encoding="utf-8")
    print(INTO / f"{name}.svg")


def run(words: list[str], directory: Path) -> bytes:
    """Run ``trinitylake`` with a terminal for its output, nobody at the keyboard; return all that it wrote."""
    own, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("TRINITYLAKE_", "NO_COLOR"))
    }
    environment |= {
        "TERM": "xterm-256color",
        "COLORTERM": "truecolor",
        "PYTHONPATH": str(ROOT),
        "COLUMNS": str(COLUMNS),
    }
    command = [sys.executable, "-m", "pipelines.cli", *words]
    with subprocess.Popen(
        command, cwd=directory, env=environment, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        shown = bytearray()
        try:
            while block := os.read(own, 1 << 16):
                shown += block
        except OSError:  # how Linux says that the other side is closed
            pass
        os.close(own)
    if process.returncode != 0:
        raise SystemExit(f"trinitylake {words[0]} failed:\n{shown.decode()}")
    return bytes(shown)


if __name__ == "__main__":
    raise SystemExit(main())
