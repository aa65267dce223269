"""Why a configuration is better than another, at what price, and which command comes next."""

import json
import shlex
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from mixer.policies.objective import Objective
from mixer.tools.records.run import Run
from mixer.tools.report.comparing import Configuration
from mixer.utils.statistics import over_seeds
from mixer.utils.text import duration, first_of, listed, rule_in_words

WORSE = 0.005  # a loss is worth a word from this relative difference on
_LEAST_MOVED = 0.005  # of a share
_LONGER = 1.1
_LEAST_BOUND = 0.5  # of `Objective`
_BOUND = 1.02  # on a loss that rose, of the first one
_PARTS = ("load_seconds", "train_seconds", "probe_seconds")


class Price(NamedTuple):
    """What a mixture cost.

    Args:
        sentences: The price in words.
        sets: Evaluation sets that ended worse, the worst first.
        is_paid: Whether there is any.
    """

    sentences: list[str]
    sets: list[str]
    is_paid: bool


def why(best: Configuration, other: Configuration, differences: pd.DataFrame) -> str:
    """Says which shares differ most between the best configuration and another.

    Args:
        best: The best one.
        other: Another.
        differences: See `Answer`.
    """
    unit = best.runs[0].unit
    ends = _ends(differences, f"share of {unit}", best, other)
    ends = {name: (np.nan_to_num(before), np.nan_to_num(after)) for name, (before, after) in ends.items()}
    moved = {name: abs(after - before) for name, (before, after) in ends.items()}
    names = sorted((name for name in moved if moved[name] >= _LEAST_MOVED), key=lambda name: -moved[name])
    if not names:
        return f"{best.name} and {other.name} gave all streams nearly the same share of the {unit}."
    texts = [f"{name} {ends[name][0]:.0%} → {ends[name][1]:.0%}{_repeated(best, name)}" for name in names]
    return f"Compared with {other.name}, {best.name} drew different shares of the {unit}: {listed(first_of(texts))}."


def _repeated(config: Configuration, name: str) -> str:
    passes = over_seeds(
        [float(run.streams[name]["passes"].iloc[-1]) for run in config.runs if name in run.streams]
    ).mean
    return f" (each sample {passes:.1f} times)" if passes > 1.0 else ""


def _ends(
    differences: pd.DataFrame, measure: str, best: Configuration, other: Configuration
) -> dict[str, tuple[float, float]]:
    """Picks the last values of a measure by stream: of the other configuration, and of the best."""
    rows = differences[differences["measure"] == measure]
    before, after = (
        dict(zip(own["stream"], own["value"].tolist(), strict=True))
        for own in (rows[rows["run"] == config.name] for config in (other, best))
    )
    return {str(name): (value, after[name]) for name, value in before.items()}


def price(best: Configuration, other: Configuration, differences: pd.DataFrame, objective: Objective | None) -> Price:
    """Says which evaluation sets ended worse with the best configuration, and what it took.

    Args:
        best: The best one.
        other: Another.
        differences: See `Answer`.
        objective: The declared objective.
    """
    measure = "validation loss" if objective is None or objective.metric == "loss" else objective.metric
    sign = -1.0 if objective is not None and objective.greater_is_better else 1.0
    ends = {name: end for name, end in _ends(differences, measure, best, other).items() if not np.isnan(end).any()}
    rise = {name: sign * (after - before) / (abs(before) or 1.0) for name, (before, after) in ends.items()}
    sets = sorted((name for name in rise if rise[name] > WORSE), key=lambda name: -rise[name])
    texts = [
        f"{name} ({before:.3f} → {after:.3f}, {after - before:+.3f})" for name in sets for before, after in [ends[name]]
    ]
    spent, before = _seconds(best), _seconds(other)
    took = f"{best.name} took {duration(sum(spent))}, {other.name} {duration(sum(before))}"
    took += f"; {duration(spent[-1])} went into measuring." if spent[-1] >= 1.0 else "."
    direction = "lower" if sign < 0 else "higher"
    found = f"Trade-off: the {measure} ended {direction} than with {other.name} on {listed(first_of(texts, 8))}."
    calm = "No other evaluation set ended worse." if len(ends) > 1 else ""
    sentences = [found if sets else calm, took if sum(spent) and sum(before) else ""]
    took_each = [sum(parts) / run.measured(_samples).mean for parts, run in ((spent, best), (before, other))]
    is_longer = took_each[0] > _LONGER * took_each[1] > 0.0
    return Price([text for text in sentences if text], sets, bool(sets) or is_longer)


def _seconds(config: Configuration) -> list[float]:
    return [over_seeds([float(run.timings[part].sum()) for run in config.runs]).mean for part in _PARTS]


def _samples(run: Run) -> float:
    return float(run.clock["total"].sum())


def next_of_several(
    best: Configuration, other: Configuration, is_sure: bool, worse: Sequence[str]
) -> list[tuple[str, str]]:
    """Gives the commands that come next, each with its purpose: more seeds, a bound on what got worse, or the headroom.

    Args:
        best: The best configuration.
        other: The next best one.
        is_sure: Whether its lead is beyond what seeds do.
        worse: Evaluation sets that it made worse, the worst first.
    """
    found = []
    if not is_sure:
        seeds = [run.description.get("data_seed") for config in (best, other) for run in config.runs]
        seed = max((seed for seed in seeds if isinstance(seed, int)), default=0) + 1
        for config in (best, other):
            command = trained(config.runs[0], f"seed-{seed}", "training.seed", seed)
            found.append((f"To train {config.name} with another seed", command))
    if worse and (objective := best.runs[0].objective) is not None and objective.metric == "loss":
        rows = other.runs[0].evaluations[worse[0]]["loss"]
        bound = max(_LEAST_BOUND, round(float(rows.iloc[-1] / rows.iloc[0]), 3))
        bounds = {**objective.bounds, worse[0]: bound}
        kept = trained(best.runs[0], "bounded", "objective.bounds", bounds)
        words = f"its loss may end at {bound:g} times that of the first evaluation at most"
        found.append((f"To keep {worse[0]} from getting worse, a bound: {words}", kept))
    if not found and _has_recipe(best.runs[0]):
        headroom = f"mixer headroom {shlex.quote(str(best.runs[0].folder))}"
        found.append(("To learn how much a better mixture could gain", headroom))
    return found


def next_of_one(run: Run, risen: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Gives the commands that come next, each with its purpose: a bound on what got worse, a run to compare with.

    Args:
        run: The run.
        risen: Evaluation sets whose losses ended above their first ones.
    """
    found = []
    if risen and (objective := run.objective) is not None and objective.metric == "loss":
        bounds = {**objective.bounds, **dict.fromkeys(risen, _BOUND)}
        words = f"{listed(first_of(list(risen), 4))} may end at {_BOUND:g} times the first loss"
        kept = trained(run, "bounded", "objective.bounds", bounds)
        found.append((f"To learn without that rise, a bound, which auto keeps: {words} (without_forgetting.md)", kept))
    baseline = "auto" if rule_in_words(run.description.get("mixing")) == "Uniform" else "Uniform"
    compared = trained(run, baseline.lower(), "mixing", baseline)
    return [*found, ("To train a run to compare it with", compared)]


def trained(run: Run, suffix: str, option: str, value: Any) -> str:
    """Gives what trains as in a run, but for an option, into a folder beside it: a command, or a change of its script.

    Args:
        run: The run.
        suffix: What the name of the new folder ends with.
        option: A field of a recipe: `"mixing"`, or one of `training` or `objective`.
        value: Its value.
    """
    folder = run.folder if run.folder.name else run.folder.resolve()  # "." has no name to put something behind
    output = f"{folder}-{suffix}"
    if not _has_recipe(run):
        return f"# in the script that trained {run.name}: {_in_python(run, output, option, value)}"
    text = shlex.quote(value if isinstance(value, str) else json.dumps(value))
    return f"mixer train {shlex.quote(str(run.folder))} --{option} {text} --training.output_dir {shlex.quote(output)}"


def _in_python(run: Run, output: str, option: str, value: Any) -> str:
    place, _, name = option.rpartition(".")
    own = f", {name}={value!r}" if place == "training" else ""
    calls = [f"TrainingArguments(output_dir={output!r}{own})"]
    if place == "objective" and run.objective is not None:
        importance = run.objective.importance
        targets = importance if len(set(importance.values())) > 1 else list(importance)
        others = "" if run.objective.kind == "average" else f", kind={run.objective.kind!r}"
        calls.append(f"Objective({targets!r}{others}, {name}={value!r})")
    elif not place:
        calls.append(f"MixingTrainer({name}={value!r})")
    return ", ".join(calls)


def _has_recipe(run: Run) -> bool:
    return (run.folder / "recipe.yaml").is_file()
