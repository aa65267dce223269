"""The mixtures of `benchmarks.quality`: data, model and training of each, and how much of it.

- `domains`: the demo's Python, C++ and English, 8,000, 4,000 and 2,000 blocks of 64 bytes; a byte-level Llama.
- `classification`: six tasks of sentence classification, all there is of them (3,000 to 8,500 sentences in training),
  one averaging encoder, one output layer; see `benchmarks.quality.sentences`.
- `texts`: Shakespeare, Wikipedia, requests to an assistant, reviews, all there is of them; a perceptron over the last
  eight bytes, see `benchmarks.quality.window`.
- `synthetic`: regressions whose best mixture is computed; see `benchmarks.quality.synthetic`.
- `demo`: the run of `recipes/demo.yaml`, 6,000, 3,000 and 1,500 blocks of 128 bytes, for PiKE in its forms alone; it is
  run only where it is asked for.

Learning rates, sizes and numbers of steps were chosen by the time of a run and so that seeds of uniform mixing differ
little, not by what any policy comes to. (Half as many blocks of twice the length took the same time, but ended where
the model just begins to use its context: nearly equal mixtures then differed by 0.05, a third of the grid's range.)
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from torch import nn
from transformers import TrainingArguments

from benchmarks.common import QUIET
from benchmarks.domains import new_model
from benchmarks.quality.data import Parts, read_domains, read_texts
from benchmarks.quality.policies import PIKES, Entry, competitors
from benchmarks.quality.sentences import accuracy, new_classifier, read_sentences
from benchmarks.quality.synthetic import STREAMS, LinearRegression, draw
from benchmarks.quality.window import new_window_model

_WINDOW = 8  # bytes


@dataclass(frozen=True)
class Scale:
    """How much is trained and evaluated.

    Args:
        num_steps: Steps of a run.
        batch: Samples of a step.
        learning_rate: The learning rate, at its highest.
        num_validation: Most samples of a stream for validation.
        num_test: Most samples of a stream to test on.
        num_samples: Samples of each stream to train on, where they are not all there are.
        length: Bytes of a block, or words of a sentence.
        hidden: Width of the model.
        layers: Its depth.
        num_words: Size of the vocabulary, where there is one.
    """

    num_steps: int
    batch: int
    learning_rate: float
    num_validation: int = 0
    num_test: int = 0
    num_samples: tuple[int, ...] = ()
    length: int = 0
    hidden: int = 0
    layers: int = 0
    num_words: int = 0


@dataclass(frozen=True)
class MixtureTask:
    """A mixture that is trained on.

    Args:
        scale: How much of it.
        quick: How much of it in a test.
        read: Reads the parts of its streams, by scale and the data's folder.
        model: Makes the model, by scale and seed.
        training: Training arguments of its own.
        compute_metrics: What is computed beside the loss, for the Trainer.
        reads_folder: Whether it needs the data's folder.
        entries: Its competitors, where these are not all.
    """

    scale: Scale
    quick: Scale
    read: Callable[[Scale, Path | None], Parts]
    model: Callable[[Scale, int], nn.Module]
    training: Mapping[str, Any] = field(default_factory=dict)
    compute_metrics: Callable[[Any], dict[str, float]] | None = None
    reads_folder: bool = True
    entries: Mapping[str, Entry] | None = None

    def competitors(self) -> dict[str, Entry]:
        """Gives its competitors by name."""
        return competitors() if self.entries is None else dict(self.entries)

    def arguments(self, folder: str, scale: Scale, seed: int, interval: int | None) -> TrainingArguments:
        """Gives the training arguments.

        Args:
            folder: The output folder.
            scale: How much is trained.
            seed: The seed.
            interval: Steps between evaluations; `None` evaluates never.

        Returns:
            The arguments.
        """
        evaluation = {} if interval is None else {"eval_strategy": "steps", "eval_steps": interval}
        return TrainingArguments(
            folder,
            max_steps=scale.num_steps,
            per_device_train_batch_size=scale.batch,
            per_device_eval_batch_size=64,
            learning_rate=scale.learning_rate,
            seed=seed,
            **{**QUIET, **_adam(scale), **self.training, **evaluation},
        )


def _adam(scale: Scale) -> dict[str, Any]:
    return {"lr_scheduler_type": "cosine", "warmup_steps": scale.num_steps // 12, "weight_decay": 0.1}


def _folder(folder: Path | None) -> Path:
    if folder is None:
        raise ValueError("This mixture is made of files: give their folder by --data-dir, or run others by --mixture.")
    return folder


@cache
def read(name: str, scale: Scale, folder: Path | None) -> Parts:
    """Reads a mixture's data, once in a process.

    Args:
        name: The mixture.
        scale: How much of it.
        folder: The data's folder.

    Returns:
        The parts of its streams.

    Raises:
        ValueError: If it needs a folder and none is given.
        FileNotFoundError: If a file is missing.
    """
    return MIXTURES[name].read(scale, folder)


def _llama(scale: Scale, seed: int) -> nn.Module:
    return new_model(scale.hidden, scale.layers, scale.length, seed)


def _domains(scale: Scale, folder: Path | None) -> Parts:
    return read_domains(scale.num_samples, scale.num_validation, scale.num_test, scale.length)


MIXTURES = {
    "domains": MixtureTask(
        Scale(384, 24, 3e-3, 128, 256, (8_000, 4_000, 2_000), length=64, hidden=64, layers=2),
        Scale(8, 12, 3e-3, 4, 8, (80, 60, 40), length=16, hidden=16, layers=1),
        _domains,
        _llama,
        reads_folder=False,
    ),
    "classification": MixtureTask(
        Scale(1_200, 48, 5e-3, length=32, hidden=48, layers=2, num_words=4_000),
        Scale(8, 24, 5e-3, length=8, hidden=8, layers=1, num_words=100),
        lambda scale, folder: read_sentences(_folder(folder), scale.num_words, scale.length),
        lambda scale, seed: new_classifier(scale.num_words, scale.hidden, scale.layers, seed),
        compute_metrics=accuracy,
    ),
    "texts": MixtureTask(
        Scale(480, 32, 3e-3, 128, 256, length=64, hidden=256),
        Scale(8, 12, 3e-3, 4, 8, length=16, hidden=16),
        lambda scale, folder: read_texts(_folder(folder), scale.num_validation, scale.num_test, scale.length),
        lambda scale, seed: new_window_model(_WINDOW, scale.hidden, seed),
    ),
    "synthetic": MixtureTask(
        Scale(300, 32, 0.05, 256, 256, (40_000, 10_000, 20_000, 10_000)),
        Scale(12, 16, 0.05, 32, 64, (800, 200, 400, 200)),
        lambda scale, _: draw(dict(zip(STREAMS, scale.num_samples, strict=True)), scale.num_validation, scale.num_test),
        lambda scale, seed: LinearRegression(),
        {"optim": "sgd", "lr_scheduler_type": "constant", "warmup_steps": 0, "weight_decay": 0.0, "max_grad_norm": 0.0},
        reads_folder=False,
    ),
    "demo": MixtureTask(
        Scale(240, 32, 3e-3, 128, 128, (6_000, 3_000, 1_500), length=128, hidden=144, layers=4),
        Scale(8, 12, 3e-3, 4, 8, (80, 60, 40), length=16, hidden=32, layers=1),
        _domains,
        _llama,
        reads_folder=False,
        entries=PIKES,
    ),
}
