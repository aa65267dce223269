"""Continual runs: training on one task after another, with an evaluation of all tasks after each."""

from tasks.continual.continual import ContinualRun

__all__ = ["ContinualRun"]
