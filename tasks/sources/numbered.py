"""Classes that are words, or a column of another name, brought to whole numbers in a column `label`."""

import datasets

from tasks.sources.labels import require_column
from tasks.sources.splits import Splits


def with_numbered_labels(splits: Splits, column: str | None) -> Splits:
    """Numbers the classes of both splits alike.

    Args:
        splits: Two Hugging Face data sets.
        column: Name of the column of classes; `None` for data that have none, or have it ready.

    Returns:
        The same with a column `label` of whole numbers; words are numbered in alphabetical order, and stay known as
        the names of a `ClassLabel`.

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
    names = sorted({str(value) for values in found for value in values.tolist()})
    words = (part.cast_column("label", datasets.Value("string")) for part in splits)
    return Splits(*(part.cast_column("label", datasets.ClassLabel(names=names)) for part in words))


def _renamed(dataset: datasets.Dataset, column: str) -> datasets.Dataset:
    if "label" in dataset.column_names:
        raise ValueError(f"label_column={column!r}: there is a column 'label' beside it. Remove or rename that one.")
    return dataset.rename_column(column, "label")
