"""`mixer doremi RECIPE.yaml`: finds mixture weights by two small runs, and trains with them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace
from rich.table import Table

from mixer.analysis.doremi.runs import POLICY, find_weights
from mixer.analysis.steps import Step, finish, on_main
from mixer.cli.command import Command, build_recipe, recipe_command
from mixer.distributed.launch import build_together
from mixer.policies import Policy
from mixer.recipe.files import mixing_of
from mixer.recipe.model import Task
from mixer.recipe.recipe import Recipe
from mixer.utils.console import only_json, show
from mixer.utils.files import write_json
from mixer.utils.text import print_lines

WEIGHTS_FILE = "weights.json"
_DESCRIPTION = (
    "Finds mixture weights by DoReMi: trains a reference model (OUTPUT/reference) and a proxy (OUTPUT/proxy) with the "
    "recipe, and writes the proxy's average weights (OUTPUT/weights.json) in the form of --mixing. Finished runs are "
    "not trained again; an interrupted one resumes from its newest checkpoint, if training.save_strategy wrote any. "
    f"OUTPUT is training.output_dir. mixing is the proxy's policy, {POLICY} by default. Every field can be "
    "overridden: --training.learning_rate 1e-3."
)
_TRAIN = "Also train the recipe's model with these weights, in OUTPUT/main."
_REFERENCE_MIXING = (
    "Mixture of the reference. Default: the weights of the streams; without weights, proportional to size."
)
_PROXY_MODEL = "A smaller model for the reference and the proxy. Default: the recipe's model."


@dataclass
class ProxyModel:
    """A smaller model in place of the recipe's.

    Args:
        task: The model's task. Default: the recipe's.
        name_or_path: A model to load, from a folder or the hub.
        config: The configuration of a new model, with `model_type`; with `name_or_path`, entries to override.
    """

    task: Task | None = None
    name_or_path: str | None = None
    config: dict[str, Any] = field(default_factory=dict)


def doremi() -> Command:
    """Find mixture weights by DoReMi."""
    return recipe_command(
        Recipe,
        _run,
        description=_DESCRIPTION,
        usage="[--train] [--reference_mixing MIXING] [--proxy_model.FIELD VALUE ...] [--json]",
        example=f"mixer doremi recipes/demo.yaml --mixing {POLICY} --training.output_dir runs/doremi",
        options={
            "--train": {"action": "store_true", "help": _TRAIN},
            "--reference_mixing": {"type": Policy | dict[str, float] | str | None, "help": _REFERENCE_MIXING},
            "--proxy_model": {"type": ProxyModel | None, "help": _PROXY_MODEL},
        },
    )


def _run(parser: ArgumentParser, config: Namespace, own: Namespace) -> None:
    if config.reference_model is not None:
        raise ValueError(
            f"reference_model={config.reference_model}: mixer doremi trains the reference itself. Remove the field; to "
            f"use a model that you have, run mixer train with mixing: {POLICY}."
        )
    if config.training.resume_from_checkpoint is not None:
        raise ValueError("training.resume_from_checkpoint: mixer doremi resumes by itself. Remove the field.")
    folder = Path(str(config.training.output_dir or "trainer_output"))
    path = folder / WEIGHTS_FILE
    make = partial(_make, parser, config, own, folder)
    # Fails on all ranks together if one cannot build the run, or builds another one.
    every_option = Namespace(**vars(config), **vars(own))  # type: ignore[no-untyped-call]
    build_together(parser, every_option, None, partial(make, "reference", {}))
    with only_json(own.json):  # training may print to stdout
        result = find_weights(make)
        mixing = mixing_of(result["weights"], result["unit"])
        main = make("main", {"mixing": mixing})
        on_main(main.recipe.training, lambda: write_json(path, mixing))
    if main.recipe.training.process_index == 0:
        table = Table("stream", f"weight (share of {result['unit']})")
        for name, weight in result["weights"].items():
            table.add_row(name, f"{weight:.4f}")
        show(lambda: {**result, "mixing": mixing, "path": path}, lambda: table, own.json)
        if not own.json:
            print_lines(path)
    if own.train:
        with only_json(own.json):
            finish(main)


def _make(
    parser: ArgumentParser, options: Namespace, own: Namespace, folder: Path, name: str, changes: Mapping[str, Any]
) -> Step:
    """Makes a run from the parsed options; runs share no objects."""
    config: Any = options.clone()
    config.training.output_dir = str(folder / name)
    given_as = {}
    if name == "reference":
        config.mixing, given_as["mixing"] = own.clone().reference_mixing, "reference_mixing"
    elif name == "proxy" and config.mixing is None:
        config.mixing = POLICY
    if name != "main" and own.proxy_model is not None:
        task = config.model.task
        config.model, given_as["model"] = own.clone().proxy_model, "proxy_model"
        config.model.task = config.model.task or task
    for option, value in changes.items():
        config[option] = value
    recipe = build_recipe(Recipe, parser, config, given_as)
    config.pop("recipe", None)
    return Step(recipe, parser.dump(config, skip_validation=True), given_as)
