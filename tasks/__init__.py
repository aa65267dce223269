"""Built-in data sources, tasks and sequences of tasks."""

from typing import TYPE_CHECKING

from mixer.lazy_names import lazy_names
from tasks.explaining import explain
from tasks.metrics import Metric, all_metrics
from tasks.score_matrix import ScoreMatrix

if TYPE_CHECKING:
    from tasks.continual import ContinualRun
    from tasks.mlp import MLPConfig, MLPForImageClassification
    from tasks.score import Score
    from tasks.task import Task, TaskSequence
    from tasks.text_domains import ByteBlocks, cpp_headers, english_docstrings, python_source
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "tasks.continual": ["ContinualRun"],
            "tasks.mlp": ["MLPConfig", "MLPForImageClassification"],
            "tasks.score": ["Score"],
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
    "explain",
    "python_source",
]
