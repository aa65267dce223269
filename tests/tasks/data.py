"""Small data sets for tests: every input holds its sample's own number, so that samples can be told apart."""

import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from torch.utils.data import Dataset

from tasks.sources import Arrays


def numbered_arrays(labels: Any, num_features: int = 4) -> Arrays:
    inputs = np.arange(len(labels) * num_features, dtype=np.float32).reshape(len(labels), num_features)
    return Arrays(inputs, np.asarray(labels, dtype=np.int64))


def numbered_table(labels: Any, **columns: Any) -> datasets.Dataset:
    return datasets.Dataset.from_dict({"number": list(range(len(labels))), "label": list(labels), **columns})


class Images(Dataset[tuple[int, int]]):
    """Shaped like the data sets of torchvision: pairs, with the classes as an attribute."""

    def __init__(self, labels: list[int]):
        self.targets = labels

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, self.targets[index]


def data_of(kind: str, labels: list[int]) -> Any:
    return {"arrays": numbered_arrays, "table": numbered_table, "images": Images}[kind](labels)


def numbers_in(dataset: Any, num_features: int = 4) -> list[int]:
    """Which samples of the original data set these are."""
    if isinstance(dataset, datasets.Dataset):
        return list(dataset["number"])
    samples = dataset.__getitems__(list(range(len(dataset))))
    if isinstance(samples[0], tuple):
        return [number for number, _ in samples]
    return [int(sample["pixel_values"].min()) // num_features for sample in samples]


def assert_columns_are_samples(dataset: Any) -> None:
    """Reading by columns, several at once and one by one are the same, to the bit and in any order."""
    indices = np.random.default_rng(0).integers(0, len(dataset), 7)
    columns = dataset.read_columns(indices)
    for samples in ([dataset[index] for index in indices.tolist()], dataset.__getitems__(indices.tolist())):
        for name, values in columns.items():
            stacked = torch.stack([sample[name] for sample in samples])
            assert stacked.dtype == values.dtype
            assert torch.equal(stacked, values)
    assert columns["labels"].tolist() == dataset.labels[indices].tolist()


def write_intents(folder: Path, domains: dict[str, list[str]], num_train: int, num_test: int) -> Path:
    random = np.random.default_rng(0)
    intents = [intent for own in domains.values() for intent in own]

    def requests(count: int) -> list[list[str]]:
        return [[f"please {intent} for {random.choice(['me', 'us', 'her'])}", intent] for intent in intents * count]

    folder.mkdir(parents=True)
    content = {"train": requests(num_train), "val": requests(1), "test": requests(num_test), "oos_test": [["h", "oos"]]}
    (folder / "data_full.json").write_text(json.dumps(content))
    (folder / "domains.json").write_text(json.dumps(domains))
    return folder
