"""Averages gradients over ranks that DDP did not synchronise; what of a model is on which rank."""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from mixer.distributed.collectives import RankSync
from mixer.utils.errors import wrong_value

_BUCKET_BYTES = 25 * 2**20


def obstacle(model: nn.Module, world_size: int) -> str | None:
    """Returns why a model cannot run forward and backward independently on each rank, or `None`.

    Args:
        model: Model as trained.
        world_size: Number of ranks.
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


def finish_forward_sync(model: nn.Module) -> None:
    """Completes DDP's pending communication of the next forward pass now, on all ranks.

    Otherwise a rank that runs out of memory before that point would leave the others waiting.

    Args:
        model: Model as trained.
    """
    ddp = _ddp(model)
    if ddp is not None:
        # As DDP does before a forward pass, without public equivalents.
        ddp.reducer._rebuild_buckets()  # noqa: SLF001
        if ddp._check_sync_bufs_pre_fwd():  # type: ignore[no-untyped-call]  # noqa: SLF001
            ddp._sync_buffers()  # type: ignore[no-untyped-call]  # noqa: SLF001
        ddp.require_forward_param_sync = False


def averaged_parameters(model: nn.Module) -> tuple[list[nn.Parameter], bool]:
    """Returns the parameters whose gradients DDP averages, and whether a backward pass may omit some.

    Raises:
        ValueError: If the model is not wrapped in DDP.
    """
    ddp = _ddp(model)
    if ddp is None:
        raise wrong_value("model", "The model is sharded, or not wrapped in DDP: no rank has a complete gradient.")
    return _averaged(ddp), bool(ddp.find_unused_parameters)


def average_gradients(model: nn.Module, ranks: RankSync, world_size: int) -> None:
    """Averages gradients over ranks, in place of the last backward pass of a step.

    DDP communication hooks are bypassed.

    Args:
        model: Model as trained; without DDP, nothing happens.
        ranks: Collectives.
        world_size: Number of ranks.
    """
    ddp = _ddp(model)
    if ddp is None:
        return
    average_whole(_averaged(ddp), ranks, world_size)
    ddp.require_forward_param_sync = True


def average_whole(parameters: Sequence[nn.Parameter], ranks: RankSync, world_size: int) -> None:
    """Averages the gradients of parameters over ranks, of which each has whole ones of its own; see `average_rows`."""
    row = [parameter.grad for parameter in parameters]
    average_rows([row], parameters, ranks, world_size)
    for parameter, gradient in zip(parameters, row, strict=True):
        parameter.grad = gradient


def average_rows(
    rows: Sequence[list[Tensor | None]], parameters: Sequence[nn.Parameter], ranks: RankSync, world_size: int
) -> None:
    """Averages several gradients over ranks, in place.

    An entry present on some ranks only counts as zero on the others; one present on none stays `None`.

    Args:
        rows: The gradients, each with an entry by parameter.
        parameters: The parameters.
        ranks: Collectives.
        world_size: Number of ranks.
    """
    are_present = np.array([[gradient is not None for gradient in row] for row in rows], dtype=np.int64)
    are_anywhere = ranks.all_reduce_sum(are_present.reshape(-1)).reshape(are_present.shape)
    for row, needed in zip(rows, list(are_anywhere > 0), strict=True):
        for number, parameter in enumerate(parameters):
            if needed[number] and row[number] is None:
                row[number] = torch.zeros_like(parameter)
        gradients = [gradient for gradient in row if gradient is not None]
        for gradient in gradients:
            gradient.div_(world_size)
        add_up(gradients)


def add_up(tensors: Sequence[Tensor]) -> None:
    """Sums tensors of equal shapes and types over ranks, in place."""
    for bucket in buckets(tensors):
        flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
        dist.all_reduce(flat)
        parts = torch.split(flat, [tensor.numel() for tensor in bucket])
        for tensor, part in zip(bucket, parts, strict=True):
            tensor.copy_(part.view_as(tensor))


def buckets(gradients: Sequence[Tensor], most_bytes: int = _BUCKET_BYTES) -> Iterator[list[Tensor]]:
    """Groups gradients for joint communication.

    Args:
        gradients: Gradients.
        most_bytes: Approximate size of a bucket; gradients are never split.

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
    """Returns the engine that shards a model's weights, or `None` if this rank has all of them."""
    parameters = list(model.parameters())
    is_wrapped = any(isinstance(module, FullyShardedDataParallel) for module in model.modules())
    if is_wrapped or any(isinstance(parameter, DTensor) for parameter in parameters):
        return "FSDP or tensor parallelism"
    if parameters and not any(parameter.numel() for parameter in parameters):  # empty outside of a forward pass
        return "DeepSpeed ZeRO-3"
    return None


def reshard(model: nn.Module) -> None:
    """Has FSDP2 gather the weights anew in the next forward: those of the root stay gathered after one alone."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def own_part(tensor: Tensor, world_size: int) -> tuple[Tensor, int]:
    """Returns what this rank has of a tensor, and how many ranks have the same.

    Args:
        tensor: A tensor, whole or sharded.
        world_size: Number of ranks.
    """
    if not isinstance(tensor, DTensor):
        return tensor, world_size
    sizes = zip(tensor.device_mesh.shape, tensor.placements, strict=True)
    return local(tensor), world_size // math.prod(size for size, placement in sizes if placement.is_shard())


def local(tensor: Tensor) -> Tensor:
    """Returns what this rank has of a tensor, whole or sharded, in the same memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
