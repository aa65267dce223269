"""Continual learning: tasks, sequences of tasks, runs and metrics."""

from typing import TYPE_CHECKING

try:
    from mixer.utils.hidden_names import check_found
    from mixer.utils.lazy_imports import lazy_names
except ImportError as error:
    import mixer

    raise ImportError(
        f"tasks needs the package 'mixer' of adaptive-mixer, but Python finds {mixer}. Rename your own "
        "file; a package that pip installed belongs in another environment."
    ) from error

check_found("replay")

if TYPE_CHECKING:
    from tasks.continual.continual import ContinualRun
    from tasks.harness import lm_eval_score
    from tasks.metrics.metrics import Metric, all_metrics
    from tasks.metrics.score_matrix import ScoreMatrix
    from tasks.mlp import MLPConfig, MLPForImageClassification
    from tasks.score import Score, generated
    from tasks.task import Task, TaskSequence
    from tasks.text_domains import ByteBlocks, cpp_headers, english_docstrings, python_source
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "tasks.continual.continual": ["ContinualRun"],
            "tasks.harness": ["lm_eval_score"],
            "tasks.metrics.metrics": ["Metric", "all_metrics"],
            "tasks.metrics.score_matrix": ["ScoreMatrix"],
            "tasks.mlp": ["MLPConfig", "MLPForImageClassification"],
            "tasks.score": ["Score", "generated"],
            "tasks.task": ["Task", "TaskSequence"],
            "tasks.text_domains": ["ByteBlocks", "cpp_headers", "english_docstrings", "python_source"],
        },
    )

__all__ = [
    "ByteBlocks",
    "ContinualRun",
    "MLPConfig",
    "MLPForImageClassification",
    "Metric",
    "Score",
    "ScoreMatrix",
    "Task",
    "TaskSequence",
    "all_metrics",
    "cpp_headers",
    "english_docstrings",
    "generated",
    "lm_eval_score",
    "python_source",
]
