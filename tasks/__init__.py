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
    from tasks.continual.continual import ContinualRun as ContinualRun
    from tasks.harness import lm_eval_score as lm_eval_score
    from tasks.metrics.metrics import Metric as Metric, all_metrics as all_metrics
    from tasks.metrics.score_matrix import ScoreMatrix as ScoreMatrix
    from tasks.mlp import MLPConfig as MLPConfig, MLPForImageClassification as MLPForImageClassification
    from tasks.score import Score as Score, generated as generated
    from tasks.task import Task as Task, TaskSequence as TaskSequence
    from tasks.text_domains import (
        ByteBlocks as ByteBlocks,
        cpp_headers as cpp_headers,
        english_docstrings as english_docstrings,
        python_source as python_source,
    )
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
