"""What a fit reads of runs: what they trained on, and the losses that they came to."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mixer.ledger import Ledger
from mixer.policies.base import Unit

FloatArray = NDArray[np.float64]
LossKind = Literal["evaluation", "train"]

_TOLERANCE = 0.05
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
        notes: What a reader of the fit should know of the runs, in sentences.
    """

    runs: tuple[str, ...]
    streams: tuple[str, ...]
    loss_names: tuple[str, ...]
    mixtures: FloatArray
    losses: FloatArray
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Run:
    name: str
    amounts: pd.Series  # by stream
    losses: pd.Series  # by name
    budget: float  # samples or tokens
    evaluated_at: float  # samples or tokens so far; of the last evaluation
    progress: float
    is_steady: bool


def read_recorded_runs(
    folders: Sequence[Path],
    unit: Unit = "samples",
    loss: LossKind = "evaluation",
    allow_different_budgets: bool = False,
) -> RecordedRuns:
    """Reads the ledgers of finished runs.

    Args:
        folders: Output folders of trainers.
        unit: Whether a mixture is shares of samples or of tokens; budgets are compared in it too.
        loss: `"evaluation"` for the last evaluation, `"train"` for the mean over the last tenth of the updates.
        allow_different_budgets: Whether runs may differ in how long they were, in when they were evaluated last, or
            stop short of their budget.

    Returns:
        Their mixtures and losses.

    Raises:
        ValueError: If a folder holds no run or is given twice, or runs differ in their streams or budgets, which are
            named.
    """
    for option, given, known in (("unit", unit, get_args(Unit)), ("loss", loss, get_args(LossKind))):
        if given not in known:
            raise ValueError(f"{option} must be one of {list(known)}, got {given!r}.")
    resolved = [folder.resolve() for folder in folders]
    twice = [str(folder) for number, folder in enumerate(resolved) if folder in resolved[:number]]
    if twice:
        raise ValueError(f"{twice} are given twice: give each run once.")
    names = [folder.name for folder in resolved]
    runs = [
        _read_run(folder, name if names.count(name) == 1 else str(folder), unit, loss)
        for folder, name in zip(resolved, names, strict=True)
    ]
    streams = _common_streams(runs)
    if not allow_different_budgets:
        _check_budgets(runs, unit, loss)
    counts = pd.Series([name for run in runs for name in run.losses.index]).value_counts()
    others = [name for name in runs[0].losses.index if name not in streams and counts[name] == len(runs)]
    kept = [*(name for name in streams if name in counts.index), *others]
    if not kept:
        raise ValueError(
            "No stream was evaluated in any of the runs: give streams a validation set and evaluate at the end of the "
            "run, or take --loss train."
        )
    return RecordedRuns(
        tuple(run.name for run in runs),
        streams,
        tuple(kept),
        np.array([run.amounts.reindex(streams).to_numpy(dtype=np.float64) for run in runs]),
        np.array([run.losses.reindex(kept).to_numpy(dtype=np.float64) for run in runs]),
        tuple(_notes(runs, streams, kept)),
    )


def _read_run(folder: Path, name: str, unit: Unit, loss: LossKind) -> _Run:
    if not (folder / "ledger" / "ledger.json").is_file():
        raise ValueError(
            f"{folder} is not the folder of a run: it has no ledger/ledger.json. Give the output folder of a run "
            "(training.output_dir)."
        )
    ledger = Ledger(folder / "ledger")
    rows, clock = ledger.to_pandas(), ledger.clock().set_index("step")
    if rows.empty or clock.empty:
        raise ValueError(f"The ledger of {folder} has no update: let the run train, or leave it out.")
    rows = rows[rows["step"] <= clock.index[-1]]
    amounts = rows.groupby("stream", sort=False)["count" if unit == "samples" else "tokens"].sum()
    if not amounts.sum() > 0:
        raise ValueError(f"{folder} has counted no {unit}: take --unit samples, or leave it out.")
    losses, step = _evaluated(ledger.evaluations()) if loss == "evaluation" else _trained(rows)
    spread = rows.groupby("stream")["weight"].agg(lambda weights: weights.max() - weights.min())
    return _Run(
        name,
        amounts,
        losses,
        budget=float(clock[unit].iloc[-1]),
        evaluated_at=float(clock[unit].get(step, 0.0)),
        progress=float(clock["progress"].iloc[-1]),
        is_steady=bool(spread.max() <= _STEADY),
    )


def _evaluated(evaluations: pd.DataFrame) -> tuple[pd.Series, int]:
    """Gives the losses of each set's last evaluation, not finite ones too, and the step of the last of all."""
    last = evaluations.drop_duplicates("stream", keep="last").set_index("stream")
    return last["loss"], 0 if last.empty else int(last["step"].max())


def _trained(rows: pd.DataFrame) -> tuple[pd.Series, int]:
    """Gives the mean loss of an item over the last tenth of the updates; NaN where a stream had none, or a bad one."""
    last_step = int(rows["step"].max())
    late = rows[(rows["step"] > (1.0 - _LAST_PART) * last_step) & (rows["items"] > 0)]
    sums = (late["loss"] * late["items"]).groupby(late["stream"]).agg(lambda terms: terms.sum(skipna=False))
    streams = pd.unique(rows["stream"])
    return (sums / late.groupby("stream")["items"].sum()).reindex(streams), last_step


def _common_streams(runs: Sequence[_Run]) -> tuple[str, ...]:
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


def _check_budgets(runs: Sequence[_Run], unit: Unit, loss: LossKind) -> None:
    way_out = "Leave these runs out, or allow it with --allow-different-budgets."
    short = [f"{run.name} ({run.progress:.0%})" for run in runs if run.progress < 1.0 - 1e-9]
    if short:
        raise ValueError(
            f"Runs must be done with their budget, but these stopped before: {', '.join(short)}. {way_out}"
        )
    _refuse_outliers(runs, lambda run: run.budget, f"trained on as many {unit}", way_out)
    if loss == "evaluation":
        _refuse_outliers(runs, lambda run: run.evaluated_at, f"been evaluated last after as many {unit}", way_out)


def _refuse_outliers(runs: Sequence[_Run], of: Callable[[_Run], float], words: str, way_out: str) -> None:
    usual = float(np.median([of(run) for run in runs]))
    differing = [f"{run.name} ({of(run):,.0f})" for run in runs if abs(of(run) - usual) > _TOLERANCE * usual]
    if differing:
        raise ValueError(
            f"Runs must have {words}, to {_TOLERANCE:.0%}; the median is {usual:,.0f}, but: {', '.join(differing)}. "
            f"{way_out}"
        )


def _notes(runs: Sequence[_Run], streams: Sequence[str], kept: Sequence[str]) -> list[str]:
    notes = []
    unread = [name for name in streams if name not in kept]
    if unread:
        notes.append(f"No run has a loss of {unread}: the objective is taken without them.")
    unsteady = [run.name for run in runs if not run.is_steady]
    if unsteady:
        notes.append(
            f"The mixture changed over {', '.join(unsteady)}: the mean over the run is taken, though a fixed mixture "
            "like it may do otherwise."
        )
    return notes
