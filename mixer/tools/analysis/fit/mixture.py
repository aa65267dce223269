"""The best fixed mixture by a fit to the mixtures and losses of runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from mixer.policies.contract import check_weights
from mixer.policies.objective import Objective
from mixer.tools.analysis.fit.best import best_mixture
from mixer.tools.analysis.fit.constraints import Constraints
from mixer.tools.analysis.fit.fit_target import FitTarget, target_of
from mixer.tools.analysis.fit.fitted import FittedMixture
from mixer.tools.analysis.fit.prediction import Prediction, predict_objective
from mixer.utils.arrays import BoolArray, FloatArray
from mixer.utils.errors import InvalidValueError, require

_LEAST_MIXTURES = 3
_SAME_MIXTURE = 1e-3
_DIVERGED = 10.0  # times the objective of the better runs
_DIVERGED_RANGES = 100.0  # times the distance between the best of them
Groups = NDArray[np.intp]


def fit_mixture(
    mixtures: ArrayLike,
    losses: ArrayLike,
    objective: str | Mapping[str, float] | Objective = "average",
    *,
    streams: Sequence[str] | None = None,
    loss_names: Sequence[str] | None = None,
    runs: Sequence[str] | None = None,
    groups: ArrayLike | None = None,
    sizes: ArrayLike | None = None,
    constraints: Constraints | None = None,
    greater_is_better: bool = False,
) -> FittedMixture:
    """Fits losses to mixtures and finds the mixture with the least objective among those that are allowed.

    Runs whose objective is ten times that of the better ones, and far from all of them, have diverged: they are left
    out, and named in the result's warnings.

    Data mixture as regression, after RegMix (Liu et al., 2407.01492). Each loss has a regression of its own, and the
    objective is computed from their predictions. Shares stay within the range of the runs' shares, and what is
    minimised is the prediction and two standard deviations: a fit knows little of mixtures far from every run.

    Args:
        mixtures: `[num_runs, num_streams]`: shares of the streams, or counts.
        losses: `[num_runs, num_losses]`: losses at the end of each run; NaN where a run has none. A run without a loss
            of the objective informs the fits of the others.
        objective: `"average"` or `"worst"` of the losses of streams, or weights of losses by name, also as
            `"NAME=weight,..."`; or the `mixer.Objective` of the runs.
        streams: Names of the streams.
        loss_names: Names of the losses; `None` for those of the streams.
        runs: Names of the runs, for messages.
        groups: `[num_runs]`: label of the mixture, since runs of one mixture (other seeds) are left out together;
            `None` groups shares that agree to a thousandth.
        sizes: `[num_runs]`: size of each run's model. Smaller ones inform the fit, the largest one decides.
        constraints: Bounds of the mixture.
        greater_is_better: Whether `losses` are metrics of which more is better.

    Raises:
        ValueError: If shapes, names or values do not fit, a bound cannot be kept, or there are fewer than 3 different
            mixtures (of the largest size).

    Example:
        >>> shares = [[0.1, 0.9], [0.3, 0.7], [0.5, 0.5], [0.7, 0.3], [0.9, 0.1]]
        >>> losses = [[(1 - a) ** 2, (1 - b) ** 2] for a, b in shares]
        >>> fitted = fit_mixture(shares, losses, streams=["math", "code"])
        >>> {name: round(share, 1) for name, share in fitted.weights.items()}
        {'math': 0.5, 'code': 0.5}
    """
    shares, values = _tables(mixtures, losses)
    streams = _names("streams", streams, shares.shape[1])
    runs = _names("runs", runs, len(shares))
    loss_names = _names("loss_names", streams if loss_names is None else loss_names, values.shape[1])
    for run, mixture in zip(runs, shares, strict=True):
        check_weights(mixture, streams, f"mixtures.{run}")
    shares /= shares.sum(axis=1, keepdims=True)
    target, constraints = target_of(objective, loss_names, streams), constraints or Constraints()
    region, sign = constraints.of(streams), -1.0 if greater_is_better else 1.0
    levels = np.zeros(len(shares)) if sizes is None else _sizes(sizes, len(shares))
    table = _Table(shares, sign * values, loss_names, _numbers(groups, shares), levels)
    diverged = table.diverged(target)
    table.losses[diverged] = np.nan
    table.check(target, streams, [run for run, is_out in zip(runs, diverged, strict=True) if is_out])
    unknown = [name for name in constraints.bounds if name not in loss_names]
    require(not unknown, "bounds", f"of some of the losses {loss_names}", unknown)
    prediction = table.predict(target)
    bounds = [
        (table.predict(target_of({name: 1.0}, loss_names, streams)), sign * bound)
        for name, bound in constraints.bounds.items()
    ]
    decides = (levels == levels.max()) & ~diverged
    best = best_mixture(prediction, region, shares[decides], bounds)
    return FittedMixture(streams, runs, shares, decides, diverged, target, prediction, region, best, greater_is_better)


@dataclass(frozen=True)
class _Table:
    """The runs to fit.

    Args:
        shares: `[num_runs, num_streams]`.
        losses: `[num_runs, num_losses]`, of which less is better; NaN where a run has none.
        names: Names of the losses.
        numbers: `[num_runs]`: number of the mixture.
        levels: `[num_runs]`: size of the model.
    """

    shares: FloatArray
    losses: FloatArray
    names: Sequence[str]
    numbers: Groups
    levels: FloatArray

    def _of(self, objective: FitTarget, level: float) -> tuple[FloatArray, FloatArray, Groups]:
        """Gives the runs of a size: their shares, the losses of an objective, and their mixtures."""
        rows, columns = self.levels == level, [self.names.index(name) for name in objective.weights]
        return self.shares[rows], self.losses[rows][:, columns], self.numbers[rows]

    def _by_mixture(self, objective: FitTarget, level: float) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Gives mean shares and losses of each mixture, and how many runs it has."""
        shares, losses, numbers = self._of(objective, level)
        table = pd.DataFrame(losses).groupby(numbers)
        points = pd.DataFrame(shares).groupby(numbers).mean().to_numpy()
        values, counts = table.mean().to_numpy(), np.asarray(table.size(), dtype=np.float64)
        order = np.argsort(objective(values), kind="stable")  # so that the order of the runs makes no difference
        return points[order], values[order], counts[order]

    def predict(self, objective: FitTarget) -> Prediction:
        """Fits one size after the other, each with the help of the last; mixtures left out check the largest."""
        found: Prediction | None = None
        *smaller, largest = np.unique(self.levels).tolist()
        for level in smaller:
            table = self._by_mixture(objective, level)
            if np.isfinite(table[1]).sum(axis=0).min() >= _LEAST_MIXTURES:
                found = predict_objective(objective, *table, found, is_checked=False)
        return predict_objective(objective, *self._by_mixture(objective, largest), found)

    def diverged(self, objective: FitTarget) -> BoolArray:
        """Finds runs `[num_runs]` whose objective is far above that of the best third."""
        losses = pd.DataFrame(self.losses[:, [self.names.index(name) for name in objective.weights]])
        values = objective(losses.fillna(losses.median()).to_numpy())  # a run may lack a loss
        if len(values) < _LEAST_MIXTURES:
            return np.zeros(len(values), dtype=bool)
        ordered = np.sort(values)
        good = ordered[max((len(ordered) - 1) // 3, 1)]
        distance = max((_DIVERGED - 1.0) * abs(good), _DIVERGED_RANGES * (good - ordered[0]))
        return np.asarray((values - good > distance) & (distance > 0.0))

    def check(self, objective: FitTarget, streams: Sequence[str], diverged: Sequence[str]) -> None:
        """Refuses runs of too few mixtures with the losses that count."""
        _, losses, numbers = self._of(objective, self.levels.max())
        whole = np.isfinite(losses).all(axis=1)
        count = len(np.unique(numbers[whole]))
        if count < _LEAST_MIXTURES:
            missing = int((~whole).sum())
            without = f", after {missing} without a finite loss of each of {[*objective.weights]}" if missing else ""
            without += f", without {', '.join(diverged)}, which diverged" if diverged else ""
            largest = "" if np.ptp(self.levels) == 0.0 else f" of the largest size, {self.levels.max():g}"
            raise InvalidValueError(
                f"losses: a fit needs runs of at least {_LEAST_MIXTURES} different mixtures{largest}, got "
                f"{int(whole.sum())} with {count}{without}: record other fixed mixtures of {list(streams)}, better "
                "twice as many.",
                option="losses",
                expected=f"runs of at least {_LEAST_MIXTURES} different mixtures",
                found=count,
            )


def group_runs(*mixtures: FloatArray) -> Groups:
    """Numbers the mixtures of runs; mixtures that agree to a thousandth are one, also by way of a third one.

    Args:
        *mixtures: `[num_runs, num_streams]`; runs have to agree in one of several (shares of samples,
            of tokens and of labels).

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
    is_table = shares.ndim == values.ndim == 2 and len(shares) == len(values) and shares.size > 0
    expected = "[num_runs, num_streams], and losses [num_runs, num_losses]"
    require(is_table, "mixtures", expected, (shares.shape, values.shape))
    return shares, np.where(np.isfinite(values), values, np.nan)


def _names(option: str, names: Sequence[str] | None, count: int) -> list[str]:
    """Gives the names, or `run 1`, `run 2`, ... where there are none."""
    if names is None:
        return [f"{option.removesuffix('s')} {number}" for number in range(1, count + 1)]
    require(len(names) == len(set(names)) == count, option, f"{count} different names", list(names))
    return list(names)


def _sizes(sizes: ArrayLike, count: int) -> FloatArray:
    levels = np.asarray(sizes, dtype=np.float64)
    is_whole = levels.shape == (count,) and bool(np.isfinite(levels).all())
    require(is_whole, "sizes", f"{count} numbers, one for each run", sizes)
    return levels


def _numbers(groups: ArrayLike | None, shares: FloatArray) -> Groups:
    numbers = group_runs(shares) if groups is None else pd.factorize(np.asarray(groups))[0]
    require(len(numbers) == len(shares), "groups", f"{len(shares)} labels, one for each run", groups)
    return numbers
