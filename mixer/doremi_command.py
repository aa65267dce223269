"""`mixer doremi RECIPE.yaml`: weights of a mixture by two small runs, and a run with these weights."""

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from accelerate import PartialState
from jsonargparse import ArgumentParser, Namespace
from rich.console import Console
from rich.table import Table

from mixer.checkpoint import write_json
from mixer.commands import Command, build_recipe
from mixer.doremi import POLICY, FoundWeights, Step, find_weights, finish, on_main
from mixer.policies import Policy
from mixer.recipe import RECIPE_FIELDS, ModelRecipe, Recipe

WEIGHTS_FILE = "weights.json"
_OWN = ("train", "reference_mixing", "proxy_model")  # what is no field of a recipe


def doremi() -> Command:
    """Gives the command that finds the weights of a mixture by DoReMi.

    Returns:
        The command.
    """
    parser = ArgumentParser(
        description="Finds the weights of a mixture by DoReMi: trains a reference model (OUTPUT/reference) and a proxy "
        "that is compared with it (OUTPUT/proxy), both by the recipe, and writes the weights that the proxy had on "
        "average (OUTPUT/weights.json). Steps that are at their end are not trained again, and one that was cut off "
        "goes on from its newest checkpoint. OUTPUT is training.output_dir; mixing is the proxy's policy, DoReMi by "
        "default. Every field can be overridden: --training.learning_rate 1e-3.",
        usage="mixer doremi RECIPE.yaml [--train] [--reference_mixing MIXING] [--proxy_model.FIELD VALUE ...] "
        "[--FIELD VALUE ...]",
        allow_abbrev=False,
    )
    parser.add_argument("--recipe", action="config", help="Path of the recipe, a YAML file.")
    parser.add_argument(
        "--train", action="store_true", help="Train the recipe's model on the found weights too, in OUTPUT/main."
    )
    parser.add_argument(
        "--reference_mixing",
        type=Policy | dict[str, float] | str | None,
        default=None,
        help="The mixture that the reference is trained on. Default: the streams' own weights; without any, shares by "
        "size.",
    )
    parser.add_argument(
        "--proxy_model",
        type=ModelRecipe | None,
        default=None,
        help="A smaller model for reference and proxy. Default: that of the recipe.",
    )
    parser.add_class_arguments(Recipe)
    return Command(parser, partial(_run, parser), "find the weights of a mixture by DoReMi", takes_recipe=True)


def _run(parser: ArgumentParser, config: Namespace) -> None:
    if config.reference_model is not None:
        raise ValueError(
            f"reference_model={config.reference_model}: doremi trains the reference itself. Leave it out; or compare "
            f"with a model that you have by mixer train, with mixing: {POLICY}."
        )
    if config.training.resume_from_checkpoint is not None:
        raise ValueError("training.resume_from_checkpoint: doremi finds out by itself where to go on. Leave it out.")
    folder = Path(str(config.training.output_dir or "trainer_output"))
    make = partial(_make, parser, config, folder)
    found = find_weights(make)
    main = make("main", {"mixing": _fixed(found)})
    training = main.recipe.training
    on_main(training, lambda: write_json(folder / WEIGHTS_FILE, found.weights))
    if training.process_index == 0:
        _print(found, folder / WEIGHTS_FILE)
    if config.train:
        finish(main)
    # A rank that ends while another still writes can take it down: they end together, and end their group.
    state = PartialState()
    state.wait_for_everyone()
    state.destroy_process_group()


def _make(parser: ArgumentParser, config: Namespace, folder: Path, name: str, changes: Mapping[str, Any]) -> Step:
    """Makes one of the runs anew of what was parsed: no step has to do with objects of another one."""
    own: Any = config.clone()
    options = {option: own.pop(option) for option in _OWN}
    own.training.output_dir = str(folder / name)
    if name == "reference":
        own.mixing = options["reference_mixing"]
    elif name == "proxy" and own.mixing is None:
        own.mixing = POLICY
    if name != "main" and options["proxy_model"] is not None:
        own.model = options["proxy_model"]
    for field, value in changes.items():
        own[field] = value
    recipe = build_recipe(Recipe, parser, own, RECIPE_FIELDS, otherwise="training")
    own.pop("recipe", None)
    return Step(recipe, parser.dump(own, skip_validation=True))


def _fixed(found: FoundWeights) -> Namespace:
    new: Any = Namespace
    fixed: Namespace = new(class_path="mixer.Fixed", init_args=new(weights=dict(found.weights), unit=found.unit))
    return fixed


def _print(found: FoundWeights, path: Path) -> None:
    table = Table()
    for column in ("stream", f"weight (share of {found.unit})"):
        table.add_column(column)
    for name, weight in found.weights.items():
        table.add_row(name, f"{weight:.4f}")
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    print(path)  # noqa: T201
