"""Checks that the losses of runs can be compared: streams, budgets and evaluations."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from mixer.policies.contract import Unit

_TOLERANCE = 0.05
_WAY_OUT = "Leave these runs out, or allow it with --allow-different-budgets."
_EVALUATE = (
    "Record runs that evaluate at their end (training.eval_strategy: steps, with eval_steps that divide the run), or "
    "take the losses of training (--loss train)."
)


@dataclass(frozen=True)
class Run:
    """The record of a run.

    Args:
        name: Its name in messages.
        folder: Its output folder.
        amounts: Samples or tokens that it trained on, by stream.
        losses: Losses by name; NaN where one is not finite.
        budget: Samples or tokens in all.
        evaluated_at: Samples or tokens before the evaluation of the losses.
        progress: Fraction of its budget that is done.
        requested: Mean shares that the policy requested, a row for each stream, in columns for samples and tokens.
        is_steady: Whether its mixture stayed the same, in samples or in tokens.
    """

    name: str
    folder: Path
    amounts: pd.Series
    losses: pd.Series
    budget: float
    evaluated_at: float
    progress: float
    requested: pd.DataFrame
    is_steady: bool


def common_streams(runs: Sequence[Run]) -> tuple[str, ...]:
    """Gives the names of the streams, in the order of the first run.

    Raises:
        ValueError: If runs differ in them.
    """
    streams = tuple(str(name) for name in runs[0].amounts.index)
    others = [f"{run.name} has {sorted(run.amounts.index)}" for run in runs if set(run.amounts.index) != set(streams)]
    if others:
        raise ValueError(
            f"Runs must have the same streams by name: {runs[0].name} has {sorted(streams)}, but {'; '.join(others)}. "
            "Leave these runs out."
        )
    return streams


def check_budgets(runs: Sequence[Run], unit: Unit) -> None:
    """Refuses runs that stopped before their budget or differ in length.

    Raises:
        ValueError: With their names and the way out.
    """
    short = [f"{run.name} ({run.progress:.0%})" for run in runs if run.progress < 1.0 - 1e-9]
    if short:
        raise ValueError(f"Runs must complete their budget, but these stopped early: {', '.join(short)}. {_WAY_OUT}")
    usual = float(np.median([run.budget for run in runs]))
    others = [f"{run.name} ({run.budget:,.0f})" for run in runs if abs(run.budget - usual) > _TOLERANCE * usual]
    if others:
        raise ValueError(
            f"Runs must have trained on as many {unit}, to {_TOLERANCE:.0%}; the median is {usual:,.0f}, but: "
            f"{', '.join(others)}. {_WAY_OUT}"
        )


def check_evaluated(runs: Sequence[Run], allow_early: bool) -> None:
    """Refuses runs with a last evaluation before the last 5 % of the run.

    Args:
        runs: The runs. Those without an evaluation pass.
        allow_early: Whether only an evaluation before the first step is refused.

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
    parts = {run.name: run.evaluated_at / run.budget for run in evaluated}
    early = [f"{name} ({part:.0%})" for name, part in parts.items() if part < 1.0 - _TOLERANCE]
    if early and not allow_early:
        raise ValueError(
            f"Runs must be evaluated at their end, but the last evaluation of these came before {1.0 - _TOLERANCE:.0%} "
            f"of the run: {', '.join(early)}. {_EVALUATE} Or allow it with --allow-different-budgets."
        )
