"""The system's own browser, without a window: what pages look like in it."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def find_browser() -> str | None:
    """Finds the browser.

    Returns:
        Its path; `None` if there is none.
    """
    return next((path for name in _NAMES if (path := shutil.which(name))), None)


@contextmanager
def launched() -> Iterator[Any]:
    """Starts the browser.

    Yields:
        The browser, of Playwright.

    Raises:
        ValueError: If there is none.
    """
    from playwright.sync_api import sync_playwright  # imported late: pages are made, and mostly tested, without it

    path = find_browser()
    if path is None:
        raise ValueError(f"There is no browser: install one of {', '.join(_NAMES)}.")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser
        finally:
            browser.close()
