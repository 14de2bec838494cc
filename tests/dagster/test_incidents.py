"""The incidents of docs/runbook.md, from the UI alone: the clicks, the result by digest, and the pictures of each step.

New pictures, and the seconds that the machine took:
``SCREENSHOTS=docs/images pytest -m slow -s tests/dagster/test_incidents.py``. The command line: tests/pipelines.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, FloatRect, Locator, Page, expect

from pipelines import compaction, expire, export
from tests.dagster.conftest import Shot
from tests.pipelines.test_incidents import digest_of, meaning
from tests.support.clock import Clock
from tests.support.lakes import FAST, content, reopened
from tests.support.pages import SECOND, finished, launchpad
from tests.support.surgery import Surgery
from tests.support.webserver import Webserver, make_home, run_webserver
from trinitylake_core import Lakehouse
from trinitylake_core.commits.commit import _of_process

pytestmark = pytest.mark.slow
SALES, INVENTORY, BILLING = "sales", "inventory", "billing"
"""Thirty tables dropped; a corrupt node; expired too much."""
TABLES: Final = 30
BACKUP: Final = "backup/billing"
COMPACT: Final = compaction.Config(engine="local", reason="maintenance")
_STANZA: Final = """
  - name: {name}
    root: file://{{here}}/{name}
    storage_options: {{durable: false}}
    compaction: {{engine: local}}
"""
_WIDTH: Final = 1280
_PAD_HEIGHT: Final = 640
_HEIGHT: Final = 660
_GAP: Final = 8
_MARGIN: Final = 68
"""Where the navigation ends."""
_INTO_THE_OPTIONS: Final = "each => { each.CodeMirror.focus(); each.CodeMirror.setCursor(3, 8) }"
As = Callable[[str], AbstractContextManager[None]]


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    """Return where the lakehouses are; it has a short name, because people read it in pictures."""
    with tempfile.TemporaryDirectory(prefix="lakes-") as made:
        yield Path(made)


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[Webserver]:
    """Run the UI for three lakehouses that are not there yet, as somebody on call."""
    stanzas, home = directory / "lakehouses.yaml", make_home(directory)
    text = "".join(_STANZA.format(name=name) for name in (SALES, INVENTORY, BILLING))
    stanzas.write_text(f"lakehouses:{text}    backup: {{target: 'file://{{here}}/{BACKUP}'}}\n", encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRINITYLAKE_AUTHOR", "ada@oncall")
        with run_webserver(home, stanzas) as running:
            yield running


@pytest.fixture(scope="module")
def address(server: Webserver, chromium: Browser) -> str:
    server.wait()
    return server.url


@pytest.fixture
def by(monkeypatch: pytest.MonkeyPatch) -> As:
    """Return the block in which somebody else commits."""

    @contextmanager
    def somebody(name: str) -> Iterator[None]:
        monkeypatch.setenv("TRINITYLAKE_AUTHOR", name)
        _of_process.cache_clear()
        yield
        _of_process.cache_clear()

    return somebody


def lakehouse(directory: Path, name: str, by: As) -> Lakehouse:
    """Return a lakehouse of two namespaces with thirty tables each, committed in three versions, and compacted."""
    with by("etl@airflow"):
        lake = Lakehouse.create((directory / name).as_uri(), storage_options=FAST, order=8)
        with lake.transaction(reason="set up") as txn:
            for namespace in ("emea", "apac"):
                txn.create_namespace(namespace)
        for part in range(3):
            with lake.transaction(reason=f"quarter {part + 1}") as txn:
                for number in range(part * 10, part * 10 + 10):
                    txn.create_table("emea", f"orders_{number:02d}")
                    txn.create_table("apac", f"orders_{number:02d}")
    with by("dagster@maintenance"):
        compaction.run(lake.refresh(), COMPACT)
    return lake.refresh()


class Desk:
    """Somebody on call, at the UI of one lakehouse, and the pictures of what happens."""

    def __init__(self, page: Page, shot: Shot, lakehouse: str, incident: str) -> None:
        self.page, self.shot, self.lakehouse, self.incident = page, shot, lakehouse, incident
        self.begun = time.monotonic()

    def run(self, job: str, name: str, status: str = "Success", *, pad: bool = False, **config: Any) -> str:
        """Launch a job with these options, and return what it shows in the end; with a picture, of the pad, too."""
        self.page.set_viewport_size({"width": _WIDTH, "height": _PAD_HEIGHT})
        launchpad(self.page, f"{self.lakehouse}_{job}", f"lakehouse__{self.lakehouse}__{job}", **config)
        self.page.locator(".CodeMirror").evaluate(_INTO_THE_OPTIONS)
        self.page.wait_for_timeout(SECOND)  # the fields are explained beside it
        if pad:
            clip = FloatRect(x=_MARGIN, y=0, width=_WIDTH - _MARGIN, height=_PAD_HEIGHT)
            self.shot(f"incident-{self.incident}-{name}-launchpad", clip)
        self.page.get_by_role("button", name="Launch Run").click()
        finished(self.page, "STEP_OUTPUT" if status == "Success" else "STEP_FAILURE", status)
        self.page.set_viewport_size({"width": _WIDTH, "height": _HEIGHT})
        self.page.get_by_text("View full message").last.click()
        told = self.page.get_by_role("dialog")
        expect(told.get_by_role("button", name="Done")).to_be_visible()
        self.page.wait_for_timeout(SECOND / 2)
        self._take(name, told)
        return told.inner_text()

    def _take(self, name: str, told: Locator) -> None:
        """Save what a run shows, without the page behind it and the stack below an error."""
        box, stack = told.bounding_box(), told.get_by_text("execute_plan.py").first
        assert box is not None
        ends = box["y"] + box["height"]
        if stack.count() and (below := stack.bounding_box()) is not None:
            ends = below["y"] - _GAP
        height = min(ends, _HEIGHT) - box["y"]
        self.shot(
            f"incident-{self.incident}-{name}", FloatRect(x=box["x"], y=box["y"], width=box["width"], height=height)
        )

    def done(self) -> None:
        """Print how long it took, from the first launch to the last result, launchpads filled in by a machine."""
        print(f"\n{self.incident}: {time.monotonic() - self.begun:.0f} s")


def test_thirty_tables_dropped_and_a_good_commit_after_it(directory: Path, by: As, page: Page, shot: Shot) -> None:
    """The history shows the loss by its counts; a restore brings back the thirty, and the good commit stays."""
    lake = lakehouse(directory, SALES, by)
    before = content(lake)
    with by("deploy-bot@ci"), lake.transaction(reason="clean up test namespaces") as txn:
        txn.drop_namespace("emea", cascade=True)
    bad = lake.refresh().version
    with by("etl@airflow"), lake.transaction(reason="forecast") as txn:
        txn.alter_table("apac", "orders_01", properties={"owner": "apac-team"})
        txn.create_table("apac", "forecast")
    good = content(lake.refresh())
    desk = Desk(page, shot, SALES, "dropped")
    told = desk.run("history", "history", limit=4)
    assert "clean up test namespaces" in told
    assert "deploy-bot@ci" in told
    told = desk.run("diff", "diff", before=str(bad - 1), after=str(bad))
    assert f"{TABLES + 1} removed" in told
    wanted = {"only": ["emea", "emea.*"], "version": bad - 1, "reason": "incident 4711: emea dropped by mistake"}
    told = desk.run("restore", "plan", pad=True, **wanted, dry_run=True)
    assert f"expected_version: {bad + 1}" in told
    told = desk.run("restore", "done", pad=True, **wanted, dry_run=False, expected_version=bad + 1)
    assert f"version {bad + 2} committed" in told
    desk.run("verify", "verify", versions="newest", definitions=True)
    desk.done()
    assert digest_of(lake, before | good) == reopened(lake).digest()


def test_the_newest_version_is_corrupt(directory: Path, by: As, page: Page, shot: Shot) -> None:
    """Verify names the file; the plan says what it could not compare; the rollback leaves the damaged version."""
    lake = lakehouse(directory, INVENTORY, by)
    with by("etl@airflow"):
        for number in range(TABLES):
            with lake.transaction(reason=f"owner of orders_{number:02d}") as txn:
                txn.alter_table("emea", f"orders_{number:02d}", properties={"owner": "emea-team"})
    good, digest = lake.refresh().version, lake.digest()
    with by("dagster@maintenance"):
        compaction.run(lake.refresh(), COMPACT)
    bad = lake.refresh().version
    surgery, path = Surgery(lake.root, lake.definition.order), lake.root_node.node.children[0]
    surgery.write(path, surgery.read(path)[:500])
    desk = Desk(page, shot, INVENTORY, "corrupt")
    told = desk.run("verify", "verify", "Failure", versions="newest", definitions=True)
    assert path in told
    desk.run("history", "history", limit=4)
    wanted = {"version": good, "reason": "incident 4714: corrupt node"}
    told = desk.run("rollback", "plan", pad=True, **wanted, dry_run=True)
    assert "not_compared" in told
    assert path in told
    assert f"expected_version: {bad}" in told
    told = desk.run("rollback", "done", pad=True, **wanted, dry_run=False, expected_version=bad)
    assert f"version {bad + 1} committed" in told
    assert "0 findings" in desk.run("verify", "verified", versions="newest", definitions=True)
    desk.done()
    assert (bad + 1, digest) == (reopened(lake).version, reopened(lake).digest())


def test_somebody_expired_too_much(directory: Path, by: As, page: Page, shot: Shot, clock: Clock) -> None:
    """The namespace is gone from every version that is kept; the backup has it, and gives it back."""
    lake = lakehouse(directory, BILLING, by)
    backup = (directory / BACKUP).as_uri()
    export.run(lake, backup, export.Config(history=True, engine="local"))
    wanted, saved = meaning(Lakehouse.open(backup)), lake.version
    with by("bob@laptop"), lake.transaction(reason="clean up") as txn:
        txn.drop_namespace("emea", cascade=True)
    with by("etl@airflow"), lake.transaction(reason="forecast") as txn:
        txn.create_namespace("later")
    with by("bob@laptop"), clock.another(days=30):
        config = expire.Config(engine="local", keep_last=1, older_than_seconds=0)
        expire.run(lake.refresh(), config)
    newest = lake.refresh().version
    desk = Desk(page, shot, BILLING, "expired")
    told = desk.run("rollback", "refused", "Failure", version=saved, reason="incident 4716: emea is gone", dry_run=True)
    assert "has expired" in told
    told = desk.run("diff", "diff", before="HEAD", after="HEAD", other=backup)
    assert f"{TABLES + 1} added" in told
    how = {"only": ["emea", "emea.*"], "source": backup, "reason": "incident 4716: emea is gone"}
    told = desk.run("restore", "plan", pad=True, **how, dry_run=True)
    assert f"expected_version: {newest}" in told
    told = desk.run("restore", "done", pad=True, **how, dry_run=False, expected_version=newest)
    assert f"version {newest + 1} committed" in told
    desk.run("verify", "verify", versions="newest", definitions=True)
    desk.done()
    after = meaning(reopened(lake))
    assert wanted | {("namespace", "later", None): after["namespace", "later", None]} == after
