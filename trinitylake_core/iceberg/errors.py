"""Our errors as PyIceberg's, which its callers catch; and which words of an exception people may see.

The message of an exception that another library raised may quote what it was given: a line of a file, a property that
holds a secret. So no such message reaches a client or a log. What they see are constant words: ours, or those of a
message that is known to contain nothing else but numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from pydantic import ValidationError as PydanticError
from pyiceberg import exceptions as iceberg

from trinitylake_core import errors as ours

_SAME: Final = (
    (ours.CommitConflict, iceberg.CommitFailedException),
    (ours.TransactionExpired, iceberg.CommitFailedException),
    (ours.LakehouseFrozen, iceberg.CommitFailedException),
    (ours.LakehouseReplaced, iceberg.ForbiddenError),
    (ours.ReadOnly, iceberg.ForbiddenError),
    (ours.UnsafeStorage, iceberg.ForbiddenError),
    (ours.StorageDenied, iceberg.ForbiddenError),
    (ours.InvalidLocation, iceberg.ForbiddenError),
    (ours.InvalidName, iceberg.BadRequestError),
    (ours.InvalidDefinition, iceberg.ValidationError),
)


class MetadataMissing(FileNotFoundError):
    """A metadata file that a definition or a client names is not there."""


class TableForbidden(iceberg.ForbiddenError):
    """One table names a place at which this catalog may not read or write for it."""


NotThere = iceberg.NoSuchTableError
"""No Iceberg table has a name any more."""
REFUSED: Final = (
    iceberg.CommitFailedException,
    NotThere,
    iceberg.ValidationError,
    TableForbidden,
    FileNotFoundError,
    NotImplementedError,
    ValueError,
)
"""The errors by which one table cannot be read or changed now; they concern no other table."""


@contextmanager
def translate_errors() -> Iterator[None]:
    """Raise PyIceberg's exception for each of our errors that has one; the others pass as they are."""
    try:
        yield
    except ours.TrinityLakeError as error:
        for own, theirs in _SAME:
            if isinstance(error, own):
                raise theirs(str(error)) from error
        raise


@contextmanager
def keep_own_errors() -> Iterator[None]:
    """Raise our error again where PyIceberg's says that the outcome is unknown: jobs, unlike engines, know ours."""
    try:
        yield
    except iceberg.CommitStateUnknownException as error:
        cause = error.__cause__
        if isinstance(cause, ours.TrinityLakeError):
            raise cause from error
        raise


# -- words that people may see -----------------------------------------------------------------------

_OUR_PACKAGE: Final = __name__.partition(".")[0]
_PYICEBERG: Final = iceberg.__name__
_REF: Final = r"[\w.-]{1,100}"
_ID: Final = r"-?\d{1,20}"
_HARMLESS: Final = tuple(
    re.compile(pattern)
    for pattern in (
        r"Table already exists",
        r"(Requirement failed: current table metadata is missing)",
        r"(Table UUID does not match): .*",
        rf"(Requirement failed: (?:branch|tag) {_REF} was created concurrently)",
        rf"(Requirement failed: (?:branch|tag) {_REF} has changed: expected id {_ID}, found {_ID})",
        rf"(Requirement failed: branch or tag {_REF} is missing, expected {_ID})",
        rf"(Requirement failed: [a-z ]+ id has changed: expected (?:{_ID}|None), found (?:{_ID}|None))",
        r"(Requirement failed: Table has no snapshots and can only be written to the main BRANCH\.)",
        rf"(Cannot add snapshot with sequence number {_ID} older than last sequence number {_ID})",
        r"(Cannot add snapshot without first row id)",
        rf"(Cannot add a snapshot with first row id smaller than the table's next-row-id) {_ID} < {_ID}",
        rf"(Snapshot with id {_ID} already exists)",
        rf"(Snapshot with snapshot id {_ID} does not exist): .*",
        rf"(Statistics with snapshot id {_ID} does not exist)",
        rf"(Partition Statistics with snapshot id {_ID} does not exist)",
        rf"(Cannot set {_REF} to unknown snapshot {_ID})",
        rf"(Cannot remove {_REF} ref with unknown snapshot {_ID})",
        rf"(Partition spec with id {_ID} (?:already exists|does not exist))(?:: .*)?",
        rf"(Sort-order with id {_ID} already exists): .*",
        rf"(Sort order with id {_ID} does not exist)",
        rf"(Schema with (?:schema )?id {_ID} does not exist)",
        rf"(Cannot remove current schema with id {_ID})",
        rf"(Cannot remove default partition spec: {_ID})",
        rf"(Failed to find spec with id {_ID})",
        r"(Cannot set current (?:schema|partition spec) to last added(?: one| schema) when no [a-z ]+ has been added)",
        r"(Cannot set current sort order to the last added one when no sort order has been added)",
        r"(Attempting to add a snapshot before a (?:schema|partition spec|sort order) is added)",
        rf"(Unsupported table format version: {_ID})",
        rf"(Unknown format version: {_ID})",
        rf"(Cannot downgrade v{_ID} table to v{_ID})",
        rf"(current-schema-id {_ID} can't be found in the schemas)",
        rf"(default-spec-id {_ID} can't be found)",
        rf"(default-sort-order-id {_ID} can't be found) in .*",
    )
)
"""PyIceberg's messages that people need, and the part of each that holds only words, numbers and names of refs."""
_MOST_COMPLAINTS: Final = 1000
_FIELD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,39}")


def words_of(error: BaseException) -> str:
    """Return what people may see of an exception: its message if it is ours, and constant words otherwise."""
    if _is_ours(error):
        return str(error)
    if isinstance(error, PydanticError):
        return _words_of_model(error)
    inner = error.args[0] if error.args else None
    if isinstance(inner, PydanticError):
        return _words_of_model(inner)
    text = str(error)
    for pattern in _HARMLESS:
        match = pattern.fullmatch(text)
        if match is not None:
            return match[match.lastindex or 0]
    return f"a part of it is not what the specification says ({type(error).__name__})"


def _is_ours(error: BaseException) -> bool:
    """Whether our code wrote the message: it is a class of ours, or one of PyIceberg's that our code raised."""
    module = type(error).__module__
    if module.partition(".")[0] == _OUR_PACKAGE:
        return True
    return module == _PYICEBERG and _raised_in(error) == _OUR_PACKAGE


def _raised_in(error: BaseException) -> str:
    """Return the package whose code raised an exception; empty before it was raised."""
    trace = error.__traceback__
    if trace is None:
        return ""
    while trace.tb_next is not None:
        trace = trace.tb_next
    return str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0]


def _words_of_model(error: PydanticError) -> str:
    """Return where a model did not fit, and how: the name of a field and a kind of error, and never a value."""
    count = error.error_count()
    if count > _MOST_COMPLAINTS:  # each would become a text before the first one is given out
        return f"{count} parts of it"
    first: Any = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(_describe_part(each) for each in first["loc"])
    return f"{place or 'the whole'}: {first['type'].replace('_', ' ')}"


def _describe_part(part: object) -> str:
    """Return a part of a place in a JSON document: a number, or what looks like the name of a field."""
    text = str(part)
    if isinstance(part, int) or _FIELD.fullmatch(text):
        return text
    return "..."


# -- what is not there -------------------------------------------------------------------------------


def no_namespace(namespace: str) -> iceberg.NoSuchNamespaceError:
    """Return the exception for a namespace that is not there."""
    return iceberg.NoSuchNamespaceError(f"Namespace {namespace} does not exists")


def no_table(namespace: str, name: str) -> iceberg.NoSuchTableError:
    """Return the exception for a table that is not there."""
    return iceberg.NoSuchTableError(f"Table does not exist: {namespace}.{name}")


def no_view(namespace: str, name: str) -> iceberg.NoSuchViewError:
    """Return the exception for a view that is not there."""
    return iceberg.NoSuchViewError(f"View does not exist: {namespace}.{name}")
