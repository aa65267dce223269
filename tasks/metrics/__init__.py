"""Metrics of continual learning."""

from tasks.metrics.metrics import all_metrics
from tasks.metrics.score_matrix import ScoreMatrix

__all__ = ["ScoreMatrix", "all_metrics"]
