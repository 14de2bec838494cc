"""The pages of tables, of failed checks and of Spark in a real browser, in light and dark mode.

The pictures of docs/dagster.md and docs/tables.md are made here.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import dagster as dg
import pytest
import yaml
from playwright.sync_api import Browser, Page, ViewportSize, expect

from dagster_project import assets, tables
from dagster_project.config import load
from dagster_project.config.settings import LakehouseSettings
from dagster_project.factory import define_lakehouses
from pipelines import compaction
from tests.support import story
from tests.support.browser import screenshot
from tests.support.icebergs import opened, rows, with_table
from tests.support.pages import PATIENCE, SECOND
from tests.support.webserver import Webserver, make_home, run_webserver
from trinitylake_core import Lakehouse
from trinitylake_core.iceberg.rewriting.data_files import RowWriter

pytestmark = pytest.mark.slow
MODES: Final[tuple[Literal["light", "dark"], ...]] = ("light", "dark")
WINDOW: Final = ViewportSize(width=1280, height=900)
NAME: Final = "sales"
TABLES: Final = {"sales.orders": 40, "sales.customers": 24, "sales.returns": 16}
"""The small files that each table has at first."""


@dataclass(frozen=True)
class Stage:
    """A webserver, and the lakehouse that it shows."""

    server: Webserver
    instance: dg.DagsterInstance
    settings: LakehouseSettings
    chromium: Browser
    shots: Path

    def materialise(self, *names: str, fails: bool = False, **config: Any) -> str:
        """Materialise assets in this process, as the webserver would in another; return the ID of the run."""
        definitions = define_lakehouses((self.settings,))
        keys = [assets.key(self.settings, name) for name in names]
        run_config: dict[str, Any] = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
        if config:
            run_config["ops"] = {key.to_python_identifier(): {"config": config} for key in keys}
        job = definitions.resolve_job_def(f"{self.settings.slug}_maintenance")
        execute = partial(job.execute_in_process, run_config, self.instance, asset_selection=keys, raise_on_error=False)
        with ThreadPoolExecutor(1) as thread:  # Playwright's event loop runs in this one
            done = thread.submit(execute).result()
        assert fails != done.success
        return done.run_id

    def picture(self, path: str, name: str, shows: str, height: int = 900, **more: Any) -> None:
        """Save what a page shows in both modes, once it shows a text.

        ``more``: what is clicked on before (``click``), what metadata are filtered by (``only``), and whether the full
        message of a run is opened (``full``); ``width`` is that of the window.
        """
        for mode in MODES:
            window = ViewportSize(width=more.get("width", WINDOW["width"]), height=height)
            with self.chromium.new_page(base_url=self.server.url, viewport=window, color_scheme=mode) as page:
                page.set_default_timeout(PATIENCE)
                page.goto(path)
                if "click" in more:
                    page.get_by_text(more["click"], exact=True).first.click()
                if "full" in more:
                    page.get_by_text("View full message").last.click()
                if "only" in more:
                    page.get_by_placeholder("Filter metadata keys").fill(more["only"])
                expect(page.get_by_text(shows).first).to_be_visible()
                page.wait_for_timeout(1.5 * SECOND)  # states, plots and relative times come later
                self.save(page, f"{name}-{mode}")

    def save(self, page: Page, name: str) -> None:
        """Save what a page shows."""
        path = self.shots / f"{name}.png"
        screenshot(page, path)
        assert path.stat().st_size < 150_000

    def page_of(self, asset: str) -> str:
        """Return the path of the page of an asset."""
        return f"/assets/{'/'.join(assets.key(self.settings, asset).path)}"


@pytest.fixture(scope="module")
def stage(chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A lakehouse with tables of small files, a backup, and the webserver that shows them."""
    shots = Path(os.environ.get("SCREENSHOTS") or tmp_path_factory.mktemp("shots"))
    shots.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="lakes-") as short:  # people read it in the pictures
        directory = Path(short)
        stanza = {
            "name": NAME,
            "root": "file://{here}/sales",
            "owners": ["team:data-platform"],
            "storage_options": {"durable": False},
            "spark": {"master": "local[1]"},
            "compaction": {"engine": "auto"},
            "backup": {"target": "file://{here}/backup"},
            "retention": {"keep_last": 3, "older_than": "1s"},
            "tables": {"compact": {"engine": "local"}, "policies": {"sales.*": {"small_files": 8}}},
        }
        file = directory / "lakehouses.yaml"
        file.write_text(yaml.safe_dump({"lakehouses": [stanza]}), encoding="utf-8")
        (settings,) = load(file).lakehouses
        home = make_home(directory)
        with pytest.MonkeyPatch.context() as patch, dg.DagsterInstance.from_config(str(home)) as instance:
            patch.setenv("TRINITYLAKE_AUTHOR", "deployer")
            instance.all_asset_keys()  # its tables are there before others look for them
            with run_webserver(home, file) as server:
                story.work(story.begin(settings.root), 0, 8)
                catalog = opened(settings.root.rstrip("/"))
                for name, count in TABLES.items():
                    table = with_table(catalog, name)
                    for number in range(count):
                        table.append(rows(number))
                compaction.run(Lakehouse.open(settings.root), compaction.Config(engine="local"))
                made = Stage(server, instance, settings, chromium, shots)
                server.wait()
                yield made


def test_a_compaction_of_tables_shows_its_plan_and_what_it_did(stage: Stage) -> None:
    """The plan as a dry run, the page after the run, the plots over time, and the checks."""
    stage.materialise(assets.TABLE_HEALTH)
    planned = stage.materialise(assets.TABLE_COMPACTION, dry_run=True)
    stage.picture(f"/runs/{planned}?logs=type:ASSET_OBSERVATION", "table-compaction-plan", "sales.returns", full=True)
    stage.materialise(assets.TABLE_COMPACTION)
    stage.picture(stage.page_of(assets.TABLE_COMPACTION), "table-compaction", "files_made", 1050, width=1600)
    for number in range(3):
        catalog = opened(stage.settings.root.rstrip("/"))
        for name in TABLES:
            table = catalog.load_table(name)
            for each in range(14 + 3 * number):
                table.append(rows(each))
        stage.materialise(assets.TABLE_HEALTH)
        stage.materialise(assets.TABLE_COMPACTION)
        stage.materialise(assets.TABLE_HEALTH)
    stage.picture(stage.page_of(assets.TABLE_HEALTH), "table-plots", "small_files", click="Plots")


def test_a_failed_proof_blocks_what_deletes(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that loses rows, as no writer may: the tables stay as they were, and the steps below do not run."""
    table = opened(stage.settings.root.rstrip("/")).load_table("sales.orders")
    for number in range(14):
        table.append(rows(number))
    write = RowWriter.write
    monkeypatch.setattr(RowWriter, "write", lambda writer, batches, *rest: write(writer, list(batches)[1:], *rest))
    run = stage.materialise(assets.TABLE_COMPACTION, assets.TABLE_EXPIRATION, assets.TABLE_CLEANING, fails=True)
    stage.picture(f"/runs/{run}", "proof-failed-run", "Not executing")
    check = f"{stage.page_of(assets.TABLE_COMPACTION)}?view=checks&checkDetail={tables.PROVED}"
    stage.picture(check, "proof-failed", "was rewritten with other rows")


def test_a_backup_that_cannot_be_read_is_red_and_keeps_every_version(stage: Stage) -> None:
    stage.materialise(assets.BACKUP)
    backup = stage.settings.backup
    assert backup is not None
    lake = Lakehouse.open(backup.target)
    damaged = Path(backup.target.removeprefix("file://")) / next(each.path for each in lake.objects(kind="table"))
    content = damaged.read_bytes()
    damaged.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    try:
        stage.materialise(assets.BACKUP, assets.EXPIRATION, fails=True)
        check = f"{stage.page_of(assets.BACKUP)}?view=checks&checkDetail={assets.BACKUP_VERIFIED}"
        stage.picture(check, "backup-failed", "checksum", width=1800)
    finally:
        damaged.write_bytes(content)
    stage.materialise(assets.BACKUP)


@pytest.mark.spark
def test_the_page_shows_what_spark_did(stage: Stage) -> None:
    story.work(Lakehouse.open(stage.settings.root, storage_options={"durable": False}), 8, 20)
    stage.materialise(assets.COMPACTION, engine="spark")
    stage.picture(stage.page_of(assets.COMPACTION), "compaction", "before_and_after", 1050, width=1600)
    stage.picture(stage.page_of(assets.COMPACTION), "spark", "spark_application", 860, only="spark")
