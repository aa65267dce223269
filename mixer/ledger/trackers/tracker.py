"""Interface of experiment trackers."""

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
        """Whether it has an open run."""

    @abstractmethod
    def begin(self, run: RunText) -> None:
        """Records the description of the run."""

    @abstractmethod
    def log(self, entries: Mapping[str, float], step: int) -> None:
        """Records a log entry, just before the Trainer's own if a run is open.

        Args:
            entries: Values by name, with their group.
            step: Number of steps done.
        """

    @abstractmethod
    def end(self, summary: Callable[[], str], page: Callable[[], Path | None]) -> None:
        """Records the results.

        Args:
            summary: Returns a table in Markdown.
            page: Returns the path of the report page, which is deleted afterwards; `None` if there is none.
        """
