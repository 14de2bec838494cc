"""The storage port: the operations on a disk or an object store that the rest of the code uses.

Paths are relative to the root URI, `/`-separated, validated by the caller (``locations``).
Immutable files may be read, written and deleted in bulk; one primitive, :meth:`Storage.create`,
is the only lock there is (format, section 1). The few small files that change are replaced by
:meth:`Storage.compare_and_set`, or by :meth:`Storage.replace` where nothing depends on them (the hint).
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from trinitylake_core.errors import FileMissing

T = TypeVar("T")
Options: TypeAlias = Mapping[str, Any]
"""The options of a storage: their values, by name."""
Item = TypeVar("Item")
Data = bytes | memoryview
"""Content to write: bytes, or a view of them that is written without a copy."""


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One listed file: path relative to the root, size in bytes, last change in epoch milliseconds."""

    path: str
    size: int
    modified_millis: int


@dataclass(frozen=True, slots=True)
class Tagged:
    """A small mutable file as it was when it was read: ``data`` is its content, ``None`` if there was no file.

    ``tag`` identifies this content for the storage (an ETag), ``None`` where the storage compares contents.
    """

    data: bytes | None
    tag: str | None = None


@dataclass(slots=True)
class RequestCounts:
    """Storage requests and bytes, by kind, since the storage object was made.

    A request is one call a server would bill: a batch delete of 1000 names is one ``delete``,
    a page of a listing one ``list``.
    """

    get: int = 0
    put: int = 0
    create: int = 0
    delete: int = 0
    list: int = 0
    head: int = 0
    copy: int = 0
    sync: int = 0
    bytes_read: int = 0
    bytes_written: int = 0

    def __sub__(self, other: RequestCounts) -> RequestCounts:
        spent = RequestCounts()
        for name in self.__slots__:
            difference = getattr(self, name) - getattr(other, name)
            setattr(spent, name, difference)
        return spent

    def snapshot(self) -> RequestCounts:
        """Return a copy, to subtract later."""
        return self - RequestCounts()

    def requests(self) -> int:
        """Return the number of requests of all kinds; durability barriers are none."""
        return self.get + self.put + self.create + self.delete + self.list + self.head + self.copy

    def as_dict(self) -> dict[str, int]:
        """Return the counts that are not zero."""
        return {f: getattr(self, f) for f in self.__slots__ if getattr(self, f)}


@dataclass(slots=True)
class DeleteResult:
    """The outcome of a bulk delete: ``failed`` maps a path to the reason.

    Of ``versions_kept`` of the deleted files the store keeps the content as an older version: they take space until a
    rule of the bucket removes them.
    """

    deleted: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    versions_kept: int = 0

    def add(self, other: DeleteResult) -> None:
        """Add the outcome of other deletions to this one."""
        self.deleted += other.deleted
        self.missing += other.missing
        self.failed.update(other.failed)
        self.versions_kept += other.versions_kept


class Storage(abc.ABC):
    """Files below one root URI. Thread-safe. Instances are picklable for Spark tasks via :meth:`spec`.

    Every method raises ``StorageError`` (or a subclass) when the storage fails after retries.
    """

    #: the root URI, always ending in ``/``
    root: str
    counts: RequestCounts
    #: whether it is asked no more for a while once it gave no answer: one of files elsewhere
    gives_up: bool = False

    @abc.abstractmethod
    def spec(self) -> tuple[str, Options]:
        """Return ``(root URI, storage options)``, from which ``open_storage`` makes an equal storage."""

    @abc.abstractmethod
    def read(self, path: str) -> bytes:
        """Return the whole file. One ``get``. Raises ``FileMissing``."""

    @abc.abstractmethod
    def read_range(self, path: str, begin: int, end: int) -> bytes:
        """Return the bytes from ``begin`` to before ``end``, fewer where the file ends. One ``get``.

        Raises ``FileMissing``.
        """

    @property
    @abc.abstractmethod
    def concurrency(self) -> int:
        """How many requests go out at the same time; with 1 nothing is read ahead and nothing written behind.

        It is 1 for work that was handed to :meth:`map` or :meth:`submit`, too.
        """

    @abc.abstractmethod
    def map(self, items: Iterable[Item], work: Callable[[Item], T], *, nested: bool = False) -> Iterator[T]:
        """Yield ``work(item)`` in the order of ``items``, working on several items at once where that saves time.

        ``work`` sends requests, through this object or another one. The work for one item must not depend on any other
        item. Results that the caller has not taken yet are bounded by twice :attr:`concurrency`. When one item fails,
        those not begun are dropped.

        Args:
            items: the items.
            work: the function to call for each item.
            nested: for few large pieces of work, each of which calls :meth:`map` itself.
        """

    @abc.abstractmethod
    def submit(self, action: Callable[[], T], *, write: bool = False) -> Future[T]:
        """Begin an action that reads or writes, and return its future; ``result()`` waits for the action.

        The action may run in the calling thread before this returns. It always does where :attr:`concurrency` is 1.
        Writes have as many threads as reads. Files that it writes are not durable before ``result()`` and then
        :meth:`barrier` have returned.
        """

    def read_many(self, paths: Sequence[str]) -> Iterator[tuple[str, bytes | FileMissing]]:
        """Yield ``(path, content or FileMissing)`` in the order given, by :meth:`map`. One ``get`` per path.

        A missing file is yielded as the error, so that the rest can still be read; any other failure is raised.
        """
        return zip(paths, self.map(paths, self.read_or_missing), strict=True)

    def read_or_missing(self, path: str) -> bytes | FileMissing:
        """Return the whole file, or the error that it is missing. One ``get``."""
        try:
            return self.read(path)
        except FileMissing as missing:
            return missing

    def pick(self, make: Callable[[], str]) -> str:
        """Return a path for a new file. ``make`` returns a different path at each call. No request.

        A local disk picks a path whose directory exists, if a few tries find one. Other backends take the first.
        """
        return make()

    @abc.abstractmethod
    def write(self, path: str, data: Data) -> None:
        """Write an immutable file under a name that no other writer uses. One ``put``.

        Not durable before :meth:`barrier` returns. ``data`` must not change before this returns.
        """

    def write_many(self, files: Iterable[tuple[str, Data]]) -> None:
        """Write immutable files by :meth:`map`. One ``put`` each; after an error no further one is begun."""
        for _ in self.map(files, lambda file: self.write(*file)):
            pass

    @abc.abstractmethod
    def barrier(self) -> None:
        """Wait until all that was written through this object is durable. No request on an object store."""

    def without_barriers(self) -> Storage:
        """Return this storage for processes of this machine that need no :meth:`barrier` of their own.

        From now on a barrier of this object, and each file that it creates, also makes durable what those processes
        wrote before it. An object store needs no barriers; there, and where a barrier cannot cover other processes,
        this returns the object itself.
        """
        return self

    @abc.abstractmethod
    def create(self, path: str, data: Data) -> None:
        """Create a file durably, or raise ``AlreadyExists`` and leave the file that is there.

        One ``create``; atomic: no reader ever sees half a file under ``path``. When the answer is lost, the file is
        read back and compared (one more ``get``): the same bytes mean success. Where they differ,
        ``AlreadyExists.after_lost_answer`` is set: the lost try may have made a file that another process has removed
        since.
        """

    @abc.abstractmethod
    def replace(self, path: str, data: Data, *, durable: bool = True) -> None:
        """Write or overwrite a file atomically. One ``put``. Only for files with a single writer, and the hint.

        ``durable=False`` (the hint) lets the file get lost or cut short when the power fails, costs no sync, and need
        not be atomic for small contents of one length.
        """

    @abc.abstractmethod
    def read_tagged(self, path: str) -> Tagged:
        """Return a small mutable file as :meth:`compare_and_set` expects it. One ``get``.

        A missing file is ``Tagged(None)``, which expects that there is none.
        """

    @abc.abstractmethod
    def compare_and_set(self, path: str, data: Data, expected: Tagged) -> Tagged | None:
        """Replace a file, atomically and durably, if it still has the content that was read; return the new state.

        ``None`` means that the file is not as expected: another process replaced, made or removed it. Nothing was
        changed then. Contents decide: a file that was changed and changed back counts as unchanged, and after a lost
        answer a file that holds ``data`` counts as written by this call. Where it matters *who* wrote it, ``data``
        must contain that.

        One ``put``, and a ``get`` after each lost answer.

        Raises:
            UnsafeStorage: this storage cannot compare and set.
            OutcomeUnknown: an answer was lost, and the file is neither what it was nor what this call wrote.
            StorageError: it failed.
        """

    @abc.abstractmethod
    def list(self, prefix: str = "") -> Iterator[FileInfo]:
        """Yield every file whose path starts with ``prefix``, never from a cache, in no promised order.

        One ``list`` a page (or directory). Skips this library's own temporary files.
        """

    def list_if(self, prefix: str, wanted: Callable[[str], bool]) -> Iterator[FileInfo]:
        """Yield the files of :meth:`list` whose paths are wanted. A disk reads no size and age of the others."""
        return (info for info in self.list(prefix) if wanted(info.path))

    def list_many(self, directories: Sequence[str], wanted: Callable[[str], bool] | None = None) -> Iterator[FileInfo]:
        """Yield the files below directories that are wanted, each once, from several directories at the same time.

        One ``list`` a page, on a disk one a directory. Amazon's protocol lists neighbours together: it takes at most
        twice the pages that their files fill. Memory: the pages, or here the directories, under way.
        """

        def list_each(directory: str) -> Iterable[FileInfo]:
            found = self.list(directory) if wanted is None else self.list_if(directory, wanted)
            # A listing may repeat a file, on the next page or where it is written meanwhile.
            return {info.path: info for info in found}.values()

        for files in self.map(directories, list_each):
            yield from files

    @abc.abstractmethod
    def list_dirs(self, prefix: str = "") -> tuple[Sequence[str], Sequence[FileInfo]]:
        """Return the directories and the files directly below ``prefix``.

        Directories end in ``/``, and so does ``prefix`` unless it is empty. One ``list`` a page.
        """

    @abc.abstractmethod
    def info(self, path: str) -> FileInfo:
        """Return size and age of one file. One ``head``. Raises ``FileMissing``."""

    @abc.abstractmethod
    def delete_many(self, paths: Sequence[str]) -> DeleteResult:
        """Delete files; those already gone are reported where the storage reports them. One ``delete`` per batch."""

    @abc.abstractmethod
    def exists(self) -> bool:
        """Whether there is any file below the root."""

    def remove_temporary(self, older_than_seconds: float = 3600.0) -> int:
        """Remove this library's own temporary files that a killed process left behind; return how many.

        An object store has none: no request there. One ``delete`` on a disk.
        """
        return 0

    @abc.abstractmethod
    def prove_exclusive_create(self) -> None:
        """Prove that of those who race to :meth:`create` a file exactly one wins; no request while a proof counts.

        A proof counts for a bucket and a process, for some minutes and some hundred creations, and until the store's
        answers change their shape: :meth:`create` then asks for the next proof itself, and reports a file only when
        that has succeeded, too. A local disk needs none.

        Each proof writes and deletes files below ``_doctor-<uuid>/``: some sixty requests in thirteen round trips.
        Raises ``UnsafeStorage``.
        """

    @abc.abstractmethod
    def doubt(self, path: str | None = None) -> None:
        """Note evidence that this storage does not decide, such as two roots of one version: no proof counts any more.

        ``path`` is the file that shows it, if others may meet the same again. No request.
        """

    @abc.abstractmethod
    def settle_doubt(self) -> bool:
        """Prove again where :meth:`doubt` ended the proof; no request otherwise.

        Return whether there ever was a doubt. Then a file that was created may have been replaced before the proof,
        and only reading it shows that it counts. Raises ``UnsafeStorage``.
        """

    @abc.abstractmethod
    def prove_compare_and_set(self) -> None:
        """Prove that of those who race to :meth:`compare_and_set` one state exactly one wins.

        As :meth:`prove_exclusive_create`, at the same cost, and twelve ``put`` more. A local disk proves that a lock is
        refused to others, once for each storage; no request.
        """
