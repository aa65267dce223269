"""Whether a rank has a model's weights whole."""

from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor


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
    if parameters and not any(parameter.numel() for parameter in parameters):  # so they are outside of a forward
        return "DeepSpeed ZeRO-3"
    return None
