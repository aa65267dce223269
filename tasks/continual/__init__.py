"""Continual runs: training on one task after another, with an evaluation of all tasks after each."""

from tasks.continual.continual import ContinualRun
from tasks.continual.seeds import run_seeds

__all__ = ["ContinualRun", "run_seeds"]
