"""Tools whose configurations are tables: keys with their places in a recipe, and one way to name the data."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mixer.tools.recipe.coming_from import table_data
from mixer.tools.recipe.coming_from.common import Table, training_of
from mixer.tools.recipe.coming_from.source import Source


def recipe_of(source: Source, keys: Table, folder: Path) -> dict[str, Any]:
    """Makes a recipe of the tables of a tool.

    Args:
        source: The configuration; keys within keys have names with dots.
        keys: The tool's tables: what its recipes have in common in `recipe`, our places of its keys in `places`, what
            values stand for in `choices`, and the function that adds the streams in `data`.
        folder: The configuration's folder.

    Raises:
        ValueError: If it names no data, or what it names cannot be read.
        FileNotFoundError: If a file of a blend does not exist.
    """
    recipe: dict[str, Any] = copy.deepcopy(keys["recipe"])
    for key, values in keys.get("choices", {}).items():
        _choose(source, key, values, recipe)
    for key, places in keys.get("places", {}).items():
        if (value := source.take(key, -1)) != -1:  # which torchtitan has for values that follow from others
            for place, own in zip(places, value, strict=True) if isinstance(places, list) else [(places, value)]:
                put(recipe, place, own)
    _set_lowest_rate(source, keys.get("floor", ()), recipe)
    getattr(table_data, keys["data"])(source, keys, folder, recipe)
    _name_model(source, keys, recipe)
    training = recipe.pop("training")
    recipe["training"] = training_of(source, recipe.get("trainer"), keys) | training
    source.close(keys["reasons"], harmless=keys["harmless"])
    return recipe


def put(recipe: dict[str, Any], place: str, value: Any) -> None:
    """Writes a value at a place with dots, such as `training.max_steps`."""
    *names, last = place.split(".")
    for name in names:
        recipe = recipe.setdefault(name, {})
    recipe[last] = value


def _choose(source: Source, key: str, values: Table, recipe: dict[str, Any]) -> None:
    """Writes what the value of a key stands for; another value is left, and named."""
    if key not in source.content:
        return
    value, known = source.content[key], {str(name).lower(): own for name, own in values.items()}
    name = str(value).lower()
    if name not in known:
        source.leave(key, f"there is no {value!r} here, but {', '.join(known)}")
        return
    source.take(key)
    for place, own in known[name].items():
        if place == "why":
            source.left[key] = own
        else:
            put(recipe, place, own)


def _set_lowest_rate(source: Source, names: Sequence[str], recipe: dict[str, Any]) -> None:
    is_cosine = recipe["training"].get("lr_scheduler_type") == "cosine_with_min_lr"
    for key in names:
        if is_cosine and key in source.content:
            put(recipe, "training.lr_scheduler_kwargs.min_lr", source.take(key))
        source.leave(key, "of the schedules here cosine alone ends above 0", is_harmless=not source.value(key))


def _name_model(source: Source, keys: Table, recipe: dict[str, Any]) -> None:
    """Says what the recipe's model is, if the configuration does not name it."""
    if "name_or_path" not in recipe["model"]:
        recipe["model"]["name_or_path"] = recipe.get("tokenizer", "MODEL")
        source.left["model"] = keys["model"]
