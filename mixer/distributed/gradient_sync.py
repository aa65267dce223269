"""Averages over the ranks of gradients that DDP did not synchronise."""

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from mixer.utils.arrays import Int64Array

_BUCKET_BYTES = 25 * 2**20


class Ranks(Protocol):
    """What the ranks have to agree on."""

    def total(self, numbers: Int64Array) -> Int64Array:
        """Adds numbers of all ranks up."""


def obstacle(model: nn.Module, world_size: int) -> str | None:
    """Says why a model's forward and backward cannot run on each rank by itself, gradients averaged afterwards.

    Args:
        model: The model as it is trained.
        world_size: Number of ranks.

    Returns:
        The reason, or `None` if there is none.
    """
    ddp = _ddp(model)
    if ddp is None:
        return None if world_size == 1 else "the model is sharded, or not wrapped in DDP"
    if ddp.static_graph:
        return "ddp_static_graph=True always synchronises gradients in the first backward pass"
    for name, module in model.named_modules():
        if isinstance(module, nn.SyncBatchNorm):
            return f"{name} (SyncBatchNorm) communicates with other ranks in its forward pass"
        if getattr(module, "sparse", False) is True:
            return f"{name} has sparse gradients"
    return None


def settle(model: nn.Module) -> None:
    """Does now, on all ranks together, what DDP would talk about in the next forward.

    A rank whose memory runs out before it gets there would leave the others waiting for it.

    Args:
        model: The model as it is trained.
    """
    ddp = _ddp(model)
    if ddp is not None:
        # As DDP does before a forward pass, without public equivalents.
        ddp.reducer._rebuild_buckets()  # noqa: SLF001
        if ddp._check_sync_bufs_pre_fwd():  # type: ignore[no-untyped-call]  # noqa: SLF001
            ddp._sync_buffers()  # type: ignore[no-untyped-call]  # noqa: SLF001
        ddp.require_forward_param_sync = False


def averaged_parameters(model: nn.Module) -> tuple[list[nn.Parameter], bool]:
    """Gives the parameters whose gradients DDP averages.

    Args:
        model: The model as it is trained.

    Returns:
        The parameters, and whether a backward may leave some of them out.

    Raises:
        ValueError: If the model is not wrapped in DDP.
    """
    ddp = _ddp(model)
    if ddp is None:
        raise ValueError("The model is sharded, or not wrapped in DDP: no rank has a complete gradient.")
    return _averaged(ddp), bool(ddp.find_unused_parameters)


def average_gradients(model: nn.Module, ranks: Ranks, world_size: int) -> None:
    """Averages a model's gradients over the ranks, as the last backward of a step does otherwise.

    A gradient that only some ranks have counts as zero on the others; one that none has stays `None`. A communication
    hook registered with DDP is passed by.

    Args:
        model: The model as it is trained; nothing is done for one that is not wrapped in DDP.
        ranks: What the ranks agree by.
        world_size: Number of ranks.
    """
    ddp = _ddp(model)
    if ddp is None:
        return
    parameters = _averaged(ddp)
    are_present = np.array([parameter.grad is not None for parameter in parameters], dtype=np.int64)
    for parameter, is_anywhere in zip(parameters, ranks.total(are_present).tolist(), strict=True):
        if is_anywhere and parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    for gradient in gradients:
        gradient.div_(world_size)
    add_up(gradients)
    ddp.require_forward_param_sync = True


def add_up(tensors: Sequence[Tensor]) -> None:
    """Adds tensors up over the ranks, in place.

    Args:
        tensors: Tensors of the same shapes and types on every rank.
    """
    for bucket in buckets(tensors):
        flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
        dist.all_reduce(flat)
        parts = torch.split(flat, [tensor.numel() for tensor in bucket])
        for tensor, part in zip(bucket, parts, strict=True):
            tensor.copy_(part.view_as(tensor))


def buckets(gradients: Sequence[Tensor], most_bytes: int = _BUCKET_BYTES) -> Iterator[list[Tensor]]:
    """Gathers gradients that can travel together.

    Args:
        gradients: The gradients.
        most_bytes: About how much travels at once; a gradient is never cut.

    Yields:
        Gradients of one type on one device, in the same order on every rank.
    """
    by_kind: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for gradient in gradients:
        bucket = by_kind.setdefault((gradient.dtype, gradient.device), [])
        bucket.append(gradient)
        if sum(part.nbytes for part in bucket) >= most_bytes:
            yield by_kind.pop((gradient.dtype, gradient.device))
    yield from by_kind.values()


def _averaged(ddp: DistributedDataParallel) -> list[nn.Parameter]:
    return [
        parameter
        for name, parameter in ddp.module.named_parameters()
        if parameter.requires_grad and name not in ddp.parameters_to_ignore
    ]


def _ddp(model: nn.Module) -> DistributedDataParallel | None:
    model = getattr(model, "_orig_mod", model)  # compiled
    return model if isinstance(model, DistributedDataParallel) else None


def shards_of(model: nn.Module) -> str | None:
    """Says whose shards a model's weights are.

    Args:
        model: The model as it is trained.

    Returns:
        The engine's name, or `None` if this rank has the weights whole.
    """
    parameters = list(model.parameters())
    is_wrapped = any(isinstance(module, FullyShardedDataParallel) for module in model.modules())
    if is_wrapped or any(isinstance(parameter, DTensor) for parameter in parameters):
        return "FSDP or tensor parallelism"
    if parameters and not any(parameter.numel() for parameter in parameters):  # empty outside of a forward pass
        return "DeepSpeed ZeRO-3"
    return None
