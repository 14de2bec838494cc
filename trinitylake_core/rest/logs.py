"""What a server writes of its work: a log for operators, and the audit log.

Neither holds the words of an exception or of another library: they may quote the content of a file, or a secret.
"""

from __future__ import annotations

import logging
import os
import sys
from io import TextIOWrapper
from logging.handlers import WatchedFileHandler
from pathlib import Path
from types import TracebackType
from typing import Final

from trinitylake_core.errors import InvalidInput
from trinitylake_core.rest.audit import AUDIT
from trinitylake_core.rest.problems import where_it_was_raised

_OURS: Final = ("trinitylake", "trinitylake_core", "pipelines")
_ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class LogFormat(logging.Formatter):
    """Our own lines as they are; of those of other libraries, only where in the code they were written."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Return a line."""
        if not record.name.startswith(_OURS):
            record = logging.makeLogRecord({"msg": _without_words(record)})
        return super().format(record)

    def formatException(self, ei: _ExcInfo) -> str:  # noqa: N802 - logging's name
        """Return where an exception was raised, and no word of it."""
        return "" if ei[1] is None else where_it_was_raised(ei[1])


def _without_words(record: logging.LogRecord) -> str:
    """Return what a line of another library is about: where it was written, and where an exception was raised."""
    level = record.levelname.lower()
    text = f"{record.name}: {level} at {record.module}:{record.lineno}"
    if record.exc_info is None or record.exc_info[1] is None:
        return text
    raised = where_it_was_raised(record.exc_info[1])
    return f"{text} ({raised})"


class _AuditFile(WatchedFileHandler):
    """A file that only its owner reads, opened again after a rotation."""

    def _open(self) -> TextIOWrapper:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        descriptor = os.open(self.baseFilename, flags, 0o600)
        return os.fdopen(descriptor, "a", encoding="utf-8")


def log_to_stderr(audit_file: str | Path | None = None) -> None:
    """Write the log to standard error, and the audit log there too, or to a file of its own.

    Raises ``InvalidInput``: the file cannot be written.
    """
    log = logging.StreamHandler(sys.stderr)
    log.setFormatter(LogFormat())
    root = logging.getLogger()
    root.handlers = [log]
    root.setLevel(logging.ERROR)
    for name in _OURS:
        logging.getLogger(name).setLevel(logging.INFO)
    AUDIT.handlers = [_audit_handler(audit_file)]
    AUDIT.propagate = False


def _audit_handler(audit_file: str | Path | None) -> logging.Handler:
    if audit_file is None:
        return logging.StreamHandler(sys.stderr)
    try:
        return _AuditFile(audit_file, encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"cannot write the audit log {audit_file}: {error.strerror}") from None
