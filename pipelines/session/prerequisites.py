"""What must be there before Spark starts: a recent Java, or a server that listens."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from trinitylake_core.errors import InvalidInput

MIN_JAVA: Final = 17
_GET_JAVA: Final = (
    'get it with "sudo apt install openjdk-17-jre-headless" (Debian, Ubuntu) or "brew install openjdk@17" (macOS), '
    'or name one with "export JAVA_HOME=/path/to/jdk-17"'
)
_CONNECT_PORT: Final = 15002
_PROBE_SECONDS: Final = 5.0


def check_java() -> None:
    """Prove that the Java that Spark would start is new enough.

    Raises:
        InvalidInput: it is missing or too old; the message says how to get one.
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else "java"
    version = _java_version(java)
    if version is None:
        raise InvalidInput(f'Spark needs Java {MIN_JAVA} or newer, and none was found at "{java}": {_GET_JAVA}')
    major = 8 if version.startswith("1.") else int(re.match(r"[0-9]*", version)[0] or 0)  # type: ignore[index]
    if major < MIN_JAVA:
        raise InvalidInput(f'Spark needs Java {MIN_JAVA} or newer, and "{java}" is {version}: {_GET_JAVA}')


@cache
def _java_version(java: str) -> str | None:
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)  # noqa: S603 - the Java that Spark would start
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "([^"]+)"', done.stderr + done.stdout)
    return match[1] if match else None


def check_pyspark() -> None:
    """Prove that pyspark is installed. Raises ``InvalidInput``, which names the extra."""
    if find_spec("pyspark") is None:
        raise InvalidInput(
            "Spark is not installed: pip install 'trinitylake-maintenance[spark]', or choose engine 'local'"
        )


def check_connect_server(remote: str) -> None:
    """Prove that somebody listens at a Spark Connect URL: without that the client waits for ever.

    Raises:
        InvalidInput: nobody does, or it is no such URL; the message shows no token of it.
    """
    try:
        parts = urlsplit(remote)
        host, port = parts.hostname, parts.port or _CONNECT_PORT
    except ValueError:
        host, port = None, 0
    if not host:
        raise InvalidInput("remote is not the URL of a Spark Connect server such as sc://host:15002")
    try:
        socket.create_connection((host, port), timeout=_PROBE_SECONDS).close()
    except OSError as error:
        raise InvalidInput(
            f"no Spark Connect server answers at {host}:{port} ({error}); start one with start-connect-server.sh, "
            "or correct the URL"
        ) from None
