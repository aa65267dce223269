"""Built-in data sources, tasks and sequences of tasks."""

from tasks.continual import ContinualRun
from tasks.explaining import explain
from tasks.metrics import Metric, all_metrics
from tasks.mlp import MLPConfig, MLPForImageClassification, mlp
from tasks.score import Score
from tasks.score_matrix import ScoreMatrix
from tasks.task import Task, TaskSequence
from tasks.text_domains import ByteBlocks, cpp_headers, english_docstrings, python_source

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
    "mlp",
    "python_source",
]
