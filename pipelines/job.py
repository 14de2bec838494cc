"""What every job takes: where it may run, and whom it tells how far it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from trinitylake_core.errors import InvalidInput

if TYPE_CHECKING:  # the command line must not wait for pyspark where no Spark runs
    from pyspark.sql import SparkSession

    Session: TypeAlias = SparkSession | Callable[[], SparkSession] | None
else:
    Session = Any
"""A Spark session, or a function that returns one and is called only when Spark is needed, or nothing."""

Progress: TypeAlias = Callable[[str, int, int | None], None]
"""Told the phase, what is done of it, and of how much (``None`` = unknown)."""

ENGINES: Final = ("spark", "local", "auto")


def silent(phase: str, done: int, total: int | None) -> None:
    """Tell nobody."""
    del phase, done, total


def go_on() -> None:
    """Stop nothing: what is called before a commit where nobody wants to be asked."""


def refuse_unknown(engine: str) -> None:
    """Raise ``InvalidInput`` for an engine that does not exist."""
    if engine not in ENGINES:
        raise InvalidInput(f"engine must be one of {', '.join(ENGINES)}, not {engine!r}")


def started(spark: Session) -> SparkSession:
    """Return the session, started if need be. Raises ``InvalidInput`` when there is none."""
    session = spark() if callable(spark) else spark
    if session is None:
        raise InvalidInput("engine 'spark' needs a Spark session; pass one, or choose engine 'local'")
    return session
