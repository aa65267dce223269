"""Trainers and arguments that a mixture cannot support, refused before anything is built."""

import inspect
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from accelerate import Accelerator
from transformers import Seq2SeqTrainer, Trainer, TrainingArguments

from mixer.mixture.clock import Budget
from mixer.mixture.resolve import resolve_batch_size
from mixer.mixture.stream import Stream
from mixer.schedules import Schedule
from mixer.trainer.argument_support import REFUSED

_WHY = (
    "A step that fits into one micro-batch is cut all the same where each has to be of one stream: a policy weighs "
    "losses, a method or a probe wants it, or the losses of rows cannot be told apart; and where memory ran out."
)


def optimizer_name(args: TrainingArguments) -> str:
    """Gives the option `optim` as a user writes it.

    Args:
        args: The training arguments.

    Returns:
        The name.
    """
    return str(getattr(args.optim, "value", args.optim))


def steps_in_backward(args: TrainingArguments) -> bool:
    """Says whether the optimizer changes weights in the midst of each backward.

    Args:
        args: The training arguments.

    Returns:
        Whether it does: LOMO, AdaLomo, and those that go layer by layer.
    """
    name = optimizer_name(args)
    return "lomo" in name or "layerwise" in name


def check_budget(args: TrainingArguments, budget: Budget) -> None:
    """Refuses an optimizer whose learning rate goes step by step beside a budget that does not.

    Args:
        args: The training arguments.
        budget: The budget of the run.

    Raises:
        ValueError: With the way out.
    """
    name = optimizer_name(args)
    if "layerwise" in name and not budget.is_in_steps:
        raise ValueError(
            f"optim={name!r} has a learning rate for each layer that can only go step by step, but with a budget in "
            "samples or tokens it follows the data. Give the budget in steps or epochs, or take another optimizer."
        )


def check_one_pass(
    args: TrainingArguments, accelerator: Accelerator, step: int, num_micro_batches: int, is_first: bool
) -> None:
    """Refuses a step in parts where it would be trained wrongly, or not at all.

    Args:
        args: The training arguments.
        accelerator: The trainer's accelerator.
        step: Number of the step.
        num_micro_batches: Its micro-batches, on every rank alike.
        is_first: Whether it is the first that this process trains.

    Raises:
        ValueError: With the option, the reason and the way out.
    """
    if num_micro_batches < 2:
        return
    if steps_in_backward(args):
        raise ValueError(
            f"Step {step} has {num_micro_batches} micro-batches, and optim={optimizer_name(args)!r} would make a "
            f"step for each. {_WHY} Take an optimizer that steps once a step; adafactor needs little memory too."
        )
    always = accelerator.gradient_state.plugin_kwargs.get("sync_each_batch", False)
    if is_first and args.world_size > 1 and args.ddp_static_graph and not always:
        raise ValueError(
            f"Step {step}, the first of this run, has {num_micro_batches} micro-batches, and ddp_static_graph=True "
            f"needs one: torch fails where gradients are synchronised after several. {_WHY} Leave ddp_static_graph out."
        )


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


_MAKE_BATCHES = ("get_train_dataloader", "_get_train_sampler", "get_batch_samples", "_inner_training_loop")
_STOCK = (Trainer, Seq2SeqTrainer)
# Has the order of older versions of transformers kept where it needs one, for the losses that are refused below.
_HARMLESS = {("trl.trainer.kto_trainer", "KTOTrainer", "_get_train_sampler")}
_IN_ORDER = ("model", "args", "data_collator", "train_dataset")
_NOT_BY_SAMPLE = {
    "aot": "sorts the log-ratios of a micro-batch",
    "aot_unpaired": "sorts the log-ratios of a micro-batch",
    "sft": "is a mean over the tokens of a micro-batch, whatever pairs they are from",
}


def check_trainer_is_supported(trainer_class: type, mixin: type) -> None:
    """Refuses classes below the mixin that make their batches themselves.

    Args:
        trainer_class: The class that is built.
        mixin: The last of the mixins in its order of methods.

    Raises:
        TypeError: With class and method, the reason and the way out.
    """
    for owner, name in _overridden(trainer_class, mixin):
        if (owner.__module__, owner.__name__, name) in _HARMLESS:
            continue
        raise TypeError(
            f"{trainer_class.__name__}: {owner.__name__} has a {name} of its own, which mixing replaces: the batches "
            "that it makes (generated, repeated, or in an order of its own) would silently be others. Train with "
            f"{owner.__name__} on one data set that is mixed beforehand (datasets.interleave_datasets), or take a "
            f"trainer that leaves {name} to transformers.Trainer, such as SFTTrainer or DPOTrainer."
        )


def _overridden(trainer_class: type, mixin: type) -> list[tuple[type, str]]:
    order = trainer_class.__mro__
    below = [owner for owner in order[order.index(mixin) + 1 :] if issubclass(owner, Trainer) and owner not in _STOCK]
    return [(owner, name) for owner in below for name in _MAKE_BATCHES if name in vars(owner)]


def check_order(trainer_class: type, mixin: type, args: Any, positional: tuple[Any, ...]) -> bool:
    """Refuses arguments that were given by position to a trainer with another order.

    Args:
        trainer_class: The class that is built.
        mixin: The last of the mixins in its order of methods.
        args: What was given as `args`.
        positional: What was given by position after the first four.

    Returns:
        Whether the trainer knows the first four by these names; else they are in this order.

    Raises:
        TypeError: With what was found where something else was expected.
    """
    order = trainer_class.__mro__
    parents = [owner for owner in order[order.index(mixin) + 1 :] if "__init__" in vars(owner)]
    # Those that take anything hand it on.
    parent = next(owner for owner in parents if "model" in _names(owner) or owner is Trainer)
    names = _names(parent)
    way_out = f"Give all but the model by name, as in {trainer_class.__name__}(model, args=args, train_dataset=...)."
    if args is not None and not isinstance(args, TrainingArguments):
        raise TypeError(
            f"args must be TrainingArguments, got {type(args).__name__}. The order of arguments here is "
            f"{', '.join(_IN_ORDER)}; that of {parent.__name__} is {', '.join(names[:4])}. {way_out}"
        )
    knows_names = set(_IN_ORDER) <= set(names)
    if positional and knows_names and tuple(names[:4]) != _IN_ORDER:
        raise TypeError(
            f"{len(positional)} more arguments than {', '.join(_IN_ORDER)} were given by position, and "
            f"{parent.__name__} takes others in that place: its order is {', '.join(names[:6])}. {way_out}"
        )
    return knows_names


def check_compute_loss(trainer_class: type[Trainer]) -> None:
    """Refuses a `compute_loss` as it was written before it was given the number of items.

    Args:
        trainer_class: The class that is built.

    Raises:
        TypeError: With the parameters that it has, and the one that it lacks.
    """
    parameters = inspect.signature(trainer_class.compute_loss).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    if "num_items_in_batch" not in parameters and not takes_any:
        raise TypeError(
            f"{trainer_class.__name__}.compute_loss takes {list(parameters)[1:]}, but the Trainer gives it "
            "num_items_in_batch too: add num_items_in_batch=None to its parameters."
        )


def check_create_optimizer(trainer_class: type[Trainer]) -> None:
    """Refuses a `create_optimizer_and_scheduler` of a user's own, which the Trainer has but does not call.

    Args:
        trainer_class: The class that is built.

    Raises:
        TypeError: With the class that has it, and the way out.
    """
    name = "create_optimizer_and_scheduler"
    owner = next(owner for owner in trainer_class.__mro__ if name in vars(owner))
    if owner is not Trainer:
        raise TypeError(
            f"{trainer_class.__name__}: {owner.__name__} has a {name} of its own, which the Trainer does not call, so "
            "that its optimizer would never be used. Override create_optimizer() and create_scheduler("
            "num_training_steps, optimizer=None) in its place, or give optimizers=(optimizer, scheduler)."
        )


def check_prepared_elsewhere(trainer_class: type) -> None:
    """Refuses trainers of TRL that prepare their data in another way than by `_prepare_dataset`.

    Args:
        trainer_class: A class without that method.

    Raises:
        TypeError: With the class and the way out.
    """
    owner = next((owner for owner in trainer_class.__mro__ if owner.__module__.startswith("trl.")), None)
    if owner is not None:
        raise TypeError(
            f"{trainer_class.__name__}: {owner.__name__} of TRL has no _prepare_dataset, by which the data set of each "
            "stream would be prepared, so that it would go unprepared. Mix the data sets beforehand "
            "(datasets.interleave_datasets), or take SFTTrainer, DPOTrainer, RewardTrainer or KTOTrainer."
        )


def _names(owner: type) -> list[str]:
    return list(inspect.signature(owner.__init__).parameters)[1:]  # type: ignore[misc]  # of that very class


def check_loss(trainer: Trainer) -> None:
    """Refuses losses that are no mean over samples: they depend on how a step is cut into micro-batches.

    Args:
        trainer: The trainer, as far as it is built when its data are prepared.

    Raises:
        ValueError: With the loss, the reason and the way out.
    """
    name = type(trainer).__name__
    if getattr(trainer, "calculate_KL", False):
        raise ValueError(
            f"{name}: the loss 'kto' compares each sample with a mean over the micro-batch that it is in, of "
            "completions that were swapped between neighbours of one data set, and mixing puts other neighbours "
            "together. Use loss_type='apo_zero_unpaired', which needs no such mean, or mix the data sets beforehand."
        )
    for loss in getattr(trainer, "loss_types", ()):
        if loss in _NOT_BY_SAMPLE:
            raise ValueError(
                f"{name}: loss_type {loss!r} {_NOT_BY_SAMPLE[loss]}, so that its gradient depends on how a step is "
                "cut and no stream has a loss of its own. Use a loss of single pairs, such as 'sigmoid' or 'ipo'."
            )
