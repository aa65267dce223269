"""DDP, FSDP and DeepSpeed: what they leave to a mixture, and what they rule out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from accelerate.utils import DistributedType
from transformers import Trainer
from transformers.utils import logging

from mixer.mixture.stream import Stream
from mixer.policies import Policy
from mixer.schedules import Schedule
from mixer.trainer.argument_support import REFUSED
from mixer.trainer.method import Method

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


logger = logging.get_logger(__name__)


@dataclass(frozen=True)
class EngineRequest:
    """What a run asks of its engine.

    Args:
        policy: The mixing policy.
        schedule: The batch-size schedule.
        methods: What takes part in steps.
        streams: The streams.
        probes: Whether gradients are probed.
        skips: Whether a step is left out where a loss is not finite.
        has_heads: Whether streams have heads of their own.
        is_cut_by_tokens: Whether micro-batches hold so many tokens.
        counts_steps: Whether the learning rate goes by steps, and not by the data.
    """

    policy: Policy
    schedule: Schedule
    methods: Sequence[Method]
    streams: Sequence[Stream]
    probes: bool
    skips: bool
    has_heads: bool
    is_cut_by_tokens: bool
    counts_steps: bool


def check_engine(trainer: Trainer, asked: EngineRequest) -> None:
    """Refuses what the engine cannot give, and says where one that is asked for is not used.

    Args:
        trainer: The trainer, after its own construction.
        asked: What the run asks of it.

    Raises:
        ValueError: With what is asked for, the reason and the way out.
    """
    engine = engine_of(trainer)
    if trainer.args.fsdp and engine.name != "FSDP2":
        logger.warning(
            "fsdp is given, but accelerate shards no model here (use_cpu, one process, or no device for it): this "
            "trains with %s.",
            engine.name,
        )
    for refusal_of in (_of_gradients, _of_weights, _of_layers, _of_step, _of_heads):
        refusal = refusal_of(engine, asked)
        if refusal is not None:
            raise ValueError(refusal)
    _check_deepspeed(trainer, asked)


def _of_gradients(engine: Engine, asked: EngineRequest) -> str | None:
    if engine.has_gradients:
        return None
    why = f"and under {engine.name} no rank has a whole gradient of its own"
    if "gradient_noise" in asked.schedule.needs:
        return (
            f"batch_size={asked.schedule.name} goes by the noise of the gradient, {why}. Use DDP, or a schedule that "
            "measures no noise, such as SmoothedLossChange."
        )
    takers = [method.name for method in asked.methods if method.takes_gradients]
    if takers:
        return f"{', '.join(takers)}: needs gradients by itself, {why}. Use DDP, or leave it out."
    return None


def _of_weights(engine: Engine, asked: EngineRequest) -> str | None:
    if engine.has_weights or "update_norm" not in asked.policy.needs:
        return None
    return (
        f"mixing={asked.policy.name} goes by how far a step moves the weights, of which {engine.name} gives each "
        "rank a shard. Use DDP, or a policy that does not need 'update_norm'."
    )


def _of_layers(engine: Engine, asked: EngineRequest) -> str | None:
    if engine.has_layers or not asked.probes:
        return None
    return (
        f"Gradients by stream cannot be measured under {engine.name}, whose layers have weights only while they run. "
        "Use stage 2, FSDP2 or DDP, or leave out what needs them (mixing, batch_size or probe)."
    )


def _of_step(engine: Engine, asked: EngineRequest) -> str | None:
    if engine.has_step:
        return None
    why = f"{engine.name} makes the optimizer's step in the last backward of a step"
    if asked.skips:
        return (
            f"nonfinite='skip' leaves a step out once the losses of all ranks are known, but {why}. Use 'warn' or "
            "'raise', or another engine."
        )
    late = [method.name for method in asked.methods if type(method).end_backward is not Method.end_backward]
    return None if not late else f"{', '.join(late)}: would see the gradient too late, since {why}. Use DDP or FSDP2."


def _of_heads(engine: Engine, asked: EngineRequest) -> str | None:
    """Of heads by stream: ranks that gather shards of weights, or reduce gradients, have to be in the same one."""
    if engine.has_gradients or not asked.has_heads:
        return None
    if not engine.has_layers:
        return (
            f"Streams have heads of their own, and to the gradient of a head that the first micro-batch of a step "
            f"does not use, {engine.name} adds what the step before has left. Use stage 2, FSDP2 or DDP."
        )
    iterable = [stream.name for stream in asked.streams if stream.is_iterable]
    if not iterable and not asked.is_cut_by_tokens:
        return None
    what = f"the iterable streams {iterable}" if iterable else "max_tokens_per_micro_batch"
    return (
        f"Streams have heads of their own, and under {engine.name} all ranks have to run the same head at the same "
        f"time, which {what} cannot promise. Use DDP, map-style streams, or per_device_train_batch_size alone."
    )


def _check_deepspeed(trainer: Trainer, asked: EngineRequest) -> None:
    plugin: Any = getattr(trainer.accelerator.state, "deepspeed_plugin", None)
    if plugin is None:
        return
    if "scheduler" in plugin.deepspeed_config and not asked.counts_steps:
        raise ValueError(REFUSED["deepspeed"])
    if asked.probes and plugin.deepspeed_config.get("fp16", {}).get("enabled") is True:
        raise ValueError(
            "Gradients by stream cannot be measured under DeepSpeed in fp16, which scales losses where nobody sees it. "
            "Use bf16, or leave out what needs them (mixing, batch_size or probe)."
        )
