"""Starts Chromium for tests of pages, and checks that the pages under test log nothing and raise no errors."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.patience import PATIENCE_S
from tests.servers import missing

CHROMIUM: Final = Path("/usr/bin/chromium")
PATIENCE_MS: Final = PATIENCE_S * 1000
SCRIPTS: Final = Path(__file__).parent / "drift"
CONTRAST: Final = (SCRIPTS / "contrast.js").read_text("utf-8")
"""A script that measures the contrast of a page's texts. Returns the texts that have too little contrast, and how many
texts it has measured.
"""

OUTSIDE: Final = (SCRIPTS / "outside.js").read_text("utf-8")
"""A script that returns the elements of a page that are partly outside the screen."""

Scheme = Literal["light", "dark"]


@contextmanager
def chromium() -> Iterator[Browser]:
    """Yields a browser. If Chromium is missing, skips the test, or fails it if CI=true.

    While the browser runs, an event loop runs in this thread. During that time, no other test can use `asyncio.run` in
    the thread. So fixtures close the browser at the end of their module.
    """
    if not CHROMIUM.exists():
        missing("Chromium is missing: apt-get install chromium")
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"], timeout=PATIENCE_MS)


@contextmanager
def watched_page(browser: Browser) -> Iterator[tuple[Page, list[str]]]:
    """Yields a new page, and a list of all addresses that the page requests.

    At the end, closes the page and checks that it logged nothing, raised no error and opened no dialog.
    """
    page = browser.new_page()
    page.set_default_timeout(PATIENCE_MS)
    requested: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: complaints.append(dialog.message))
    yield page, requested
    page.close()
    assert complaints == []
