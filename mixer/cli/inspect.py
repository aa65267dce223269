"""`mixer inspect RECIPE.yaml`: what a run would be given, and what of it will hurt."""

import tempfile
from functools import partial

from jsonargparse import ArgumentParser, Namespace

from mixer.analysis.inspect.document import document_of
from mixer.analysis.inspect.findings import findings_of
from mixer.analysis.inspect.inspection import Look, inspect_recipe
from mixer.analysis.inspect.view import view_of
from mixer.cli.command import FOUND, Command, build_recipe
from mixer.recipe.recipe import RECIPE_FIELDS, Recipe
from mixer.utils.console import add_json, console, only_json, print_json

DEFAULT_NUM_SAMPLES = 50_000
_OWN = ("num_samples", "seed", "strict", "json")  # what is no field of a recipe


def inspect() -> Command:
    """Gives the command that looks at the data of a recipe.

    Returns:
        The command.
    """
    parser = ArgumentParser(
        description="Looks at the data of a recipe as a run would be given them, without the weights of a model: "
        "sizes, lengths, examples, the first step, duplicates, and what will hurt. Every field can be overridden: "
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
        help=f"The most samples of a stream that are looked at. Default: {DEFAULT_NUM_SAMPLES:,}.",
    )
    add("--seed", type=int, default=0, help="Seed of which those are, and of the examples.")
    add("--strict", action="store_true", help=f"End with status {FOUND} where there is a warning.")
    add_json(parser)
    parser.add_class_arguments(Recipe)
    run = partial(_inspect, parser)
    summary = "look at the data of a recipe, and what of it will hurt"
    return Command(parser, run, summary, Recipe, example="mixer inspect recipes/demo.yaml --num_samples 2000")


def _inspect(parser: ArgumentParser, config: Namespace) -> int:
    own = {option: config.pop(option) for option in _OWN}
    _check(own["num_samples"], own["seed"])
    config.training.report_to, config.training.push_to_hub = "none", False  # nothing is trained
    with tempfile.TemporaryDirectory() as folder, only_json(own["json"]):
        config.training.output_dir = folder
        recipe = build_recipe(Recipe, parser, config, RECIPE_FIELDS, otherwise="training")
        if recipe.training.world_size > 1:
            raise ValueError("inspect looks at data in one process: start it without torchrun or accelerate launch.")
        inspection = inspect_recipe(recipe, Look(own["num_samples"], own["seed"]))
    findings = findings_of(inspection)
    if own["json"]:
        print_json(document_of(inspection, findings))
    else:
        console().print(view_of(inspection, findings))
    return FOUND if findings and own["strict"] else 0


def _check(num_samples: int, seed: int) -> None:
    if num_samples < 1:
        raise ValueError(f"--num_samples must be at least 1, got {num_samples}.")
    if seed < 0:
        raise ValueError(f"--seed must be 0 or more, got {seed}.")
