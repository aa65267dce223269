"""`mixer simulate RECIPE.yaml`: a run planned without a model."""

import json
from functools import partial
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from mixer.analysis.simulate.assumed import EXAMPLE
from mixer.analysis.simulate.screen import screen
from mixer.analysis.simulate.simulate import simulate as simulate_run
from mixer.analysis.simulate.simulated import check_every
from mixer.cli.command import Command, build_recipe
from mixer.recipe.recipe import RECIPE_FIELDS, Recipe
from mixer.utils.console import add_json, console, only_json, print_json

_OWN = ("num_ranks", "losses", "assumed_losses", "every", "output", "json")


def simulate() -> Command:
    """Gives the command that plans a run.

    Returns:
        The command.
    """
    parser = ArgumentParser(
        description="Plans the whole run of a recipe without a model. Every field can be overridden: --batch_size 64.",
        usage="mixer simulate RECIPE.yaml [--num_ranks N] [--losses RUN | --assumed_losses JSON] [--every SHARE] "
        "[--output FOLDER] [--json] [--FIELD VALUE ...]",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--recipe", action="config", help="Path of the recipe, a YAML file.")
    add("--num_ranks", type=int, default=1, metavar="N", help="Processes of the launch. Default: 1.")
    add(
        "--losses",
        type=str | None,
        default=None,
        metavar="RUN",
        help="Output folder of a run whose losses and gradients an adaptive policy sees.",
    )
    add(
        "--assumed_losses",
        type=str | None,
        default=None,
        metavar="JSON",
        help="In their place a course for streams, or for all: "
        """'{"default": {"start": 4, "end": 1.5, "scale": 1000, "exponent": 0.5}, "code": {"end": 1}}'.""",
    )
    add("--every", type=float, default=0.1, metavar="SHARE", help="Shows the mixture in such parts of the run.")
    add("--output", type=str | None, default=None, metavar="FOLDER", help="Writes a ledger there, as a run would.")
    add_json(parser)
    parser.add_class_arguments(Recipe)
    return Command(
        parser,
        partial(_simulate, parser),
        "plan a run without a model",
        recipe_class=Recipe,
        example="mixer simulate recipes/demo.yaml --mixing Proportional --num_ranks 2",
    )


def _simulate(parser: ArgumentParser, config: Namespace) -> None:
    own = {name: config.pop(name) for name in _OWN}
    check_every(own["every"])
    assumed = _assumed(own["assumed_losses"])
    with only_json(own["json"]):
        recipe = build_recipe(Recipe, parser, config, RECIPE_FIELDS, otherwise="training")
        found = simulate_run(recipe, own["num_ranks"], own["losses"], assumed, own["output"])
    if own["json"]:
        print_json(found.summary(own["every"]))
    else:
        console().print(screen(found, own["every"]))


def _assumed(text: str | None) -> Any:
    """Reads what the user assumes; what is wrong within is told where it is used."""
    try:
        content = None if text is None else json.loads(text)
    except ValueError:
        content = text
    if text is not None and not isinstance(content, dict):
        raise ValueError(f"--assumed_losses must be a JSON mapping of streams, such as {EXAMPLE}, got {text!r}.")
    return content
