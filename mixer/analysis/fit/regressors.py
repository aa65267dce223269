"""Regressions of losses on mixtures, by name."""

from mixer.analysis.fit.boosted_trees import fit_boosted_trees
from mixer.analysis.fit.gaussian_process import fit_gaussian_process
from mixer.analysis.fit.laws import MOST_STREAMS_QUADRATIC, Regressor, fit_exponential, fit_linear, fit_quadratic

AUTO = "auto"

REGRESSORS: dict[str, Regressor] = {
    "linear": fit_linear,
    "quadratic": fit_quadratic,
    "exponential": fit_exponential,
    "gaussian-process": fit_gaussian_process,
    "lightgbm": fit_boosted_trees,
}


def regressors_to_try(regressor: str, num_streams: int) -> list[str]:
    """Lists the regressions from which the one with the least error is taken.

    Args:
        regressor: The one asked for, or `"auto"` for those that suit a few runs.
        num_streams: Number of streams.

    Returns:
        Names of `REGRESSORS`.

    Raises:
        ValueError: If there is none of that name.
    """
    if regressor == AUTO:
        few = ["linear", "quadratic", "exponential", "gaussian-process"]
        return [name for name in few if name != "quadratic" or num_streams <= MOST_STREAMS_QUADRATIC]
    if regressor not in REGRESSORS:
        raise ValueError(f"regressor must be {AUTO!r} or one of {list(REGRESSORS)}, got {regressor!r}.")
    return [regressor]
