"""`mixer inspect RECIPE.yaml`: shows a recipe's data as training will see them, and the problems in them."""

import tempfile
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from mixer.tools.analysis.inspect.findings import findings_of
from mixer.tools.analysis.inspect.inspect_view import view_of
from mixer.tools.analysis.inspect.inspection import inspect_recipe
from mixer.tools.cli.command import FOUND, Command, build_recipe, recipe_command
from mixer.tools.console import only_json, show
from mixer.tools.recipe.recipe import Recipe

_NUM_SAMPLES = "Maximum number of samples to read of each stream. Default: 50,000."
_LOSSES = (
    "Also measure the losses and entropies of the recipe's model, or of another one, on at most 1,000 rows of each "
    "source."
)
_OPTIONS: dict[str, dict[str, Any]] = {
    "--num_samples": {"type": int, "default": 50_000, "help": _NUM_SAMPLES},
    "--seed": {"type": int, "default": 0, "help": "Seed for drawing these samples and the examples."},
    "--losses": {"type": str, "nargs": "?", "const": "", "metavar": "NAME_OR_PATH", "help": _LOSSES},
    "--strict": {"action": "store_true", "help": f"Exit with status {FOUND} if there is a warning."},
}


def inspect() -> Command:
    """Show a recipe's data and the problems in them."""
    return recipe_command(
        Recipe,
        _inspect,
        description="Shows a recipe's data as training will see them: sizes, lengths, truncation, examples, the first "
        "step, duplicates, and problems. Weights are only loaded with --losses. Every field can be overridden: "
        "--streams.NAME.weight 2.",
        usage="[--losses [NAME_OR_PATH]] [--num_samples N] [--seed S] [--strict] [--json]",
        example="mixer inspect recipes/demo.yaml --num_samples 2000",
        options=_OPTIONS,
    )


def _inspect(parser: ArgumentParser, config: Namespace, own: Namespace) -> int:
    for option, least in (("num_samples", 1), ("seed", 0)):
        if own[option] < least:
            raise ValueError(f"--{option} must be at least {least}, got {own[option]}.")
    config.training.report_to, config.training.push_to_hub = "none", False  # nothing is trained
    with tempfile.TemporaryDirectory() as folder, only_json(own.json):
        config.training.output_dir = folder
        recipe = build_recipe(Recipe, parser, config)
        if recipe.training.world_size > 1:
            raise ValueError("mixer inspect runs in one process: start it without torchrun or accelerate launch.")
        inspection = inspect_recipe(recipe, own.num_samples, own.seed, own.losses)
    findings = findings_of(inspection)
    content = {**vars(inspection), "warnings": findings}
    show(lambda: content, lambda: view_of(inspection, findings), own.json)
    return FOUND if findings and own.strict else 0
