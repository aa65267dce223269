"""Pictures and speech of a data set on the hub, or in a file, as samples of a model; recipes use it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from torch.nn.functional import pad
from transformers import default_data_collator

from mixer.tools.recipe.data import DataSource

CHARACTERS = " 'abcdefghijklmnopqrstuvwxyz"  # of transcriptions; number 0 is the blank of CTC
_IGNORED = -100  # a label without a loss


def images(
    path: str, image: str, label: str, split: str = "train", first_class: int = 0, size: int = 224
) -> datasets.Dataset:
    """Reads pictures and their classes.

    Args:
        path: A name on the hub, or a file.
        image: The column of the pictures.
        label: The column of the classes.
        split: The split.
        first_class: Number of class 0 among the classes of all data sets that a head tells apart.
        size: Height and width for the model; values are between -1 and 1.
    """
    rows, _ = DataSource(path, split=split).load(path)

    def sample(batch: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
        values = [_values(one, size) for one in batch[image]]
        return {"pixel_values": values, "labels": [first_class + number for number in batch[label]]}

    return rows.select_columns([image, label]).with_transform(sample)


def image_tasks(
    path: str,
    image: str = "image",
    label: str = "label",
    train_split: str = "train",
    evaluation_split: str | None = "test",
    size: int = 224,
) -> tuple[datasets.Dataset, datasets.Dataset]:
    """Reads pictures for training, which are augmented, and for evaluation; see `images`.

    Args:
        path: A name on the hub, a file, or a folder with a folder for each split, which has one for each class.
        image: The column of the pictures.
        label: The column of the classes.
        train_split: The split for training.
        evaluation_split: That for evaluation; `None` holds out a random fifth of the other.
        size: Height and width for the model.
    """
    if evaluation_split is None:
        both = [*_pictures(path, train_split).train_test_split(0.2, seed=0).values()]
    else:
        both = [_pictures(path, split) for split in (train_split, evaluation_split)]
    named = [rows.select_columns([image, label]).rename_columns({image: "image", label: "label"}) for rows in both]
    train, evaluation = (
        rows.with_transform(_Sample(size, augment)) for rows, augment in zip(named, (True, False), strict=True)
    )
    return train, evaluation


def _pictures(path: str, split: str) -> datasets.Dataset:
    if Path(path).is_dir():
        return datasets.load_dataset("imagefolder", data_dir=path, split=split)
    return DataSource(path, split=split).load(path)[0]


class _Sample:
    """Makes samples of rows, which say whether they are augmented."""

    def __init__(self, size: int, augment: bool):
        self.size, self.augment = size, augment

    def __call__(self, batch: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
        values = [_values(one, self.size) for one in batch["image"]]
        return {"pixel_values": values, "labels": batch["label"], "augment": [self.augment] * len(values)}


def augmented() -> Any:
    """Returns a collator that flips pictures, and moves them by up to an eighth, at random, where samples say so."""
    return _collated


def _collated(samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    batch = default_data_collator([{name: one[name] for name in ("pixel_values", "labels")} for one in samples])
    for number, one in enumerate(samples):
        if one["augment"]:
            picture = batch["pixel_values"][number]
            most = picture.shape[-1] // 8
            wide = pad(picture.flip(-1) if torch.rand(()) < 0.5 else picture, [most] * 4)
            top, left = torch.randint(2 * most + 1, (2,)).tolist()
            batch["pixel_values"][number] = wide[:, top : top + picture.shape[1], left : left + picture.shape[2]]
    return batch


def speech(
    path: str, name: str | None = None, split: str = "train", seconds: float = 10.0, most_characters: int = 200
) -> datasets.Dataset:
    """Reads recordings and their transcriptions, cut to one length: waves of mean 0 and deviation 1 at 16 kHz.

    Args:
        path: A name on the hub, or a file, with the columns `audio` and `transcription`.
        name: The configuration.
        split: The split.
        seconds: Length of a recording; silence is added to shorter ones.
        most_characters: Characters of a transcription.
    """
    rows, _ = DataSource(path, name=name, split=split).load(path)
    rows = rows.select_columns(["audio", "transcription"])
    if isinstance(rows.features["audio"], datasets.Audio):
        rows = rows.cast_column("audio", datasets.Audio(sampling_rate=16_000))

    def sample(batch: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
        waves = [_fitted(np.asarray(one["array"], dtype=np.float32), int(seconds * 16_000)) for one in batch["audio"]]
        return {"input_values": waves, "labels": [_numbers(text, most_characters) for text in batch["transcription"]]}

    return rows.with_transform(sample)


def _values(picture: Any, size: int) -> np.ndarray:
    pixels = np.asarray(picture.convert("RGB").resize((size, size)), dtype=np.float32)
    return (pixels / 127.5 - 1.0).transpose(2, 0, 1)


def _fitted(wave: np.ndarray, length: int) -> np.ndarray:
    wave = wave[:length]
    wave = (wave - wave.mean()) / (wave.std() + 1e-7)
    return np.pad(wave, (0, length - len(wave)))


def _numbers(text: str, most: int) -> list[int]:
    numbers = [1 + CHARACTERS.index(one) for one in text.lower() if one in CHARACTERS][:most]
    return numbers + [_IGNORED] * (most - len(numbers))
