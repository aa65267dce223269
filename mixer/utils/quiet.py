"""Runs whose warnings would repeat those of others."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_warnings(is_quiet: bool) -> Iterator[None]:
    """Leaves out the warnings of a run whose like has shown them before.

    Args:
        is_quiet: Whether one has.
    """
    level = logging.root.manager.disable
    logging.disable(logging.WARNING if is_quiet else level)
    try:
        yield
    finally:
        logging.disable(level)
