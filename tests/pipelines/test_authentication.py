"""What Spark's processes tell a program that does not know the secret of the session: nothing."""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from pipelines.session import SessionConfig, authentication, get_session, lazy_session
from pipelines.session.authentication import AUTHENTICATE, PRIVATE, explain_no_start, refuse_open_remote
from pipelines.session.spark import _settings
from tests.support.connect_server import connect_server
from tests.support.standalone import standalone
from tests.support.writers import pool
from trinitylake_core.errors import InvalidInput

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ANSWER = 4
"""The type of a frame of Spark's protocol: a handle of blocks that may be fetched now, or what a call returned."""
_OPEN = {AUTHENTICATE: "false", "spark.network.crypto.enabled": "false"}
_VERIFIER = "endpoint-verifier"
"""What every process of Spark has that can be called."""


def _text(text: str) -> bytes:
    return struct.pack(">i", len(text)) + text.encode()


def _short_text(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _ask(port: int, body: bytes, seconds: float = 20) -> int | None:
    """Send a request as a program would that has no secret; return the type of the answer, if there is one in time."""
    frame = struct.pack(">bqi", 3, 7, len(body)) + body
    answer = b""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=seconds) as connection:
            connection.sendall(struct.pack(">q", 8 + len(frame)) + frame)
            while len(answer) < 9:
                some = connection.recv(4096)
                if not some:
                    return None
                answer += some
    except (ConnectionError, TimeoutError):
        return None
    return answer[8]


def _blocks(application: str, owner: str) -> list[bytes]:
    """Return requests for blocks in which the functions of tasks are, with the options of their storages."""
    asked = b"\0" + _text(application) + _text(owner) + struct.pack(">i", 1)
    return [asked + _text(f"broadcast_{number}_piece0") for number in (0, 1)]


def _call(session: SparkSession) -> bytes:
    """Return a call of a process by an object of Java's, which that process makes before it knows what it is asked."""
    java: Any = session._jvm
    stream = java.java.io.ByteArrayOutputStream()
    question = getattr(java.org.apache.spark.rpc.netty, "RpcEndpointVerifier$CheckExistence")(_VERIFIER)
    java.java.io.ObjectOutputStream(stream).writeObject(question)
    receiver = b"\1" + _short_text("127.0.0.1") + struct.pack(">i", 1) + _short_text(_VERIFIER)
    return b"\0" + receiver + bytes(stream.toByteArray())


@pytest.mark.spark
def test_a_stranger_is_given_no_block_of_a_local_session(spark: SparkSession) -> None:
    """The function of a task, with the options of its storages, is a block of the driver, on a port of this machine."""
    spark.range(2).mapInArrow(lambda batches: batches, "id long").count()
    env: Any = spark.sparkContext._jsc.sc().env()
    blocks = _blocks(spark.sparkContext.applicationId, "driver")
    answers = [_ask(env.blockManager().blockManagerId().port(), each) for each in blocks]
    answers.append(_ask(env.rpcEnv().address().port(), _call(spark)))
    assert _ANSWER not in answers


def _ask_all(processes: list[psutil.Process], requests: list[bytes]) -> list[int | None]:
    """Send requests to each port at which processes listen."""
    ports = set()
    for process in processes:
        ports |= {each.laddr.port for each in process.net_connections("tcp") if each.status == psutil.CONN_LISTEN}
    return [_ask(port, each, seconds=3) for port in sorted(ports) for each in requests]


def _ask_a_cluster(folder: Path, private: Mapping[str, str]) -> list[int | None]:
    """Ask every process of a cluster, at each port, for blocks of the driver and of an executor; and call each."""
    conf = {} if private else _OPEN
    with standalone(1, folder, private=private) as cluster, lazy_session(cluster.session(**conf)) as start:
        session = start()
        session.range(2).mapInArrow(lambda batches: batches, "id long").count()
        requests = [_call(session)]
        for owner in ("driver", "0"):
            requests += _blocks(session.sparkContext.applicationId, owner)
        return _ask_all(psutil.Process().children(recursive=True), requests)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("private", [PRIVATE, {}])
def test_a_stranger_is_told_nothing_by_any_process_of_a_cluster(private: dict[str, str], tmp_path: Path) -> None:
    """Without authentication master, worker and driver can be called, and driver and executor give a block each."""
    with pool(1) as process:
        answers = process.submit(_ask_a_cluster, tmp_path, private).result(300)
    assert len(answers) >= 5 * 5, "master, worker, driver and executor have a port each, and driver and executor two"
    if private:
        assert _ANSWER not in answers
    else:
        assert 5 <= answers.count(_ANSWER), answers


def _call_by_local_session() -> bytes:
    with lazy_session(SessionConfig(master="local[1]")) as start:
        return _call(start())


def _use_server(url: str) -> str:
    """Send a function to a Connect server; return the ID of its application."""
    session = get_session(SessionConfig(mode="connect", remote=url, conf=_OPEN))
    session.range(2).mapInArrow(lambda batches: batches, "id long").count()
    return session.conf.get("spark.app.id") or ""


def _say_why_not(url: str) -> str:
    """Return why a server is not to be used: errors of gRPC do not travel between processes."""
    try:
        return _use_server(url)
    except Exception as error:  # noqa: BLE001 - of any kind
        return str(error)


@pytest.mark.spark
@pytest.mark.slow
def test_a_stranger_is_told_nothing_by_a_connect_server(tmp_path: Path) -> None:
    """Not at the ports of its Spark, if that has authentication; and it does no work of theirs, if it wants a token."""
    with pool(1) as process:
        requests = [process.submit(_call_by_local_session).result(300)]
    found = []
    for private in (PRIVATE, {}):
        folder = tmp_path / f"{len(private)}"
        folder.mkdir()
        with connect_server(folder, "t0ken", private) as (url, server):
            with pool(1) as process:
                application = process.submit(_use_server, f"{url}/;token=t0ken").result(300)
            answers = _ask_all([psutil.Process(server.pid)], requests + _blocks(application, "driver"))
            assert len(answers) >= 3 * 3, "two ports of Spark, and one for its clients"
            found.append(answers.count(_ANSWER))
            with pool(1) as process:
                assert "UNAUTHENTICATED" in process.submit(_say_why_not, f"{url}/;token=other").result(300)
    assert found[0] == 0
    assert found[1] >= 2


def _start_session(url: str) -> None:
    get_session(SessionConfig(mode="connect", remote=url))


@pytest.mark.spark
@pytest.mark.slow
def test_a_connect_server_that_works_for_everybody_on_its_machine_is_refused(tmp_path: Path) -> None:
    """Whoever has code run there reads the storage's keys of others from the memory of its processes."""
    with connect_server(tmp_path, None) as (url, _), pool(1) as process, pytest.raises(InvalidInput, match="TOKEN"):
        process.submit(_start_session, url).result(300)


def test_of_a_connect_server_that_does_not_answer_nothing_is_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authentication, "_ANSWER_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        told = authentication._explain_open_port(f"sc://localhost:{silent.getsockname()[1]}")
    assert "did not say" in told


def test_a_session_of_a_cluster_has_the_secret_and_a_local_one_makes_its_own() -> None:
    of_cluster = SessionConfig(mode="master", master="spark://h:7077", secret="s3cr3t")
    assert "s3cr3t" == _settings(of_cluster)["spark.authenticate.secret"]
    assert "s3cr3t" not in repr(of_cluster)
    assert "spark.authenticate.secret" not in _settings(SessionConfig())
    assert "true" == _settings(SessionConfig())["spark.network.crypto.enabled"]
    open_one = SessionConfig(mode="master", master="spark://h:7077", conf={"spark.authenticate": "false"})
    assert "false" == _settings(open_one)["spark.authenticate"]
    with pytest.raises(InvalidInput, match="pass it as secret"):
        SessionConfig(conf={"spark.authenticate.secret": "s3cr3t"})


def test_a_cluster_without_a_secret_is_refused_with_the_settings() -> None:
    told = explain_no_start(
        "spark://h:7077", "requirement failed: A secret key must be specified via the spark.authenticate.secret config."
    )
    for words in ("spark.network.crypto.enabled: true", "TRINITYLAKE_SPARK_SECRET", "spark.authenticate: false"):
        assert words in told


@pytest.mark.parametrize(
    ("remote", "conf", "refused"),
    [
        ("sc://127.0.0.1:15002", {}, False),
        ("sc://spark.example:15002", {}, True),
        ("sc://spark.example:443/;use_ssl=true", {}, False),
        ("sc://spark.example:443/;token=abc", {}, False),
        ("sc://spark.example:15002", {"spark.authenticate": "false"}, False),
    ],
)
def test_what_is_sent_to_a_connect_server_is_encrypted(remote: str, conf: dict[str, str], refused: bool) -> None:
    if refused:
        with pytest.raises(InvalidInput, match="use_ssl=true"):
            refuse_open_remote(remote, conf)
    else:
        refuse_open_remote(remote, conf)
