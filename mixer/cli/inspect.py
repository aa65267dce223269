"""`mixer inspect RECIPE.yaml`: shows a recipe's data as training will see them, and the problems in them."""

import tempfile
from dataclasses import asdict
from functools import partial

from jsonargparse import ArgumentParser, Namespace

from mixer.analysis.inspect.findings import findings_of
from mixer.analysis.inspect.inspection import inspect_recipe
from mixer.analysis.inspect.view import view_of
from mixer.cli.command import FOUND, Command, build_recipe
from mixer.recipe.recipe import RECIPE_FIELDS, Recipe
from mixer.utils.console import add_json, console, only_json, print_json

DEFAULT_NUM_SAMPLES = 50_000
_OWN = ("num_samples", "seed", "strict", "json")  # options that are no fields of a recipe


def inspect() -> Command:
    """Returns the command `mixer inspect`."""
    parser = ArgumentParser(
        description="Shows a recipe's data as training will see them: sizes, lengths, truncation, examples, the first "
        "step, duplicates, and problems. No model weights are loaded. Every field can be overridden: "
        "--streams.NAME.weight 2.",
        usage="mixer inspect RECIPE.yaml [--num_samples N] [--seed S] [--strict] [--json] [--FIELD VALUE ...]",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--recipe", action="config", help="Path of the recipe, a YAML file.")
    add(
        "--num_samples",
        type=int,
        default=DEFAULT_NUM_SAMPLES,
        help=f"Maximum number of samples to read of each stream. Default: {DEFAULT_NUM_SAMPLES:,}.",
    )
    add("--seed", type=int, default=0, help="Seed for drawing these samples and the examples.")
    add("--strict", action="store_true", help=f"Exit with status {FOUND} if there is a warning.")
    add_json(parser)
    parser.add_class_arguments(Recipe)
    run = partial(_inspect, parser)
    summary = "show a recipe's data and the problems in them"
    return Command(parser, run, summary, Recipe, example="mixer inspect recipes/demo.yaml --num_samples 2000")


def _inspect(parser: ArgumentParser, config: Namespace) -> int:
    own = {option: config.pop(option) for option in _OWN}
    for option, least in (("num_samples", 1), ("seed", 0)):
        if own[option] < least:
            raise ValueError(f"--{option} must be at least {least}, got {own[option]}.")
    config.training.report_to, config.training.push_to_hub = "none", False  # nothing is trained
    with tempfile.TemporaryDirectory() as folder, only_json(own["json"]):
        config.training.output_dir = folder
        recipe = build_recipe(Recipe, parser, config, RECIPE_FIELDS, otherwise="training")
        if recipe.training.world_size > 1:
            raise ValueError("mixer inspect runs in one process: start it without torchrun or accelerate launch.")
        inspection = inspect_recipe(recipe, own["num_samples"], own["seed"])
    findings = findings_of(inspection)
    if own["json"]:
        print_json({**inspection.as_data(), "warnings": [asdict(finding) for finding in findings]})
    else:
        console().print(view_of(inspection, findings))
    return FOUND if findings and own["strict"] else 0
