"""The engine that keeps the ranks' models together, and what it leaves to a mixture."""

from dataclasses import dataclass
from typing import Any

from accelerate.utils import DistributedType
from transformers import Trainer

from mixer.trainer.argument_support import REFUSED

_PLAIN = (DistributedType.NO, DistributedType.MULTI_CPU, DistributedType.MULTI_GPU)


@dataclass(frozen=True)
class Engine:
    """What is left to a Trainer by the engine that runs its ranks.

    Args:
        name: What users call it.
        has_gradients: Whether, after a backward, each rank has a whole gradient of its own.
        has_weights: Whether each rank has all weights, so that it can run the model by itself.
        has_layers: Whether a probe can read the layers.
        has_step: Whether the optimizer's step is the Trainer's, and not part of the last backward of a step.
    """

    name: str
    has_gradients: bool = True
    has_weights: bool = True
    has_layers: bool = True
    has_step: bool = True


def engine_of(trainer: Trainer) -> Engine:
    """Says which engine runs a trainer's ranks.

    Args:
        trainer: The trainer, after its own construction.

    Returns:
        The engine.

    Raises:
        ValueError: If mixing does not go with it.
    """
    state: Any = trainer.accelerator.state
    if state.distributed_type == DistributedType.DEEPSPEED:
        stage = int(state.deepspeed_plugin.zero_stage)
        is_whole = stage < 3
        return Engine(f"DeepSpeed ZeRO-{stage}", False, is_whole, is_whole, has_step=False)
    if state.distributed_type == DistributedType.FSDP:
        if state.fsdp_plugin.fsdp_version != 2:
            raise ValueError(REFUSED["fsdp_config"])
        return Engine("FSDP2", has_gradients=False, has_weights=False)
    if state.distributed_type not in _PLAIN:
        raise ValueError(
            f"The distributed engine {state.distributed_type.value} is not supported by mixing: use DDP, FSDP2 or "
            "DeepSpeed."
        )
    return Engine("DDP")
