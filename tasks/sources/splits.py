"""A source's training and evaluation data, with numbered labels."""

from typing import Any, NamedTuple

import datasets
import numpy as np

from mixer.recipe.data.formats.labelled import in_order
from mixer.recipe.data.validation import hold_out as draw_held_out
from mixer.utils.arrays import Int64Array
from tasks.sources.labels import require_column


class Splits(NamedTuple):
    """What is trained on and what is evaluated on: `by_class(*digits(), classes_per_task=2)`.

    Attributes:
        train: A map-style data set.
        evaluation: Another.
    """

    train: Any
    evaluation: Any


def hold_out(num_samples: int, share: float, seed: int) -> tuple[Int64Array, Int64Array]:
    """Draws which samples are held out for evaluation.

    Args:
        num_samples: How many there are.
        share: Which share of them is held out.
        seed: Seed of the draw.

    Returns:
        Indices for training and for evaluation, int64, ascending; none in both.

    Raises:
        ValueError: If one of them would be empty.
    """
    num_held = round(num_samples * share) if 0.0 < share < 1.0 else 0
    if not 0 < num_held < num_samples:
        raise ValueError(
            f"evaluation_share must leave a sample of {num_samples} for training and one for evaluation, got {share}."
        )
    return draw_held_out(num_samples, num_held, seed)


def with_numbered_labels(splits: Splits, column: str | None) -> Splits:
    """Numbers the classes of both splits alike.

    Args:
        splits: Two Hugging Face data sets.
        column: Name of the column of classes; `None` for data that have none, or have it ready.

    Returns:
        The same with a column `label` of whole numbers; numbers stay what they are. Words are numbered in
        alphabetical order, or in that of the numbers if all are some, and stay known as the names of a `ClassLabel`.

    Raises:
        ValueError: If there is no such column, or values are missing.
    """
    if column is None:
        return splits
    found = [require_column(part, column, called) for called, part in splits._asdict().items()]
    if column != "label":
        splits = Splits(*(_renamed(part, column) for part in splits))
    if all(values.dtype.kind in "iub" for values in found):
        return splits
    if all(values.dtype.kind in "iubf" and np.all(np.mod(values.astype(float), 1) == 0) for values in found):
        return Splits(*(part.cast_column("label", datasets.Value("int64")) for part in splits))
    words = [[_label_name(value) for value in values.tolist()] for values in found]
    names = in_order({word for part in words for word in part})
    return Splits(*(_with_words(part, own, names) for part, own in zip(splits, words, strict=True)))


def _with_words(dataset: datasets.Dataset, words: list[str], names: list[str]) -> datasets.Dataset:
    kind = datasets.ClassLabel(names=names)
    numbered = dataset.add_column("label, numbered", kind.str2int(words)).remove_columns("label")
    return numbered.rename_column("label, numbered", "label").cast_column("label", kind)


def _renamed(dataset: datasets.Dataset, column: str) -> datasets.Dataset:
    if "label" in dataset.column_names:
        raise ValueError(f"label_column={column!r}: there is a column 'label' beside it. Remove or rename that one.")
    return dataset.rename_column(column, "label")


def _label_name(value: Any) -> str:
    """Names a class; a whole number has one name, however it is stored."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
