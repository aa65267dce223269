"""Refuses, at construction, what a mixture cannot honour of the training arguments."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import Trainer, TrainingArguments

from mixer.mixture.resolve import resolve_batch_size
from mixer.mixture.stream import Stream
from mixer.schedules import Schedule
from mixer.trainer.argument_support import REFUSED
from mixer.trainer.one_pass import steps_in_backward


@dataclass(frozen=True)
class _Run:
    """What is known of a run when its trainer is made.

    Args:
        trainer: The trainer, after its own construction.
        streams: The streams.
        schedule: The batch-size schedule.
        max_tokens: Most tokens of a micro-batch, or `None`.
    """

    trainer: Trainer
    streams: Sequence[Stream]
    schedule: Schedule
    max_tokens: int | None

    @property
    def args(self) -> TrainingArguments:
        return self.trainer.args

    @property
    def begins_in_parts(self) -> bool:
        """Whether the first step may have several micro-batches."""
        total, _ = resolve_batch_size(self.args, self.schedule.initial)
        return self.max_tokens is not None or total > self.args.train_batch_size * self.args.world_size


def check_arguments(trainer: Trainer, streams: Sequence[Stream], schedule: Schedule, max_tokens: int | None) -> None:
    """Refuses training arguments that mixing cannot honour; `REFUSED` has them all, with the reasons.

    Args:
        trainer: The trainer, after its own construction.
        streams: The streams.
        schedule: The batch-size schedule.
        max_tokens: Most tokens of a micro-batch, or `None`.

    Raises:
        ValueError: With the option, the reason and the way out.
    """
    args = trainer.args
    _check_ranks(args)
    if args.n_gpu > 1:
        raise ValueError(
            f"One process drives {args.n_gpu} GPUs (DataParallel), which splits each batch without regard to streams. "
            f"Start one process a GPU: torchrun --nproc_per_node {args.n_gpu} -m mixer train RECIPE.yaml (or your "
            "script), or accelerate launch."
        )
    run = _Run(trainer, streams, schedule, max_tokens)
    for name, applies in _APPLIES.items():
        if applies(run):
            raise ValueError(REFUSED[name])
    _check_workers(args)


def _trains_nothing(run: _Run) -> bool:
    return bool(run.args.max_steps == 0)


def _weighs_by_rank(run: _Run) -> bool:
    return run.args.world_size > 1 and not run.args.average_tokens_across_devices


def _steps_in_backwards(run: _Run) -> bool:
    """Whether the optimizer steps inside each backward, and a step may have several of them."""
    return steps_in_backward(run.args) and (run.begins_in_parts or not run.schedule.is_constant)


def _saves_in_steps(run: _Run) -> bool:
    return bool(run.args.enable_jit_checkpoint)


def _begins_rows_anew(run: _Run) -> bool:
    return bool(run.args.ignore_data_skip) and any(stream.is_iterable for stream in run.streams)


def _saves_parts_on_each_node(run: _Run) -> bool:
    trainer = run.trainer
    return bool(run.args.save_on_each_node and (trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled))


def _shares_one_loader(run: _Run) -> bool:
    config: Any = run.args.accelerator_config
    return bool(config.split_batches or config.dispatch_batches)


def _shares_batches(run: _Run) -> bool:
    trainer = run.trainer
    return max(trainer.get_tp_size(), trainer.get_cp_size(), trainer.get_sp_size()) > 1


def _takes_what_is_ready(run: _Run) -> bool:
    return run.args.dataloader_num_workers > 0 and not getattr(run.args, "dataloader_in_order", True)


def _deals_anew(run: _Run) -> bool:
    return run.args.train_sampling_strategy not in ("random", "sequential", "group_by_length")


def _is_static_in_parts(run: _Run) -> bool:
    if run.args.world_size == 1 or not run.args.ddp_static_graph:
        return False
    always = run.trainer.accelerator.gradient_state.plugin_kwargs.get("sync_each_batch", False)
    return run.begins_in_parts and not always


# Whether an option has a value that is refused; `gradient_accumulation_steps` is where batch sizes are resolved.
_APPLIES: dict[str, Callable[[_Run], bool]] = {
    "max_steps": _trains_nothing,
    "average_tokens_across_devices": _weighs_by_rank,
    "train_sampling_strategy": _deals_anew,
    "save_on_each_node": _saves_parts_on_each_node,
    "accelerator_config": _shares_one_loader,
    "parallelism_config": _shares_batches,
    "enable_jit_checkpoint": _saves_in_steps,
    "ignore_data_skip": _begins_rows_anew,
    "dataloader_in_order": _takes_what_is_ready,
    "optim": _steps_in_backwards,
    "ddp_static_graph": _is_static_in_parts,
}


def _check_ranks(args: TrainingArguments) -> None:
    """Refuses processes that were started as ranks of one run, and of which each would train by itself."""
    launched = os.environ.get("WORLD_SIZE", "1")
    if args.world_size > 1 or not launched.isdecimal() or int(launched) <= 1:
        return
    raise ValueError(
        f"WORLD_SIZE={launched}, but the training arguments see one rank: each process would train the whole run by "
        "itself, into the same folder. On a machine without a GPU set use_cpu=True (training.use_cpu in a recipe); "
        "for a run of one process unset WORLD_SIZE, or start it without torchrun."
    )


def _check_workers(args: TrainingArguments) -> None:
    workers, prefetch = args.dataloader_num_workers, args.dataloader_prefetch_factor
    if workers < 0:
        raise ValueError(f"dataloader_num_workers must be 0 or more, got {workers}; 0 loads in the training process.")
    if prefetch is not None and prefetch < 1:
        raise ValueError(f"dataloader_prefetch_factor must be 1 or more, or None for 2, got {prefetch}.")
    if args.dataloader_persistent_workers and not workers:
        raise ValueError("dataloader_persistent_workers=True needs workers: set dataloader_num_workers above 0.")
