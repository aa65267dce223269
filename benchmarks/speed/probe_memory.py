"""Most bytes of tensors that a step holds over what was there before it."""

from collections.abc import Callable

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile


def peak_bytes(step: Callable[[], None], device: torch.device) -> int:
    """Measures a step's peak, kernels' own buffers included.

    On a GPU by torch's own count of what its allocator gave out; on the CPU every allocation and release of torch's is
    recorded, and the largest running sum taken.

    Args:
        step: Does the step.
        device: Where.

    Returns:
        Bytes, counted from the start of the step.
    """
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        step()
    assert recorded.profiler is not None
    results = recorded.profiler.kineto_results
    changes = sorted((event.start_ns(), event.nbytes()) for event in results.events() if event.name() == "[memory]")
    live = peak = 0
    for _, change in changes:
        live += change
        peak = max(peak, live)
    return peak


def largest_pieces(model: nn.Module, num_streams: int) -> int:
    """Gives what a probe has to hold at least: the gradients of one layer, of all streams.

    Args:
        model: The model.
        num_streams: Number of streams.

    Returns:
        Bytes, of the largest parameter.
    """
    return num_streams * max(parameter.nbytes for parameter in model.parameters() if parameter.requires_grad)
