"""A recipe that was written, field by field, and which fields are no part of what is trained."""

import functools
from argparse import ArgumentError
from typing import Any

import yaml
from jsonargparse import ArgumentParser

from mixer.flat import Field, flat
from mixer.recipe import Recipe

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


def filled_in(text: str) -> dict[Field, Any]:
    """Gives all fields of a recipe, policies and the like in the one form that there is of them all.

    Args:
        text: A recipe as YAML; what it leaves out is the default.

    Returns:
        Values by field.

    Raises:
        ValueError: If it is no recipe.
    """
    parser = _parser()
    try:
        config = parser.parse_string(text)
    except (ArgumentError, TypeError) as error:
        raise ValueError(str(error)) from error
    return flat(yaml.safe_load(parser.dump(config, skip_validation=True)))


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


def is_aside(field: Field) -> bool:
    """Says whether a field is no part of what is trained: where a run stands, what is told of it, how it loads.

    Args:
        field: The field.

    Returns:
        Whether it is none.
    """
    return is_of_training(field, (*_TOLD, *_LOADING))
