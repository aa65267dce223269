"""The best fixed mixture by a fit to the mixtures and losses of runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from mixer.analysis.fit.checks import check_groups, check_losses, check_names, check_shape, normalised
from mixer.analysis.fit.fitted import FittedMixture
from mixer.analysis.fit.hull import search
from mixer.analysis.fit.left_out import LeftOut, fit_constant, leave_out
from mixer.analysis.fit.objective import AVERAGE, Objective, make_objective
from mixer.analysis.fit.regressors import AUTO, REGRESSORS, regressors_to_try
from mixer.analysis.fit.replicates import Groups
from mixer.policies.shared.ranges import check_count, check_range
from mixer.utils.arrays import FloatArray


def fit_mixture(
    mixtures: ArrayLike,
    losses: ArrayLike,
    objective: str | Mapping[str, float] = AVERAGE,
    *,
    streams: Sequence[str] | None = None,
    loss_names: Sequence[str] | None = None,
    runs: Sequence[str] | None = None,
    groups: ArrayLike | None = None,
    regressor: str = AUTO,
    least_share: float = 0.0,
    num_candidates: int = 100_000,
    num_best: int = 100,
    seed: int = 0,
) -> FittedMixture:
    """Fits losses to mixtures and finds the mixture with the least objective among those that the runs cover.

    Data mixture as regression, RegMix (Liu et al., 2407.01492): train on several mixtures, fit a regression, simulate
    many mixtures, take the average of those predicted best. Other than there: every loss has a regression of its own,
    and the objective is taken of what they predict; the regression is, if not named, the one of those that suit few
    runs with the least error on runs left out; candidates come from the convex hull of the runs' mixtures, since
    a fit to a few runs knows nothing outside of it.

    Args:
        mixtures: `[num_runs, num_streams]`: shares of what each run trained on, or counts.
        losses: `[num_runs, num_losses]`: losses at the end of each run; those of the streams unless `loss_names` are
            given.
        objective: What is made small: `"average"` or `"worst"` of the losses (of those of streams), or weights of
            losses by name, also written `"NAME=weight,..."`.
        streams: Names of the streams.
        loss_names: Names of the losses; `None` for those of the streams.
        runs: Names of the runs, for messages.
        groups: `[num_runs]`: a number for each mixture, whose runs (as of other seeds) are left out together; `None`
            for runs whose shares are the same to a thousandth.
        regressor: `"linear"`, `"quadratic"`, `"exponential"`, `"gaussian-process"` (these four: `"auto"`) or
            `"lightgbm"`.
        least_share: Least share of every stream.
        num_candidates: How many mixtures are tried.
        num_best: How many of the best are averaged.
        seed: Seed of the draws.

    Returns:
        The mixture and what is known of it.

    Raises:
        ValueError: If an argument is outside its range, shapes and names do not fit, losses that count are not finite,
            there are fewer than 3 different mixtures, or a library is missing.

    Example:
        >>> shares = [[0.1, 0.9], [0.3, 0.7], [0.5, 0.5], [0.7, 0.3], [0.9, 0.1]]
        >>> losses = [[(1 - a) ** 2, (1 - b) ** 2] for a, b in shares]
        >>> fitted = fit_mixture(shares, losses, streams=["math", "code"], regressor="quadratic")
        >>> {name: round(share, 2) for name, share in fitted.weights.items()}
        {'math': 0.5, 'code': 0.5}
    """
    given = _checked(mixtures, losses, objective, streams, loss_names, runs, groups)
    _check_numbers(least_share, len(given.streams), num_candidates, num_best)
    together = given.run_on_all
    # In the order of what they reached, so that the order in which runs are given makes no difference.
    order = np.argsort(together(given.losses), kind="stable")
    shares, values, same = given.shares[order], given.losses[order], given.groups[order]
    names = regressors_to_try(regressor, len(given.streams))
    tried = {name: leave_out(shares, values, same, REGRESSORS[name], together) for name in names}
    chosen = min(tried, key=lambda name: tried[name].error)
    fit = REGRESSORS[chosen](shares, values, same)
    best = search(shares, lambda points: together(fit(points)), least_share, num_candidates, num_best, seed)
    expected, back = fit(best[None]), np.argsort(order, kind="stable")
    return FittedMixture(
        streams=given.streams,
        shares=best,
        expected_loss=float(together(expected)[0]),
        expected_losses=dict(zip(given.loss_names, expected[0].tolist(), strict=True)),
        objective=given.objective,
        regressor=chosen,
        errors={name: left_out.error for name, left_out in tried.items()},
        left_out=LeftOut(tried[chosen].predicted[back], tried[chosen].seen[back]),
        constant_error=leave_out(shares, values, same, fit_constant, together).error,
        runs=given.runs,
        mixtures=given.shares,
        predict=lambda points: together(fit(points)),
    )


@dataclass(frozen=True)
class _Given:
    """What a fit is made of, checked.

    Args:
        streams: Names of the streams.
        runs: Names of the runs.
        loss_names: Names of the losses that count.
        shares: `[num_runs, num_streams]` on the simplex.
        losses: `[num_runs, num_counting]`.
        groups: `[num_runs]`: a number for each mixture.
        objective: The objective, of all losses.
    """

    streams: tuple[str, ...]
    runs: tuple[str, ...]
    loss_names: tuple[str, ...]
    shares: FloatArray
    losses: FloatArray
    groups: Groups
    objective: Objective

    @property
    def run_on_all(self) -> Objective:
        """The objective, of the losses that count."""
        objective = self.objective
        return Objective(objective.name, objective.weights[objective.counts], objective.is_worst)


def _checked(
    mixtures: ArrayLike,
    losses: ArrayLike,
    objective: str | Mapping[str, float],
    streams: Sequence[str] | None,
    loss_names: Sequence[str] | None,
    runs: Sequence[str] | None,
    groups: ArrayLike | None,
) -> _Given:
    shares, values = check_shape(mixtures, "mixtures", "num_streams"), check_shape(losses, "losses", "num_losses")
    if len(shares) != len(values):
        raise ValueError(f"mixtures are of {len(shares)} runs, but losses of {len(values)}: give both of every run.")
    stream_names = check_names(streams, shares.shape[1], "streams", "stream")
    names = check_names(stream_names if loss_names is None else loss_names, values.shape[1], "loss_names", "loss")
    run_names = check_names(runs, len(shares), "runs", "run")
    target = make_objective(objective, names, _of_streams(names, stream_names))
    check_losses(values, names, run_names, target)
    counting = tuple(name for name, counts in zip(names, target.counts, strict=True) if counts)
    shares = normalised(shares, stream_names, run_names)
    same = check_groups(groups, shares, stream_names)
    return _Given(stream_names, run_names, counting, shares, values[:, target.counts], same, target)


def _of_streams(names: Sequence[str], streams: Sequence[str]) -> list[str]:
    """Gives the losses of streams, or all where none is of a stream."""
    return [name for name in names if name in streams] or list(names)


def _check_numbers(least_share: float, num_streams: int, num_candidates: int, num_best: int) -> None:
    check_range("least_share", least_share, 0.0, 1.0 / num_streams, "it is at most one over the number of streams")
    check_count("num_candidates", num_candidates, 1, "100,000 are tried by default")
    check_count("num_best", num_best, 1, "1 takes the best alone, 100 is the default")
