"""Which samples a model was trained on, noted at the model itself, so that every loader is counted in the same way."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mixer.utils.arrays import Int64Array

SOURCE, ROW = "source", "row"  # columns of every sample: its stream, and which of the stream's samples it is


class Counter:
    """Notes stream and row of every sample that a model is trained on, step by step."""

    def __init__(self) -> None:
        self.batches: list[Int64Array] = []  # [num_samples, 2] each: stream, row

    def attach(self, model: nn.Module) -> None:
        """Counts what this model is given from now on, and takes the two columns out of its inputs.

        Args:
            model: The model.
        """
        model.register_forward_pre_hook(self._note, with_kwargs=True)

    def _note(self, model: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        inputs = dict(kwargs)
        source, row = inputs.pop(SOURCE, None), inputs.pop(ROW, None)
        if source is not None and model.training and torch.is_grad_enabled():
            self.note(source, row)
        return args, inputs

    def note(self, source: Tensor, row: Tensor) -> None:
        """Adds a step.

        Args:
            source: int64 `[num_samples]`: the streams.
            row: int64 `[num_samples]`: the rows.
        """
        self.batches.append(np.stack([source.numpy(), row.numpy()], axis=1).astype(np.int64))

    def samples(self) -> Int64Array:
        """Gives `[num_samples, 2]`: stream and row of all samples, in order."""
        return np.concatenate(self.batches)


def realised_shares(samples: Int64Array, num_streams: int) -> list[float]:
    """Gives the share of each stream.

    Args:
        samples: `[num_samples, 2]`, one at least.
        num_streams: Number of streams.

    Returns:
        Shares that add up to 1.
    """
    counts = np.bincount(samples[:, 0], minlength=num_streams)
    return [float(share) for share in counts / counts.sum()]


def largest_deviation(batches: Sequence[Int64Array], shares: Sequence[float]) -> float:
    """Gives how far a stream's count was from its asked share at most, after any step.

    Args:
        batches: `[num_samples, 2]` each.
        shares: What was asked for.

    Returns:
        Samples.
    """
    counts = np.stack([np.bincount(batch[:, 0], minlength=len(shares)) for batch in batches]).cumsum(axis=0)
    asked = counts.sum(axis=1, keepdims=True) * np.asarray(shares)
    return float(np.abs(counts - asked).max())
