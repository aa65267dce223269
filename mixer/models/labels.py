"""What is known of labels: classes out of range, and whether a model shifts them."""

import inspect
from collections.abc import Mapping
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.compute as pc
from torch import Tensor, nn
from transformers.loss.loss_utils import ForCausalLMLoss
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
)
from transformers.utils.generic import can_return_loss, find_labels

from mixer.models.inputs import heads_of, inner_model

_IGNORED = -100
_CLASSIFIERS = frozenset(
    {*MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES.values(), *MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES.values()}
)
LABEL_COLUMNS = ("labels", "label", "label_ids")


def num_classes_of(model: nn.Module, task: str | None) -> int | None:
    """Gives between how many classes a head decides.

    Args:
        model: The model.
        task: Which of its heads, if it has several, in an attribute `heads`.

    Returns:
        The number; `None` where the head is no classifier of one class each, or is not known.
    """
    if task is not None:
        return getattr((heads_of(model) or {}).get(task), "num_classes", None)
    inner: Any = inner_model(model)
    config: Any = getattr(inner, "config", None)
    decides = getattr(config, "problem_type", None) in (None, "single_label_classification")
    if type(inner).__name__ not in _CLASSIFIERS or not decides or config.num_labels < 2:
        return None
    return int(config.num_labels)


def check_label_column(name: str, dataset: Any, num_classes: int, head: str) -> None:
    """Refuses a data set one of whose labels is none of a head's classes; looks only where that is fast.

    Args:
        name: The stream's name.
        dataset: Its data set.
        num_classes: The head's classes.
        head: What to call the head.

    Raises:
        ValueError: With the label and the number of classes.
    """
    if not isinstance(dataset, datasets.Dataset) or dataset.format["type"] == "custom":
        return
    column = next((column for column in LABEL_COLUMNS if column in dataset.column_names), None)
    if column is None or not pa.types.is_integer(dataset.features.arrow_schema.field(column).type):
        return
    values = dataset.select_columns(column).with_format("arrow")[:][column]
    extremes = pc.min_max(pc.filter(values, pc.not_equal(values, _IGNORED))).as_py()
    _check(name, extremes["min"], extremes["max"], num_classes, head)


def find_lack_of_labels(model: nn.Module, inputs: Mapping[str, Any], dataset: Any, sample: Any) -> str | None:
    """Says that a micro-batch has none of the labels that a model takes.

    Args:
        model: The model.
        inputs: The micro-batch.
        dataset: The data set that it is made of, before any column was removed.
        sample: A sample of it, for its columns where the data set does not tell them.

    Returns:
        What is missing, what is there and the way out; `None` where labels are there, or the model takes none.
    """
    kind = type(inner_model(model))
    names = find_labels(kind)  # type: ignore[no-untyped-call]
    returns_loss = can_return_loss(kind)  # type: ignore[no-untyped-call]
    if not names or returns_loss or any(inputs.get(name) is not None for name in names):
        return None
    columns = getattr(dataset, "column_names", None) or (list(sample) if isinstance(sample, Mapping) else [])
    return (
        f"a micro-batch of it has {list(inputs)}, and {kind.__name__} takes its loss of {' or '.join(names)}. Its "
        f"samples have the columns {columns}: rename the one with the labels, as in "
        f"dataset.rename_column(..., {names[0]!r}), or have them made by the stream's preprocess or data_collator "
        "(DataCollatorForLanguageModeling does for language models); or give it a compute_loss_func."
    )


def needs_labels(model: nn.Module) -> bool:
    """Whether it is known that a model that takes labels gives no loss without: one of the user's own may.

    Args:
        model: The model.
    """
    return type(inner_model(model)).__module__.startswith(("transformers.", "mixer."))


def check_labels(name: str, labels: Any, num_classes: int, head: str) -> None:
    """Refuses labels that are none of a head's classes.

    Args:
        name: The stream's name.
        labels: Labels of a micro-batch.
        num_classes: The head's classes.
        head: What to call the head.

    Raises:
        ValueError: With the label and the number of classes.
    """
    if not isinstance(labels, Tensor) or labels.is_floating_point() or not labels.numel():
        return
    counted = labels[labels.ne(_IGNORED)]
    if counted.numel():
        _check(name, int(counted.min()), int(counted.max()), num_classes, head)


def _check(name: str, least: int | None, greatest: int | None, num_classes: int, head: str) -> None:
    if least is None or greatest is None or 0 <= least <= greatest < num_classes:
        return
    wrong = greatest if greatest >= num_classes else least
    raise ValueError(
        f"Stream {name!r}: it has the label {wrong}, but {head} has the {num_classes} classes 0 to {num_classes - 1}. "
        "Number the labels from 0, or give the head as many classes (num_labels); labels of -100 are left out."
    )


def shifts_labels(model: Any, told: bool) -> bool:
    """Finds out whether a model shifts its labels by itself.

    The Trainer goes by the name of the class (`...ForCausalLM`). Heads of other names, `GPT2LMHeadModel` among them,
    are given the same loss function where their forward asks for one, and shift too.

    Args:
        model: The model, not wrapped for distributed training; one of peft is looked into.
        told: What the Trainer takes it for.

    Returns:
        Whether a row of L labels has L - 1 terms.
    """
    inner = inner_model(model)
    if told or getattr(getattr(inner, "config", None), "is_encoder_decoder", False):
        return told
    # A forward that computes its loss by itself has that loss function too, and makes no use of it.
    forward = inspect.unwrap(type(inner).forward)
    asks = "loss_function" in getattr(getattr(forward, "__code__", None), "co_names", ())
    return asks and getattr(inner, "loss_function", None) is ForCausalLMLoss
