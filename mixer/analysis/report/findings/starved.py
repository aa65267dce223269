"""Streams that got too little."""

import numpy as np
import pandas as pd

from mixer.analysis.report.findings.finding import Finding, about_streams
from mixer.analysis.report.run import Run

# Less than this part of the samples that weights asked for, beyond what chance in drawing explains.
_LEAST_PART_OF_ASKED, _DEVIATIONS = 0.8, 4.0
# Less than this part of the weight that it began with, by means over a tenth of the steps.
_LEAST_PART_OF_WEIGHT, _TENTH, _FEWEST_STEPS = 0.1, 0.1, 20
# Less than this part of the passes that it would have had in proportion to its size, if those are at all many samples.
_LEAST_PART_OF_PASSES, _FEWEST_SAMPLES = 0.2, 50


def starved(run: Run) -> Finding | None:
    """Finds streams that got far less than was asked for, whose weight fell to next to nothing, or that lag behind.

    Args:
        run: The run.

    Returns:
        The finding, or `None`; streams that have left the mixture, and those of weight 0 throughout, are not starved.
    """
    told = {}
    for name, rows in run.streams.items():
        if rows["weight"].any():
            is_active = bool(rows["active"].iloc[-1])
            text = _asked_in_vain(run, rows) or (is_active and (_weight_fell(run, rows) or _lags(run, name, rows)))
            if text:
                told[name] = f"{name} {text}"
    return about_streams("starved", run.name, told, "Far too little of a stream was used")


def _asked_in_vain(run: Run, rows: pd.DataFrame) -> str:
    clock = run.clock
    size = clock[["batch_size", "total"]].min(axis=1).to_numpy()
    asked = float((rows["weight"] * size[np.searchsorted(clock["step"], rows["step"])]).sum())
    got = float(rows["count"].sum())
    if got < _LEAST_PART_OF_ASKED * asked and asked - got > 1 + _DEVIATIONS * np.sqrt(asked):
        return f"gave {got:,.0f} samples, where its weights asked for {asked:,.0f}"
    return ""


def _weight_fell(run: Run, rows: pd.DataFrame) -> str:
    if "Scheduled" in str(run.description.get("mixing")) or len(rows) < _FEWEST_STEPS:
        return ""  # who writes a schedule means it
    number = max(1, int(_TENTH * len(rows)))
    first, last = (float(part.mean()) for part in (rows["weight"].iloc[:number], rows["weight"].iloc[-number:]))
    return f"fell from a weight of {first:.3f} to {last:.2g}" if last < _LEAST_PART_OF_WEIGHT * first else ""


def _lags(run: Run, name: str, rows: pd.DataFrame) -> str:
    passes, coverage = float(rows["passes"].iloc[-1]), float(rows["coverage"].iloc[-1])
    if name in run.buffers or not 0 < passes < 1:
        return ""
    while_there = float(np.diff(rows["epoch"], prepend=0.0)[rows["active"]].sum())
    expected = while_there * float(rows["seen"].iloc[-1]) / passes
    if passes < _LEAST_PART_OF_PASSES * while_there and expected > _FEWEST_SAMPLES:
        return f"was covered by {coverage:.1%}, while {while_there:.2f} epochs of data were used"
    return ""
