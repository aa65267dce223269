"""The output layer of a classifier and its number of classes."""

from typing import Any

from torch import nn
from transformers import PreTrainedModel

from mixer.models.inputs import inner_model
from mixer.utils.errors import InvalidValueError


def output_layers(model: nn.Module) -> list[tuple[str, nn.Linear]]:
    """Finds the layer that gives the logits of classes.

    That is the layer that the model's attribute `output_layer` is or names; else, of a model of transformers, the last
    linear layer with as many outputs as its configuration has labels, and of others the only one.

    Args:
        model: The model, not wrapped.

    Returns:
        The layer and its name, or nothing if it is ambiguous.

    Raises:
        ValueError: If the model names a layer that is none.
    """
    linear = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    named = getattr(model, "output_layer", None)
    if named is not None:
        found = [(name, layer) for name, layer in linear if named is layer or named == name]
        if not found:
            raise InvalidValueError.about("model.output_layer", f"must be one of {[*dict(linear)]}, got {named!r}.")
        return found
    count = num_labels_of(model)
    fitting = [(name, layer) for name, layer in linear if count is None or layer.out_features == count]
    is_ordered = count is not None and isinstance(inner_model(model), PreTrainedModel)
    return fitting[-1:] if is_ordered or len(fitting) == 1 else []


def find_output_layer(model: nn.Module, asked_by: str) -> tuple[str, nn.Linear]:
    """Finds the layer that gives the logits of classes; see `output_layers`.

    Args:
        model: The model, not wrapped.
        asked_by: What needs it, for errors.

    Returns:
        Its name and the layer.

    Raises:
        ValueError: If the output layer is ambiguous.
    """
    found = output_layers(model)
    if found:
        return found[0]
    sizes = {name: module.out_features for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    count = num_labels_of(model)
    wanted = "one linear layer" if count is None else f"a linear layer with num_labels={count} outputs"
    raise InvalidValueError.about(
        "model.output_layer", f"must name the layer of logits for {asked_by} ({wanted}), found {sizes}.", found=sizes
    )


def num_labels_of(model: nn.Module) -> int | None:
    """Returns the number of classes of a model.

    Args:
        model: The model.

    Returns:
        That of its configuration, else its own `num_labels`; `None` if it says nothing.
    """
    counts = (getattr(place, "num_labels", None) for place in (getattr(model, "config", None), model))
    return next((count for count in counts if isinstance(count, int)), None)


def owners(model: nn.Module, name: str) -> list[nn.Module]:
    """Returns the modules that a layer is a part of.

    Args:
        model: The model.
        name: The layer's name.

    Returns:
        They, from the model itself to the one that holds the layer.
    """
    parts = name.split(".")[:-1]
    return [model.get_submodule(".".join(parts[:depth])) for depth in range(len(parts) + 1)]


def set_num_labels(model: nn.Module, name: str, count: int) -> None:
    """Tells a model and its configuration of a larger output layer; names of classes stay.

    Args:
        model: The model.
        name: Name of its output layer.
        count: Number of outputs it has now.
    """
    for module in owners(model, name):
        if isinstance(vars(module).get("num_labels"), int):
            vars(module)["num_labels"] = count
        config: Any = getattr(module, "config", None)
        if not isinstance(getattr(config, "num_labels", None), int):
            continue
        names = {number: f"LABEL_{number}" for number in range(count)} | dict(getattr(config, "id2label", None) or {})
        config.num_labels = count  # names all classes anew
        if getattr(config, "id2label", None) is not None:
            config.id2label, config.label2id = names, {label: number for number, label in names.items()}
