"""Connections to PostgreSQL are kept for the next query, and given up when they are of no use."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier

import pytest
import sqlalchemy
from dagster_postgres import DagsterPostgresStorage
from sqlalchemy.pool import NullPool

from dagster_project.processes import connections
from dagster_project.processes.connections import SCHEME, PostgresStorage
from tests.support.deployment import DEPLOY, eventually
from tests.support.postgres import DATABASE, PASSWORD, USER, PostgresServer, run_postgres

BACKEND = sqlalchemy.text("SELECT pg_backend_pid()")


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """Return a server of these tests alone: one of them restarts it."""
    with run_postgres() as running:
        yield running


@pytest.fixture
def engine(server: PostgresServer) -> Iterator[sqlalchemy.Engine]:
    """Return an engine as Dagster makes it, without a connection that an earlier test kept."""
    connections._forget()
    yield made(server)
    connections._forget()


def made(server: PostgresServer, name: str = "one") -> sqlalchemy.Engine:
    url = sqlalchemy.URL.create(
        SCHEME, USER, PASSWORD, server.host, server.port, DATABASE, query={"application_name": name}
    )
    return sqlalchemy.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=NullPool)


def backend(engine: sqlalchemy.Engine) -> int:
    """Return the number of the process on the server that answers a query."""
    with engine.connect() as connection:
        return int(connection.execute(BACKEND).scalar_one())


def test_the_next_query_takes_the_connection_of_the_last_one(engine: sqlalchemy.Engine, server: PostgresServer) -> None:
    """Also through another engine; never one that was made with something else."""
    first = backend(engine)
    assert [first, first, first] == [backend(engine), backend(made(server)), backend(engine)]
    assert first != backend(made(server, "two"))


def test_nobody_shares_a_connection_and_few_are_kept(engine: sqlalchemy.Engine) -> None:
    """Eight at once have one each; four of those are left for later."""
    together = Barrier(8)

    def one(_: int) -> int:
        with engine.connect() as connection:
            found = int(connection.execute(BACKEND).scalar_one())
            together.wait(300)
            return found

    with ThreadPoolExecutor(8) as pool:
        first, second = set(pool.map(one, range(8))), set(pool.map(one, range(8)))
    assert (8, 8, 4) == (len(first), len(second), len(first & second))


def test_one_that_failed_or_is_in_a_transaction_is_not_kept(engine: sqlalchemy.Engine) -> None:
    first = backend(engine)
    with engine.connect() as connection:
        connection.invalidate()
    second = backend(engine)
    dialect = engine.dialect
    raw = engine.raw_connection()
    assert raw.dbapi_connection is not None
    cursor = raw.cursor()
    cursor.execute("BEGIN")
    dialect.do_close(raw.dbapi_connection)
    assert raw.dbapi_connection.closed  # type: ignore[attr-defined]
    assert 3 == len({first, second, backend(engine)})


def test_a_forked_process_takes_none_of_its_parent(engine: sqlalchemy.Engine) -> None:
    """Two processes that talk through one connection would read each other's answers."""
    mine = backend(engine)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, str(backend(engine)).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    told = os.read(reading, 100).decode()
    os.close(reading)
    os.close(writing)
    assert told.isdecimal()
    assert str(mine) != told
    assert mine == backend(engine)


def test_a_server_that_was_restarted_is_connected_anew(engine: sqlalchemy.Engine, server: PostgresServer) -> None:
    first = backend(engine)
    server.stop()
    with pytest.raises(sqlalchemy.exc.OperationalError):
        backend(engine)
    server.start()
    eventually(lambda: answers(engine), lambda: server.log.read_text(errors="replace")[-2000:])
    second = backend(engine)
    assert second != first
    assert second == backend(engine)


def test_of_a_server_that_went_only_one_connection_is_asked(
    engine: sqlalchemy.Engine, server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where its whole machine is gone, each would be waited for."""
    some = [engine.connect() for _ in range(3)]
    for each in some:
        each.close()
    asked: list[object] = []
    ping = connections.KeptConnections.do_ping

    def counted(dialect: connections.KeptConnections, connection: object) -> bool:
        asked.append(connection)
        return bool(ping(dialect, connection))

    monkeypatch.setattr(connections.KeptConnections, "do_ping", counted)
    server.stop()
    with pytest.raises(sqlalchemy.exc.OperationalError):
        backend(engine)
    server.start()
    eventually(lambda: answers(engine), lambda: server.log.read_text(errors="replace")[-2000:])
    assert 1 == len(asked)


def test_a_query_that_follows_another_sends_nothing_else(
    engine: sqlalchemy.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(connections.KeptConnections, "do_ping", lambda _, connection: asked.append(connection))
    monkeypatch.setattr(connections, "_MOMENT_SECONDS", 300.0)
    first = backend(engine)
    assert [first, first] == [backend(engine), backend(engine)]
    assert not asked
    monkeypatch.setattr(connections, "_MOMENT_SECONDS", -1.0)
    assert first == backend(engine)
    assert 1 == len(asked)


def test_one_that_the_server_ended_a_moment_ago_is_not_used(
    engine: sqlalchemy.Engine, server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_MOMENT_SECONDS", 300.0)
    first = backend(engine)
    with made(server, "two").connect() as other:
        other.execute(sqlalchemy.text(f"SELECT pg_terminate_backend({first}, 60000)"))
    assert first != backend(engine)


def test_a_machine_that_confirms_nothing_is_not_waited_for_as_long_as_linux_would(engine: sqlalchemy.Engine) -> None:
    with engine.connect() as connection:
        raw = connection.connection.dbapi_connection
        assert raw is not None
        with socket.socket(fileno=os.dup(raw.fileno())) as end:  # type: ignore[attr-defined]
            assert 30_000 == end.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)


def answers(engine: sqlalchemy.Engine) -> bool:
    """Return whether the server takes connections."""
    with suppress(sqlalchemy.exc.OperationalError):
        return backend(engine) > 0
    return False


def test_dagsters_own_storage_works_as_the_comment_says(server: PostgresServer) -> None:
    """With the default driver of SQLAlchemy 2.1 it fails: No module named 'psycopg'."""
    text = (DEPLOY / "dagster.yaml").read_text()
    scheme = re.search(r"# .*`postgres:`.*\n# .*`scheme: (\S+)`", text)
    assert scheme is not None
    fields = {"username": USER, "password": PASSWORD, "hostname": server.host, "port": server.port}
    plain = DagsterPostgresStorage.from_config_value(
        None, {"postgres_db": {**fields, "db_name": DATABASE, "scheme": scheme[1]}}
    )
    assert plain.run_storage.get_run_storage_id()


def test_the_storage_takes_what_the_storage_of_dagster_takes(server: PostgresServer) -> None:
    """Either form of its configuration; the database is the same, whoever made the tables."""
    database = {"username": USER, "password": PASSWORD, "hostname": server.host, "port": server.port}
    plain = DagsterPostgresStorage.from_config_value(
        None, {"postgres_db": {**database, "db_name": DATABASE, "scheme": "postgresql+psycopg2"}}
    )
    kept = PostgresStorage.from_config_value(None, {"postgres_db": {**database, "db_name": DATABASE}})
    url = PostgresStorage.from_config_value(None, {"postgres_url": plain.postgres_url})
    urls = {sqlalchemy.make_url(each.postgres_url) for each in (kept, url)}
    assert {SCHEME} == {each.drivername for each in urls}
    assert 1 == len(urls)
    assert plain.run_storage.get_run_storage_id() == kept.run_storage.get_run_storage_id()
