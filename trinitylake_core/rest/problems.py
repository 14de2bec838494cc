"""Exceptions as the error types and statuses that the REST specification names."""

from __future__ import annotations

import re
from typing import Final

from pydantic import ValidationError as PydanticError
from pyiceberg import exceptions as iceberg

from trinitylake_core import errors as ours


class Problem(Exception):
    """An answer that is an error: its status, the type that clients read, and a message for people."""

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


_WORDS: Final = tuple(
    (re.compile(pattern), words)
    for pattern, words in (
        (r"^Namespace (\S+) does not exists$", r"Namespace does not exist: \1"),
        (r"^metadata file (\S+) is missing", r"Failed to open input stream for file: \1, which is missing"),
        (r"^Table already exists$", "Requirement failed: table already exists"),
        (r"^Table UUID does not match", "Requirement failed: UUID does not match"),
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
            return Problem(status, kind, _message(error))
    return Problem(500, "InternalServerError", "the server failed; its log has the details")


def _message(error: Exception) -> str:
    """Return a message for clients: the defect of their request, but no content of a file."""
    inner = error.args[0] if error.args else None
    found = next((each for each in (error, inner) if isinstance(each, PydanticError)), None)
    if found is not None:
        first = found.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(each) for each in first["loc"])
        subject = "the request" if found is error else "the metadata"
        return f"{subject} is not what the specification says: {where}: {first['msg']}"
    text = "a metadata file cannot be read now" if type(error) is OSError else str(error)
    for pattern, words in _WORDS:
        text = pattern.sub(words, text)
    return text
