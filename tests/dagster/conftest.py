"""Lakehouses on disk, and what Dagster makes of them: real runs, one shared Spark session, one browser per module."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import pyarrow as pa
import pytest
from playwright.sync_api import Browser, BrowserContext, FloatRect, Page, expect

from dagster_project.config.settings import LakehouseSettings
from dagster_project.factory import define_lakehouses
from dagster_project.resources import SparkResource
from tests.support import fleets
from tests.support.browser import WINDOW, NoBrowser, browser, screenshot
from tests.support.lakes import compacted, in_memory
from tests.support.pages import PATIENCE
from trinitylake_core import Lakehouse
from trinitylake_core.commits.commit import _of_process

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL: dict[str, Any] = {
    "order": 5,
    "node_file_max_size_bytes": 6000,
    "namespace_name_max_size_bytes": 20,
    "table_name_max_size_bytes": 20,
    "view_name_max_size_bytes": 20,
}
STILL = """addEventListener("DOMContentLoaded", () => document.head.appendChild(document.createElement("style"))
  .textContent = "*, *::before, *::after { animation: none !important; transition: none !important }")"""
"""Nothing moves on a page: without a graphics card, a wheel that turns while a run is awaited costs a core."""
Settings = Callable[..., LakehouseSettings]
Shot = Callable[..., None]
"""Saves a screenshot: its name, and what to crop it to."""


def filled(root: str, commits: int = 6, **more: Any) -> Lakehouse:
    """Return a lakehouse of order 5 whose tree has several levels and whose buffers hold messages."""
    lake = Lakehouse.create(root, **SMALL, **more)
    with lake.transaction() as txn:
        txn.create_namespace("sales")
    for commit in range(commits):
        with lake.transaction() as txn:
            for table in range(10):
                txn.create_table("sales", f"t{commit}_{table}", schema=pa.schema([("id", pa.int64())]))
    return lake.refresh()


@pytest.fixture
def webhook() -> Iterator[fleets.Webhook]:
    """Return a server on this machine that keeps what it is sent."""
    with fleets.webhook("/secret-path") as told:
        yield told


@pytest.fixture(scope="package", autouse=True)
def author() -> Iterator[None]:
    """Name who launches what the tests launch; a code location without this asks for it in the launchpad."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRINITYLAKE_AUTHOR", "tests@dagster")
        yield
    _of_process.cache_clear()


@pytest.fixture
def lake(tmp_path: Path) -> Lakehouse:
    """Return a lakehouse that needs a compaction."""
    return filled((tmp_path / "lake").as_uri())


@pytest.fixture
def settings(lake: Lakehouse) -> LakehouseSettings:
    """Return the stanza of ``lake``."""
    return LakehouseSettings.model_validate(
        {
            "name": "sales-eu",
            "root": lake.root,
            "spark": {"master": "local[2]"},
            "compaction": {"messages": 5, "min_interval": "1h"},
            "schedules": {"maintenance": "0 3 * * *"},
        }
    )


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    """Return a Dagster instance that is gone afterwards."""
    with dg.DagsterInstance.ephemeral() as ephemeral:
        yield ephemeral


@pytest.fixture(scope="package")
def new_instance() -> Iterator[str]:
    """Return the directory of a Dagster instance without a run: its tables take a quarter of a second to make."""
    with tempfile.TemporaryDirectory(prefix="dagster-", dir=in_memory()) as directory:
        with dg.DagsterInstance.local_temp(directory) as instance:
            instance.all_asset_keys()
            instance.all_instigator_state()
        yield directory


@pytest.fixture
def memory(new_instance: str) -> Iterator[str]:
    """Lend a directory for a Dagster instance: on a busy disk, each of its events waits for SQLite's sync."""
    with tempfile.TemporaryDirectory(prefix="dagster-", dir=in_memory()) as directory:
        shutil.copytree(new_instance, directory, dirs_exist_ok=True)
        yield directory


@pytest.fixture
def defs(settings: LakehouseSettings, spark: SparkSession) -> dg.Definitions:
    """Return the definitions of ``settings``; their runs share the Spark session of all tests."""
    return define_lakehouses((settings,), spark=SparkResource(keep_running=True))


@pytest.fixture
def local(settings: LakehouseSettings) -> LakehouseSettings:
    """Return settings that need no Spark."""
    return settings.model_copy(update={"compaction": settings.compaction.model_copy(update={"engine": "local"})})


@pytest.fixture
def deployed(lake: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> Lakehouse:
    """Return a lakehouse in which a bot dropped tables in two versions, with a compaction between them."""
    authors = "trinitylake_core.transactions.change.whoami"
    monkeypatch.setattr(authors, lambda: "deploy-bot@ci")
    for number in (1, 2):
        with lake.transaction(reason=f"nightly deploy, step {number}") as txn:
            txn.drop_table("sales", f"t0_{number}")
        if number == 1:
            compacted(lake.refresh())
            lake.refresh()
    monkeypatch.setattr(authors, lambda: "ada@oncall")
    return lake.refresh()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Lend a browser for the tests of a module."""
    try:
        with browser() as running:
            yield running
    except NoBrowser as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def context(address: str, chromium: Browser) -> Iterator[BrowserContext]:
    """One profile for all tests of a module, so that the UI at its ``address`` is loaded once."""
    with chromium.new_context(base_url=address, viewport=WINDOW, color_scheme="light") as made:
        made.add_init_script("localStorage.setItem('dagster-nav-collapsed', 'true')")
        made.add_init_script(STILL)
        made.set_default_timeout(PATIENCE)
        expect.set_options(timeout=PATIENCE)
        yield made


@pytest.fixture
def page(context: BrowserContext, tmp_path: Path) -> Iterator[Page]:
    """Lend a page; what it showed last is kept with the files of the test."""
    with context.new_page() as opened:
        yield opened
        opened.screenshot(path=tmp_path / "last.png")


@pytest.fixture
def shot(page: Page, tmp_path: Path) -> Shot:
    """Return how to save a screenshot: in the directory that SCREENSHOTS names, else with the files of the test."""
    directory = Path(os.environ.get("SCREENSHOTS") or tmp_path)

    def save(name: str, clip: FloatRect | None = None) -> None:
        path = directory / f"{name}.png"
        screenshot(page, path, clip)
        assert path.stat().st_size < 200_000

    directory.mkdir(parents=True, exist_ok=True)
    return save
