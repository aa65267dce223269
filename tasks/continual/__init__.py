"""Continual runs: training on one task after another, with an evaluation of all tasks after each."""

from typing import TYPE_CHECKING

from mixer.utils.lazy_imports import lazy_names

if TYPE_CHECKING:
    from tasks.continual.continual import ContinualRun
else:
    __getattr__, __dir__ = lazy_names(__name__, {"tasks.continual.continual": ["ContinualRun"]})

__all__ = ["ContinualRun"]
