"""`mixer headroom RECIPE.yaml`: whether there is anything to gain from another mixture."""

import json
import math
import shlex
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace
from rich.table import Table

from mixer.analysis.headroom.headroom import OWN, Headroom, ShortRun, best_of, first_runs
from mixer.analysis.steps import Step, finish
from mixer.cli.command import Command, build_recipe, recipe_command
from mixer.mixture.stream import describe
from mixer.recipe.recipe import Recipe
from mixer.trainer.trainer import MixingTrainer
from mixer.utils.console import console, only_json, print_json
from mixer.utils.ranges import check_range

_LEAST_STEPS = 10
_SHARE = "Length of each run, as a share of the recipe's. Streams are cut likewise, so they repeat as often."


def headroom() -> Command:
    """Say whether another mixture would lower the objective."""
    return recipe_command(
        Recipe,
        _run,
        description="Trains the recipe for a short while on a handful of fixed mixtures (the streams' own weights, "
        "more of each stream, and the best by a fit to these, on another seed), and says whether there is anything to "
        "gain. Results are kept in OUTPUT/headroom; OUTPUT is training.output_dir.",
        usage="[--share SHARE] [--json]",
        example="mixer headroom recipes/demo.yaml --share 0.1",
        options={"--share": {"type": float, "default": 0.1, "metavar": "SHARE", "help": _SHARE}},
    )


def _run(parser: ArgumentParser, config: Namespace, own: Namespace) -> None:
    check_range("--share", own.share, 0.01, 1.0, "0.1 takes a tenth of the recipe's steps for each run")
    if config.objective is None:
        raise ValueError("mixer headroom needs an objective: set objective to the evaluation sets that the run is for.")
    with only_json(own.json):
        trainer = build_recipe(Recipe, parser, config.clone()).build_parts(has_weights=False).trainer
        steps = max(_LEAST_STEPS, round(own.share * trainer.mixing.clock.max_steps))
        weights = dict(zip(trainer.mixing.names, describe(trainer.streams).weights.tolist(), strict=True))
        if sum(weight > 0.0 for weight in weights.values()) < 2:
            raise ValueError(f"mixer headroom compares mixtures of two or more streams, got the weights {weights}.")
        sign = -1.0 if trainer.describe_run()["objective"]["greater_is_better"] else 1.0
        measure = partial(_objective, parser, config, own.share, steps)
        first = first_runs(weights)
        values = [measure(run) for run in first]
        best = best_of(first, [sign * value for value in values])
        again = ShortRun(f"{OWN}, other seed", first[0].weights, best.seed_offset)
        runs = [*first, again, best]
        values += [measure(again), measure(best)]
    signed = [sign * value for value in values]
    found = Headroom.of(signed[:-2], signed[-2], best, signed[-1])
    if own.json:
        rows = [{"name": run.name, "weights": run.weights, "objective": v} for run, v in zip(runs, values, strict=True)]
        print_json({"gain": found.gain, "noise": found.noise, "is_clear": found.is_clear, "steps": steps, "runs": rows})
        return
    screen, table = console(), Table("run", *weights, "objective")
    for run, value in zip(runs, values, strict=True):
        table.add_row(run.name, *(f"{run.weights[name]:.2f}" for name in weights), f"{value:.4f}")
    screen.print(table)
    for sentence in found.sentences():
        screen.print(sentence, markup=False, highlight=False)
    if found.is_clear:  # not wrapped, so that it can be copied
        print(f"  mixer train RECIPE.yaml --mixing {shlex.quote(json.dumps(best.weights))}")  # noqa: T201


def _objective(parser: ArgumentParser, options: Namespace, share: float, steps: int, run: ShortRun) -> float:
    """Trains a short run, unless it is finished, and returns its objective."""
    config: Any = options.clone()
    training = config.training
    folder = Path(str(training.output_dir or "trainer_output")) / "headroom" / f"{steps}_steps"
    training.output_dir = str(folder / run.name.replace(" ", "_"))
    training.max_steps, training.seed = steps, training.seed + run.seed_offset
    training.warmup_steps = training.warmup_steps if training.warmup_steps < 1 else round(share * training.warmup_steps)
    training.eval_strategy = training.save_strategy = "no"
    training.load_best_model_at_end = False
    config.mixing, config.budget = dict(run.weights), None
    training.budget_samples = training.budget_tokens = None
    for stream in config.streams.values():
        stream["rows_share"] = stream["rows_share"] * share
    recipe = build_recipe(Recipe, parser, config)
    config.pop("recipe", None)
    step = Step(recipe, parser.dump(config, skip_validation=True), is_trial=True)
    value = float(finish(step, _evaluated)["objective"])
    if not math.isfinite(value):
        raise ValueError(
            f"The objective of the run {run.name!r} is {value}: it diverged, or its metric is none that "
            f"compute_metrics returns. Its folder is {training.output_dir}."
        )
    return value


def _evaluated(trainer: MixingTrainer) -> dict[str, Any]:
    metrics: Mapping[str, float] = trainer.evaluate()
    return {"objective": metrics.get("eval_objective", math.nan)}
