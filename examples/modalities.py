"""Pictures and speech of a data set on the hub, or in a file, as samples of a model; recipes use it."""

from collections.abc import Mapping
from typing import Any

import datasets
import numpy as np

from mixer.tools.recipe.data import DataSource
from tasks.sources.images import values_of

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
        values = [values_of(one, size) for one in batch[image]]
        return {"pixel_values": values, "labels": [first_class + number for number in batch[label]]}

    return rows.select_columns([image, label]).with_transform(sample)


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


def _fitted(wave: np.ndarray, length: int) -> np.ndarray:
    wave = wave[:length]
    wave = (wave - wave.mean()) / (wave.std() + 1e-7)
    return np.pad(wave, (0, length - len(wave)))


def _numbers(text: str, most: int) -> list[int]:
    numbers = [1 + CHARACTERS.index(one) for one in text.lower() if one in CHARACTERS][:most]
    return numbers + [_IGNORED] * (most - len(numbers))
