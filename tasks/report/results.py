"""Files that a continual run writes beside its scores: metrics as JSON, and a page of scores."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from transformers.utils import logging

from mixer.utils.files import synced_later, write_json
from tasks.metrics.metrics import all_metrics
from tasks.metrics.score_matrix import ScoreMatrix
from tasks.report.seeds import SeedScores
from tasks.task_folders import METRICS_FILE

logger = logging.get_logger(__name__)


def write_metrics(matrix: ScoreMatrix, pace: pd.DataFrame, folder: Path) -> None:
    """Writes all metrics of the tasks that were trained so far; one that is not known is `null`.

    Args:
        matrix: The scores.
        pace: What `read_pace` gives.
        folder: The run's folder.
    """
    last = matrix.last_task
    metrics = {name: value if np.isfinite(value) else None for name, value in all_metrics(matrix, last).items()}
    content = {"metric": matrix.metric, "after": last, "metrics": metrics, "pace": pace.to_dict("index")}
    with synced_later():  # they follow from the scores
        write_json(folder / METRICS_FILE, content)


def write_page(scores: Mapping[str, ScoreMatrix | SeedScores], path: Path) -> Path | None:
    """Writes a page of scores, if its libraries are there: they are an extra, and training does without.

    Args:
        scores: The scores of runs, by name.
        path: Where the page goes.

    Returns:
        The page's path; `None` if a library is missing, which is then said.
    """
    try:
        from tasks.report.kind import write_scores
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in ("plotly", "jinja2"):
            raise
        logger.warning(
            "No page of the scores was written: it needs %s, which is not installed: pip install "
            "'adaptive-mixer[report]'.",
            error.name,
        )
        return None
    return write_scores(scores, path)
