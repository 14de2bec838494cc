"""A lakehouse as a catalog of a Spark session, and statements over it that can be stopped."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from pipelines.job import Cancel
from pipelines.session.iceberg import refuse_session_without_iceberg
from pipelines.session.spark import is_connect

if TYPE_CHECKING:  # the command line must not wait for pyspark where no Spark runs
    from pyspark.sql import SparkSession

_ASK_SECONDS: Final = 0.5
"""How often it is asked whether the job shall stop while a statement runs."""


class StatementTimeout(Exception):
    """A statement that was stopped, because its time was used up."""


class SparkCatalog:
    """A lakehouse, through an endpoint, as a catalog of a session of its own.

    Attributes:
        name: of the catalog; it is in no other session.
        application_id: what Spark writes into the snapshots that it makes.
    """

    def __init__(self, spark: SparkSession, endpoint: Mapping[str, str], cancel: Cancel, ends: float | None) -> None:
        """Begin.

        Args:
            spark: a session with Iceberg.
            endpoint: ``uri``, ``warehouse`` and ``token`` of the endpoint.
            cancel: asked while a statement runs.
            ends: the moment of the monotonic clock at which statements are stopped; ``None``: never.

        Raises:
            InvalidInput: the session started without Iceberg.
        """
        refuse_session_without_iceberg(spark)
        self._is_connect = is_connect(spark)
        self._spark = spark if self._is_connect else spark.newSession()
        self._cancel = cancel
        self._ends = ends
        self.name = f"compact_{secrets.token_hex(4)}"
        self.application_id = self._spark.conf.get("spark.app.id") or ""
        # Here, and not in the configuration of the session: that one stands in lists of processes.
        prefix = f"spark.sql.catalog.{self.name}"
        self._settings = {prefix: "org.apache.iceberg.spark.SparkCatalog"}
        for key, value in {**endpoint, "type": "rest", "cache-enabled": "false"}.items():
            self._settings[f"{prefix}.{key}"] = value
        for key, value in self._settings.items():
            self._spark.conf.set(key, value)

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        """Return the rows of a statement.

        Raises:
            StatementTimeout: it took longer than there is time.
            Whatever ``cancel.check`` raises; or what Spark raises.
        """
        tag = f"trinitylake-{secrets.token_hex(8)}"
        with ThreadPoolExecutor(1, thread_name_prefix="spark-statement") as thread:
            running = thread.submit(self._collect, statement, tag)
            while not wait([running], timeout=_ASK_SECONDS).done:
                try:
                    self._cancel.check()
                    self._refuse_late()
                except BaseException:
                    self._interrupt(tag)
                    raise
            return running.result()

    def _refuse_late(self) -> None:
        if self._ends is not None and time.monotonic() > self._ends:
            raise StatementTimeout("the time was used up, and Spark was stopped; the next run goes on")

    def _collect(self, statement: str, tag: str) -> list[tuple[Any, ...]]:
        # Iceberg gives its jobs a group of its own; a tag stays on all that a statement starts.
        if self._is_connect:
            self._spark.addTag(tag)
        else:
            self._spark.sparkContext.addJobTag(tag)
        return [tuple(row) for row in self._spark.sql(statement).collect()]

    def _interrupt(self, tag: str) -> None:
        if self._is_connect:
            self._spark.interruptTag(tag)
        else:
            self._spark.sparkContext.cancelJobsWithTag(tag)

    def table(self, identifier: tuple[str, ...]) -> str:
        """Return the name of a table in SQL."""
        return ".".join(quote_name(each) for each in (self.name, *identifier))

    def close(self) -> None:
        """Take the catalog and its token out of the session."""
        for key in self._settings:
            with suppress(Exception):  # a session that has ended holds nothing
                self._spark.conf.unset(key)


def quote_name(name: str) -> str:
    """Return a name as an identifier of SQL."""
    return "`" + name.replace("`", "``") + "`"


def quote_text(text: str) -> str:
    """Return a text as a literal of SQL."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
