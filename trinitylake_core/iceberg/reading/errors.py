"""The error of a file that is not what it should be."""

from __future__ import annotations

from trinitylake_core.errors import Corrupt


class UnreadableTable(Corrupt):
    """A file of a table is not what it should be. Its content is never quoted, only its name and a position."""


class Malformed(ValueError):
    """What is wrong with the content of a file, in constant words; who knows the file's name reports it."""
