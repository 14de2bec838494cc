"""Exceptions as the error types and statuses that the REST specification names.

A client is told words that were written for it (``words_of``). What a storage said, and what Python says of a file, is
for operators: clients get a constant text in its place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import TracebackType
from typing import Final

from pydantic import ValidationError as PydanticError
from pyiceberg import exceptions as iceberg

from trinitylake_core import errors as ours
from trinitylake_core.iceberg.errors import words_of

_MOST_FRAMES: Final = 12
_LONGEST: Final = 2000


class Problem(Exception):
    """An answer that is an error: its status, the type that clients read, and a message for people.

    Attributes:
        closes: whether the connection is closed after it.
    """

    closes = False

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind


_RULES: Final[tuple[tuple[type[BaseException], int, str], ...]] = (
    (iceberg.NoSuchNamespaceError, 404, "NoSuchNamespaceException"),
    (iceberg.NoSuchViewError, 404, "NoSuchViewException"),
    (iceberg.NoSuchTableError, 404, "NoSuchTableException"),
    (iceberg.NoSuchIcebergTableError, 404, "NoSuchTableException"),
    (iceberg.NamespaceAlreadyExistsError, 409, "AlreadyExistsException"),
    (iceberg.TableAlreadyExistsError, 409, "AlreadyExistsException"),
    (iceberg.ViewAlreadyExistsError, 409, "AlreadyExistsException"),
    (iceberg.NamespaceNotEmptyError, 409, "NamespaceNotEmptyException"),
    (iceberg.CommitStateUnknownException, 500, "CommitStateUnknownException"),
    (iceberg.CommitFailedException, 409, "CommitFailedException"),
    (iceberg.ForbiddenError, 403, "ForbiddenException"),
    (iceberg.BadRequestError, 400, "BadRequestException"),
    (NotImplementedError, 406, "UnsupportedOperationException"),
    (ours.OutcomeUnknown, 500, "CommitStateUnknownException"),
    (ours.StorageDenied, 403, "ForbiddenException"),
    (ours.NotALakehouse, 503, "ServiceUnavailableException"),
    (ours.Corrupt, 503, "ServiceUnavailableException"),
    (ours.StorageError, 503, "ServiceUnavailableException"),
    (ours.Refused, 403, "ForbiddenException"),
    (ours.NotFound, 404, "NotFoundException"),
    (ours.InvalidInput, 400, "BadRequestException"),
    (iceberg.ValidationError, 400, "IllegalArgumentException"),
    (FileNotFoundError, 404, "NotFoundException"),
    (OSError, 503, "ServiceUnavailableException"),
    (PydanticError, 400, "BadRequestException"),
    (ValueError, 400, "BadRequestException"),
)
"""The status and the type of each kind. The first that fits counts."""

_LOOK_FIRST: Final = "the storage failed; what was asked for may have happened: look before you try again"
_UNREADABLE: Final = "the lakehouse cannot be read now; the log of the server says why"
_FOR_OPERATORS: Final[tuple[tuple[type[BaseException], str], ...]] = (
    (iceberg.CommitStateUnknownException, _LOOK_FIRST),
    (ours.OutcomeUnknown, _LOOK_FIRST),
    (ours.StorageDenied, "the storage does not allow the server to do that"),
    (ours.NotALakehouse, _UNREADABLE),
    (ours.Corrupt, _UNREADABLE),
    (ours.StorageError, "the storage did not do what was asked for; the log of the server says why"),
)
"""Ours, but their texts quote what a storage said: what clients are told instead."""
_OF_PYTHON: Final[tuple[tuple[type[BaseException], str], ...]] = (
    (FileNotFoundError, "a file that the request or the table names is missing"),
    (OSError, "a file of metadata cannot be read now"),
    (NotImplementedError, "this endpoint does not support that"),
)

_WORDS: Final = tuple(
    (re.compile(pattern), words)
    for pattern, words in (
        (r"^Namespace (\S+) does not exists$", r"Namespace does not exist: \1"),
        (r"^metadata file (\S+) is missing", r"Failed to open input stream for file: \1, which is missing"),
        (r"^Table already exists$", "Requirement failed: table already exists"),
        (r"^Table UUID does not match.*", "Requirement failed: UUID does not match"),
        (r"^(Requirement failed: last assigned (?:field|partition) id) has changed", r"\1 changed"),
        (r"^Requirement failed: current schema id has changed", "Requirement failed: current schema changed"),
        (r"^Requirement failed: default spec id has changed", "Requirement failed: default partition spec changed"),
        (r"^Requirement failed: default sort order id has changed", "Requirement failed: default sort order changed"),
    )
)
"""PyIceberg's words, and those of Iceberg's own server, which its compatibility kit looks for."""


def problem_of(error: Exception) -> Problem:
    """Return the error of the specification for an exception; one that no rule names is a fault of the server."""
    if isinstance(error, Problem):
        return error
    for known, status, kind in _RULES:
        if isinstance(error, known):
            return Problem(status, kind, _message_for_client(error)[:_LONGEST])
    return Problem(500, "InternalServerError", "the server failed; its log has the details")


def _message_for_client(error: Exception) -> str:
    """Return what is wrong with a request, in words that hold no content of a file and no secret."""
    for known, constant in _FOR_OPERATORS:
        if isinstance(error, known):
            return constant
    for known, constant in _OF_PYTHON:
        if isinstance(error, known) and type(error).__module__ == "builtins":
            return constant
    text = words_of(error)
    if isinstance(error, PydanticError):
        return f"the request is not what the specification says: {text}"
    for pattern, words in _WORDS:
        text = pattern.sub(words, text)
    return text


def where_it_was_raised(error: BaseException) -> str:
    """Return the types of an exception and of what caused it, and the places in the code, without a word of its own.

    So it can be logged: the words may hold the content of a file, or a secret.
    """
    types = [type(each).__name__ for each in _causes_of(error)]
    places = [f"{_module_of(each)}:{each.tb_lineno}" for each in _frames_of(error)[-_MOST_FRAMES:]]
    return f"{' from '.join(types)} at {' > '.join(places)}"


def message_for_log(error: Exception) -> str:
    """Return what an operator is told of an exception: the text of one of ours, of others where they were raised."""
    return str(error) if isinstance(error, ours.TrinityLakeError) else where_it_was_raised(error)


def _causes_of(error: BaseException | None) -> Iterator[BaseException]:
    for _ in range(_MOST_FRAMES):
        if error is None:
            return
        yield error
        error = error.__cause__


def _frames_of(error: BaseException) -> list[TracebackType]:
    found = []
    frame = error.__traceback__
    while frame is not None:
        found.append(frame)
        frame = frame.tb_next
    return found


def _module_of(frame: TracebackType) -> str:
    return str(frame.tb_frame.f_globals.get("__name__", ""))
