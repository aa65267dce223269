"""One browser for all tests of a worker."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.full.browser.launching import find_browser, launched


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    pytest.importorskip("playwright", reason="the package `playwright` is not installed")
    if find_browser() is None:
        pytest.skip("there is no chromium on this machine")
    with launched() as browser:
        yield browser
