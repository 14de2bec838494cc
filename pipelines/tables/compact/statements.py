"""A lakehouse as a catalog of a Spark session, and statements over it that can be stopped."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from pipelines.job import Cancel
from pipelines.session.iceberg import refuse_session_without_iceberg
from pipelines.session.spark import ADAPTIVE, is_connect

if TYPE_CHECKING:  # the command line must not wait for pyspark where no Spark runs
    from pyspark.sql import SparkSession

DELEGATION: Final = "header.X-Iceberg-Access-Delegation"
"""The property that says how Iceberg shall get at the files of tables."""
_EACH: Final = {"type": "rest", "cache-enabled": "false", DELEGATION: "vended-credentials"}
"""What each catalog is told. An endpoint that lends keys has Spark read one table with keys for this table alone."""
_RELEASE: Final = re.compile(r"(\d{1,3})\.(\d{1,3})")
_KEEPS_ROWS: Final = (1, 12)
_ASK_SECONDS: Final = 0.5
"""How often it is asked whether the job shall stop while a statement runs."""
_STOP_SECONDS: Final = 0.05
"""How often what a statement has begun is stopped, once it shall: shorter than any job that rewrites files."""


class StatementTimeout(Exception):
    """A statement that was stopped, because its time was used up."""


class StatementFailed(Exception):
    """A statement that Spark refused or could not carry out; or Spark has ended.

    Attributes:
        has_ended: whether Java, or the server, has gone: no further statement will be answered.
    """

    def __init__(self, message: str, *, has_ended: bool = False) -> None:  # it is unpickled by its message alone
        super().__init__(message)
        self.has_ended = has_ended


class SparkCatalog:
    """A lakehouse, through an endpoint, as a catalog of a session of its own.

    Attributes:
        name: of the catalog; it is in no other session.
        session: the session.
        application_id: what Spark writes into the snapshots that it makes.
    """

    def __init__(
        self, spark: SparkSession, endpoint: Mapping[str, str], cancel: Cancel, is_late: Callable[[], bool]
    ) -> None:
        """Begin.

        Args:
            spark: a session with Iceberg.
            endpoint: ``uri``, ``warehouse`` and ``token`` of the endpoint.
            cancel: asked while a statement runs.
            is_late: asked as well, whether the time of the statement is used up.

        Raises:
            InvalidInput: the session started without Iceberg.
        """
        refuse_session_without_iceberg(spark)
        self._is_connect = is_connect(spark)
        self.session = spark if self._is_connect else spark.newSession()
        self._cancel = cancel
        self._is_late = is_late
        self.name = f"compact_{secrets.token_hex(4)}"
        self.application_id = self.session.conf.get("spark.app.id") or ""
        # Here, and not in the configuration of the session: that one stands in lists of processes.
        prefix = f"spark.sql.catalog.{self.name}"
        # Rows of tables are many, and nobody knows how: what suits the queries of other jobs does not suit these.
        self._settings = {prefix: "org.apache.iceberg.spark.SparkCatalog", ADAPTIVE: "true"}
        for key, value in {**_EACH, **endpoint}.items():
            self._settings[f"{prefix}.{key}"] = value
        for key, value in self._settings.items():
            self.session.conf.set(key, value)

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        """Return the rows of a statement.

        Raises:
            StatementTimeout: it took longer than there is time.
            StatementFailed: with the message of Spark.
            Whatever ``cancel.check`` raises.
        """
        tag = f"trinitylake-{secrets.token_hex(8)}"
        with ThreadPoolExecutor(1, thread_name_prefix="spark-statement") as thread:
            running = thread.submit(self._collect, statement, tag)
            while not wait([running], timeout=_ASK_SECONDS).done:
                try:
                    self._cancel.check()
                    self._refuse_late()
                except BaseException:
                    self._stop(running, tag)
                    raise
            try:
                return running.result()
            except Exception as error:
                failure = _failure_of(error)
                if failure is None:
                    raise
                raise failure from error

    def _stop(self, running: Future[list[tuple[Any, ...]]], tag: str) -> None:
        """Interrupt what a statement has begun until it ends: Iceberg goes on with other jobs where one is stopped."""
        while not running.done():
            with suppress(Exception):  # Spark may have ended
                self._interrupt(tag)
            wait([running], timeout=_STOP_SECONDS)

    def _refuse_late(self) -> None:
        if self._is_late():
            raise StatementTimeout("the time was used up, and Spark was stopped; the next run goes on")

    def _collect(self, statement: str, tag: str) -> list[tuple[Any, ...]]:
        # Iceberg gives its jobs a group of its own; a tag stays on all that a statement starts.
        if self._is_connect:
            self.session.addTag(tag)
        else:
            self.session.sparkContext.addJobTag(tag)
        return [tuple(row) for row in self.session.sql(statement).collect()]

    def _interrupt(self, tag: str) -> None:
        if self._is_connect:
            self.session.interruptTag(tag)
        else:
            self.session.sparkContext.cancelJobsWithTag(tag)

    def keeps_rows_of_manifests(self) -> bool:
        """Whether this Iceberg keeps the IDs of rows where it writes manifests again: none before 1.12 does.

        Of a server's Iceberg nobody here knows.
        """
        if self._is_connect:
            return False
        java: Any = self.session.sparkContext._jvm  # noqa: SLF001 - there is no other way to Java
        release = _RELEASE.match(str(java.org.apache.iceberg.IcebergBuild.version()))
        return release is not None and (int(release[1]), int(release[2])) >= _KEEPS_ROWS

    def table(self, identifier: tuple[str, ...]) -> str:
        """Return the name of a table in SQL."""
        return ".".join(quote_name(each) for each in (self.name, *identifier))

    def close(self) -> None:
        """Take the catalog and its token out of the session."""
        for key in self._settings:
            with suppress(Exception):  # a session that has ended holds nothing
                self.session.conf.unset(key)


def _failure_of(error: Exception) -> StatementFailed | None:
    """Return an error as a failure of Spark; ``None``: it is none.

    Once Java has gone, py4j says so in its own words to those who wait for an answer, and in those of sockets to all
    who ask later.
    """
    is_gone = isinstance(error, ConnectionError) or type(error).__name__ in _GONE
    if not is_gone and type(error).__module__.partition(".")[0] not in {"pyspark", "py4j"}:
        return None
    text = ""
    try:
        text = f"{error}"
    except Exception:  # noqa: BLE001 - py4j asks Java for the words
        is_gone = True
    if is_gone:
        text = "the process of Spark was killed, or ran out of memory, or its server does not answer"
    return StatementFailed(text, has_ended=is_gone)


_GONE: Final = frozenset({"Py4JNetworkError", "Py4JClientSpecificError"})


def quote_name(name: str) -> str:
    """Return a name as an identifier of SQL."""
    return "`" + name.replace("`", "``") + "`"


def quote_text(text: str) -> str:
    """Return a text as a literal of SQL."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
