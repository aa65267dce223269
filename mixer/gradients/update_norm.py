"""How far each step moves a model: the clock of what goes by how much was learned."""

from typing import Any

import torch
from torch import Tensor, nn

from mixer.distributed.gradient_sync import shards_of


class UpdateNorm:
    """Measures `||θ_{t+1} - θ_t||` over the trainable parameters, from one call of `measure` to the next.

    It holds a copy of the trainable parameters, as much memory again as they take (little with adapters), and each call
    reads them twice, to compare and to copy. On several ranks that hold the same parameters each measures the same.

    Args:
        model: The model, with the parameters frozen that are to be; those that are trainable now are measured.

    Raises:
        ValueError: If no parameter is trainable, or the model is sharded.

    Example:
        >>> model = nn.Linear(2, 1, bias=False)
        >>> norm = UpdateNorm(model)
        >>> _ = model.weight.data.add_(torch.tensor([[3.0, 4.0]]))
        >>> round(norm.measure().item(), 4)
        5.0
    """

    def __init__(self, model: nn.Module):
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        _check(model, self._parameters)
        self._before = [parameter.detach().clone() for parameter in self._parameters]

    @torch.no_grad()
    def measure(self) -> Tensor:
        """Measures what the parameters moved since the last call (since construction, for the first).

        Nothing is read back: the result stays on the device until someone looks at it.

        Returns:
            float32 `[]`, on the device of the first parameter; NaN or infinite where a parameter is.
        """
        device = self._parameters[0].device
        squares = [_squared_norms(*group).sum().to(device) for group in self._groups()]
        return torch.stack(squares).sum().sqrt().to(torch.float32)

    def _groups(self) -> list[tuple[list[Tensor], list[Tensor]]]:
        """Copies and parameters of one device and type each, as operations on lists want them."""
        groups: dict[Any, tuple[list[Tensor], list[Tensor]]] = {}
        for before, parameter in zip(self._before, self._parameters, strict=True):
            copies, parameters = groups.setdefault((parameter.device, parameter.dtype), ([], []))
            copies.append(before)
            parameters.append(parameter.detach())
        return list(groups.values())


def _squared_norms(before: list[Tensor], parameters: list[Tensor]) -> Tensor:
    """Squared norms of the differences; `before` then holds the parameters."""
    # In place, so that the differences take no third copy; those of close numbers are exact in any type.
    torch._foreach_sub_(before, parameters)
    is_wide = before[0].dtype == torch.float64
    norms = torch._foreach_norm(before, 2, dtype=torch.float64 if is_wide else torch.float32)
    torch._foreach_copy_(before, parameters)
    stacked = torch.stack(norms)
    # Squares of small numbers vanish in float32; some devices have nothing wider.
    return (stacked if stacked.device.type == "mps" else stacked.double()).square()


def _check(model: nn.Module, parameters: list[nn.Parameter]) -> None:
    sharded = shards_of(model)
    if sharded is not None:
        raise ValueError(
            f"model must have whole parameters on every rank, but {sharded} has them in shards, so that a rank cannot "
            "tell how far a step moved them: train with DDP, or mix by a policy that does not need 'update_norm'."
        )
    if not parameters:
        raise ValueError("model has no trainable parameter; unfreeze those that are trained before it is measured.")
