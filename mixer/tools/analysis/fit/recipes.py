"""Checks that runs of `mixer train` differ in their mixture alone, by the recipes in their folders."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from mixer.tools.recipe.recipe_files import filled_in, is_ignored, is_of_training
from mixer.tools.recipe.yaml_files import MOST_CHARACTERS, load_yaml
from mixer.utils.errors import InvalidValueError
from mixer.utils.nested import Field, flat
from mixer.utils.text import first_of, shortened
from mixer.utils.validation import read_bytes

_FILE = "recipe.yaml"
_MOST_NAMED, _LONGEST = 8, 60

# The mixture and options that only serve its policy; budgets, which are compared as recorded.
_FIELDS = {"mixing", "groupings", "probe", "budget"}
_STREAM_FIELDS = {"weight", "groups", "seed"}
# Seeds, length, evaluation and saving: none changes the losses of a mixture.
_TRAINING_FIELDS = (
    *("seed", "data_seed", "max_steps", "num_train_epochs", "eval_", "include_", "save_", "load_best_model_at_end"),
    *("resume_from_checkpoint", "restore_callback_states_from_checkpoint", "ignore_data_skip", "enable_jit_checkpoint"),
    *("do_train", "do_eval", "do_predict", "prediction_loss_only", "batch_eval_metrics"),
    *("mixing", "budget_", "allow_inexact"),
)


def check_recipes(folders: Mapping[str, Path], allow_different: bool) -> list[str]:
    """Compares the recipes of runs, apart from mixture, seeds, length and reporting.

    Args:
        folders: Output folders by the name of the run.
        allow_different: Whether to note differences rather than to refuse them.

    Returns:
        Notes for readers of the fit, in sentences.

    Raises:
        ValueError: If recipes differ, with the fields and values, or one cannot be read.
    """
    recipes = _read({name: folder / _FILE for name, folder in folders.items() if (folder / _FILE).is_file()})
    notes = []
    without = [name for name in folders if name not in recipes]
    if without:
        which = ", ".join(without) if recipes else "any run"
        notes.append(f"The recipe of {which} was not compared: it has no {_FILE}, which only mixer train writes.")
    if differing := _differences(recipes):
        fields = "; ".join(first_of(differing, _MOST_NAMED))
        if not allow_different:
            raise InvalidValueError(
                f"Runs must differ in their mixture alone, but their recipes differ in: {fields}. Leave these runs "
                "out, or fit them all the same with --allow-different-recipes.",
                option="runs",
                found=differing,
            )
        notes.append(f"Recipes differ in more than the mixture, which may change losses: {fields}.")
    return notes


def _read(paths: Mapping[str, Path]) -> dict[str, dict[Field, Any]]:
    """Gives the fields of each recipe: as written in the file if one is not of this version."""
    texts = {name: _text(path) for name, path in paths.items()}
    try:
        return {name: filled_in(text) for name, text in texts.items()}
    except ValueError:  # unknown fields, or a class that is not installed
        return {name: flat(load_yaml(text)) for name, text in texts.items()}


def _text(path: Path) -> str:
    try:
        text = read_bytes(path, 4 * MOST_CHARACTERS).decode()
        load_yaml(text)
    except (OSError, ValueError, yaml.YAMLError) as error:
        cause = " ".join(str(error).split())
        raise InvalidValueError(
            f"{path} cannot be read ({cause}): mend it, or remove it and compare it yourself.", option=str(path)
        ) from None
    return text


def _counts(field: Field) -> bool:
    """Whether runs that differ in a field differ in more than their mixture."""
    first, *rest = field or ("",)
    if first == "streams" and len(rest) > 1:
        return rest[1] not in _STREAM_FIELDS
    return first not in _FIELDS and not is_ignored(field) and not is_of_training(field, _TRAINING_FIELDS)


def _differences(recipes: Mapping[str, Mapping[Field, Any]]) -> list[str]:
    """Names each field in which recipes differ, with the values."""
    differing = []
    for field in sorted(filter(_counts, {field for recipe in recipes.values() for field in recipe})):
        values = pd.Series({name: repr(recipe.get(field) or None) for name, recipe in recipes.items()})
        if values.nunique() > 1:
            by_run = [f"{shortened(value, _LONGEST)} in {run}" for run, value in values.drop_duplicates().items()]
            differing.append(f"{'.'.join(field)} ({', '.join(by_run)})")
    return differing
