"""What is written down of requests: the log, the audit log, and the metrics."""

from __future__ import annotations

import logging
import time
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.requests import Request as HttpRequest

from trinitylake_core.rest.audit import Asked, AuditEntry
from trinitylake_core.rest.principals import Principal
from trinitylake_core.rest.problems import Problem
from trinitylake_core.rest.turns import Seats

LOG: Final = logging.getLogger("trinitylake.rest")
NOBODY: Final = Principal("-", {})
"""Who asks as long as no token was seen."""
_LONGEST_PATH: Final = 300


class Asking:
    """A request from its first moment to its answer: who asks for what.

    Attributes:
        operation: the name of the handler.
        asked: what the handler understood of it.
    """

    def __init__(self, http: HttpRequest, operation: str) -> None:
        self.http = http
        self.operation = operation
        self.principal = NOBODY
        self.asked = Asked()
        self.began = time.monotonic()

    def came_to(self, status: int, problem: Problem | None) -> AuditEntry:
        """Return what it was, and what it came to."""
        client = self.http.client
        return AuditEntry(
            principal=self.principal.name,
            client="" if client is None else f"{client.host}:{client.port}",
            method=self.http.method,
            path=self.http.url.path[:_LONGEST_PATH],
            operation=self.operation,
            status=status,
            kind=None if problem is None else problem.kind,
            asked=self.asked,
        )


class Journal:
    """Writes down the requests of one endpoint; ``audits_reads`` puts those that only read into the audit log, too."""

    def __init__(self, seats: Seats, *, audits_reads: bool = False) -> None:
        self._audits_reads = audits_reads
        own = CollectorRegistry()
        self._registry = own
        self._requests = Counter("trinitylake_requests", "Requests answered", ["operation", "status"], registry=own)
        self._seconds = Histogram("trinitylake_request_seconds", "Time to the answer", ["operation"], registry=own)
        requests = Gauge("trinitylake_requests_current", "Requests under way", registry=own)
        requests.set_function(lambda: seats.requests)
        threads = Gauge("trinitylake_threads_current", "Requests that are worked on", registry=own)
        threads.set_function(lambda: seats.threads)
        memory = Gauge("trinitylake_request_memory_bytes", "Memory that requests under way may need", registry=own)
        memory.set_function(lambda: seats.memory_bytes)

    def metrics(self) -> bytes:
        """Return the metrics as text."""
        return generate_latest(self._registry)

    def note(self, asking: Asking, status: int, problem: Problem | None) -> None:
        """Log, audit and count a request that is answered."""
        seconds = time.monotonic() - asking.began
        outcome = asking.came_to(status, problem)
        self._requests.labels(outcome.operation, str(status)).inc()
        self._seconds.labels(outcome.operation).observe(seconds)
        who = outcome.principal
        LOG.info("%s %s %r %d %.1f ms", who, outcome.method, outcome.path, status, seconds * 1000)
        if outcome.is_audited() or (self._audits_reads and outcome.is_read()):
            outcome.write()
