"""Why a disk refuses a file: the directory belongs to another user of this machine."""

from __future__ import annotations

import os
from pathlib import Path
from pwd import getpwuid


def explain_denial(path: str) -> str:
    """Return what an error adds about the directory that a path lies in; empty where it belongs to this user."""
    directory = Path(path)
    try:
        while not directory.is_dir():
            directory = directory.parent
        owner = directory.stat().st_uid
    except OSError:  # the directory above it cannot be searched: it is the one that refuses
        directory = directory.parent
        try:
            owner = directory.stat().st_uid
        except OSError:
            return ""
    if owner == os.geteuid():
        return ""
    return (
        f"; {directory} belongs to {_user_name(owner)}, and this process runs as {_user_name(os.geteuid())}: users who "
        "share a lakehouse need a group that may write, and umask 002 (docs/storage.md, several users of one directory)"
    )


def _user_name(number: int) -> str:
    try:
        return getpwuid(number).pw_name
    except KeyError:  # of a container, or of another machine
        return f"user {number}"
