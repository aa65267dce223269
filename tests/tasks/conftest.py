"""Continual runs without the page of scores at their end, whose plots take longer than a short run."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="package", autouse=True)
def _no_pages() -> Iterator[None]:
    """Pages are written in `report`, by seeds, and by the commands."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tasks.continual.continual.write_page", lambda *_: None)
        yield
