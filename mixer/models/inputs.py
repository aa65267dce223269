"""Arguments of a model's forward."""

import inspect
from collections.abc import Collection, Mapping
from typing import Any

from torch import nn
from transformers.trainer_utils import unwrap_peft_model

from mixer.utils.errors import InvalidValueError

TASK = "task"  # the argument that selects the head of a micro-batch


def inner_model(model: nn.Module) -> nn.Module:
    """Returns the model inside adapters of PEFT, or the model itself."""
    inner: nn.Module = unwrap_peft_model(model)  # type: ignore[no-untyped-call]
    return inner


def parameters_of_forward(model: nn.Module) -> Mapping[str, inspect.Parameter]:
    """Returns the parameters of a model's forward, by name."""
    return inspect.signature(inner_model(model).forward).parameters


def takes_task(model: nn.Module) -> bool:
    """Whether a model selects a head per micro-batch: its forward has a parameter `task`."""
    return TASK in parameters_of_forward(model)


def heads_of(model: nn.Module) -> Mapping[str, Any] | None:
    """Returns the heads of a model by task, if it has an attribute `heads`.

    Returns:
        The heads by name; `None` if there is no such attribute, or it is no mapping.
    """
    heads: Any = getattr(inner_model(model), "heads", None)
    return dict(heads.items()) if takes_task(model) and isinstance(heads, (Mapping, nn.ModuleDict)) else None


def check_columns(model: nn.Module, name: str, inputs: Collection[str]) -> None:
    """Refuses a stream whose collated columns do not fit the model.

    Args:
        model: The model.
        name: The stream's name.
        inputs: The columns of a collated micro-batch.

    Raises:
        ValueError: With the columns that the model does not take, or that it needs and does not get.
    """
    parameters = parameters_of_forward(model)
    kinds = {parameter.kind for parameter in parameters.values()}
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return
    forward = f"{type(inner_model(model)).__name__}.forward"
    if inspect.Parameter.VAR_KEYWORD not in kinds:
        unknown = [column for column in inputs if column not in parameters]
        if unknown:
            text = (
                f"Stream {name!r}: its samples have the columns {unknown}, which {forward} does not take; it takes "
                f"{list(parameters)}. Rename or remove them, or let remove_unused_columns=True do so."
            )
            raise InvalidValueError(text, option="columns", stream=name, found=unknown)
    missing = [
        column
        for column, own in parameters.items()
        if own.default is own.empty and own.kind is own.POSITIONAL_OR_KEYWORD and column not in inputs
    ]
    if missing:
        text = (
            f"Stream {name!r}: {forward} needs {missing}, but a micro-batch of it has {list(inputs)}. Add the columns, "
            "or create them in the stream's preprocess or data_collator."
        )
        raise InvalidValueError(text, option="columns", stream=name, found=list(inputs))
