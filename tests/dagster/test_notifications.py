"""Failed runs are told to a webhook, with their error and without secrets."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import dagster as dg
import pytest

from dagster_project import assets, checks, notifications
from dagster_project.config.settings import LakehouseSettings, Notifications
from dagster_project.factory import define_lakehouses
from dagster_project.notifications import failure_sensors
from trinitylake_core import StorageError


class Received(HTTPServer):
    """A server on this machine that keeps what it is sent."""

    status = 200

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.messages: list[dict[str, Any]] = []

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_port}/secret-path"


class _Handler(BaseHTTPRequestHandler):
    server: Received

    def do_POST(self) -> None:
        self.server.messages.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(self.server.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def webhook() -> Iterator[Received]:
    """Return a running server."""
    with Received() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def failed_run(settings: LakehouseSettings, instance: dg.DagsterInstance) -> dg.ExecuteInProcessResult:
    """Return a run that fails because there is no lakehouse."""
    nowhere = settings.model_copy(update={"root": settings.root + "nothing/"})
    job = define_lakehouses((nowhere,)).resolve_job_def("sales_eu_maintenance")
    return job.execute_in_process(instance=instance, raise_on_error=False)


def tell(
    told: Notifications, result: dg.ExecuteInProcessResult, instance: dg.DagsterInstance, **pages: dg.AssetKey
) -> None:
    """Let the failure sensor see a run."""
    (sensor,) = failure_sensors(told, pages=pages)
    failure = next(event for event in result.all_events if event.event_type_value == "PIPELINE_FAILURE")
    context = dg.build_run_status_sensor_context(
        sensor_name="run_failures", dagster_instance=instance, dagster_run=result.dagster_run, dagster_event=failure
    ).for_run_failure()
    sensor(context)


def test_a_failed_run_is_told_with_its_error(
    webhook: Received, settings: LakehouseSettings, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TL_WEBHOOK", webhook.url)
    told = Notifications.model_validate({"webhook": {"env": "TL_WEBHOOK"}, "ui": "https://dagster.example.com/"})
    result = failed_run(settings, instance)
    tell(told, result, instance)
    (message,) = webhook.messages
    link = f"https://dagster.example.com/runs/{result.run_id}"
    assert ("error", link, True) == (message["severity"], message["url"], link in message["text"])
    assert ("sales_eu", "sales_eu_maintenance", result.run_id) == tuple(
        message[name] for name in ("lakehouse", "job", "run_id")
    )
    assert "there is no lakehouse at" in message["text"]

    webhook.messages.clear()
    page = assets.key(settings, assets.HEALTH)
    down = checks.evaluate_unreachable(checks.trouble_of(StorageError("no answer"), settings))
    for each in (down, checks.evaluate_reachable(7)):
        instance.report_runless_asset_event(checks.evaluation(page, each))
        tell(told, result, instance, sales_eu=page)
        assert each.passed == bool(webhook.messages)  # one message a night for each lakehouse of a dead endpoint


def test_a_webhook_that_refuses_is_an_error_without_its_address(webhook: Received) -> None:
    webhook.status = 500
    with pytest.raises(OSError, match="did not accept the message") as caught:
        notifications.post(webhook.url, {})
    assert "secret-path" not in str(caught.value)


def test_without_a_webhook_there_is_no_sensor() -> None:
    assert [] == failure_sensors(Notifications())


@pytest.mark.parametrize("url", ["ftp://x", "file:///etc/passwd", 5])
def test_a_webhook_is_a_url(url: object) -> None:
    with pytest.raises(ValueError, match="must be a URL that starts with https"):
        Notifications.model_validate({"webhook": url})
