"""Pictures of a folder, a file or the hub as samples of a model, those for training augmented."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from torch.nn.functional import pad
from transformers import default_data_collator

from mixer.tools.recipe.data.source import DataSource
from mixer.utils.arrays import Float32Array
from mixer.utils.errors import InvalidValueError
from mixer.utils.held_out import hold_out
from tasks.sources.loaders import Splits

# Columns in the order in which they are looked for: CIFAR-100 has two kinds of classes.
_IMAGES, _LABELS = ("image", "img"), ("label", "fine_label")


def pictures(
    path: str,
    image: str | None = None,
    label: str | None = None,
    train_split: str = "train",
    evaluation_split: str | None = "test",
    size: int = 224,
) -> Splits:
    """Reads pictures for training, which `augmented` changes at random, and for evaluation.

    Args:
        path: A name on the hub, a file, or a folder with a folder for each split, which has one for each class.
        image: The column of the pictures; `None` takes `image` or `img`.
        label: The column of the classes; `None` takes `label` or `fine_label`.
        train_split: The split for training.
        evaluation_split: That for evaluation; `None` holds out a random fifth of each class of the other.
        size: Height and width for the model; values are between -1 and 1.

    Returns:
        Two data sets with `pixel_values`, `labels` and `augment`.

    Raises:
        ValueError: If there is no such column.
    """
    rows = _rows(path, train_split)
    columns = {_column(rows, image, _IMAGES, "image"): "image", _column(rows, label, _LABELS, "label"): "label"}
    rows = rows.select_columns([*columns]).rename_columns(columns)
    if evaluation_split is None:
        classes = np.unique(rows.with_format("numpy", columns=["label"])[:]["label"], return_inverse=True)[1]
        both = [rows.select(part) for part in hold_out(len(rows), math.ceil(len(rows) / 5), 0, classes)]
    else:
        both = [rows, _rows(path, evaluation_split).select_columns([*columns]).rename_columns(columns)]
    return Splits(
        *(part.with_transform(_Sample(size, augment)) for part, augment in zip(both, (True, False), strict=True))
    )


def _rows(path: str, split: str) -> datasets.Dataset:
    if Path(path).is_dir():
        called = "validation" if split == "valid" else split  # as `datasets` calls the folder `valid`
        return datasets.load_dataset("imagefolder", data_dir=path, split=called)
    return DataSource(path, split=split).load(path)[0]


def _column(rows: datasets.Dataset, given: str | None, known: Sequence[str], called: str) -> str:
    found = [name for name in (known if given is None else [given]) if name in rows.column_names]
    if not found:
        raise InvalidValueError(option=called, expected=f"one of the columns {rows.column_names}", found=given or known)
    return found[0]


class _Sample:
    """Makes samples of rows, which say whether they are augmented."""

    def __init__(self, size: int, augment: bool):
        self.size, self.augment = size, augment

    def __call__(self, batch: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
        values = [values_of(one, self.size) for one in batch["image"]]
        return {"pixel_values": values, "labels": batch["label"], "augment": [self.augment] * len(values)}


def values_of(picture: Any, size: int) -> Float32Array:
    """Returns the values of a picture, float32 `[3, size, size]` between -1 and 1."""
    pixels = np.asarray(picture.convert("RGB").resize((size, size)), dtype=np.float32)
    return (pixels / 127.5 - 1.0).transpose(2, 0, 1)


def augmented() -> Any:
    """Returns a collator that flips pictures, and moves them by up to an eighth, at random, where samples say so."""
    return _collated


def _collated(samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    if "augment" not in samples[0]:
        hint = "tasks.sources.pictures makes them; keep the column by remove_unused_columns=False."
        expected = "given samples with a column `augment`"
        raise InvalidValueError(option="data_collator", expected=expected, found=sorted(samples[0]), hint=hint)
    batch = default_data_collator([{name: one[name] for name in ("pixel_values", "labels")} for one in samples])
    for number, one in enumerate(samples):
        if one["augment"]:
            picture = batch["pixel_values"][number]
            most = picture.shape[-1] // 8
            wide = pad(picture.flip(-1) if torch.rand(()) < 0.5 else picture, [most] * 4)
            top, left = torch.randint(2 * most + 1, (2,)).tolist()
            batch["pixel_values"][number] = wide[:, top : top + picture.shape[1], left : left + picture.shape[2]]
    return batch
