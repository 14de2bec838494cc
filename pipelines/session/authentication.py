"""Who may speak to the processes of a session: those that know its secret, and all that travels is encrypted.

Spark's processes listen on ports that every user of a machine reaches. Without authentication whoever asks is given
the functions of tasks, in which the storage options are, and may end the session. On this machine, on YARN and on
Kubernetes Spark makes a secret for each session by itself. A standalone cluster has one, which the operator gave it.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from trinitylake_core.errors import InvalidInput

if TYPE_CHECKING:  # the command line must not wait for pyspark where no Spark runs
    from pyspark.sql import SparkSession

AUTHENTICATE: Final = "spark.authenticate"
SECRET: Final = "spark.authenticate.secret"  # noqa: S105 - the name of a setting
PRIVATE: Final = {AUTHENTICATE: "true", "spark.network.crypto.enabled": "true"}
"""What each session is started with."""
_HERE: Final = frozenset({"localhost", "127.0.0.1", "::1"})
CONNECT_PORT: Final = 15002
_ANY_CALL: Final = "/spark.connect.SparkConnectService/Config"
_ANSWER_SECONDS: Final = 20.0
_OTHERWISE: Final = (
    f"To go without, set {AUTHENTICATE}: false in conf: then whoever reaches its ports has the storage's keys"
)
_HOW_TO: Final = (
    f"give master and workers {AUTHENTICATE}: true, spark.network.crypto.enabled: true and one {SECRET}, in a "
    "spark-defaults.conf of mode 0600, and this session the same secret: spark.secret in lakehouses.yaml, "
    f"TRINITYLAKE_SPARK_SECRET on the command line. {_OTHERWISE}; see docs/production.md"
)


def new_secret() -> str:
    """Return a secret for one session."""
    return secrets.token_urlsafe(32)


def start_java(settings: Mapping[str, str]) -> None:
    """Start Spark's Java with settings but without their secret: they stand on its command line, which everybody sees.

    The session gets the secret by the connection to Java.
    """
    from pyspark import SparkConf, SparkContext

    shown = SparkConf(loadDefaults=False)
    shown.setAll([(name, value) for name, value in settings.items() if name != SECRET])
    SparkContext._ensure_initialized(conf=shown)  # noqa: SLF001 - there is no public way


def explain_no_start(master: str, cause: str) -> str:
    """Return why Spark does not start, in Java's words, and what to do where it is for want of a secret."""
    if SECRET in cause:
        return f"the cluster {master} needs a secret: {_HOW_TO}"
    return f"Spark does not start with the master {master}: {cause}"


def refuse_open_remote(remote: str, conf: Mapping[str, str]) -> None:
    """Refuse a Spark Connect server on another machine without TLS. Raises ``InvalidInput``."""
    place, _, parameters = remote.partition(";")
    try:
        host = urlsplit(place).hostname
    except ValueError:
        return  # it is no URL, which is said elsewhere
    is_encrypted = "use_ssl=true" in parameters.lower() or "token=" in parameters  # a token is sent by TLS only
    if host in _HERE or not host or is_encrypted or _goes_without(conf):
        return
    raise InvalidInput(
        f"what is sent to {host} is not encrypted, and the storage's keys are in it: add ;use_ssl=true to the URL, and "
        f"a proxy with TLS before the server. {_OTHERWISE}"
    )


def refuse_open_server(session: SparkSession, remote: str, conf: Mapping[str, str]) -> None:
    """End a session of Spark Connect whose server lets others at what we send there. Raises ``InvalidInput``.

    Its executors authenticate nobody, or without TLS, so without a proxy, it works for whoever reaches its port.
    """
    if _goes_without(conf):
        return
    told = ""
    place, _, parameters = remote.partition(";")
    if (session.conf.get(AUTHENTICATE, "false") or "").lower() != "true":
        told = (
            f"the Spark Connect server was started without {AUTHENTICATE}: start it with {AUTHENTICATE}=true and "
            "spark.network.crypto.enabled=true"
        )
    elif "use_ssl=true" not in parameters.lower():
        told = _explain_open_port(place)
    if told:
        session.stop()
        raise InvalidInput(f"{told}. {_OTHERWISE}")


def _explain_open_port(place: str) -> str:
    """Return why a server may not be used that was called without a token, or nothing if it refuses such calls.

    What it is asked to look at is empty, so it does nothing.
    """
    import grpc

    server = urlsplit(place)
    with grpc.insecure_channel(f"{server.hostname}:{server.port or CONNECT_PORT}") as channel:
        try:
            channel.unary_unary(_ANY_CALL)(b"", timeout=_ANSWER_SECONDS)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNAUTHENTICATED:
                return ""
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                return f"the Spark Connect server did not say within {_ANSWER_SECONDS:g} s whom it works for: run again"
    return (
        "the Spark Connect server works for every user of this machine: start it with a random "
        "SPARK_CONNECT_AUTHENTICATE_TOKEN in its environment, give this program the same, and name the server "
        "sc://localhost:PORT"
    )


def _goes_without(conf: Mapping[str, str]) -> bool:
    return str(conf.get(AUTHENTICATE, "")).lower() == "false"
