"""Findings: streams with non-finite losses, or with skipped, repeated or too few samples."""

import numpy as np
import pandas as pd

from mixer.analysis.report.findings.finding import Finding, about_streams
from mixer.analysis.report.run import Run

# Up to four passes repeated text is worth nearly as much as new text (Muennighoff et al. 2023, arXiv:2305.16264).
_LEAST_PASSES = 4.0
# In epochs of the mixture: a run of ten epochs is meant to repeat everything.
_LEAST_MULTIPLE = 3.0
_ROUNDING = 0.01
# Less than this part of the requested samples, beyond random drawing.
_LEAST_PART_OF_REQUESTED, _DEVIATIONS = 0.8, 4.0
# Less than this part of the first weight, by means over a tenth of the steps.
_LEAST_PART_OF_WEIGHT, _TENTH, _FEWEST_STEPS = 0.1, 0.1, 20
# Less than this part of the passes in proportion to its size, if those are at least so many samples.
_LEAST_PART_OF_PASSES, _FEWEST_SAMPLES = 0.2, 50


def not_finite(run: Run) -> Finding | None:
    """Finds streams and evaluation sets with an infinite or NaN loss."""
    counts: dict[str, tuple[int, int, str]] = {}
    for name, rows in run.streams.items():
        bad = ~np.isfinite(rows["loss"]) & (rows["items"] > 0)  # without items there is no loss
        if bad.any():
            counts[name] = int(bad.sum()), int(rows["step"][bad].iloc[0]), "step"
    for name, rows in run.evaluations.items():
        bad = ~np.isfinite(rows["loss"])
        if bad.any() and name not in counts:
            counts[name] = int(bad.sum()), int(rows["step"][bad].iloc[0]), "evaluation"
    messages = {
        name: f"{name} in {count:,} {unit}{'s' if count > 1 else ''}, first at step {step:,}"
        for name, (count, step, unit) in sorted(counts.items(), key=lambda one: -one[1][0])
    }
    return about_streams("not finite", run.name, messages, "The loss was not finite")


def skipped(run: Run) -> Finding | None:
    """Finds streams with samples that could not be loaded."""
    counts: dict[str, tuple[int, int]] = {}
    for name, rows in run.streams.items():
        last = rows.iloc[-1]
        if last["skipped"] > 0:
            counts[name] = int(last["skipped"]), int(last["seen"])
    messages = {
        name: f"{number:,} of the {seen:,} samples drawn from {name} ({number / seen:.2%})"
        for name, (number, seen) in sorted(counts.items(), key=lambda one: -one[1][0] / one[1][1])
    }
    return about_streams("skipped", run.name, messages, "Samples could not be loaded and were skipped")


def over_repeated(run: Run) -> Finding | None:
    """Finds streams with more passes than their cap, or without a cap many more than the epochs of the mixture.

    Replay buffers are exempt: they exist to be repeated.
    """
    epochs = float(run.clock["epoch"].iloc[-1])
    passes = {name: float(rows["passes"].iloc[-1]) for name, rows in run.streams.items() if name not in run.buffers}
    messages = {}
    for name, number in sorted(passes.items(), key=lambda one: -one[1]):
        cap = run.caps.get(name)
        if cap is not None and number > cap + _ROUNDING:
            messages[name] = f"{name} {number:.1f} times, beyond its cap of {cap:g}"
        elif cap is None and number > max(_LEAST_PASSES, _LEAST_MULTIPLE * epochs):
            messages[name] = f"{name} {number:.1f} times without a cap, in {epochs:.1f} epochs of the mixture"
    return about_streams("over-repeated", run.name, messages, "Repeated too often")


def starved(run: Run) -> Finding | None:
    """Finds streams with far fewer samples than requested, a weight that fell to almost nothing, or a low coverage.

    Streams that left the mixture, or had weight 0 throughout, are exempt.
    """
    messages = {}
    for name, rows in run.streams.items():
        if rows["weight"].any():
            is_active = bool(rows["active"].iloc[-1])
            text = _gave_too_little(run, rows) or (is_active and (_weight_fell(run, rows) or _lags(run, name, rows)))
            if text:
                messages[name] = f"{name} {text}"
    return about_streams("starved", run.name, messages, "Far too few samples of a stream were used")


def _gave_too_little(run: Run, rows: pd.DataFrame) -> str:
    clock = run.clock
    size = clock[["batch_size", "total"]].min(axis=1).to_numpy()
    requested = float((rows["weight"] * size[np.searchsorted(clock["step"], rows["step"])]).sum())
    got = float(rows["count"].sum())
    if got < _LEAST_PART_OF_REQUESTED * requested and requested - got > 1 + _DEVIATIONS * np.sqrt(requested):
        return f"gave {got:,.0f} samples, but its weights requested {requested:,.0f}"
    return ""


def _weight_fell(run: Run, rows: pd.DataFrame) -> str:
    if "Scheduled" in str(run.description.get("mixing")) or len(rows) < _FEWEST_STEPS:
        return ""  # a schedule is intended
    number = max(1, int(_TENTH * len(rows)))
    first, last = (float(part.mean()) for part in (rows["weight"].iloc[:number], rows["weight"].iloc[-number:]))
    return f"fell from a weight of {first:.3f} to {last:.2g}" if last < _LEAST_PART_OF_WEIGHT * first else ""


def _lags(run: Run, name: str, rows: pd.DataFrame) -> str:
    passes, coverage = float(rows["passes"].iloc[-1]), float(rows["coverage"].iloc[-1])
    if name in run.buffers or not 0 < passes < 1:
        return ""
    active_epochs = float(np.diff(rows["epoch"], prepend=0.0)[rows["active"]].sum())
    expected = active_epochs * float(rows["seen"].iloc[-1]) / passes
    if passes < _LEAST_PART_OF_PASSES * active_epochs and expected > _FEWEST_SAMPLES:
        return f"was covered by {coverage:.1%}, while {active_epochs:.2f} epochs of data were used"
    return ""
