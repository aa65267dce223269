"""What a fit reads of runs: what they trained on, and the losses that they came to."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np
import pandas as pd

from mixer.analysis.fit.comparable import check_budgets, check_evaluated, common_streams
from mixer.analysis.fit.recipes import check_recipes
from mixer.analysis.fit.replicates import Groups, group_runs
from mixer.analysis.fit.run import LossKind, Run, read_run
from mixer.policies.contract import Unit
from mixer.utils.arrays import FloatArray


@dataclass(frozen=True)
class RecordedRuns:
    """Mixtures and losses of runs.

    Args:
        runs: Names of the runs.
        streams: Names of the streams.
        loss_names: Names of the losses: streams, and other evaluation sets that every run has.
        mixtures: `[num_runs, num_streams]`: samples or tokens that each run trained on.
        losses: `[num_runs, num_losses]`; NaN where a run has none.
        groups: `[num_runs]`: a number for each mixture that runs were asked for.
        notes: What a reader of the fit should know of the runs, in sentences.
    """

    runs: tuple[str, ...]
    streams: tuple[str, ...]
    loss_names: tuple[str, ...]
    mixtures: FloatArray
    losses: FloatArray
    groups: Groups
    notes: tuple[str, ...]


def read_recorded_runs(
    folders: Sequence[Path],
    unit: Unit = "samples",
    loss: LossKind = "evaluation",
    allow_different_budgets: bool = False,
    allow_different_recipes: bool = False,
) -> RecordedRuns:
    """Reads the ledgers of finished runs.

    Args:
        folders: Output folders of trainers.
        unit: Whether a mixture is shares of samples or of tokens; budgets are compared in it too.
        loss: `"evaluation"` for the last evaluation, `"train"` for the mean over the last tenth of the steps.
        allow_different_budgets: Whether runs may differ in how long they were, in when they were evaluated last, or
            stop short of their budget.
        allow_different_recipes: Whether runs of `mixer train` may differ in more than their mixture.

    Returns:
        Their mixtures and losses.

    Raises:
        ValueError: If a folder holds no run or is given twice, runs differ in their streams, budgets or recipes, which
            are named, or were not evaluated at their end.
    """
    _check_choices(unit, loss)
    runs = _read_runs(folders, unit, loss)
    streams = common_streams(runs)
    if not allow_different_budgets:
        check_budgets(runs, unit, loss)
    if loss == "evaluation":
        check_evaluated(runs, allow_early=allow_different_budgets)
    compared = check_recipes({run.name: run.folder for run in runs}, allow_different_recipes)
    kept = _kept_losses(runs, streams)
    return RecordedRuns(
        tuple(run.name for run in runs),
        streams,
        tuple(kept),
        np.array([run.amounts.reindex(streams).to_numpy(dtype=np.float64) for run in runs]),
        np.array([run.losses.reindex(kept).to_numpy(dtype=np.float64) for run in runs]),
        _group(runs, streams),
        (*_notes(runs, streams, kept), *compared),
    )


def _check_choices(unit: str, loss: str) -> None:
    for option, given, known in (("unit", unit, get_args(Unit)), ("loss", loss, get_args(LossKind))):
        if given not in known:
            raise ValueError(f"{option} must be one of {list(known)}, got {given!r}.")


def _read_runs(folders: Sequence[Path], unit: Unit, loss: LossKind) -> list[Run]:
    resolved = [folder.resolve() for folder in folders]
    twice = [str(folder) for number, folder in enumerate(resolved) if folder in resolved[:number]]
    if twice:
        raise ValueError(f"{twice} are given twice: give each run once.")
    names = [folder.name for folder in resolved]
    return [
        read_run(folder, name if names.count(name) == 1 else str(folder), unit, loss)
        for folder, name in zip(resolved, names, strict=True)
    ]


def _kept_losses(runs: Sequence[Run], streams: Sequence[str]) -> list[str]:
    """Names the losses to fit: those of streams that any run has, and of other sets that every run has."""
    counts = pd.Series([name for run in runs for name in run.losses.index]).value_counts()
    others = [name for name in runs[0].losses.index if name not in streams and counts[name] == len(runs)]
    kept = [*(name for name in streams if name in counts.index), *others]
    if not kept:
        raise ValueError(
            "No stream was evaluated in any of the runs: give streams a validation set and evaluate at the end of the "
            "run, or take --loss train."
        )
    return kept


def _group(runs: Sequence[Run], streams: Sequence[str]) -> Groups:
    """Groups runs by the mixture that they were asked for: what they trained on is another for each seed."""
    asked = np.array([run.asked.loc[list(streams), ["samples", "tokens"]].to_numpy(dtype=np.float64) for run in runs])
    return group_runs(asked[..., 0], asked[..., 1])


def _notes(runs: Sequence[Run], streams: Sequence[str], kept: Sequence[str]) -> list[str]:
    notes = []
    unread = [name for name in streams if name not in kept]
    if unread:
        notes.append(f"No run has a loss of {unread}: the objective is taken without them.")
    unsteady = [run.name for run in runs if not run.is_steady]
    if unsteady:
        notes.append(
            f"The mixture changed over {', '.join(unsteady)}: the mean over the run is taken, though a fixed mixture "
            "like it may do otherwise, and runs of one policy count as several mixtures unless their means agree."
        )
    return notes
