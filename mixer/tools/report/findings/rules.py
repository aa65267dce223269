"""Findings: bad losses, skipped, repeated or too few samples, and conflicting gradients."""

from collections.abc import Iterator
from statistics import NormalDist

import numpy as np

from mixer.tools.records.clock import Columns
from mixer.tools.records.run import Run
from mixer.tools.report.findings.finding import Finding
from mixer.utils.text import listed

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
# A mean cosine below this counts from so many measurements on, if noise would give it for any pair in less than one run
# of a thousand.
_GREATEST_COSINE, _FEWEST_MEASUREMENTS, _CHANCE = -0.05, 8, 1e-3


def not_finite(run: Run) -> list[Finding]:
    """Finds streams and evaluation sets with an infinite or NaN loss."""
    counts: dict[str, tuple[int, int, str]] = {}
    row = "step" if run.interval_steps == 1 else "row"
    for unit, parts in ((row, run.stream_columns), ("evaluation", run.evaluation_columns)):
        for name, rows in parts.items():
            bad = ~np.isfinite(rows["loss"])
            if unit == row:
                bad &= rows["items"] > 0  # without items there is no loss
            if bad.any() and name not in counts:
                counts[name] = int(bad.sum()), int(rows["step"][bad][0]), unit
    return [
        Finding(streams=[name], text=f"{name} in {count:,} {unit}{'s' if count > 1 else ''}, first at step {step:,}")
        for name, (count, step, unit) in sorted(counts.items(), key=lambda item: -item[1][0])
    ]


def skipped(run: Run) -> Iterator[Finding]:
    """Finds streams with samples that could not be loaded."""
    last = {name: (rows["skipped"][-1], rows["seen"][-1]) for name, rows in run.stream_columns.items()}
    shares = {name: lost / drawn for name, (lost, drawn) in last.items() if lost > 0}
    for name, share in sorted(shares.items(), key=lambda item: -item[1]):
        lost, drawn = map(int, last[name])
        yield Finding(streams=[name], text=f"{lost:,} of the {drawn:,} samples drawn from {name} ({share:.2%})")


def over_repeated(run: Run) -> Iterator[Finding]:
    """Finds streams with more passes than their cap, or without a cap many more than the epochs of the mixture.

    Replay buffers are exempt: they exist to be repeated.
    """
    epochs = float(run.clock["epoch"].iloc[-1])
    passes = {name: float(rows["passes"][-1]) for name, rows in run.stream_columns.items() if name not in run.buffers}
    for name, number in sorted(passes.items(), key=lambda item: -item[1]):
        cap = run.caps.get(name)
        if cap is not None and number > cap + _ROUNDING:
            yield Finding(streams=[name], text=f"{name} {number:.1f} times, beyond its cap of {cap:g}")
        elif cap is None and number > max(_LEAST_PASSES, _LEAST_MULTIPLE * epochs):
            text = f"{name} {number:.1f} times without a cap, in {epochs:.1f} epochs of the mixture"
            yield Finding(streams=[name], text=text)


def starved(run: Run) -> Iterator[Finding]:
    """Finds streams with far fewer samples than requested, a weight that fell to almost nothing, or a low coverage.

    Streams that left the mixture, or had weight 0 throughout, are exempt. So are those that a declared objective leaves
    out, if they gave what was requested.
    """
    for name, rows in run.stream_columns.items():
        if rows["weight"].any():
            is_judged = bool(rows["active"][-1]) and run.is_wanted(name)
            text = _gave_too_little(run, rows) or (is_judged and (_weight_fell(run, rows) or _lags(run, name, rows)))
            if text:
                yield Finding(streams=[name], text=f"{name} {text}")


def _gave_too_little(run: Run, rows: Columns) -> str:
    steps, asked = run.row_clock["step"].to_numpy(), run.row_clock["asked"].to_numpy()
    requested = float(rows["weight"] @ asked[np.searchsorted(steps, rows["step"])])
    got = float(rows["count"].sum())
    if got < _LEAST_PART_OF_REQUESTED * requested and requested - got > 1 + _DEVIATIONS * np.sqrt(requested):
        return f"gave {got:,.0f} samples, but its weights requested {requested:,.0f}"
    return ""


def _weight_fell(run: Run, rows: Columns) -> str:
    weights = rows["weight"]
    if len(weights) < _FEWEST_STEPS or "Scheduled" in str(run.description.get("mixing")):
        return ""  # a schedule is intended
    number = max(1, int(_TENTH * len(weights)))
    first, last = float(weights[:number].mean()), float(weights[-number:].mean())
    return f"fell from a weight of {first:.3f} to {last:.2g}" if last < _LEAST_PART_OF_WEIGHT * first else ""


def _lags(run: Run, name: str, rows: Columns) -> str:
    passes, coverage = float(rows["passes"][-1]), float(rows["coverage"][-1])
    if name in run.buffers or not 0 < passes < 1:
        return ""
    active_epochs = float(np.diff(rows["epoch"], prepend=0.0)[rows["active"]].sum())
    expected = active_epochs * float(rows["seen"][-1]) / passes
    if passes < _LEAST_PART_OF_PASSES * active_epochs and expected > _FEWEST_SAMPLES:
        return f"has a coverage of {coverage:.1%}, after {active_epochs:.2f} epochs of the mixture"
    return ""


def in_conflict(run: Run) -> Iterator[Finding]:
    """Finds pairs of streams with a negative mean cosine, beyond its noise."""
    cosines = run.cosines
    if cosines is None:
        return
    pairs = np.triu(cosines.counts, 1) >= _FEWEST_MEASUREMENTS
    deviations = NormalDist().inv_cdf(1.0 - _CHANCE / max(1, int(pairs.sum())))
    with np.errstate(invalid="ignore"):  # a pair that was not measured often enough has no error
        bad = pairs & (cosines.mean < _GREATEST_COSINE) & (cosines.mean + deviations * cosines.error < 0.0)
    for first, second in sorted(np.argwhere(bad).tolist(), key=lambda at: cosines.mean[tuple(at)]):
        pair = cosines.names[first], cosines.names[second]
        mean, count = cosines.mean[first, second], cosines.counts[first, second]
        yield Finding(streams=pair, text=f"{listed(pair)}, mean cosine {mean:.2f} over {count:,} measurements")
