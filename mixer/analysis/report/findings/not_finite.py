"""Losses that were not finite."""

import numpy as np

from mixer.analysis.report.findings.finding import Finding, about_streams
from mixer.analysis.report.run import Run


def not_finite(run: Run) -> Finding | None:
    """Finds streams and evaluation sets with a loss that is infinite or no number.

    Args:
        run: The run.

    Returns:
        The finding, or `None`.
    """
    counts: dict[str, tuple[int, int, str]] = {}
    for name, rows in run.streams.items():
        bad = ~np.isfinite(rows["loss"]) & (rows["items"] > 0)  # without items there is no loss
        if bad.any():
            counts[name] = int(bad.sum()), int(rows["step"][bad].iloc[0]), "step"
    for name, rows in run.evaluations.items():
        bad = ~np.isfinite(rows["loss"])
        if bad.any() and name not in counts:
            counts[name] = int(bad.sum()), int(rows["step"][bad].iloc[0]), "evaluation"
    told = {
        name: f"that of {name} in {count:,} {what}{'s' if count > 1 else ''}, the first at step {step:,}"
        for name, (count, step, what) in sorted(counts.items(), key=lambda one: -one[1][0])
    }
    return about_streams("not finite", run.name, told, "A loss was not finite")
