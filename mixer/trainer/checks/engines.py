"""DDP, FSDP and DeepSpeed: what a mixture can do on each engine."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from accelerate.utils import DistributedType, parse_flag_from_env
from transformers import Trainer, TrainingArguments
from transformers.utils import logging

from mixer.measurements import required
from mixer.measurements.measurement import Requirement
from mixer.run.argument_support import REFUSED
from mixer.run.hooks import StepHook
from mixer.run.plan import RunPlan
from mixer.utils.errors import InvalidValueError, wrong_value

_PLAIN = (DistributedType.NO, DistributedType.MULTI_CPU, DistributedType.MULTI_GPU)
_NO_GRADIENTS = "no rank has a whole gradient of its own"
logger = logging.get_logger(__name__)


@dataclass(frozen=True)
class Engine:
    """What the engine that runs the ranks leaves to the Trainer.

    Args:
        name: Its name for users.
        has_gradients: Whether each rank has a whole gradient of its own after a backward.
        has_layers: Whether a probe can read the layers, and backwards can run beside those of steps.
        has_step: Whether the Trainer makes the optimizer step, and not the last backward of a step.
    """

    name: str
    has_gradients: bool = True
    has_layers: bool = True
    has_step: bool = True

    @property
    def lacking(self) -> dict[Requirement, str]:
        """What measurements may require and no rank has here, with the reason."""
        reasons: dict[Requirement, str] = {}
        if not self.has_gradients:
            reasons["whole gradients"] = f"under {self.name} {_NO_GRADIENTS}"
        if not self.has_layers:
            reasons["gradients between steps"] = (
                f"{self.name} computes them in its own steps alone (stage 2 and FSDP2 do not)"
            )
        return reasons


def is_requested(args: TrainingArguments) -> bool:
    """Whether FSDP or DeepSpeed is requested, by the training arguments or by `accelerate launch`."""
    return bool(args.fsdp or args.deepspeed_plugin or parse_flag_from_env("ACCELERATE_USE_FSDP"))


def engine_of(trainer: Trainer) -> Engine:
    """Returns the engine that runs a trainer's ranks.

    Raises:
        ValueError: If mixing does not support it.
    """
    state: Any = trainer.accelerator.state
    if state.distributed_type == DistributedType.DEEPSPEED:
        stage = int(state.deepspeed_plugin.zero_stage)
        return Engine(f"DeepSpeed ZeRO-{stage}", False, stage < 3, has_step=False)
    if state.distributed_type == DistributedType.FSDP:
        if state.fsdp_plugin.fsdp_version != 2:
            raise InvalidValueError(REFUSED["fsdp_config"], option="fsdp_config")
        return Engine("FSDP2", has_gradients=False)
    if state.distributed_type not in _PLAIN:
        raise InvalidValueError(
            option="distributed_type", expected="DDP, FSDP2 or DeepSpeed", found=str(state.distributed_type.value)
        )
    return Engine("DDP")


def check_engine(trainer: Trainer, plan: RunPlan) -> None:
    """Refuses what the engine cannot fulfil; warns if the requested engine is not the one in use.

    Args:
        trainer: The trainer, after the construction of its parent class.
        plan: The plan of the run, with the methods attached.

    Raises:
        ValueError: With the option, the reason and the alternatives.
    """
    engine = engine_of(trainer)
    if trainer.args.fsdp and engine.name != "FSDP2":
        logger.warning(
            "fsdp is set, but accelerate shards nothing here (use_cpu, one process, no device): training with %s.",
            engine.name,
        )
    for refusal in _refusals(engine, plan):
        raise refusal
    _check_deepspeed(trainer, plan)


def _refusals(engine: Engine, plan: RunPlan) -> Iterator[InvalidValueError]:
    for option, rule in (("mixing", plan.policy), ("batch_size", plan.schedule)):
        for need in rule.needs:
            for requirement in need.requires & engine.lacking.keys():
                yield wrong_value(
                    option,
                    f"={rule.name} needs {need!r}, which takes {requirement} on each rank, but "
                    f"{engine.lacking[requirement]}. Use DDP, or a rule that does not need it.",
                )
    takers = [method.name for method in plan.methods if "whole gradients" in method.needs]
    if not engine.has_gradients and takers:
        why = f"and under {engine.name} {_NO_GRADIENTS}"
        yield wrong_value(
            "methods", f": {takers} need whole gradients, {why}. Use DDP, or leave them out.", found=takers
        )
    holders = [method.name for method in plan.methods if "whole weights" in method.needs]
    if not engine.has_gradients and holders:
        yield wrong_value(
            "methods",
            f": {holders} copy or change the whole model, but under {engine.name} each rank has only a shard of what "
            "is trained. Use DDP, or a method that goes by the model's outputs, such as DERPlusPlus.",
            found=holders,
        )
    if not engine.has_layers and plan.probed is not None:
        yield wrong_value(
            "probe",
            f"cannot measure gradients per stream under {engine.name}, which holds a layer's weights only while it "
            "runs. Use stage 2, FSDP2 or DDP, or no option that needs them (mixing, batch_size, probe).",
        )
    if not engine.has_step:
        yield from _of_step(engine, plan)
    if not engine.has_gradients and plan.have_heads:
        yield from _of_heads(engine, plan)


def _of_step(engine: Engine, plan: RunPlan) -> Iterator[InvalidValueError]:
    why = f"{engine.name} makes the optimizer step in the last backward of a step"
    if plan.config.nonfinite == "skip":
        yield wrong_value("nonfinite", f"='skip' needs the losses of all ranks, but {why}. Use 'warn' or 'raise'.")
    late = [method.name for method in plan.methods if type(method).end_backward is not StepHook.end_backward]
    if late:
        yield wrong_value("methods", f": {late} would see the gradient too late, since {why}. Use DDP or FSDP2.")


def _of_heads(engine: Engine, plan: RunPlan) -> Iterator[InvalidValueError]:
    """Refuses heads per stream: ranks that gather shards of weights, or reduce gradients, must run the same head."""
    if not engine.has_layers:
        yield wrong_value(
            "heads",
            f"of streams cannot be trained under {engine.name}, which does not clear the gradient of a head that the "
            "first micro-batch of a step does not use: it adds that of the step before. Use stage 2, FSDP2 or DDP.",
        )
    iterable = [stream.name for stream in plan.streams if stream.is_iterable]
    if iterable or plan.config.max_tokens_per_micro_batch is not None:
        what = f"the iterable streams {iterable}" if iterable else "max_tokens_per_micro_batch"
        yield wrong_value(
            "heads",
            f"of streams need, under {engine.name}, that all ranks run the same head at the same time, which {what} "
            "cannot guarantee. Use DDP, map-style streams, or per_device_train_batch_size only.",
            found=iterable,
        )


def _check_deepspeed(trainer: Trainer, plan: RunPlan) -> None:
    plugin: Any = getattr(trainer.accelerator.state, "deepspeed_plugin", None)
    if plugin is None:
        return
    if "scheduler" in plugin.deepspeed_config and not plan.is_step_based:
        raise InvalidValueError(REFUSED["deepspeed"], option="deepspeed")
    has_targets = "gradients between steps" in required(plan.needs)
    if (has_targets or plan.probed is not None) and plugin.deepspeed_config.get("fp16", {}).get("enabled") is True:
        text = "of DeepSpeed scales losses internally: no gradients of streams or targets can be measured. Use bf16, "
        raise wrong_value("fp16", f"{text}or no option that needs them (mixing, batch_size or probe).")
    checkpointing: Any = trainer.args.gradient_checkpointing_kwargs or {}
    if has_targets and checkpointing.get("use_reentrant"):
        text = f": use_reentrant=True cannot compute gradients of targets, for mixing={plan.policy.name}, beside "
        raise wrong_value(
            "gradient_checkpointing_kwargs", f"{text}DeepSpeed's. Use False, the default, or FSDP2 or DDP."
        )
