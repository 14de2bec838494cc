"""A start of Spark that is given up leaves no Java process behind.

pyspark starts Java with Ctrl-C switched off, and waits for a file that Java writes. An interrupted wait takes away
the directory of that file; Java fails to write it and lives on, with 240 MB and our standard output.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from trinitylake_core.errors import InvalidInput

_SECONDS_TO_END = 10.0


@contextmanager
def no_java_left_behind() -> Iterator[None]:
    """Start Spark in here. If that raises, whatever it is, the processes that were started are ended first.

    A later start in this process begins afresh. Not for two threads at once, as starting Spark is not.
    """
    from pyspark import SparkContext, java_gateway

    starter: Any = java_gateway  # its Popen is for itself, and nothing else tells which process it started
    earlier = SparkContext._gateway  # noqa: SLF001 - there is no public way to ask or to give up a start
    started: list[subprocess.Popen[Any]] = []

    class Remembered(subprocess.Popen[Any]):
        def __init__(self, *args: Any, **keywords: Any) -> None:
            started.append(self)  # first: the interruption may come once the process runs, before this returns
            super().__init__(*args, **keywords)

    original, starter.Popen = starter.Popen, Remembered
    try:
        yield
    except BaseException:
        if earlier is None:
            _forget_gateway()
        for process in started:
            _end(process)
        raise
    finally:
        starter.Popen = original


@contextmanager
def told_by_java(master: str) -> Iterator[None]:
    """Start Spark in here. An error of Java is raised as ``InvalidInput``, which names the master.

    Java has to be asked what its error says, and is ended by :func:`no_java_left_behind`: this goes inside of that.
    """
    from py4j.protocol import Py4JJavaError

    try:
        yield
    except Py4JJavaError as error:
        told = str(error.java_exception.toString()).splitlines()
        why = told[0] if told else "Java does not say why"
        raise InvalidInput(f"Spark does not start with the master {master}: {why}") from None


def _end(process: subprocess.Popen[Any]) -> None:
    if getattr(process, "pid", None) is None:  # it never ran
        return
    process.kill()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_SECONDS_TO_END)


def _forget_gateway() -> None:
    """Make pyspark start another Java the next time, instead of talking to the one that ends."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway  # noqa: SLF001
    SparkContext._active_spark_context = SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001
    if gateway is not None:
        with suppress(Exception):
            gateway.shutdown()
