"""`mixer simulate RECIPE.yaml`: plans a run without a model."""

from functools import partial

from jsonargparse import ArgumentParser, Namespace

from mixer.analysis.simulate.screen import screen
from mixer.analysis.simulate.simulate import simulate as simulate_run
from mixer.analysis.simulate.simulated import check_every
from mixer.cli.command import Command, build_recipe
from mixer.recipe.recipe import RECIPE_FIELDS, Recipe
from mixer.utils.console import add_json, console, only_json, print_json

_OWN = ("num_ranks", "losses", "every", "output", "json")


def simulate() -> Command:
    """Gives the command that plans a run."""
    parser = ArgumentParser(
        description="Plans the whole run of a recipe without a model. Every field can be overridden: --batch_size 64.",
        usage="mixer simulate RECIPE.yaml [--num_ranks N] [--losses RUN] [--every SHARE] [--output FOLDER] [--json] "
        "[--FIELD VALUE ...]",
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
        help="Output folder of a run whose losses and gradients adaptive rules observe. Without it they hold the "
        "weights and the batch size that they start with.",
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
    with only_json(own["json"]):
        recipe = build_recipe(Recipe, parser, config, RECIPE_FIELDS, otherwise="training")
        planned = simulate_run(recipe, own["num_ranks"], own["losses"], own["output"])
    if own["json"]:
        print_json(planned.summary(own["every"]))
    else:
        console().print(screen(planned, own["every"]))
