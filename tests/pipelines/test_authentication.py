"""What Spark's processes tell a program that does not know the secret of the session: nothing."""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING, Any

import pytest

from pipelines.session import SessionConfig
from pipelines.session.authentication import explain_no_start, refuse_open_remote
from pipelines.session.spark import _settings
from trinitylake_core.errors import InvalidInput

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ANSWER, _FAILURE = 4, 5
"""Types of frames of Spark's protocol: a handle of blocks that may be fetched now, and a refusal."""


def _text(text: str) -> bytes:
    return struct.pack(">i", len(text)) + text.encode()


def _ask(port: int, body: bytes) -> int | None:
    """Send a request as a program would that has no secret; return the type of the answer, if there is one."""
    frame = struct.pack(">bqi", 3, 7, len(body)) + body
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(struct.pack(">q", 8 + len(frame)) + frame)
        answer = b""
        while len(answer) < 9:
            some = connection.recv(4096)
            if not some:
                return None
            answer += some
    return answer[8]


@pytest.mark.spark
def test_a_stranger_is_given_no_block_of_a_local_session(spark: SparkSession) -> None:
    """The function of a task, with the options of its storages, is a block of the driver, on a port of this machine."""
    spark.range(2).mapInArrow(lambda batches: batches, "id long").count()
    env: Any = spark.sparkContext._jsc.sc().env()
    blocks = b"\0" + _text(spark.sparkContext.applicationId) + _text("driver") + struct.pack(">i", 1)
    answers = [
        _ask(env.blockManager().blockManagerId().port(), blocks + _text(f"broadcast_{n}_piece0")) for n in (0, 1)
    ]
    assert _ANSWER not in answers
    assert _ask(env.rpcEnv().address().port(), b"\0" * 8) in {None, _FAILURE}


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
