"""What runs have to have in common for their losses to be compared."""

from collections.abc import Callable, Sequence

import numpy as np

from mixer.analysis.fit.run import LossKind, Run
from mixer.policies.contract import Unit

_TOLERANCE = 0.05
_WAY_OUT = "Leave these runs out, or allow it with --allow-different-budgets."
_EVALUATE = (
    "Record runs that evaluate at their end (training.eval_strategy: steps, with eval_steps that divide the run), or "
    "take the losses of training (--loss train)."
)


def common_streams(runs: Sequence[Run]) -> tuple[str, ...]:
    """Gives the streams that runs have, which have to be the same.

    Args:
        runs: The runs.

    Returns:
        Names of the streams, in the order of the first run.

    Raises:
        ValueError: If runs differ in them.
    """
    streams = tuple(str(name) for name in runs[0].amounts.index)
    differing = [
        f"{run.name} has {sorted(run.amounts.index)}" for run in runs if set(run.amounts.index) != set(streams)
    ]
    if differing:
        raise ValueError(
            f"Runs must have the same streams by name: {runs[0].name} has {sorted(streams)}, but "
            f"{'; '.join(differing)}. Leave these runs out."
        )
    return streams


def check_budgets(runs: Sequence[Run], unit: Unit, loss: LossKind) -> None:
    """Refuses runs that are shorter or longer than the others, or whose losses were had earlier or later.

    Args:
        runs: The runs.
        unit: What budgets are counted in.
        loss: Which losses are fitted.

    Raises:
        ValueError: With their names and the way out.
    """
    short = [f"{run.name} ({run.progress:.0%})" for run in runs if run.progress < 1.0 - 1e-9]
    if short:
        raise ValueError(
            f"Runs must be done with their budget, but these stopped before: {', '.join(short)}. {_WAY_OUT}"
        )
    _refuse_outliers(runs, lambda run: run.budget, f"trained on as many {unit}")
    if loss == "evaluation":
        _refuse_outliers(runs, lambda run: run.evaluated_at, f"been evaluated last after as many {unit}")


def check_evaluated(runs: Sequence[Run], allow_early: bool) -> None:
    """Refuses runs whose last evaluation says little of what they came to, or nothing.

    Args:
        runs: The runs; those without an evaluation are left to others.
        allow_early: Whether evaluations may lie before the end. One before the first step is refused all the same.

    Raises:
        ValueError: With their names and the way out.
    """
    evaluated = [run for run in runs if len(run.losses)]
    untrained = [run.name for run in evaluated if run.evaluated_at == 0.0]
    if untrained:
        raise ValueError(
            f"The last evaluation of {', '.join(untrained)} was before the first step, and says nothing of the "
            f"mixture. {_EVALUATE}"
        )
    early = [
        f"{run.name} ({run.evaluated_at / run.budget:.0%})"
        for run in evaluated
        if run.evaluated_at < (1.0 - _TOLERANCE) * run.budget
    ]
    if early and not allow_early:
        raise ValueError(
            f"Runs must be evaluated at their end, but the last evaluation of these came before {1.0 - _TOLERANCE:.0%} "
            f"of what they trained on: {', '.join(early)}. {_EVALUATE} Or allow it with --allow-different-budgets."
        )


def _refuse_outliers(runs: Sequence[Run], of: Callable[[Run], float], words: str) -> None:
    usual = float(np.median([of(run) for run in runs]))
    differing = [f"{run.name} ({of(run):,.0f})" for run in runs if abs(of(run) - usual) > _TOLERANCE * usual]
    if differing:
        raise ValueError(
            f"Runs must have {words}, to {_TOLERANCE:.0%}; the median is {usual:,.0f}, but: {', '.join(differing)}. "
            f"{_WAY_OUT}"
        )
