"""Length of each optimizer step in parameter space: the clock of policies that follow the training progress."""

from typing import Any

import torch
from torch import Tensor, nn

from mixer.distributed.gradient_sync import shards_of


class StepLength:
    """Measures `||θ_{t+1} - θ_t||` over the trainable parameters between calls of `measure`.

    It holds a copy of the trainable parameters, so it doubles their memory (little for adapters). Each call reads them
    twice, to compare and to copy. Ranks with the same parameters measure the same.

    Args:
        model: The model; parameters that are trainable now are measured.

    Raises:
        ValueError: If no parameter is trainable, or the model is sharded.

    Example:
        >>> model = nn.Linear(2, 1, bias=False)
        >>> length = StepLength(model)
        >>> _ = model.weight.data.add_(torch.tensor([[3.0, 4.0]]))
        >>> round(length.measure().item(), 4)
        5.0
    """

    def __init__(self, model: nn.Module):
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        sharded = shards_of(model)
        if sharded is not None:
            raise ValueError(
                f"model must have whole parameters on every rank, but {sharded} has them in shards, so no rank can "
                "measure the length of a step: train with DDP, or choose a policy that does not need UpdateNorm."
            )
        if not self._parameters:
            raise ValueError("model has no trainable parameter; unfreeze the parameters to train first.")
        self._before = [parameter.detach().clone() for parameter in self._parameters]

    @torch.no_grad()
    def measure(self) -> Tensor:
        """Measures the distance that the parameters moved since the last call, or since construction.

        The result stays on the device until it is read.

        Returns:
            float32 `[]`, on the device of the first parameter; NaN or infinite if a parameter is.
        """
        device = self._parameters[0].device
        squares = [_squared_norms(*group).sum().to(device) for group in self._groups()]
        return torch.stack(squares).sum().sqrt().to(torch.float32)

    def _groups(self) -> list[tuple[list[Tensor], list[Tensor]]]:
        """Copies and parameters by device and type, as operations on lists of tensors require."""
        groups: dict[Any, tuple[list[Tensor], list[Tensor]]] = {}
        for before, parameter in zip(self._before, self._parameters, strict=True):
            copies, parameters = groups.setdefault((parameter.device, parameter.dtype), ([], []))
            copies.append(before)
            parameters.append(parameter.detach())
        return list(groups.values())


def _squared_norms(before: list[Tensor], parameters: list[Tensor]) -> Tensor:
    """Squared norms of the differences; afterwards `before` holds the parameters."""
    # In place, to avoid a third copy; differences of close numbers are exact in any type.
    torch._foreach_sub_(before, parameters)
    is_wide = before[0].dtype == torch.float64
    dtype = torch.float64 if is_wide else torch.float32
    norms = torch._foreach_norm(before, 2, dtype=dtype)  # noqa: SLF001  # has no public name
    torch._foreach_copy_(before, parameters)
    stacked = torch.stack(norms)
    # Squares of small numbers underflow in float32; some devices have no wider type.
    return (stacked if stacked.device.type == "mps" else stacked.double()).square()
