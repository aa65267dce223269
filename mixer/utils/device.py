"""Reading from a device, for which the host waits until the device has done all its work."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from mixer.utils.arrays import FloatArray


def to_host(tensors: Sequence[Tensor]) -> list[FloatArray]:
    """Reads small tensors together, so that the host waits once.

    Args:
        tensors: The tensors, on any devices.

    Returns:
        Their values in double precision, in the same shapes.
    """
    if not tensors:
        return []
    device = next((one.device for one in tensors if one.device.type != "cpu"), torch.device("cpu"))
    flat = torch.cat([one.detach().reshape(-1).to(device, non_blocking=True) for one in tensors])
    parts = np.split(flat.cpu().double().numpy(), np.cumsum([one.numel() for one in tensors])[:-1])
    return [part.reshape(one.shape) for part, one in zip(parts, tensors, strict=True)]
