"""Memory that is used again."""

import torch
from torch import Tensor


class Workspace:
    """Room for the pieces of one layer after the other.

    Fresh memory of this size comes from the system page by page, which on a CPU shows in the time of a step. So the
    room stays, as large as the largest layer needed; a GPU's allocator keeps its own, and there it is let go of.
    """

    def __init__(self) -> None:
        self._room: dict[torch.dtype, Tensor] = {}

    def take(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        """Gives room; what was given before for the same type is overwritten.

        Args:
            shape: How much.
            dtype: Of which type.
            device: Where.

        Returns:
            `[*shape]`, with anything in it.
        """
        if device.type != "cpu":
            return torch.empty(shape, dtype=dtype, device=device)
        size, room = torch.Size(shape).numel(), self._room.get(dtype)
        if room is None or room.numel() < size:
            room = self._room[dtype] = torch.empty(size, dtype=dtype)
        return room[:size].view(shape)
