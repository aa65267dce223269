"""What a tracker can be told."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mixer.ledger.trackers.description import RunText


class Tracker(ABC):
    """A tracker beside the Trainer's own callback for it, which opens and closes its runs.

    Args:
        callback: The Trainer's callback.
    """

    def __init__(self, callback: Any):
        self._callback = callback

    @property
    @abstractmethod
    def is_open(self) -> bool:
        """Whether it has a run that can be told something."""

    @abstractmethod
    def begin(self, run: RunText) -> None:
        """Takes in what the run is.

        Args:
            run: The run.
        """

    @abstractmethod
    def log(self, entries: Mapping[str, float], step: int) -> None:
        """Takes in a log entry, just before the Trainer's own where a run is open.

        Args:
            entries: Values by name, with their group.
            step: Number of steps done.
        """

    @abstractmethod
    def end(self, summary: Callable[[], str], page: Callable[[], Path | None]) -> None:
        """Takes in what came out.

        Args:
            summary: Gives a table in Markdown.
            page: Gives the path of the page about the run, which is gone afterwards; `None` where none can be made.
        """
