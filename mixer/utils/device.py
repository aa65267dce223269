"""What the host asks a device: values, for which it waits until all work is done, and whether memory ran out."""

from collections.abc import Sequence

import numpy as np
import torch
from accelerate.utils.memory import should_reduce_batch_size
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
    device = next((tensor.device for tensor in tensors if tensor.device.type != "cpu"), torch.device("cpu"))
    flat = torch.cat([tensor.detach().reshape(-1).to(device, non_blocking=True) for tensor in tensors])
    parts = np.split(flat.cpu().double().numpy(), np.cumsum([tensor.numel() for tensor in tensors])[:-1])
    return [part.reshape(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]


def is_out_of_memory(error: Exception) -> bool:
    """Whether an error means that memory ran out, on any kind of device, so that smaller micro-batches may help."""
    return isinstance(error, torch.OutOfMemoryError) or bool(should_reduce_batch_size(error))
