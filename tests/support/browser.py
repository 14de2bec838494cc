"""Chromium without a screen, driven by Playwright. ``scripts/chromium.sh`` finds or installs it."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from PIL import Image
from playwright.sync_api import Browser, FloatRect, Page, Playwright, ViewportSize, sync_playwright

NAMES: Final = ("chromium", "google-chrome", "google-chrome-stable")
WINDOW: Final = ViewportSize(width=1280, height=800)
_FLAGS: Final = (
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--no-first-run",
)


class NoBrowser(Exception):
    """There is no Chromium on this machine."""


def chromium(playwright: Playwright) -> str:
    """Return the path of a Chromium: the one that ``CHROMIUM`` names, else the system's, else Playwright's own.

    Raises:
        NoBrowser: there is none.
    """
    named = os.environ.get("CHROMIUM")
    for name in (named,) if named else NAMES:
        path = shutil.which(name)
        if path is not None:
            return path
    own = Path(playwright.chromium.executable_path)
    if named or not own.is_file():
        raise NoBrowser("no Chromium: scripts/chromium.sh installs one, or tells how to get it")
    return str(own)


@contextmanager
def browser() -> Iterator[Browser]:
    """Lend a browser. Raises ``NoBrowser``."""
    sandboxed = os.geteuid() != 0  # for root it does not start
    with sync_playwright() as playwright:
        path = chromium(playwright)
        running = playwright.chromium.launch(executable_path=path, args=list(_FLAGS), chromium_sandbox=sandboxed)
        try:
            yield running
        finally:
            running.close()


def screenshot(page: Page, path: Path, clip: FloatRect | None = None) -> None:
    """Save what a page shows, or a part of it, as a small PNG."""
    page.mouse.move(0, 0)  # nothing is pointed at
    page.evaluate("document.fonts.ready.then(() => null)")
    with Image.open(io.BytesIO(page.screenshot(animations="disabled", clip=clip))) as taken:
        taken.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)


def main() -> None:
    """Print the path of the browser, for ``scripts/chromium.sh``."""
    with sync_playwright() as playwright:
        print(chromium(playwright))


if __name__ == "__main__":
    main()
