"""Metrics of continual learning."""

from typing import TYPE_CHECKING

from mixer.utils.lazy_imports import lazy_names

if TYPE_CHECKING:
    from tasks.metrics.metrics import all_metrics
    from tasks.metrics.score_matrix import ScoreMatrix
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "tasks.metrics.metrics": ["all_metrics"],
            "tasks.metrics.score_matrix": ["ScoreMatrix"],
        },
    )

__all__ = ["ScoreMatrix", "all_metrics"]
