"""A look, once, whether the pieces of each gradient add up to the gradient that the backward made."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils.hooks import RemovableHandle

from mixer.probe.sums import Sums

_TOLERANCE = 0.05  # half precision rounds pieces and whole differently


class PieceCheck:
    """Compares the first micro-batch's pieces with the whole gradients.

    A parameter that is also used behind the back of its layer (attention that takes a layer's weight by itself, a
    penalty on weights) has a gradient that its layer does not see.

    Args:
        parameters: The parameters that are read.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]):
        self._gradients: dict[int, Tensor] = {}
        self._handles: list[RemovableHandle] = []
        for index, parameter in enumerate(parameters):
            if not isinstance(parameter, DTensor):  # what a sharded one gets is no longer this rank's own gradient
                self._handles.append(parameter.register_hook(self._taker(index)))  # type: ignore[no-untyped-call]

    def _taker(self, index: int) -> Callable[[Tensor], None]:
        def take(gradient: Tensor) -> None:
            known = self._gradients.get(index)
            self._gradients[index] = gradient if known is None else known + gradient

        return take

    def finish(self, sums: Sums) -> list[int] | None:
        """Ends the look.

        Args:
            sums: What the pieces of this one micro-batch came to.

        Returns:
            Numbers of the parameters whose pieces miss something; `None` if gradients were not finite.
        """
        self.remove()
        found = [(index, *sums.compare(index, gradient)) for index, gradient in self._gradients.items()]
        self._gradients.clear()
        if not found:
            return []
        squares = torch.stack([torch.stack([distance, whole]) for _, distance, whole in found]).cpu()
        if not squares.isfinite().all():
            return None
        is_off = squares[:, 0] > _TOLERANCE**2 * squares[:, 1] + torch.finfo(torch.float32).tiny
        return [index for (index, *_), off in zip(found, is_off.tolist(), strict=True) if off]

    def remove(self) -> None:
        """Takes the hooks away."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
