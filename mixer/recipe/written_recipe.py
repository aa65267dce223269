"""A recipe that was written, field by field, and which fields are no part of what is trained."""

import functools
import re
import sys
from argparse import ArgumentError
from typing import Any

import yaml
from jsonargparse import ArgumentParser

from mixer.recipe.recipe import Recipe
from mixer.utils.nested import Field, flat
from mixer.utils.yaml_files import load_yaml

# Where a run stands and what is told of it.
_TOLD = (
    *("output_dir", "logging_", "log_", "disable_tqdm", "report_to", "run_name", "project", "trackio_"),
    *("push_to_hub", "hub_", "skip_memory_metrics"),
)
# How samples are loaded, not which.
_LOADING = (
    "dataloader_num_workers",
    "dataloader_prefetch_factor",
    "dataloader_pin_memory",
    "dataloader_persistent_workers",
)


# Fields of texts, in which a dotted name alone has nothing imported.
_TEXTS = frozenset(
    {"factory", "path", "name", "split", "train_split", "validation_split", "revision", "name_or_path"}
    | {"reference_model", "output_dir", "run_name", "head", "groups", "arguments", "config", "lora", "layers"}
)
_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")


def filled_in(text: str) -> dict[Field, Any]:
    """Gives all fields of a recipe, policies and the like in the one form that there is of them all.

    Args:
        text: A recipe as YAML; what it leaves out is the default.

    Returns:
        Values by field.

    Raises:
        ValueError: If it is no recipe, or names classes of packages that were not imported before: a recipe that lies
            in a run's folder must not have any imported.
    """
    parser = _parser()
    try:
        _refuse_unknown_packages(load_yaml(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
        config = parser.parse_string(text)
    except (ArgumentError, TypeError, yaml.YAMLError) as error:
        raise ValueError(str(error)) from error
    return flat(yaml.safe_load(parser.dump(config, skip_validation=True)))


def _refuse_unknown_packages(content: Any, field: str = "", is_text: bool = False) -> None:
    """Refuses dotted names, wherever a class could be written, of packages that are not there already."""
    if isinstance(content, dict):
        for name, part in content.items():
            is_class = name == "class_path"
            inner = f"{field}.{name}" if field else str(name)
            _refuse_unknown_packages(part, inner, not is_class and (is_text or name in _TEXTS))
    elif isinstance(content, list):
        for part in content:
            _refuse_unknown_packages(part, field, is_text)
    elif isinstance(content, str) and not is_text and _is_of_unknown_package(content):
        raise ValueError(f"{field}: {content} is of a package that is not loaded here")


def _is_of_unknown_package(name: str) -> bool:
    return _DOTTED.fullmatch(name) is not None and name.partition(".")[0] not in sys.modules


@functools.cache
def _parser() -> ArgumentParser:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(Recipe)
    return parser


def is_of_training(field: Field, prefixes: tuple[str, ...]) -> bool:
    """Says whether a field is one of the training arguments that start so.

    Args:
        field: The field.
        prefixes: How they start.

    Returns:
        Whether it is.
    """
    return len(field) > 1 and field[0] == "training" and field[1].startswith(prefixes)


def is_ignored(field: Field) -> bool:
    """Says whether a field is no part of what is trained: where a run stands, what is told of it, how it loads.

    Args:
        field: The field.

    Returns:
        Whether it is none.
    """
    return is_of_training(field, (*_TOLD, *_LOADING))
