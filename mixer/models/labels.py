"""Checks of labels: class numbers out of range, missing labels, and label shifts."""

import functools
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
from mixer.utils.errors import InvalidValueError
from mixer.utils.user_code import library_of

IGNORED = -100  # the label of a token or row without a loss
_CLASSIFIERS = frozenset(
    {*MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES.values(), *MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES.values()}
)
LABEL_COLUMNS = ("labels", "label", "label_ids")


def num_classes_of(model: nn.Module, task: str | None) -> int | None:
    """Returns the number of classes of a head.

    Args:
        model: The model.
        task: Name of the head, for a model with several in an attribute `heads`.

    Returns:
        The number; `None` if the head assigns no single class, or is unknown.
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
    """Refuses a data set with a label outside a head's classes; only checks columns that are fast to read.

    Args:
        name: The stream's name.
        dataset: Its data set.
        num_classes: The head's classes.
        head: Name of the head in an error.

    Raises:
        ValueError: With the label and the number of classes.
    """
    column = _label_column(dataset)
    if column is None or not pa.types.is_integer(dataset.features.arrow_schema.field(column).type):
        return
    values = _values(dataset, column)
    extremes = pc.min_max(pc.filter(values, pc.not_equal(values, IGNORED))).as_py()
    _check(name, extremes["min"], extremes["max"], num_classes, head)


def check_label_values(called: str, dataset: Any, num_classes: int | None, head: str) -> None:
    """Refuses missing labels, and labels of classes that are no whole numbers, in a column of a data set.

    Args:
        called: Name of the data set, as the beginning of a sentence.
        dataset: Its data set.
        num_classes: The head's classes; `None` if its labels are no classes.
        head: Name of the head in an error.

    Raises:
        ValueError: With the column and the way out.
    """
    column = _label_column(dataset)
    if column is None:
        return
    kind, called = dataset.features.arrow_schema.field(column).type, f"{called}: its column {column!r}"
    if num_classes is not None and (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        text = f"{called} has text where {head} takes numbers: dataset.class_encode_column({column!r}) makes them."
        raise InvalidValueError(text, option=column)
    if num_classes is not None and pa.types.is_floating(kind):
        raise InvalidValueError(
            f"{called} has fractions ({kind}). {_of_classes(num_classes, head, column)}", option=column
        )
    values = _values(dataset, column)
    if values.null_count:
        raise InvalidValueError(
            f"{called} has {values.null_count} rows without a label (None), the first of them row "
            f"{pc.index(pc.is_null(values), True).as_py()}. Leave them out, as in dataset.filter(lambda row: "
            f"row[{column!r}] is not None), or set labels that are to be ignored to -100.",
            option=column,
        )


def _label_column(dataset: Any) -> str | None:
    if not isinstance(dataset, datasets.Dataset) or dataset.format["type"] == "custom":
        return None
    return next((column for column in LABEL_COLUMNS if column in dataset.column_names), None)


def _values(dataset: datasets.Dataset, column: str) -> Any:
    return dataset.select_columns(column).with_format("arrow")[:][column]


def check_whole_numbers(name: str, labels: Any, num_classes: int, head: str) -> None:
    """Refuses labels that are fractions where a head takes the numbers of classes.

    Args:
        name: The stream's name.
        labels: Labels of a micro-batch; those by class, `[num_rows, num_classes]`, may be fractions.
        num_classes: The head's classes.
        head: Name of the head in an error.

    Raises:
        ValueError: With the type of the labels.
    """
    if isinstance(labels, Tensor) and labels.is_floating_point() and labels.shape[1:] != (num_classes,):
        kind = str(labels.dtype).removeprefix("torch.")
        text = f"Stream {name!r}: its labels are fractions ({kind}). {_of_classes(num_classes, head)}"
        raise InvalidValueError(text, option="labels", stream=name)


def _of_classes(num_classes: int, head: str, column: str = "label") -> str:
    return (
        f"But {head} takes the numbers of its {num_classes} classes: convert them, as in "
        f"dataset.cast_column({column!r}, datasets.Value('int64')), or use a head for regression."
    )


def find_lack_of_labels(model: nn.Module, inputs: Mapping[str, Any], dataset: Any, sample: Any) -> str | None:
    """Describes the lack of labels in a micro-batch, for an error.

    Args:
        model: The model.
        inputs: The micro-batch.
        dataset: Its data set, before any column was removed.
        sample: A sample, for its columns if the data set does not list them.

    Returns:
        The missing labels, the columns and the way out; `None` if there are labels, or the model takes none.
    """
    kind: Any = type(inner_model(model))  # any class is hashable, but not to a type checker
    names, returns_loss = _labels_of(kind)
    if not names or returns_loss or any(inputs.get(name) is not None for name in names):
        return None
    if isinstance(sample, Mapping) and any(sample.get(column, 0) is None for column in LABEL_COLUMNS):
        return "its first sample has no label (None). Leave such samples out, or set labels to be ignored to -100."
    columns = getattr(dataset, "column_names", None) or (list(sample) if isinstance(sample, Mapping) else [])
    return (
        f"a micro-batch of it has {list(inputs)}, but {kind.__name__} needs {' or '.join(names)} for its loss. Its "
        f"samples have the columns {columns}: rename the column of the labels, as in "
        f"dataset.rename_column(..., {names[0]!r}), or create it in the stream's preprocess or data_collator "
        "(DataCollatorForLanguageModeling does for language models); or give it a compute_loss_func."
    )


@functools.lru_cache(8)
def _labels_of(kind: type) -> tuple[list[str], bool]:
    """Returns the arguments of a model's class that are labels, and whether it gives a loss without them."""
    return find_labels(kind), can_return_loss(kind)  # type: ignore[no-untyped-call]


def needs_labels(model: nn.Module) -> bool:
    """Whether a model is known to give no loss without labels; a user's own model may."""
    return library_of(type(inner_model(model))) in ("transformers", "mixer")


def check_labels(name: str, labels: Any, num_classes: int, head: str) -> None:
    """Refuses labels outside a head's classes.

    Args:
        name: The stream's name.
        labels: Labels of a micro-batch.
        num_classes: The head's classes.
        head: Name of the head in an error.

    Raises:
        ValueError: With the label and the number of classes.
    """
    if not isinstance(labels, Tensor) or labels.is_floating_point() or not labels.numel():
        return
    counted = labels[labels.ne(IGNORED)]
    if counted.numel():
        _check(name, int(counted.min()), int(counted.max()), num_classes, head)


def _check(name: str, least: int | None, greatest: int | None, num_classes: int, head: str) -> None:
    if least is None or greatest is None or 0 <= least <= greatest < num_classes:
        return
    wrong = greatest if greatest >= num_classes else least
    text = (
        f"Stream {name!r}: it has the label {wrong}, but {head} has the {num_classes} classes 0 to {num_classes - 1}."
    )
    raise InvalidValueError(f"{text} Labels of -100 are left out.", option="labels", stream=name, found=wrong)


def shifts_labels(model: Any, by_name: bool) -> bool:
    """Whether a model shifts its labels by itself.

    The Trainer decides by the name of the class (`...ForCausalLM`). Classes of other names, such as `GPT2LMHeadModel`,
    use the same loss function if their forward calls `self.loss_function`, and shift too.

    Args:
        model: The model, not wrapped for distributed training; adapters of PEFT are looked through.
        by_name: The Trainer's decision.

    Returns:
        Whether a row of L labels has L - 1 terms.
    """
    inner = inner_model(model)
    if by_name or getattr(getattr(inner, "config", None), "is_encoder_decoder", False):
        return by_name
    # A model with a loss of its own has that loss function too, but its forward does not use it.
    forward = inspect.unwrap(type(inner).forward)
    uses_it = "loss_function" in getattr(getattr(forward, "__code__", None), "co_names", ())
    return uses_it and getattr(inner, "loss_function", None) is ForCausalLMLoss
