"""Dagster's PostgreSQL storage with connections that are kept, for ``storage.custom`` in ``dagster.yaml``.

Dagster makes a connection for nearly every query: about 200 times in one maintenance run. A new connection costs client
and server some 8 ms of CPU, the proof of the password above all. A query on one that exists costs 0.2 ms. Here a
connection that is closed stays open for the next query of the same process. Whether it still answers is asked by a
query of its own only where it was not in use a moment ago: in a run most queries follow one another.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Hashable, Mapping
from typing import Any, Final
from weakref import WeakKeyDictionary

from dagster_postgres import DagsterPostgresStorage
from psycopg2.extensions import TRANSACTION_STATUS_IDLE
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.postgresql import psycopg2
from sqlalchemy.engine import make_url

SCHEME: Final = "postgresql+kept"
_MOST_IDLE: Final = 4
"""So many wait for each server, database and role: as many as one process often needs at once."""
_MOMENT_SECONDS: Final = 1.0
"""So long after its last query a connection is not asked whether it answers, unless the server has ended it."""
_GONE_MILLIS: Final = 30_000
"""A server whose machine does not confirm for so long that anything arrived is gone; Linux would wait 15 minutes."""


class Idle:
    """Connections of this process that are not in use, by what they were made with."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made_with: WeakKeyDictionary[Any, Hashable] = WeakKeyDictionary()
        self._idle: dict[Hashable, list[tuple[Any, float]]] = {}

    def note(self, connection: Any, made_with: Hashable) -> None:
        """Remember what a connection was made with, so that it can be put here."""
        with self._lock:
            self._made_with[connection] = made_with

    def take(self, made_with: Hashable) -> tuple[Any, float] | None:
        """Return the connection that was used last, and since when it waits, or ``None``. Only this caller gets it."""
        with self._lock:
            waiting = self._idle.get(made_with)
            return waiting.pop() if waiting else None

    def take_all(self, made_with: Hashable) -> list[Any]:
        """Return all connections that were made with the same arguments. Only this caller gets them."""
        with self._lock:
            return [connection for connection, _ in self._idle.pop(made_with, [])]

    def put(self, connection: Any) -> bool:
        """Keep a connection, and return whether there was room for it. REQUIRES: it is in no transaction."""
        with self._lock:
            made_with = self._made_with.get(connection)
            waiting = self._idle.setdefault(made_with, [])
            if made_with is None or len(waiting) >= _MOST_IDLE:
                return False
            waiting.append((connection, time.monotonic()))
            return True


_idle = Idle()


def _forget() -> None:
    """Start empty in a forked process: the connections belong to its parent, and psycopg2 does not end them here."""
    global _idle  # noqa: PLW0603 - one per process
    _idle = Idle()


os.register_at_fork(after_in_child=_forget)


def _has_ended(connection: Any) -> bool:
    """Return whether the server ended a connection, or said anything that nobody asked for. Sends nothing."""
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))


class KeptConnections(psycopg2.dialect):
    """SQLAlchemy's dialect of psycopg2, in which closing a connection keeps it. For engines without a pool."""

    supports_statement_cache = True

    def __init__(self, **options: Any) -> None:
        """``hstore`` is off: SQLAlchemy would ask the server about it at each connection, and Dagster has none."""
        super().__init__(**{"use_native_hstore": False, **options})  # type: ignore[no-untyped-call]

    def connect(self, *words: Any, **parameters: Any) -> Any:
        """Return a connection that was kept and still answers, or a new one.

        One that was in use a moment ago is looked at, without a query: a server that stops or dies ends it.
        """
        made_with = (words, tuple(sorted(parameters.items())))
        kept = _idle.take(made_with)
        if kept is not None:
            connection, since = kept
            try:
                if time.monotonic() - since > _MOMENT_SECONDS or _has_ended(connection):
                    self.do_ping(connection)  # type: ignore[no-untyped-call]
            except self.loaded_dbapi.Error:  # the server was restarted, or is gone: the others would be waited for, too
                for each in (connection, *_idle.take_all(made_with)):
                    each.close()
            else:
                return connection
        made = super().connect(*words, **{"tcp_user_timeout": _GONE_MILLIS, **parameters})
        _idle.note(made, made_with)
        return made

    def do_close(self, dbapi_connection: Any) -> None:
        """Keep a connection that is whole and in no transaction; close any other."""
        status = dbapi_connection.info.transaction_status
        is_whole = not dbapi_connection.closed and status == TRANSACTION_STATUS_IDLE
        if not is_whole or not _idle.put(dbapi_connection):
            super().do_close(dbapi_connection)  # type: ignore[no-untyped-call]

    def do_terminate(self, dbapi_connection: Any) -> None:
        """Close a connection that failed."""
        super().do_close(dbapi_connection)  # type: ignore[no-untyped-call]


registry.register(SCHEME.replace("+", "."), __name__, KeptConnections.__name__)


class PostgresStorage(DagsterPostgresStorage):
    """Dagster's PostgreSQL storage, configured like it, with connections that are kept."""

    @classmethod
    def from_config_value(cls, inst_data: Any, config_value: Mapping[str, Any]) -> DagsterPostgresStorage:  # type: ignore[override]
        """Return the storage for the configuration in ``dagster.yaml``."""
        changed: Any = dict(config_value)
        if changed.get("postgres_db"):
            changed["postgres_db"] = {**changed["postgres_db"], "scheme": SCHEME}
        else:
            url = make_url(changed["postgres_url"]).set(drivername=SCHEME)
            changed["postgres_url"] = url.render_as_string(hide_password=False)
        return super().from_config_value(inst_data, changed)
