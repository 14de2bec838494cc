"""The resources of the assets: Spark, started on first use, and lakehouses, opened on first use."""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field, PrivateAttr

from dagster_project.config.settings import LakehouseSettings
from pipelines.fleet import hurry
from pipelines.session import SessionConfig, end_session, get_session, has_ended
from trinitylake_core import Lakehouse

if TYPE_CHECKING:  # definitions must load without waiting for pyspark
    from pyspark.sql import SparkSession


class SparkResource(dg.ConfigurableResource["SparkResource"]):
    """One Spark session for a run: started by the first step that needs it, stopped at the end of the run."""

    keep_running: bool = Field(
        default=False, description="Keep the session running after a run, for the next run in this process."
    )
    _lock: threading.Lock = PrivateAttr(default_factory=threading.Lock)
    _session: SparkSession | None = PrivateAttr(default=None)
    _config: SessionConfig | None = PrivateAttr(default=None)

    def session(self, config: SessionConfig) -> SparkSession:
        """Return the session of this run, from any thread.

        A different configuration replaces the session, and so does the end of its Java process: a retry needs another.
        """
        with self._lock:
            if self._session is not None and (self._config != config or has_ended(self._session)):
                end_session(self._session)
                self._session = None
            if self._session is None:
                self._session, self._config = get_session(config), config
            return self._session

    def stop(self) -> None:
        """Stop the session, if one was started."""
        with self._lock:
            if self._session is not None:
                end_session(self._session)
            self._session = None

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        """Stop the session at the end of a run."""
        if not self.keep_running:
            self.stop()


def open_lakehouse(settings: LakehouseSettings, *, damaged: bool = False) -> Lakehouse:
    """Return a handle of the newest version, with ``damaged`` of the newest that can be read.

    Secrets are read from the environment here, and only the handle holds them.
    """
    return Lakehouse.open(settings.root, storage_options=settings.resolved_storage_options(), damaged=damaged)


def open_for_poll(settings: LakehouseSettings) -> Lakehouse:
    """Return a handle of the newest version, for a poll that must end soon: few retries, short waits.

    For the code server, whose answers are waited for; a run has time, and takes ``open_lakehouse``.
    """
    return Lakehouse.open(settings.root, storage_options=hurry(settings.root, settings.resolved_storage_options()))


def hang_up() -> None:
    """Close this thread's connection to Spark's Java process, if it has one.

    To be called when a thread ends: py4j keeps one connection per thread, and would drop it without closing it.
    """
    context = sys.modules.get("pyspark.core.context")
    gateway = getattr(getattr(context, "SparkContext", None), "_gateway", None)
    client: Any = getattr(gateway, "_gateway_client", None)
    if client is None or not hasattr(client, "get_thread_connection"):  # another kind of py4j gateway
        return
    connection = client.get_thread_connection()
    if connection is not None:
        with suppress(ValueError):
            client.deque.remove(connection)
        connection.close()
