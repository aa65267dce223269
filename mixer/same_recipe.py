"""Whether two recipes that were written train the same."""

from argparse import ArgumentError
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ArgumentParser

from mixer.recipe import Recipe

# Where a run stands, what is told of it and what is kept on the way: no part of what is trained.
_TOLD = tuple(
    f"training.{name}"
    for name in (
        "output_dir",
        "logging_",
        "log_",
        "disable_tqdm",
        "report_to",
        "run_name",
        "project",
        "trackio_",
        "push_to_hub",
        "hub_",
        "skip_memory_metrics",
    )
)
_KEPT = "training.save_"
_BEST = "training.load_best_model_at_end"  # then the model is one of those that were kept


def read_recipe(path: Path) -> str:
    """Reads a recipe that was written.

    Args:
        path: The file.

    Returns:
        What stands in it.

    Raises:
        ValueError: If it is no recipe, or was cut off.
    """
    text = path.read_text(encoding="utf-8")
    if not text.endswith("\n"):
        raise ValueError("it was cut off" if text else "it is empty")
    _filled_in(text)
    return text


def differences(before: str, now: str) -> list[str]:
    """Compares what two recipes train; what they leave out is the default.

    Args:
        before: A recipe as YAML.
        now: Another one.

    Returns:
        Names of the fields that differ, in order, but for those that say where a run stands or what is told of it.

    Raises:
        ValueError: If one of them is no recipe.
    """
    first, second = _filled_in(before), _filled_in(now)
    left_out = _TOLD if first.get(_BEST) or second.get(_BEST) else (*_TOLD, _KEPT)
    names = (name for name in first.keys() | second.keys() if first.get(name) != second.get(name))
    return sorted(name for name in names if not name.startswith(left_out))


def _filled_in(text: str) -> dict[str, Any]:
    """Gives all fields of a recipe by name, policies and the like in the one form that there is of them all."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(Recipe)
    try:
        config = parser.parse_string(text)
    except (ArgumentError, TypeError) as error:
        raise ValueError(str(error)) from error
    return _flat(yaml.safe_load(parser.dump(config, skip_validation=True)))


def _flat(values: Any, name: str = "") -> dict[str, Any]:
    if not isinstance(values, Mapping) or not values:
        return {name: values}
    parts = [_flat(value, f"{name}.{key}" if name else str(key)) for key, value in values.items()]
    return {key: value for part in parts for key, value in part.items()}
