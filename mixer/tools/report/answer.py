"""What a report says first: which run is better, by how much and in which streams; of one run, what its mixture did."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from mixer.policies.objective import Objective
from mixer.tools.records.run import Run
from mixer.tools.records.runs import declared
from mixer.tools.report.comparing import (
    compare,
    configurations,
    differences,
    ranked,
    unequal,
    unknown,
    verdict,
)
from mixer.tools.report.judging import Measure, course_of, measure_of, shares_of
from mixer.tools.report.reasons import WORSE, next_of_one, next_of_several, price, why
from mixer.utils.statistics import bound
from mixer.utils.text import first_of, listed


@dataclass(frozen=True)
class Answer:
    """What a report says first.

    Args:
        sentences: The answer in words.
        comparison: One row per configuration, the best first: run, runs, value, spread, difference and change (from the
            first given), samples; empty for one run, or without evaluations.
        differences: One row per stream, measure and configuration: stream, measure, run, value, spread, difference
            (from the first given); empty for one configuration.
        best_first: Names of the runs, in the order of the columns of tables; empty for one run.
        has_price: Whether something got worse, so that no problem found is not all there is to say.
        commands: What to do next: a purpose and a command each.
    """

    sentences: Sequence[str] = ()
    comparison: pd.DataFrame = field(default_factory=pd.DataFrame)
    differences: pd.DataFrame = field(default_factory=pd.DataFrame)
    best_first: Sequence[str] = ()
    has_price: bool = False
    commands: Sequence[tuple[str, str]] = ()


def answer(runs: Sequence[Run]) -> Answer:
    """Answers what a reader of the runs asks.

    Args:
        runs: The runs; the others are compared with the configuration of the first.
    """
    objective = declared(runs)
    measure = measure_of(runs, objective)
    bounds = [] if objective is None else [text for run in runs for text in _broken_bounds(run, objective)]
    if len(runs) == 1:
        risen = _risen(runs[0], objective)
        course = [unknown(runs)]
        if measure:
            course = [*_course(runs[0], objective, measure), *_accuracy(runs[0], objective)]
        own = [*course, *_mixed(runs[0], objective), *_in_words(runs[0], risen), *bounds]
        return Answer(own, has_price=bool(risen or bounds), commands=next_of_one(runs[0], risen))
    found = configurations(runs)
    by_stream = differences(found, objective) if len(found) > 1 else pd.DataFrame()
    best_first = ranked(found, measure)
    configs = (*(config for config, _ in best_first), *found)
    names = list(dict.fromkeys(run.name for config in configs for run in config.runs))
    tables = compare(found, measure), by_stream, names
    unjudged = f"{unknown(runs)} Training losses depend on the mixture."
    said = [unjudged] if measure is None else verdict(best_first, measure)
    said += unequal(found)
    has_price, commands = bool(bounds), list[tuple[str, str]]()
    if len(best_first) > 1:
        (best, of_best), (other, of_other), *_ = best_first
        paid = price(best, other, by_stream, objective)
        is_sure = abs(of_best.mean - of_other.mean) > bound(of_best, of_other)
        commands = next_of_several(best, other, is_sure, paid.sets)
        said += [why(best, other, by_stream), *paid.sentences]
        has_price |= paid.is_paid
    return Answer([*said, *bounds], *tables, has_price, commands)


def _risen(run: Run, objective: Objective | None) -> list[str]:
    """Names the sets without a target or a bound whose loss ended above that of the first evaluation."""
    judged = () if objective is None else objective.names
    first, last = run.losses(0), run.losses()
    return [name for name in last if name not in judged and last[name] - first[name] > WORSE * abs(first[name])]


def _in_words(run: Run, risen: Sequence[str]) -> list[str]:
    first, last = run.losses(0), run.losses()
    texts = []
    for name in risen:
        change = f", {last[name] / first[name] - 1.0:+.1%}" if first[name] > 0.0 else ""
        texts.append(f"{name} ({first[name]:.3f} → {last[name]:.3f}{change})")
    begins = "Trade-off: the loss ended higher than at the first evaluation on"
    return [f"{begins} {listed(first_of(texts, 8))}."] if texts else []


def _course(run: Run, objective: Objective | None, measure: Measure) -> list[str]:
    last = measure.values[run.name]
    course = course_of(run, objective)
    values, words = course["value"].tolist(), measure.words
    first = values[0]
    if len(values) < 2 or math.isnan(first):
        return [f"{words[0].upper()}{words[1:].rstrip(',')} ended at {last:.3f}."]
    change = f" ({last / first - 1.0:+.1%})" if first else ""
    texts = [f"{words[0].upper()}{words[1:]} went from {first:.3f} to {last:.3f}{change}."]
    best = (np.nanargmax if measure.greater_is_better else np.nanargmin)(values)
    if abs(values[best] - last) > WORSE * abs(last):
        step = course["step"].iloc[best]
        texts.append(f"It was best at step {step:,}, at {values[best]:.3f}: save_best_of_each keeps such weights.")
    return texts


def _accuracy(run: Run, objective: Objective | None) -> list[str]:
    """Gives the accuracy of an objective in loss, which a model that is too sure of its mistakes need not lower."""
    if objective is None or objective.metric != "loss":
        return []
    beside = replace(objective, metric="accuracy", greater_is_better=True)
    values = course_of(run, beside)["value"].to_numpy()
    if not np.isfinite(values[[0, -1]]).all():
        return []
    losses = course_of(run, objective)["value"].to_numpy()
    best = int(np.nanargmin(losses))
    words = f"Its accuracy went from {values[0]:.1%} to {values[-1]:.1%}"
    if losses[-1] - losses[best] > WORSE * abs(losses[-1]) and values[-1] >= values[best]:
        words += ", and is not below that at the lowest loss: the model has become too sure of its mistakes"
    return [f"{words}."]


def _mixed(run: Run, objective: Objective | None) -> list[str]:
    """Says how the samples were shared, beside the shares of the streams' sizes."""
    unit = run.unit
    shares = shares_of(run, "count" if unit == "samples" else unit)
    last = {name: (own["seen"][-1], own["passes"][-1]) for name, own in run.stream_columns.items()}
    sizes = {name: float(seen / passes) for name, (seen, passes) in last.items() if passes > 0}
    if len(shares) < 2:
        return []
    total = sum(sizes.values())
    targets = [name for name in (() if objective is None else objective.names) if name in shares]
    named = targets if targets and len(targets) < len(shares) else list(shares)
    words = {name: f"{name} gave {shares[name]:.0%}" for name in named}
    if len(sizes) == len(shares) and total and unit == "samples":  # other sizes are not known
        words = {name: f"{text} ({sizes[name] / total:.0%} of the data)" for name, text in words.items()}
    shown = sorted(words, key=lambda name: -shares[name])
    shown = shown if len(shown) <= 4 else [*shown[:3], shown[-1]]
    least = ", the least" if len(named) > 4 else ""
    return [f"Of the {unit} {listed([words[name] for name in shown])}{least}."]


def _broken_bounds(run: Run, objective: Objective) -> list[str]:
    found = []
    for name, most in objective.bounds.items():
        losses = run.evaluations[name]["loss"].to_numpy() if name in run.evaluations else np.ones(1)
        ratio = float(losses[-1] / losses[0])
        if ratio > most:
            found.append(
                f"In {run.name} the loss of {name} ended at {ratio:.3g} times that of the first evaluation: above its "
                f"bound of {most:g}."
            )
    return found
