"""The best fixed mixture by a fit to the mixtures and losses of runs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from mixer.analysis.fit.fitted import FittedMixture, Objective
from mixer.analysis.fit.regressors import REGRESSORS, Groups
from mixer.policies.contract import check_weights
from mixer.policies.objective import Objective as Declared
from mixer.utils.arrays import FloatArray
from mixer.utils.ranges import check_range

AUTO = "auto"
_LEAST_MIXTURES = 3
_SAME_MIXTURE = 1e-3


def make_objective(
    objective: str | Mapping[str, float] | Declared, names: Sequence[str], streams: Sequence[str]
) -> Objective:
    """Makes an objective of its name, weights or declaration; see `fit_mixture`."""
    if isinstance(objective, Declared):
        made = make_objective(objective.importance or "average", names, streams)
        return replace(made, name="the declared objective", is_worst=objective.kind == "worst")
    if isinstance(objective, str) and objective in ("average", "worst"):
        members = [name for name in names if name in streams] or names
        return Objective(objective, dict.fromkeys(members, 1.0 / len(members)), is_worst=objective == "worst")
    by_name = _parse(objective) if isinstance(objective, str) else dict(objective)
    unknown = [name for name in by_name if name not in names]
    if unknown:
        raise ValueError(f"objective: there is no loss of {unknown}; there are losses of {list(names)}.")
    check_weights(np.array([*by_name.values()], dtype=np.float64), list(by_name), "objective")
    total = sum(by_name.values())
    text = ", ".join(f"{name}={weight:g}" for name, weight in by_name.items())
    return Objective(text, {name: weight / total for name, weight in by_name.items() if weight > 0.0})


def fit_mixture(
    mixtures: ArrayLike,
    losses: ArrayLike,
    objective: str | Mapping[str, float] | Declared = "average",
    *,
    streams: Sequence[str] | None = None,
    loss_names: Sequence[str] | None = None,
    runs: Sequence[str] | None = None,
    groups: ArrayLike | None = None,
    regressor: str = AUTO,
    least_share: float = 0.0,
) -> FittedMixture:
    """Fits losses to mixtures and finds the mixture with the least objective in the convex hull of the runs' mixtures.

    Data mixture as regression, after RegMix (Liu et al., 2407.01492) with the exponential law of Data Mixing Laws (Ye
    et al., 2403.16952). Each loss has a regression of its own, and the objective is computed from their predictions.

    Args:
        mixtures: `[num_runs, num_streams]`: shares of the streams, or counts.
        losses: `[num_runs, num_losses]`: losses at the end of each run.
        objective: `"average"` or `"worst"` of the losses of streams, or weights of losses by name, also as
            `"NAME=weight,..."`; or the `mixer.Objective` of the runs.
        streams: Names of the streams.
        loss_names: Names of the losses; `None` for those of the streams.
        runs: Names of the runs, for messages.
        groups: `[num_runs]`: label of the mixture, since runs of one mixture (other seeds) are left out together;
            `None` groups shares that agree to a thousandth.
        regressor: `"exponential"`, `"gaussian-process"`, or `"auto"` for the one with the least error on runs left out.
        least_share: Least share of every stream.

    Raises:
        ValueError: If shapes, names or values do not fit, losses that count are not finite, there are fewer than 3
            different mixtures, or a library is missing.

    Example:
        >>> shares = [[0.1, 0.9], [0.3, 0.7], [0.5, 0.5], [0.7, 0.3], [0.9, 0.1]]
        >>> losses = [[(1 - a) ** 2, (1 - b) ** 2] for a, b in shares]
        >>> fitted = fit_mixture(shares, losses, streams=["math", "code"])
        >>> {name: round(share, 2) for name, share in fitted.weights.items()}
        {'math': 0.5, 'code': 0.5}
    """
    shares, values = _tables(mixtures, losses)
    streams, runs = _names("streams", streams, shares.shape[1]), _names("runs", runs, len(shares))
    loss_names = _names("loss_names", streams if loss_names is None else loss_names, values.shape[1])
    for run, mixture in zip(runs, shares, strict=True):
        check_weights(mixture, streams, f"mixtures: {run}")
    shares /= shares.sum(axis=1, keepdims=True)
    target = make_objective(objective, loss_names, streams)
    values = values[:, [loss_names.index(name) for name in target.weights]]
    _check_losses(values, [*target.weights], runs)
    numbers = _numbers(groups, shares, streams)
    check_range("least_share", least_share, 0.0, 1.0 / len(streams), "it is at most one over the number of streams")
    if regressor not in (AUTO, *REGRESSORS):
        raise ValueError(f"regressor must be {AUTO!r} or one of {list(REGRESSORS)}, got {regressor!r}.")
    regressors = list(REGRESSORS) if regressor == AUTO else [regressor]
    return FittedMixture(streams, runs, shares, values, numbers, target, regressors, least_share)


def _parse(text: str) -> dict[str, float]:
    weights: dict[str, float] = {}
    for part in text.split(","):
        name, _, number = (piece.strip() for piece in part.rpartition("="))
        try:
            weight = float(number)
        except ValueError:
            name = ""
        if not name:
            raise ValueError(
                f"objective must be 'average', 'worst' or 'NAME=weight,...', got {text!r}: {part!r} is no NAME=weight."
            )
        if name in weights:
            raise ValueError(f"objective: {name!r} is given twice in {text!r}; give each loss one weight.")
        weights[name] = weight
    return weights


def group_runs(*mixtures: FloatArray) -> Groups:
    """Numbers the mixtures of runs; mixtures that agree to a thousandth are one, also by way of a third one.

    Args:
        *mixtures: `[num_runs, num_streams]`; runs have to agree in one of several (shares of samples and of tokens).

    Returns:
        `[num_runs]`: number of the mixture, in order of first appearance.
    """
    groups = np.arange(len(mixtures[0]))
    for run in range(len(groups)):
        is_same = np.any([np.abs(shares - shares[run]).max(axis=1) <= _SAME_MIXTURE for shares in mixtures], axis=0)
        groups[np.isin(groups, groups[is_same])] = groups[is_same].min()
    return pd.factorize(groups)[0]


def _tables(mixtures: ArrayLike, losses: ArrayLike) -> tuple[FloatArray, FloatArray]:
    shares, values = np.array(mixtures, dtype=np.float64), np.asarray(losses, dtype=np.float64)
    if shares.ndim != 2 or values.ndim != 2 or len(shares) != len(values) or not shares.size:
        raise ValueError(
            "mixtures must have the shape [num_runs, num_streams] and losses [num_runs, num_losses], got "
            f"{list(shares.shape)} and {list(values.shape)}."
        )
    return shares, values


def _names(option: str, names: Sequence[str] | None, count: int) -> list[str]:
    """Gives the names, or `run 1`, `run 2`, ... where there are none."""
    if names is None:
        return [f"{option.removesuffix('s')} {number}" for number in range(1, count + 1)]
    if len(names) != count or len(set(names)) != count:
        raise ValueError(f"{option}: expected {count} different names, got {len(names)}: {list(names)}.")
    return list(names)


def _check_losses(losses: FloatArray, names: Sequence[str], runs: Sequence[str]) -> None:
    bad = [f"{runs[run]} ({names[loss]}: {losses[run, loss]:g})" for run, loss in np.argwhere(~np.isfinite(losses))]
    if bad:
        raise ValueError(
            f"losses: every run needs a finite loss of each of {list(names)}, but these have none: {'; '.join(bad)}. "
            "Leave these runs out, or take an objective of other losses."
        )


def _numbers(groups: ArrayLike | None, shares: FloatArray, streams: Sequence[str]) -> Groups:
    numbers = group_runs(shares) if groups is None else pd.factorize(np.asarray(groups))[0]
    if len(numbers) != len(shares):
        raise ValueError(f"groups: expected {len(shares)} labels, one for each run, got {groups!r}.")
    count = numbers.max() + 1
    if count < _LEAST_MIXTURES:
        raise ValueError(
            f"A fit needs runs of at least {_LEAST_MIXTURES} different mixtures, got {len(shares)} with {count}: "
            f"record other fixed mixtures of {list(streams)}, at least one more than streams, better twice as many."
        )
    return numbers
