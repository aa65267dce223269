"""What a fit reads of one run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pandas as pd

from mixer.analysis.fit.asked import asked_shares
from mixer.ledger.ledger import Ledger
from mixer.policies.contract import Unit

LossKind = Literal["evaluation", "train"]

_LAST_PART = 0.1
_STEADY = 0.02


@dataclass(frozen=True)
class Run:
    """What is recorded of a run.

    Args:
        name: What it is called.
        folder: Its output folder.
        amounts: By stream: samples or tokens that it trained on.
        losses: By name; NaN where one is not finite.
        budget: Samples or tokens in all.
        evaluated_at: Samples or tokens after which its losses were had.
        progress: The part of its budget that is done.
        asked: By stream: mean shares that it was asked for, in columns for samples and tokens.
        is_steady: Whether its mixture stayed the same, in samples or in tokens.
    """

    name: str
    folder: Path
    amounts: pd.Series
    losses: pd.Series
    budget: float
    evaluated_at: float
    progress: float
    asked: pd.DataFrame
    is_steady: bool


def read_run(folder: Path, name: str, unit: Unit, loss: LossKind) -> Run:
    """Reads the ledger of a run.

    Args:
        folder: Its output folder.
        name: What to call it.
        unit: Whether amounts are samples or tokens.
        loss: `"evaluation"` for the last evaluation, `"train"` for the mean over the last tenth of the steps.

    Returns:
        What is recorded of it.

    Raises:
        ValueError: If it is no run, or has no step or none of the unit.
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
    before = clock[unit][clock.index <= step]
    asked = asked_shares(rows)
    return Run(
        name,
        folder,
        amounts,
        losses,
        budget=float(clock[unit].iloc[-1]),
        evaluated_at=float(before.iloc[-1]) if len(before) else 0.0,
        progress=float(clock["progress"].iloc[-1]),
        asked=pd.DataFrame({counted: shares.mean() for counted, shares in asked.items()}),
        is_steady=any(bool((shares.max() - shares.min()).max() <= _STEADY) for shares in asked.values()),
    )


def _evaluated(evaluations: pd.DataFrame, streams: pd.Index) -> tuple[pd.Series, int]:
    """Gives the losses of each set's last evaluation, not finite ones too, and the earliest step of those of streams.

    Where no stream was evaluated, it is the earliest step of all sets.
    """
    last = evaluations.drop_duplicates("stream", keep="last").set_index("stream")
    steps = last["step"][last.index.isin(streams)]
    steps = last["step"] if steps.empty else steps
    return last["loss"], 0 if steps.empty else int(steps.min())


def _trained(rows: pd.DataFrame) -> tuple[pd.Series, int]:
    """Gives the mean loss of an item over the last tenth of the steps; NaN where a stream had none, or a bad one."""
    last_step = int(rows["step"].max())
    late = rows[(rows["step"] > (1.0 - _LAST_PART) * last_step) & (rows["items"] > 0)]
    sums = (late["loss"] * late["items"]).groupby(late["stream"]).agg(lambda terms: terms.sum(skipna=False))
    streams = pd.unique(rows["stream"])
    return (sums / late.groupby("stream")["items"].sum()).reindex(streams), last_step
