"""How courses of losses end: with the last loss, or with one that is no number."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from mixer.utils.words import between, shortened


def not_finite_since(rows: pd.DataFrame) -> int | None:
    """Says since when losses are infinite or no number.

    Args:
        rows: Steps of a stream, of which those without items have no loss, or evaluations.

    Returns:
        Step of the first loss after the last finite one; `None` if the last loss is finite, or there is none.
    """
    there = rows[rows["items"] > 0] if "items" in rows else rows
    finite = np.isfinite(there["loss"].to_numpy(dtype=np.float64))
    if not len(finite) or finite[-1]:
        return None
    return int(there["step"].iloc[int(finite.nonzero()[0].max(initial=-1)) + 1])


def last_in_words(rows_by_name: Mapping[str, pd.DataFrame], values: Mapping[str, pd.Series], unit: str) -> str:
    """Says how courses of losses end.

    Args:
        rows_by_name: Of each its steps or evaluations; see `not_finite_since`.
        values: Of each its course, smoothed or not, whose last number is told.
        unit: What a row is, as in "step 120".

    Returns:
        The words, as in "between 1.200 (a) and 1.400 (b), not finite since step 120 (c)"; empty where there is no
        loss.
    """
    since = {name: not_finite_since(rows) for name, rows in rows_by_name.items()}
    last = {
        name: float(course.dropna().iloc[-1])
        for name, course in values.items()
        if since[name] is None and course.notna().any()
    }
    bad = [f"not finite since {unit} {step:,} ({name})" for name, step in since.items() if step is not None]
    return ", ".join([*([between(last, "{:.3f}".format)] if last else []), *shortened(bad)])
