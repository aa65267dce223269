"""The first step of a run as it is planned, loaded and collated in training."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mixer.loading.step import MicroBatch
from mixer.models.row_losses import tokens_per_row
from mixer.trainer.trainer import MixingTrainer
from mixer.utils.text import shortened


@dataclass(frozen=True)
class BatchRow:
    """A sample of a micro-batch.

    Args:
        stream: The stream that it is of.
        num_tokens: Its tokens, padding left out; 0 for inputs that are no tokens.
        padding: The share of its row that is padding.
    """

    stream: str
    num_tokens: int
    padding: float


@dataclass(frozen=True)
class CollatedMicroBatch:
    """A micro-batch.

    Args:
        shapes: The shapes of its tensors by name.
        rows: Its rows, in order.
    """

    shapes: dict[str, list[int]]
    rows: list[BatchRow]


@dataclass(frozen=True)
class Batch:
    """A step.

    Args:
        counts: Its samples by stream.
        micro_batches: The micro-batches, in order.
        error: Why it cannot be made; empty where it can.
    """

    counts: dict[str, int]
    micro_batches: list[CollatedMicroBatch]
    error: str = ""

    @property
    def padding(self) -> float | None:
        """The share of all places for tokens that is padding; `None` where inputs are no tokens."""
        rows = [row for micro in self.micro_batches for row in micro.rows if row.num_tokens]
        places = sum(row.num_tokens / (1.0 - row.padding) for row in rows)
        return 1.0 - sum(row.num_tokens for row in rows) / places if rows else None


def first_batch(trainer: MixingTrainer) -> Batch:
    """Plans, loads and collates the first step of a run, with what the run does it with.

    Args:
        trainer: The trainer. Its streams are moved on by this step.

    Returns:
        The step; with an error where a sample cannot be loaded, or a micro-batch not be made.
    """
    loader = trainer.get_train_dataloader()
    names = trainer.mixing.names
    try:
        batch = loader.next_batch()
    except Exception as error:  # whatever it is, training would end by it
        notes = "".join(f" {note}" for note in getattr(error, "__notes__", ()))
        return Batch({}, [], shortened(f"{type(error).__name__}: {error}{notes}", 600))
    finally:
        loader.stop()
    if batch is None:
        return Batch({}, [], "the streams have nothing to give")
    counts = dict(zip(names, batch.plan.counts.tolist(), strict=True))
    return Batch(counts, [_collated(micro, names) for micro in batch.micro_batches if not micro.is_padding])


def _collated(micro: MicroBatch, names: tuple[str, ...]) -> CollatedMicroBatch:
    inputs = micro.inputs if isinstance(micro.inputs, Mapping) else {}
    shapes = {name: list(value.shape) for name, value in inputs.items() if hasattr(value, "shape")}
    tokens = tokens_per_row(inputs).tolist()
    width = _width(inputs)
    streams = [names[stream_id] for stream_id in micro.stream_ids.tolist()]
    if len(tokens) != len(streams):  # packed end to end: no row is of one sample
        tokens = [0] * len(streams)
    rows = [
        BatchRow(stream, count, 1.0 - count / width if count and width else 0.0)
        for stream, count in zip(streams, tokens, strict=True)
    ]
    return CollatedMicroBatch(shapes, rows)


def _width(inputs: Mapping[str, Any]) -> int:
    """Gives how many tokens a row has room for."""
    first = next((inputs[name] for name in ("attention_mask", "input_ids") if name in inputs), None)
    return math.prod(first.shape[1:]) if first is not None else 0


def mean_padding(rows: Sequence[BatchRow]) -> float:
    """Gives the mean share of padding.

    Args:
        rows: At least one row.

    Returns:
        The mean.
    """
    return float(np.mean([row.padding for row in rows]))
