"""Separate gradients of a step's streams: held, averaged over ranks, and combined with weights."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from mixer.distributed.collectives import RankSync
from mixer.distributed.gradient_sync import average_rows
from mixer.gradients.probe.row_streams import at_least_float32
from mixer.utils.arrays import FloatArray
from mixer.utils.device import to_host


class StreamGradients:
    """Holds the gradients of the streams of a step until they are combined.

    The last stream's gradient stays in `.grad`, so K streams take the memory of K - 1 more gradients.

    Args:
        parameters: The trained parameters.
        world_size: Number of ranks.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], world_size: int):
        self._parameters, self._world_size = parameters, world_size
        self._rows: dict[int, list[Tensor | None]] = {}

    @property
    def stream_ids(self) -> list[int]:
        """Streams with a gradient here, in the order of their arrival."""
        return list(self._rows)

    def stash(self, stream_id: int) -> None:
        """Moves the accumulated gradient of a stream here; the next backward pass starts from zero."""
        self._rows[stream_id] = [parameter.grad for parameter in self._parameters]
        for parameter in self._parameters:
            if parameter.grad is not None:
                # DDP expects a gradient for each parameter that a forward has used.
                parameter.grad = torch.zeros_like(parameter.grad) if self._world_size > 1 else None

    def complete(self, stream_id: int, ranks: RankSync) -> None:
        """Averages the stashed gradients over ranks and adds the last one in `.grad`, which is averaged already.

        Args:
            stream_id: The last stream.
            ranks: The collectives.
        """
        if self._world_size > 1 and self._rows:
            average_rows(list(self._rows.values()), self._parameters, ranks, self._world_size)
        self._rows[stream_id] = [parameter.grad for parameter in self._parameters]

    def gramian(self) -> FloatArray:
        """Computes the products of the gradients, at least in single precision, with one read from the device.

        Returns:
            `[num_held, num_held]`, in the order of `stream_ids`; a parameter without a gradient from a stream counts as
            0.
        """
        rows = list(self._rows.values())
        lower = np.tril_indices(len(rows))
        products = [product(rows[left], rows[right]) for left, right in zip(*lower, strict=True)]
        gramian = np.zeros((len(rows), len(rows)))
        gramian[lower] = gramian.T[lower] = to_host(products)
        return gramian

    def combine(self, weights: FloatArray) -> None:
        """Writes the weighted sum of the gradients to `.grad` and releases them.

        Args:
            weights: `[num_held]`: factors of the gradients.
        """
        rows = list(self._rows.values())
        self._rows = {}
        for number, parameter in enumerate(self._parameters):
            total: Tensor | None = None
            for row, weight in zip(rows, weights.tolist(), strict=True):
                gradient, row[number] = row[number], None
                if gradient is None:
                    continue
                wide = gradient.to(at_least_float32(gradient.dtype))
                total = wide * weight if total is None else total.add_(wide, alpha=weight)
            if total is None:
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            parameter.grad.copy_(total)


def product(left: Sequence[Tensor | None], right: Sequence[Tensor | None]) -> Tensor:
    """Returns the product of two gradients, at least in single precision.

    Args:
        left: Entries by parameter; `None` counts as 0.
        right: The same.

    Returns:
        A scalar, on the device of the gradients.
    """
    parts: list[Tensor] = []
    for pair in zip(left, right, strict=True):
        wide = [entry.reshape(-1).to(at_least_float32(entry.dtype)) for entry in pair if entry is not None]
        if len(wide) == 2:
            part = torch.dot(*wide)
            parts.append(part.to(parts[0].device) if parts else part)
    if not parts:
        return torch.zeros(())
    # The sum is in double precision if the device supports it.
    return torch.stack(parts).sum(dtype=None if parts[0].device.type == "mps" else torch.float64)
