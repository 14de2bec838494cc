"""What stands on the pages of Dagster's UI, and how an operator fills them in; for tests in a browser."""

from __future__ import annotations

import re
from typing import Any, Final

import yaml
from playwright.sync_api import Locator, Page, Response, expect

SECOND: Final = 1000.0  # as Playwright counts
PATIENCE: Final = 120 * SECOND
RUN_SECONDS: Final = 300  # 10 on a machine that does nothing else


def finished(page: Page, events: str, status: str = "Success") -> None:
    """Wait until the run that the page is about to show is over, and show its events of one type."""
    page.wait_for_url("**/runs/*", timeout=RUN_SECONDS * SECOND)
    over = page.get_by_text(re.compile(r"^(Success|Failure|Canceled)$")).first
    over.wait_for(timeout=RUN_SECONDS * SECOND)
    assert status == over.inner_text()
    page.goto(f"{page.url}?logs=type:{events}")
    told = "Succeeded" if status == "Success" else "Errored"
    expect(page.get_by_text(re.compile(rf"^{told} \([1-9]"))).to_have_count(1, timeout=PATIENCE)
    expect(page.get_by_text(events, exact=True).last).to_be_visible(timeout=PATIENCE)


def launchpad(page: Page, job: str, op: str, location: str = "trinitylake", **config: Any) -> None:
    """Fill in a launchpad and wait until it found no mistake."""
    page.goto(f"/locations/{location}/jobs/{job}/playground")
    editor, wanted = page.locator(".CodeMirror"), {"ops": {op: {"config": config}}}
    expect(editor).to_contain_text(op)  # filled in with what the job needs
    with page.expect_response(lambda answer: _checks(answer, wanted)):
        editor.evaluate("(each, text) => each.CodeMirror.setValue(text)", yaml.safe_dump(wanted, sort_keys=False))
    expect(page.get_by_text("No errors")).to_be_visible()
    page.wait_for_timeout(SECOND / 2)  # it fades in


def _checks(answer: Response, wanted: dict[str, Any]) -> bool:
    if "PreviewConfigQuery" not in answer.url:
        return False
    sent = (answer.request.post_data_json or {}).get("variables", {}).get("runConfigData")
    return bool((yaml.safe_load(sent) if isinstance(sent, str) else sent) == wanted)


def picture(page: Page, link: Locator) -> Locator:
    """Open a picture in metadata: it is loaded, and all of it can be seen."""
    link.click()
    image = page.get_by_role("dialog").locator("img")
    expect(image).to_be_visible()
    assert (image.get_attribute("src") or "").startswith("data:image/png;base64,")
    assert 100 < image.evaluate("each => each.naturalWidth")
    box, window = image.bounding_box(), page.get_by_role("dialog").bounding_box()
    assert box is not None
    assert window is not None
    assert box["width"] < window["width"], "a part of the picture cannot be seen"
    return image


def row(page: Page, key: str) -> Locator:
    """Return the row of one piece of metadata."""
    return page.locator("tr").filter(has=page.get_by_role("cell", name=key, exact=True)).first
