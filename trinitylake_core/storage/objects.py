"""Single objects of S3, Azure and Google, by obstore: read, written, created, compared and set, one request each.

The classes for the three clouds (``s3``, ``blobs``) add what differs: settings, listings, deletions.

A client of obstore keeps its connections, and is shared by all storages of this process that have the same settings:
making one takes 10 ms of CPU, and a task of a cluster makes a storage. obstore's own retries are off. Its synchronous
calls release the interpreter while they wait, and take half the CPU of its asynchronous ones, so threads wait.

A process that was forked after its parent had sent a request cannot use obstore, whose threads stayed with the
parent. Programs that fork first, such as Spark's, are not concerned.
"""

from __future__ import annotations

import abc
import ctypes
import math
import os
import statistics
import threading
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, Final, Literal, Self, TypeAlias, TypeVar

from trinitylake_core.errors import InvalidInput, StorageError, TrinityLakeError
from trinitylake_core.storage.checked import CheckedByTrying
from trinitylake_core.storage.failures import TransientError
from trinitylake_core.storage.port import Data, FileInfo, Options, Tagged
from trinitylake_core.storage.requests import take_number
from trinitylake_core.storage.store_errors import (
    is_beyond_the_end,
    is_slow_down,
    map_error,
    refused_swap,
    translate_error,
)

# -- late answers ----------------------------------------------------------------------------------
#
# Only reads and writes of immutable files are repeated early: they do no harm twice. A creation, a conditional
# replacement or a deletion waits for its own answer or its deadline.

T = TypeVar("T")
Meta: TypeAlias = Mapping[str, Any]
"""What obstore tells of an object."""
Arguments: TypeAlias = dict[str, Any]
"""What a client is made with."""

_SHORTEST_SECONDS: Final = 0.125
_AT_FIRST_SECONDS: Final = 2.0
_LOST_SECONDS: Final = 4.0
"""A request that takes longer than that is lost rather than late: it is repeated even if the share is used up."""
_FACTOR: Final = 4.0
_FEWEST = 8
_PERIOD = 32
_REMEMBERED = 64
"""The median of the last 64 answers counts: after 8 answers for the first time, then after every 32."""
_SAVED_UP: Final = 32.0
"""So many requests in a row, all that are under way, may be repeated."""
_MOST_TRIES: Final = 3
_USUAL_BYTES: Final = 1 << 18
"""Up to so many bytes are written in the time that a small request takes."""


class Patience:
    """How long to wait for one kind of request: four times the median. Thread-safe; times in seconds.

    Waits are 1/8 s or a power of two times that, because each needs connections of its own. At most ``share`` of all
    requests is repeated. While nothing is known of this kind, four times the patience of ``like`` counts.
    """

    def __init__(self, share: float, deadline: float, like: Patience | None = None) -> None:
        self._share = share
        self._deadline = deadline
        self._like = like
        self._lock = threading.Lock()
        self._seconds: deque[float] = deque(maxlen=_REMEMBERED)
        self._noted = 0
        self._left = _SAVED_UP
        self._usual: float | None = None

    def usual(self) -> float:
        """Return the time that a small request may take."""
        if self._usual is not None:
            return self._usual
        if self._like is None:
            return _AT_FIRST_SECONDS
        return min(_AT_FIRST_SECONDS, _FACTOR * self._like.usual())

    def choose_timeout(self, tries: int, size: int = 0) -> float | None:
        """Return the time to wait after so many tries for a request of so many bytes; ``None``: to the deadline."""
        if not self._share or tries >= _MOST_TRIES:
            return None
        longer_for_size = (size // _USUAL_BYTES).bit_length()
        doublings = max(0, tries - 1) + longer_for_size
        seconds = float(self.usual() * 2**doublings)
        if self._left < 1:
            seconds = max(seconds, _LOST_SECONDS)
        if seconds < self._deadline:
            return seconds
        return None

    def note_answer(self, seconds: float) -> None:
        """Note how long an answer took."""
        with self._lock:
            self._left = min(_SAVED_UP, self._left + self._share)
            self._seconds.append(seconds)
            self._noted += 1
            if self._noted == _FEWEST or self._noted % _PERIOD == 0:
                wanted = _FACTOR * statistics.median(self._seconds)
                if self._usual is None or not self._usual / 4 < wanted <= self._usual:  # it stays while it is near
                    times_shortest = max(1.0, wanted / _SHORTEST_SECONDS)
                    steps = math.ceil(math.log2(times_shortest))
                    self._usual = float(_SHORTEST_SECONDS * 2**steps)

    def note_repetition(self) -> None:
        """Note that a request is sent a second time."""
        with self._lock:
            self._left = max(0.0, self._left - 1.0)

    def repeat(self, send: Callable[[float | None], T], again: Callable[[], None], size: int = 0) -> T:
        """Return the result of ``send(seconds)``; call ``again`` and send once more when it takes unusually long."""
        tries = 0
        while True:
            timeout = self.choose_timeout(tries, size)
            started = time.perf_counter()
            try:
                result = send(timeout)
            except TimeoutError:
                if timeout is None:  # the deadline is over
                    raise
            except ConnectionError:  # no answer: it says nothing of how long one takes
                raise
            except Exception:  # an answer as well: that a file is missing, for example
                self.note_answer(time.perf_counter() - started)
                raise
            else:
                self.note_answer(time.perf_counter() - started)
                return result
            self.note_repetition()
            again()
            tries += 1


class Pace:
    """How many requests to a server may be under way: all, until it asks for fewer. Thread-safe.

    As in TCP, a server that is overloaded halves the number, once for all requests that were under way then, and each
    success adds a little. Every store answers 503 now and then, so three of sixteen answers must ask for fewer.
    """

    _LAST = 16
    _ENOUGH = 3

    def __init__(self) -> None:
        self._ready = threading.Condition()
        self._running = 0
        self._most = 1
        self._round = 0
        self._answers = 0
        self._limit: float | None = None
        self._warnings: deque[tuple[int, int]] = deque(maxlen=self._ENOUGH)
        """The number of an answer that asked for fewer, and how many requests were under way then."""

    @property
    def limit(self) -> int | None:
        """How many requests may be under way; ``None`` while nothing asked for fewer."""
        if self._limit is None:
            return None
        return int(self._limit)

    def begin(self) -> int:
        """Wait until one more request may begin; return the argument for :meth:`end`."""
        with self._ready:
            while self._limit is not None and self._running >= int(self._limit):
                self._ready.wait()
            self._running += 1
            self._most = max(self._most, self._running)
            return self._round

    def end(self, began: int, *, slow_down: bool) -> None:
        """Note that a request is over, and whether its answer asked for fewer."""
        with self._ready:
            self._answers += 1
            if slow_down and began == self._round:
                self._warnings.append((self._answers, self._running))
                if len(self._warnings) == self._ENOUGH and self._answers - self._warnings[0][0] < self._LAST:
                    running = max(running for _, running in self._warnings)
                    limit = min(running, self._limit or running)
                    self._limit = max(1.0, limit / 2)
                    self._round += 1
                    self._warnings.clear()
            elif not slow_down and self._limit is not None:
                self._limit += 1 / self._limit
                if self._limit >= self._most:
                    self._limit = None
            self._running -= 1
            if self._limit is None:
                self._ready.notify_all()
            else:
                self._ready.notify()


_MOST_CLIENTS: Final = 32
_IDLE_SECONDS: Final = 15
"""Servers close idle connections after 20 s and more; a request on a connection that is just being closed fails."""

Kind = Literal["get", "put", "head", "list"]
MakeStore = Callable[..., Any]
"""Called with seconds; makes an obstore store whose requests take so long at the most. ``retries=True``: it repeats."""

_clients: OrderedDict[Hashable, ObstoreClient] = OrderedDict()
_alive: weakref.WeakSet[ObstoreClient] = weakref.WeakSet()
_lock = threading.Lock()
_started = False
_left_by_fork = False


class ObstoreClient:
    """Requests of one bucket or container. Thread-safe; every request ends within ``seconds``.

    Raises what ``store_errors.translate_error`` makes of an error.
    """

    def __init__(self, make: MakeStore, seconds: float, share: float) -> None:
        import obstore  # noqa: PLC0415 - local lakehouses need not pay for it

        self.api: Any = obstore
        self.pace = Pace()
        self.patience = patience_of_kinds(share, seconds)
        self._make = make
        self._store = make(seconds)
        self._quick: dict[float, Any] = {}
        _alive.add(self)

    def once(self, call: Callable[[Any], T]) -> T:
        """Return ``call(store)``: a request that is waited for until its deadline."""
        return self._send(call, None)

    def repeat(
        self,
        kind: Kind,
        call: Callable[[Any], T],
        again: Callable[[], None],
        size: int = 0,
    ) -> T:
        """Return ``call(store)``, a request that does no harm twice; call ``again`` when it is late and sent again."""
        return self.patience[kind].repeat(partial(self._send, call), again, size)

    def _send(self, call: Callable[[Any], T], seconds: float | None) -> T:
        global _started  # noqa: PLW0603 - the threads are the process's, too
        _started = True
        if seconds is None:
            store = self._store
        elif (store := self._quick.get(seconds)) is None:  # the timeout is a setting of a store, not of a request
            store = self._quick[seconds] = self._make(seconds)
        began = self.pace.begin()
        slow_down = False
        try:
            return call(store)
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except BaseException as error:  # noqa: BLE001 - obstore raises what Python has, and a panic of Rust is no Exception
            meant = translate_error(error)
            slow_down = is_slow_down(meant)
            raise meant from None
        finally:
            self.pace.end(began, slow_down=slow_down)


def patience_of_kinds(share: float, seconds: float) -> dict[str, Patience]:
    """Return the patience of a new client with each kind of requests; what is known of gets counts for the others."""
    gets = Patience(share, seconds)
    patience = {"get": gets}
    for kind in ("put", "head", "list"):
        patience[kind] = Patience(share, seconds, gets)
    return patience


def share_client(settings: Hashable, make: Callable[[], ObstoreClient]) -> ObstoreClient:
    """Return the client of this process for these settings; ``make`` makes the first one.

    Raises ``StorageError`` in a process that cannot use obstore, or does not have it.
    """
    if _left_by_fork:
        raise StorageError("this process was forked from one that had sent requests: start it by spawn or forkserver")
    with _lock:
        client = _clients.get(settings)
        if client is None:
            try:
                client = _clients[settings] = make()
            except ImportError as error:
                raise InvalidInput(f"this storage needs the package obstore: pip install obstore ({error})") from error
            if len(_clients) > _MOST_CLIENTS:
                _clients.popitem(last=False)
        _clients.move_to_end(settings)
        return client


def connection_options(
    seconds: float,
    connect_seconds: float,
    read_seconds: float,
    *,
    http: bool,
) -> Arguments:
    """Return the arguments of every obstore store about connections and retries: ours count, theirs would hide."""
    return {
        "client_options": {
            "timeout": timedelta(seconds=seconds),
            "connect_timeout": timedelta(seconds=min(connect_seconds, seconds)),
            "read_timeout": timedelta(seconds=min(read_seconds, seconds)),
            "pool_idle_timeout": timedelta(seconds=_IDLE_SECONDS),
            "allow_http": http,
        },
        "retry_config": {"max_retries": 0, "retry_timeout": timedelta(0)},
    }


def _abandon_after_fork() -> None:
    """Keep the clients of the parent as they are: even dropping them would speak to threads that are not there."""
    global _lock, _left_by_fork  # noqa: PLW0603 - a fork is of the whole process
    _lock = threading.Lock()
    if _started:
        _left_by_fork = True
        for client in list(_alive):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(client))
    _clients.clear()


os.register_at_fork(after_in_child=_abandon_after_fork)


# -- the storage -----------------------------------------------------------------------------------


class ObjectStorage(CheckedByTrying):
    """Objects below a prefix of one bucket or container, through the client that this process shares."""

    def __init__(self, root: str, options: Options | None = None) -> None:
        super().__init__(root, options)
        _, _, place = root.partition("://")
        self._bucket, _, self._prefix = place.partition("/")
        self._seconds = take_number(self._own_options, "request_timeout", default=60.0, least=0.001)
        self._hedged_share = take_number(self._own_options, "hedged_share", default=0.1, least=0.0)
        self._shared: ObstoreClient | None = None

    def _reset_after_fork(self) -> None:
        super()._reset_after_fork()
        self._shared = None

    @abc.abstractmethod
    def _settings(self) -> Hashable:
        """Return all that :meth:`_make_store` depends on: storages for which it is equal share a client."""

    @abc.abstractmethod
    def _make_store(self) -> MakeStore:
        """Return the factory of obstore's stores."""

    def _version_of(self, meta: Meta) -> Any:
        """Return the tag that the server compares: an ETag."""
        return meta["e_tag"]

    @property
    def _client(self) -> ObstoreClient:
        if self._shared is None:
            settings = (type(self), self._bucket, self._seconds, self._hedged_share, self._settings())
            self._shared = share_client(settings, self._new_client)
        return self._shared

    def file_store(self) -> Any:
        """Return an obstore store for the bucket that repeats failed requests itself: for files of tables. No request.

        Raises ``InvalidInput``, ``StorageDenied``.
        """
        return self._make_store()(self._seconds, retries=True)

    def _key(self, path: str) -> str:
        return self._prefix + path

    def _repeat(self, kind: Kind, call: Callable[[Any], T], size: int = 0) -> T:
        """Send a request that does no harm twice; a second one is counted, too."""
        return self._client.repeat(kind, call, partial(self._count, kind), size)

    def twin(self) -> Self:
        other = super().twin()
        other._shared = self._new_client()  # noqa: SLF001 - another one of this class
        return other

    def _new_client(self) -> ObstoreClient:
        return ObstoreClient(self._make_store(), self._seconds, self._hedged_share)

    def _get(self, path: str) -> bytes:
        return self._get_tagged(path).data or b""

    def _get_range(self, path: str, begin: int, end: int) -> bytes:
        api = self._client.api
        key = self._key(path)
        options = {"range": (begin, end)}
        try:
            return self._repeat("get", lambda store: bytes(api.get(store, key, options=options).bytes()))
        except Exception as error:
            if is_beyond_the_end(error):
                return b""
            raise

    def _get_tagged(self, path: str) -> Tagged:
        api = self._client.api
        key = self._key(path)

        def get(store: Any) -> tuple[bytes, Meta]:
            answer = api.get(store, key)
            return bytes(answer.bytes()), answer.meta

        data, meta = self._repeat("get", get)
        self._note_read(meta["version"])
        return Tagged(data, self._version_of(meta))

    def _put(self, path: str, data: Data) -> None:
        api = self._client.api
        key = self._key(path)
        content = _as_bytes(data)

        def put(store: Any) -> Meta:
            answer: Meta = api.put(store, key, content, use_multipart=False)
            return answer

        done = self._repeat("put", put, len(content))
        self._note_written(done["version"])

    def _create(self, path: str, data: Data) -> str:
        return self._put_if(path, data, "create")["version"] or ""

    def _put_if(self, path: str, data: Data, mode: str | Mapping[str, str | None]) -> Meta:
        """Write an object only if there is none (``create``), or only in place of a version. It is sent once."""
        api = self._client.api
        key = self._key(path)
        content = _as_bytes(data)

        def put_if(store: Any) -> Meta:
            answer: Meta = api.put(
                store,
                key,
                content,
                mode=mode,
                use_multipart=False,
            )
            return answer

        done = self._client.once(put_if)
        self._note_written(done["version"])
        return done

    def _swap(self, path: str, data: Data, expected: Tagged) -> Tagged:
        mode: str | dict[str, str | None] = "create"
        if expected.data is not None:
            mode = {"e_tag": expected.tag, "version": (expected.tag or "").strip('"')}
        try:
            done = self._put_if(path, data, mode)
        except Exception as error:
            refused = refused_swap(f"{self.root}{path}", error)
            if refused is None:
                raise
            raise refused from None
        return Tagged(bytes(data), self._version_of(done))

    def _head(self, path: str) -> FileInfo:
        api = self._client.api
        key = self._key(path)
        meta = self._repeat("head", lambda store: api.head(store, key))
        size = int(meta["size"])
        return FileInfo(path, size, millis(meta["last_modified"]))

    def _translate(self, kind: str, path: str, error: Exception) -> TrinityLakeError:
        mapped = map_error(kind, f"{self.root}{path}", self._bucket, error)
        clean = self._clean(mapped)
        if isinstance(mapped, TransientError):
            return TransientError(clean, undone=mapped.undone)
        return type(mapped)(clean)


def millis(moment: Any) -> int:
    """Return a time as epoch milliseconds."""
    return int(moment.timestamp() * 1000)


def _as_bytes(data: Data) -> bytes:
    if isinstance(data, bytes):
        return data
    return bytes(data)
