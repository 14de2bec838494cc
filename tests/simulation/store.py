"""A storage in memory with the semantics of S3, as a backend under the real retry layer.

Creation and replacement are conditional, a listing is consistent, a batch is deleted name by name in any order,
``LastModified`` is the storage's own clock, and every write makes that clock tick.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, NamedTuple, TypeVar

import mmh3

from trinitylake_core.errors import AlreadyExists, FileMissing, TrinityLakeError
from trinitylake_core.spec import HINT_FILE
from trinitylake_core.storage import opening
from trinitylake_core.storage.base import BaseStorage, Interceptor
from trinitylake_core.storage.failures import Outdated, TransientError
from trinitylake_core.storage.port import Data, DeleteResult, FileInfo, Tagged
from trinitylake_core.storage.requests import CommonOptions

T = TypeVar("T")
Item = TypeVar("Item")
ROOT: Final = "sim://lake/"
Infos = list[FileInfo]
Order = Callable[[list[str]], list[str]]
ORDERS: Final[Mapping[str, Order]] = {
    "given": list,
    "reversed": lambda names: names[::-1],
    "mixed": lambda names: sorted(names, key=mmh3.hash),
}
"""In which order a store deletes the names of a batch, and answers requests that are sent at once: S3 promises none."""
Observer = Callable[[str, str, bytes | None], None]


class Stored(NamedTuple):
    """One object: its content and when it was written."""

    data: bytes
    modified_millis: int

    @property
    def tag(self) -> str:
        """What compare-and-set goes by: it follows the content, as ETags do, so what was there before matches again."""
        return f"{mmh3.hash128(self.data):032x}"


@dataclass
class Store:
    """The objects of one root, and the clock of the servers that keep them, in epoch milliseconds."""

    objects: dict[str, Stored] = field(default_factory=dict)
    now_millis: int = 0
    order: Order = list
    changed: list[str] = field(default_factory=list)
    """The paths of all changes so far."""
    observer: Observer | None = None
    """Told of every change: what was done, the path, and the new content (``None`` when it was deleted)."""
    exclusive: bool = True
    """Whether it creates exclusively; a store of another kind may stop to."""
    follows: Store | None = None
    """The store whose clock this one shows, too."""
    prefix: str = ""
    """What stands before paths in ``changed``, so that those of several stores are told apart."""

    def copy(self) -> Store:
        """Return a store of its own that holds the same objects."""
        return Store(dict(self.objects), self.now_millis, self.order)

    def put(self, how: str, path: str, data: Data) -> Stored:
        """Write an object; the clock ticks."""
        self._tick()
        self.changed.append(self.prefix + path)
        content = bytes(data)
        stored = self.objects[path] = Stored(content, self.now_millis)
        if self.observer is not None:
            self.observer(how, path, content)
        return stored

    def _tick(self) -> None:
        if self.follows is not None:
            self.now_millis = max(self.now_millis, self.follows.now_millis)
        self.now_millis += 1

    def remove(self, path: str) -> bool:
        """Delete an object; return whether it was there. The clock ticks."""
        self._tick()
        self.changed.append(self.prefix + path)
        found = self.objects.pop(path, None) is not None
        if found and self.observer is not None:
            self.observer("delete", path, None)
        return found


_stores: dict[str, Store] = {}
"""What a root URI leads to, for code that opens a storage by its URI. One run at a time."""
between_deletes: Callable[[str], object] | None = None
"""Called before each name of a batch is deleted: a batch is not atomic."""


scheduled: Interceptor = lambda kind, path, action: action()  # noqa: E731 - the scheduler puts its own here
"""What every request passes through."""


def mount(root: str, store: Store) -> None:
    """Let a root URI lead to a store."""
    _stores[root] = store
    store.prefix = "" if root == ROOT else root


def mounted(uri: str) -> tuple[Store, str]:
    """Return the store that a URI leads to, and the path there."""
    root = next(each for each in _stores if uri.startswith(each))
    return _stores[root], uri[len(root) :]


class SimStorage(BaseStorage):
    """The handle that one process has of a store. Requests go one after another."""

    DEFAULTS: ClassVar[CommonOptions] = CommonOptions(
        retries=2, retry_base_seconds=0.1, retry_max_seconds=1.0, max_concurrency=1
    )

    def __init__(self, root: str = ROOT, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(root, options)
        self.store = _stores[root]
        self.ahead_once = 0
        """How far the clock of the servers is ahead when this process asks for it the next time."""
        self.interceptor = self._scheduled

    def _scheduled(self, kind: str, path: str, action: Callable[[], Any]) -> Any:
        return scheduled(kind, self.store.prefix + path, action)

    def map(self, items: Iterable[Item], work: Callable[[Item], T], *, nested: bool = False) -> Iterator[T]:
        """Do the work for one item after another; actions in the order of this store: those sent at once have none."""
        given = list(items)
        if not all(map(callable, given)):
            return super().map(given, work, nested=nested)
        done = {number: work(given[int(number)]) for number in self.store.order([str(n) for n in range(len(given))])}
        return iter([done[str(number)] for number in range(len(given))])

    def _found(self, path: str) -> Stored:
        try:
            return self.store.objects[path]
        except KeyError:
            raise FileMissing(f"{self.root}{path} does not exist") from None

    def _get(self, path: str) -> bytes:
        return self._found(path).data

    def _get_range(self, path: str, begin: int, end: int) -> bytes:
        return self._found(path).data[begin:end]

    def _get_tagged(self, path: str) -> Tagged:
        found = self._found(path)
        return Tagged(found.data, found.tag)

    def _put(self, path: str, data: Data) -> None:
        self.store.put("put", path, data)

    def _create(self, path: str, data: Data) -> str:
        if path in self.store.objects and self.store.exclusive:
            raise AlreadyExists(f"{self.root}{path} already exists")
        self.store.put("create", path, data)
        return ""

    def _swap(self, path: str, data: Data, expected: Tagged) -> Tagged:
        found = self.store.objects.get(path)
        if (None if found is None else found.tag) != expected.tag:
            raise Outdated(f"{self.root}{path} is not what it was when it was read")
        return Tagged(bytes(data), self.store.put("swap", path, data).tag)

    def _head(self, path: str) -> FileInfo:
        found = self._described(path)
        if path != HINT_FILE:
            return found
        ahead, self.ahead_once = self.ahead_once, 0
        return replace(found, modified_millis=found.modified_millis + ahead)

    def _described(self, path: str) -> FileInfo:
        found = self._found(path)
        return FileInfo(path, len(found.data), found.modified_millis)

    def _delete(self, batch: Sequence[str]) -> tuple[DeleteResult, list[str]]:
        """S3 does not tell a missing key from a deleted one; both count as deleted."""
        for number, path in enumerate(self.store.order(list(batch))):
            if number and between_deletes is not None:
                between_deletes(self.store.prefix + path)
            self.store.remove(path)
        return DeleteResult(deleted=list(batch)), []

    def list(self, prefix: str = "") -> Iterator[FileInfo]:
        """Yield files by prefix. One ``list``."""
        yield from self._retrying("list", prefix, lambda: self._listed(prefix))

    def _listed(self, prefix: str) -> Infos:
        found = sorted([path for path in self.store.objects if path.startswith(prefix)])
        return [self._described(path) for path in found]

    def list_dirs(self, prefix: str = "") -> tuple[Sequence[str], Sequence[FileInfo]]:
        """Return one level. One ``list``."""
        found = self._retrying("list", prefix, lambda: self._listed(prefix))
        inner = {info.path: info.path[len(prefix) :].partition("/") for info in found}
        directories = sorted({f"{prefix}{head}/" for head, slash, _ in inner.values() if slash})
        return directories, [info for info in found if not inner[info.path][1]]

    def exists(self) -> bool:
        """Return whether anything is there. One ``list``."""
        return bool(self._retrying("list", "", lambda: self._listed("")))

    def prove_exclusive_create(self) -> None:
        """Need no proof: :meth:`_create` refuses. No request."""

    def prove_compare_and_set(self) -> None:
        """Need no proof: :meth:`_swap` compares. No request."""

    def _translate(self, kind: str, path: str, error: Exception) -> TrinityLakeError:
        return TransientError(f"{kind} of {self.root}{path}: {error}")


opening._BACKENDS["sim"] = SimStorage
