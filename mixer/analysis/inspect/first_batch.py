"""The first step of a run: planned, loaded and collated as in training."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from mixer.loading.step import MicroBatch
from mixer.models.row_losses import tokens_per_row
from mixer.trainer.trainer import MixingTrainer
from mixer.utils.text import in_words, shortened


@dataclass(frozen=True)
class CollatedMicroBatch:
    """A collated micro-batch.

    Args:
        shapes: Shapes of its tensors, by name.
        streams: The stream of each row.
        padding: Share of each row that is padding; empty for inputs other than tokens.
    """

    shapes: dict[str, list[int]]
    streams: list[str]
    padding: list[float]


@dataclass(frozen=True)
class Batch:
    """The batch of a step.

    Args:
        counts: Number of samples by stream.
        micro_batches: The micro-batches, in order.
        padding: Share of all token positions that is padding; `None` for inputs other than tokens.
        error: The error that forming the batch raised; empty without one.
    """

    counts: dict[str, int]
    micro_batches: list[CollatedMicroBatch]
    padding: float | None = None
    error: str = ""


def first_batch(trainer: MixingTrainer) -> Batch:
    """Plans, loads and collates the first step.

    Args:
        trainer: The trainer. Its streams advance by this step.
    """
    loader = trainer.get_train_dataloader()
    names = trainer.mixing.names
    try:
        batch = loader.next_batch()
    except Exception as error:  # any error here would end training
        return Batch({}, [], error=shortened(in_words(error), 600))
    finally:
        loader.stop()
    if batch is None:
        return Batch({}, [], error="the streams have no samples")
    counts = dict(zip(names, batch.plan.counts.tolist(), strict=True))
    micro_batches = [_collated(micro, names) for micro in batch.micro_batches if not micro.is_padding]
    widths = [_width(micro.shapes) for micro in micro_batches for _ in micro.padding]
    shares = [share for micro in micro_batches for share in micro.padding]
    padding = float(np.average(shares, weights=widths)) if shares else None
    return Batch(counts, micro_batches, padding)


def _collated(micro: MicroBatch, names: tuple[str, ...]) -> CollatedMicroBatch:
    inputs = micro.inputs if isinstance(micro.inputs, Mapping) else {}
    shapes = {name: list(value.shape) for name, value in inputs.items() if hasattr(value, "shape")}
    streams = [names[stream_id] for stream_id in micro.stream_ids.tolist()]
    tokens, width = tokens_per_row(inputs).numpy(), _width(shapes)
    is_padded = width > 0 and tokens.any() and len(tokens) == len(streams)  # else packed into one row, or no tokens
    return CollatedMicroBatch(shapes, streams, (1.0 - tokens / width).tolist() if is_padded else [])


def _width(shapes: Mapping[str, list[int]]) -> int:
    """Returns the number of token positions of a row."""
    return math.prod((shapes.get("attention_mask") or shapes.get("input_ids") or [0, 0])[1:])
