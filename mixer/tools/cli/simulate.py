"""`mixer simulate RECIPE.yaml`: plans a run without a model."""

from typing import Any

from jsonargparse import ArgumentParser, Namespace

from mixer.tools.analysis.simulate.screen import screen
from mixer.tools.analysis.simulate.simulate import simulate as simulate_run
from mixer.tools.analysis.simulate.simulated import check_every
from mixer.tools.cli.command import Command, build_recipe, recipe_command
from mixer.tools.console import only_json, show
from mixer.tools.recipe.recipe import Recipe

_NUM_RANKS = "Number of processes. Default: 1."
_EVERY = "Show the mixture by parts of the run, each of this share of it."
_OPTIONS: dict[str, dict[str, Any]] = {
    "--num_ranks": {"type": int, "default": 1, "metavar": "N", "help": _NUM_RANKS},
    "--every": {"type": float, "default": 0.1, "metavar": "SHARE", "help": _EVERY},
}


def simulate() -> Command:
    """Plan a run without a model."""
    return recipe_command(
        Recipe,
        _simulate,
        description="Plans the whole run of a recipe without a model. Every field can be overridden: --batch_size 64.",
        usage="[--num_ranks N] [--every SHARE] [--json]",
        example="mixer simulate recipes/demo.yaml --mixing Proportional --num_ranks 2",
        options=_OPTIONS,
    )


def _simulate(parser: ArgumentParser, config: Namespace, own: Namespace) -> None:
    check_every(own.every)
    with only_json(own.json):
        planned = simulate_run(build_recipe(Recipe, parser, config), own.num_ranks)
    show(lambda: planned.summary(own.every), lambda: screen(planned, own.every), own.json)
