"""The Dagster UI in a real browser: what an operator of two lakehouses clicks and sees. docs/dagster.md shows it."""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from playwright.sync_api import Browser, Locator, Page, ViewportSize, expect

from dagster_project import assets
from dagster_project.config import load
from dagster_project.config.file import Stanzas
from dagster_project.config.settings import LakehouseSettings
from dagster_project.factory import define_lakehouses, fleet
from dagster_project.metadata.pictures import INK
from pipelines import compaction
from tests.dagster.conftest import Shot
from tests.support import story
from tests.support.browser import screenshot
from tests.support.pages import PATIENCE, SECOND, finished, launchpad, picture, row
from tests.support.webserver import Webserver, make_home, run_webserver
from trinitylake_core import Lakehouse
from trinitylake_core.clock import utc_now

SALES, INVENTORY = story.NAMES
PLOTTED = 5
WIDE = ViewportSize(width=1900, height=900)
EXPIRABLE = 12  # the newest ten versions are kept


@dataclass(frozen=True)
class Stage:
    """A webserver, and the lakehouses that it shows."""

    server: Webserver
    instance: dg.DagsterInstance
    definitions: dg.Definitions
    settings: dict[str, LakehouseSettings]
    lakes: dict[str, Lakehouse]
    good: int

    def materialise(self, name: str, asset: str, **config: Any) -> str:
        """Materialise an asset of a lakehouse in this process, quicker than the webserver would; return the run's ID.

        In a thread of its own, for Playwright's event loop runs in this one, and Dagster wants its own.
        """
        chosen = assets.key(self.settings[name], asset)
        run_config: dict[str, Any] = {"loggers": {"console": {"config": {"log_level": "ERROR"}}}}
        run_config |= {"ops": {chosen.to_python_identifier(): {"config": config}}} if config else {}
        job = self.definitions.resolve_job_def(f"{self.settings[name].slug}_maintenance")
        execute = partial(job.execute_in_process, run_config, self.instance, asset_selection=[chosen])
        with ThreadPoolExecutor(1) as thread:
            done = thread.submit(execute).result()
        assert done.success
        return done.run_id

    def poll(self, name: str) -> None:
        """Let the sensor of a lakehouse poll it once, and record what it found."""
        repository = self.definitions.get_repository_def()
        with dg.build_sensor_context(instance=self.instance, repository_def=repository) as context:
            result = repository.get_sensor_def(f"{self.settings[name].slug}_compaction_sensor")(context)
        assert isinstance(result, dg.SensorResult)
        for event in result.asset_events:
            self.instance.report_runless_asset_event(event)

    def asset_names(self, name: str) -> list[str]:
        """Return the names of the assets of a lakehouse."""
        keys = self.definitions.resolve_all_asset_keys()
        return [key.path[-1] for key in keys if key.path[:-1] == self.settings[name].key_prefix]


@pytest.fixture(scope="module")
def stage(chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Two lakehouses with a history, and the webserver that shows them."""
    directory = tmp_path_factory.mktemp("browser")
    stanzas, home = story.write_stanzas(directory), make_home(directory)
    settings = {each.name: each for each in load(stanzas).lakehouses}
    with pytest.MonkeyPatch.context() as patch, dg.DagsterInstance.from_config(str(home)) as instance:
        patch.setenv("TRINITYLAKE_AUTHOR", "deployer")
        instance.all_asset_keys()  # its tables are there before others look for them
        with run_webserver(home, stanzas) as server:
            lakes = {
                SALES: story.begin(settings[SALES].root),
                INVENTORY: story.begin(settings[INVENTORY].root, txn_ttl_millis=story.SHORT_LIFE_MILLIS),
            }
            good = _stock(lakes[INVENTORY])
            made = Stage(server, instance, define_lakehouses(tuple(settings.values())), settings, lakes, good)
            server.wait()
            yield made


def _stock(lake: Lakehouse) -> int:
    """Fill a lakehouse, name a version, and make a mistake; return the version before it."""
    story.work(lake, 0, 12)
    compaction.run(lake.refresh(), compaction.Config(engine="local"))
    lake.refresh().create_snapshot("before-migration-7", reason="to be safe")
    story.work(lake, 12, 20)
    return story.mistake(lake)


@pytest.fixture(scope="module")
def sold(stage: Stage) -> None:
    """Fill a lakehouse, and measure it again and again."""
    from dagster._core.test_utils import freeze_time  # half a second for each process that collects tests

    now = utc_now()
    for number in range(PLOTTED):
        story.work(stage.lakes[SALES], number * 12, number * 12 + 12)
        if number == PLOTTED // 2:
            compaction.run(stage.lakes[SALES].refresh(), compaction.Config(engine="local"))
        with freeze_time(now - (PLOTTED - number) * timedelta(hours=1)):  # the plots name their ticks by the minute
            stage.materialise(SALES, assets.HEALTH)


@pytest.fixture(scope="module")
def address(stage: Stage) -> str:
    return stage.server.url


# -- the tests -----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("sold")
@pytest.mark.slow
def test_a_click_compacts_and_the_run_shows_before_and_after(stage: Stage, page: Page, shot: Shot) -> None:
    lake = stage.lakes[SALES].refresh()
    before, digest = lake.version, lake.digest()
    page.goto(f"/assets/lakehouse/{SALES}/{assets.COMPACTION}")
    page.get_by_role("button", name="Materialize").first.click()
    page.get_by_text("View", exact=True).last.click()
    finished(page, "ASSET_MATERIALIZATION")
    assert (before + 1, "compact") == (lake.refresh().version, lake.info().operation)
    assert (0, digest) == (lake.stats().messages, lake.digest())
    expect(page.get_by_text("before_and_after").last).to_be_visible()
    picture(page, page.get_by_text("[Show Markdown]").last)
    shot("before-and-after")
    page.reload()
    page.get_by_text("View full message").last.click()
    expect(page.get_by_role("dialog").get_by_text("predicted_and_measured")).to_be_visible()
    shot("run")


def test_a_rollback_shows_its_plan_and_then_happens(stage: Stage, page: Page, shot: Shot) -> None:
    lake = stage.lakes[INVENTORY].refresh()
    bad, reason = lake.version, "migration 7 went wrong"
    launch = partial(launchpad, page, "inventory_rollback", "lakehouse__inventory__rollback", version=stage.good)
    launch(reason="", dry_run=True)
    page.get_by_role("button", name="Launch Run").click()
    expect(page.get_by_role("dialog").get_by_text("a reason is required").first).to_be_visible()
    page.wait_for_timeout(SECOND / 2)
    shot("refused")
    launch(reason=reason, dry_run=True)
    shot("launchpad")
    page.get_by_role("button", name="Launch Run").click()
    finished(page, "STEP_OUTPUT")
    assert bad == lake.refresh().version
    page.get_by_text("View full message").last.click()
    expect(page.get_by_role("dialog").get_by_text("africa.orders_v2", exact=True)).to_be_visible()
    shot("rollback-plan")

    launch(reason=reason, dry_run=False, expected_version=bad)
    page.get_by_role("button", name="Launch Run").click()
    finished(page, "STEP_OUTPUT")
    assert (bad + 1, "rollback", reason) == (lake.refresh().version, lake.info().operation, lake.info().reason)
    assert [] == list(lake.diff(stage.good, lake.version))

    stage.materialise(INVENTORY, assets.SNAPSHOTS)
    for mode, name in (("light", "timeline"), ("dark", "timeline-dark")):
        page.emulate_media(color_scheme="dark" if mode == "dark" else "light")
        page.goto(f"/assets/lakehouse/{INVENTORY}/{assets.SNAPSHOTS}")
        picture(page, row(page, "timeline").get_by_text("[Show Markdown]"))
        shot(name)


@pytest.mark.usefixtures("sold")
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["light", "dark"])
def test_pictures_can_be_read(stage: Stage, page: Page, shot: Shot, mode: str) -> None:
    """Texts and lines stand out from what is behind them; the WCAG ask for a contrast of 3."""
    page.emulate_media(color_scheme="dark" if mode == "dark" else "light")
    page.goto(f"/assets/lakehouse/{SALES}/{assets.HEALTH}")
    image = picture(page, row(page, "picture").get_by_text("[Show Markdown]"))
    behind = background(image)
    assert (mode == "dark") == (contrast(behind, "#ffffff") > contrast(behind, "#000000"))
    assert 4.0 < contrast(INK, behind)
    shot(f"tree-{mode}")


@pytest.mark.usefixtures("sold")
@pytest.mark.slow
def test_numbers_are_plotted_over_materialisations(stage: Stage, page: Page, shot: Shot) -> None:
    page.goto(f"/assets/lakehouse/{SALES}/{assets.HEALTH}")
    page.get_by_text("Plots", exact=True).click()
    heading = page.get_by_text("buffered_messages", exact=True)
    expect(heading).to_be_visible()
    drawn = "all => all.map(e => e.getContext('2d').getImageData(0, 0, e.width, e.height).data.some(each => each))"
    plots = page.locator("canvas")
    expect(plots.nth(10)).to_be_attached()
    assert all(plots.evaluate_all(drawn))
    page.get_by_text("Metadata", exact=True).first.evaluate("each => each.scrollIntoView(true)")
    shot("plots")


@pytest.mark.slow
def test_the_plan_of_a_deletion_is_a_table(stage: Stage, page: Page, shot: Shot) -> None:
    """Every file with kind, size, age, and the reason why nothing needs it."""
    info = next(each for each in stage.lakes[INVENTORY].history() if each.version == EXPIRABLE)
    time.sleep(max(0.0, info.created_at.timestamp() + story.SHORT_LIFE_MILLIS / 1000 - time.time()))
    run = stage.materialise(INVENTORY, assets.EXPIRATION, dry_run=True)
    page.set_viewport_size({"width": 1600, "height": 1000})  # paths are long
    page.goto(f"/runs/{run}?logs=type:ASSET_OBSERVATION")
    page.get_by_text("View full message").last.click()
    told = page.get_by_role("dialog")
    expect(told.get_by_text("version 0: not among the newest 10")).to_be_visible()
    told.get_by_text("Show schema").first.evaluate(
        "each => { each.style.scrollMarginTop = '60px'; each.scrollIntoView(true) }"
    )
    shot("deletion-plan")


@pytest.mark.slow
def test_the_graph_shows_every_asset_of_both_lakehouses(stage: Stage, page: Page, shot: Shot) -> None:
    if os.environ.get("SCREENSHOTS"):  # a graph without gaps
        _complete(stage)
    groups = [each.slug for each in stage.settings.values()]
    page.goto(f"/asset-groups?expanded={','.join(f'global@global:{group}' for group in groups)}")
    for arrow in (1, 0):
        page.get_by_label("arrow_drop_down").nth(arrow).click()
    for name in story.NAMES:
        for asset in stage.asset_names(name):
            expect(page.get_by_text(asset, exact=True).first).to_be_visible()
    page.wait_for_timeout(SECOND)  # the states come after the names
    shot("asset-graph")
    for name, settings in stage.settings.items():
        page.goto(f"/locations/trinitylake/asset-groups/{settings.slug}/list")
        for asset in stage.asset_names(name):
            expect(page.get_by_role("link", name=f"{name} / {asset}")).to_be_visible()


@pytest.mark.slow
def test_the_graph_is_red_where_a_lakehouse_cannot_be_opened(stage: Stage, page: Page, shot: Shot) -> None:
    """As soon as the sensor has polled it; the graph of the other lakehouse is not."""
    root = Path(stage.lakes[INVENTORY].root.removeprefix("file://"))
    away = root.rename(root.with_name("away"))
    try:
        with ThreadPoolExecutor(1) as thread:
            thread.submit(stage.poll, INVENTORY).result()
    finally:
        away.rename(root)
    painted = {}
    for name in story.NAMES:
        page.goto(f"/locations/trinitylake/asset-groups/{stage.settings[name].slug}")
        node = page.get_by_text(assets.HEALTH, exact=True).first
        expect(node).to_be_visible()
        page.wait_for_timeout(2 * SECOND)  # the states come after the names
        painted[name] = node.evaluate(PAINTED)
        shot(f"graph-{name}")
    assert {SALES: False, INVENTORY: True} == {name: is_red(colours) for name, colours in painted.items()}


def _complete(stage: Stage) -> None:
    careful: dict[str, Any] = {"dry_run": True, "engine": "local"}
    for name in story.NAMES:
        for asset in (assets.DEFINITION, assets.HEALTH, assets.SNAPSHOTS):
            stage.materialise(name, asset)
        for asset in (assets.EXPIRATION, assets.ORPHANS):
            stage.materialise(name, asset, **careful)
    stage.materialise(INVENTORY, assets.COMPACTION)


PAINTED = """each => { const found = []; for (let e = each; e; e = e.parentElement)
  found.push(getComputedStyle(e).borderTopColor, getComputedStyle(e).backgroundColor); return found; }"""
"""The colours of borders and backgrounds around a text."""


def is_red(colours: list[str]) -> bool:
    """Return whether one of some CSS colours is red."""
    known = [[int(part) for part in re.findall(r"\d+", each)[:3]] for each in colours]
    return any(red > 150 and green < 110 and blue < 110 for red, green, blue in known)


def background(element: Locator) -> str:
    """Return the colour behind an element, as ``#rrggbb``."""
    found: str = element.evaluate(
        "each => { let e = each, c; do { c = getComputedStyle(e).backgroundColor; e = e.parentElement; }"
        " while (e && c.startsWith('rgba(0, 0, 0, 0')); return c; }"
    )
    return "#" + "".join(f"{int(part):02x}" for part in re.findall(r"\d+", found)[:3])


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours, 1 to 21, as the WCAG defines it."""
    high, low = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.slow
def test_the_page_of_a_fleet_names_the_worst_first(chromium: Browser, tmp_path: Path) -> None:
    """Twelve lakehouses, one of them missing; in light and dark mode. docs/dagster.md shows it."""
    shots = Path(os.environ.get("SCREENSHOTS") or tmp_path)
    with tempfile.TemporaryDirectory(prefix="lakes-") as short:  # people read it in the pictures
        _fleet_pictured(chromium, Path(short), shots)


def _fleet_pictured(chromium: Browser, directory: Path, shots: Path) -> None:
    names = [f"lake-{number:02d}" for number in range(12)]
    stanzas = [{"name": each, "root": f"file://{{here}}/{each}", "compaction": {"messages": 40}} for each in names]
    for number, name in enumerate(names[:-1]):
        story.work(story.begin((directory / name).as_uri()), 0, number + 1)
    file, home = directory / "lakehouses.yaml", make_home(directory)
    file.write_text(yaml.safe_dump({"layout": "partitions", "lakehouses": stanzas}))
    with dg.DagsterInstance.from_config(str(home)) as instance, run_webserver(home, file) as server:
        job = fleet(Stanzas(file)).resolve_job_def("lakehouses_health")
        with ThreadPoolExecutor(1) as thread:
            done = thread.submit(partial(job.execute_in_process, instance=instance)).result()
        assert done.success
        server.wait()
        for mode in ("light", "dark"):
            with chromium.new_page(base_url=server.url, viewport=WIDE, color_scheme=mode) as page:
                page.set_default_timeout(PATIENCE)
                page.add_init_script("localStorage.setItem('dagster-nav-collapsed', 'true')")
                page.goto(f"/runs/{done.run_id}?logs=type:ASSET_MATERIALIZATION")
                page.get_by_text("View full message").last.click()
                worst = page.get_by_role("dialog").get_by_text(names[-1], exact=True).first
                expect(worst).to_be_visible(timeout=PATIENCE)
                worst.evaluate("each => { each.style.scrollMarginTop = '90px'; each.scrollIntoView(true) }")
                screenshot(page, shots / f"fleet-{mode}.png")
