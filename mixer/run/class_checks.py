"""Checks of trainer classes and training arguments, before anything is built."""

import math
import os
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from transformers import Trainer, TrainingArguments

from mixer.loading.build import resolve_batch_size
from mixer.mixture.clock import Budget
from mixer.mixture.stream import Stream
from mixer.run.argument_support import REFUSED
from mixer.schedules.base import Schedule
from mixer.utils.errors import InvalidValueError, require, wrong_type, wrong_value
from mixer.utils.nested import flat
from mixer.utils.user_code import library_of

_WHY = (
    "Even a step that fits into one micro-batch is split if each micro-batch has to contain one stream: if a policy "
    "weights losses, a method or a probe needs it, or row losses cannot be separated; and after an out-of-memory error."
)
_NOT_BY_SAMPLE = {
    "aot": "sorts the log-ratios of a micro-batch",
    "aot_unpaired": "sorts the log-ratios of a micro-batch",
    "sft": "is a mean over all tokens of a micro-batch",
}


def optimizer_name(args: TrainingArguments) -> str:
    """Returns the option `optim` as users write it."""
    return str(getattr(args.optim, "value", args.optim))


def steps_in_backward(args: TrainingArguments) -> bool:
    """Says whether the optimizer updates weights during the backward pass: LOMO, AdaLomo, layer-wise ones."""
    name = optimizer_name(args)
    return "lomo" in name or "layerwise" in name


def check_budget(args: TrainingArguments, budget: Budget) -> None:
    """Refuses an optimizer whose learning rate counts steps if the budget does not.

    Raises:
        ValueError: With the alternatives.
    """
    name = optimizer_name(args)
    if "layerwise" in name and not budget.is_in_steps:
        raise wrong_value(
            "optim",
            f"={name!r} has a learning rate per layer that can only count steps, which budgets in samples or tokens "
            "do not. Set the budget in steps or epochs, or use another optimizer.",
        )


def check_finite(args: TrainingArguments) -> None:
    """Refuses numbers of training arguments that are not finite; only `max_grad_norm` may be infinite: never clip.

    Raises:
        ValueError: With the argument.
    """
    values = flat({option.name: getattr(args, option.name) for option in fields(args)})
    for name, value in values.items():
        if isinstance(value, float) and not (math.isfinite(value) or (name, value) == (("max_grad_norm",), math.inf)):
            raise wrong_value(".".join(name), f"of the training arguments must be a finite number, got {value}.")


def check_one_pass(
    args: TrainingArguments, accelerator: Accelerator, step: int, num_micro_batches: int, is_first: bool
) -> None:
    """Refuses a step of several micro-batches that would be trained wrongly, or not at all.

    Args:
        args: The training arguments.
        accelerator: The trainer's accelerator.
        step: Number of the step.
        num_micro_batches: Its micro-batches, the same on every rank.
        is_first: Whether it is the first step that this process trains.

    Raises:
        ValueError: With the option, the reason and the alternatives.
    """
    if num_micro_batches < 2:
        return
    if steps_in_backward(args):
        text = (
            f"={optimizer_name(args)!r} would update the weights for each of the {num_micro_batches} micro-batches of "
        )
        raise wrong_value("optim", f"{text}step {step}. {_WHY} Use one that updates once per step, as adafactor.")
    always = accelerator.gradient_state.plugin_kwargs.get("sync_each_batch", False)
    if is_first and args.world_size > 1 and args.ddp_static_graph and not always:
        raise wrong_value(
            "ddp_static_graph",
            f"=True needs a first step of one micro-batch, but step {step}, the first of this run, has "
            f"{num_micro_batches}: torch fails if gradients are synchronised after several. {_WHY} Leave it out.",
        )


def check_arguments(
    trainer: Trainer, streams: Sequence[Stream], schedule: Schedule, cap: int, max_tokens: int | None
) -> None:
    """Refuses training arguments that mixing cannot honour; `REFUSED` lists them with the reasons.

    Args:
        trainer: The trainer, after the construction of its parent class.
        streams: The streams.
        schedule: The batch-size schedule.
        cap: Maximum number of samples in a micro-batch.
        max_tokens: Maximum number of tokens in a micro-batch, or `None`.

    Raises:
        ValueError: With the option, the reason and the alternatives.
    """
    args = trainer.args
    check_finite(args)
    _check_ranks(args)
    if args.n_gpu > 1:
        raise wrong_value(
            "n_gpu",
            f"One process drives {args.n_gpu} GPUs (DataParallel), which splits each batch without regard to streams. "
            f"Start one process per GPU: torchrun --nproc_per_node {args.n_gpu} -m mixer train RECIPE.yaml (or your "
            f"script), or accelerate launch.",
        )
    total, _ = resolve_batch_size(args, schedule.initial)
    may_split_first = max_tokens is not None or total > cap * args.world_size
    config: Any = args.accelerator_config
    is_sharded = trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled
    syncs_each = trainer.accelerator.gradient_state.plugin_kwargs.get("sync_each_batch", False)
    # gradient_accumulation_steps is checked by resolve_batch_size.
    is_refused = {
        "max_steps": args.max_steps == 0,
        "average_tokens_across_devices": args.world_size > 1 and not args.average_tokens_across_devices,
        "train_sampling_strategy": args.train_sampling_strategy not in ("random", "sequential", "group_by_length"),
        "save_on_each_node": args.save_on_each_node and is_sharded,
        "accelerator_config": config.split_batches or config.dispatch_batches,
        "parallelism_config": max(trainer.get_tp_size(), trainer.get_cp_size(), trainer.get_sp_size()) > 1,
        "enable_jit_checkpoint": args.enable_jit_checkpoint,
        "ignore_data_skip": args.ignore_data_skip and any(stream.is_iterable for stream in streams),
        "dataloader_in_order": args.dataloader_num_workers > 0 and not getattr(args, "dataloader_in_order", True),
        "optim": steps_in_backward(args) and (may_split_first or not schedule.is_constant),
        "ddp_static_graph": args.world_size > 1 and args.ddp_static_graph and may_split_first and not syncs_each,
    }
    for name in (name for name, applies in is_refused.items() if applies):
        raise InvalidValueError(REFUSED[name], option=name)
    _check_workers(args)


def _check_ranks(args: TrainingArguments) -> None:
    """Refuses processes that were launched as ranks of one run but would each train the whole run."""
    launched = os.environ.get("WORLD_SIZE", "1")
    if args.world_size > 1 or not launched.isdecimal() or int(launched) <= 1:
        return
    raise wrong_value(
        "WORLD_SIZE",
        f"WORLD_SIZE={launched}, but the training arguments see one rank: each process would train the whole run, into "
        f"the same folder. On a machine without a GPU set use_cpu=True (training.use_cpu in a recipe); for a run of "
        f"one process unset WORLD_SIZE, or start it without torchrun.",
    )


def _check_workers(args: TrainingArguments) -> None:
    workers, prefetch = args.dataloader_num_workers, args.dataloader_prefetch_factor
    require(workers >= 0, "dataloader_num_workers", "0 or more", workers, hint="0 loads in the training process.")
    require(prefetch is None or prefetch >= 1, "dataloader_prefetch_factor", "1 or more, or None for 2", prefetch)
    if args.dataloader_persistent_workers and not workers:
        raise wrong_value("dataloader_persistent_workers", "=True needs workers: set dataloader_num_workers above 0.")


def check_output_folder(args: TrainingArguments | None) -> None:
    """Refuses an output folder that is a file, or would lie in one.

    Raises:
        ValueError: With the file.
    """
    output = None if args is None else args.output_dir
    folder = Path(output or ".").absolute()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not existing.is_dir():
        raise wrong_value("output_dir", f"={str(output)!r}: {existing} is a file. Name a folder; the run creates it.")


def check_prepared_elsewhere(trainer_class: type) -> None:
    """Refuses a trainer of TRL that does not prepare its data in `_prepare_dataset`.

    Args:
        trainer_class: A class without that method.

    Raises:
        TypeError: With the class and the alternatives.
    """
    owner = next((owner for owner in trainer_class.__mro__ if library_of(owner) == "trl"), None)
    if owner is not None:
        raise wrong_type(
            "_prepare_dataset",
            f"for each stream is missing in TRL's {owner.__name__} ({trainer_class.__name__}). Mix the data sets first "
            "(datasets.interleave_datasets), or use SFTTrainer, DPOTrainer or RewardTrainer.",
        )


def check_loss(trainer: Trainer) -> None:
    """Refuses losses that are no mean over samples: they depend on how a step is split into micro-batches.

    Args:
        trainer: The trainer while its data are prepared; it may be only partly constructed.

    Raises:
        ValueError: With the loss, the reason and the alternatives.
    """
    name = type(trainer).__name__
    for loss in getattr(trainer, "loss_types", ()):
        if loss in _NOT_BY_SAMPLE:
            raise wrong_value(
                "loss_type",
                f"={loss!r} of {name} {_NOT_BY_SAMPLE[loss]}, so its gradient depends on how a step is split and no "
                "stream has a loss of its own. Use a loss of single pairs, such as 'sigmoid' or 'ipo'.",
            )
    if getattr(trainer, "calculate_KL", False):
        raise wrong_value(
            "loss_type",
            f"of {name} estimates a KL divergence over each batch, from neighbours in its data set, which a step of "
            "several streams lacks. Use one without, such as 'apo_zero_unpaired'.",
        )
