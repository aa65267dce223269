"""The page of a continual run's scores, where its libraries are there."""

from collections.abc import Mapping
from pathlib import Path

from transformers.utils import logging

from tasks.metrics.score_matrix import ScoreMatrix
from tasks.metrics.seed_scores import SeedScores

logger = logging.get_logger(__name__)


def write_page(scores: Mapping[str, ScoreMatrix | SeedScores], path: Path) -> Path | None:
    """Writes a page of scores, if its libraries are there: they are an extra, and training does without.

    Args:
        scores: The scores of runs, by name.
        path: Where the page goes.

    Returns:
        The page's path; `None` if a library is missing, which is then said.
    """
    try:
        from tasks.tools.report.kind import write_scores
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
