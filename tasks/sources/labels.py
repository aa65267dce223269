"""Labels and other columns of a data set, read without reading whole samples if possible."""

from typing import Any

import datasets
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mixer.utils.arrays import Int64Array
from replay.storage.labels import read_labels
from tasks.sources.checks import check_map_style


def require_labels(dataset: Any, called: str) -> Int64Array:
    """Reads the classes of all samples, int64 `[num_samples]`; raises a `ValueError` if there are none."""
    check_map_style(dataset, called)
    labels = read_labels(dataset)
    if labels is None:
        raise ValueError(
            f"{called}: a {type(dataset).__name__} without classes. They are looked for in a column 'label' or "
            "'labels' and in an attribute 'label', 'labels' or 'targets', a whole number a sample: rename the column, "
            "number classes that are words, or use tasks.sources.Arrays(inputs, labels)."
        )
    return labels


def labels_in(dataset: Any) -> tuple[int, ...] | None:
    """Returns the classes of a data set, ascending; `None` if samples have no integer label."""
    labels = read_labels(dataset)
    return None if labels is None else tuple(np.unique(labels).tolist())


def label_column(dataset: Any) -> str:
    """Returns the name of the class column, `"label"` or `"labels"`: the first with integers."""
    return "labels" if read_labels(dataset, np.zeros(1, dtype=np.int64), "label") is None else "label"


def require_column(dataset: Any, column: str, called: str) -> NDArray[Any]:
    """Reads a column of all samples.

    Args:
        dataset: A Hugging Face data set, or one with an attribute of that name.
        column: Name of the column or attribute.
        called: What to call the data set in an error.

    Returns:
        `[num_samples]`, of any dtype.

    Raises:
        ValueError: If there is no such column, it has not one value a sample, or some are missing.
        TypeError: If the data set cannot be indexed.
    """
    check_map_style(dataset, called)
    if isinstance(dataset, datasets.Dataset):
        known = column in dataset.column_names
        held = dataset.with_format("numpy", columns=[column])[:][column] if known else None
        others = f"its columns are {dataset.column_names}"
    else:
        held = getattr(dataset, column, None)
        others = f"in {type(dataset).__name__} it would be an attribute with one entry a sample"
    values = np.asarray(held)
    if values.ndim != 1 or len(values) != len(dataset):
        raise ValueError(f"{called}: there is no column {column!r} with one value a sample; {others}.")
    missing = int(pd.isna(values).sum())
    if missing:
        raise ValueError(f"{called}: {missing} samples have no {column!r}. Fill it in, or leave those samples out.")
    return values
