"""What a report says first: which run is better, by how much and in which streams; of one run, what its mixture did."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from mixer.analysis.report.comparing import compare, configurations, differences, unequal, unknown, verdict
from mixer.analysis.report.judging import Measure, measure_of, objective_value, shares_of
from mixer.analysis.report.run import Run, share_of_time
from mixer.ledger.evaluated_losses import mean_loss
from mixer.policies.objective import Objective
from mixer.utils.text import listed

_LEAST_BETTER = 0.005  # a value before the last one is worth a word from this relative difference on


@dataclass(frozen=True)
class Answer:
    """What a report says first.

    Args:
        sentences: The answer in words.
        comparison: One row per configuration, the best first: run, runs, value, spread, difference and change (from the
            first given), samples; empty for one run, or without evaluations.
        differences: One row per stream, measure and configuration: stream, measure, run, value, spread, difference
            (from the first given); empty for one configuration.
    """

    sentences: Sequence[str] = ()
    comparison: pd.DataFrame = field(default_factory=pd.DataFrame)
    differences: pd.DataFrame = field(default_factory=pd.DataFrame)


def answer(runs: Sequence[Run]) -> Answer:
    """Answers what a reader of the runs asks.

    Args:
        runs: The runs; the others are compared with the configuration of the first.
    """
    objective = next((run.objective for run in runs if run.objective is not None), None)
    measure = measure_of(runs, objective)
    bounds = [] if objective is None else [text for run in runs for text in _broken_bounds(run, objective)]
    if len(runs) == 1:
        return Answer([*_of_one(runs[0], objective, measure), *bounds])
    found = configurations(runs)
    by_stream = differences(found, objective) if len(found) > 1 else pd.DataFrame()
    return Answer([*verdict(found, measure), *unequal(found), *bounds], compare(found, measure), by_stream)


def _of_one(run: Run, objective: Objective | None, measure: Measure | None) -> list[str]:
    """Says what the mixture did for the objective, what measuring cost, and which streams were repeated or left."""
    return [
        *(_course(run, objective, measure) if measure else [unknown([run])]),
        *_mixed(run, objective),
        *_passed(run),
        f"Measuring for the mixture took {share_of_time(run, 'probe_seconds'):.0%} of the time of steps, loading "
        f"{share_of_time(run, 'load_seconds'):.0%}.",
    ]


def _course(run: Run, objective: Objective | None, measure: Measure) -> list[str]:
    last = measure.values[run.name]
    places = range(min(len(rows) for rows in run.evaluations.values()))
    if objective is not None:
        values = [objective_value(run, objective, place) for place in places]
    else:
        losses = {name: rows["loss"].tolist() for name, rows in run.evaluations.items()}
        values = [mean_loss({name: own[place] for name, own in losses.items()}, run.eval_weights) for place in places]
    words, first = measure.words, values[0]
    if len(values) < 2 or math.isnan(first):
        return [f"{words[0].upper()}{words[1:].rstrip(',')} ended at {last:.3f}."]
    change = f" ({last / first - 1.0:+.1%})" if first else ""
    texts = [f"{words[0].upper()}{words[1:]} went from {first:.3f} to {last:.3f}{change}."]
    best = (np.nanargmax if measure.greater_is_better else np.nanargmin)(values)
    if abs(values[best] - last) > _LEAST_BETTER * abs(last):
        step = next(iter(run.evaluations.values()))["step"].iloc[best]
        texts.append(f"It was best at step {step:,}, at {values[best]:.3f}: save_best_of_each keeps such weights.")
    return texts


def _mixed(run: Run, objective: Objective | None) -> list[str]:
    """Says how the samples were shared, beside the shares of the streams' sizes."""
    unit = run.unit
    shares, sizes = shares_of(run, "count" if unit == "samples" else unit), _sizes(run)
    if len(shares) < 2:
        return []
    total = sum(sizes.values())
    targets = [name for name in (() if objective is None else objective.names) if name in shares]
    named = targets if targets and len(targets) < len(shares) else list(shares)
    words = {name: f"{name} gave {shares[name]:.0%}" for name in named}
    if len(sizes) == len(shares) and total and unit == "samples":  # other sizes are not known
        words = {name: f"{text} ({sizes[name] / total:.0%} of the data)" for name, text in words.items()}
    kept = sorted(words, key=lambda name: -shares[name])
    kept = kept if len(kept) <= 4 else [*kept[:3], kept[-1]]
    least = ", the least" if len(named) > 4 else ""
    return [f"Of the {unit} {listed([words[name] for name in kept])}{least}."]


def _sizes(run: Run) -> Mapping[str, float]:
    last = {name: rows.iloc[-1] for name, rows in run.streams.items()}
    return {name: float(row["seen"] / row["passes"]) for name, row in last.items() if row["passes"] > 0}


def _passed(run: Run) -> list[str]:
    """Names the stream that was repeated most and the one that was covered least."""
    last = {name: rows.iloc[-1] for name, rows in run.streams.items() if name not in run.buffers}
    passes = {name: float(row["passes"]) for name, row in last.items() if not math.isnan(row["passes"])}
    if len(passes) < 2:
        return []
    most, least = max(passes, key=passes.__getitem__), min(passes, key=passes.__getitem__)
    is_repeated = passes[most] > 1.0
    repeated = f"{most} was repeated most, {passes[most]:.2f} passes" if is_repeated else "No stream was repeated"
    covered = float(last[least]["coverage"])
    return [f"{repeated}; {least} was covered least, {covered:.1%} of it." if covered < 1.0 else f"{repeated}."]


def _broken_bounds(run: Run, objective: Objective) -> list[str]:
    found = []
    for name, bound in objective.bounds.items():
        losses = run.evaluations[name]["loss"].to_numpy() if name in run.evaluations else np.ones(1)
        ratio = float(losses[-1] / losses[0])
        if ratio > bound:
            found.append(
                f"In {run.name} the loss of {name} ended at {ratio:.3g} times that of the first evaluation: above its "
                f"bound of {bound:g}."
            )
    return found
