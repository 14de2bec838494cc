"""obstore as our backends use it: one client per process and settings, its requests counted one by one.

A client keeps its connections, and is shared by all storages of this process that have the same settings: making one
takes 10 ms of CPU, and a task of a cluster makes a storage. obstore's own retries are off. Its synchronous calls
release the interpreter while they wait, and take half the CPU of its asynchronous ones, so threads wait.

A process that was forked after its parent had sent a request cannot use obstore, whose threads stayed with the
parent. Programs that fork first, such as Spark's, are not concerned.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from datetime import timedelta
from functools import partial
from typing import Any, Final, Literal, TypeVar

from trinitylake_core.errors import InvalidInput, StorageError
from trinitylake_core.storage.patience import Pace, Patience
from trinitylake_core.storage.store_errors import answered, is_slow_down

_MOST_CLIENTS: Final = 32
_IDLE_SECONDS: Final = 15
"""Servers close idle connections after 20 s and more; a request on a connection that is just being closed fails."""

T = TypeVar("T")
Kind = Literal["get", "put", "head", "list"]
MakeStore = Callable[[float], Any]
"""Makes an obstore store whose requests take so many seconds at the most."""

_clients: OrderedDict[Hashable, ObstoreClient] = OrderedDict()
_alive: weakref.WeakSet[ObstoreClient] = weakref.WeakSet()
_lock = threading.Lock()
_started = False
_left_by_fork = False


class ObstoreClient:
    """Requests of one bucket or container. Thread-safe; every request ends within ``seconds``.

    Raises what ``store_errors.answered`` makes of an error.
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

    def repeat(self, kind: Kind, call: Callable[[Any], T], again: Callable[[], None], size: int = 0) -> T:
        """Return ``call(store)``, a request that does no harm twice; call ``again`` when it is late and sent again."""
        return self.patience[kind].repeat(partial(self._send, call), again, size)

    def _send(self, call: Callable[[Any], T], seconds: float | None) -> T:
        global _started  # noqa: PLW0603 - the threads are the process's, too
        _started = True
        store = self._store if seconds is None else self._store_within(seconds)
        began = self.pace.begin()
        slow_down = False
        try:
            return call(store)
        except Exception as error:  # noqa: BLE001 - obstore raises what Python has, too
            meant = answered(error)
            slow_down = is_slow_down(meant)
            raise meant from None
        finally:
            self.pace.end(began, slow_down=slow_down)

    def _store_within(self, seconds: float) -> Any:
        store = self._quick.get(seconds)
        if store is None:
            store = self._quick[seconds] = self._make(seconds)
        return store


def patience_of_kinds(share: float, seconds: float) -> dict[str, Patience]:
    """Return the patience of a new client with each kind of requests; what is known of gets counts for the others."""
    gets = Patience(share, seconds)
    return {"get": gets} | {kind: Patience(share, seconds, gets) for kind in ("put", "head", "list")}


def shared(settings: Hashable, make: Callable[[], ObstoreClient]) -> ObstoreClient:
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


def connection_options(seconds: float, connect_seconds: float, read_seconds: float, *, http: bool) -> dict[str, Any]:
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


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_after_fork)
