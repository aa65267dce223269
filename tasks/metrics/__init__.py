"""Metrics of continual learning."""

from tasks.metrics.metrics import all_metrics as all_metrics
from tasks.metrics.score_matrix import ScoreMatrix as ScoreMatrix
