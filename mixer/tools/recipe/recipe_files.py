"""Recipes as files: read from the folder of a run, compared, and weights in the form of a recipe's `mixing`."""

import functools
import re
import sys
from argparse import ArgumentError
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ArgumentParser

from mixer.policies.contract import Unit
from mixer.policies.registry import policy_classes
from mixer.tools.recipe.storage_options import STORAGE_OPTIONS
from mixer.tools.recipe.yaml_files import load_yaml
from mixer.utils.errors import InvalidValueError
from mixer.utils.nested import Field, flat

# Training arguments that do not change what is trained: the run's folder, its logging and its data loading.
_IGNORED = (
    *("output_dir", "logging_", "log_", "disable_tqdm", "report_to", "run_name", "project", "trackio_"),
    *("push_to_hub", "hub_", "skip_memory_metrics", "dataloader_num_workers", "dataloader_prefetch_factor"),
    *("dataloader_pin_memory", "dataloader_persistent_workers", "ledger_interval_steps"),
)
# Saving changes the result only if the best checkpoint is loaded at the end.
_SAVING = ("save_",)
_BEST = ("training", "load_best_model_at_end")
# Fields of plain text: a dotted name in them imports nothing.
_TEXTS = frozenset(
    {"factory", "path", "name", "split", "train_split", "validation_split", "revision", "name_or_path", "gguf_file"}
    | {"include", "exclude", "output_dir", "run_name", "head", "groups", "arguments", "config", "lora", "layers"}
    | {"chat_template", "chat_template_path", "quantization", "model_init_kwargs", "eos_token", "pad_token", "rename"}
    | {"image_folder"}
    | {STORAGE_OPTIONS}
)
_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")


def filled_in(text: str) -> dict[Field, Any]:
    """Parses a recipe and fills in all defaults, so that two spellings of a recipe compare equal.

    Args:
        text: The recipe as YAML.

    Returns:
        Values by field.

    Raises:
        ValueError: If the text is no recipe, or names a class of a package that is not imported yet: a recipe in a
            run's folder must not import packages.
    """
    try:
        content = load_yaml(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        parser = _parser(content.get("trainer") if isinstance(content, dict) else None)
        _refuse_unknown_packages(content)
        config = parser.parse_string(text)
    except (ArgumentError, TypeError, yaml.YAMLError) as error:
        raise InvalidValueError(str(error), option="recipe") from error
    return flat(yaml.safe_load(parser.dump(config, skip_validation=True)))


def _refuse_unknown_packages(content: Any, field: str = "", is_text: bool = False) -> None:
    if isinstance(content, dict):
        for name, part in content.items():
            inner = f"{field}.{name}" if field else str(name)
            _refuse_unknown_packages(part, inner, name != "class_path" and (is_text or name in _TEXTS))
    elif isinstance(content, list):
        for part in content:
            _refuse_unknown_packages(part, field, is_text)
    elif isinstance(content, str) and not is_text and _is_of_unknown_package(content):
        raise InvalidValueError(f"{field}: {content} is of a package that is not loaded here", option=field)


def _is_of_unknown_package(name: str) -> bool:
    return _DOTTED.fullmatch(name) is not None and name.partition(".")[0] not in sys.modules


@functools.cache
def _parser(trainer: str | None) -> ArgumentParser:
    from mixer.tools.recipe.recipe import Recipe  # transformers: a fit to a table reads no recipe

    policy_classes()  # those of other packages are known by their names once they are imported
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(Recipe.for_trainer(trainer))
    return parser


def is_of_training(field: Field, prefixes: tuple[str, ...]) -> bool:
    """Returns whether a field is a training argument with one of these prefixes."""
    return len(field) > 1 and field[0] == "training" and field[1].startswith(prefixes)


def is_ignored(field: Field) -> bool:
    """Returns whether a field does not change what is trained: the run's folder, its logging or its data loading."""
    return is_of_training(field, _IGNORED)


def read_recipe(path: Path) -> str:
    """Reads the YAML of a recipe in a run's folder.

    Raises:
        ValueError: If the file is no recipe, or was cut off.
    """
    text = path.read_text(encoding="utf-8")
    if not text.endswith("\n"):
        raise InvalidValueError("it was cut off" if text else "it is empty", option="recipe")
    filled_in(text)
    return text


def differences(before: str, now: str) -> list[str]:
    """Compares two recipes with their defaults filled in.

    Args:
        before: A recipe as YAML.
        now: Another one.

    Returns:
        Sorted names of the fields that differ, except the run's folder, its logging and its data loading.

    Raises:
        ValueError: If one of them is no recipe.
    """
    first, second = filled_in(before), filled_in(now)
    saving = () if first.get(_BEST) or second.get(_BEST) else _SAVING
    fields = (field for field in first.keys() | second.keys() if first.get(field) != second.get(field))
    return sorted(".".join(field) for field in fields if not (is_ignored(field) or is_of_training(field, saving)))


def mixing_of(weights: Mapping[str, float], unit: Unit) -> dict[str, Any]:
    """Writes weights in the form of a recipe's `mixing`.

    Args:
        weights: Weights by stream.
        unit: The unit of the shares.

    Returns:
        The weights themselves; for shares of tokens or labels, the policy `Fixed` with these weights.
    """
    if unit == "samples":
        return dict(weights)
    return {"class_path": "Fixed", "init_args": {"weights": dict(weights), "unit": unit}}
