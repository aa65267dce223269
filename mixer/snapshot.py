"""What an update starts from besides the weights, so that it can be repeated as if it had not been tried."""

from typing import Any

import torch
from torch import nn

from mixer.random_state import RandomState

# Statistics that a forward moves on, as those of batch normalisation, are small; large buffers are tables or weights.
_MOST_BYTES = 2**16


class Snapshot:
    """Notes the random generators, the device's too, and the model's small buffers.

    Args:
        model: The model as it is trained; `None` for the generators alone.
        device: Where it is.
    """

    def __init__(self, model: nn.Module | None, device: torch.device):
        self._generators = RandomState.capture()
        self._device: Any = None if device.type == "cpu" else torch.get_device_module(device)
        self._device_generator = None if self._device is None else self._device.get_rng_state()
        buffers = () if model is None else model.buffers()
        self._buffers = [(buffer, buffer.clone()) for buffer in buffers if buffer.nbytes <= _MOST_BYTES]

    def restore(self) -> None:
        """Goes back to what was noted."""
        self._generators.restore()
        if self._device is not None:
            self._device.set_rng_state(self._device_generator)
        with torch.no_grad():
            for buffer, value in self._buffers:
                buffer.copy_(value)
