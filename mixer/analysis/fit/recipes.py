"""Whether runs of `mixer train` differ in their mixture alone, by the recipes in their folders."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from mixer.recipe.files import filled_in, is_ignored, is_of_training
from mixer.utils.nested import Field, flat
from mixer.utils.validation import read_bytes
from mixer.utils.yaml_files import MOST_CHARACTERS, load_yaml

_FILE = "recipe.yaml"
_MOST_NAMED, _LONGEST = 8, 60

# The mixture, and what only serves its policy; budgets, which are compared as they were used up; and how it went on.
_FIELDS = {"mixing", "groupings", "probe", "reference_model", "budget", "allow_inexact"}
_STREAM_FIELDS = {"weight", "groups", "seed"}
# A mixture is fixed, or taken as it came out: when a run evaluated and what it kept leads to no other losses of it.
_TRAINING_FIELDS = (
    *("seed", "data_seed", "max_steps", "num_train_epochs", "eval_", "include_", "save_", "load_best_model_at_end"),
    *("resume_from_checkpoint", "restore_callback_states_from_checkpoint", "ignore_data_skip", "enable_jit_checkpoint"),
    *("do_train", "do_eval", "do_predict", "prediction_loss_only", "batch_eval_metrics"),
)


def check_recipes(folders: Mapping[str, Path], allow_different: bool) -> list[str]:
    """Refuses runs whose recipes differ in more than mixture, seeds, length and what is reported.

    Args:
        folders: Their output folders by name.
        allow_different: Whether to say in what they differ and go on.

    Returns:
        What a reader of the fit should know of it, in sentences.

    Raises:
        ValueError: If recipes differ, with their fields and values and the way out, or one cannot be read.
    """
    recipes = _read({name: folder / _FILE for name, folder in folders.items() if (folder / _FILE).is_file()})
    notes = []
    without = [name for name in folders if name not in recipes]
    if without:
        which = ", ".join(without) if recipes else "any"
        notes.append(
            f"Whether runs differ in their mixture alone was not checked of {which}: there is no {_FILE} in the "
            "folder, where mixer train leaves one."
        )
    differing = _differences(recipes)
    more = len(differing) - _MOST_NAMED
    named = "; ".join(differing[:_MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")
    if differing and not allow_different:
        raise ValueError(
            f"Runs must differ in their mixture alone, but their recipes differ in: {named}. Leave these runs out, or "
            "fit them all the same with --allow-different-recipes."
        )
    if differing:
        notes.append(f"Recipes differ in more than the mixture, and losses may by that: {named}.")
    return notes


def _read(paths: Mapping[str, Path]) -> dict[str, dict[Field, str]]:
    """Gives what counts of recipes, as text, by field: as they are written where one is none of this version."""
    texts = {name: _text(path) for name, path in paths.items()}
    try:
        recipes = {name: filled_in(text) for name, text in texts.items()}
    except ValueError:  # fields that are no more, or a class that cannot be had here
        recipes = {name: flat(load_yaml(text)) for name, text in texts.items()}
    return {name: _counting(recipe) for name, recipe in recipes.items()}


def _text(path: Path) -> str:
    try:
        text = read_bytes(path, 4 * MOST_CHARACTERS).decode()
        load_yaml(text)
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"{path} cannot be read ({reason}): mend it, or take it away and see to it yourself."
        ) from None
    return text


def _counting(recipe: Mapping[Field, Any]) -> dict[Field, str]:
    return {field: repr(value) for field, value in recipe.items() if value not in (None, {}) and _counts(field)}


def _counts(field: Field) -> bool:
    """Whether runs that differ in a field differ in more than their mixture."""
    first, *rest = field or ("",)
    if first == "streams" and len(rest) > 1:
        return rest[1] not in _STREAM_FIELDS
    return first not in _FIELDS and not is_ignored(field) and not is_of_training(field, _TRAINING_FIELDS)


def _differences(recipes: Mapping[str, Mapping[Field, str]]) -> list[str]:
    """Says for each field in which recipes differ what most have, and which have something else."""
    differing = []
    for field in sorted({field for recipe in recipes.values() for field in recipe}):
        values = {name: recipe.get(field, "nothing") for name, recipe in recipes.items()}
        usual, count = Counter(values.values()).most_common(1)[0]
        if count < len(recipes):
            others = ", ".join(f"{_short(value)} in {name}" for name, value in values.items() if value != usual)
            differing.append(f"{'.'.join(field)} ({_short(usual)}, but {others})")
    return differing


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
