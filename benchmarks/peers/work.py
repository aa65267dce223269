"""The work of the mixing contest: text of three domains, a byte-level Llama, and how its loss is taken in the end.

Every contestant gets the same Arrow data sets of the package datasets, the same collator, the same training arguments
and the same model. Samples carry their stream and row, which the model's counter takes out of the inputs again.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset, Features, List, Value
from torch import Tensor
from transformers import LlamaForCausalLM, PrinterCallback, Trainer, TrainingArguments

from benchmarks.common import QUIET
from benchmarks.domains import new_model, read_domains
from benchmarks.peak import Peak
from benchmarks.peers.counted import ROW, SOURCE, Counter, largest_deviation, realised_shares

NAMES = ("python", "cpp", "english")
SHARES = (0.5, 0.3, 0.2)
_INPUTS = "input_ids"

Datasets = dict[str, Dataset]
NewTrainer = Callable[[Any, Datasets, dict[str, Any]], Trainer]


def write_rows(path: Path, num_rows: Sequence[int], num_validation_rows: int, length: int) -> None:
    """Reads the text and writes it where all contestants read it.

    Args:
        path: The archive.
        num_rows: Rows of each domain to train on.
        num_validation_rows: Rows that each is evaluated on.
        length: Bytes of a row.
    """
    data = read_domains(num_rows, num_validation_rows, length)
    arrays = {f"{name}_{split}": data[name][split].blocks.numpy() for name in NAMES for split in data[name]}
    np.savez(path, **arrays)


def read_datasets(path: str | Path) -> Datasets:
    """Reads what is trained on.

    Args:
        path: The archive.

    Returns:
        An Arrow data set a domain, giving tensors.
    """
    with np.load(path) as archive:
        return {name: _dataset(number, archive[f"{name}_train"]) for number, name in enumerate(NAMES)}


def _dataset(number: int, rows: np.ndarray) -> Dataset:
    features = Features({_INPUTS: List(Value("int64")), SOURCE: Value("int64"), ROW: Value("int64")})
    columns = {_INPUTS: list(rows.astype(np.int64)), SOURCE: [number] * len(rows), ROW: list(range(len(rows)))}
    return Dataset.from_dict(columns, features=features).with_format("torch")


def collate(samples: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
    """Makes a batch of samples.

    Args:
        samples: What the data sets give.

    Returns:
        The columns, with labels.
    """
    batch = {name: torch.stack([torch.as_tensor(sample[name]) for sample in samples]) for name in samples[0]}
    return {**batch, "labels": batch[_INPUTS].clone()}


def build_model(options: dict[str, Any]) -> tuple[LlamaForCausalLM, Counter]:
    """Builds the model, the same for the same seed, and counts what it is trained on.

    Args:
        options: Of the contest: `hidden`, `layers`, `length`, `seed`.

    Returns:
        The model and its counter.
    """
    model = new_model(options["hidden"], options["layers"], options["length"], options["seed"])
    counter = Counter()
    counter.attach(model)
    return model, counter


def training_arguments(options: dict[str, Any]) -> TrainingArguments:
    """Gives the arguments of a run.

    Args:
        options: Of the contest: `folder`, `seed`, `batch_size`, `steps`.

    Returns:
        The arguments.
    """
    return TrainingArguments(
        options["folder"],
        seed=options["seed"],
        per_device_train_batch_size=options["batch_size"],
        max_steps=options["steps"],
        learning_rate=2e-3,
        remove_unused_columns=False,
        **QUIET,
    )


def evaluate(model: LlamaForCausalLM, path: str | Path) -> float:
    """Gives the loss on held-out text, each domain by its asked share.

    Args:
        model: The trained model.
        path: The archive.

    Returns:
        Nats a byte.
    """
    model.eval()
    losses = []
    with np.load(path) as archive, torch.inference_mode():
        for name in NAMES:
            ids = torch.from_numpy(archive[f"{name}_validation"].astype(np.int64))
            losses.append(float(model(input_ids=ids, labels=ids).loss))
    return float(np.dot(losses, SHARES))


class FedTrainer(Trainer):
    """The plain Trainer, fed by a loader that is given, through the method that is there to be overridden."""

    loader: Any = None

    def get_train_dataloader(self) -> Any:
        """Gives the loader."""
        return self.loader


def train(new_trainer: NewTrainer, options: dict[str, Any]) -> dict[str, Any]:
    """Does the contest's training, and takes the time from the data sets in hand to the trained model.

    Args:
        new_trainer: Makes the contestant's trainer of a model that is counted, the data sets and the options.
        options: Of the contest.

    Returns:
        `seconds`, `processor_seconds`, the peak of memory without that of evaluating, which is the same for all; `loss`
        on held-out text, realised `shares`, `deviation` in samples and number of `samples`.
    """
    peak = Peak()
    torch.set_num_threads(options["threads"])
    datasets = read_datasets(options["data"])
    model, counter = build_model(options)
    wall, processor = time.perf_counter(), time.process_time()
    trainer = new_trainer(model, datasets, options)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    times = {"seconds": time.perf_counter() - wall, "processor_seconds": time.process_time() - processor}
    memory, samples = peak.figures(), counter.samples()
    return {
        **times,
        **memory,
        "loss": evaluate(model, options["data"]),
        "shares": realised_shares(samples, len(SHARES)),
        "deviation": largest_deviation(counter.batches, SHARES),
        "samples": len(samples),
    }
