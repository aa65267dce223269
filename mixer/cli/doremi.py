"""`mixer doremi RECIPE.yaml`: weights of a mixture by two small runs, and a run with these weights."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace
from rich.table import Table

from mixer.analysis.doremi.runs import POLICY, FoundWeights, Step, find_weights, finish, on_main
from mixer.cli.command import Command, build_recipe
from mixer.distributed.launch import build_together
from mixer.policies import Policy
from mixer.recipe.files import mixing_of
from mixer.recipe.model import Task
from mixer.recipe.recipe import RECIPE_FIELDS, Recipe
from mixer.utils.console import add_json, console, only_json, print_json
from mixer.utils.files import write_json

WEIGHTS_FILE = "weights.json"
_OWN = ("train", "reference_mixing", "proxy_model", "json")  # what is no field of a recipe
_DESCRIPTION = (
    "Finds the weights of a mixture by DoReMi: trains a reference model (OUTPUT/reference) and a proxy that is "
    "compared with it (OUTPUT/proxy), both by the recipe, and writes the weights that the proxy had on average "
    "(OUTPUT/weights.json), as --mixing takes them. Steps that are at their end are not trained again, and one that "
    "was cut off goes on from its newest checkpoint, if training.save_strategy had any written. OUTPUT is "
    f"training.output_dir; mixing is the proxy's policy, {POLICY} by default (--mixing {POLICY} in place of the "
    "recipe's). Every field can be overridden: --training.learning_rate 1e-3."
)


@dataclass
class ProxyModel:
    """A smaller model in place of the recipe's.

    Args:
        task: The kind of head. Default: that of the recipe's model.
        name_or_path: A model to load, from a folder or by its name on the hub.
        config: Without `name_or_path`: the configuration of a new model, `model_type` among its entries. Beside it:
            entries that are changed.
    """

    task: Task | None = None
    name_or_path: str | None = None
    config: dict[str, Any] = field(default_factory=dict)


def doremi() -> Command:
    """Gives the command that finds the weights of a mixture by DoReMi.

    Returns:
        The command.
    """
    parser = ArgumentParser(
        description=_DESCRIPTION,
        usage="mixer doremi RECIPE.yaml [--train] [--reference_mixing MIXING] [--proxy_model.FIELD VALUE ...] "
        "[--json] [--FIELD VALUE ...]",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--recipe", action="config", help="Path of the recipe, a YAML file.")
    add("--train", action="store_true", help="Train the recipe's model on the found weights too, in OUTPUT/main.")
    add(
        "--reference_mixing",
        type=Policy | dict[str, float] | str | None,
        default=None,
        help="The reference's mixture. Default: the streams' own weights; without any, shares by size.",
    )
    add(
        "--proxy_model",
        type=ProxyModel | None,
        default=None,
        help="A smaller model for reference and proxy. Default: that of the recipe.",
    )
    add_json(parser)
    parser.add_class_arguments(Recipe)
    example = f"mixer doremi recipes/demo.yaml --mixing {POLICY} --training.output_dir runs/doremi"
    run, summary = partial(_run, parser), "find the weights of a mixture by DoReMi"
    return Command(parser, run, summary, recipe_class=Recipe, example=example)


def _run(parser: ArgumentParser, config: Namespace) -> None:
    if config.reference_model is not None:
        raise ValueError(
            f"reference_model={config.reference_model}: doremi trains the reference itself. Leave it out; or compare "
            f"with a model that you have by mixer train, with mixing: {POLICY}."
        )
    if config.training.resume_from_checkpoint is not None:
        raise ValueError("training.resume_from_checkpoint: doremi finds out by itself where to go on. Leave it out.")
    folder = Path(str(config.training.output_dir or "trainer_output"))
    path = folder / WEIGHTS_FILE
    make = partial(_make, parser, config, folder)
    # All ranks have come, for the same run, and can begin.
    build_together(parser, config, None, partial(make, "reference", {}))
    with only_json(config.json):  # training prints what it likes
        found = find_weights(make)
        mixing = mixing_of(found.weights, found.unit)
        main = make("main", {"mixing": mixing})
        on_main(main.recipe.training, lambda: write_json(path, mixing))
    if main.recipe.training.process_index == 0:
        _show(found, mixing, path, config.json)
    if config.train:
        with only_json(config.json):
            finish(main)


def _make(parser: ArgumentParser, config: Namespace, folder: Path, name: str, changes: Mapping[str, Any]) -> Step:
    """Makes one of the runs anew of what was parsed: no step has to do with objects of another one."""
    own: Any = config.clone()
    options = {option: own.pop(option) for option in _OWN}
    own.training.output_dir = str(folder / name)
    given_as = {}
    if name == "reference":
        own.mixing, given_as["mixing"] = options["reference_mixing"], "reference_mixing"
    elif name == "proxy" and own.mixing is None:
        own.mixing = POLICY
    if name != "main" and options["proxy_model"] is not None:
        task = own.model.task
        own.model, given_as["model"] = options["proxy_model"], "proxy_model"
        own.model.task = own.model.task or task
    for option, value in changes.items():
        own[option] = value
    recipe = build_recipe(Recipe, parser, own, RECIPE_FIELDS, "training", given_as)
    own.pop("recipe", None)
    return Step(recipe, parser.dump(own, skip_validation=True), given_as)


def _show(found: FoundWeights, mixing: Mapping[str, Any], path: Path, is_json: bool) -> None:
    if is_json:
        print_json({"weights": found.weights, "unit": found.unit, "mixing": mixing, "path": path})
        return
    table = Table()
    for column in ("stream", f"weight (share of {found.unit})"):
        table.add_column(column)
    for name, weight in found.weights.items():
        table.add_row(name, f"{weight:.4f}")
    console().print(table)
    print(path)  # noqa: T201
