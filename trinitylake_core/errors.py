"""The errors this library raises, and what the caller does next."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final


class TrinityLakeError(Exception):
    """Base of every error of this library."""

    def __reduce__(self) -> tuple[object, ...]:
        # An error crosses processes as it is: to make it again takes arguments that only some classes have.
        return _make_again, (type(self), self.args), self.__dict__


def _make_again(kind: type[TrinityLakeError], args: tuple[object, ...]) -> TrinityLakeError:
    """Return an error as it was raised, when it is unpickled."""
    return kind.__new__(kind, *args)


class InvalidInput(TrinityLakeError, ValueError):
    """The caller passed something that can never work; nothing was changed. Fix it and call again."""


class InvalidName(InvalidInput):
    """An object name is empty, too long in bytes, or holds a forbidden character."""


class InvalidLocation(InvalidInput):
    """A root URI or a path is malformed, or would lead outside the lakehouse."""


class OutsidePlaces(InvalidLocation):
    """What somebody wrote for a table names a file that is not in the places of this table, so it was not opened."""


class OwnersUnknown(OutsidePlaces):
    """Nobody can tell whose place it is: a file that would say so cannot be read. The message says what mends it."""


class InvalidDefinition(InvalidInput):
    """A lakehouse, namespace, table or view definition that the format cannot hold."""


class NotFound(TrinityLakeError, LookupError):
    """What was asked for is not there."""


class NotALakehouse(NotFound):
    """There is no lakehouse at the root URI."""


class ObjectNotFound(NotFound):
    """No such namespace, table or view in this version."""


class TransactionNotFound(NotFound):
    """No saved transaction of this ID; it was committed, aborted or cleaned up."""


class VersionNotFound(NotFound):
    """This version has never existed."""


class VersionExpired(VersionNotFound):
    """This version existed once and was removed by expiration."""


class SnapshotNotFound(NotFound):
    """No snapshot of this name, or it has expired."""


class FileMissing(NotFound):
    """A file is not in the storage."""


class AlreadyExists(TrinityLakeError):
    """An object, a lakehouse or a file of this name is already there. Take another name, or alter what is there.

    ``after_lost_answer`` means that the answer of an earlier try to create the file was lost. That try may have made
    a file, which others removed before this one was made.
    """

    def __init__(self, message: str, *, after_lost_answer: bool = False) -> None:
        super().__init__(message)
        self.after_lost_answer = after_lost_answer


class NamespaceNotEmpty(TrinityLakeError):
    """A namespace that still holds tables or views cannot be dropped without ``cascade``."""


class Refused(TrinityLakeError):
    """The operation may not be carried out now; nothing was changed. The message names what would allow it."""


class CommitConflict(Refused):
    """Another transaction committed first and touched what this one wrote or read. Read again and retry all of it.

    ``keys`` are the object keys both touched, ``version`` is the version that won.
    """

    def __init__(self, message: str, *, keys: Sequence[str] = (), version: int | None = None) -> None:
        super().__init__(message)
        self.keys = tuple(keys)
        self.version = version


class TransactionExpired(Refused):
    """The transaction outlived ``txn_ttl_millis``, or its base has expired; refresh the handle and begin a new one."""


class ClocksDisagree(Refused):
    """The clock of the storage and the clock of this process show different times. Nothing was committed.

    Correct the one that is wrong, and run it again.
    """


class LakehouseFrozen(Refused):
    """The lakehouse is frozen: it takes no ordinary commits. Nothing was committed; try again when it is thawed.

    ``reason`` and ``author`` are why and who, ``since`` and ``until`` when; ``None`` = it does not end by itself.
    """

    def __init__(
        self, message: str, *, reason: str, author: str, since: datetime, until: datetime | None = None
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.author = author
        self.since = since
        self.until = until


class LakehouseReplaced(Refused):
    """The lakehouse that this handle was opened on was deleted, and another one was created at its root URI.

    Open it again to work with the new one.
    """


class ReadOnly(Refused):
    """The lakehouse, or this handle of it, cannot be written; `trinitylake upgrade` copies it to another root URI."""


class PlanOutdated(Refused):
    """The lakehouse changed since the plan was made; make a new one."""


class WentBack(Refused):
    """The lakehouse has an older state than was seen of it before: its storage was set back.

    What was committed in between is in no version any more. Stop the writers, do not remove any copy, and see the
    runbook, "A bucket was set back".
    """


MAYBE_THE_STORE: Final = (
    "A store that lets two writers create one file leaves this behind, for example one in whose bucket versioning was "
    "switched on: test it with `trinitylake doctor` before you look for somebody who changed files"
)
"""What to say where a root is missing, or is not the one that its successor names (I14)."""


class Corrupt(TrinityLakeError):
    """Stored data is damaged. Run `trinitylake verify`, then roll back or restore from an export.

    ``path`` names the file, ``invariant`` what is broken (``docs/format.md``).
    """

    def __init__(self, message: str, *, path: str | None = None, invariant: str = "I1") -> None:
        super().__init__(message)
        self.path = path
        self.invariant = invariant


class NotAFile(Corrupt):
    """Where a file should be is a directory, a pipe, a device, or a link that leads out. Nothing of it was read."""


class CorruptNode(Corrupt):
    """A node file is cut short, garbage, or breaks an invariant of the tree."""


class LostRoot(CorruptNode):
    """An operator has marked this version as lost (``mend``); its root cannot be read, and that is known."""


class CorruptDefinition(Corrupt):
    """A definition file is missing or does not parse."""


class StorageError(TrinityLakeError):
    """The storage failed after all retries; the outcome of the operation is unknown. Try again later."""


class CannotHold(StorageError):
    """The storage can hold no file of this name: it is too long, or below a file. Choose another one."""


class OutcomeUnknown(StorageError):
    """What was asked for may or may not have been carried out, and nothing that is stored proves which.

    Nothing was deleted. The caller must read the history, and repeat the work only if it is not there.
    """


class StorageDenied(StorageError):
    """The storage refused the credentials. Fix them, or the permissions."""


class StorageFull(StorageError):
    """There is no room on the storage, or in the directory of temporary files. Make room, and repeat the work."""


class UnsafeStorage(StorageError):
    """The storage does not keep a promise that commits or expirations rest on; the message says which. Use another."""
