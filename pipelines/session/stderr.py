"""Filters what Spark's Java prints while it starts and no setting turns off."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_NOISE: Final = re.compile(
    rb"WARNING: Using incubator modules"
    rb"|Using Spark's default log4j profile"
    rb"|Setting (?:default|Spark) log level to"
    rb"|To adjust logging level use"
    rb"|.* WARN (?:NativeCodeLoader|Utils: Your hostname|Utils: Set SPARK_LOCAL_IP)"
    rb"|Picked up (?:_JAVA_OPTIONS|JAVA_TOOL_OPTIONS|JDK_JAVA_OPTIONS)"
)


@contextmanager
def without_start_up_noise() -> Iterator[None]:
    """Start a child process in here, and its standard error passes through a filter as long as it lives.

    Everything but the well-known lines of a starting Spark is handed on unchanged.
    """
    try:
        real = os.dup(2)
    except OSError:  # closed
        yield
        return
    source, sink = os.pipe()
    os.dup2(sink, 2)
    os.close(sink)
    threading.Thread(target=_hand_on, args=(source, real), name="spark-stderr", daemon=True).start()
    try:
        yield
    finally:
        os.dup2(real, 2)


def _hand_on(source: int, target: int) -> None:
    with os.fdopen(source, "rb") as lines, os.fdopen(target, "wb", buffering=0) as out:
        for line in lines:
            if not _NOISE.match(line):
                out.write(line)
