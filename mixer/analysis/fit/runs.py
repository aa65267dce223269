"""Mixtures and losses of recorded runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import pandas as pd

from mixer.analysis.fit.comparable import Run, check_budgets, check_evaluated, common_streams
from mixer.analysis.fit.mixture import group_runs
from mixer.analysis.fit.recipes import check_recipes
from mixer.analysis.fit.regressors import Groups
from mixer.ledger.ledger import Ledger
from mixer.policies.contract import Unit
from mixer.utils.arrays import FloatArray

LossKind = Literal["evaluation", "train"]

_LAST_PART = 0.1
_STEADY = 0.02


@dataclass(frozen=True)
class RecordedRuns:
    """Mixtures and losses of runs.

    Args:
        runs: Names of the runs.
        streams: Names of the streams.
        loss_names: Names of the losses: streams, and other evaluation sets that every run has.
        mixtures: `[num_runs, num_streams]`: samples or tokens that each run trained on.
        losses: `[num_runs, num_losses]`; NaN where a run has none.
        groups: `[num_runs]`: number of the mixture that the policy requested.
        notes: Remarks on the runs for readers of the fit, in sentences.
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
        unit: Unit of the mixtures and budgets.
        loss: `"evaluation"` for the last evaluation, `"train"` for the mean over the last tenth of the steps.
        allow_different_budgets: Whether runs may differ in their length and last evaluation, or stop early.
        allow_different_recipes: Whether recipes of `mixer train` may differ in more than the mixture.

    Raises:
        ValueError: If a folder holds no run or appears twice, runs differ in streams, budgets or recipes, or were not
            evaluated at their end.
    """
    for option, value, known in (("unit", unit, get_args(Unit)), ("loss", loss, get_args(LossKind))):
        if value not in known:
            raise ValueError(f"{option} must be one of {list(known)}, got {value!r}.")
    runs = [read_run(folder, name, unit, loss) for name, folder in _by_name(folders).items()]
    streams = common_streams(runs)
    if not allow_different_budgets:
        check_budgets(runs, unit)
    if loss == "evaluation":
        check_evaluated(runs, allow_early=allow_different_budgets)
    recipe_notes = check_recipes({run.name: run.folder for run in runs}, allow_different_recipes)
    loss_names = _common_losses(runs, streams)
    requested = [np.array([run.requested.loc[list(streams), name] for run in runs]) for name in ("samples", "tokens")]
    return RecordedRuns(
        tuple(run.name for run in runs),
        streams,
        tuple(loss_names),
        np.array([run.amounts.reindex(streams) for run in runs], dtype=np.float64),
        np.array([run.losses.reindex(loss_names) for run in runs], dtype=np.float64),
        group_runs(*requested),
        (*_notes(runs, streams, loss_names), *recipe_notes),
    )


def _by_name(folders: Sequence[Path]) -> dict[str, Path]:
    resolved = [folder.resolve() for folder in folders]
    twice = [str(folder) for number, folder in enumerate(resolved) if folder in resolved[:number]]
    if twice:
        raise ValueError(f"{twice} are given twice: give each run once.")
    names = [folder.name for folder in resolved]
    return {folder.name if names.count(folder.name) == 1 else str(folder): folder for folder in resolved}


def read_run(folder: Path, name: str, unit: Unit, loss: LossKind) -> Run:
    """Reads the ledger of a run; see `read_recorded_runs`.

    Raises:
        ValueError: If the folder holds no run, or the run has no step or counted nothing of the unit.
    """
    if not (folder / "ledger" / "ledger.json").is_file():
        raise ValueError(
            f"{folder} is not the folder of a run: it has no ledger/ledger.json. Give the output folder of a run "
            "(training.output_dir)."
        )
    ledger = Ledger(folder / "ledger")
    rows, clock = ledger.to_pandas(), ledger.clock().set_index("step")
    if rows.empty or clock.empty:
        raise ValueError(f"The ledger of {folder} has no step: let the run train, or leave it out.")
    rows = rows[rows["step"] <= clock.index[-1]]
    amounts = rows.groupby("stream", sort=False)["count" if unit == "samples" else "tokens"].sum()
    if not amounts.sum() > 0:
        raise ValueError(f"{folder} has counted no {unit}: take --unit samples, or leave it out.")
    losses, step = _evaluated(ledger.evaluations(), amounts.index) if loss == "evaluation" else _trained(rows)
    requested = _requested_shares(rows)
    return Run(
        name,
        folder,
        amounts,
        losses,
        budget=float(clock[unit].iloc[-1]),
        evaluated_at=float(clock[unit][clock.index <= step].max()) if (clock.index <= step).any() else 0.0,
        progress=float(clock["progress"].iloc[-1]),
        requested=pd.DataFrame({counted: shares.mean() for counted, shares in requested.items()}),
        is_steady=any(bool((shares.max() - shares.min()).max() <= _STEADY) for shares in requested.values()),
    )


def _requested_shares(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Gives the requested shares of samples and tokens by step and stream, which are the same for every seed.

    A policy with `unit="tokens"` requests shares of tokens, which the mean length of each stream's samples so far turns
    into shares of samples. The same lengths turn them back, to rounding.
    """
    weights, counts, tokens = (
        rows.pivot(index="step", columns="stream", values=name).fillna(0) for name in ("weight", "count", "tokens")
    )
    samples_before, tokens_before = counts.cumsum() - counts, tokens.cumsum() - tokens
    lengths = (tokens_before / samples_before).where(tokens_before > 0)
    means = lengths.mean(axis=1).fillna(1.0)  # for streams without tokens so far
    of_tokens = weights * lengths.apply(lambda column: column.fillna(means))
    return {"samples": weights, "tokens": of_tokens.div(of_tokens.sum(axis=1), axis=0).fillna(0.0)}


def _evaluated(evaluations: pd.DataFrame, streams: pd.Index) -> tuple[pd.Series, int]:
    """Gives the losses of each set's last evaluation and the earliest step of those of streams (or of all sets)."""
    last = evaluations.drop_duplicates("stream", keep="last").set_index("stream")
    steps = last["step"][last.index.isin(streams)]
    steps = last["step"] if steps.empty else steps
    return last["loss"], 0 if steps.empty else int(steps.min())


def _trained(rows: pd.DataFrame) -> tuple[pd.Series, int]:
    """Gives the mean loss of an item over the last tenth of the steps; NaN for a stream without any, or with a NaN."""
    last_step = int(rows["step"].max())
    late = rows[(rows["step"] > (1.0 - _LAST_PART) * last_step) & (rows["items"] > 0)]
    sums = (late["loss"] * late["items"]).groupby(late["stream"]).agg(lambda terms: terms.sum(skipna=False))
    return (sums / late.groupby("stream")["items"].sum()).reindex(pd.unique(rows["stream"])), last_step


def _common_losses(runs: Sequence[Run], streams: Sequence[str]) -> list[str]:
    """Names the losses to fit: those of streams that any run has, and of other sets that every run has."""
    counts = pd.Series([name for run in runs for name in run.losses.index]).value_counts()
    others = [name for name in runs[0].losses.index if name not in streams and counts[name] == len(runs)]
    names = [*(name for name in streams if name in counts.index), *others]
    if not names:
        raise ValueError(
            "No stream was evaluated in any of the runs: give streams a validation set and evaluate at the end of the "
            "run, or take --loss train."
        )
    return names


def _notes(runs: Sequence[Run], streams: Sequence[str], loss_names: Sequence[str]) -> list[str]:
    notes = []
    without = [name for name in streams if name not in loss_names]
    if without:
        notes.append(f"No run has a loss of {without}: the objective leaves them out.")
    unsteady = [run.name for run in runs if not run.is_steady]
    if unsteady:
        notes.append(
            f"The mixture changed over {', '.join(unsteady)}: the fit uses its mean. A fixed mixture of these shares "
            "may reach other losses, and runs of one policy count as several mixtures unless their means agree."
        )
    return notes
