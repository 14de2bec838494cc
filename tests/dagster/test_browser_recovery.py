"""The way back by the pages of Dagster alone, while a compaction holds the lakehouse: a real daemon, a real browser."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from playwright.sync_api import Browser, Page

from tests.dagster.conftest import STILL, filled
from tests.dagster.test_slots import started
from tests.support.browser import WINDOW, screenshot
from tests.support.deployment import eventually
from tests.support.dev_server import SECONDS, UNIT
from tests.support.pages import PATIENCE, finished, launchpad, row

STEP = "lakehouse__sales__rollback"


@pytest.mark.slow
def test_a_plan_and_its_rollback_by_the_pages_alone_wait_for_no_maintenance(chromium: Browser, tmp_path: Path) -> None:
    """The plan offers the configuration that carries it out; it is copied from the page into the launchpad."""
    lake = filled((tmp_path / "lake").as_uri())
    good = lake.version - 1
    with started(lake, component=False, slow=True) as server:
        held = server.launch("sales_compaction")
        eventually((server.home / "held").exists, lambda: server.log(UNIT)[-3000:], SECONDS)
        with chromium.new_page(base_url=f"http://127.0.0.1:{server.port}", viewport=WINDOW) as page:
            page.set_default_timeout(PATIENCE)
            page.add_init_script(STILL)
            page.goto("/runs")  # the pages are loaded: whoever is on call has them open
            page.get_by_text("sales_compaction").first.wait_for()
            began = time.monotonic()
            _launch(page, version=good, reason="bad deploy", dry_run=True)
            page.get_by_text("View full message").last.click()
            offered = yaml.safe_load(row(page, "configuration").locator("td").last.inner_text())
            screenshot(page, tmp_path / "plan.png")
            _launch(page, **offered["ops"][STEP]["config"])
            print(f"plan and rollback by the pages alone: {time.monotonic() - began:.0f} s")
            screenshot(page, tmp_path / "done.png")
        assert "STARTED" == server.run(held)["status"]
    assert lake.at(good).digest() == lake.refresh().digest()
    assert ("rollback", "bad deploy") == (lake.info().operation, lake.info().reason)


def _launch(page: Page, **config: Any) -> None:
    launchpad(page, "sales_rollback", STEP, location="theirs", **config)
    page.get_by_role("button", name="Launch Run").click()
    finished(page, "STEP_OUTPUT")
