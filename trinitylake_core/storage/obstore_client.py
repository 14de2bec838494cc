"""obstore as our backends use it: one client per process and settings, its requests counted one by one.

A client keeps its connections, and is shared by all storages of this process that have the same settings: making one
takes 10 ms of CPU, and a task of a cluster makes a storage. obstore's own retries are off. Its synchronous calls
release the interpreter while they wait, and take half the CPU of its asynchronous ones, so threads wait.

A process that was forked after its parent had sent a request cannot use obstore, whose threads stayed with the
parent: :func:`usable` tells. Programs that fork first, such as Spark's, are not concerned.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final, Literal, TypeVar

from trinitylake_core.errors import StorageError
from trinitylake_core.storage.hedge import Hedge, patiently
from trinitylake_core.storage.obstore_errors import answered, is_slow_down
from trinitylake_core.storage.pace import Pace
from trinitylake_core.storage.port import Data

_MOST_CLIENTS: Final = 32
_IDLE_SECONDS: Final = 15
"""Servers close idle connections after 20 s and more; a request on a connection that is just being closed fails."""

_LEAST: Final = {"put": 0.125, "head": 0.125, "list": 0.125, "put if": 0.5, "delete": 2.0}
"""The least patience in seconds: what was dropped of the last two is looked for, or takes long by itself."""
_MOST_DROPPED: Final = 1024

T = TypeVar("T")
Version = Mapping[str, str | None]
Kind = Literal["get", "put", "head", "delete", "list"]
Late = Callable[[Kind], None]
"""Is told that a request of a kind is asked for again."""
MakeStore = Callable[[float], Any]
"""Makes an obstore store whose requests take so many seconds at the most."""

_clients: OrderedDict[Hashable, ObstoreClient] = OrderedDict()
_alive: weakref.WeakSet[ObstoreClient] = weakref.WeakSet()
_lock = threading.Lock()
_started = False
_left_by_fork = False


class ObstoreClient:
    """Requests of one bucket or container, by key. Thread-safe; every request ends within ``seconds``.

    Raises what ``obstore_errors`` makes of an error.
    """

    def __init__(self, make: MakeStore, seconds: float, share: float) -> None:
        self.pace = Pace()
        self._hedges = patience_with_kinds(share)
        self.hedge = self._hedges["get"]
        self._dropped: dict[str, int] = {}
        self._make = make
        self._seconds = seconds
        self._store = make(seconds)
        self._quick: dict[float, Any] = {}
        _alive.add(self)

    def patience(self, kind: Kind) -> Hedge:
        """Return what tells how long to wait for requests of a kind."""
        return self._hedges[kind]

    def get(self, key: str, late: Late) -> bytes:
        """Return an object."""
        return self._patiently("get", lambda store: bytes(_obstore().get(store, key).bytes()), late)

    def _patiently(self, kind: Kind, call: Callable[[Any], T], late: Late, size: int = 0) -> T:
        """Carry out a request that may be repeated without harm; ``late`` is called when it is asked for again."""
        return patiently(
            self._hedges[kind],
            self._seconds,
            lambda seconds: self._send(partial(call, self._store_for(seconds))),
            partial(late, kind),
            size,
        )

    def _store_for(self, patience: float | None) -> Any:
        if patience is None:
            return self._store
        store = self._quick.get(patience)
        if store is None:
            store = self._quick[patience] = self._make(patience)
        return store

    def get_range(self, key: str, begin: int, end: int, late: Late) -> bytes:
        """Return the bytes from ``begin`` to before ``end``; an ``InvalidRange`` where the object ends before."""
        options = {"range": (begin, end)}
        return self._patiently("get", lambda store: bytes(_obstore().get(store, key, options=options).bytes()), late)

    def get_versioned(self, key: str, late: Late) -> tuple[bytes, Version]:
        """Return an object and what tells it from its other versions."""

        def get(store: Any) -> tuple[bytes, Version]:
            answer = _obstore().get(store, key)
            return bytes(answer.bytes()), answer.meta

        return self._patiently("get", get, late)

    def put(self, key: str, data: Data, late: Late) -> None:
        """Write an object, whatever is there."""
        content = data if isinstance(data, bytes) else bytes(data)
        self._patiently(
            "put", lambda store: _obstore().put(store, key, content, use_multipart=False), late, len(content)
        )

    def put_if(self, key: str, data: Data, mode: str | Version, *, settled: bool) -> Version:
        """Write an object only if there is none (``create``), or only in place of a version.

        Raises ``TimeoutError`` at the deadline, and with ``settled`` as soon as the request takes unusually long, up to
        three times for a key in a row. It may have been carried out, or still be: whoever says that it is settled
        finds that out, and asks at least four times. A late one is refused then: there is an object or another version.
        """
        content = data if isinstance(data, bytes) else bytes(data)
        hedge, asked = self._hedges["put if"], self._dropped.pop(key, 0)
        wait = hedge.wait(asked, len(content)) if settled else None
        quick = wait is not None and wait < self._seconds
        store = self._store_for(wait if quick else None)
        started = time.perf_counter()
        try:
            result: Version = self._send(lambda: _obstore().put(store, key, content, mode=mode, use_multipart=False))
        except TimeoutError:
            if quick:
                hedge.late()
                if len(self._dropped) < _MOST_DROPPED:
                    self._dropped[key] = asked + 1
            raise
        except ConnectionError:
            raise
        except Exception:  # an answer as well
            hedge.note(time.perf_counter() - started)
            raise
        hedge.note(time.perf_counter() - started)
        return result

    def head(self, key: str, late: Late) -> Mapping[str, Any]:
        """Return ``size``, ``last_modified`` and the version of an object."""
        meta: Mapping[str, Any] = self._patiently("head", lambda store: _obstore().head(store, key), late)
        return meta

    def delete(self, key: str, late: Late) -> None:
        """Delete an object; most stores answer that a missing one is missing."""
        self._patiently("delete", lambda store: _obstore().delete(store, key), late)

    def listing(self, prefix: str, page: int) -> Iterator[Sequence[Mapping[str, Any]]]:
        """Return what yields the objects below a directory, so many at once. No request before the first is asked for.

        A listing that failed has to be begun again.
        """
        pages: Iterator[Sequence[Mapping[str, Any]]] = _obstore().list(self._store, prefix or None, chunk_size=page)
        return pages

    def next_page(self, listing: Iterator[Sequence[Mapping[str, Any]]]) -> Sequence[Mapping[str, Any]]:
        """Return the next objects of a listing; none when there are no more."""
        nothing: Sequence[Mapping[str, Any]] = ()
        return self._send(lambda: next(listing, nothing))

    def list_dirs(self, prefix: str) -> tuple[Sequence[str], Sequence[Mapping[str, Any]]]:
        """Return the directories, without a slash at their end, and the objects directly below a directory."""
        found = self._send(lambda: _obstore().list_with_delimiter(self._store, prefix or None))
        return found["common_prefixes"], found["objects"]

    def _send(self, call: Callable[[], T]) -> T:
        global _started  # noqa: PLW0603 - the threads are the process's, too
        _started = True
        began = self.pace.begin()
        slow_down = False
        try:
            return call()
        except Exception as error:  # noqa: BLE001 - obstore raises what Python has, too
            meant = answered(error)
            slow_down = is_slow_down(meant)
            raise meant from None
        finally:
            self.pace.end(began, slow_down=slow_down)


def patience_with_kinds(share: float) -> dict[str, Hedge]:
    """Return the patience of a new client with each kind of requests; what is known of gets counts for the others."""
    gets = Hedge(share)
    return {"get": gets} | {kind: Hedge(share, gets, least) for kind, least in _LEAST.items()}


def usable() -> bool:
    """Return whether this process can use obstore: it has not been forked after the first request."""
    return not _left_by_fork


def shared(settings: Hashable, make: Callable[[], ObstoreClient]) -> ObstoreClient:
    """Return the client of this process for these settings; ``make`` makes the first one.

    Raises ``StorageError`` in a process that cannot use obstore, or does not have it.
    """
    if _left_by_fork:
        raise StorageError("this process was forked from one that had sent requests: start it by spawn or forkserver")
    with _lock:
        client = _clients.get(settings)
        if client is None:
            client = _clients[settings] = _made(make)
            if len(_clients) > _MOST_CLIENTS:
                _clients.popitem(last=False)
        _clients.move_to_end(settings)
        return client


def _made(make: Callable[[], ObstoreClient]) -> ObstoreClient:
    try:
        return make()
    except ImportError as error:
        raise StorageError(f"this storage needs the package obstore: pip install obstore ({error})") from error


def client_options(seconds: float, connect_seconds: float, read_seconds: float, *, http: bool) -> dict[str, Any]:
    """Return what every obstore store is told of its connections."""
    return {
        "timeout": timedelta(seconds=seconds),
        "connect_timeout": timedelta(seconds=min(connect_seconds, seconds)),
        "read_timeout": timedelta(seconds=min(read_seconds, seconds)),
        "pool_idle_timeout": timedelta(seconds=_IDLE_SECONDS),
        "allow_http": http,
    }


def no_retries() -> dict[str, Any]:
    """Return the retry configuration of every obstore store: ours count, theirs would hide."""
    return {"max_retries": 0, "retry_timeout": timedelta(0)}


def _obstore() -> Any:
    import obstore  # noqa: PLC0415 - local lakehouses need not pay for it

    return obstore


def _abandon_after_fork() -> None:
    """Keep the clients of the parent as they are: even dropping them would speak to threads that are not there."""
    global _lock, _left_by_fork  # noqa: PLW0603 - a fork is of the whole process
    _lock = threading.Lock()
    if _started:
        _left_by_fork = True
        for client in list(_alive):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(client))
    _clients.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_after_fork)
